/* GC_finalize_all, and finalizers that must not run while others can bring their object back. */
#include "check.h"
#include <gc/javaxfc.h>

static int order[4], n, all;
static void note(void *object, void *data) {
    (void)object;
    if (n < 4) order[n++] = (int)(long)data;
}
static void count(void *object, void *data) {
    (void)object;
    (void)data;
    all++;
    if (all == 5) GC_register_finalizer(GC_malloc(16), count, 0, 0, 0);
}
static void make(void) {
    void **outer = GC_malloc(32);
    *outer = GC_malloc(32);
    GC_register_finalizer_no_order(outer, note, (void *)1, 0, 0);
    GC_register_finalizer_unreachable(*outer, note, (void *)2, 0, 0);
}
static void make_self(void) {
    void **p = GC_malloc(32);
    p[0] = p[2] = p;
    GC_register_finalizer_ignore_self(p, note, (void *)3, 0, 0);
    p = GC_malloc(32);
    p[0] = p;
    GC_register_finalizer(p, note, (void *)4, 0, 0);
}

int main(void) {
    GC_init();
    GC_set_java_finalization(1);
    far_away(make);
    collect();
    CHECK(n == 1 && order[0] == 1);
    collect();
    collect();
    CHECK(n == 2 && order[1] == 2);
    n = 0;
    far_away(make_self);
    collect();
    collect();
    CHECK(n == 1 && order[0] == 3);

    void *reachable[10];
    for (int i = 0; i < 10; i++) {
        reachable[i] = GC_malloc(16);
        GC_register_finalizer(reachable[i], count, 0, 0, 0);
    }
    n = 0;
    GC_finalize_all();
    CHECK(all == 11);
    /* The one that refers to itself, too. */
    CHECK(n == 1 && order[0] == 4);
    GC_reachable_here(reachable[9]);
    return 0;
}
