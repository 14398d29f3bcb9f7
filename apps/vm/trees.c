/*
 * trees - binary trees of many depths beside a large one that stays.
 *
 * usage: trees [OPTIONS] [NODES [DEPTH]]
 *
 * One tree of DEPTH levels lives from beginning to end. The threads share about NODES allocations and build trees of 4, 6, 8
 * ... levels, half of them from the leaves up and half from the root down. Each tree is counted and dropped.
 */
#include "vm.h"

enum { LEAST_DEPTH = 4 };

static VmClass node = {.refs = 2, .words = 1};
static long nodes = 2000000, deepest = 14;

/* The references of a node are 0 and 1. Its number is 1 at the root, and 2n and 2n + 1 below n. */
static Ref from_leaves(Thread *thread, int depth, uint64_t number) {
    if (!depth)
        return 0;
    ROOTS(thread, 2);
    root[0] = from_leaves(thread, depth - 1, 2 * number);
    root[1] = from_leaves(thread, depth - 1, 2 * number + 1);
    Ref tree = make_one(thread, &node, number);
    set(thread, tree, 0, root[0]);
    set(thread, tree, 1, root[1]);
    DONE(thread);
    return tree;
}

static void grow(Thread *thread, Ref tree, int depth) {
    if (depth == 1)
        return;
    ROOTS(thread, 1);
    root[0] = tree;
    uint64_t number = *word_of(tree, 0);
    for (int i = 0; i < 2; i++) {
        Ref child = make_one(thread, &node, 2 * number + i);
        set(thread, root[0], i, child);
    }
    for (int i = 0; i < 2; i++)
        grow(thread, get(root[0], i), depth - 1);
    DONE(thread);
}

/* How many nodes there are; ends the program at one that is not what it was. No safepoint. */
static uint64_t count(Ref tree, uint64_t number) {
    if (!tree)
        return 0;
    if (*word_of(tree, 0) != number)
        fail("node %" PRIu64 " became %" PRIu64, number, *word_of(tree, 0));
    return 1 + count(get(tree, 0), 2 * number) + count(get(tree, 1), 2 * number + 1);
}

static uint64_t build(Thread *thread, long number) {
    (void)number;
    uint64_t sum = 0;
    int kinds = (deepest - LEAST_DEPTH) / 2 + 1;
    for (int depth = LEAST_DEPTH; depth <= deepest; depth += 2) {
        long trees = nodes / vm_threads / kinds >> depth;
        for (long i = 0; i < trees + 1; i++) {
            ROOTS(thread, 1);
            if (i % 2) {
                root[0] = from_leaves(thread, depth, 1);
            } else {
                root[0] = make_one(thread, &node, 1);
                grow(thread, root[0], depth);
            }
            if (count(root[0], 1) != (UINT64_C(1) << depth) - 1)
                fail("a tree of %d levels has lost nodes", depth);
            sum += (UINT64_C(1) << depth) - 1;
            DONE(thread);
        }
    }
    return sum;
}

int main(int argc, char **argv) {
    int left = vm_begin(argc, argv);
    if (left > 1)
        nodes = vm_number("NODES", argv[1], 1, 2000000000);
    if (left > 2)
        deepest = vm_number("DEPTH", argv[2], LEAST_DEPTH, 24);
    vm_declare(&node);
    Thread *thread = larder_vm_attach(vm);
    vm_global[0] = from_leaves(thread, deepest, 1);
    larder_vm_detach(thread);
    uint64_t made = vm_in_threads(build);
    uint64_t lasting = count(vm_global[0], 1);
    if (lasting != (UINT64_C(1) << deepest) - 1)
        fail("the tree that stays has %" PRIu64 " nodes", lasting);
    /* How many trees each thread makes depends on the number of threads; that each was whole does not. */
    return vm_end("trees", mixed(lasting), made);
}
