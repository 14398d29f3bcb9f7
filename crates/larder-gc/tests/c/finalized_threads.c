/* Objects with their finalizers, made by many threads: each is finalized once, with what it was made with, and the functions of disclaimed kinds see whole objects. */
#include "check.h"
#include <gc/gc_disclaim.h>
#include <gc/gc_mark.h>

#define THREADS 8
#define EACH 20000

static unsigned char *finalized;
static int total, kept_once;
struct object {
    long number;
    struct object *next;
    long check;
};
static void run(void *object, void *data) {
    struct object *o = object;
    CHECK(data == &total && o->number >= 0 && o->number < THREADS * EACH && o->check == ~o->number);
    CHECK(o->next == 0 || o->next->check == ~o->next->number);
    CHECK(__atomic_fetch_add(&finalized[o->number], 1, __ATOMIC_RELAXED) == 0);
    __atomic_fetch_add(&total, 1, __ATOMIC_RELAXED);
}
static struct GC_finalizer_closure closure = {run, &total};
static unsigned kind;
static int ask(void *object) {
    struct object *o = object;
    if (o->check == 0) return 0;
    CHECK(o->check == ~o->number);
    /* Half of them are kept for one cycle. */
    if (o->number & 1) {
        o->number &= ~1l;
        o->check = ~o->number;
        __atomic_fetch_add(&kept_once, 1, __ATOMIC_RELAXED);
        return 1;
    }
    o->check = 0;
    return 0;
}
static void *work(void *number) {
    struct object *last = 0;
    for (long i = 0; i < EACH; i++) {
        struct object *o = GC_finalized_malloc(sizeof *o, &closure);
        o->number = (long)number * EACH + i;
        o->check = ~o->number;
        /* Short chains: of one, a cycle takes an object. */
        o->next = i % 4 ? last : 0;
        last = o;
        struct object *d = GC_generic_malloc(sizeof *d, kind);
        d->number = i;
        d->check = ~i;
        GC_malloc(200);
        if (i % 5000 == 0) GC_gcollect();
    }
    return 0;
}

int main(void) {
    GC_init();
    finalized = calloc(THREADS, EACH);
    GC_init_finalized_malloc();
    kind = GC_new_kind(GC_new_free_list(), GC_DS_LENGTH, 1, 1);
    GC_register_disclaim_proc(kind, ask, 0);
    pthread_t threads[THREADS];
    for (long i = 0; i < THREADS; i++) CHECK(GC_pthread_create(&threads[i], 0, work, (void *)i) == 0);
    for (int i = 0; i < THREADS; i++) CHECK(GC_pthread_join(threads[i], 0) == 0);
    for (int i = 0; i < 12; i++) {
        collect();
        /* libgc asks while it sweeps. */
        for (int j = 0; j < 2000; j++) GC_generic_malloc(sizeof(struct object), kind);
    }
    CHECK(total >= THREADS * EACH / 2 && kept_once > 1000);
    return 0;
}
