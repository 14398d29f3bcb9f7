/* Chains of objects with finalizers: the first is finalized, then the next, one with each cycle. What the library's own frames
 * of the last cycle held, a finalizer's argument above all, keeps nothing alive in the next. */
#include "check.h"

enum { LENGTH = 12 };

struct node {
    struct node *next;
    long number, padding[5];
};

static int finalized[LENGTH], count;

static void GC_CALLBACK finalize(void *object, void *data) {
    struct node *node = object;
    CHECK(data == &count && node->number >= 0 && node->number < LENGTH);
    finalized[node->number]++;
    count++;
}

static NOINLINE void make_chain(int ignore_self) {
    struct node *last = 0;
    for (int i = 0; i < LENGTH; i++) {
        struct node *node = GC_MALLOC(sizeof *node);
        node->next = last;
        node->number = i;
        if (ignore_self)
            GC_register_finalizer_ignore_self(node, finalize, &count, 0, 0);
        else
            GC_register_finalizer(node, finalize, &count, 0, 0);
        last = node;
    }
}
static void ordered(void) { make_chain(0); }
static void with_selves(void) { make_chain(1); }

static void check(void (*make)(void)) {
    count = 0;
    memset(finalized, 0, sizeof finalized);
    far_away(make);
    for (int cycle = 0; cycle < LENGTH + 2; cycle++) {
        collect();
        GC_invoke_finalizers();
        CHECK(count <= cycle + 1);
    }
    CHECK(count == LENGTH);
    for (int i = 0; i < LENGTH; i++) CHECK(finalized[i] == 1);
}

int main(void) {
    GC_INIT();
    check(ordered);
    check(with_selves);
    return 0;
}
