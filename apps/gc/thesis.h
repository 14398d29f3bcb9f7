/*
 * thesis.h - what the programs of Endo's thesis (2001) share: presets of their sizes, and the line that they print.
 *
 * Every one of them is called as
 *
 *     PROGRAM [THREADS [PRESET [SIZE ...]]]
 *
 * where PRESET is `ci` (a second at most; the default) or `thesis` (the sizes of section 2.4; of Cube those of 1.1), and sizes that
 * follow replace the preset's. They print one line,
 *
 *     PROGRAM T=THREADS sum=CHECKSUM time_s=SECONDS gc_ms=MILLISECONDS ...
 *
 * where `sum` depends on the sizes alone, neither on the number of threads nor on the library, `time_s` is the time on the clock
 * of the measured part, collections included, and `gc_ms` is the time of all pauses.
 */
#ifndef THESIS_H
#define THESIS_H

#include "report.h"

enum { MOST_THREADS_OF_THESIS = 4096 };

static int thesis_sizes;

/* The number of threads; the program takes `most` arguments. */
static inline long thesis_threads(int argc, char **argv, int most) {
    if (argc > 1 + most) {
        fprintf(stderr, "%s: '%s' is one argument too many: there may be %d\n", argv[0], argv[1 + most], most);
        exit(2);
    }
    const char *preset = argc > 2 ? argv[2] : "ci";
    thesis_sizes = !strcmp(preset, "thesis");
    if (!thesis_sizes && strcmp(preset, "ci")) {
        fprintf(stderr, "%s: the preset is '%s', must be ci or thesis\n", argv[0], preset);
        exit(2);
    }
    return argument(argc, argv, 1, "THREADS", 2, 1, MOST_THREADS_OF_THESIS);
}

/* A size: the one in the argument, or the preset's. */
static inline long thesis_size(int argc, char **argv, int place, const char *name, long ci, long thesis, long least, long most) {
    return argument(argc, argv, place, name, thesis_sizes ? thesis : ci, least, most);
}

static inline void *allocated(const char *program, void *memory) {
    if (!memory) {
        fprintf(stderr, "%s: out of memory\n", program);
        exit(3);
    }
    return memory;
}

static inline uint64_t sum_add(uint64_t sum, uint64_t word) { return (sum ^ word) * 0x100000001b3u + (word >> 32); }

/* Begins the line; the program may add figures of its own, and ends it by `thesis_end`. */
static inline void thesis_begin(const char *program, long threads, uint64_t sum, double seconds) {
    printf("%s T=%ld sum=%016" PRIx64 " time_s=%.3f gc_ms=%.3f", program, threads, sum, seconds, paused_s * 1e3);
}

static inline void thesis_end(void) {
    GC_set_on_collection_event(0);
    printf(" cpu_s=%.3f gcs=%lu heap_mb=%.1f rss_mb=%.1f\n", cpu_s(), (unsigned long)GC_get_gc_no(),
           GC_get_heap_size() / 1048576.0, peak_rss_mib());
}

#endif
