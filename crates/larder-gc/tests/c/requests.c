/* When cycles happen, and when not: requests, refusals, stop functions, settings. */
#include "check.h"
#include <gc/gc_mark.h>

static int answer, asked;
static int stop(void) {
    asked++;
    return answer;
}
static int never(void) { return 0; }
static void garbage(size_t bytes) {
    for (size_t done = 0; done < bytes; done += 1000) GC_malloc(1000);
}

static char **list;
static void make_list(void) {
    for (int i = 0; i < 1000; i++) {
        char **p = GC_malloc(100000);
        *p = (char *)list;
        list = p;
    }
}

/* How many cycles there were, with none under way beside the program: the next request would end that one first, and it counts. */
static GC_word settled(void) {
    if (GC_is_incremental_mode()) GC_gcollect();
    return GC_get_gc_no();
}

int main(void) {
    CHECK(GC_get_disable_automatic_collection() == 0);
    GC_init();

    /* Only requests. */
    GC_set_disable_automatic_collection(1);
    CHECK(GC_get_disable_automatic_collection() == 1);
    GC_word before = GC_get_gc_no();
    garbage(64 << 20);
    CHECK(GC_get_gc_no() == before && GC_get_heap_size() >= 64 << 20);
    GC_gcollect();
    CHECK(GC_get_gc_no() == before + 1);
    GC_set_disable_automatic_collection(0);
    garbage(400 << 20);
    CHECK(GC_get_gc_no() > before + 1);

    /* Given up. */
    before = settled();
    answer = 1;
    CHECK(GC_try_to_collect(stop) == 0 && GC_get_gc_no() == before && asked > 0);
    answer = 0;
    CHECK(GC_try_to_collect(stop) == 1 && GC_get_gc_no() == before + 1);
    GC_stop_func first = GC_get_stop_func();
    CHECK(first != 0);
    GC_set_stop_func(stop);
    CHECK(GC_get_stop_func() == stop);
    before = settled();
    answer = 1;
    asked = 0;
    GC_gcollect();
    CHECK(GC_get_gc_no() == before && asked > 0);
    /* Cycles that the heap begins ask it, too. */
    asked = 0;
    garbage(200 << 20);
    CHECK(asked > 0);
    answer = 0;
    /* This one does not ask. */
    before = settled();
    asked = 0;
    answer = 1;
    GC_gcollect_and_unmap();
    CHECK(GC_get_gc_no() == before + 1);
    GC_set_stop_func(never);
    CHECK(GC_get_stop_func() == never);
    GC_set_stop_func(first);

    /* Not at all. */
    GC_disable();
    GC_disable();
    CHECK(GC_is_disabled());
    before = GC_get_gc_no();
    GC_gcollect();
    GC_gcollect_and_unmap();
    CHECK(GC_get_gc_no() == before && GC_try_to_collect(never) == 0);
    GC_enable();
    CHECK(GC_is_disabled());
    GC_enable();
    CHECK(!GC_is_disabled());

    /* Memory goes back when that is wanted, also by collections that a function may stop. */
    GC_set_force_unmap_on_gcollect(1);
    CHECK(GC_get_force_unmap_on_gcollect() == 1);
    for (int way = 0; way < 3; way++) {
        far_away(make_list);
        size_t full = GC_get_heap_size();
        list = 0;
        if (way == 1) GC_set_stop_func(never);
        for (int i = 0; i < 3; i++) way == 2 ? (void)GC_try_to_collect(never) : collect();
        CHECK(GC_get_heap_size() < full / 32 && GC_get_unmapped_bytes() > full / 2);
        CHECK(GC_get_obtained_from_os_bytes() >= GC_get_heap_size() + GC_get_unmapped_bytes());
        GC_set_stop_func(first);
    }
    GC_set_force_unmap_on_gcollect(0);

    /* What is remembered. */
    GC_set_dont_expand(1);
    CHECK(GC_get_dont_expand() == 1 && GC_dont_expand == 1);
    before = GC_get_gc_no();
    garbage((size_t)1 << 30);
    CHECK(GC_get_gc_no() > before);
    GC_set_dont_expand(0);
    GC_set_min_bytes_allocd(1 << 20);
    CHECK(GC_get_min_bytes_allocd() == 1 << 20);
    GC_set_min_bytes_allocd(1);
    GC_set_allocd_bytes_per_finalizer(0);
    CHECK(GC_get_allocd_bytes_per_finalizer() == 0);
    GC_set_free_space_divisor(10);
    CHECK(GC_get_free_space_divisor() == 10 && GC_free_space_divisor == 10);
    GC_set_rate(5);
    GC_set_max_prior_attempts(2);
    GC_set_manual_vdb_allowed(1);
    CHECK(GC_get_rate() == 5 && GC_get_max_prior_attempts() == 2 && GC_get_manual_vdb_allowed() == 1);
    GC_use_entire_heap = 1;
    GC_gcollect();
    GC_use_entire_heap = 0;

    /* Not incremental unless asked; then there may be parts of a cycle. */
    CHECK(GC_is_incremental_mode() == 0 || getenv("LARDER_CONCURRENT"));
    GC_start_incremental_collection();
    CHECK((GC_incremental_protection_needs() & ~15) == 0);
    for (int i = 0; GC_collect_a_little() && i < 100000; i++) continue;
    return 0;
}
