/* Thirty functions of the interface, drawn by lot, at the edges of what their documentation says: nothing, nought and far too much, before
 * GC_init, from a thread that is not registered, and in a finalizer. */
#include "check.h"
#include <errno.h>
#include <gc/gc_disclaim.h>
#include <gc/gc_mark.h>
#include <pthread.h>
#include <signal.h>

/* Exported, and declared nowhere that is installed. */
extern void GC_incr_bytes_allocd(size_t), GC_incr_bytes_freed(size_t), GC_printf(const char *, ...);

enum { PTRFREE = 0, NORMAL = 1 };
/* Hidden from the compiler, which would warn of it. */
static volatile size_t huge_size = ~(size_t)0;

static void *returns(void *argument) { return argument; }
static void event(GC_EventType type) { (void)type; }
static GC_ToggleRefStatus toggle(void *object) {
    (void)object;
    return GC_TOGGLE_REF_STRONG;
}

/* Settings may be asked for and made before GC_init, and hold afterwards. */
static void before_init(void) {
    CHECK(GC_is_init_called() == 0);
    CHECK(GC_get_allocd_bytes_per_finalizer() == 10000 && GC_get_disable_automatic_collection() == 0);
    CHECK(GC_get_full_freq() == 19 && GC_get_no_dls() == 0 && GC_get_on_collection_event() == 0 && GC_get_toggleref_func() == 0);
    CHECK(GC_get_rate() > 0 && GC_is_incremental_mode() == 0 && GC_get_total_bytes() == 0);
    GC_set_finalize_on_demand(1);
    GC_set_dont_precollect(1);
    GC_set_no_dls(0);
    GC_set_on_collection_event(event);
    GC_set_toggleref_func(toggle);
    GC_disable();
    CHECK(GC_is_disabled());
    GC_enable();
    CHECK(GC_invoke_finalizers() == 0);
    CHECK(GC_is_init_called() == 0);
    GC_init();
    CHECK(GC_get_finalize_on_demand() == 1 && GC_get_dont_precollect() == 1);
    CHECK(GC_get_on_collection_event() == event && GC_get_toggleref_func() == toggle);
    GC_set_on_collection_event(0);
    GC_set_toggleref_func(0);
    CHECK(GC_get_on_collection_event() == 0 && GC_get_toggleref_func() == 0);
}
static void lock_before_init(void) {
    int local;
    GC_init();
    CHECK(GC_call_with_alloc_lock(returns, &local) == &local && GC_call_with_alloc_lock(returns, 0) == 0);
}

static void *refuses(size_t bytes) {
    (void)bytes;
    return 0;
}
static void sizes(void) {
    GC_init();
    GC_set_warn_proc(GC_ignore_warn_proc);
    GC_set_oom_fn(refuses);
    char *p = GC_realloc(0, 30), *q;
    CHECK(p && GC_size(p) >= 30 && p[0] == 0 && p[29] == 0);
    p[29] = 7;
    CHECK(GC_realloc(p, huge_size) == 0 && GC_realloc(p, (size_t)1 << 50) == 0 && p[29] == 7);
    q = GC_realloc(p, 100000);
    CHECK(q && q[29] == 7 && q[30] == 0 && q[99999] == 0);
    q = GC_realloc(q, 30);
    CHECK(q && q[29] == 7);
    CHECK(GC_realloc(q, 0) == 0);
    CHECK((p = GC_realloc(0, 0)) != 0 && GC_size(p) > 0);

    CHECK((p = GC_generic_malloc_ignore_off_page(0, NORMAL)) != 0 && GC_base(p) == p);
    CHECK(GC_generic_malloc_ignore_off_page(huge_size, NORMAL) == 0);
    CHECK(GC_generic_malloc_ignore_off_page((size_t)1 << 50, PTRFREE) == 0);
    CHECK((p = GC_generic_malloc_ignore_off_page(300000, PTRFREE)) != 0);
    size_t bytes = 0;
    CHECK(GC_get_kind_and_size(p, &bytes) == PTRFREE && bytes >= 300000 && GC_get_kind_and_size(p, 0) == PTRFREE);

    for (size_t alignment = 1; alignment <= 4096; alignment *= 2) {
        CHECK((p = GC_memalign(alignment, 0)) != 0 && (uintptr_t)p % alignment == 0);
        CHECK((p = GC_memalign(alignment, 10)) != 0 && (uintptr_t)p % alignment == 0 && p[9] == 0);
        CHECK((p = GC_memalign(alignment, 50000)) != 0 && (uintptr_t)p % alignment == 0 && p[49999] == 0);
        CHECK(GC_memalign(alignment, huge_size) == 0 && GC_memalign(alignment, huge_size - alignment) == 0);
    }
}

