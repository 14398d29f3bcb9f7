/* Threads of the collector's: created, joined, detached, ended early, cancelled; their stacks are roots while they live. */
#include "lists.h"
#include <pthread.h>
#include <semaphore.h>
#include <unistd.h>

#define THREADS 16

static sem_t holding, go;
static int cleaned;
static void clean(void *unused) {
    (void)unused;
    __atomic_add_fetch(&cleaned, 1, __ATOMIC_SEQ_CST);
}
static void *hold(void *argument) {
    CHECK(GC_thread_is_registered());
    GC_word *list = make_list(1000);
    sem_post(&holding);
    while (sem_wait(&go) != 0) {}
    CHECK(length_of(list) == 1000);
    return argument;
}
static void *allocate(void *argument) {
    GC_word *volatile kept = make_list(500);
    for (int i = 0; i < 200; i++) CHECK(length_of(make_list(100)) == 100);
    CHECK(length_of(kept) == 500);
    return make_list((int)(intptr_t)argument);
}
static NOINLINE void leave(void *result) { GC_pthread_exit(result); }
static void *exits(void *argument) {
    pthread_cleanup_push(clean, 0);
    make_list(100);
    leave(argument);
    pthread_cleanup_pop(0);
    return 0;
}
static void *waits(void *argument) {
    pthread_cleanup_push(clean, 0);
    make_list(100);
    sem_post(&holding);
    for (;;) pause();
    pthread_cleanup_pop(0);
    return argument;
}
static void *detached(void *argument) {
    make_list(100);
    sem_post(&holding);
    return argument;
}
static void *leaves_inside(struct GC_stack_base *base, void *argument) {
    CHECK(base->mem_base != 0 && (char *)base->mem_base > (char *)__builtin_frame_address(0));
    pthread_exit(argument);
}
static void *exits_inside(void *argument) {
    pthread_cleanup_push(clean, 0);
    GC_call_with_stack_base(leaves_inside, argument);
    pthread_cleanup_pop(0);
    return 0;
}

int main(void) {
    GC_init();
    sem_init(&holding, 0, 0);
    sem_init(&go, 0, 0);
    pthread_t t[THREADS];
    void *result;

    for (int i = 0; i < THREADS; i++) CHECK(GC_pthread_create(&t[i], 0, hold, (void *)(intptr_t)i) == 0);
    for (int i = 0; i < THREADS; i++) while (sem_wait(&holding) != 0) {}
    for (int i = 0; i < 5; i++) {
        GC_gcollect();
        make_list(10000);
    }
    for (int i = 0; i < THREADS; i++) sem_post(&go);
    for (int i = 0; i < THREADS; i++) CHECK(GC_pthread_join(t[i], &result) == 0 && result == (void *)(intptr_t)i);

    for (int i = 0; i < THREADS; i++) CHECK(GC_pthread_create(&t[i], 0, allocate, (void *)(intptr_t)(10 + i)) == 0);
    for (int i = 0; i < THREADS; i++) {
        if (i == THREADS / 2) GC_gcollect();
        CHECK(GC_pthread_join(t[i], &result) == 0 && length_of(result) == 10 + i);
    }

    for (int i = 0; i < THREADS; i++) CHECK(GC_pthread_create(&t[i], 0, exits, make_list(5)) == 0);
    for (int i = 0; i < THREADS; i++) CHECK(GC_pthread_join(t[i], &result) == 0 && length_of(result) == 5);
    CHECK(cleaned == THREADS);

    for (int i = 0; i < THREADS; i++) CHECK(GC_pthread_create(&t[i], 0, exits_inside, make_list(6)) == 0);
    for (int i = 0; i < THREADS; i++) CHECK(GC_pthread_join(t[i], &result) == 0 && length_of(result) == 6);
    CHECK(cleaned == 2 * THREADS);

    for (int i = 0; i < THREADS; i++) CHECK(GC_pthread_create(&t[i], 0, waits, 0) == 0);
    for (int i = 0; i < THREADS; i++) while (sem_wait(&holding) != 0) {}
    GC_gcollect();
    for (int i = 0; i < THREADS; i++) CHECK(GC_pthread_cancel(t[i]) == 0);
    for (int i = 0; i < THREADS; i++) CHECK(GC_pthread_join(t[i], &result) == 0 && result == PTHREAD_CANCELED);
    CHECK(cleaned == 3 * THREADS);

    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    for (int i = 0; i < THREADS; i++) {
        pthread_t d;
        CHECK(GC_pthread_create(&d, i % 2 ? &attributes : 0, detached, 0) == 0);
        if (i % 2 == 0) CHECK(GC_pthread_detach(d) == 0);
    }
    for (int i = 0; i < THREADS; i++) while (sem_wait(&holding) != 0) {}
    for (int i = 0; i < 5; i++) GC_gcollect();
    CHECK(length_of(make_list(1000)) == 1000);
    return 0;
}
