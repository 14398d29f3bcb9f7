/*
 * How long the collector marked: between the events of the beginning and the end of marking, on the clock and on the CPUs by all threads.
 *
 * GC_set_on_collection_event(on_marking), and look at `marked_s` and `marked_cpu_s` after a collection.
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

#endif
