/* Debug allocation, function by function: where objects were made is remembered, and what was written over is found when an object is
 * freed and in each cycle. */
#include "check.h"
#include <gc/gc_inline.h>
#include <gc/gc_mark.h>

static void GC_CALLBACK nothing(void *object UNUSED, void *data UNUSED) {}

#define HERE "debug_guards.c", __LINE__

static void is_debug_object(void *p, int kind, int is_zero, size_t bytes) {
    CHECK(p && (char *)GC_base(p) + GC_get_debug_header_size() == (char *)p);
    CHECK(GC_get_kind_and_size(GC_base(p), 0) == kind);
    CHECK(GC_size(GC_base(p)) >= GC_get_debug_header_size() + bytes);
    CHECK((GC_word)p % 16 == 0);
    for (size_t i = 0; is_zero && i < bytes; i++) CHECK(((char *)p)[i] == 0);
    memset(p, 0x77, bytes);
}
static const char *freed(void *p) {
    captured_begin();
    GC_debug_free(p);
    return captured_end();
}

static void all_functions(void) {
    static const int sizes[] = {0, 1, 7, 8, 9, 15, 16, 17, 100, 2000, 5000, 40000, 200000};
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t n = sizes[i];
        void *p[9] = {
            GC_debug_malloc(n, HERE),
            GC_debug_malloc_stubborn(n, HERE),
            GC_debug_malloc_ignore_off_page(n, HERE),
            GC_debug_malloc_replacement(n),
            GC_debug_malloc_atomic(n, HERE),
            GC_debug_malloc_atomic_ignore_off_page(n, HERE),
            GC_debug_malloc_uncollectable(n, HERE),
            GC_debug_malloc_atomic_uncollectable(n, HERE),
            GC_debug_generic_or_special_malloc(n, GC_I_NORMAL, HERE),
        };
        static const int kinds[] = {1, 1, 1, 1, 0, 0, 2, 3, 1};
        for (int k = 0; k < 9; k++) is_debug_object(p[k], kinds[k], kinds[k] == 1 || kinds[k] == 2, n);
        captured_begin();
        GC_gcollect();
        for (int k = 0; k < 9; k++) GC_debug_free(p[k]);
        GC_debug_free(0);
        CHECK(captured_end()[0] == 0);
    }
    CHECK(strcmp(GC_debug_strdup("text", HERE), "text") == 0);
    CHECK(strcmp(GC_debug_strndup("text", 2, HERE), "te") == 0 && strcmp(GC_debug_strndup("text", 20, HERE), "text") == 0);
    CHECK(GC_debug_strdup(0, HERE) == 0);
    GC_debug_change_stubborn(GC_debug_malloc(8, HERE));
    GC_debug_end_stubborn_change(GC_debug_malloc(8, HERE));
}

static void resizing(void) {
    char *p = GC_debug_realloc(0, 20, HERE);
    is_debug_object(p, 1, 1, 20);
    char *q = GC_debug_realloc(p, 3000, HERE);
    CHECK(q != p);
    for (int i = 0; i < 3000; i++) CHECK(q[i] == (i < 20 ? 0x77 : 0));
    q = GC_debug_realloc(q, 5, HERE);
    for (int i = 0; i < 5; i++) CHECK(q[i] == 0x77);
    q = GC_debug_realloc_replacement(q, 6);
    CHECK(q[4] == 0x77 && GC_debug_realloc(q, 0, HERE) == 0);
    void *all[3] = {GC_debug_malloc_atomic(9, HERE), GC_debug_malloc_uncollectable(9, HERE),
                    GC_debug_malloc_atomic_uncollectable(9, HERE)};
    static const int kinds[] = {0, 2, 3};
    for (int i = 0; i < 3; i++) {
        all[i] = GC_debug_realloc(all[i], 900, HERE);
        CHECK(GC_get_kind_and_size(GC_base(all[i]), 0) == kinds[i]);
        GC_debug_free(all[i]);
    }
    /* An object without a header is resized all the same. */
    captured_begin();
    char *plain = GC_malloc(30);
    plain[0] = 5;
    plain = GC_debug_realloc(plain, 500, HERE);
    const char *text = captured_end();
    CHECK(plain[0] == 5 && strstr(text, "GC_debug_realloc called on pointer") && strstr(text, "w/o debugging info"));
}

