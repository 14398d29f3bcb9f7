/* GC_realloc: in place or moved, content kept, growth cleared, kind kept. */
#include "check.h"
#include <gc/gc_mark.h>

int main(void) {
    GC_init();
    CHECK(GC_get_kind_and_size(GC_realloc(0, 10), 0) == 1);
    CHECK(GC_realloc(GC_malloc(3), 0) == 0);

    char *p = GC_malloc(1000), *q;
    memset(p, 7, 1000);
    q = GC_realloc(p, 600);
    CHECK(q == p);
    q = GC_realloc(p, 1000);
    CHECK(q == p && q[599] == 7 && q[600] == 0 && q[999] == 0);
    q = GC_realloc(p, 400);
    CHECK(q != p);
    for (int i = 0; i < 400; i++) CHECK(q[i] == 7);

    p = GC_malloc(100);
    memset(p, 3, 100);
    for (size_t n = 100; n < 5000000; n *= 3) {
        p = GC_realloc(p, n * 3);
        for (size_t i = 0; i < 100; i++) CHECK(p[i] == 3);
        for (size_t i = 100; i < n * 3; i++) CHECK(p[i] == 0);
    }
    p = GC_realloc(p, 50);
    for (int i = 0; i < 50; i++) CHECK(p[i] == 3);

    p = GC_realloc(GC_malloc_atomic(10), 5000);
    CHECK(GC_get_kind_and_size(p, 0) == 0);
    p = GC_realloc(GC_malloc_uncollectable(10), 5000);
    CHECK(GC_get_kind_and_size(p, 0) == 2);
    GC_free(p);
    p = GC_realloc(GC_malloc_atomic_uncollectable(10), 5000);
    CHECK(GC_get_kind_and_size(p, 0) == 3);
    GC_free(p);
    GC_free(0);
    return 0;
}
