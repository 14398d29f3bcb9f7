/* Kinds and mark procedures of the client's own. */
#include "check.h"
#include <gc/gc_inline.h>
#include <gc/gc_mark.h>

#define N 500

struct hidden {
    GC_word magic;
    GC_word disguised;
    GC_word ignored;
};
static unsigned kind, procedure;
static struct hidden **table;
static int called, finalized_kept, finalized_lost;

static struct GC_ms_entry *mark(GC_word *address, struct GC_ms_entry *top, struct GC_ms_entry *limit, GC_word environment) {
    struct hidden *h = (struct hidden *)address;
    CHECK(environment == 5);
    called++;
    if (h->magic == 77) {
        void *p = (void *)~h->disguised;
        top = called % 2 ? GC_MARK_AND_PUSH(p, top, limit, (void **)&h->disguised)
                         : GC_mark_and_push(p, top, limit, (void **)&h->disguised);
    }
    return top;
}
static void kept(void *object, void *data) {
    (void)object;
    (void)data;
    finalized_kept++;
}
static void lost(void *object, void *data) {
    (void)object;
    (void)data;
    finalized_lost++;
}
static void make(void) {
    for (int i = 0; i < N; i++) {
        struct hidden *h = GC_generic_malloc(sizeof *h, kind);
        CHECK(h->magic == 0 && h->disguised == 0 && h->ignored == 0);
        void **first = GC_malloc(32), **behind = GC_malloc(32), *no = GC_malloc(32);
        first[1] = behind;
        GC_register_finalizer_no_order(first, kept, 0, 0, 0);
        GC_register_finalizer_no_order(behind, kept, 0, 0, 0);
        GC_register_finalizer_no_order(no, lost, 0, 0, 0);
        h->disguised = ~(GC_word)first;
        h->ignored = (GC_word)no;
        h->magic = 77;
        table[i] = h;
    }
}
static void *make_locked(void *unused) {
    (void)unused;
    CHECK(GC_new_proc_inner(mark) == procedure + 1);
    CHECK(GC_new_kind_inner(GC_new_free_list_inner(), 0, 1, 1) == kind + 1);
    return (void *)9;
}

int main(void) {
    GC_init();
    table = GC_malloc_uncollectable(N * sizeof *table);
    procedure = GC_new_proc(mark);
    CHECK(procedure >= GC_RESERVED_MARK_PROCS && procedure < GC_MAX_MARK_PROCS);
    void **lists = GC_new_free_list();
    CHECK(lists != 0);
    kind = GC_new_kind(lists, GC_MAKE_PROC(procedure, 5), 0, 1);
    CHECK(kind >= 4 && kind < 16);
    CHECK(GC_call_with_alloc_lock(make_locked, 0) == (void *)9);
    far_away(make);
    CHECK(GC_get_kind_and_size(table[0], 0) == (int)kind);
    collect();
    collect();
    CHECK(called >= N && finalized_kept == 0 && finalized_lost >= N - 10);
    void *list;
    GC_generic_malloc_many(32, kind, &list);
    CHECK(list && GC_get_kind_and_size(list, 0) == (int)kind);
    memset(table, 0, N * sizeof *table);
    list = opaque(0);
    collect();
    collect();
    CHECK(finalized_kept >= 2 * N - 20);

    /* Objects scanned conservatively over their whole length. */
    unsigned plain = GC_new_kind(GC_new_free_list(), GC_DS_LENGTH, 1, 1);
    void **object = GC_generic_malloc(100, plain);
    finalized_kept = 0;
    object[11] = GC_malloc(40);
    GC_register_finalizer_no_order(object[11], kept, 0, 0, 0);
    collect();
    collect();
    CHECK(finalized_kept == 0);
    GC_reachable_here(object);
    return 0;
}