static int disclaimed;
static void disclaim(void *object, void *data) {
    CHECK(data == &disclaimed && object);
    disclaimed++;
}
static const struct GC_finalizer_closure closure = {disclaim, &disclaimed};
static NOINLINE void make_finalized(void) {
    char *p = GC_finalized_malloc(0, &closure);
    CHECK(p);
    p = GC_finalized_malloc(1, &closure);
    CHECK(p && *p == 0);
    CHECK(GC_finalized_malloc((size_t)1 << 50, &closure) == 0);
}
static void finalized(void) {
    GC_init();
    GC_init_finalized_malloc();
    GC_set_warn_proc(GC_ignore_warn_proc);
    GC_set_oom_fn(refuses);
    far_away(make_finalized);
    for (int i = 0; i < 3; i++) collect();
    for (int i = 0; i < 1000; i++) GC_finalized_malloc(1, &closure);
    CHECK(disclaimed >= 1);
}

/* In a finalizer, GC_invoke_finalizers runs the others. */
static int depth, deepest, ran;
static void finalizer(void *object, void *data) {
    (void)object;
    CHECK(data == &ran);
    ran++;
    if (++depth > deepest) deepest = depth;
    CHECK(GC_malloc(10) && GC_realloc(0, 10) && GC_memalign(64, 10));
    if (depth == 1) GC_invoke_finalizers();
    GC_gcollect();
    depth--;
}
static NOINLINE void make_finalizable(void) {
    for (int i = 0; i < 20; i++) GC_register_finalizer_no_order(GC_malloc(8), finalizer, &ran, 0, 0);
}
static void in_finalizer(void) {
    GC_set_finalize_on_demand(1);
    GC_init();
    far_away(make_finalizable);
    collect();
    CHECK(ran == 0 && GC_should_invoke_finalizers());
    int first = GC_invoke_finalizers();
    fprintf(stderr, "%d returned, %d ran, %d deep\n", first, ran, deepest);
    CHECK(ran >= 15 && deepest == 2);
    CHECK(GC_invoke_finalizers() == 0 && GC_should_invoke_finalizers() == 0);
}

static void counters(void) {
    GC_init();
    size_t total = GC_get_total_bytes();
    GC_incr_bytes_allocd(0);
    GC_incr_bytes_freed(0);
    CHECK(GC_get_total_bytes() == total);
    GC_incr_bytes_allocd(12345);
    CHECK(GC_get_total_bytes() == total + 12345);
    size_t freed = GC_get_expl_freed_bytes_since_gc();
    GC_incr_bytes_freed(100);
    CHECK(GC_get_expl_freed_bytes_since_gc() == freed + 100);

    GC_disable();
    GC_disable();
    GC_enable();
    CHECK(GC_is_disabled());
    GC_word before = GC_get_gc_no();
    GC_gcollect();
    CHECK(GC_get_gc_no() == before);
    GC_enable();
    CHECK(!GC_is_disabled());

    void **free_list = GC_new_free_list();
    CHECK(free_list && *free_list == 0);
    free_list = GC_new_free_list_inner();
    CHECK(free_list && *free_list == 0);

    void *link = 0, *p = GC_malloc(16);
    CHECK(GC_unregister_long_link(&link) == 0 && GC_unregister_long_link((void **)((char *)&link + 1)) == 0);
    link = p;
    CHECK(GC_register_long_link(&link, p) == GC_SUCCESS && GC_register_long_link(&link, p) == GC_DUPLICATE);
    CHECK(GC_unregister_long_link(&link) == 1 && GC_unregister_long_link(&link) == 0 && link == p);

    /* Clearing what is clear, setting what is set. (Outside of a cycle Larder's mark says that an object is allocated, and is not cleared.) */
    GC_gcollect();
    GC_clear_mark_bit(p);
    GC_clear_mark_bit(p);
    GC_set_mark_bit(p);
    GC_set_mark_bit(p);
    CHECK(GC_is_marked(p));
}

