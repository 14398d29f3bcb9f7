// xtask: larder-only
/* Many threads find at the same time that a heap at its maximum is full: one collection is for all of them, and not one for each; and all of them get
 * what a collection for all of them frees. (libgc says at once that memory is exhausted, also where it is not.) */
#include "check.h"
#include <pthread.h>
#include <sched.h>

enum { MEBIBYTES = 64, THREADS = 24, LARGE = 1 << 20, CELL = 48 };

static void *none(size_t bytes) {
    (void)bytes;
    return 0;
}

static GC_word *list;
static NOINLINE void fill(void) {
    for (GC_word *cell; (cell = GC_malloc(CELL)) != 0; list = cell) cell[0] = (GC_word)list;
}
static NOINLINE void forget(void) {
    for (GC_word *next; list; list = next) {
        next = (GC_word *)list[0];
        list[0] = 0; /* A stale pointer to one of them shall not keep the others. */
    }
}

static pthread_barrier_t all_here;
static void meet(void) {
    int r = pthread_barrier_wait(&all_here);
    CHECK(r == 0 || r == PTHREAD_BARRIER_SERIAL_THREAD);
}
/* How many of the threads got an object, while the heap was full and when it was not any more. */
static int got[2];
static int asking;
static void *ask(void *unused) {
    for (int i = 0; i < 2; i++) {
        meet();
        __atomic_add_fetch(&asking, 1, __ATOMIC_RELAXED);
        if (GC_malloc_atomic(LARGE)) __atomic_add_fetch(&got[i], 1, __ATOMIC_RELAXED);
        meet();
    }
    return unused;
}

/* The first collection that one of them asks for begins when all have. */
static void event(GC_EventType type) {
    int now = __atomic_load_n(&asking, __ATOMIC_RELAXED);
    if (type != GC_EVENT_START || now == 0 || now >= THREADS) return;
    while (__atomic_load_n(&asking, __ATOMIC_RELAXED) < THREADS) sched_yield();
    for (int i = 0; i < 1000; i++) sched_yield();
}

int main(void) {
    GC_init();
    GC_set_oom_fn(none);
    GC_set_warn_proc(GC_ignore_warn_proc);
    pthread_t t[THREADS];
    CHECK(pthread_barrier_init(&all_here, 0, THREADS + 1) == 0);
    for (int i = 0; i < THREADS; i++) CHECK(GC_pthread_create(&t[i], 0, ask, 0) == 0);
    GC_set_max_heap_size((GC_word)MEBIBYTES << 20);
    far_away(fill);
    CHECK(list != 0);
    GC_set_on_collection_event(event);
    GC_word before = GC_get_gc_no();
    meet();
    meet();
    /* Each of them asks for two. */
    CHECK(got[0] == 0 && GC_get_gc_no() - before <= THREADS / 2 * 3);
    far_away(forget);
    meet();
    meet();
    CHECK(got[1] == THREADS);
    for (int i = 0; i < THREADS; i++) CHECK(GC_pthread_join(t[i], 0) == 0);
    return 0;
}
