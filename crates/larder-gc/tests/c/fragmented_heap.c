/* A heap at its maximum, mostly alive, whose free memory lies in short pieces: longer objects find room there. */
#include "check.h"

enum { MEBIBYTES = 16, SMALL = 64, LONG = 5000, PIECE = 16 << 10, FEWEST = 16 };

static void *none(size_t bytes) {
    (void)bytes;
    return 0;
}

static GC_word *kept;

/* Fills the heap with small objects. Of 16 pieces of memory twelve stay as they are, three keep one object, and one gets free. */
static NOINLINE void fill(void) {
    GC_word *list = 0, *object;
    for (; (object = GC_malloc(SMALL)) != 0; list = object) object[0] = (GC_word)list;
    for (GC_word *next; list; list = next) {
        next = (GC_word *)list[0];
        list[0] = 0; /* A stale pointer to one of them shall not keep the others. */
        size_t piece = (GC_word)list / PIECE % 16;
        if (piece < 12 || (piece < 15 && (GC_word)list % PIECE < SMALL)) {
            list[0] = (GC_word)kept;
            kept = list;
        }
    }
}

static size_t made;
static NOINLINE void make_long_ones(void) {
    GC_word *list = 0, *object;
    size_t found = 0;
    for (made = 0; (object = GC_malloc(LONG)) != 0; list = object, made++) {
        for (size_t i = 0; i < LONG / sizeof(GC_word); i++) CHECK(object[i] == 0);
        CHECK(GC_size(object) >= LONG && GC_base((char *)object + LONG - 1) == object);
        object[0] = (GC_word)list;
        object[LONG / 8 - 1] = made;
    }
    for (GC_word *next; list; list = next, found++) {
        CHECK(list[LONG / 8 - 1] == made - 1 - found);
        next = (GC_word *)list[0];
        list[0] = 0;
        if (found % 3 == 0) GC_free(list);
    }
    CHECK(found == made && GC_get_heap_size() <= (size_t)MEBIBYTES << 20);
}

int main(void) {
    setenv("GC_MAXIMUM_HEAP_SIZE", "16M", 1);
    GC_init();
    GC_set_oom_fn(none);
    GC_set_warn_proc(GC_ignore_warn_proc);
    far_away(fill);
    for (int round = 0; round < 3; round++) {
        collect();
        far_away(make_long_ones);
        CHECK(made >= FEWEST);
    }
    return 0;
}
