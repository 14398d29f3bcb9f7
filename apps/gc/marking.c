/*
 * marking - how fast a collector marks: one structure that stays, collected again and again.
 *
 * usage: marking [SHAPE [MIB [COLLECTIONS]]]
 *
 * SHAPE is
 *   tree       a binary tree of 32-byte nodes under one root (a request of 24 bytes takes 32 on every library), made in the order in
 *              which it is marked
 *   scattered  the same, its nodes in no order
 *   near       the same, its nodes in no order among 4096 that were made one after the other
 *   sizes      a tree made in order, of nodes of 24 to 120 bytes
 *   list       one linked list of such nodes
 *   arrays     one linked list of arrays of 511 addresses, each of a pointer-free object of 16 bytes
 *   shared     the same arrays, whose addresses are those of a hundred objects of 3000 bytes that may hold pointers, in no order
 *   array      one array of addresses, each of an object of 16 bytes of its own
 *   particles  one array of addresses of bodies of 112 bytes, as Barnes-Hut's (thesis, section 3.4.3)
 * and MIB the live memory (for array: of the array alone). The times are those between the events of the beginning and the end of
 * marking: on the clock (median and least), and on the CPUs by all threads (median); `busiest_ms` is the CPU time of the thread that had
 * most, for each collection as a whole: on a machine that does other things too, how even the markers' shares are. Exit status: 0; 1 where the structure was damaged; 2 for a wrong argument; 3 without memory.
 */
#include "marked.h"

#include <dirent.h>

typedef struct Node {
    struct Node *left, *right;
    uint64_t number;
} Node;

enum { ADDRESSES = 511, BODY_BYTES = 111, CELL = 32, MEAN_CELL = 80, NEIGHBOURS = 4096, SHARED = 100, SHARED_BYTES = 3000 };

typedef struct Block {
    struct Block *next;
    void *elements[ADDRESSES];
} Block;

static void *root;
static long objects;

enum { MOST_THREADS = 64 };

/* CPU time of each thread so far, in the order of their numbers; returns how many there are. The kernel brings it up to date at each tick. */
static int thread_times_s(double *times) {
    int n = 0;
    DIR *tasks = opendir("/proc/self/task");
    struct dirent *entry;
    while (tasks && (entry = readdir(tasks)) && n < MOST_THREADS) {
        char path[300];
        unsigned long long ns;
        snprintf(path, sizeof path, "/proc/self/task/%s/schedstat", entry->d_name);
        FILE *file = entry->d_name[0] == '.' ? 0 : fopen(path, "r");
        if (!file)
            continue;
        if (fscanf(file, "%llu", &ns) == 1)
            times[n++] = ns * 1e-9;
        fclose(file);
    }
    if (tasks)
        closedir(tasks);
    return n;
}

static void *made(size_t bytes, int pointer_free) {
    objects++;
    return some(pointer_free ? GC_MALLOC_ATOMIC(bytes) : GC_MALLOC(bytes));
}

/* Each node is up to `more` bytes longer than it must be. */
static Node *tree(long nodes, uint64_t number, int more) {
    if (nodes <= 0)
        return 0;
    Node *node = made(sizeof *node + number * 2654435761u % (more + 1), 0);
    node->number = number;
    long rest = nodes - 1;
    node->left = tree(rest / 2, 2 * number, more);
    node->right = tree(rest - rest / 2, 2 * number + 1, more);
    return node;
}

static long count(const Node *node, uint64_t number) {
    if (!node)
        return 0;
    if (node->number != number) {
        fprintf(stderr, "marking: node %" PRIu64 " became %" PRIu64 ": lost by the collector\n", number, node->number);
        exit(1);
    }
    return 1 + count(node->left, 2 * number) + count(node->right, 2 * number + 1);
}

/* A tree over nodes that were made before: the root of the part is taken from a random place of those that are left. */
static Node *scattered(Node **nodes, long from, long to, uint64_t number) {
    if (from == to)
        return 0;
    Node *node = nodes[from];
    node->number = number;
    long middle = from + 1 + (to - from - 1) / 2;
    node->left = scattered(nodes, from + 1, middle, 2 * number);
    node->right = scattered(nodes, middle, to, 2 * number + 1);
    return node;
}

