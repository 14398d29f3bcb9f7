/* The order of collection events, the start callback, root pushing and finalizers. */
#include "check.h"
#include <gc/gc_mark.h>

enum { START = 100, PUSH, FINALIZER, NOTIFIER };
static int sequence[100], n;
static void note(int what) {
    if (n < 100) sequence[n++] = what;
}
static void event(GC_EventType e) { note(e); }
static void start(void) { note(START); }
static GC_push_other_roots_proc other;
static void push(void) {
    note(PUSH);
    other();
}
static void finalizer(void *object, void *data) {
    (void)object;
    (void)data;
    note(FINALIZER);
}
static void notifier(void) { note(NOTIFIER); }
static void garbage(void) { GC_register_finalizer(GC_malloc(64), finalizer, 0, 0, 0); }
static void expect(int last) {
    const int wanted[] = {GC_EVENT_START, START, GC_EVENT_PRE_STOP_WORLD, GC_EVENT_POST_STOP_WORLD,
                          GC_EVENT_MARK_START, PUSH, GC_EVENT_MARK_END, GC_EVENT_PRE_START_WORLD,
                          GC_EVENT_POST_START_WORLD, GC_EVENT_RECLAIM_START, GC_EVENT_RECLAIM_END, GC_EVENT_END};
    int count = sizeof wanted / sizeof *wanted;
    CHECK(n == count + (last != 0));
    for (int i = 0; i < count; i++) CHECK(sequence[i] == wanted[i]);
    CHECK(!last || sequence[count] == last);
    n = 0;
}

int main(void) {
    GC_init();
    CHECK(GC_get_on_collection_event() == 0 && GC_get_start_callback() == 0);
    GC_set_on_collection_event(event);
    GC_set_start_callback(start);
    other = GC_get_push_other_roots();
    CHECK(other != 0);
    GC_set_push_other_roots(push);
    CHECK(GC_get_on_collection_event() == event && GC_get_start_callback() == start);
    collect();
    expect(0);
    far_away(garbage);
    collect();
    expect(FINALIZER);
    GC_set_finalize_on_demand(1);
    GC_set_finalizer_notifier(notifier);
    far_away(garbage);
    collect();
    expect(NOTIFIER);
    CHECK(GC_invoke_finalizers() == 1 && sequence[0] == FINALIZER);
    n = 0;
    GC_disable();
    collect();
    CHECK(n == 0 && GC_try_to_collect(GC_get_stop_func()) == 0);
    GC_enable();
    CHECK(GC_try_to_collect(GC_get_stop_func()) == 1);
    return 0;
}
