/* With two markers: what only a finalizable object refers to stays untouched until its finalizer has run. (Larder once
 * freed some of it, because two markers took turns on the finalizer's part of the work.) */
#include "check.h"

enum { ARRAYS = 12, TREES = 1500, DEPTH = 5, NODES = (1 << (DEPTH + 1)) - 1 };

typedef struct node {
    struct node *left, *right;
    GC_word value;
} node;

static NOINLINE node *tree(int depth, GC_word value) {
    node *n = GC_malloc(sizeof *n);
    n->value = value;
    if (depth > 0) {
        n->left = tree(depth - 1, 2 * value);
        n->right = tree(depth - 1, 2 * value + 1);
    }
    return n;
}
static NOINLINE int right(node *n, int depth, GC_word value) {
    CHECK(n != 0 && n->value == value);
    return depth == 0 ? 1 : 1 + right(n->left, depth - 1, 2 * value) + right(n->right, depth - 1, 2 * value + 1);
}

static int finalized;
static void finalize(void *object, void *unused) {
    (void)unused;
    node **trees = object;
    for (int i = 0; i < TREES; i++) CHECK(right(trees[i], DEPTH, 1000000 + i) == NODES);
    finalized++;
}
static NOINLINE void make(void) {
    for (int i = 0; i < ARRAYS; i++) {
        node **trees = GC_malloc(TREES * sizeof *trees);
        for (int j = 0; j < TREES; j++) trees[j] = tree(DEPTH, 1000000 + j);
        GC_register_finalizer(trees, finalize, 0, 0, 0);
    }
}

static node *kept;
int main(void) {
    setenv("GC_MARKERS", "2", 1);
    GC_set_finalize_on_demand(1);
    GC_init();
    kept = tree(16, 1); /* Enough live data that both markers take part. */
    collect();
    collect();
    far_away(make);
    collect();
    CHECK(GC_should_invoke_finalizers());
    /* Whatever was freed by mistake is handed out again. */
    for (int i = 0; i < 2000000; i++) ((node *)GC_malloc(sizeof(node)))->value = 77;
    collect();
    CHECK(GC_invoke_finalizers() == finalized && finalized >= ARRAYS - 1);
    CHECK(right(kept, 16, 1) == (1 << 17) - 1);
    return 0;
}
