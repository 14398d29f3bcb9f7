/* Which static data keeps objects alive. */
#include "check.h"
#include <gc/gc_mark.h>
#include <dlfcn.h>

#define N 64

static void *in_program[N];
static void *in_range[N] __attribute__((aligned(4096)));
static void **outside;
static int died;
static void finalizer(void *object, void *data) {
    (void)object;
    (void)data;
    died++;
}
static void **into;
static void make(void) {
    for (int i = 0; i < N; i++) {
        into[i] = GC_malloc(48);
        GC_register_finalizer_no_order(into[i], finalizer, 0, 0, 0);
    }
}
static int dead_in(void **place) {
    died = 0;
    into = place;
    far_away(make);
    collect();
    collect();
    int result = died;
    memset(place, 0, N * sizeof *place);
    collect();
    collect();
    return result;
}
static int asked_for_program, refusing;
static int filter(const char *name, void *start, size_t bytes) {
    char *low = start, *mine = (char *)in_program;
    CHECK(name != 0);
    if (low <= mine && mine < low + bytes) {
        asked_for_program++;
        return !refusing;
    }
    return 1;
}

int main(void) {
    GC_init();
    outside = malloc(N * sizeof *outside);
    CHECK(dead_in(in_program) == 0);
    CHECK(dead_in(outside) >= N - 5);

    GC_exclude_static_roots(in_range, in_range + N);
    CHECK(dead_in(in_range) >= N - 5);
    CHECK(dead_in(in_program) == 0);

    GC_add_roots(outside, outside + N);
    CHECK(dead_in(outside) == 0);
    CHECK(GC_is_tmp_root(in_program) == 1 && GC_is_tmp_root(outside) == 0);
    int on_stack;
    CHECK(GC_is_tmp_root(&on_stack) == 0);
    /* A range that is not removed as a whole stays as a whole. */
    GC_remove_roots(outside, outside + N / 2);
    GC_remove_roots(outside + 1, outside + N);
    CHECK(dead_in(outside) == 0);
    GC_remove_roots(outside, outside + N);
    CHECK(dead_in(outside) >= N - 5);

    GC_register_has_static_roots_callback(filter);
    CHECK(dead_in(in_program) == 0 && asked_for_program > 0);
    refusing = 1;
    CHECK(dead_in(in_program) >= N - 5);
    GC_register_has_static_roots_callback(0);
    CHECK(dead_in(in_program) == 0);

    void *library = GC_dlopen("libm.so.6", RTLD_NOW);
    CHECK(library && dlsym(library, "cos"));
    CHECK(GC_dlopen("no such library", RTLD_NOW) == 0 && dlerror() != 0);
    GC_gcollect();

    GC_add_roots(outside, outside + N);
    GC_clear_roots();
    CHECK(dead_in(outside) >= N - 5 && dead_in(in_program) == 0);
    GC_set_no_dls(1);
    GC_clear_roots();
    CHECK(dead_in(in_program) >= N - 5);
    return 0;
}
