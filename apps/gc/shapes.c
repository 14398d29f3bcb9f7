/*
 * shapes - how fast a collector marks structures as programs have them: it stays, and is collected again and again.
 *
 * usage: shapes [SHAPE [OBJECTS [COLLECTIONS]]]
 *
 * SHAPE is
 *   pairs     a list of pairs
 *   values    a list of pairs, each with a leaf
 *   structs   a list of pairs, each with an object that has a leaf
 *   symbols   a list of pairs, each with one of a hundred others
 *   double    a doubly linked list
 *   records   a list whose elements begin with their type and have a leaf
 *   pages     a list of objects of 300 bytes, each with a leaf
 *   rows      an array of lists, all growing at once
 *   rings     an array of doubly linked rings, all growing at once
 *   parents   a tree whose nodes refer to their parents
 *   types     a tree whose nodes begin with one of fifty types
 *   owner     a tree whose nodes all refer to one object of 100,000 bytes
 *   syntax    a tree: type, parent, first child, next sibling, and a leaf in each third node
 *   map       a search tree of keys in no order: two children, parent, and a leaf
 *   hash      a table of chains; the entries have a key and a value, which are leaves
 *   vectors   an array of vectors of ten leaves
 *   blocks    an array of blocks of sixty addresses, of objects that refer to their block
 *   closures  an array of pairs: their code, which all share, and an environment, which four share
 *   strings   an array of objects with an address of themselves or of a leaf, and two of a buffer
 *   tags      a tree of pairs whose addresses are one more than they are, without interior pointers
 * of some OBJECTS objects, made one after the other as a program would. Each leaf is written.
 *
 * The times are those between the events of the beginning and the end of marking, for each object: on the clock, and on the CPUs by all threads, median and
 * least. Exit status: 0; 1 where an object was lost or changed; 2 for a wrong argument; 3 without memory.
 */
#include "marked.h"

typedef struct Shape {
    const char *name;
    void (*make)(long objects);
} Shape;

static void **root;

/* Where each object is, as its complement, and how long it is. */
static struct {
    uintptr_t at;
    size_t bytes;
} *made_objects;
static long made_count, most_made;

static void **kept(void *object, size_t bytes) {
    if (made_count == most_made) {
        most_made = most_made ? 2 * most_made : 1 << 16;
        made_objects = some(realloc(made_objects, most_made * sizeof *made_objects));
    }
    made_objects[made_count].at = ~(uintptr_t)object;
    made_objects[made_count++].bytes = bytes;
    return object;
}

static void **made(size_t bytes) {
    return kept(some(GC_MALLOC(bytes)), bytes);
}

static void *leaf(size_t bytes) {
    return memset(kept(some(GC_MALLOC_ATOMIC(bytes)), bytes), 'a' + made_count % 26, bytes);
}

/* What all objects hold; ends the program where one is none any more. */
static uint64_t content(void) {
    uint64_t sum = 0;
    for (long i = 0; i < made_count; i++) {
        const uint64_t *words = (const uint64_t *)~made_objects[i].at;
        if (GC_base((void *)words) != words) {
            fprintf(stderr, "shapes: object %ld of %ld was lost by the collector\n", i, made_count);
            exit(1);
        }
        for (size_t k = 0; k < made_objects[i].bytes / sizeof *words; k++)
            sum = sum * 0x9e3779b97f4a7c15u + words[k];
    }
    return sum;
}

static void pairs(long n) {
    for (long i = 0; i < n; i++) {
        void **pair = made(16);
        pair[1] = root;
        root = pair;
    }
}

static void values(long n) {
    for (long i = 0; i < n; i += 2) {
        void **pair = made(16);
        pair[0] = leaf(16);
        pair[1] = root;
        root = pair;
    }
}

static void structs(long n) {
    for (long i = 0; i < n; i += 3) {
        void **pair = made(16), **object = made(32);
        object[1] = leaf(16);
        pair[0] = object;
        pair[1] = root;
        root = pair;
    }
}

static void symbols(long n) {
    void **all[100];
    for (int i = 0; i < 100; i++)
        all[i] = made(32);
    for (long i = 0; i < n; i++) {
        void **pair = made(16);
        pair[0] = all[i * 37 % 100];
        pair[1] = root;
        root = pair;
    }
}

