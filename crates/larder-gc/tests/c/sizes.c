/* Sizes, bases and kinds of objects, with one more byte for a pointer past the end. */
#include "check.h"
#include <gc/gc_mark.h>

int main(void) {
    /* No GC_init: the first allocation does it. */
    char *p = GC_malloc(16);
    CHECK(GC_is_init_called());
    CHECK(GC_size(p) == 32);
    CHECK(GC_size(GC_malloc(15)) == 16 && GC_size(GC_malloc(0)) == 16 && GC_size(GC_malloc(1)) == 16);
    CHECK(GC_malloc(0) != 0);
    for (size_t n = 1; n < 300000; n += n / 3 + 1) {
        char *q = GC_malloc(n);
        CHECK(((uintptr_t)q & 15) == 0);
        CHECK(GC_size(q) > n);
        for (size_t i = 0; i < n; i++) CHECK(q[i] == 0);
        memset(q, 1, n);
        CHECK(GC_base(q) == q && GC_base(q + n - 1) == q && GC_base(q + n) == q);
        CHECK(GC_is_heap_ptr(q));
        size_t size;
        CHECK(GC_get_kind_and_size(q, &size) == 1 && size == GC_size(q));
    }
    CHECK(GC_get_kind_and_size(GC_malloc_atomic(5), 0) == 0);
    CHECK(GC_get_kind_and_size(GC_malloc_uncollectable(5), 0) == 2);
    CHECK(GC_get_kind_and_size(GC_malloc_atomic_uncollectable(5), 0) == 3);
    CHECK(GC_get_kind_and_size(GC_generic_malloc(40, 0), 0) == 0);
    CHECK(GC_get_kind_and_size(GC_malloc_ignore_off_page(400000), 0) == 1);
    CHECK(GC_get_kind_and_size(GC_malloc_atomic_ignore_off_page(400000), 0) == 0);
    CHECK(GC_base(&p) == 0 && !GC_is_heap_ptr(&p) && GC_base(main) == 0);
    CHECK(GC_get_size_map_at(15) == 16 && GC_get_size_map_at(16) == 32 && GC_get_size_map_at(-1) == (size_t)-1);
    CHECK(GC_get_version() == (8 << 16 | 2 << 8 | 2));
    return 0;
}
