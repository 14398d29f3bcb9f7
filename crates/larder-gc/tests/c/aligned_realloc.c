// xtask: larder-only
/* GC_realloc of an aligned object, which begins inside of its cell: it has what is left of the cell and not more. libgc counts the
 * whole cell, and clears or grows beyond it. */
#include "check.h"

int main(void) {
    GC_init();
    for (size_t align = 24; align <= 4096; align = align * 5 / 3) {
        for (size_t bytes = 1; bytes < 60000; bytes = bytes * 7 / 4 + 1) {
            unsigned char *p = GC_memalign(align, bytes), *before = GC_malloc(bytes), *after = GC_malloc(bytes);
            CHECK(p && (uintptr_t)p % align == 0);
            memset(p, 7, bytes);
            memset(before, 5, bytes);
            memset(after, 5, bytes);
            for (size_t more = bytes / 2; more < bytes * 3; more += bytes / 5 + 1) {
                size_t had = more < bytes ? more : bytes;
                unsigned char *q = GC_realloc(GC_memalign(align, bytes), more + 1);
                CHECK((char *)q + more + 1 <= (char *)GC_base(q) + GC_size(GC_base(q)));
                memset(q, 9, more + 1);
                q = GC_realloc(q, had + 1);
                for (size_t i = 0; i < had; i++) CHECK(q[i] == 9);
            }
            for (size_t i = 0; i < bytes; i++) CHECK(p[i] == 7 && before[i] == 5 && after[i] == 5);
            GC_free(p);
        }
    }
    return 0;
}
