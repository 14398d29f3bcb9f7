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
#define UNUSED __attribute__((unused))

/* Standard output and standard error go to memory from captured_begin to captured_end, which returns the text. */
static int captured_file = -1, captured_saved[2];
extern int dup(int), dup2(int, int), close(int);
extern int memfd_create(const char *, unsigned);
extern long pread(int, void *, size_t, long);
static UNUSED void captured_begin(void) {
    fflush(stdout);
    captured_file = memfd_create("captured", 0);
    CHECK(captured_file >= 0);
    for (int i = 0; i < 2; i++) {
        captured_saved[i] = dup(i + 1);
        dup2(captured_file, i + 1);
    }
}
static UNUSED const char *captured_end(void) {
    static char text[1 << 20];
    fflush(stdout);
    long n = pread(captured_file, text, sizeof text - 1, 0);
    for (int i = 0; i < 2; i++) {
        dup2(captured_saved[i], i + 1);
        close(captured_saved[i]);
    }
    close(captured_file);
    CHECK(n >= 0);
    text[n] = 0;
    return text;
}

/* Runs `f` in a child of its own; returns how it ended, as waitpid tells, and what it printed. */
extern int fork(void), waitpid(int, int *, int);
static UNUSED int in_child(void (*f)(void), const char **printed) {
    int status = 0;
    captured_begin();
    int child = fork();
    if (child == 0) {
        f();
        exit(0);
    }
    int waited = waitpid(child, &status, 0);
    const char *text = captured_end();
    CHECK(child > 0 && waited == child);
    if (printed) *printed = text;
    return status;
}
#define ABORTED(status) (((status) & 0x7f) == 6)

/* How often a text occurs in another one. */
static UNUSED int occurs(const char *part, const char *text) {
    int n = 0;
    for (const char *at = text; (at = strstr(at, part)) != 0; at += strlen(part)) n++;
    return n;
}

/* Whether the program runs on Larder: the stock library has no such function. */
extern void *dlsym(void *, const char *);
static UNUSED int is_larder(void) { return dlsym(0, "GC_print_backtrace") != 0; }

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
