/*
 * calls - what the functions of gc.h cost, each in a loop of its own.
 *
 * usage: calls [CALL [TIMES [THREADS]]]
 *
 * CALL is one of those in the table below, or all, TIMES how often each of THREADS threads does it. What a call leaves behind is kept in a table of SLOTS
 * places, and goes when its place is drawn again; each object is filled with its place's number and looked at before it goes.
 *
 * For each call one line: CPU time for one (of all threads, over all calls), collections, and the heap. Exit status: 0; 1 where an object was damaged;
 * 2 for a wrong argument; 3 without memory.
 */
#include "report.h"

#include <gc/gc_gcj.h>
#include <gc/gc_mark.h>
#include <gc/gc_typed.h>
#include <pthread.h>

enum { SLOTS = 10000, SIZES = 200, LONG_SIZES = 30000, CELL = 32, WEAK = 20000 };

static long times;
static long damaged, finalized;

/* What a thread has. */
typedef struct {
    uint64_t random;
    uintptr_t **slots; /* objects: their sizes in words, then their place's number in each */
    uintptr_t *hidden; /* objects that only links refer to */
} Own;

static void look_at(Own *own, long slot) {
    uintptr_t *object = own->slots[slot];
    for (uintptr_t i = 1; object && i < object[0]; i++)
        if (object[i] != (uintptr_t)slot) {
            __atomic_fetch_add(&damaged, 1, __ATOMIC_RELAXED);
            return;
        }
}

static void put(Own *own, long slot, void *object, long bytes) {
    uintptr_t *words = some(object);
    words[0] = bytes / sizeof *words;
    for (uintptr_t i = 1; i < words[0]; i++)
        words[i] = slot;
    own->slots[slot] = words;
}

static long drawn(Own *own, long most) { return random_next(&own->random) % most; }

static long size(Own *own) { return 16 + drawn(own, SIZES); }

static void call_malloc(Own *own) {
    long slot = drawn(own, SLOTS), bytes = size(own);
    look_at(own, slot);
    put(own, slot, GC_MALLOC(bytes), bytes);
}

static void call_malloc_atomic(Own *own) {
    long slot = drawn(own, SLOTS), bytes = size(own);
    look_at(own, slot);
    put(own, slot, GC_MALLOC_ATOMIC(bytes), bytes);
}

static void call_malloc_long(Own *own) {
    long slot = drawn(own, SIZES), bytes = 1000 + drawn(own, LONG_SIZES);
    put(own, slot, GC_MALLOC(bytes), 16);
}

static void call_free_at_once(Own *own) { GC_FREE(some(GC_MALLOC(size(own)))); }

static void call_free(Own *own) {
    long slot = drawn(own, SLOTS), bytes = size(own);
    look_at(own, slot);
    GC_FREE(own->slots[slot]);
    put(own, slot, GC_MALLOC(bytes), bytes);
}

static void call_uncollectable(Own *own) {
    long slot = drawn(own, SLOTS), bytes = size(own);
    look_at(own, slot);
    GC_FREE(own->slots[slot]);
    put(own, slot, GC_MALLOC_UNCOLLECTABLE(bytes), bytes);
}

/* For each object of a list. */
static void call_many(Own *own) {
    static __thread void *rest;
    (void)own;
    if (!rest)
        rest = some(GC_malloc_many(CELL));
    void *next = GC_NEXT(rest);
    GC_NEXT(rest) = 0;
    rest = next;
}

static void call_realloc(Own *own) {
    long slot = drawn(own, SIZES);
    uintptr_t *object = own->slots[slot];
    long bytes = object && object[0] < 4000 ? (object[0] + 1 + object[0] / 8) * sizeof *object : 16;
    look_at(own, slot);
    put(own, slot, GC_REALLOC(bytes == 16 ? 0 : object, bytes), bytes);
}

static void call_strdup(Own *own) {
    char text[SIZES];
    long length = drawn(own, SIZES - 1);
    memset(text, 'a', length);
    text[length] = 0;
    char *copy = some(GC_STRDUP(text));
    if (memcmp(copy, text, length + 1))
        __atomic_fetch_add(&damaged, 1, __ATOMIC_RELAXED);
    own->slots[0] = 0;
}

static void call_memalign(Own *own) {
    long slot = drawn(own, SLOTS), bytes = size(own);
    look_at(own, slot);
    put(own, slot, GC_memalign(64, bytes), bytes);
}

static void call_typed(Own *own) {
    static const GC_word none[1] = {0};
    static __thread GC_descr descriptor;
    long slot = drawn(own, SLOTS);
    if (!descriptor)
        descriptor = GC_make_descriptor((GC_bitmap)none, 4);
    look_at(own, slot);
    put(own, slot, GC_malloc_explicitly_typed(CELL, descriptor), CELL);
}

