/*
 * long - objects of megabytes, which come and go: whether their memory stays for the next ones.
 *
 * usage: long [SHAPE [MIB [TIMES [atomic]]]]
 *
 * SHAPE is
 *   objects   objects of MIB each, one after the other, each given up before the next
 *   freed     the same, given up by GC_FREE
 *   sizes     objects of 1 to MIB, in no order; the last four are kept
 *   vectors   vectors that grow by GC_REALLOC from 1 KiB to MIB, twice as long each time, and are given up
 * TIMES of them, with `atomic` without addresses. The beginning and the end of each page of an object are written and looked at before it is given up.
 *
 * cpu_us is the processor time of one of them. Exit status: 0; 1 where a byte was lost; 2 for a wrong argument; 3 without memory.
 */
#include "report.h"

enum { PAGE = 4096, KEPT = 4 };

typedef struct {
    unsigned char *bytes;
    size_t size;
    unsigned char fill;
} Object;

static Object kept[KEPT];
static int atomic;

/* The last byte of the page at `at`, or of the object. */
static size_t end_of_page(const Object *o, size_t at) {
    return at + PAGE <= o->size ? at + PAGE - 1 : o->size - 1;
}

/* Fills what is written of an object from `from` on. */
static void fill(Object *o, size_t from) {
    for (size_t at = from; at < o->size; at += PAGE) {
        o->bytes[at] = o->fill;
        o->bytes[end_of_page(o, at)] = o->fill;
    }
}

static void look_at(const Object *o) {
    for (size_t at = 0; at < o->size; at += PAGE) {
        if (o->bytes[at] != o->fill || o->bytes[end_of_page(o, at)] != o->fill) {
            fprintf(stderr, "long: an object of %zu bytes is changed near byte %zu\n", o->size, at);
            exit(1);
        }
    }
}

static void put(Object *place, size_t size, long number) {
    if (place->bytes)
        look_at(place);
    place->bytes = some(atomic ? GC_MALLOC_ATOMIC(size) : GC_MALLOC(size));
    place->size = size;
    place->fill = (unsigned char)(2 * number + 1);
    fill(place, 0);
}

static void grow(Object *place, size_t most, long number) {
    put(place, 1024, number);
    while (place->size < most) {
        look_at(place);
        size_t before = place->size;
        place->bytes = some(GC_REALLOC(place->bytes, 2 * before));
        place->size = 2 * before;
        fill(place, before);
    }
    look_at(place);
    place->bytes = 0;
}

int main(int argc, char **argv) {
    const char *shape = argc > 1 ? argv[1] : "objects";
    long mib = argument(argc, argv, 2, "MIB", 16, 1, 1 << 20), times = argument(argc, argv, 3, "TIMES", 100, 1, 1L << 40);
    atomic = argc > 4 && strcmp(argv[4], "atomic") == 0;
    if ((strcmp(shape, "objects") && strcmp(shape, "freed") && strcmp(shape, "sizes") && strcmp(shape, "vectors")) || (argc > 4 && !atomic)) {
        fprintf(stderr, "usage: long [objects|freed|sizes|vectors [MIB [TIMES [atomic]]]]\n");
        return 2;
    }
    GC_INIT();
    uint64_t state = 2001;
    double begun = cpu_s();
    GC_word cycles = GC_get_gc_no();
    for (long i = 0; i < times; i++) {
        if (*shape == 'o' || *shape == 'f') {
            put(&kept[0], (size_t)mib << 20, i);
            look_at(&kept[0]);
            if (*shape == 'f')
                GC_FREE(kept[0].bytes);
            kept[0].bytes = 0;
        } else if (*shape == 's')
            put(&kept[i % KEPT], (size_t)(1 + random_next(&state) % mib) << 20, i);
        else
            grow(&kept[0], (size_t)mib << 20, i);
    }
    for (int i = 0; i < KEPT; i++)
        if (kept[i].bytes)
            look_at(&kept[i]);
    printf("long shape=%s mib=%ld times=%ld atomic=%d cpu_us=%.0f gcs=%lu rss_mb=%.1f\n", shape, mib, times, atomic, (cpu_s() - begun) / times * 1e6,
           (unsigned long)(GC_get_gc_no() - cycles), peak_rss_mib());
    return 0;
}
