/*
 * come_and_go - threads that are created, do nothing or allocate a little, and end.
 *
 * usage: come_and_go [THREADS [OBJECTS [AT_ONCE [ROUNDS]]]]
 *
 * What a thread costs to create and to join, through the collector and through the C library alone, in turn, AT_ONCE threads at a time; and
 * whether memory is left behind: the resident memory when a tenth of the threads has come and gone, and at the end.
 */
#include "report.h"

#include <pthread.h>
#undef pthread_create
#undef pthread_join

static long objects;

static void *plain(void *argument) {
    return argument;
}

static void *allocates(void *argument) {
    uintptr_t *list = 0;
    for (long i = 0; i < objects; i++) {
        uintptr_t *object = GC_MALLOC(48);
        *object = (uintptr_t)list;
        list = object;
    }
    long n = 0;
    for (; list; list = (uintptr_t *)*list)
        n++;
    return n == objects ? argument : 0;
}

static long resident_kib(void) {
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f || fscanf(f, "%*d %ld", &pages) != 1)
        pages = 0;
    if (f)
        fclose(f);
    return pages * 4;
}

typedef int (*create_t)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
typedef int (*join_t)(pthread_t, void **);

static void fail(const char *what, int error) {
    fprintf(stderr, "come_and_go: %s: %s\n", what, strerror(error));
    exit(3);
}

/* Seconds for `n` threads, `at_once` alive at a time. */
static double batch(long n, long at_once, create_t create, join_t join, void *(*f)(void *)) {
    pthread_t handles[256];
    double begun = now_s();
    for (long done = 0; done < n; done += at_once) {
        for (long i = 0; i < at_once; i++) {
            int error = create(&handles[i], 0, f, (void *)(i + 1));
            if (error)
                fail("a thread could not be created", error);
        }
        for (long i = 0; i < at_once; i++) {
            void *result = 0;
            int error = join(handles[i], &result);
            if (error || result != (void *)(i + 1))
                fail("a thread lost its objects, or could not be joined", error);
        }
    }
    return now_s() - begun;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    long threads = argument(argc, argv, 1, "THREADS", 10000, 100, 10000000);
    objects = argument(argc, argv, 2, "OBJECTS", 0, 0, 1000000);
    long at_once = argument(argc, argv, 3, "AT_ONCE", 1, 1, 256);
    long rounds = argument(argc, argv, 4, "ROUNDS", 20, 2, 1000);
    long share = (threads / rounds + at_once - 1) / at_once * at_once;
    double collected[1000], library[1000], ratios[1000];
    GC_INIT();
    batch(share, at_once, GC_pthread_create, GC_pthread_join, allocates);
    report_start();
    double begun = now_s();
    long early = 0;
    for (long r = 0; r < rounds; r++) {
        /* The order alternates. */
        if (r % 2)
            library[r] = batch(share, at_once, pthread_create, pthread_join, plain);
        collected[r] = batch(share, at_once, GC_pthread_create, GC_pthread_join, allocates);
        if (r % 2 == 0)
            library[r] = batch(share, at_once, pthread_create, pthread_join, plain);
        ratios[r] = collected[r] / library[r];
        if (r == rounds / 10)
            early = resident_kib();
    }
    double seconds = now_s() - begun;
    long late = resident_kib();
    qsort(collected, rounds, sizeof *collected, by_value);
    qsort(library, rounds, sizeof *library, by_value);
    qsort(ratios, rounds, sizeof *ratios, by_value);
    printf("come_and_go threads=%ld objects=%ld at_once=%ld create_join_us=%.2f plain_us=%.2f ratio=%.3f early_kib=%ld late_kib=%ld", share * rounds,
           objects, at_once, collected[rounds / 2] / share * 1e6, library[rounds / 2] / share * 1e6, ratios[rounds / 2], early, late);
    report_end(seconds);
    return 0;
}
