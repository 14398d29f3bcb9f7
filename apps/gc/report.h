/*
 * What every program here measures and prints: time, pauses as the collector reports them, and peak memory.
 *
 * One `key=value` line on standard output, so that a script can compare two runs. A pause is the time from
 * GC_EVENT_PRE_STOP_WORLD to GC_EVENT_POST_START_WORLD, on the monotonic clock.
 */
#ifndef REPORT_H
#define REPORT_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#ifndef GC_THREADS
#define GC_THREADS
#endif

#include <errno.h>
#include <gc.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

static inline double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

/* Time on the CPU so far, of all threads. */
static inline double cpu_s(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_utime.tv_sec + usage.ru_stime.tv_sec +
           (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

/* Largest resident memory so far. VmHWM and not ru_maxrss, which remembers the parent's peak across exec. */
static inline double peak_rss_mib(void) {
    char line[256];
    long kib = 0;
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof line, status))
        if (sscanf(line, "VmHWM: %ld", &kib) == 1)
            break;
    if (status)
        fclose(status);
    return kib / 1024.0;
}

/* The object, which there has to be. */
static inline void *some(void *at) {
    if (!at) {
        fprintf(stderr, "%s: out of memory\n", program_invocation_short_name);
        exit(3);
    }
    return at;
}

/* A small random generator with a state of its own (splitmix64). */
static inline uint64_t random_next(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* The event function runs under the collector's lock, so nothing here needs another one. */
enum { PAUSES_KEPT = 1 << 18 };
static double pause_list_s[PAUSES_KEPT];
static long pause_count;
static double stop_requested_s, time_to_stop_max_s, paused_s;

static void on_collection_event(GC_EventType event) {
    if (event == GC_EVENT_PRE_STOP_WORLD) {
        stop_requested_s = now_s();
    } else if (event == GC_EVENT_POST_STOP_WORLD) {
        double taken = now_s() - stop_requested_s;
        if (taken > time_to_stop_max_s)
            time_to_stop_max_s = taken;
    } else if (event == GC_EVENT_POST_START_WORLD) {
        /* When there is no more room the list goes round; the newest ones stay. */
        double pause = now_s() - stop_requested_s;
        paused_s += pause;
        pause_list_s[pause_count++ % PAUSES_KEPT] = pause;
    }
}

static inline void report_start(void) {
    GC_INIT();
    GC_set_on_collection_event(on_collection_event);
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Ends the line that the program began with its own figures. */
static inline void report_end(double seconds) {
    GC_set_on_collection_event(0);
    long n = pause_count < PAUSES_KEPT ? pause_count : PAUSES_KEPT;
    qsort(pause_list_s, n, sizeof pause_list_s[0], compare_doubles);
    double p50 = n ? pause_list_s[n / 2] : 0, p99 = n ? pause_list_s[n * 99 / 100] : 0;
    double longest = n ? pause_list_s[n - 1] : 0;
    printf(" seconds=%.3f cpu_s=%.3f gcs=%lu pauses=%ld pause_p50_ms=%.3f pause_p99_ms=%.3f pause_max_ms=%.3f"
           " stop_max_ms=%.3f heap_mb=%.1f rss_mb=%.1f\n",
           seconds, cpu_s(), (unsigned long)GC_get_gc_no(), pause_count, p50 * 1e3, p99 * 1e3, longest * 1e3,
           time_to_stop_max_s * 1e3, GC_get_heap_size() / 1048576.0, peak_rss_mib());
}

/* The number in an argument, or the default where there is none; ends the program where it is not in [least, most]. */
static inline long argument(int argc, char **argv, int place, const char *name, long standard, long least, long most) {
    if (place >= argc)
        return standard;
    char *end;
    long value = strtol(argv[place], &end, 10);
    if (*end || value < least || value > most) {
        fprintf(stderr, "%s: %s is '%s', must be a number from %ld to %ld\n", argv[0], name, argv[place], least, most);
        exit(2);
    }
    return value;
}

/* Starts `count` threads of `body`, each with its number, and waits for them. */
static inline void run_threads(long count, void *(*body)(void *)) {
    pthread_t *threads = GC_MALLOC_ATOMIC(count * sizeof *threads);
    for (long i = 0; i < count; i++) {
        int error = pthread_create(&threads[i], 0, body, (void *)(intptr_t)i);
        if (error) {
            fprintf(stderr, "thread %ld of %ld could not be started: %s\n", i + 1, count, strerror(error));
            exit(3);
        }
    }
    for (long i = 0; i < count; i++)
        pthread_join(threads[i], 0);
}

#endif
