/* A thread that unregisters itself, registers again, and returns an object: that lives until the thread is joined. */
#include "check.h"
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

enum { THREADS = 8 };

static int finalized;
static atomic_int returning;
static void GC_CALLBACK count(void *object UNUSED, void *data UNUSED) { finalized++; }

static NOINLINE void *made(long number) {
    long *object = GC_MALLOC(64);
    *object = number;
    GC_register_finalizer(object, count, 0, 0, 0);
    return object;
}
static void *comes_back(void *number) {
    struct GC_stack_base base;
    CHECK(GC_get_stack_base(&base) == GC_SUCCESS);
    for (int i = 0; i < 3; i++) {
        CHECK(GC_unregister_my_thread() == GC_SUCCESS);
        CHECK(GC_register_my_thread(&base) == GC_SUCCESS && GC_register_my_thread(&base) == GC_DUPLICATE);
    }
    GC_gcollect();
    void *object = made((long)number);
    atomic_fetch_add(&returning, 1);
    return object;
}

int main(void) {
    pthread_t threads[THREADS];
    GC_init();
    GC_allow_register_threads();
    for (int round = 0; round < 20; round++) {
        for (long i = 0; i < THREADS; i++) CHECK(GC_pthread_create(&threads[i], 0, comes_back, (void *)(77 + i)) == 0);
        /* Nobody else knows what they return. */
        while (atomic_load(&returning) < THREADS * (round + 1)) sched_yield();
        for (int i = 0; i < 20; i++) {
            GC_gcollect();
            for (int n = 0; n < 1000; n++) GC_MALLOC(64);
        }
        CHECK(finalized == 0);
        for (long i = 0; i < THREADS; i++) {
            void *result;
            CHECK(GC_pthread_join(threads[i], &result) == 0 && *(long *)result == 77 + i);
            GC_register_finalizer(result, 0, 0, 0, 0);
        }
    }
    CHECK(finalized == 0);
    return 0;
}