/* A tree whose nodes are in no order among so many that were made one after the other. */
static void build_scattered(long n, long among) {
    Node **nodes = GC_MALLOC_UNCOLLECTABLE(n * sizeof *nodes);
    if (!nodes)
        made((size_t)-1 >> 1, 0);
    for (long i = 0; i < n; i++)
        nodes[i] = made(sizeof **nodes, 0);
    uint64_t state = 2001;
    for (long i = n; i > 1; i--) {
        long first = (i - 1) / among * among, other = first + random_next(&state) % (i - first);
        Node *node = nodes[i - 1];
        nodes[i - 1] = nodes[other];
        nodes[other] = node;
    }
    root = scattered(nodes, 0, n, 1);
    GC_FREE(nodes);
}

static void build(const char *shape, long mib) {
    long bytes = mib << 20;
    if (!strcmp(shape, "tree")) {
        root = tree(bytes / CELL, 1, 0);
    } else if (!strcmp(shape, "sizes")) {
        root = tree(bytes / MEAN_CELL, 1, 96);
    } else if (!strcmp(shape, "scattered") || !strcmp(shape, "near")) {
        build_scattered(bytes / CELL, shape[0] == 'n' ? NEIGHBOURS : bytes);
    } else if (!strcmp(shape, "list")) {
        for (long i = bytes / CELL; i-- > 0;) {
            Node *node = made(sizeof *node, 0);
            node->left = root;
            node->number = i;
            root = node;
        }
    } else if (!strcmp(shape, "arrays")) {
        for (long i = bytes / (long)(sizeof(Block) + ADDRESSES * 16); i-- > 0;) {
            Block *block = made(sizeof *block, 0);
            block->next = root;
            root = block;
            for (int k = 0; k < ADDRESSES; k++)
                block->elements[k] = made(8, 1);
        }
    } else if (!strcmp(shape, "shared")) {
        void **shared = made(SHARED * sizeof *shared, 0);
        for (int i = 0; i < SHARED; i++)
            shared[i] = made(SHARED_BYTES, 0);
        uint64_t state = 2001;
        for (long i = bytes / (long)sizeof(Block); i-- > 0;) {
            Block *block = made(sizeof *block, 0);
            block->next = root;
            root = block;
            for (int k = 0; k < ADDRESSES; k++)
                block->elements[k] = shared[random_next(&state) % SHARED];
        }
    } else if (!strcmp(shape, "array") || !strcmp(shape, "particles")) {
        int bodies = shape[0] == 'p';
        long n = bytes / (bodies ? 8 + BODY_BYTES + 1 : 8);
        void **array = made(n * sizeof *array, 0);
        root = array;
        for (long i = 0; i < n; i++)
            array[i] = made(bodies ? BODY_BYTES : 8, 0);
    } else {
        fprintf(stderr, "marking: the shape is '%s', must be tree, scattered, near, sizes, list, arrays, shared, array or particles\n", shape);
        exit(2);
    }
}

int main(int argc, char **argv) {
    const char *shape = argc > 1 ? argv[1] : "tree";
    long mib = argument(argc, argv, 2, "MIB", 16, 1, 1 << 16);
    long collections = argument(argc, argv, 3, "COLLECTIONS", 5, 1, 10000);
    GC_INIT();
    GC_disable();
    build(shape, mib);
    GC_enable();
    GC_gcollect();
    double before[MOST_THREADS] = {0}, after[MOST_THREADS], busiest = 0;
    thread_times_s(before);
    Marking marking = measured_marking(collections);
    double *times = marking.wall_s, *cpu = marking.cpu_s;
    for (int i = thread_times_s(after); i-- > 0;)
        if (after[i] - before[i] > busiest)
            busiest = after[i] - before[i];
    if ((!strcmp(shape, "tree") || !strcmp(shape, "scattered") || !strcmp(shape, "near") || !strcmp(shape, "sizes")) && count(root, 1) != objects) {
        fprintf(stderr, "marking: the tree has not its %ld nodes any more\n", objects);
        return 1;
    }
    double least = times[0], middle = times[collections / 2];
    printf("marking shape=%s mib=%ld objects=%ld collections=%ld mark_ms=%.3f mark_min_ms=%.3f cpu_ms=%.3f busiest_ms=%.3f objects_per_s=%.0f gcs=%lu"
           " heap_mb=%.1f rss_mb=%.1f\n",
           shape, mib, objects, collections, middle * 1e3, least * 1e3, cpu[collections / 2] * 1e3, busiest * 1e3 / collections, objects / middle, (unsigned long)GC_get_gc_no(),
           GC_get_heap_size() / 1048576.0, peak_rss_mib());
    free(times);
    free(cpu);
    return 0;
}
