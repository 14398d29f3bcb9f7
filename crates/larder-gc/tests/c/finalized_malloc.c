/* Objects that come with their finalizer. */
#include "check.h"
#include <gc/gc_disclaim.h>

#define N 200

static int died;
static void run(void *object, void *data) {
    CHECK(*(long *)object == 99 && data == &died);
    died++;
}
static struct GC_finalizer_closure closure = {run, &died};
static void make(void) {
    for (int i = 0; i < N; i++) {
        long *p = GC_finalized_malloc(40, &closure);
        CHECK(GC_base(p) == (char *)p - sizeof(void *));
        for (int j = 0; j < 5; j++) CHECK(p[j] == 0);
        p[0] = 99;
    }
}

int main(void) {
    GC_init();
    GC_init_finalized_malloc();
    GC_init_finalized_malloc();
    far_away(make);
    collect();
    collect();
    /* On libgc they die as their blocks are swept. */
    for (int i = 0; i < 20000; i++) GC_malloc(40);
    for (int i = 0; i < N * 10; i++) *(long *)GC_finalized_malloc(40, &closure) = 99;
    CHECK(died >= N - 10);
    return 0;
}
