/* 1000 threads at once, three times over, half of them detached, while the main thread collects. */
#include "check.h"
#include <pthread.h>
#include <semaphore.h>

enum { THREADS = 1000, ROUNDS = 3, OBJECTS = 50, STACK_BYTES = 256 << 10 };

static sem_t holding, leave, gone;
static NOINLINE GC_word *make(GC_word salt) {
    GC_word *list = 0;
    for (int i = 0; i < OBJECTS; i++) {
        GC_word *cell = GC_malloc(16 + i % 10 * 16);
        CHECK(cell[0] == 0 && cell[1] == 0);
        cell[0] = (GC_word)list;
        cell[1] = salt + i;
        list = cell;
    }
    return list;
}
static NOINLINE void check(GC_word *list, GC_word salt) {
    int n = 0;
    for (; list; list = (GC_word *)list[0], n++) CHECK(list[1] == salt + OBJECTS - 1 - n);
    CHECK(n == OBJECTS);
}
static void *thread(void *argument) {
    GC_word salt = (GC_word)argument << 32;
    GC_word *list = make(salt);
    sem_post(&holding);
    while (sem_wait(&leave) != 0) {}
    check(list, salt);
    sem_post(&gone);
    return argument;
}

int main(void) {
    GC_init();
    sem_init(&holding, 0, 0);
    sem_init(&leave, 0, 0);
    sem_init(&gone, 0, 0);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    static pthread_t t[THREADS];
    for (int round = 0; round < ROUNDS; round++) {
        for (GC_word i = 0; i < THREADS; i++) {
            pthread_attr_setdetachstate(&attributes, i % 2 ? PTHREAD_CREATE_DETACHED : PTHREAD_CREATE_JOINABLE);
            CHECK(GC_pthread_create(&t[i], &attributes, thread, (void *)i) == 0);
        }
        for (int i = 0; i < THREADS; i++) while (sem_wait(&holding) != 0) {}
        for (int i = 0; i < 3; i++) {
            GC_gcollect();
            for (int j = 0; j < 1000; j++) check(make(7), 7);
        }
        for (int i = 0; i < THREADS; i++) sem_post(&leave);
        GC_gcollect(); /* Some of them are just leaving. */
        for (int i = 0; i < THREADS; i++) while (sem_wait(&gone) != 0) {}
        for (GC_word i = 0; i < THREADS; i += 2) {
            void *result;
            CHECK(GC_pthread_join(t[i], &result) == 0 && result == (void *)i);
        }
    }
    GC_gcollect();
    check(make(8), 8);
    return 0;
}
