/* gcj objects with debug headers are scanned by the procedure, which is told so, and GC_IGNORE_GCJ_INFO makes all gcj objects conservative. */
#include "check.h"
#include <gc/gc_gcj.h>
#include <gc/gc_mark.h>

#define N 100

struct object {
    void *table;
    void *pointer;
    void *ignored;
};
static struct object **objects;
static int calls, died;
static struct GC_ms_entry *mark(GC_word *address, struct GC_ms_entry *top, struct GC_ms_entry *limit, GC_word environment) {
    CHECK(environment == 1);
    struct object *o = (struct object *)GC_USR_PTR_FROM_BASE(address);
    calls++;
    if (o->table) top = GC_MARK_AND_PUSH(o->pointer, top, limit, &o->pointer);
    return top;
}
static void finalizer(void *object, void *data) {
    (void)object;
    (*(int *)data)++;
}
static int kept_died, lost_died;
static void make(void) {
    static struct {
        void *unused;
        GC_word descriptor;
    } table;
    for (int i = 0; i < N; i++) {
        struct object *o = GC_debug_gcj_malloc(sizeof *o, &table, "gcj_debug.c", i);
        CHECK(o->table == &table && o->pointer == 0);
        o->pointer = GC_malloc(32);
        o->ignored = GC_malloc(32);
        GC_register_finalizer_no_order(o->pointer, finalizer, &kept_died, 0, 0);
        GC_register_finalizer_no_order(o->ignored, finalizer, &lost_died, 0, 0);
        objects[i] = o;
    }
}
static void start(void) {
    GC_init();
    objects = GC_malloc_uncollectable(N * sizeof *objects);
    GC_init_gcj_malloc(GC_GCJ_RESERVED_MARK_PROC_INDEX, (void *)mark);
    far_away(make);
    collect();
    collect();
}
static void believed(void) {
    start();
    CHECK(GC_get_kind_and_size(GC_base(objects[0]), 0) == GC_gcj_debug_kind);
    CHECK(calls >= N && kept_died == 0 && lost_died >= N - 10);
}
static void ignored(void) {
    setenv("GC_IGNORE_GCJ_INFO", "1", 1);
    start();
    CHECK(calls == 0 && kept_died == 0 && lost_died == 0 && died == 0);
}

int main(void) {
    CHECK(in_child(believed, 0) == 0);
    CHECK(in_child(ignored, 0) == 0);
    return 0;
}