static void doubly(long n) {
    for (long i = 0; i < n; i++) {
        void **element = made(32);
        element[0] = root;
        if (root)
            root[1] = element;
        root = element;
    }
}

static void records(long n) {
    void **type = made(100);
    for (long i = 0; i < n; i += 2) {
        void **element = made(32);
        element[0] = type;
        element[1] = root;
        element[2] = leaf(32);
        root = element;
    }
}

static void pages(long n) {
    for (long i = 0; i < n; i += 2) {
        void **element = made(300);
        element[2] = root;
        element[20] = leaf(16);
        root = element;
    }
}

enum { LONG = 100 };

static void rows(long n) {
    long heads = n / LONG + 1;
    root = made(heads * sizeof *root);
    for (long i = 0; i < n; i++) {
        void **element = made(32);
        element[1] = root[i % heads];
        root[i % heads] = element;
    }
}

static void rings(long n) {
    long heads = n / LONG + 1;
    root = made(heads * sizeof *root);
    for (long i = 0; i < n; i++) {
        void **element = made(32), **newest = root[i % heads];
        void **oldest = newest ? newest[0] : element;
        element[0] = oldest;
        element[1] = newest ? newest : element;
        oldest[1] = element;
        if (newest)
            newest[0] = element;
        root[i % heads] = element;
    }
}

/* A tree, level by level: its nodes have their children from `place` on. With a parent where `parent` is a place. */
static void tree(long n, size_t bytes, int place, int parent, void *(*first)(long)) {
    void ***nodes = some(GC_MALLOC_UNCOLLECTABLE(n * sizeof *nodes));
    for (long i = 0; i < n; i++) {
        nodes[i] = made(bytes);
        if (first)
            nodes[i][0] = first(i);
        if (i > 0)
            nodes[(i - 1) / 2][place + (i - 1) % 2] = nodes[i];
        if (parent && i > 0)
            nodes[i][parent] = nodes[(i - 1) / 2];
    }
    root = nodes[0];
    GC_FREE(nodes);
}

static void parents(long n) {
    tree(n, 32, 0, 2, 0);
}

enum { TYPES = 50 };
static void *some_types[TYPES];

static void *type_of(long i) {
    void **type = &some_types[i * 7 % TYPES];
    return *type = *type ? *type : made(200);
}

static void types(long n) {
    tree(n, 32, 1, 0, type_of);
}

static void *owner_of(long i) {
    (void)i;
    return some_types[0] = some_types[0] ? some_types[0] : made(100000);
}

static void owner(long n) {
    tree(n, 32, 1, 0, owner_of);
}

static void syntax(long n) {
    enum { NEAR = 50 };
    uint64_t state = 1975;
    void ***nodes = some(GC_MALLOC_UNCOLLECTABLE(n * sizeof *nodes));
    for (long i = 0; i < n; i++) {
        void **node = nodes[i] = made(48);
        node[0] = type_of(i);
        if (i > 0) {
            void **parent = nodes[i - 1 - random_next(&state) % (i < NEAR ? i : NEAR)];
            node[1] = parent;
            node[3] = parent[2];
            parent[2] = node;
        }
        if (i % 3 == 0)
            node[4] = leaf(24);
    }
    root = nodes[0];
    GC_FREE(nodes);
}

static void map(long n) {
    uint64_t state = 1962;
    for (long i = 0; i < n; i += 2) {
        uint64_t key = random_next(&state) >> 16;
        void **node = made(64), **parent = root;
        node[3] = (void *)key;
        node[4] = leaf(24);
        while (parent) {
            void **place = parent + (key > (uint64_t)parent[3]);
            if (!*place) {
                *place = node;
                node[2] = parent;
                break;
            }
            parent = *place;
        }
        if (!root)
            root = node;
    }
}

static void hash(long n) {
    long entries = n / 3 + 1;
    root = made(entries * sizeof *root);
    for (long i = 0; i < entries; i++) {
        void **entry = made(32), **chain = root + i * 2654435761u % entries;
        entry[0] = *chain;
        entry[1] = leaf(16);
        entry[2] = leaf(24);
        *chain = entry;
    }
}

static void vectors(long n) {
    long count = n / 11 + 1;
    root = made(count * sizeof *root);
    for (long i = 0; i < count; i++) {
        void **vector = root[i] = made(80);
        for (int k = 0; k < 10; k++)
            vector[k] = leaf(8);
    }
}

