/* Allocation by kind, by lists, and under old names; and what counts as not collected. */
#include "check.h"
#include <gc/gc_gcj.h>
#include <gc/gc_inline.h>
#include <gc/gc_mark.h>
#include <gc/gc_typed.h>

static void is_object(void *p, size_t bytes, int kind, int zero) {
    size_t size;
    CHECK(p && GC_base(p) == p && GC_is_heap_ptr(p));
    CHECK(GC_get_kind_and_size(p, &size) == kind && size >= bytes && size == GC_size(p));
    for (size_t i = 0; zero && i < bytes; i++) CHECK(((char *)p)[i] == 0);
    memset(p, 0x11, bytes);
}

static void *lists[GC_TINY_FREELISTS], *atomic_lists[GC_TINY_FREELISTS];

int main(void) {
    GC_init();
    static const size_t sizes[] = {0, 1, 16, 17, 100, 2000, 4096, 33000, 300000};
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t n = sizes[i];
        is_object(GC_generic_malloc(n, GC_I_NORMAL), n, 1, 1);
        is_object(GC_generic_malloc(n, GC_I_PTRFREE), n, 0, 0);
        is_object(GC_generic_malloc_ignore_off_page(n, GC_I_NORMAL), n, 1, 1);
        is_object(GC_malloc_kind(n, GC_I_NORMAL), n, 1, 1);
        is_object(GC_malloc_kind(n, GC_I_PTRFREE), n, 0, 0);
        is_object(GC_malloc_kind_global(n, GC_I_NORMAL), n, 1, 1);
        is_object(GC_malloc_stubborn(n), n, 1, 1);
        is_object(GC_generic_or_special_malloc(n, GC_I_NORMAL), n, 1, 1);
        is_object(GC_generic_or_special_malloc(n, GC_I_PTRFREE), n, 0, 0);
        void *p[6] = {GC_generic_malloc_uncollectable(n, GC_I_NORMAL), GC_generic_malloc_uncollectable(n, GC_I_PTRFREE),
                      GC_generic_or_special_malloc(n, 2), GC_generic_or_special_malloc(n, 3),
                      GC_malloc_uncollectable(n), GC_malloc_atomic_uncollectable(n)};
        static const int kinds[] = {2, 3, 2, 3, 2, 3};
        /* libgc keeps the kinds that the first two ask for, and marks the objects for good. What is documented, that they live until GC_free, holds on both. */
        for (int k = 0; k < 6; k++) is_object(p[k], n, k < 2 ? GC_get_kind_and_size(p[k], 0) : kinds[k], kinds[k] == 2);
        for (int k = 0; k < 6; k++) GC_free(p[k]);
        GC_word bits = 1;
        void *typed = GC_malloc_explicitly_typed_ignore_off_page(n < 8 ? 8 : n, GC_make_descriptor(&bits, 1));
        CHECK(GC_base(typed) == typed && GC_size(typed) >= n && *(long *)typed == 0);
    }
    GC_change_stubborn(GC_malloc_stubborn(8));

    /* Explicitly freed bytes are counted. */
    GC_gcollect();
    GC_word before = GC_get_expl_freed_bytes_since_gc();
    GC_free(GC_malloc(1000));
    CHECK(GC_get_expl_freed_bytes_since_gc() - before >= 1000);

    /* Lists that the program pops. */
    void *list = GC_malloc_many(40);
    int n = 0;
    while (list) {
        void *p = list;
        list = GC_NEXT(p);
        GC_NEXT(p) = 0;
        is_object(p, 40, 1, 1);
        n++;
    }
    CHECK(n >= 1);
    /* Pointer-free objects of a list do not keep one another, so there must be no cycle while the program has some. */
    GC_disable();
    for (int round = 0; round < 2000; round++) {
        for (size_t granules = 0; granules < GC_TINY_FREELISTS + 3; granules += 5) {
            void *p, *q;
            GC_FAST_MALLOC_GRANS(p, granules, lists, 0, GC_I_NORMAL, GC_malloc(granules * 16), *(void **)p = 0);
            is_object(p, granules * 16 ? granules * 16 : 16, 1, 1);
            GC_FAST_MALLOC_GRANS(q, granules, atomic_lists, 0, GC_I_PTRFREE, GC_malloc_atomic(granules * 16), (void)0);
            is_object(q, granules * 16 ? granules * 16 : 16, 0, 0);
            CHECK(p != q);
        }
        void *pair;
        GC_CONS(pair, lists, &n, lists);
        CHECK(((void **)pair)[0] == (void *)lists && ((void **)pair)[1] == (void *)&n);
        void *words;
        GC_MALLOC_WORDS(words, 4, lists);
        is_object(words, 32, 1, 1);
        GC_MALLOC_ATOMIC_WORDS(words, 4, atomic_lists);
        is_object(words, 32, 0, 0);
    }
    GC_enable();
    captured_begin();
    GC_print_free_list(GC_I_NORMAL, 3);
    captured_end();

    /* gcj objects. */
    static struct {
        void *unused;
        GC_word descriptor;
    } table;
    GC_init_gcj_malloc(GC_GCJ_RESERVED_MARK_PROC_INDEX, (void *)1);
    void **g = GC_gcj_malloc_ignore_off_page(100, &table);
    CHECK(*g == (void *)&table && g[1] == 0 && GC_get_kind_and_size(g, 0) == GC_gcj_kind);
    return 0;
}
