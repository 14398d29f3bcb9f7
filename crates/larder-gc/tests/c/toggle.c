/* Toggle references: strong or weak, as the program says before each cycle. */
#include "check.h"

#define N 100

static int drop, strong, died, asked;
static GC_ToggleRefStatus decide(void *object) {
    CHECK(*(long *)object == 42);
    asked++;
    return drop ? GC_TOGGLE_REF_DROP : strong ? GC_TOGGLE_REF_STRONG : GC_TOGGLE_REF_WEAK;
}
static void finalizer(void *object, void *data) {
    (void)object;
    (void)data;
    died++;
}
static int as_strong;
static void make(void) {
    for (int i = 0; i < N; i++) {
        long *p = GC_malloc(32);
        *p = 42;
        GC_register_finalizer_no_order(p, finalizer, 0, 0, 0);
        CHECK(GC_toggleref_add(p, as_strong) == GC_SUCCESS);
    }
}

int main(void) {
    GC_init();
    CHECK(GC_get_toggleref_func() == 0);
    /* Without a function nothing is registered. */
    far_away(make);
    collect();
    collect();
    CHECK(died >= N - 10 && asked == 0);

    GC_set_toggleref_func(decide);
    CHECK(GC_get_toggleref_func() == decide);
    died = 0;
    strong = 1;
    as_strong = 1;
    far_away(make);
    for (int i = 0; i < 3; i++) collect();
    CHECK(died == 0 && asked >= 3 * N);
    strong = 0;
    collect();
    collect();
    CHECK(died >= N - 10);
    asked = 0;
    collect();
    CHECK(asked <= 10);

    /* A weak one that becomes strong before the next cycle stays. */
    died = 0;
    strong = 1;
    as_strong = 0;
    far_away(make);
    collect();
    collect();
    CHECK(died == 0);
    drop = 1;
    asked = 0;
    collect();
    collect();
    CHECK(died >= N - 10 && asked >= N && asked <= N + 10);
    GC_set_toggleref_func(0);
    return 0;
}
