/* The variables: first values, and that what a program stores is seen by the library and the other way round. The program is linked
 * in the ordinary way, so that some of them are copied into it. */
#include "check.h"
#include <gc/gc_mark.h>

extern int GC_dont_expand, GC_find_leak, GC_no_dls, GC_use_entire_heap;
extern void (*GC_on_abort)(const char *);
extern GC_push_other_roots_proc GC_push_other_roots;

static int pushed, resized, notified;
static void (*first_push)(void);
static void push(void) {
    pushed++;
    first_push();
}
static void resize(GC_word bytes) {
    (void)bytes;
    resized++;
}
static void notify(void) { notified++; }
static void nothing(void *object, void *data) {
    (void)object;
    (void)data;
}
static void make_garbage(void) {
    for (int i = 0; i < 100; i++) GC_register_finalizer_no_order(GC_malloc(16), nothing, 0, 0, 0);
}
static void *last_resort(size_t bytes) {
    static char reserve[64];
    CHECK(bytes > 1ul << 40);
    return reserve;
}

int main(void) {
    CHECK(GC_all_interior_pointers == 1);
    CHECK(GC_dont_expand == 0 && GC_dont_gc == 0 && GC_dont_precollect == 0);
    CHECK(GC_finalize_on_demand == 0 && GC_find_leak == 0 && GC_full_freq == 19);
    CHECK(GC_java_finalization == 1 && GC_no_dls == 0 && GC_use_entire_heap == 0);
    CHECK(GC_finalizer_notifier == 0 && GC_free_space_divisor == 3 && GC_gc_no == 0);
    CHECK(GC_max_retries == 0 && GC_non_gc_bytes == 0 && GC_on_heap_resize == 0);
    CHECK(GC_on_abort != 0 && GC_oom_fn != 0 && GC_push_other_roots != 0);
    CHECK(GC_time_limit == GC_TIME_UNLIMITED && GC_stackbottom == 0);
    CHECK(GC_same_obj_print_proc && GC_is_visible_print_proc && GC_is_valid_displacement_print_proc);

    GC_java_finalization = 0;
    CHECK(GC_get_java_finalization() == 0);
    GC_set_java_finalization(1);
    CHECK(GC_java_finalization == 1);
    GC_set_no_dls(1);
    CHECK(GC_no_dls == 1);
    GC_no_dls = 0;
    CHECK(GC_get_no_dls() == 0);
    GC_free_space_divisor = 5;
    CHECK(GC_get_free_space_divisor() == 5);
    GC_dont_gc = 1;
    CHECK(GC_is_disabled());
    GC_dont_gc = 0;

    GC_init();
    CHECK(GC_stackbottom != 0);
    char here;
    CHECK(GC_stackbottom > &here);

    first_push = GC_push_other_roots;
    CHECK(GC_get_push_other_roots() == first_push);
    GC_push_other_roots = push;
    CHECK(GC_get_push_other_roots() == push);
    GC_word before = GC_gc_no;
    GC_gcollect();
    CHECK(GC_gc_no > before && GC_gc_no == GC_get_gc_no());
    CHECK(pushed > 0);

    before = GC_gc_no;
    GC_dont_gc = 1;
    GC_gcollect();
    CHECK(GC_gc_no == before);
    GC_disable();
    CHECK(GC_dont_gc == 2);
    GC_enable();
    CHECK(GC_dont_gc == 1);
    GC_dont_gc = 0;
    GC_gcollect();
    CHECK(GC_gc_no > before);

    GC_on_heap_resize = resize;
    CHECK(GC_get_on_heap_resize() == resize);
    GC_expand_hp(64 << 20);
    char **list = 0;
    for (int i = 0; i < 96; i++) {
        char **block = GC_malloc(1 << 20);
        block[0] = (char *)list;
        list = block;
    }
    CHECK(opaque(list) && resized > 0);

    GC_finalize_on_demand = 1;
    GC_finalizer_notifier = notify;
    far_away(make_garbage);
    collect();
    CHECK(notified > 0);
    CHECK(GC_should_invoke_finalizers());
    CHECK(GC_invoke_finalizers() > 0);

    GC_oom_fn = last_resort;
    CHECK(GC_get_oom_fn() == last_resort);
    GC_set_warn_proc(GC_ignore_warn_proc);
    CHECK(opaque(GC_malloc(1ul << 46)) == last_resort(1ul << 46));
    return 0;
}
