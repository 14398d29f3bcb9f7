// xtask: archive
/* What a program chooses by defining names before it includes gc.h, and the macros that GC_DEBUG changes. */
#define GC_DONT_EXPAND
#define GC_FORCE_UNMAP_ON_GCOLLECT
#define GC_MAX_RETRIES 3
#define GC_ALLOCD_BYTES_PER_FINALIZER 5000
#define GC_FREE_SPACE_DIVISOR 6
#define GC_FULL_FREQ 7
#define GC_TIME_LIMIT 80
#define GC_MARKERS 1
#define GC_SIG_SUSPEND 12
#define GC_SIG_THR_RESTART 10
#define GC_MAXIMUM_HEAP_SIZE (64 << 20)
#define GC_INITIAL_HEAP_SIZE (1 << 20)
#define GC_IGNORE_WARN
#define GC_DEBUG
#include "check.h"

int main(void) {
    GC_INIT();
    CHECK(GC_get_dont_expand() == 1 && GC_get_force_unmap_on_gcollect() == 1 && GC_get_max_retries() == 3);
    CHECK(GC_get_allocd_bytes_per_finalizer() == 5000 && GC_get_free_space_divisor() == 6 && GC_get_full_freq() == 7);
    CHECK(GC_get_time_limit() == 80 && GC_get_parallel() == 0);
    CHECK(GC_get_suspend_signal() == 12 && GC_get_thr_restart_signal() == 10);
    CHECK(GC_get_warn_proc() == GC_ignore_warn_proc);
    CHECK(GC_VERSION_MAJOR == 8 && GC_VERSION_MINOR == 2);

    struct pair {
        struct pair *next;
        int number;
    } *p = GC_NEW(struct pair), *q = GC_NEW_ATOMIC(struct pair), *u = GC_NEW_UNCOLLECTABLE(struct pair);
    CHECK((void *)p != GC_base(p) && (void *)q != GC_base(q) && (void *)u != GC_base(u));
    GC_PTR_STORE(&p->next, q);
    GC_PTR_STORE_AND_DIRTY(&p->next, q);
    GC_END_STUBBORN_CHANGE(p);
    CHECK(p->next == q && GC_PTR_ADD(p, 0) == p);
    char *text = GC_STRDUP("text");
    CHECK(*GC_PRE_INCR(text, 1) == 'e' && *GC_POST_INCR(text) == 'e' && *GC_POST_DECR(text) == 'x' && *text == 'e');
    CHECK(strcmp(GC_STRNDUP("text", 1), "t") == 0);
    void *link = (void *)GC_HIDE_POINTER(p);
    CHECK(GC_GENERAL_REGISTER_DISAPPEARING_LINK(&link, p) == GC_SUCCESS);
    CHECK(GC_REVEAL_POINTER(link) == p && GC_unregister_disappearing_link(&link) == 1);
    CHECK(GC_REGISTER_LONG_LINK(&link, p) == GC_SUCCESS && GC_unregister_long_link(&link) == 1);
    GC_REGISTER_DISPLACEMENT(8);
    p = GC_REALLOC(p, 100);
    GC_FREE(p);
    GC_FREE(u);
    GC_FREE(GC_MALLOC_IGNORE_OFF_PAGE(10));
    GC_FREE(GC_MALLOC_ATOMIC_IGNORE_OFF_PAGE(10));
    GC_FREE(GC_MALLOC_ATOMIC_UNCOLLECTABLE(10));
    captured_begin();
    GC_gcollect();
    CHECK(captured_end()[0] == 0);
    return 0;
}
