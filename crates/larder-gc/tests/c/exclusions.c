// xtask: larder-only
/* Excluded ranges are searched again after GC_clear_exclusion_table. (On libgc that also forgets what keeps the collector's own data from
 * being searched, and a cycle after it crashes.) */
#include "check.h"

#define N 64

static void *in_range[N];
static int died;
static void finalizer(void *object, void *data) {
    (void)object;
    (void)data;
    died++;
}
static void make(void) {
    for (int i = 0; i < N; i++) {
        in_range[i] = GC_malloc(48);
        GC_register_finalizer_no_order(in_range[i], finalizer, 0, 0, 0);
    }
}
static int dead(void) {
    died = 0;
    far_away(make);
    collect();
    collect();
    return died;
}

int main(void) {
    GC_init();
    CHECK(dead() == 0);
    /* The ends need not be aligned, and ranges may overlap. */
    GC_exclude_static_roots((char *)in_range + 1, in_range + N / 2 + 3);
    GC_exclude_static_roots(in_range + N / 2, in_range + N);
    CHECK(dead() >= N - 5);
    memset(in_range, 0, sizeof in_range);
    collect();
    collect();
    GC_clear_exclusion_table();
    CHECK(dead() <= 5);
    return 0;
}
