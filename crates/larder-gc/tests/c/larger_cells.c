// xtask: larder-only
/* A heap at its maximum, all of whose blocks hold cells of one size: a smaller object takes such a cell. libgc returns null. */
#include "check.h"

enum { MEBIBYTES = 8, CELL = 96, SMALLER = 32, MOST_KEPT = (MEBIBYTES << 20) / 1024 + 64 };

static void *none(size_t bytes) {
    (void)bytes;
    return 0;
}

static void *kept[MOST_KEPT];
static size_t how_many_kept;

/* Fills the heap and keeps an object in every KiB. */
static NOINLINE void fill(void) {
    GC_word *list = 0, *object;
    for (; (object = GC_malloc(CELL)) != 0; list = object) object[0] = (GC_word)list;
    for (GC_word *next; list; list = next) {
        next = (GC_word *)list[0];
        list[0] = 0;
        if ((GC_word)list % 1024 < CELL && how_many_kept < MOST_KEPT) kept[how_many_kept++] = list;
    }
}

static size_t made;
static NOINLINE void make_smaller_ones(void) {
    GC_word *list = 0, *object;
    size_t found = 0;
    for (made = 0; (object = GC_malloc(SMALLER)) != 0; list = object, made++) {
        CHECK(GC_size(object) >= SMALLER && object[1] == 0 && object[2] == 0);
        object[0] = (GC_word)list;
        object[1] = made;
    }
    for (GC_word *next; list; list = next, found++) {
        CHECK(list[1] == made - 1 - found);
        next = (GC_word *)list[0];
        list[0] = 0;
    }
    CHECK(found == made);
}

int main(void) {
    setenv("GC_MAXIMUM_HEAP_SIZE", "8M", 1);
    GC_init();
    GC_set_oom_fn(none);
    GC_set_warn_proc(GC_ignore_warn_proc);
    far_away(fill);
    for (int round = 0; round < 3; round++) {
        GC_word cycles = GC_get_gc_no();
        far_away(make_smaller_ones);
        CHECK(made * CELL > (size_t)MEBIBYTES << 19);       /* Half of it is good for them, */
        /* without a cycle for each. How many mark beside the program depends on how fast each is: there are some forty, of 68,000 objects. */
        GC_word most = GC_is_incremental_mode() ? made / 100 : MEBIBYTES * 4 + 8;
        CHECK(GC_get_gc_no() - cycles < most);
        collect();
    }
    for (size_t i = 0; i < how_many_kept; i++) CHECK(GC_base(kept[i]) == kept[i]);
    return 0;
}
