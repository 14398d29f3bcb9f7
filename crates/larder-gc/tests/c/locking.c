/* The allocation lock, and stopping the world from outside. */
#include "check.h"
#include <gc/gc_mark.h>
#include <pthread.h>

#define ROUNDS 2000

static int counter;
static void *increment(void *argument) {
    int seen = counter;
    for (volatile int i = 0; i < 50; i++) {}
    counter = seen + 1;
    return argument;
}
static volatile long work;
static volatile int stop;
static void *locked(void *unused) {
    for (int i = 0; i < ROUNDS; i++) {
        CHECK(GC_call_with_alloc_lock(increment, &counter) == &counter);
        GC_malloc(32);
        GC_alloc_lock();
        counter++;
        GC_alloc_unlock();
    }
    return unused;
}
static void *busy(void *unused) {
    while (!stop) work++;
    return unused;
}

int main(void) {
    GC_init();
    pthread_t t[4], b;
    for (int i = 0; i < 4; i++) CHECK(GC_pthread_create(&t[i], 0, locked, 0) == 0);
    for (int i = 0; i < 20; i++) GC_gcollect();
    for (int i = 0; i < 4; i++) CHECK(GC_pthread_join(t[i], 0) == 0);
    CHECK(counter == 4 * ROUNDS * 2);

    CHECK(GC_pthread_create(&b, 0, busy, 0) == 0);
    while (work == 0) {}
    GC_stop_world_external();
    long before = work;
    for (volatile int i = 0; i < 20000000; i++) {}
    CHECK(work == before);
    GC_start_world_external();
    while (work == before) {}
    stop = 1;
    CHECK(GC_pthread_join(b, 0) == 0);
    return 0;
}
