/* Objects that are described by what their first word points to. */
#include "check.h"
#include <gc/gc_gcj.h>
#include <gc/gc_mark.h>
#include <gc/gc_typed.h>

#define N 300

struct table {
    void *unused;
    GC_descr descriptor;
};
struct object {
    struct table *table;
    void *pointer;
    GC_word number;
};
static struct object **objects;
static struct table table;
static int kept_died, lost_died;
static void kept(void *object, void *data) {
    (void)object;
    (void)data;
    kept_died++;
}
static void lost(void *object, void *data) {
    (void)object;
    (void)data;
    lost_died++;
}
static struct GC_ms_entry *mark(GC_word *address, struct GC_ms_entry *top, struct GC_ms_entry *limit, GC_word environment) {
    struct object *o = (struct object *)address;
    (void)environment;
    if (o->table) top = GC_MARK_AND_PUSH(o->pointer, top, limit, &o->pointer);
    return top;
}
static void make(void) {
    for (int i = 0; i < N; i++) {
        struct object *o = GC_gcj_malloc(sizeof *o, &table);
        CHECK(o->table == &table && o->pointer == 0 && o->number == 0);
        o->pointer = GC_malloc(48);
        GC_register_finalizer_no_order(o->pointer, kept, 0, 0, 0);
        void *no = GC_malloc(48);
        GC_register_finalizer_no_order(no, lost, 0, 0, 0);
        o->number = (GC_word)no;
        objects[i] = o;
    }
}
static void check(void) {
    kept_died = lost_died = 0;
    far_away(make);
    collect();
    collect();
    CHECK(kept_died == 0 && lost_died >= N - 10);
    memset(objects, 0, N * sizeof *objects);
    collect();
    collect();
    CHECK(kept_died >= N - 10);
}

int main(void) {
    GC_init();
    objects = GC_malloc_uncollectable(N * sizeof *objects);
    GC_init_gcj_malloc(GC_GCJ_RESERVED_MARK_PROC_INDEX, (void *)mark);
    GC_init_gcj_malloc(GC_GCJ_RESERVED_MARK_PROC_INDEX, (void *)mark);
    CHECK(GC_gcj_kind >= 4 && GC_gcj_debug_kind > GC_gcj_kind);
    GC_word bits = 3;
    table.descriptor = GC_make_descriptor(&bits, 3);
    check();
    bits = 2;
    table.descriptor = GC_make_descriptor(&bits, 3);
    check();
    table.descriptor = GC_MAKE_PROC(GC_GCJ_RESERVED_MARK_PROC_INDEX, 0);
    check();
    return 0;
}
