/* Objects with finalizers may hold more than their bytes: where there are many, cycles come before the heap grows, as
 * GC_set_allocd_bytes_per_finalizer says. */
#include "check.h"

static void nothing(void *object, void *data) {
    (void)object;
    (void)data;
}
static void allocate(GC_word bytes_per_finalizer) {
    GC_init();
    GC_set_allocd_bytes_per_finalizer(bytes_per_finalizer);
    /* libgc wants objects to have been finalized before it takes notice. */
    for (int i = 0; i < 100; i++) GC_register_finalizer_no_order(GC_malloc(100), nothing, 0, 0, 0);
    GC_gcollect();
    GC_word before = GC_get_gc_no();
    for (int i = 0; i < 40000; i++) GC_register_finalizer_no_order(GC_malloc(100), nothing, 0, 0, 0);
    fprintf(stderr, "%lu cycles\n", GC_get_gc_no() - before);
}
/* Much is alive, all of which each cycle marks: their number follows from what was allocated all the same. */
static void beside_much(void) {
    GC_init();
    GC_set_allocd_bytes_per_finalizer(1000000);
    void **list = 0;
    for (int i = 0; i < 160000; i++) {
        void **cell = GC_malloc(100);
        *cell = list;
        list = cell;
    }
    GC_register_finalizer_no_order(GC_malloc(100), nothing, 0, 0, 0);
    GC_gcollect();
    GC_word before = GC_get_gc_no();
    for (int i = 0; i < 4000; i++) GC_register_finalizer_no_order(GC_malloc(1000), nothing, 0, 0, 0);
    fprintf(stderr, "%lu cycles\n", GC_get_gc_no() - before);
    GC_reachable_here(list);
}
static void without_notice(void) { allocate(0); }
static void with_notice(void) { allocate(1000000); }

int main(void) {
    const char *text;
    unsigned long few, many, beside;
    CHECK(in_child(without_notice, &text) == 0 && sscanf(text, "%lu", &few) == 1);
    CHECK(in_child(with_notice, &text) == 0 && sscanf(text, "%lu", &many) == 1);
    /* Where a cycle may mark beside the program, there is one without notice, too, if marking took long before: that depends on speed. */
    CHECK(many > (getenv("LARDER_CONCURRENT") ? 0 : few));
    CHECK(in_child(beside_much, &text) == 0 && sscanf(text, "%lu", &beside) == 1);
    if (is_larder()) CHECK(beside <= 3);
    return 0;
}
