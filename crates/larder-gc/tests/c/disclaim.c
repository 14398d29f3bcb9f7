/* Functions that are asked before dead objects of a kind are reclaimed. */
#include "check.h"
#include <gc/gc_disclaim.h>
#include <gc/gc_mark.h>

#define N 200

struct node {
    struct node *next;
    long number;
    long asked;
};
static unsigned kind, chained, large;
static int asked, keeping, asked_in_chain, seen_next, asked_large;
static int ask(void *object) {
    struct node *node = object;
    /* libgc also asks about cells that were never handed out, or whose object was freed. */
    if (node->number == 0) return 0;
    CHECK(node->number == 5);
    asked++;
    if (!keeping) node->number = 0;
    return keeping;
}
static int ask_chain(void *object) {
    struct node *node = object;
    if (node->number == 0) return 0;
    asked_in_chain++;
    /* What a dead object refers to is whole when the function is asked. */
    if (node->next && node->next->number == node->number + 1) seen_next++;
    node->number = 0;
    return 0;
}
static int ask_large(void *object) {
    if (*(long *)object == 0) return 0;
    CHECK(*(long *)object == 9);
    *(long *)object = 0;
    asked_large++;
    return 0;
}
static void make(void) {
    for (int i = 0; i < N; i++) ((struct node *)GC_generic_malloc(sizeof(struct node), kind))->number = 5;
}
static void make_chain(void) {
    struct node *first = 0;
    for (int i = 10; i > 0; i--) {
        struct node *node = GC_generic_malloc(sizeof *node, chained);
        node->number = i;
        node->next = first;
        first = node;
    }
}
static void make_large(void) {
    for (int i = 0; i < 5; i++) *(long *)GC_generic_malloc(100000, large) = 9;
}
/* libgc asks when it sweeps: make it. */
static void sweep(void) {
    clear_stack();
    GC_gcollect();
    GC_gcollect();
    for (int i = 0; i < 3000; i++) {
        GC_generic_malloc(sizeof(struct node), kind);
        GC_generic_malloc(sizeof(struct node), chained);
    }
    GC_gcollect();
}

/* A weak table: it hides its objects, whose function takes them out. */
static GC_word table[N];
static unsigned weak;
static int taken_out, rescuing;
static int ask_weak(void *object) {
    struct node *node = object;
    if (node->number == 0) return 0;
    CHECK(node->number == 3);
    /* Nobody has marked it since it was found dead. */
    CHECK(!GC_is_marked(object));
    for (int i = 0; i < N; i++) {
        if (table[i] == GC_HIDE_POINTER(object)) {
            table[i] = 0;
            taken_out++;
        } else if (rescuing && table[i]) {
            GC_set_mark_bit(GC_REVEAL_POINTER(table[i]));
        }
    }
    node->number = 0;
    return 0;
}
static void make_weak(void) {
    for (int i = 0; i < N; i++) {
        struct node *node = GC_generic_malloc(sizeof *node, weak);
        node->number = 3;
        table[i] = GC_HIDE_POINTER(node);
    }
}

static int finalized;
static void *kept_by_closure;
static void run(void *object, void *data) {
    CHECK(*(long *)object == 99 && *(long *)data == 77);
    finalized++;
}
static void make_finalized(void) {
    for (int i = 0; i < N; i++) {
        /* The closure and its data are collected memory that only the object keeps. */
        struct GC_finalizer_closure *closure = GC_malloc(sizeof *closure);
        long *data = GC_malloc(16);
        *data = 77;
        closure->proc = run;
        closure->cd = data;
        *(long *)GC_finalized_malloc(32, closure) = 99;
    }
}

int main(void) {
    GC_init();
    kind = GC_new_kind(GC_new_free_list(), GC_DS_LENGTH, 1, 1);
    chained = GC_new_kind(GC_new_free_list(), GC_DS_LENGTH, 1, 1);
    large = GC_new_kind(GC_new_free_list(), GC_DS_LENGTH, 1, 1);
    GC_register_disclaim_proc(kind, ask, 0);
    GC_register_disclaim_proc(chained, ask_chain, 1);
    GC_register_disclaim_proc(large, ask_large, 0);

    /* An object that is kept is asked about again, and not before it is dead. */
    struct node *live = GC_generic_malloc(sizeof *live, kind);
    live->number = 6;
    keeping = 1;
    far_away(make);
    sweep();
    CHECK(asked >= N - 10);
    int before = asked;
    sweep();
    CHECK(asked >= before + N - 10);
    keeping = 0;
    before = asked;
    sweep();
    CHECK(asked >= before + N - 10);
    before = asked;
    sweep();
    CHECK(asked <= before + 10 && live->number == 6);

    /* Explicit freeing does not ask. */
    struct node *node = GC_generic_malloc(sizeof *node, kind);
    node->number = 5;
    GC_free(node);
    node = opaque(0);
    before = asked;
    sweep();
    CHECK(asked <= before + 10);

    far_away(make_chain);
    for (int i = 0; i < 14; i++) sweep();
    CHECK(asked_in_chain >= 9 && seen_next >= asked_in_chain - 2);

    far_away(make_large);
    sweep();
    CHECK(asked_large >= 4);

    /* The first that is asked about rescues all others, each time; then nobody does. */
    weak = GC_new_kind(GC_new_free_list(), GC_DS_LENGTH, 1, 1);
    GC_register_disclaim_proc(weak, ask_weak, 0);
    rescuing = 1;
    far_away(make_weak);
    sweep();
    CHECK(taken_out >= 1 && taken_out <= 10);
    rescuing = 0;
    sweep();
    CHECK(taken_out >= N - 10);

    GC_init_finalized_malloc();
    far_away(make_finalized);
    for (int i = 0; i < 3; i++) sweep();
    for (int i = 0; i < 5000 && finalized < N - 10; i++) {
        static struct GC_finalizer_closure none;
        none.proc = run;
        long seventy_seven = 77;
        none.cd = &seventy_seven;
        *(long *)GC_finalized_malloc(32, &none) = 99;
    }
    CHECK(finalized >= N - 10 && kept_by_closure == 0);
    live->number = 0;
    GC_reachable_here(live);
    return 0;
}
