/* Checked pointer arithmetic. */
#include "check.h"

static int same, displaced;
static void not_same(void *p, void *q) {
    (void)p;
    (void)q;
    same++;
}
static void bad(void *p) {
    (void)p;
    displaced++;
}

int main(void) {
    GC_init();
    GC_same_obj_print_proc = not_same;
    GC_is_valid_displacement_print_proc = bad;
    char *p = GC_malloc(100), *q = GC_malloc(100), local[10];
    CHECK(GC_same_obj(p + 50, p) == p + 50 && GC_same_obj(local, local + 5) == local && same == 0);
    CHECK(GC_same_obj(p, q) == p && same == 1);
    GC_is_visible_print_proc = bad;
    void *aligned;
    CHECK(GC_is_visible(&aligned) == &aligned && displaced == 0);
    CHECK(GC_is_visible((char *)&aligned + 1) == (char *)&aligned + 1 && displaced == 1);
    displaced = 0;
    CHECK(GC_is_valid_displacement(p + 10) == p + 10 && displaced == 0);
    char *cursor = p;
    CHECK(GC_pre_incr((void **)&cursor, 16) == p + 16 && cursor == p + 16);
    CHECK(GC_post_incr((void **)&cursor, -8) == p + 16 && cursor == p + 8);
    void **slot = GC_malloc(8);
    GC_ptr_store_and_dirty(slot, p);
    CHECK(*slot == p);
    GC_end_stubborn_change(slot);
    return 0;
}
