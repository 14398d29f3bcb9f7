/* GC_init called deep in the stack with a base of its own there: once that function has returned, the main thread stands above
 * its stack's base. GC_call_with_gc_active moves the base up to its own frame, also from within GC_do_blocking. */
#include "check.h"

enum { OBJECTS = 20, ROUNDS = 3 };

static int died[ROUNDS];
static void count(void *object, void *round) {
    (void)object;
    ++*(int *)round;
}

static NOINLINE void make(void **into, int round) {
    for (int i = 0; i < OBJECTS; i++) {
        into[i] = GC_malloc(64);
        GC_register_finalizer(into[i], count, &died[round], 0, 0);
    }
}

static void collect_twice(void) {
    for (int i = 0; i < 2; i++) collect();
}

/* Holds objects in its frame alone while collections run. */
static NOINLINE void *hold(void *round) {
    void *volatile held[OBJECTS];
    const int number = *(int *)round;
    CHECK((char *)GC_stackbottom > (char *)&held[OBJECTS]);
    struct GC_stack_base base;
    CHECK(GC_get_my_stackbottom(&base) != 0 && base.mem_base == GC_stackbottom);
    make((void **)held, number);
    far_away(collect_twice);
    CHECK(died[number] == 0);
    for (int i = 0; i < OBJECTS; i++) CHECK(GC_size(held[i]) >= 64);
    return round;
}

static NOINLINE void *hold_from_region(void *round) { return GC_call_with_gc_active(hold, round); }

/* Says that the stack begins in this frame, and returns with that so. */
static NOINLINE void begin_here(void) {
    volatile char deep[8192];
    deep[0] = 0;
    GC_stackbottom = (char *)&deep[0];
    GC_init();
    CHECK(GC_stackbottom == (char *)&deep[0] && deep[0] == 0);
}

int main(void) {
    int round = 0;
    begin_here();
    CHECK(GC_call_with_gc_active(hold, &round) == &round);
    round++;
    begin_here();
    CHECK(GC_do_blocking(hold_from_region, &round) == &round);

    /* Without the call libgc leaves the stack out, and frees what is held there. Here it is searched up to where the system began it. */
    if (!is_larder()) return 0;
    round++;
    begin_here();
    void *volatile held[OBJECTS];
    make((void **)held, round);
    far_away(collect_twice);
    CHECK(died[round] == 0);
    for (int i = 0; i < OBJECTS; i++) CHECK(GC_size(held[i]) >= 64);
    return 0;
}
