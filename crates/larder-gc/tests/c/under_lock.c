/* What takes no lock in libgc may be called by a function that runs with the allocation lock: of GC_call_with_alloc_lock, between
 * GC_alloc_lock and GC_alloc_unlock, or of GC_set_on_collection_event. The setters want the lock even. */
#include "lists.h"
#include <gc/gc_mark.h>
#include <pthread.h>

static void *links[2];
static int in_program;
static GC_word registered[8];
static void nothing(void *object, void *data) {
    (void)object;
    (void)data;
}

static int is_static[3];
static void ask(int *answers) {
    int local;
    answers[0] = GC_is_tmp_root(&in_program) != 0;
    answers[1] = GC_is_tmp_root(registered) != 0;
    answers[2] = GC_is_tmp_root(&local) != 0;
}

static void dump(void) {
    int answers[3];
    GC_dump_named("under the lock");
    GC_dump_finalization();
    ask(answers);
    CHECK(memcmp(answers, is_static, sizeof answers) == 0);
}

static void set(void) {
    /* Another value than what the collector was told last. */
    GC_dont_gc = !GC_dont_gc;
    GC_set_finalize_on_demand(GC_get_finalize_on_demand());
    GC_dont_gc = !GC_dont_gc;
    GC_set_java_finalization(GC_get_java_finalization());
    GC_dont_gc = !GC_dont_gc;
    GC_set_no_dls(GC_get_no_dls());
    GC_dont_gc = !GC_dont_gc;
    GC_set_dont_expand(GC_get_dont_expand());
    GC_set_free_space_divisor(GC_get_free_space_divisor());
    GC_set_full_freq(GC_get_full_freq());
    GC_set_max_retries(GC_get_max_retries());
    GC_set_non_gc_bytes(GC_get_non_gc_bytes());
    GC_set_time_limit(GC_get_time_limit());
    GC_set_dont_precollect(GC_get_dont_precollect());
    GC_set_min_bytes_allocd(GC_get_min_bytes_allocd());
    GC_set_rate(GC_get_rate());
    GC_set_max_prior_attempts(GC_get_max_prior_attempts());
    GC_set_allocd_bytes_per_finalizer(GC_get_allocd_bytes_per_finalizer());
    GC_set_force_unmap_on_gcollect(GC_get_force_unmap_on_gcollect());
}

static int dumps;
static void *all(void *argument) {
    dump();
    set();
    dumps++;
    return argument;
}

static void event(GC_EventType what) {
    if (what == GC_EVENT_START || what == GC_EVENT_END) all(0);
}

static int done;
static void *collects(void *argument) {
    while (!__atomic_load_n(&done, __ATOMIC_ACQUIRE)) GC_gcollect();
    return argument;
}

/* Beside a thread that collects, and so takes the loader's list first and the lock after it. */
static void beside_a_collector(void) {
    pthread_t collector;
    CHECK(GC_pthread_create(&collector, 0, collects, 0) == 0);
    for (int i = 0; i < 300; i++) GC_call_with_alloc_lock(all, 0);
    __atomic_store_n(&done, 1, __ATOMIC_RELEASE);
    CHECK(GC_pthread_join(collector, 0) == 0);
}

int main(void) {
    GC_init();
    GC_add_roots(registered, registered + 8);
    for (int i = 0; i < 2; i++) {
        void *object = GC_malloc(32);
        registered[i] = (GC_word)object;
        GC_register_finalizer(object, nothing, 0, 0, 0);
        CHECK(GC_general_register_disappearing_link(&links[i], object) == GC_SUCCESS);
    }
    GC_gcollect();
    ask(is_static);
    captured_begin();
    dump();
    CHECK(GC_call_with_alloc_lock(all, links) == links);
    GC_alloc_lock();
    all(0);
    GC_alloc_unlock();
    GC_set_on_collection_event(event);
    GC_gcollect();
    GC_set_on_collection_event(0);
    const char *text = captured_end();
    CHECK(dumps >= 3 && occurs("***GC Dump under the lock", text) == dumps + 1);
    CHECK(occurs("Finalizable object: ", text) == 2 * (dumps + 1));
    captured_begin();
    beside_a_collector();
    captured_end();
    /* The lock is free, and collections go on. */
    for (int i = 0; i < 3; i++) GC_gcollect();
    use_heap();
    return 0;
}
