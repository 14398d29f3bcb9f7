/* GC_realloc: in place or moved, content kept, growth cleared, kind kept. */
#include "check.h"
#include <gc/gc_mark.h>

/* An object that grows a little at a time moves seldom, and shows zeroes where it has grown. */
static void grows(void *(*make)(size_t), int is_cleared) {
    enum { FROM = 200000, STEP = 104, STEPS = 2000 };
    unsigned char *p = make(FROM);
    memset(p, 1, FROM);
    size_t n = FROM;
    int moves = 0;
    for (int step = 0; step < STEPS; step++, n += STEP) {
        unsigned char *q = GC_realloc(p, n + STEP);
        CHECK(q && GC_base(q) == q && GC_size(q) >= n + STEP && q[0] == 1 && q[n - 1] == (step ? 2 : 1));
        moves += q != p;
        for (size_t i = n; is_cleared && i < n + STEP; i++) CHECK(q[i] == 0);
        memset(q + n, 2, STEP);
        p = q;
    }
    CHECK(moves <= 200);
    for (size_t i = 0; i < n; i++) CHECK(p[i] == (i < FROM ? 1 : 2));
    GC_free(p);
}

static int died;
static void GC_CALLBACK count(void *object UNUSED, void *data UNUSED) { died++; }
static NOINLINE void keep_at_end(void **table, size_t words) {
    void *object = GC_MALLOC(64);
    GC_register_finalizer(object, count, 0, 0, 0);
    table[words - 1] = object;
}
/* Where it has grown it keeps what it refers to. */
static void keeps_what_it_grew_by(void) {
    size_t words = 20000;
    void **volatile table = GC_MALLOC(words * sizeof *table);
    for (int step = 1; step <= 50; step++) {
        words += 10;
        table = GC_REALLOC(table, words * sizeof *table);
        keep_at_end(table, words);
        if (step % 10 == 0) GC_gcollect();
    }
    GC_gcollect();
    CHECK(died == 0);
    GC_reachable_here(table);
}

int main(void) {
    GC_init();
    grows(GC_malloc, 1);
    grows(GC_malloc_atomic, 0);
    grows(GC_malloc_uncollectable, 1);
    keeps_what_it_grew_by();
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
