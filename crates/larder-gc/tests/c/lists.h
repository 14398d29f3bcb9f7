/* Lists by which the test programs see whether objects are kept: each cell says which it is. */
#ifndef LISTS_H
#define LISTS_H

#include "check.h"

/* A list of so many cells, the last number first. */
static NOINLINE UNUSED GC_word *make_list(int length) {
    GC_word *list = 0;
    for (int i = 0; i < length; i++) {
        GC_word *cell = GC_malloc(16 + i % 40 * 16);
        CHECK(cell[0] == 0 && cell[1] == 0);
        cell[0] = (GC_word)list;
        cell[1] = ~(GC_word)i;
        list = cell;
    }
    return list;
}

/* How many cells it has, each of which is looked at. */
static NOINLINE UNUSED int length_of(GC_word *list) {
    GC_word expected = list ? list[1] : 0;
    int n = 0;
    for (; list; list = (GC_word *)list[0], n++) CHECK(list[1] == expected++);
    CHECK(expected == 0);
    return n;
}

static NOINLINE UNUSED void use_heap(void) { CHECK(length_of(make_list(1000)) == 1000); }

#endif
