/* Debug objects that are freed are left to the next cycle: by a pointer that a cycle sees, the second free is told, and nobody else has
 * got the memory meanwhile. */
#include "check.h"
#include <gc/gc_inline.h>
#include <gc/gc_mark.h>

#define HERE "freed_twice.c", __LINE__

static const char *freed(void *p) {
    captured_begin();
    GC_debug_free(p);
    return captured_end();
}

/* The memory is nobody else's while there is a pointer to it, whatever is allocated. */
static NOINLINE void is_not_handed_out(void *(*allocate)(size_t, const char *, int), size_t bytes, int count) {
    char *volatile p = allocate(bytes, HERE);
    memset(p, 0x11, bytes);
    CHECK(freed(p)[0] == 0);
    CHECK(p[0] != 0x11);
    for (int i = 0; i < count; i++) {
        char *q = allocate(bytes, HERE);
        CHECK(q != p);
        memset(q, 0x22, bytes);
        if (i == count / 2) GC_gcollect();
    }
    for (int i = 0; i < 2; i++) CHECK(occurs("found previously deallocated", freed(p)) == 1);
    GC_reachable_here(p);
}

/* Once nobody refers to it, it is used again; so the heap does not grow. */
static void comes_back(void) {
    for (int i = 0; i < 100; i++) GC_debug_free(GC_debug_malloc(1000000, HERE));
    for (int i = 0; i < 200000; i++) GC_debug_free(GC_debug_malloc(1000, HERE));
    for (int i = 0; i < 200000; i++) GC_debug_free(GC_debug_malloc_atomic(1000, HERE));
    for (int i = 0; i < 200000; i++) GC_debug_free(GC_debug_malloc_uncollectable(1000, HERE));
    CHECK(GC_get_heap_size() < 100 << 20);
}

/* Without a header, too. */
static NOINLINE void without_header(void) {
    char *volatile p = GC_malloc(100);
    CHECK(strstr(freed(p), "w/o debugging info"));
    for (int i = 0; i < 10000; i++) CHECK(GC_malloc(100) != p);
    CHECK(freed(p)[0]);
    GC_reachable_here(p);
}

/* Who writes to it is told in the leak-finding mode alone. */
static NOINLINE void written_to(void) {
    char *volatile p = GC_debug_malloc(100, HERE);
    GC_debug_free(p);
    p[50] = 5;
    captured_begin();
    GC_gcollect();
    CHECK(captured_end()[0] == 0);
    GC_reachable_here(p);
}

static void counts(void) {
    GC_gcollect();
    size_t before = GC_get_expl_freed_bytes_since_gc();
    GC_debug_free(GC_debug_malloc(10000, HERE));
    CHECK(GC_get_expl_freed_bytes_since_gc() >= before + 10000);
}

/* What a mark procedure reads in an object stays as it is; libgc writes over it. */
static struct GC_ms_entry *scans(GC_word *object, struct GC_ms_entry *top, struct GC_ms_entry *limit, GC_word env UNUSED) {
    if (object[GC_get_debug_header_size() / sizeof *object]) CHECK(*(int *)object[GC_get_debug_header_size() / sizeof *object] == 7);
    (void)limit;
    return top;
}
static NOINLINE void of_a_kind(void) {
    static int seven = 7;
    int kind = GC_new_kind(GC_new_free_list(), GC_MAKE_PROC(GC_new_proc(scans), 0), 0, 1);
    int **volatile p = GC_debug_generic_or_special_malloc(16, kind, HERE);
    *p = &seven;
    GC_debug_free(p);
    GC_gcollect();
    CHECK(*p == &seven && strstr(freed(p), "found previously deallocated"));
    GC_reachable_here(p);
}

int main(void) {
    GC_init();
    for (int i = 0; i < 2; i++) {
        is_not_handed_out(GC_debug_malloc, 20, 20000);
        is_not_handed_out(GC_debug_malloc, 1000, 20000);
        is_not_handed_out(GC_debug_malloc_atomic, 20, 20000);
        is_not_handed_out(GC_debug_malloc_atomic, 1000, 20000);
        is_not_handed_out(GC_debug_malloc, 100000, 1000);
    }
    comes_back();
    without_header();
    written_to();
    counts();
    if (is_larder()) of_a_kind();
    return 0;
}
