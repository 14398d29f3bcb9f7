/* Marks, the walk over all objects, and what a client may push in a cycle. */
#include "check.h"
#include <gc/gc_mark.h>
#include <gc/gc_inline.h>

#define N 100

static void *hidden[2 * N];
static int died, in_cycle, found_marked, eager;
static GC_push_other_roots_proc first;
static void finalizer(void *object, void *data) {
    (void)object;
    (void)data;
    died++;
}
static void *reveal(int i) { return (void *)~(GC_word)hidden[i]; }
static void *words[3 * N];
static void push(void) {
    first();
    if (!in_cycle) return;
    for (int i = 0; i < 10; i++) {
        if (!GC_is_marked(reveal(i))) found_marked++;
        GC_set_mark_bit(reveal(i));
        CHECK(GC_is_marked(reveal(i)) == 1);
    }
    for (int i = 0; i < N; i++) words[i] = reveal(i);
    if (eager == 0) GC_push_all(words, words + N);
    if (eager == 1) GC_push_all_eager(words, words + N);
    if (eager == 2) GC_push_conditional(words, words + N, 1);
    GC_push_finalizer_structures();
}
static void make(void) {
    for (int i = 0; i < N; i++) {
        void **p = GC_malloc(32);
        p[0] = GC_malloc(32);
        GC_register_finalizer_no_order(p, finalizer, 0, 0, 0);
        hidden[i] = (void *)~(GC_word)p;
    }
}
struct walk {
    size_t objects, bytes;
    void *wanted;
    int found;
};
static void visit(void *object, size_t bytes, void *data) {
    struct walk *walk = data;
    CHECK(bytes >= 16 && (GC_word)object % 16 == 0);
    walk->objects++;
    walk->bytes += bytes;
    if (object == walk->wanted) walk->found++;
}
static void *enumerate(void *walk) {
    GC_enumerate_reachable_objects_inner(visit, walk);
    return 0;
}
static void *clear_and_ask(void *object) {
    GC_clear_mark_bit(object);
    int cleared = GC_is_marked(object);
    GC_set_mark_bit(object);
    CHECK(GC_is_marked(object) == 1);
    return (void *)(long)cleared;
}

int main(void) {
    GC_init();
    /* Addresses in static data must not be seen: all of them are complements, and words is excluded. */
    GC_exclude_static_roots(words, words + 3 * N);
    first = GC_get_push_other_roots();
    GC_set_push_other_roots(push);
    for (eager = 0; eager < 3; eager++) {
        died = 0;
        far_away(make);
        in_cycle = 1;
        collect();
        collect();
        in_cycle = 0;
        memset(words, 0, sizeof words);
        CHECK(died == 0);
        collect();
        collect();
        CHECK(died >= N - 10);
    }

    void *object = GC_malloc(100);
    CHECK((GC_word)object >= (GC_word)GC_least_plausible_heap_addr);
    CHECK((GC_word)object <= (GC_word)GC_greatest_plausible_heap_addr);
    GC_gcollect();
    struct walk walk = {0, 0, object, 0};
    GC_call_with_alloc_lock(enumerate, &walk);
    CHECK(walk.found == 1 && walk.objects >= 1 && walk.bytes >= 100);
    GC_alloc_lock();
    clear_and_ask(object);
    CHECK(GC_is_marked(object) == 1);
    GC_alloc_unlock();
    CHECK(GC_clear_stack(object) == object && GC_clear_stack(0) == 0);
    GC_noop1((GC_word)object);
    return 0;
}
