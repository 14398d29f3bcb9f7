/* Registered ranges, excluded ones, the client's own roots, and memory that is no root. */
#include "check.h"
#include <gc/gc_mark.h>
#include <sys/mman.h>

#define N 200
#define BYTES 65536

static int died;
static void count(void *object, void *data) {
    (void)object;
    (void)data;
    died++;
}
static void **target;
static void fill(void) {
    for (int i = 0; i < N; i++) {
        target[i] = GC_malloc(80);
        GC_register_finalizer_no_order(target[i], count, 0, 0, 0);
    }
}
static int dead_after_filling(void **where) {
    target = where;
    died = 0;
    far_away(fill);
    collect();
    collect();
    int dead = died;
    memset(where, 0, N * sizeof *where);
    collect();
    collect();
    return dead;
}
static void *in_data[N] = {&died};
static void *in_bss[N];

static GC_push_other_roots_proc other;
static void **pushed;
static int how;
static void push(void) {
    other();
    if (how == 0) GC_push_all(pushed, pushed + N);
    if (how == 1) GC_push_all_eager(pushed, pushed + N);
    if (how == 2) GC_push_conditional(pushed, pushed + N, 1);
}

int main(void) {
    GC_init();
    void **mapped = mmap(0, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(mapped != MAP_FAILED);
    CHECK(dead_after_filling(in_data) == 0);
    CHECK(dead_after_filling(in_bss) == 0);
    CHECK(dead_after_filling(mapped) >= N - 10);
    GC_add_roots(mapped, mapped + N);
    CHECK(dead_after_filling(mapped) == 0);
    GC_remove_roots(mapped, (char *)mapped + BYTES);
    CHECK(dead_after_filling(mapped) >= N - 10);

    /* Ranges that are none: empty, reversed, without a whole word, taken back without having been added. */
    GC_add_roots(mapped, mapped);
    GC_add_roots(mapped + N, mapped);
    GC_add_roots((char *)mapped + 1, (char *)mapped + 4);
    GC_add_roots(0, 0);
    GC_remove_roots(mapped + N, mapped);
    GC_remove_roots(0, 0);
    GC_exclude_static_roots(in_data, in_data);
    CHECK(dead_after_filling(mapped) >= N - 10 && dead_after_filling(in_data) == 0);

    void **holder = GC_malloc_uncollectable(N * sizeof *holder);
    CHECK(dead_after_filling(holder) == 0);
    void **atomic = GC_malloc_atomic_uncollectable(N * sizeof *atomic);
    CHECK(dead_after_filling(atomic) >= N - 10);

    other = GC_get_push_other_roots();
    GC_set_push_other_roots(push);
    pushed = mapped;
    for (how = 0; how < 3; how++) CHECK(dead_after_filling(mapped) == 0);
    GC_set_push_other_roots(other);
    CHECK(dead_after_filling(mapped) >= N - 10);
    GC_free(holder);
    return 0;
}
