/*
 * strewn - how fast a collector marks objects that lie in no order, by what they form: it stays, and is collected again and again.
 *
 * usage: strewn [SHAPE [OBJECTS [BYTES [DEGREE [VALUES [COLLECTIONS]]]]]]
 *
 * SHAPE is
 *   lists     DEGREE linked lists
 *   buckets   a table of linked lists of DEGREE objects each
 *   table     an array with the address of each object
 *   tree      a tree, each of whose objects has DEGREE children
 *   graph     DEGREE addresses of others in each object, whichever they are; the first 16 objects are known
 * of OBJECTS objects of BYTES (a request, so a cell may be larger). With VALUES each object has one more, which holds no addresses: of BYTES, too. The objects
 * are made one after the other, and their values behind each; then the order in which they become parts of the shape is drawn.
 *
 * The times are those between the events of the beginning and the end of marking, for each object (values count as well): on the clock, and on the
 * CPUs by all threads, median and least. Exit status: 0; 1 where an object was lost; 2 for a wrong argument; 3 without memory.
 */
#include "marked.h"

typedef struct Object Object;

struct Object {
    uint64_t number;
    Object *value;
    Object *others[];
};

enum { KNOWN = 16, MOST_DEGREE = 1 << 20 };

static const char *shape;
static long n, heads, degree; /* objects, addresses in the root, and what the shape has of others */
static int is_chained, values;
static Object **root;

/* The objects, in no order. Uncollectable, so that they stay until the shape holds them. */
static Object **strew(long bytes) {
    Object **objects = some(GC_MALLOC_UNCOLLECTABLE(n * sizeof *objects));
    for (long i = 0; i < n; i++) {
        objects[i] = some(GC_MALLOC(bytes));
        if (values) {
            objects[i]->value = some(GC_MALLOC_ATOMIC(bytes));
            objects[i]->value->number = ~0u;
        }
    }
    uint64_t state = 2001;
    for (long i = n; i > 1; i--) {
        long other = random_next(&state) % i;
        Object *object = objects[i - 1];
        objects[i - 1] = objects[other];
        objects[other] = object;
    }
    for (long i = 0; i < n; i++)
        objects[i]->number = i;
    return objects;
}

static void build(Object **objects) {
    uint64_t state = 1959;
    root = some(GC_MALLOC(heads * sizeof *root));
    for (long i = 0; i < n; i++) {
        Object *object = objects[i];
        if (is_chained) {
            object->others[0] = root[i % heads];
            root[i % heads] = object;
        } else if (!strcmp(shape, "table")) {
            root[i] = object;
        } else if (!strcmp(shape, "tree")) {
            for (long k = 0; k < degree && i * degree + k + 1 < n; k++)
                object->others[k] = objects[i * degree + k + 1];
        } else {
            for (long k = 0; k < degree; k++)
                object->others[k] = objects[random_next(&state) % n];
        }
    }
    if (!is_chained && !root[0])
        memcpy(root, objects, KNOWN * sizeof *root);
}

/* Whether an object is there, and was not met before. */
static int is_new(const Object *object, unsigned char *seen) {
    if (!object || (object->number < (uint64_t)n && seen[object->number]))
        return 0;
    if (object->number >= (uint64_t)n || (values && object->value->number != ~0u)) {
        fprintf(stderr, "strewn: an object is number %" PRIu64 " of %ld: lost by the collector\n", object->number, n);
        exit(1);
    }
    return seen[object->number] = 1;
}

/* How many objects the shape holds. */
static long count(void) {
    unsigned char *seen = some(calloc(n, 1));
    const Object **waiting = some(malloc(n * sizeof *waiting));
    long left = 0, found = 0, others = is_chained ? 1 : !strcmp(shape, "table") ? 0 : degree;
    for (long i = 0; i < heads; i++)
        if (is_new(root[i], seen))
            waiting[left++] = root[i];
    for (; left > 0; found++) {
        const Object *object = waiting[--left];
        for (long k = 0; k < others; k++)
            if (is_new(object->others[k], seen))
                waiting[left++] = object->others[k];
    }
    free(seen);
    free(waiting);
    return found;
}

int main(int argc, char **argv) {
    shape = argc > 1 ? argv[1] : "lists";
    int are_lists = !strcmp(shape, "lists"), are_buckets = !strcmp(shape, "buckets"), is_table = !strcmp(shape, "table");
    is_chained = are_lists || are_buckets;
    if (!is_chained && !is_table && strcmp(shape, "tree") && strcmp(shape, "graph")) {
        fprintf(stderr, "strewn: the shape is '%s', must be lists, buckets, table, tree or graph\n", shape);
        return 2;
    }
    n = argument(argc, argv, 2, "OBJECTS", 100000, KNOWN, 1L << 32);
    long bytes = argument(argc, argv, 3, "BYTES", 256, sizeof(Object) + sizeof(Object *), 1 << 20);
    degree = argument(argc, argv, 4, "DEGREE", are_lists ? 1000 : 2, 1, MOST_DEGREE);
    values = argument(argc, argv, 5, "VALUES", 0, 0, 1);
    long collections = argument(argc, argv, 6, "COLLECTIONS", 5, 1, 10000);
    if (!is_chained && !is_table && (long)sizeof(Object) + degree * (long)sizeof(Object *) > bytes) {
        fprintf(stderr, "strewn: %ld addresses do not fit into an object of %ld bytes: give more BYTES or a smaller DEGREE\n", degree, bytes);
        return 2;
    }
    heads = are_lists ? degree : are_buckets ? (n + degree - 1) / degree : is_table ? n : KNOWN;
    GC_INIT();
    GC_disable();
    Object **objects = strew(bytes);
    build(objects);
    long before = count();
    GC_FREE(objects);
    objects = 0;
    GC_enable();
    GC_gcollect();
    Marking marking = measured_marking(collections);
    double *times = marking.wall_s, *cpu = marking.cpu_s;
    long after = count();
    if (after != before) {
        fprintf(stderr, "strewn: %ld objects of %ld are left: lost by the collector\n", after, before);
        return 1;
    }
    double ns = 1e9 / (after * (1 + values));
    printf("strewn shape=%s objects=%ld bytes=%ld degree=%ld values=%d collections=%ld mark_ns=%.1f mark_min_ns=%.1f cpu_ns=%.1f cpu_min_ns=%.1f gcs=%lu"
           " heap_mb=%.1f rss_mb=%.1f\n",
           shape, after, bytes, degree, values, collections, times[collections / 2] * ns, times[0] * ns, cpu[collections / 2] * ns, cpu[0] * ns,
           (unsigned long)GC_get_gc_no(), GC_get_heap_size() / 1048576.0, peak_rss_mib());
    free(times);
    free(cpu);
    return 0;
}
