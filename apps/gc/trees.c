/*
 * trees - binary trees of many depths beside a large one that stays.
 *
 * usage: trees [THREADS [NODES [DEPTH]]]
 *
 * One tree of DEPTH levels lives from beginning to end, so that every collection has something to mark. The threads share about
 * NODES allocations and build trees of 4, 6, 8 ... levels, half of them from the leaves up (no pointer is stored into an old object) and half from the
 * root down (every pointer is). Each tree is counted and dropped; each kind of tree costs about the same number of nodes.
 */
#include "report.h"

typedef struct Tree {
    struct Tree *left, *right;
    uint64_t number; /* of the node in its tree: 1 at the root, 2n and 2n + 1 below n */
} Tree;

enum { LEAST_DEPTH = 4 };

static long threads, nodes, depth_most;
static uint64_t *thread_sum;
static Tree *lasting;

static Tree *new_tree(uint64_t number) {
    Tree *tree = GC_NEW(Tree);
    if (!tree) {
        fprintf(stderr, "trees: out of memory\n");
        exit(3);
    }
    tree->number = number;
    return tree;
}

static Tree *from_leaves(int depth, uint64_t number) {
    if (!depth)
        return 0;
    Tree *left = from_leaves(depth - 1, 2 * number), *right = from_leaves(depth - 1, 2 * number + 1);
    Tree *tree = new_tree(number);
    tree->left = left;
    tree->right = right;
    return tree;
}

static void grow(Tree *tree, int depth) {
    if (depth == 1)
        return;
    tree->left = new_tree(2 * tree->number);
    tree->right = new_tree(2 * tree->number + 1);
    grow(tree->left, depth - 1);
    grow(tree->right, depth - 1);
}

/* How many nodes there are; ends the program at one that is not what it was. */
static long count(const Tree *tree, uint64_t number) {
    if (!tree)
        return 0;
    if (tree->number != number) {
        fprintf(stderr, "trees: node %" PRIu64 " became %" PRIu64 ": lost by the collector\n", number, tree->number);
        exit(1);
    }
    return 1 + count(tree->left, 2 * number) + count(tree->right, 2 * number + 1);
}

static void check_size(const Tree *tree, int depth) {
    long wanted = (1L << depth) - 1, found = count(tree, 1);
    if (found != wanted) {
        fprintf(stderr, "trees: a tree of %d levels has %ld nodes, not %ld\n", depth, found, wanted);
        exit(1);
    }
}

static void *build_trees(void *argument) {
    long me = (intptr_t)argument;
    int kinds = (depth_most - 2 - LEAST_DEPTH) / 2 + 1;
    uint64_t sum = 0;
    for (int kind = 0; kind < kinds; kind++) {
        int depth = LEAST_DEPTH + 2 * kind;
        long size = (1L << depth) - 1, trees = nodes / kinds / size + 1;
        /* Every thread takes each threads-th tree, and begins at another one for each kind. */
        for (long i = (me + kind) % threads; i < trees; i += threads) {
            Tree *tree;
            if (i % 2) {
                tree = from_leaves(depth, 1);
            } else {
                tree = new_tree(1);
                grow(tree, depth);
            }
            check_size(tree, depth);
            sum += size;
        }
    }
    thread_sum[me] = sum;
    return 0;
}

int main(int argc, char **argv) {
    threads = argument(argc, argv, 1, "THREADS", 8, 1, 100000);
    nodes = argument(argc, argv, 2, "NODES", 20000000, 1, 1000000000000);
    depth_most = argument(argc, argv, 3, "DEPTH", 18, LEAST_DEPTH + 2, 30);
    report_start();
    thread_sum = GC_MALLOC_ATOMIC(threads * sizeof *thread_sum);
    double start = now_s();
    lasting = from_leaves(depth_most, 1);
    run_threads(threads, build_trees);
    check_size(lasting, depth_most);
    double seconds = now_s() - start;
    uint64_t sum = (1L << depth_most) - 1;
    for (long t = 0; t < threads; t++)
        sum += thread_sum[t];
    printf("program=trees threads=%ld nodes=%" PRIu64 " depth=%ld sum=%016" PRIx64 " ok=1 nodes_per_s=%.0f", threads, sum,
           depth_most, sum, sum / seconds);
    report_end(seconds);
    return 0;
}
