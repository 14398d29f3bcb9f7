// xtask: larder-only
/* GC_non_gc_bytes counts uncollectable objects, beside what the program sets. (libgc 8.2.2 with thread-local lists subtracts freed ones that it never added.) */
#include "check.h"

enum { MANY = 5000 };

int main(void) {
    GC_init();
    GC_word before = GC_get_non_gc_bytes();
    void *u = GC_malloc_uncollectable(1000), *a = GC_malloc_atomic_uncollectable(100000);
    void *d = GC_debug_malloc_uncollectable(1000, "non_gc_bytes.c", 1);
    CHECK(GC_get_non_gc_bytes() - before >= 102000 && GC_get_non_gc_bytes() - before < 120000);
    CHECK(GC_non_gc_bytes == GC_get_non_gc_bytes());
    u = GC_realloc(u, 50000);
    CHECK(GC_get_non_gc_bytes() - before >= 151000 && GC_get_non_gc_bytes() - before < 170000);
    GC_word counted_before = GC_get_non_gc_bytes();
    for (int bytes = 50000; bytes <= 60000; bytes += 100) u = GC_realloc(u, bytes);
    CHECK(GC_get_non_gc_bytes() - counted_before >= 10000 && GC_get_non_gc_bytes() - counted_before < 10100);
    GC_free(u);
    GC_free(a);
    GC_debug_free(d);
    GC_free(GC_malloc(100));
    CHECK(GC_get_non_gc_bytes() == before);
    /* So many that whole blocks of them are freed, some of them over and over; others between them are not counted. */
    static void *kept[2][MANY], *others[MANY];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < MANY; i++) {
            kept[0][i] = GC_malloc_uncollectable(16 + i % 200);
            kept[1][i] = GC_malloc_atomic_uncollectable(16 + i % 200);
            others[i] = GC_malloc(16 + i % 200);
        }
        GC_word counted = GC_get_non_gc_bytes(), bytes = 0;
        CHECK(counted - before >= 2 * MANY * 16);
        for (int i = 0; i < MANY; i++)
            GC_free(others[(i * 7 + round) % MANY]);
        CHECK(GC_get_non_gc_bytes() == counted);
        for (int i = 0; i < MANY; i++)
            for (int kind = 0; kind < 2; kind++) {
                void *object = kept[kind][(i * 7 + round) % MANY];
                bytes += GC_size(object);
                GC_free(object);
                CHECK(GC_get_non_gc_bytes() == counted - bytes);
            }
        CHECK(GC_get_non_gc_bytes() == before);
    }
    /* What the program has set to nothing stays so. */
    void *kept_on = GC_malloc_uncollectable(100);
    GC_set_non_gc_bytes(0);
    GC_free(kept_on);
    CHECK(GC_get_non_gc_bytes() == 0);
    GC_set_non_gc_bytes(5000);
    CHECK(GC_non_gc_bytes == 5000);
    return 0;
}
