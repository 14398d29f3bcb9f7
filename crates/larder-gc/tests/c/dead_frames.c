// xtask: larder-only
/* What the library's own frames leave behind when they are gone keeps nothing alive, though a frame that comes to lie there does not
 * write all of its words. (libgc clears some of the dead stack now and then, and fails here.) */
#include "check.h"

#include <gc/gc_mark.h>

enum { OBJECTS = 3000, ROUNDS = 40 };

/* The addresses in disguise. */
static GC_word hidden[OBJECTS];

static NOINLINE void make(int i, size_t bytes) {
    void *object = GC_MALLOC(bytes);
    hidden[i] = ~(GC_word)object;
}

/* A frame over the dead ones, whose words nobody writes. */
static NOINLINE void collect_below(void) {
    volatile char unwritten[1024];
    __asm__ volatile("" : : "r"(unwritten) : "memory");
    GC_gcollect();
    __asm__ volatile("" : : "r"(unwritten) : "memory");
}

int main(void) {
    GC_INIT();
    int kept = 0;
    for (int round = 0; round < ROUNDS; round++) {
        size_t bytes = 16 + 48 * (round % 8);
        int made = OBJECTS / 2 + 31 * round;
        /* The last objects are in the buffers of the program itself, and nearly all others are in no frame of it. */
        for (int i = 0; i < made; i++) make(i, bytes);
        collect_below();
        for (int i = 0; i < made - 8; i++) {
            void *object = (void *)~hidden[i];
            /* Its block may be gone. */
            if (GC_base(object) && GC_is_marked(object)) kept++;
        }
    }
    if (kept) fprintf(stderr, "%d objects were kept\n", kept);
    CHECK(kept == 0);
    return 0;
}
