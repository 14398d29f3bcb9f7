/* One object of each of many sizes and of four kinds in a small heap at its maximum: a block of each size and kind would take several times as much, were the
 * first not short. */
#include "check.h"

enum { MEBIBYTES = 10, SMALLEST = 512, LARGEST = 32 << 10, KINDS = 4, MOST = 80, ROUNDS = 20 };

typedef struct { unsigned char *bytes; size_t size; unsigned char fill; } Object;
static Object objects[KINDS][MOST];

static void *none(size_t bytes) {
    (void)bytes;
    return 0;
}

static void *allocate(int kind, size_t size) {
    switch (kind) {
        case 0: return GC_malloc(size);
        case 1: return GC_malloc_atomic(size);
        case 2: return GC_malloc_uncollectable(size);
        default: return GC_malloc_atomic_uncollectable(size);
    }
}

static void look_at(const Object *o) {
    for (size_t i = 0; i < o->size; i++) CHECK(o->bytes[i] == o->fill);
}

static void let_go(Object *o, int kind) {
    if (!o->bytes) return;
    look_at(o);
    if (kind >= 2) GC_free(o->bytes);
    o->bytes = 0;
}

/* Fills every byte with an odd number, which together are no address. */
static void make(Object *o, int kind, size_t size, int round) {
    let_go(o, kind);
    o->bytes = allocate(kind, size);
    if (!o->bytes) {
        fprintf(stderr, "no %zu bytes of kind %d in round %d, heap of %zu\n", size, kind, round, GC_get_heap_size());
        CHECK(!"there is room");
    }
    o->size = size;
    o->fill = (unsigned char)(2 * (size / 16 + kind + round) | 0x81);
    memset(o->bytes, o->fill, size);
}

static NOINLINE void make_all(void) {
    static int round;
    for (int kind = 0; kind < KINDS; kind++) {
        int n = 0;
        /* Other sizes each time, of the same classes mostly. */
        for (size_t size = SMALLEST; size <= LARGEST; size += size / 15) make(&objects[kind][n++], kind, size - 8 * (round % 4), round);
        CHECK(n < MOST);
    }
    round++;
}

int main(void) {
    setenv("GC_MAXIMUM_HEAP_SIZE", "10M", 1);
    GC_init();
    GC_set_oom_fn(none);
    GC_set_warn_proc(GC_ignore_warn_proc);
    for (int i = 0; i < ROUNDS; i++) far_away(make_all);
    CHECK(GC_get_heap_size() <= (size_t)MEBIBYTES << 20);
    collect();
    for (int kind = 0; kind < KINDS; kind++)
        for (int i = 0; i < MOST; i++) let_go(&objects[kind][i], kind);
    return 0;
}