/* A type whose descriptor says that its objects hold no references. */
static const struct {
    void *nothing;
    size_t descriptor;
} type;

static void call_gcj(Own *own) {
    long slot = drawn(own, SLOTS);
    uintptr_t *object = some(GC_gcj_malloc(CELL, (void *)&type));
    own->slots[slot] = object + 1;
    object[1] = 1;
}

static void call_base(Own *own) {
    long slot = drawn(own, SLOTS);
    if (!own->slots[slot])
        return call_malloc(own);
    if (GC_base((char *)own->slots[slot] + 8) != own->slots[slot])
        __atomic_fetch_add(&damaged, 1, __ATOMIC_RELAXED);
}

static void call_size(Own *own) {
    long slot = drawn(own, SLOTS);
    if (!own->slots[slot])
        return call_malloc(own);
    if (GC_size(own->slots[slot]) < own->slots[slot][0] * sizeof(uintptr_t))
        __atomic_fetch_add(&damaged, 1, __ATOMIC_RELAXED);
}

static void on_finalized(void *object, void *data) {
    (void)object;
    (void)data;
    __atomic_fetch_add(&finalized, 1, __ATOMIC_RELAXED);
}

static void call_finalizer(Own *own) {
    (void)own;
    GC_register_finalizer_no_order(some(GC_MALLOC(CELL)), on_finalized, 0, 0, 0);
}

static void call_link(Own *own) {
    void **link = (void **)&own->hidden[drawn(own, WEAK)];
    if (*link)
        GC_unregister_disappearing_link(link);
    void *object = some(GC_MALLOC(CELL));
    *link = object;
    if (GC_general_register_disappearing_link(link, object) == GC_NO_MEMORY)
        some(0);
}

static const struct { const char *name; void (*call)(Own *); } calls[] = {
    {"malloc", call_malloc},
    {"malloc_atomic", call_malloc_atomic},
    {"malloc_long", call_malloc_long},
    {"free_at_once", call_free_at_once},
    {"free", call_free},
    {"uncollectable", call_uncollectable},
    {"many", call_many},
    {"realloc", call_realloc},
    {"strdup", call_strdup},
    {"memalign", call_memalign},
    {"typed", call_typed},
    {"gcj", call_gcj},
    {"base", call_base},
    {"size", call_size},
    {"finalizer", call_finalizer},
    {"link", call_link},
};
enum { CALLS = sizeof calls / sizeof calls[0] };

static int chosen;

static void *calling(void *argument) {
    Own own = {.random = 2001 + (intptr_t)argument, .slots = some(GC_MALLOC(SLOTS * sizeof *own.slots)), .hidden = some(GC_MALLOC_ATOMIC(WEAK * sizeof *own.hidden))};
    memset(own.hidden, 0, WEAK * sizeof *own.hidden);
    void (*call)(Own *) = calls[chosen].call;
    for (long i = 0; i < times; i++)
        call(&own);
    int frees = call == call_uncollectable;
    for (long slot = 0; slot < SLOTS; slot++) {
        if (call != call_gcj)
            look_at(&own, slot);
        if (frees)
            GC_FREE(own.slots[slot]);
    }
    for (long i = 0; call == call_link && i < WEAK; i++)
        GC_unregister_disappearing_link((void **)&own.hidden[i]);
    return 0;
}

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "all";
    int is_all = !strcmp(name, "all"), found = 0;
    times = argument(argc, argv, 2, "TIMES", 2000000, 1, 1L << 40);
    long threads = argument(argc, argv, 3, "THREADS", 1, 1, 4096);
    GC_INIT();
    GC_init_gcj_malloc(0, 0);
    for (chosen = 0; chosen < CALLS; chosen++) {
        if (!is_all && strcmp(name, calls[chosen].name))
            continue;
        found = 1;
        GC_gcollect();
        unsigned long gcs = GC_get_gc_no();
        double begun = cpu_s();
        run_threads(threads, calling);
        double taken = cpu_s() - begun;
        printf("calls call=%s threads=%ld times=%ld cpu_ns=%.1f gcs=%lu heap_mb=%.1f rss_mb=%.1f\n", calls[chosen].name, threads, times,
               taken * 1e9 / times / threads, (unsigned long)GC_get_gc_no() - gcs, GC_get_heap_size() / 1048576.0, peak_rss_mib());
    }
    if (!found) {
        fprintf(stderr, "calls: the call is '%s', must be all", name);
        for (int i = 0; i < CALLS; i++)
            fprintf(stderr, "%s%s", i == CALLS - 1 ? " or " : ", ", calls[i].name);
        fprintf(stderr, "\n");
        return 2;
    }
    if (damaged) {
        fprintf(stderr, "calls: %ld objects were damaged\n", damaged);
        return 1;
    }
    return 0;
}
