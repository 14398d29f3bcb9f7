/* Debug objects that threads make and free while another collects, and plain objects that get the places of freed ones: no cycle takes
 * one that is whole for a damaged one. */
#include "check.h"
#include <pthread.h>

#define HERE "debug_threads.c", __LINE__

static volatile int done;

static void *makes_and_frees(void *seed) {
    unsigned random = (unsigned)(GC_word)seed;
    for (int round = 0; round < 4000; round++) {
        random = random * 1664525 + 1013904223;
        size_t n = random >> 16 & (random & 32 ? 0xfff : 0x3f);
        char *p = random & 64 ? GC_debug_malloc(n, HERE) : GC_debug_malloc_atomic(n, HERE);
        memset(p, 0x55, n);
        if (random & 128) GC_debug_free(p);
    }
    return 0;
}
static void *collects(void *unused) {
    (void)unused;
    while (!done) GC_gcollect();
    return 0;
}
static void threads(void) {
    pthread_t makers[2], collector;
    CHECK(GC_pthread_create(&collector, 0, collects, 0) == 0);
    for (int i = 0; i < 2; i++) CHECK(GC_pthread_create(&makers[i], 0, makes_and_frees, (void *)(GC_word)(i + 1)) == 0);
    for (int i = 0; i < 2; i++) CHECK(GC_pthread_join(makers[i], 0) == 0);
    done = 1;
    CHECK(GC_pthread_join(collector, 0) == 0);
}

/* Objects that nobody writes to, of many sizes, where objects with headers were before. */
static void *kept[4000];
static NOINLINE void reused(void) {
    for (int round = 0; round < 6; round++) {
        for (int i = 0; i < 4000; i++) kept[i] = GC_debug_malloc(64 << (i % (round + 2)), HERE);
        for (int i = 0; i < 4000; i++) {
            if (i % 2) GC_debug_free(kept[i]);
            kept[i] = 0;
        }
        GC_gcollect();
        for (int i = 0; i < 4000; i++) kept[i] = GC_malloc_atomic(32 << (i % 7));
        GC_gcollect();
    }
}

int main(void) {
    GC_INIT();
    GC_allow_register_threads();
    captured_begin();
    threads();
    reused();
    const char *printed = captured_end();
    if (printed[0]) fprintf(stderr, "%.300s\n", printed);
    CHECK(printed[0] == 0);
    return 0;
}
