/* What GC_exclude_static_roots names is left out of ranges of GC_add_roots as well, whichever was called first. */
#include "check.h"
#include <sys/mman.h>

enum { N = 64, PAGE = 4096 };

static int died[3];
static void finalizer(void *object, void *round) {
    (void)object;
    ++*(int *)round;
}

static void **range;
static int round_now;
static void make(void) {
    for (int i = 0; i < N; i++) {
        range[i] = GC_malloc(48);
        GC_register_finalizer_no_order(range[i], finalizer, &died[round_now], 0, 0);
    }
}
static int dead_in(void *memory, int round) {
    range = memory;
    round_now = round;
    far_away(make);
    collect();
    collect();
    return died[round];
}

int main(void) {
    GC_init();
    /* Memory that is not searched by itself. The page between the two is none of both. */
    char *memory = mmap(0, 5 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    void **first = (void **)memory, **second = (void **)(memory + 2 * PAGE), **middle = (void **)(memory + 4 * PAGE);
    GC_add_roots(first, first + N);
    GC_exclude_static_roots(first, first + N);
    CHECK(dead_in(first, 0) >= N - 5);
    GC_exclude_static_roots(second, second + N);
    GC_add_roots(second, second + N);
    CHECK(dead_in(second, 1) >= N - 5);
    /* The rest of a range stays. */
    GC_add_roots(middle, middle + N);
    GC_exclude_static_roots(middle + N / 4, middle + N / 2);
    int count = dead_in(middle, 2);
    CHECK(count >= N / 4 - 5 && count <= N / 4);
    for (int i = 0; i < N; i++) CHECK((i >= N / 4 && i < N / 2) || GC_size(middle[i]) >= 48);
    return 0;
}
