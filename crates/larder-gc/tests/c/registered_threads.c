/* Threads that others created: registered while they use the heap. And stack bases. */
#include "lists.h"
#include <gc/gc_mark.h>
#include <pthread.h>
#include <signal.h>

static void *with_base(struct GC_stack_base *base, void *unused) {
    (void)unused;
    CHECK(GC_register_my_thread(base) == GC_SUCCESS);
    GC_word *list = make_list(300);
    GC_gcollect();
    CHECK(length_of(list) == 300);
    CHECK(GC_unregister_my_thread() == GC_SUCCESS);
    return 0;
}
static void *foreign(void *unused) {
    (void)unused;
    CHECK(!GC_thread_is_registered());
    GC_call_with_stack_base(with_base, 0);
    CHECK(!GC_thread_is_registered());
    struct GC_stack_base base;
    CHECK(GC_get_stack_base(&base) == GC_SUCCESS);
    CHECK((char *)base.mem_base > (char *)&base);
    CHECK(GC_register_my_thread(&base) == GC_SUCCESS);
    CHECK(GC_register_my_thread(&base) == GC_DUPLICATE);
    CHECK(GC_thread_is_registered());
    struct GC_stack_base known;
    void *handle = GC_get_my_stackbottom(&known);
    CHECK(handle != 0 && known.mem_base == base.mem_base);
    GC_word *list = make_list(300);
    for (int i = 0; i < 50; i++) make_list(1000);
    GC_gcollect();
    CHECK(length_of(list) == 300);
    CHECK(GC_unregister_my_thread() == GC_SUCCESS);
    CHECK(!GC_thread_is_registered());
    return 0;
}

/* The caller holds the lock. */
static void *move_base(void *to) {
    static struct GC_stack_base was;
    struct GC_stack_base base = {to ? to : was.mem_base};
    if (to) was.mem_base = GC_stackbottom;
    GC_set_stackbottom(0, &base);
    CHECK(GC_stackbottom == base.mem_base);
    return 0;
}

int main(void) {
    CHECK(GC_get_suspend_signal() == SIGPWR && GC_get_thr_restart_signal() == SIGXCPU);
    GC_init();
    CHECK(GC_thread_is_registered());
    struct GC_stack_base base, known;
    CHECK(GC_get_stack_base(&base) == GC_SUCCESS && (char *)base.mem_base > (char *)&base);
    GC_allow_register_threads();
    CHECK(GC_register_my_thread(&base) == GC_DUPLICATE);
    CHECK(GC_get_my_stackbottom(&known) != 0 && (char *)known.mem_base > (char *)&base);
    char *elsewhere = (char *)known.mem_base - 64;
    GC_call_with_alloc_lock(move_base, elsewhere);
    CHECK(GC_get_my_stackbottom(&base) != 0 && base.mem_base == elsewhere);
    GC_call_with_alloc_lock(move_base, 0);
    CHECK(GC_get_my_stackbottom(&base) != 0 && base.mem_base == known.mem_base);
    pthread_t t[8];
    for (int i = 0; i < 8; i++) CHECK(pthread_create(&t[i], 0, foreign, 0) == 0);
    for (int i = 0; i < 20; i++) make_list(2000);
    for (int i = 0; i < 8; i++) CHECK(pthread_join(t[i], 0) == 0);
    GC_gcollect();
    return 0;
}
