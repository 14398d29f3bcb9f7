/* Objects that are longer than what is allocated between two cycles, one after the other: the memory of one is there for the next, also where they are freed
 * explicitly. Once it went back to the kernel after each cycle, and each page had a fault for each object. */
#include "check.h"
#include <sys/resource.h>

enum { BYTES = 16 << 20, PAGE = 4096, OBJECTS = 20, BEFORE = 4 };
static int freed;

static NOINLINE void make(void) {
    volatile char *object = GC_malloc_atomic(BYTES);
    CHECK(object);
    for (size_t at = 0; at < BYTES; at += PAGE) object[at] = 1;
    if (freed) GC_free((void *)object);
}

static long faults(void) {
    struct rusage usage;
    CHECK(getrusage(RUSAGE_SELF, &usage) == 0);
    return usage.ru_minflt;
}

int main(void) {
    GC_INIT();
    for (freed = 0; freed < 2; freed++) {
        for (int i = 0; i < BEFORE; i++) far_away(make);
        const long before = faults();
        for (int i = 0; i < OBJECTS; i++) far_away(make);
        /* All of them have 82,000 pages. */
        CHECK(faults() - before < (long)OBJECTS * BYTES / PAGE / 8);
    }
    return 0;
}
