/*
 * kinds - how fast a collector marks objects of each kind that its interface has.
 *
 * usage: kinds [KIND [SHAPE [OBJECTS [BYTES [COLLECTIONS]]]]]
 *
 * KIND is
 *   plain          GC_malloc
 *   free           GC_malloc_atomic; SHAPE is array then
 *   uncollectable  GC_malloc_uncollectable
 *   uncollectable_free  GC_malloc_atomic_uncollectable; SHAPE is array then
 *   typed          GC_malloc_explicitly_typed, with a bitmap of the two words that are addresses
 *   gcj            GC_gcj_malloc, with a type that names the same bitmap
 *   proc           GC_generic_malloc, of a kind whose objects a mark procedure scans
 * SHAPE is
 *   array          all in one array, each with the address of an earlier one
 *   list           one list, made from its end
 *   tree           a binary tree, its nodes in no order
 * Each object has BYTES bytes, 32 at least. The times are those between the events of the beginning and the end of marking: on the clock, and on the CPUs by all
 * threads (medians). Exit status: 0; 1 where an object was damaged; 2 for a wrong argument; 3 without memory.
 */
#include "marked.h"

#include <gc/gc_gcj.h>
#include <gc/gc_mark.h>
#include <gc/gc_typed.h>

typedef struct Object {
    const void *type; /* gcj's; otherwise unused */
    struct Object *left, *right;
    uint64_t number;
} Object;

enum { FIRST_ADDRESS = 1, ADDRESSES = 2, BITMAP = ((1 << ADDRESSES) - 1) << FIRST_ADDRESS };

static struct {
    void *unused;
    GC_word descriptor; /* where the library looks for it */
} type;
static GC_descr descriptor;
static int procedures_kind;
static Object **array;

static struct GC_ms_entry *scan(GC_word *object, struct GC_ms_entry *top, struct GC_ms_entry *limit, GC_word environment) {
    (void)environment;
    for (int i = FIRST_ADDRESS; i < FIRST_ADDRESS + ADDRESSES; i++)
        top = GC_MARK_AND_PUSH((void *)object[i], top, limit, (void **)(object + i));
    return top;
}

static void *plain(size_t bytes) {
    return GC_MALLOC(bytes);
}

static void *pointer_free(size_t bytes) {
    return GC_MALLOC_ATOMIC(bytes);
}

static void *uncollectable(size_t bytes) {
    return GC_MALLOC_UNCOLLECTABLE(bytes);
}

static void *uncollectable_free(size_t bytes) {
    return GC_malloc_atomic_uncollectable(bytes);
}

static void *typed(size_t bytes) {
    return GC_MALLOC_EXPLICITLY_TYPED(bytes, descriptor);
}

static void *gcj(size_t bytes) {
    return GC_GCJ_MALLOC(bytes, &type);
}

static void *with_procedure(size_t bytes) {
    return GC_generic_malloc(bytes, procedures_kind);
}

static const struct {
    const char *name;
    void *(*make)(size_t);
    int is_scanned;
} kinds[] = {
    {"plain", plain, 1},
    {"free", pointer_free, 0},
    {"uncollectable", uncollectable, 1},
    {"uncollectable_free", uncollectable_free, 0},
    {"typed", typed, 1},
    {"gcj", gcj, 1},
    {"proc", with_procedure, 1},
};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

static void damaged(long number) {
    fprintf(stderr, "kinds: object %ld is not what it was: lost by the collector\n", number);
    exit(1);
}

static void *made(int kind, size_t bytes, long number) {
    Object *object = some(kinds[kind].make(bytes));
    object->left = object->right = 0;
    object->number = ~number;
    return object;
}

/* Of the array's objects, the tree that has them in its levels, one after the other. */
static void link_tree(long n) {
    uint64_t state = 2001;
    for (long i = n; i > 1; i--) {
        long other = random_next(&state) % i;
        Object *object = array[i - 1];
        array[i - 1] = array[other];
        array[other] = object;
    }
    for (long i = 0; i < n; i++) {
        array[i]->number = ~i;
        array[i]->left = 2 * i + 1 < n ? array[2 * i + 1] : 0;
        array[i]->right = 2 * i + 2 < n ? array[2 * i + 2] : 0;
    }
    for (long i = 1; i < n; i++)
        array[i] = 0;
}

static long count(const Object *node, long number) {
    if (!node)
        return 0;
    if (node->number != ~(uint64_t)number)
        damaged(number);
    return 1 + count(node->left, 2 * number + 1) + count(node->right, 2 * number + 2);
}

static void check(char shape, long n, int is_scanned) {
    long found = 0;
    if (shape == 't') {
        found = count(array[0], 0);
    } else if (shape == 'l') {
        for (const Object *object = array[0]; object; object = object->left)
            if (object->number != ~(uint64_t)(n - ++found))
                damaged(n - found);
    } else {
        for (; found < n; found++)
            if (array[found]->number != ~(uint64_t)found || array[found]->left != (is_scanned && found ? array[found / 2] : 0))
                damaged(found);
    }
    if (found != n)
        damaged(found);
}

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "plain", *shape = argc > 2 ? argv[2] : "array";
    long n = argument(argc, argv, 3, "OBJECTS", 1000000, 1, 1L << 30);
    long bytes = argument(argc, argv, 4, "BYTES", sizeof(Object), sizeof(Object), 1 << 20);
    long collections = argument(argc, argv, 5, "COLLECTIONS", 7, 1, 10000);
    int kind = 0;
    while (kind < KINDS && strcmp(kinds[kind].name, name))
        kind++;
    if (kind == KINDS) {
        fprintf(stderr, "kinds: the kind is '%s', must be plain, free, uncollectable, uncollectable_free, typed, gcj or proc\n", name);
        return 2;
    }
    int is_scanned = kinds[kind].is_scanned;
    if (strcmp(shape, "array") && (!is_scanned || (strcmp(shape, "list") && strcmp(shape, "tree")))) {
        fprintf(stderr, "kinds: the shape is '%s', must be array%s\n", shape, is_scanned ? ", list or tree" : " for objects without addresses");
        return 2;
    }
    GC_INIT();
    GC_init_gcj_malloc(0, (void *)scan);
    GC_word bitmap = BITMAP;
    type.descriptor = descriptor = GC_make_descriptor(&bitmap, sizeof(Object) / sizeof(void *));
    procedures_kind = GC_new_kind(GC_new_free_list(), GC_MAKE_PROC(GC_new_proc(scan), 0), 0, 1);
    array = some(GC_MALLOC(n * sizeof *array));
    for (long i = 0; i < n; i++) {
        Object *object = made(kind, bytes, i);
        if (shape[0] == 'l') {
            object->left = array[0];
            array[0] = object;
            continue;
        }
        array[i] = object;
        if (shape[0] == 'a' && is_scanned && i)
            object->left = array[i / 2];
    }
    if (shape[0] == 't')
        link_tree(n);
    GC_gcollect();
    Marking marking = measured_marking(collections);
    double *times = marking.wall_s, *cpu = marking.cpu_s;
    check(shape[0], n, is_scanned);
    printf("kinds kind=%s shape=%s objects=%ld bytes=%ld mark_ms=%.3f cpu_ms=%.3f gcs=%lu heap_mb=%.1f rss_mb=%.1f\n", name, shape, n, bytes,
           times[collections / 2] * 1e3, cpu[collections / 2] * 1e3, (unsigned long)GC_get_gc_no(), GC_get_heap_size() / 1048576.0, peak_rss_mib());
    free(times);
    free(cpu);
    return 0;
}
