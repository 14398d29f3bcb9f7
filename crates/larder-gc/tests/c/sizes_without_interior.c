/* Sizes where pointers into objects do not count: no byte is added. And a pointer into an object from another object keeps it only
 * at a registered displacement, while one from the stack always does. */
#include "check.h"

#define N 1000

static int finalized;
static void count(void *object, void *data) {
    (void)object;
    (void)data;
    finalized++;
}
static size_t displacement;
static char **keeper;
static void make(void) {
    for (int i = 0; i < N; i++) {
        char *p = GC_malloc(64);
        GC_register_finalizer_no_order(p, count, 0, 0, 0);
        keeper[i] = p + displacement;
    }
}
static int lost_at(size_t bytes) {
    finalized = 0;
    displacement = bytes;
    far_away(make);
    collect();
    collect();
    int lost = finalized;
    memset(keeper, 0, N * sizeof *keeper);
    collect();
    collect();
    return lost;
}

int main(void) {
    GC_set_all_interior_pointers(0);
    GC_init();
    GC_register_displacement(0);
    GC_register_displacement(24);
    CHECK(GC_size(GC_malloc(16)) == 16 && GC_size(GC_malloc(17)) == 32);
    CHECK(GC_get_size_map_at(16) == 16);
    keeper = GC_malloc_uncollectable(N * sizeof *keeper);
    CHECK(lost_at(0) == 0);
    CHECK(lost_at(24) == 0);
    CHECK(lost_at(8) > N * 9 / 10);
    /* Discouraged, and allowed: from here on they count. */
    char *sixteen = memset(GC_malloc(16), 5, 16);
    GC_set_all_interior_pointers(1);
    CHECK(GC_get_all_interior_pointers() == 1);
    CHECK(lost_at(8) == 0);
    sixteen = GC_realloc(sixteen, 1000);
    for (int i = 0; i < 16; i++) CHECK(sixteen[i] == 5);
    GC_set_all_interior_pointers(0);
    CHECK(lost_at(8) > N * 9 / 10);

    char *volatile inside;
    finalized = 0;
    inside = (char *)GC_malloc(64) + 40;
    GC_register_finalizer_no_order(GC_base(inside), count, 0, 0, 0);
    collect();
    CHECK(finalized == 0);
    GC_reachable_here(inside);
    return 0;
}
