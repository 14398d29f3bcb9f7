/* Blocking regions: the stack above is searched, the thread is not stopped, and it may become active again inside. */
#include "lists.h"
#include <gc/gc_mark.h>
#include <pthread.h>
#include <semaphore.h>

/* Two rounds, each with its own door out, so that a fast thread does not take a slow one's turn. */
static sem_t inside, leave[2];
static __thread int round_of_thread;
static void *block(void *argument) {
    sem_post(&inside);
    while (sem_wait(&leave[round_of_thread]) != 0) {}
    round_of_thread++;
    return argument;
}
static void *active(void *argument) {
    GC_word *list = make_list(200);
    GC_gcollect();
    CHECK(length_of(list) == 200);
    CHECK(length_of(*(GC_word **)argument) == 1000);
    return GC_do_blocking(block, argument);
}
static void *block_and_return(void *argument) { return GC_call_with_gc_active(active, argument); }
static void *thread(void *argument) {
    GC_word *list = make_list(1000);
    CHECK(GC_do_blocking(block, &list) == &list);
    CHECK(length_of(list) == 1000);
    CHECK(GC_do_blocking(block_and_return, &list) == &list);
    CHECK(length_of(list) == 1000);
    return argument;
}

int main(void) {
    GC_init();
    sem_init(&inside, 0, 0);
    sem_init(&leave[0], 0, 0);
    sem_init(&leave[1], 0, 0);
    pthread_t t[8];
    for (int i = 0; i < 8; i++) CHECK(GC_pthread_create(&t[i], 0, thread, 0) == 0);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 8; i++) while (sem_wait(&inside) != 0) {}
        for (int i = 0; i < 5; i++) {
            GC_gcollect();
            make_list(20000);
        }
        for (int i = 0; i < 8; i++) sem_post(&leave[round]);
    }
    for (int i = 0; i < 8; i++) CHECK(GC_pthread_join(t[i], 0) == 0);
    return 0;
}
