/* The functions that a program sets, and what it may ask back. */
#include "check.h"
#include <gc/gc_mark.h>
#include <signal.h>
#include <unistd.h>

static void abort_function(const char *message) { fprintf(stderr, "told: %s\n", message ? message : "(nothing)"); }
static void wrong(void) {
    char not_aligned[32];
    GC_general_register_disappearing_link((void **)(((GC_word)not_aligned & ~(GC_word)7) + 1), not_aligned);
}
static void wrong_call(void) {
    GC_init();
    GC_set_abort_func(abort_function);
    CHECK(GC_get_abort_func() == abort_function);
    wrong();
}
static void no_memory(void) {
    GC_init();
    GC_set_abort_func(abort_function);
    GC_abort_on_oom();
}
static void loops(void) {
    setenv("GC_LOOP_ON_ABORT", "1", 1);
    GC_init();
    alarm(1);
    wrong();
}

static int warned, resized, awaited, finalized;
static void warn(char *format, GC_word number) {
    (void)number;
    CHECK(strstr(format, "%") && strncmp(format, "GC Warning: ", 12) == 0);
    warned++;
}
static void resize(GC_word bytes) {
    CHECK(bytes > 0);
    resized++;
}
static void await(void *object) {
    CHECK(*(long *)object == 31 && finalized == 0);
    awaited++;
}
static void finalizer(void *object, void *data) {
    (void)data;
    CHECK(*(long *)object == 31);
    finalized++;
}
static void make(void) {
    for (int i = 0; i < 50; i++) {
        volatile long *p = GC_malloc(16);
        *p = 31;
        GC_register_finalizer_ignore_self((void *)p, finalizer, 0, 0, 0);
    }
}
static void notifier(void) {}
static void *oom(size_t bytes) {
    (void)bytes;
    return 0;
}

static void no_choice_of_signals(void) {
    GC_set_suspend_signal(-1);
    GC_set_thr_restart_signal(-1);
    GC_init();
    CHECK(GC_get_suspend_signal() == SIGPWR && GC_get_thr_restart_signal() == SIGXCPU);
    GC_gcollect();
}

int main(void) {
    const char *text;
    CHECK(ABORTED(in_child(wrong_call, &text)) && strstr(text, "told: Bad arg to GC_general_register_disappearing_link"));
    int status = in_child(no_memory, &text);
    CHECK((status & 0x7f) == 0 && status >> 8 == 1 && strstr(text, "told: (nothing)"));
    /* A debugger has time. */
    CHECK((in_child(loops, 0) & 0x7f) == SIGALRM);

    GC_set_markers_count(2);
    GC_set_dont_precollect(1);
    CHECK(GC_get_dont_precollect() == 1);
    GC_set_suspend_signal(SIGUSR1);
    GC_set_thr_restart_signal(SIGUSR2);
    CHECK(in_child(no_choice_of_signals, 0) == 0);
    GC_init();
    GC_start_mark_threads();
    CHECK(GC_get_suspend_signal() == SIGUSR1 && GC_get_thr_restart_signal() == SIGUSR2);
    CHECK(GC_get_parallel() <= 1 && GC_parallel == GC_get_parallel());
    CHECK(GC_is_init_called() && GC_get_version() == 0x80202);

    sigset_t all, now;
    sigfillset(&all);
    CHECK(GC_pthread_sigmask(SIG_BLOCK, &all, 0) == 0 && GC_pthread_sigmask(SIG_BLOCK, 0, &now) == 0);
    CHECK(!sigismember(&now, SIGUSR1) && sigismember(&now, SIGHUP));
    CHECK(GC_pthread_sigmask(SIG_UNBLOCK, &all, 0) == 0);

    GC_warn_proc first = GC_get_warn_proc();
    CHECK(first != 0);
    GC_set_warn_proc(warn);
    CHECK(GC_get_warn_proc() == warn);
    GC_oom_func first_oom = GC_get_oom_fn();
    GC_set_oom_fn(oom);
    CHECK(first_oom != 0 && GC_get_oom_fn() == oom && GC_oom_fn == oom);
    CHECK(GC_malloc((size_t)1 << 50) == 0 && warned > 0);
    GC_set_warn_proc(GC_ignore_warn_proc);
    captured_begin();
    CHECK(GC_malloc((size_t)1 << 50) == 0);
    CHECK(captured_end()[0] == 0);
    GC_set_oom_fn(first_oom);

    CHECK(GC_get_on_heap_resize() == 0);
    GC_set_on_heap_resize(resize);
    CHECK(GC_get_on_heap_resize() == resize && GC_on_heap_resize == resize);
    char **list = 0;
    for (int i = 0; i < 200; i++) {
        char **p = GC_malloc(100000);
        *p = (char *)list;
        list = p;
    }
    CHECK(resized > 0 && opaque(list));
    GC_set_on_heap_resize(0);

    CHECK(GC_get_await_finalize_proc() == 0);
    GC_set_await_finalize_proc(await);
    CHECK(GC_get_await_finalize_proc() == await);
    CHECK(GC_get_finalize_on_demand() == 0 && GC_get_finalizer_notifier() == 0);
    GC_set_finalize_on_demand(1);
    GC_set_finalizer_notifier(notifier);
    CHECK(GC_get_finalize_on_demand() == 1 && GC_get_finalizer_notifier() == notifier);
    far_away(make);
    collect();
    CHECK(awaited >= 45 && finalized == 0 && GC_should_invoke_finalizers());
    CHECK(GC_invoke_finalizers() == awaited && finalized == awaited && !GC_should_invoke_finalizers());
    GC_set_await_finalize_proc(0);

    GC_enable_incremental();
    GC_gcollect();
    GC_deinit();
    return 0;
}
