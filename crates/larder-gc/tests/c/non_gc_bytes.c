// xtask: larder-only
/* GC_non_gc_bytes counts uncollectable objects, beside what the program sets. (libgc 8.2.2 with thread-local lists subtracts freed ones that it never added.) */
#include "check.h"

int main(void) {
    GC_init();
    GC_word before = GC_get_non_gc_bytes();
    void *u = GC_malloc_uncollectable(1000), *a = GC_malloc_atomic_uncollectable(100000);
    void *d = GC_debug_malloc_uncollectable(1000, "non_gc_bytes.c", 1);
    CHECK(GC_get_non_gc_bytes() - before >= 102000 && GC_get_non_gc_bytes() - before < 120000);
    CHECK(GC_non_gc_bytes == GC_get_non_gc_bytes());
    u = GC_realloc(u, 50000);
    CHECK(GC_get_non_gc_bytes() - before >= 151000 && GC_get_non_gc_bytes() - before < 170000);
    GC_free(u);
    GC_free(a);
    GC_debug_free(d);
    GC_free(GC_malloc(100));
    CHECK(GC_get_non_gc_bytes() == before);
    GC_set_non_gc_bytes(5000);
    CHECK(GC_non_gc_bytes == 5000);
    return 0;
}
