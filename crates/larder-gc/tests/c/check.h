/* What the test programs share. Each program prints nothing and exits with 0 when everything is as libgc has it. */
#ifndef CHECK_H
#define CHECK_H

#define _GNU_SOURCE
#ifndef GC_THREADS
#define GC_THREADS
#endif
#define GC_NO_THREAD_REDIRECTS
#include <gc/gc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                        \
    do {                                                                        \
        if (!(condition)) {                                                     \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
            _exit(1);                                                           \
        }                                                                       \
    } while (0)

extern void _exit(int) __attribute__((noreturn));

#define NOINLINE __attribute__((noinline, noclone))

/* Overwrites the part of the stack where dead frames may hold stale pointers. */
static NOINLINE __attribute__((unused)) void clear_stack(void) {
    volatile char dead[16384];
    for (size_t i = 0; i < sizeof dead; i++) dead[i] = 0;
}

/* Calls a function whose frame is well below the caller's, so that what it leaves behind is overwritten. */
static NOINLINE __attribute__((unused)) void far_away(void (*f)(void)) {
    volatile char gap[4096];
    gap[0] = 0;
    f();
    gap[4095] = gap[0];
    clear_stack();
}

static __attribute__((unused)) void collect(void) {
    clear_stack();
    GC_gcollect();
}

/* Reads a word so that the compiler must keep what it is. */
static NOINLINE __attribute__((unused)) void *opaque(void *p) {
    __asm__ volatile("" : "+r"(p));
    return p;
}

#endif
