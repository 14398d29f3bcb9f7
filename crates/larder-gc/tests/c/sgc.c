// xtask: larder-headers, archive
/* The thesis's interface. */
#define GC_NO_THREAD_REDIRECTS
#include <sgc.h>
#include "check.h"
/* The variables belong to the thesis's interface: no use of them is warned of. */
#pragma GCC diagnostic error "-Wdeprecated-declarations"

static void *work(void *n) {
    char **list = 0;
    for (long i = 0; i < (long)n; i++) {
        char **p = GC_malloc(32);
        p[0] = (char *)list;
        p[1] = GC_malloc_atomic(20);
        if (i % 100 == 0) list = 0;
        list = p;
    }
    return list;
}
static int died;
static void finalizer(GC_PTR object, GC_PTR data) {
    (void)object;
    ++*(int *)data;
}
static void make(void) {
    for (int i = 0; i < 100; i++) {
        GC_finalization_proc old;
        GC_PTR old_data;
        GC_register_finalizer(GC_malloc(16), finalizer, &died, &old, &old_data);
        CHECK(old == 0 && old_data == 0);
    }
}

/* Objects that one place outside of the heap holds, and another in static data. */
enum { HELD = 100 };
static char **outside, **in_static_data;
static int died_outside, died_in_static_data;
static void hold(void) {
    in_static_data = GC_malloc(HELD * sizeof *in_static_data);
    for (int i = 0; i < HELD; i++) {
        GC_register_finalizer(outside[i] = GC_malloc(16), finalizer, &died_outside, 0, 0);
        GC_register_finalizer(in_static_data[i] = GC_malloc(16), finalizer, &died_in_static_data, 0, 0);
    }
}

int main(void) {
    CHECK(SGC_init(0, 0) == EINVAL && SGC_init(-1, 0) == EINVAL && SGC_init(2, (SGC_attr_t *)&died) == EINVAL);
    CHECK(!GC_is_init_called());
    CHECK(SGC_init(2, 0) == 0);
    CHECK(SGC_init(2, 0) == EALREADY);
    CHECK(GC_free_space_divisor == 4 && GC_dont_gc == 0 && GC_get_parallel() <= 1);
    pthread_t threads[8];
    for (long i = 0; i < 8; i++) CHECK(GC_pthread_create(&threads[i], 0, work, (void *)(100000 + i)) == 0);
    void *result;
    for (int i = 0; i < 8; i++) CHECK(GC_pthread_join(threads[i], &result) == 0 && GC_base(result) == result);
    GC_word cycles = GC_gc_no;
    GC_collect();
    CHECK(GC_gc_no - cycles - 1 <= (getenv("LARDER_CONCURRENT") != 0));
    GC_free(GC_malloc_uncollectable(100));
    GC_free(GC_malloc_atomic_uncollectable(100));
    CHECK(GC_expand_hp(1 << 20) == 1);
    /* Roots that were added hold until they are cleared; those that the program has anyway, afterwards as well. */
    outside = calloc(HELD, sizeof *outside);
    GC_add_roots((char *)outside, (char *)(outside + HELD));
    far_away(hold);
    clear_stack();
    GC_collect();
    GC_collect();
    CHECK(died_outside == 0 && died_in_static_data == 0);
    GC_clear_roots();
    GC_collect();
    GC_collect();
    CHECK(died_outside >= HELD * 9 / 10 && died_in_static_data == 0);
    /* The heap grows in place of being collected, even if that is asked for. */
    GC_free_space_divisor = 100;
    GC_dont_gc = 1;
    cycles = GC_gc_no;
    for (int i = 0; i < 500000; i++) CHECK(GC_malloc(64) != 0);
    GC_collect();
    CHECK(GC_gc_no == cycles && GC_get_heap_size() >= 500000 * 64);
    GC_dont_gc = 0;
    for (int i = 0; i < 500000; i++) CHECK(GC_malloc(64) != 0);
    CHECK(GC_gc_no > cycles);
    GC_free_space_divisor = 4;
    far_away(make);
    clear_stack();
    GC_collect();
    GC_collect();
    CHECK(died >= 90);
    return 0;
}