static void blocks(long n) {
    long count = n / 61 + 1;
    root = made(count * sizeof *root);
    for (long i = 0; i < count; i++) {
        void **block = root[i] = made(60 * sizeof *block);
        for (int k = 0; k < 60; k++) {
            void **object = block[k] = made(40);
            object[1] = block;
        }
    }
}

static void closures(long n) {
    void **code = made(80), **environment = 0;
    root = made(n * sizeof *root);
    for (long i = 0; i < n; i++) {
        void **closure = root[i] = made(16);
        if (i % 4 == 0) {
            void **inner = made(48);
            inner[0] = i % 1000 ? environment : 0;
            inner[1] = root[i / 3];
            inner[2] = leaf(16);
            environment = inner;
        }
        closure[0] = code;
        closure[1] = environment;
    }
}

static void strings(long n) {
    long count = n / 2 + 1;
    root = made(count * sizeof *root);
    for (long i = 0; i < count; i++) {
        void **object = root[i] = made(64);
        object[1] = i % 3 ? (void *)&object[3] : leaf(32);
        if (i % 2) {
            char *buffer = (char *)made(48);
            object[5] = buffer;
            object[6] = buffer + 40;
        }
    }
}

static void tags(long n) {
    enum { TAG = 1 };
    GC_register_displacement(TAG);
    char **nodes = some(GC_MALLOC_UNCOLLECTABLE(n * sizeof *nodes));
    for (long i = 0; i < n; i++) {
        nodes[i] = (char *)made(16) + TAG;
        if (i > 0)
            ((void **)(nodes[(i - 1) / 2] - TAG))[(i - 1) % 2] = nodes[i];
    }
    root = (void **)(nodes[0] - TAG);
    GC_FREE(nodes);
}

static const Shape shapes[] = {
    {"pairs", pairs}, {"values", values}, {"structs", structs}, {"symbols", symbols}, {"double", doubly}, {"records", records}, {"pages", pages},
    {"rows", rows}, {"rings", rings}, {"parents", parents}, {"types", types}, {"owner", owner}, {"syntax", syntax}, {"map", map}, {"hash", hash},
    {"vectors", vectors}, {"blocks", blocks}, {"closures", closures}, {"strings", strings}, {"tags", tags},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "values";
    const Shape *shape = shapes;
    while (shape < shapes + SHAPES && strcmp(shape->name, name))
        shape++;
    if (shape == shapes + SHAPES) {
        fprintf(stderr, "shapes: the shape is '%s', must be one of", name);
        for (int i = 0; i < SHAPES; i++)
            fprintf(stderr, " %s", shapes[i].name);
        fprintf(stderr, "\n");
        return 2;
    }
    long objects = argument(argc, argv, 2, "OBJECTS", 300000, 1, 1L << 32);
    long collections = argument(argc, argv, 3, "COLLECTIONS", 9, 1, 10000);
    if (!strcmp(name, "tags"))
        GC_set_all_interior_pointers(0);
    GC_INIT();
    GC_disable();
    shape->make(objects);
    GC_enable();
    uint64_t before = content();
    Marking marking = measured_marking(collections);
    /* What was lost would be used again. */
    for (long i = 0; i < made_count; i++)
        memset(some(GC_MALLOC_ATOMIC(made_objects[i].bytes)), 0xff, made_objects[i].bytes);
    if (content() != before) {
        fprintf(stderr, "shapes: the objects hold something else than before\n");
        return 1;
    }
    double ns = 1e9 / made_count;
    printf("shapes shape=%s objects=%ld collections=%ld mark_ns=%.2f mark_min_ns=%.2f cpu_ns=%.2f cpu_min_ns=%.2f gcs=%lu heap_mb=%.1f rss_mb=%.1f\n",
           name, made_count, collections, marking.wall_s[collections / 2] * ns, marking.wall_s[0] * ns, marking.cpu_s[collections / 2] * ns,
           marking.cpu_s[0] * ns, (unsigned long)GC_get_gc_no(), GC_get_heap_size() / 1048576.0, peak_rss_mib());
    free(marking.wall_s);
    free(marking.cpu_s);
    return 0;
}