static void damage(void) {
    char *p = GC_debug_malloc(20, "there.c", 77);
    p[24] = 1;
    const char *text = freed(p);
    CHECK(strstr(text, "GC_debug_free: found smashed location at") && strstr(text, "(there.c:77, sz= 20)"));
    /* Before the object: what the header says is not to be believed. */
    p = GC_debug_malloc(20, "there.c", 77);
    memset(p - 8, 0x33, 8);
    p[24] = 1;
    text = freed(p);
    CHECK(strstr(text, "smashed"));
    /* Twice. */
    p = GC_debug_malloc(20, "there.c", 78);
    CHECK(freed(p)[0] == 0);
    CHECK(strstr(freed(p), "found previously deallocated"));
    CHECK(strstr(freed(GC_malloc(30)), "w/o debugging info"));
    p = GC_debug_malloc(1000000, "there.c", 79);
    CHECK(freed(p)[0] == 0);
    CHECK(strstr(freed(p), "found previously deallocated"));
    /* What was registered before is told where it was by the debug functions, and left alone where not. */
    p = GC_debug_malloc(20, "there.c", 80);
    GC_finalization_proc old = nothing;
    void *old_data = p;
    GC_register_finalizer(GC_base(p), nothing, 0, 0, 0);
    captured_begin();
    GC_debug_register_finalizer(p, nothing, 0, &old, &old_data);
    CHECK(strstr(captured_end(), "had a non-debug finalizer") && old == nothing && old_data == p);
    GC_debug_register_finalizer(p, 0, 0, &old, &old_data);
    CHECK(old == nothing && old_data == 0);
    GC_debug_register_finalizer(p, 0, 0, &old, &old_data);
    CHECK(old == 0 && old_data == 0);
    /* In a cycle, as long as the damage is there. */
    char *kept = GC_debug_malloc(100, "cycle.c", 5), *large = GC_debug_malloc_atomic(100000, "cycle.c", 6);
    kept[104] = 1;
    large[100000] = large[100007] = 1;
    for (int i = 0; i < 2; i++) {
        captured_begin();
        GC_gcollect();
        text = captured_end();
        CHECK(strstr(text, "GC_check_heap_block: found 1 smashed heap objects:\n") ||
              strstr(text, "GC_check_heap_block: found 2 smashed heap objects:\n"));
        CHECK(strstr(text, "(cycle.c:5, sz= 100)") && strstr(text, "(cycle.c:6, sz= 100000)"));
    }
    GC_reachable_here(kept);
    GC_reachable_here(large);
    freed(kept);
    freed(large);
    captured_begin();
    collect();
    CHECK(captured_end()[0] == 0);
}

/* Memory of dead debug objects, pointer-free ones too, is given to plain objects without a false alarm. */
static void reused(void) {
    for (int i = 0; i < 20000; i++) {
        *(char *)GC_debug_malloc_atomic(40, HERE) = 1;
    }
    captured_begin();
    collect();
    char *last = 0;
    for (int i = 0; i < 40000; i++) {
        last = GC_malloc_atomic(70);
        memset(last, i, 70);
    }
    collect();
    CHECK(captured_end()[0] == 0);
    GC_reachable_here(last);
}

static int ran, sum;
static void finalizer(void *object, void *data) {
    CHECK(*(int *)object == 4711 && data == &sum);
    ran++;
}
static void other(void *object, void *data) {
    (void)object;
    (void)data;
}
typedef void registering(void *, GC_finalization_proc, void *, GC_finalization_proc *, void **);
static registering *registering_now;
static void make(void) {
    for (int i = 0; i < 100; i++) {
        int *p = GC_debug_malloc(8, HERE);
        *p = 4711;
        GC_finalization_proc old = other;
        void *old_data = &sum;
        registering_now(p, other, &ran, &old, &old_data);
        CHECK(old == 0 && old_data == 0);
        registering_now(p, finalizer, &sum, &old, &old_data);
        CHECK(old == other && old_data == &ran);
    }
}
static void finalizers(void) {
    registering *all[] = {GC_debug_register_finalizer, GC_debug_register_finalizer_ignore_self,
                          GC_debug_register_finalizer_no_order, GC_debug_register_finalizer_unreachable};
    for (int i = 0; i < 4; i++) {
        registering_now = all[i];
        ran = 0;
        far_away(make);
        collect();
        collect();
        CHECK(ran >= 90);
    }
    int *p = GC_debug_malloc(8, HERE), outside;
    GC_finalization_proc old = other;
    void *old_data = &sum;
    GC_debug_register_finalizer(&outside, finalizer, 0, &old, &old_data);
    CHECK(old == 0 && old_data == 0);
    captured_begin();
    GC_debug_register_finalizer((char *)p + 1, 0, 0, 0, 0);
    CHECK(strstr(captured_end(), "called with non-base-pointer"));
    GC_register_finalizer(GC_base(p), other, 0, 0, 0);
    captured_begin();
    GC_debug_register_finalizer(p, 0, 0, &old, &old_data);
    CHECK(strstr(captured_end(), "had a non-debug finalizer"));
    GC_reachable_here(p);
}

static int bad;
static void note(void *p) {
    (void)p;
    bad++;
}

int main(void) {
    GC_init();
    CHECK(GC_debug_header_size == GC_get_debug_header_size() && GC_debug_header_size % 16 == 0);
    all_functions();
    resizing();
    damage();
    reused();
    finalizers();
    GC_is_visible_print_proc = note;
    void **place = GC_debug_malloc(16, HERE), *value = GC_debug_malloc(16, HERE);
    GC_debug_ptr_store_and_dirty(place, value);
    CHECK(*place == value && bad == 0);
    captured_begin();
    CHECK(GC_debug_malloc((size_t)1 << 60, "huge.c", 3) == 0);
    CHECK(strstr(captured_end(), "GC_debug_malloc(1152921504606846976) returning NULL (huge.c:3)"));
    captured_begin();
    CHECK(GC_debug_realloc(GC_debug_malloc_atomic(8, HERE), (size_t)1 << 60, "huge.c", 4) == 0);
    CHECK(strstr(captured_end(), "GC_debug_malloc_atomic(1152921504606846976) returning NULL (huge.c:4)"));
    return 0;
}
