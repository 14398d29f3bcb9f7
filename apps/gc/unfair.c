/*
 * unfair - threads that need memory one after the other.
 *
 * usage: unfair [THREADS [ci|thesis [KIB [ROUNDS [free|collect]]]]]
 *
 * The benchmark of section 2.4.2 of Endo's thesis (2001): only one thread at a time has objects, KIB of them (5 MB); when it has
 * released them it is the next one's turn. One thread's memory would do for all. A heap that keeps free memory for the
 * thread that had it needs as many times more as there are threads; one that shares it gives each thread memory that is near another.
 *
 * Objects are released explicitly (`free`), or dropped and found by a collection at the end of the turn (`collect`, the default). Every object is
 * checked before. `heap_mb` at the end says how much was needed.
 */
#include "thesis.h"

enum { OBJECT_BYTES = 64 };

typedef struct Object {
    struct Object *next;
    uint64_t word[OBJECT_BYTES / 8 - 1];
} Object;

static long threads, objects, rounds;
static int frees;
static long turn;
static uint64_t sum;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t turn_changed = PTHREAD_COND_INITIALIZER;

/* The random generator's state before object i: it moves by a constant with every word. */
static uint64_t state_before(uint64_t i) { return objects + i * (OBJECT_BYTES / 8 - 1) * 0x9e3779b97f4a7c15u; }

/* Not inlined, so that no register of the caller still points to an object. */
static __attribute__((noinline)) void use_memory(void) {
    uint64_t state = objects, words = 0;
    Object *list = 0;
    for (long i = 0; i < objects; i++) {
        Object *object = allocated("unfair", GC_MALLOC(sizeof *object));
        for (size_t w = 0; w < sizeof object->word / 8; w++)
            object->word[w] = random_next(&state);
        object->next = list;
        list = object;
    }
    for (long i = objects; i-- > 0;) {
        uint64_t expected = state_before(i);
        for (size_t w = 0; list && w < sizeof list->word / 8; w++)
            if (list->word[w] != random_next(&expected))
                list = 0;
        if (!list) {
            fprintf(stderr, "unfair: object %ld was changed: lost by the collector, or given out twice\n", i);
            exit(1);
        }
        words = sum_add(words, list->word[0]);
        Object *next = list->next;
        if (frees)
            GC_FREE(list);
        list = next;
    }
    sum = sum_add(sum, words);
}

static void *take_turns(void *argument) {
    long me = (intptr_t)argument;
    for (long round = 0; round < rounds; round++) {
        pthread_mutex_lock(&lock);
        while (turn % threads != me)
            pthread_cond_wait(&turn_changed, &lock);
        pthread_mutex_unlock(&lock);
        use_memory();
        if (!frees)
            GC_gcollect();
        pthread_mutex_lock(&lock);
        turn++;
        pthread_cond_broadcast(&turn_changed);
        pthread_mutex_unlock(&lock);
    }
    return 0;
}

int main(int argc, char **argv) {
    threads = thesis_threads(argc, argv, 5);
    long kib = thesis_size(argc, argv, 3, "KIB", 1024, 5 * 1024, 1, 1 << 24);
    rounds = thesis_size(argc, argv, 4, "ROUNDS", 2, 4, 1, 1000000);
    const char *release = argc > 5 ? argv[5] : "collect";
    frees = !strcmp(release, "free");
    if (!frees && strcmp(release, "collect")) {
        fprintf(stderr, "unfair: the release is '%s', must be free or collect\n", release);
        return 2;
    }
    objects = kib * 1024 / OBJECT_BYTES;
    report_start();
    double start = now_s();
    run_threads(threads, take_turns);
    double seconds = now_s() - start;
    /* Every turn's objects are the same, so one turn's sum is everybody's. */
    uint64_t once = 0, words = 0;
    for (long i = objects; i-- > 0;) {
        uint64_t at = state_before(i);
        words = sum_add(words, random_next(&at));
    }
    for (long i = 0; i < threads * rounds; i++)
        once = sum_add(once, words);
    if (once != sum) {
        fprintf(stderr, "unfair: the sum is %016" PRIx64 ", not %016" PRIx64 "\n", sum, once);
        return 1;
    }
    thesis_begin("unfair", threads, words, seconds);
    printf(" kib=%ld rounds=%ld release=%s", kib, rounds, release);
    thesis_end();
    return 0;
}
