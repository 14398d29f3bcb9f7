/*
 * How long the collector marked: between the events of the beginning and the end of marking, on the clock and on the CPUs by all threads.
 *
 * `measured_marking` collects so many times.
 */
#ifndef MARKED_H
#define MARKED_H

#include "report.h"

static double marked_s, marked_cpu_s;

/* With more resolution than getrusage's. */
static double process_cpu_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void on_marking(GC_EventType event) {
    static double begun_s, begun_cpu_s;
    if (event == GC_EVENT_MARK_START) {
        begun_s = now_s();
        begun_cpu_s = process_cpu_s();
    } else if (event == GC_EVENT_MARK_END) {
        marked_s = now_s() - begun_s;
        marked_cpu_s = process_cpu_s() - begun_cpu_s;
    }
}

/* The times of so many collections, the least first. The caller frees both arrays. */
typedef struct Marking {
    double *wall_s, *cpu_s;
} Marking;

static Marking measured_marking(long collections) {
    Marking m = {malloc(collections * sizeof *m.wall_s), malloc(collections * sizeof *m.cpu_s)};
    GC_set_on_collection_event(on_marking);
    for (long i = 0; i < collections; i++) {
        GC_gcollect();
        m.wall_s[i] = marked_s;
        m.cpu_s[i] = marked_cpu_s;
    }
    GC_set_on_collection_event(0);
    qsort(m.wall_s, collections, sizeof *m.wall_s, compare_doubles);
    qsort(m.cpu_s, collections, sizeof *m.cpu_s, compare_doubles);
    return m;
}

#endif
