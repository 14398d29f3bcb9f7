/*
 * throughput - how many small objects can be allocated and released in a second.
 *
 * usage: throughput [THREADS [ci|thesis [OBJECTS [ROUNDS [gc|malloc]]]]]
 *
 * The benchmark of section 2.4.1 of Endo's thesis (2001): each thread allocates OBJECTS (100,000) objects of 16 bytes and then releases all
 * of them, ROUNDS (30) times; `mallocs_per_s` counts the allocations of all threads. `malloc` measures the C library's
 * malloc and free instead of GC_MALLOC and GC_FREE. Objects carry their number, and are checked when they are released.
 */
#include "thesis.h"

enum { OBJECT_BYTES = 16 };

typedef struct {
    uint64_t number, inverted;
} Object;

_Static_assert(sizeof(Object) == OBJECT_BYTES, "the thesis's objects");

static long threads, objects, rounds;
static int plain;
static uint64_t *thread_sum;

static void *allocate_and_release(void *argument) {
    long me = (intptr_t)argument;
    uint64_t sum = 0;
    size_t bytes = objects * sizeof(Object *);
    Object **held = allocated("throughput", plain ? malloc(bytes) : GC_MALLOC(bytes));
    for (long round = 0; round < rounds; round++) {
        for (long i = 0; i < objects; i++) {
            Object *object = allocated("throughput", plain ? malloc(sizeof *object) : GC_MALLOC(sizeof *object));
            object->number = i;
            object->inverted = ~(uint64_t)i;
            held[i] = object;
        }
        for (long i = 0; i < objects; i++) {
            Object *object = held[i];
            if (object->number != (uint64_t)i || object->inverted != ~(uint64_t)i) {
                fprintf(stderr, "throughput: object %ld was changed: lost by the collector, or given out twice\n", i);
                exit(1);
            }
            sum = sum_add(sum, object->number);
            held[i] = 0;
            if (plain)
                free(object);
            else
                GC_FREE(object);
        }
    }
    if (plain)
        free(held);
    thread_sum[me] = sum;
    return 0;
}

int main(int argc, char **argv) {
    threads = thesis_threads(argc, argv, 5);
    objects = thesis_size(argc, argv, 3, "OBJECTS", 20000, 100000, 1, 100000000);
    rounds = thesis_size(argc, argv, 4, "ROUNDS", 5, 30, 1, 1000000);
    const char *library = argc > 5 ? argv[5] : "gc";
    plain = !strcmp(library, "malloc");
    if (!plain && strcmp(library, "gc")) {
        fprintf(stderr, "throughput: the library is '%s', must be gc or malloc\n", library);
        return 2;
    }
    report_start();
    thread_sum = allocated("throughput", GC_MALLOC_ATOMIC(threads * sizeof *thread_sum));
    double start = now_s();
    run_threads(threads, allocate_and_release);
    double seconds = now_s() - start;
    for (long t = 0; t < threads; t++)
        if (thread_sum[t] != thread_sum[0]) {
            fprintf(stderr, "throughput: thread %ld has the sum %016" PRIx64 ", the first %016" PRIx64 "\n", t, thread_sum[t],
                    thread_sum[0]);
            return 1;
        }
    thesis_begin("throughput", threads, thread_sum[0], seconds);
    printf(" objects=%ld rounds=%ld library=%s mallocs_per_s=%.0f", objects, rounds, library,
           (double)threads * objects * rounds / seconds);
    thesis_end();
    return 0;
}