static void push_nothing(void) {
    static char range[16];
    GC_push_all_eager(range, range);
    GC_push_all_eager(range + 3, range + 5);
    GC_push_all_eager(range + 8, range);
}
static void pushes(void) {
    GC_init();
    GC_push_other_roots_proc old = GC_get_push_other_roots();
    (void)old;
    GC_set_push_other_roots(push_nothing);
    GC_gcollect();
}

static void masks(void) {
    GC_init();
    GC_allow_register_threads();
    GC_allow_register_threads();
    sigset_t set, old;
    CHECK(GC_pthread_sigmask(SIG_BLOCK, 0, &old) == 0 && !sigismember(&old, SIGUSR1));
    CHECK(GC_pthread_sigmask(SIG_BLOCK, 0, 0) == 0);
    sigfillset(&set);
    CHECK(GC_pthread_sigmask(-1, &set, 0) == EINVAL);
    CHECK(GC_pthread_sigmask(SIG_SETMASK, &set, 0) == 0);
    CHECK(pthread_sigmask(SIG_SETMASK, 0, &old) == 0 && sigismember(&old, SIGUSR1) == 1);
    CHECK(sigismember(&old, GC_get_suspend_signal()) == 0);
    CHECK(GC_pthread_sigmask(SIG_UNBLOCK, &set, 0) == 0);
}

/* A thread that is not registered: what neither allocates nor needs its stack works. */
static void *foreign(void *argument) {
    struct GC_stack_base base;
    CHECK(GC_thread_is_registered() == 0);
    CHECK(GC_call_with_alloc_lock(returns, argument) == argument);
    CHECK(GC_get_total_bytes() > 0 && GC_get_kind_and_size(argument, 0) == NORMAL);
    CHECK(GC_invoke_finalizers() == 0 && GC_is_incremental_mode() >= 0);
    GC_disable();
    GC_enable();
    /* Registered, it has a bottom of its stack, which is the one that it said. */
    CHECK(GC_get_stack_base(&base) == GC_SUCCESS && GC_register_my_thread(&base) == GC_SUCCESS);
    CHECK(GC_register_my_thread(&base) == GC_DUPLICATE);
    struct GC_stack_base own = {0};
    CHECK(GC_get_my_stackbottom(&own) != 0 && own.mem_base == base.mem_base);
    CHECK((char *)own.mem_base > (char *)&own);
    CHECK(GC_unregister_my_thread() == GC_SUCCESS);
    return 0;
}
static void threads(void) {
    GC_init();
    GC_allow_register_threads();
    pthread_t thread;
    void *object = GC_malloc(10);
    CHECK(pthread_create(&thread, 0, foreign, object) == 0 && pthread_join(thread, 0) == 0);
    struct GC_stack_base own = {0};
    CHECK(GC_get_my_stackbottom(&own) != 0 && (char *)own.mem_base > (char *)&own);
    CHECK(object);
}

/* Text without arguments, none, and more than fits a line. Nothing on standard output but from GC_printf in libgc. */
static void text(void) {
    static char log_name[] = "/tmp/larder-edges-XXXXXX", much[5000];
    CHECK(mkstemp(log_name) >= 0);
    setenv("GC_LOG_FILE", log_name, 1);
    GC_init();
    memset(much, 'x', sizeof much - 1);
    GC_printf("%s", "");
    GC_printf("plain %d%%\n", -5);
    GC_printf("%.900s\n", much);
    remove(log_name);
}

int main(void) {
    const char *said;
    static void (*const all[])(void) = {before_init, lock_before_init, sizes, finalized, counters, pushes, masks, threads, text};
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++) {
        int status = in_child(all[i], &said);
        if (status) fprintf(stderr, "part %u (status %x): %s\n", i, status, said);
        CHECK(status == 0);
    }
    int status = in_child(in_finalizer, &said);
    if (status) fprintf(stderr, "%s\n", said);
    CHECK(status == 0);
    return 0;
}
