/* Typed objects: only described words keep anything. */
#include "check.h"
#include <gc/gc_typed.h>

#define N 300

struct mixed {
    void *pointer;
    GC_word number;
    void *another;
    GC_word last;
};
static int kept_died, lost_died;
static struct mixed **objects;
static GC_descr descriptor;
static int elements;

static void kept(void *object, void *data) {
    (void)object;
    (void)data;
    kept_died++;
}
static void never(void *object, void *data) {
    (void)object;
    (void)data;
    CHECK(0);
}
static void lost(void *object, void *data) {
    (void)object;
    (void)data;
    lost_died++;
}
static void *watched(GC_finalization_proc f) {
    void *p = GC_malloc(48);
    GC_register_finalizer_no_order(p, f, 0, 0, 0);
    return p;
}
static void make(void) {
    for (int i = 0; i < N; i++) {
        struct mixed *m = elements ? GC_calloc_explicitly_typed(elements, sizeof *m, descriptor)
                                   : GC_malloc_explicitly_typed(sizeof *m, descriptor);
        int count = elements ? elements : 1;
        for (int j = 0; j < count; j++) {
            CHECK(m[j].pointer == 0 && m[j].number == 0 && m[j].another == 0 && m[j].last == 0);
            m[j].pointer = watched(kept);
            m[j].number = (GC_word)watched(lost);
            m[j].another = watched(kept);
            m[j].last = (GC_word)watched(lost);
        }
        objects[i] = m;
    }
}
static void check(int count) {
    elements = count;
    kept_died = lost_died = 0;
    far_away(make);
    collect();
    collect();
    int all = N * (count ? count : 1) * 2;
    CHECK(kept_died == 0 && lost_died >= all - all / 20 - 10);
    memset(objects, 0, N * sizeof *objects);
    collect();
    collect();
    CHECK(kept_died >= all - all / 20 - 10);
}

int main(void) {
    GC_init();
    objects = GC_malloc_uncollectable(N * sizeof *objects);
    GC_word bits[GC_BITMAP_SIZE(struct mixed)] = {0};
    GC_set_bit(bits, GC_WORD_OFFSET(struct mixed, pointer));
    GC_set_bit(bits, GC_WORD_OFFSET(struct mixed, another));
    descriptor = GC_make_descriptor(bits, GC_WORD_LEN(struct mixed));
    CHECK(descriptor == 0xa000000000000001);
    GC_word all[2] = {~0ul, ~0ul}, none[2] = {0, 0}, three = 7;
    CHECK(GC_make_descriptor(all, 10) == 80 && GC_make_descriptor(&three, 5) == 24);
    CHECK(GC_make_descriptor(none, 100) == 0 && GC_make_descriptor(all, 0) == 0);
    check(0);
    check(1);
    check(5);

    GC_word large[4] = {1, 0, 2, 0};
    GC_descr far_apart = GC_make_descriptor(large, 200);
    void **object = GC_malloc_explicitly_typed(200 * sizeof(void *), far_apart);
    object[0] = watched(never);
    object[129] = watched(never);
    collect();
    collect();
    GC_reachable_here(object);
    return 0;
}
