/*
 * churn - objects of many sizes that live for a while, by many threads, each checked when it dies.
 *
 * usage: churn [THREADS [OBJECTS [WINDOW]]]
 *
 * The threads share OBJECTS allocations. Each keeps a window of WINDOW objects and replaces a random one every time, so that an object
 * lives for WINDOW allocations of its thread on average. An object has 2 to 64 words that follow from its stamp; every fourth one also points to a
 * text of its own in pointer-free memory. An object that was reclaimed too early, or given to two owners, shows as a wrong word.
 */
#include "report.h"

typedef struct Object {
    uint64_t stamp;
    char *text; /* or 0 */
    uint64_t word[];
} Object;

enum { MOST_WORDS = 62, TEXT_BYTES = 40 };

static long threads, objects, window_places;
static uint64_t *thread_sum;

static size_t words_of(uint64_t stamp) { return stamp % (MOST_WORDS + 1); }

static void write_text(char *text, uint64_t stamp) { snprintf(text, TEXT_BYTES, "object %016" PRIx64, stamp); }

static void *allocated(void *memory) {
    if (!memory) {
        fprintf(stderr, "churn: out of memory\n");
        exit(3);
    }
    return memory;
}

static Object *make(uint64_t stamp) {
    size_t words = words_of(stamp);
    Object *object = allocated(GC_MALLOC(sizeof *object + words * sizeof object->word[0]));
    /* New memory is zero, whatever it held before. */
    for (size_t i = 0; i < words; i++) {
        if (object->word[i]) {
            fprintf(stderr, "churn: word %zu of a new object is %#" PRIx64 ", not 0\n", i, object->word[i]);
            exit(1);
        }
        object->word[i] = stamp + i;
    }
    object->stamp = stamp;
    if (stamp % 4 == 0) {
        object->text = allocated(GC_MALLOC_ATOMIC(TEXT_BYTES));
        write_text(object->text, stamp);
    }
    return object;
}

static void check(const Object *object, uint64_t stamp) {
    char text[TEXT_BYTES] = "";
    int good = object->stamp == stamp;
    for (size_t i = 0; good && i < words_of(stamp); i++)
        good = object->word[i] == stamp + i;
    if (good && object->text) {
        write_text(text, stamp);
        good = !strcmp(text, object->text);
    }
    if (!good) {
        fprintf(stderr, "churn: object %#" PRIx64 " was changed: lost by the collector, or given out twice\n", stamp);
        exit(1);
    }
}

static void *churn(void *argument) {
    long me = (intptr_t)argument, mine = objects * (me + 1) / threads - objects * me / threads;
    uint64_t state = me * 7919 + 1, sum = 0;
    Object **window = allocated(GC_MALLOC(window_places * sizeof *window));
    uint64_t *stamps = allocated(GC_MALLOC_ATOMIC(window_places * sizeof *stamps));
    for (long i = 0; i < mine; i++) {
        uint64_t random = random_next(&state);
        long place = (random >> 32) % window_places;
        if (window[place]) {
            check(window[place], stamps[place]);
            sum += stamps[place] * 31;
        }
        stamps[place] = random;
        window[place] = make(random);
    }
    for (long place = 0; place < window_places; place++)
        if (window[place])
            check(window[place], stamps[place]);
    thread_sum[me] = sum;
    return 0;
}

int main(int argc, char **argv) {
    threads = argument(argc, argv, 1, "THREADS", 8, 1, 100000);
    objects = argument(argc, argv, 2, "OBJECTS", 5000000, 1, 1000000000000);
    window_places = argument(argc, argv, 3, "WINDOW", 1000, 1, 100000000);
    report_start();
    thread_sum = allocated(GC_MALLOC_ATOMIC(threads * sizeof *thread_sum));
    double start = now_s();
    run_threads(threads, churn);
    double seconds = now_s() - start;
    uint64_t sum = 0;
    for (long t = 0; t < threads; t++)
        sum = sum * 1000003 + thread_sum[t];
    printf("program=churn threads=%ld objects=%ld window=%ld sum=%016" PRIx64 " ok=1 objects_per_s=%.0f", threads, objects,
           window_places, sum, objects / seconds);
    report_end(seconds);
    return 0;
}
