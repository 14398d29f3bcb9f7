/* GC_new_kind_inner and GC_new_proc_inner, which a holder of the allocation lock calls, keep it: nobody else has it meanwhile. */
#include "check.h"
#include <gc/gc_mark.h>
#include <pthread.h>

enum { THREADS = 4, PROCEDURES = 48, KINDS = 4, CHILDREN = 8 };

static int holders, done;
static void *hold(void *unused) {
    __atomic_fetch_add(&holders, 1, __ATOMIC_RELAXED);
    return unused;
}
static void *wants_lock(void *unused) {
    while (!__atomic_load_n(&done, __ATOMIC_RELAXED)) GC_call_with_alloc_lock(hold, 0);
    return unused;
}
static int held(void) { return __atomic_load_n(&holders, __ATOMIC_RELAXED); }

static struct GC_ms_entry *mark(GC_word *address, struct GC_ms_entry *top, struct GC_ms_entry *limit, GC_word environment) {
    (void)address;
    (void)limit;
    (void)environment;
    return top;
}

static void *make_procedure(void *index) {
    int before = held();
    unsigned now = GC_new_proc_inner(mark);
    CHECK(now > *(unsigned *)index && held() == before);
    *(unsigned *)index = now;
    return index;
}
static void *make_kind(void *last) {
    int before = held();
    unsigned now = GC_new_kind_inner(GC_new_free_list_inner(), 0, 1, 1);
    CHECK(now > *(unsigned *)last && held() == before);
    *(unsigned *)last = now;
    return last;
}

static void beside_others(void) {
    pthread_t threads[THREADS];
    unsigned procedure = 0, kind = 0;
    GC_init();
    for (int i = 0; i < THREADS; i++) CHECK(GC_pthread_create(&threads[i], 0, wants_lock, 0) == 0);
    for (int i = 0; i < PROCEDURES; i++) {
        /* The others are at it. */
        for (int from = held(); held() < from + 100;) {}
        GC_call_with_alloc_lock(make_procedure, &procedure);
        if (i < KINDS) GC_call_with_alloc_lock(make_kind, &kind);
    }
    __atomic_store_n(&done, 1, __ATOMIC_RELAXED);
    for (int i = 0; i < THREADS; i++) CHECK(GC_pthread_join(threads[i], 0) == 0);
    exit(7);
}

int main(void) {
    for (int i = 0; i < CHILDREN; i++) {
        const char *printed;
        int status = in_child(beside_others, &printed);
        if (status != 7 << 8) {
            fprintf(stderr, "status %#x: %s\n", status, printed);
            return 1;
        }
    }
    return 0;
}
