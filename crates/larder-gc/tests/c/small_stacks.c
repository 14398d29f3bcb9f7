// xtask: larder-only
/* A cycle runs on the stack of the thread that asks for it, or that finds it due, and that may be small. (libgc overflows 20 KiB where an allocation
 * begins its collection.) */
#include "check.h"
#include <pthread.h>

enum { STACK = 20 << 10, OBJECTS = 40000 };

static void *explicitly(void *unused) {
    GC_word *kept = GC_malloc(sizeof *kept);
    *kept = 4711;
    for (int i = 0; i < 3; i++) GC_gcollect();
    CHECK(*kept == 4711);
    return unused;
}

static void *by_allocation(void *unused) {
    GC_word before = GC_get_gc_no(), *kept = GC_malloc(sizeof *kept);
    *kept = 4711;
    while (GC_get_gc_no() < before + 3)
        for (int i = 0; i < OBJECTS; i++) CHECK(GC_malloc(100) != 0);
    CHECK(*kept == 4711);
    return unused;
}

int main(void) {
    GC_init();
    pthread_attr_t attributes;
    CHECK(pthread_attr_init(&attributes) == 0 && pthread_attr_setstacksize(&attributes, STACK) == 0);
    void *(*const threads[])(void *) = {explicitly, by_allocation};
    for (int i = 0; i < 2; i++) {
        pthread_t t;
        CHECK(GC_pthread_create(&t, &attributes, threads[i], 0) == 0);
        CHECK(GC_pthread_join(t, 0) == 0);
    }
    return 0;
}
