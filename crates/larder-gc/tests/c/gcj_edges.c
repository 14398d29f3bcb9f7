/* Objects of gcj kinds: the mark procedure under a number that GC_new_proc gave, and memory that runs out. */
#include "check.h"
#include <gc/gc_gcj.h>
#include <gc/gc_mark.h>

struct object {
    void *table;
    void *pointer;
};
static GC_word marked;
static struct GC_ms_entry *mark(GC_word *address, struct GC_ms_entry *top, struct GC_ms_entry *limit, GC_word environment) {
    struct object *o = environment ? GC_USR_PTR_FROM_BASE(address) : (void *)address;
    marked++;
    if (o->table) top = GC_MARK_AND_PUSH(o->pointer, top, limit, &o->pointer);
    return top;
}

static int died;
static void finalizer(void *object, void *data) {
    (void)object;
    (void)data;
    died++;
}

static struct {
    void *unused;
    GC_word descriptor;
} table;
static struct object *kept;
static void make(void) {
    kept = GC_debug_gcj_malloc(sizeof *kept, &table, __FILE__, __LINE__);
    CHECK(kept->table == &table);
    kept->pointer = GC_malloc(48);
    GC_register_finalizer_no_order(kept->pointer, finalizer, 0, 0, 0);
}

static GC_word reserve[8] = {77, 78};
static size_t asked;
static void *no_memory(size_t bytes) {
    asked = bytes;
    return reserve;
}

int main(void) {
    GC_init();
    unsigned number = GC_new_proc(mark);
    CHECK(number >= GC_RESERVED_MARK_PROCS);
    GC_init_gcj_malloc(number, (void *)mark);
    far_away(make);
    collect();
    collect();
    CHECK(died == 0 && marked > 0);

    /* What the client's function returns is the client's. (The compiler takes what is allocated for new, and need not look.) */
    GC_set_oom_fn(no_memory);
    GC_set_warn_proc(GC_ignore_warn_proc);
    CHECK(opaque(GC_gcj_malloc(SIZE_MAX / 4, &table)) == reserve && asked >= SIZE_MAX / 4);
    CHECK(opaque(GC_gcj_malloc_ignore_off_page(SIZE_MAX / 4, &table)) == reserve);
    captured_begin();
    CHECK(opaque(GC_debug_gcj_malloc(SIZE_MAX / 4, &table, __FILE__, __LINE__)) == reserve);
    captured_end();
    opaque(reserve);
    CHECK(reserve[0] == 77 && reserve[1] == 78);
    return 0;
}
