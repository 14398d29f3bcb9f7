// xtask: larder-only
/* Descriptions longer than a word are as exact as short ones, for objects and for arrays. (libgc 8.2.2 loses an element of an array now and
 * then, and takes elements whose description is a length as a whole.) */
#include "check.h"
#include <gc/gc_typed.h>

#define N 100
#define WORDS 150

static GC_word bitmap[3];
static GC_descr descriptor, prefix;
static void ***objects;
static int kept_died, lost_died, mode;
static void finalizer(void *object, void *data) {
    (void)object;
    (*(int *)data)++;
}
static void *watched(int *count) {
    void *p = GC_malloc(48);
    GC_register_finalizer_no_order(p, finalizer, count, 0, 0);
    return p;
}
static void make(void) {
    for (int i = 0; i < N; i++) {
        int elements = mode == 0 ? 1 : 3, words = mode == 2 ? 40 : WORDS;
        void **o = mode == 0 ? GC_malloc_explicitly_typed(WORDS * 8, descriptor)
                             : GC_calloc_explicitly_typed(3, words * 8, mode == 1 ? descriptor : prefix);
        for (int e = 0; e < elements; e++) {
            for (int w = 0; w < words; w += 7) {
                int pointer = mode == 2 ? w < 20 : (bitmap[w / 64] >> (w % 64)) & 1;
                CHECK(o[e * words + w] == 0);
                o[e * words + w] = watched(pointer ? &kept_died : &lost_died);
            }
        }
        objects[i] = o;
    }
}

int main(void) {
    GC_init();
    objects = GC_malloc_uncollectable(N * sizeof *objects);
    for (int w = 0; w < WORDS; w += 14) GC_set_bit(bitmap, w);
    descriptor = GC_make_descriptor(bitmap, WORDS);
    GC_word twenty = (1 << 20) - 1;
    prefix = GC_make_descriptor(&twenty, 40);
    for (mode = 0; mode < 3; mode++) {
        kept_died = lost_died = 0;
        far_away(make);
        collect();
        collect();
        int all = N * (mode == 0 ? 11 : mode == 1 ? 33 : 9);
        CHECK(kept_died == 0);
        CHECK(lost_died >= all - all / 10 - 20);
        memset(objects, 0, N * sizeof *objects);
        collect();
        collect();
        CHECK(kept_died >= N * (mode == 0 ? 10 : 9) - 20);
    }
    return 0;
}
