// xtask: larder-only
/* A thread changes what a collection looks at in GC_call_with_alloc_lock, and does the last of it right behind the call, as Guile 3.0 moves
 * its threads' stacks. A collector that waited for the lock leaves it the time for that. In libgc the
 * thread is stopped between in most of these cycles. */
#include "check.h"
#include <gc/gc_mark.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>

enum { COLLECTIONS = 400, BYTES = 1 << 16, PAUSE = 20000 };

static _Atomic long inside, behind;
static _Atomic int over;
static long looks, looks_between;

static void *move(void *number) {
    /* As long as it takes to move a stack: a collector comes to wait. */
    char *memory = mmap(0, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    memset(memory, 1, BYTES);
    munmap(memory, BYTES);
    inside = (long)number;
    return number;
}

static void *moves(void *argument) {
    for (long i = 1; !over; i++) {
        GC_call_with_alloc_lock(move, (void *)i);
        behind = i;
        for (volatile int k = 0; k < PAUSE; k++) {
        }
    }
    return argument;
}

static void GC_CALLBACK look(void) {
    looks++;
    looks_between += inside != behind;
}

int main(void) {
    pthread_t thread;
    GC_INIT();
    GC_set_push_other_roots(look);
    CHECK(GC_pthread_create(&thread, 0, moves, 0) == 0);
    for (int i = 0; i < COLLECTIONS; i++) {
        for (int k = 0; k < 3000; k++)
            GC_MALLOC(100);
        GC_gcollect();
    }
    over = 1;
    CHECK(GC_pthread_join(thread, 0) == 0);
    CHECK(looks >= COLLECTIONS);
    /* A few where the thread does not get a CPU in that time. */
    if (looks_between * 4 > looks)
        fprintf(stderr, "%ld of %ld looks between\n", looks_between, looks);
    CHECK(looks_between * 4 <= looks);
    return 0;
}
