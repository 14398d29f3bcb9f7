/* Where not all interior pointers count, a pointer to a debug object, which lies behind a header, keeps it all the same; one further in does
 * where its displacement was registered. */
#include "check.h"

#define N 200

static char **table;
static int died, distance;
static void finalizer(void *object, void *data) {
    (void)object;
    (void)data;
    died++;
}
static void make(void) {
    for (int i = 0; i < N; i++) {
        char *p = GC_debug_malloc(64, "debug_displacement.c", i);
        GC_debug_register_finalizer_no_order(p, finalizer, 0, 0, 0);
        table[i] = p + distance;
    }
}
static int dead_at(int offset) {
    died = 0;
    distance = offset;
    far_away(make);
    collect();
    collect();
    return died;
}

int main(void) {
    GC_set_all_interior_pointers(0);
    GC_init();
    GC_debug_register_displacement(24);
    table = GC_malloc_uncollectable(N * sizeof *table);
    CHECK(dead_at(0) == 0);
    CHECK(dead_at(24) <= N + 10);
    CHECK(dead_at(40) >= N - 10);
    CHECK(GC_get_all_interior_pointers() == 0);
    return 0;
}
