/* A finalizer that does not return, since it leaves by longjmp or ends its thread, is not the last one that is run. */
#include "check.h"
#include <pthread.h>
#include <setjmp.h>

enum { OBJECTS = 20, MOST_CYCLES = 50 };

static int left, run;
static jmp_buf before;

static void GC_CALLBACK leave(void *object, void *ends) {
    CHECK(object != 0);
    left++;
    if (ends) GC_pthread_exit(0);
    longjmp(before, 1);
}
static void GC_CALLBACK count(void *object, void *data) {
    CHECK(object != 0 && data == 0);
    run++;
}

static void make_one_that_jumps(void) { GC_register_finalizer(GC_MALLOC(40), leave, 0, 0, 0); }
static void make_one_that_ends(void) { GC_register_finalizer(GC_MALLOC(40), leave, &left, 0, 0); }
static void make_others(void) {
    for (int i = 0; i < OBJECTS; i++) GC_register_finalizer(GC_MALLOC(40), count, 0, 0, 0);
}

/* The stock library leaves some cycles out after it was left, and runs finalizers then. */
static void others_are_run(void) {
    run = 0;
    far_away(make_others);
    for (int cycle = 0; cycle < MOST_CYCLES && run < OBJECTS - 1; cycle++) collect();
    CHECK(run >= OBJECTS - 1);
}

/* Collects until a finalizer leaves, deeper in the stack than the collections that come later. */
static NOINLINE void until_one_leaves(void (*make)(void), int already) {
    far_away(make);
    for (int cycle = 0; cycle < MOST_CYCLES && left == already; cycle++) collect();
}

static void *thread(void *unused) {
    until_one_leaves(make_one_that_ends, left);
    CHECK(!"the thread goes on");
    return unused;
}

int main(void) {
    GC_INIT();
    others_are_run();
    if (setjmp(before) == 0) {
        until_one_leaves(make_one_that_jumps, 0);
        CHECK(!"nobody has jumped");
    }
    CHECK(left == 1);
    others_are_run();
    pthread_t id;
    CHECK(GC_pthread_create(&id, 0, thread, 0) == 0);
    CHECK(GC_pthread_join(id, 0) == 0);
    CHECK(left == 2);
    others_are_run();
    return 0;
}
