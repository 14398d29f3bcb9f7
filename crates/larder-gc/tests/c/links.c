/* Disappearing links: cleared when the object dies, moved, unregistered; long links outlive the finalizer. */
#include "check.h"

#define N 200

static GC_word *slots;
static void *resurrected[N];
static int finalized;
static void keep(void *object, void *data) {
    resurrected[(intptr_t)data] = object;
    finalized++;
}
static void make_short(void) {
    for (int i = 0; i < N; i++) {
        void *p = GC_malloc(32);
        slots[i] = (GC_word)p;
        CHECK(GC_general_register_disappearing_link((void **)&slots[i], p) == GC_SUCCESS);
        CHECK(GC_general_register_disappearing_link((void **)&slots[i], p) == GC_DUPLICATE);
    }
}
static void make_both(void) {
    for (int i = 0; i < N; i++) {
        void *p = GC_malloc(32);
        slots[i] = slots[N + i] = (GC_word)p;
        GC_register_finalizer_no_order(p, keep, (void *)(intptr_t)i, 0, 0);
        CHECK(GC_general_register_disappearing_link((void **)&slots[i], p) == GC_SUCCESS);
        CHECK(GC_register_long_link((void **)&slots[N + i], p) == GC_SUCCESS);
    }
}
static int cleared(int from, int to) {
    int n = 0;
    for (int i = from; i < to; i++) n += slots[i] == 0;
    return n;
}
static void *read_slot(void *index) { return (void *)slots[(intptr_t)index]; }

int main(void) {
    GC_init();
    slots = GC_malloc_atomic_uncollectable(2 * N * sizeof *slots);
    memset(slots, 0, 2 * N * sizeof *slots);

    far_away(make_short);
    void *volatile kept = GC_call_with_alloc_lock(read_slot, (void *)7);
    collect();
    CHECK(cleared(0, N) >= N - 10 && slots[7] == (GC_word)kept);
    CHECK(GC_move_disappearing_link((void **)&slots[7], (void **)&slots[7]) == GC_SUCCESS);
    CHECK(GC_move_disappearing_link((void **)&slots[7], (void **)&slots[N]) == GC_SUCCESS);
    CHECK(GC_move_disappearing_link((void **)&slots[7], (void **)&slots[N]) == GC_NOT_FOUND);
    CHECK(GC_unregister_disappearing_link((void **)&slots[7]) == 0);
    slots[N] = slots[7];
    GC_reachable_here(kept);
    CHECK(GC_unregister_disappearing_link((void **)&slots[N]) == 1);
    CHECK(GC_unregister_disappearing_link((void **)&slots[N]) == 0);
    CHECK(GC_unregister_disappearing_link(0) == 0);

    memset(slots, 0, 2 * N * sizeof *slots);
    far_away(make_both);
    collect();
    /* Short links went before the finalizers ran; long ones stay while what a finalizer kept is there. */
    CHECK(cleared(0, N) >= N - 10 && finalized >= N - 10);
    CHECK(cleared(N, 2 * N) == 0);
    memset(resurrected, 0, sizeof resurrected);
    collect();
    CHECK(cleared(N, 2 * N) >= N - 10);

    void **a = GC_malloc(64), **b = GC_malloc(64);
    CHECK(GC_register_long_link(a, b) == GC_SUCCESS && GC_register_long_link(a + 1, b) == GC_SUCCESS);
    CHECK(GC_move_long_link(a, a + 1) == GC_DUPLICATE && GC_move_long_link(a, a + 2) == GC_SUCCESS);
    CHECK(GC_unregister_long_link(a) == 0 && GC_unregister_long_link(a + 2) == 1);
    CHECK(GC_register_disappearing_link(a) == GC_SUCCESS && GC_unregister_disappearing_link(a) == 1);
    GC_set_find_leak(1);
    CHECK(GC_general_register_disappearing_link(a, b) == GC_UNIMPLEMENTED);
    GC_set_find_leak(0);
    GC_reachable_here(b);
    return 0;
}
