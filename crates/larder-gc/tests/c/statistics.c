/* Counters, and settings that are asked back. */
#include "check.h"

int main(void) {
    CHECK(!GC_is_init_called());
    CHECK(GC_get_allocd_bytes_per_finalizer() == 10000 && GC_get_rate() == 10 && GC_get_min_bytes_allocd() == 1);
    CHECK(GC_get_max_prior_attempts() == 1 && GC_get_disable_automatic_collection() == 0);
    CHECK(GC_get_force_unmap_on_gcollect() == 0 && GC_get_manual_vdb_allowed() == 0 && GC_get_dont_expand() == 0);
    struct GC_timeval_s limit = GC_get_time_limit_tv();
    CHECK(limit.tv_ms == GC_TIME_UNLIMITED && limit.tv_nsec == 0);
    limit.tv_ms = 5;
    limit.tv_nsec = 7;
    GC_set_time_limit_tv(limit);
    CHECK(GC_get_time_limit() == 5 && GC_get_time_limit_tv().tv_nsec == 7);
    GC_set_time_limit(GC_TIME_UNLIMITED);
    GC_set_full_freq(3);
    CHECK(GC_get_full_freq() == 3);
    GC_set_max_retries(2);
    CHECK(GC_get_max_retries() == 2);
    GC_init();
    /* Programs divide by it, or expand it until it is large enough. */
    CHECK(GC_get_heap_size() > 0 && GC_get_free_bytes() <= GC_get_heap_size());

    size_t total = GC_get_total_bytes();
    char **list = 0;
    for (int i = 0; i < 1000; i++) {
        char **p = GC_malloc(1000);
        p[0] = (char *)list;
        list = p;
    }
    CHECK(GC_get_total_bytes() - total >= 1000000 && GC_get_total_bytes() - total < 3000000);
    CHECK(GC_get_heap_size() >= 1000000);
    CHECK(GC_get_memory_use() >= 1000000);
    GC_start_performance_measurement();
    GC_gcollect();
    GC_word cycles = GC_get_gc_no();
    CHECK(GC_get_bytes_since_gc() < 1000000 && GC_get_full_gc_total_time() < 10000);
    /* It has begun, and does not begin again. */
    for (int i = 0; i < 100000 && GC_get_full_gc_total_time() == 0; i++) GC_gcollect();
    GC_start_performance_measurement();
    CHECK(GC_get_full_gc_total_time() > 0);
    cycles = GC_get_gc_no();
    GC_word heap, free_bytes, unmapped, since, all;
    GC_get_heap_usage_safe(&heap, &free_bytes, &unmapped, &since, &all);
    GC_get_heap_usage_safe(0, 0, 0, 0, 0);
    CHECK(heap == GC_get_heap_size() && all >= total + 1000000 && free_bytes < heap);
    struct GC_prof_stats_s profile;
    CHECK(GC_get_prof_stats(&profile, sizeof profile) == sizeof profile);
    CHECK(profile.gc_no == cycles && profile.heapsize_full >= heap && profile.unmapped_bytes == unmapped);
    struct {
        struct GC_prof_stats_s known;
        GC_word unknown;
    } newer;
    CHECK(GC_get_prof_stats(&newer.known, sizeof newer) == sizeof profile && newer.unknown == (GC_word)-1);
    profile.free_bytes_full = 4711;
    CHECK(GC_get_prof_stats(&profile, sizeof(GC_word)) == sizeof(GC_word) && profile.free_bytes_full == 4711);
    size_t small = GC_get_heap_size();
    while (GC_get_heap_size() < small + (32 << 20)) CHECK(GC_expand_hp(1 << 20) == 1);
    CHECK(GC_get_free_bytes() >= 32 << 20 && GC_get_obtained_from_os_bytes() >= GC_get_heap_size());
    /* What is freed explicitly is free at once. */
    void *large = GC_malloc_atomic(8 << 20);
    CHECK(large != 0);
    GC_gcollect();
    GC_disable();
    free_bytes = GC_get_free_bytes();
    GC_free(large);
    CHECK(GC_get_free_bytes() >= free_bytes + (8 << 20));
    GC_enable();
    CHECK(getenv("LARDER_CONCURRENT") || (GC_collect_a_little() == 0 && GC_is_incremental_mode() == 0));
    GC_set_non_gc_bytes(1000);
    CHECK(GC_get_non_gc_bytes() == 1000);
    GC_reachable_here(list);
    return 0;
}
