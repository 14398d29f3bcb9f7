/* What counters count. */
#include "check.h"
#include <gc/gc_mark.h>

extern void GC_incr_bytes_allocd(size_t), GC_incr_bytes_freed(size_t);
extern void *GC_objfreelist_ptr, *GC_aobjfreelist_ptr, *GC_uobjfreelist_ptr, *GC_auobjfreelist_ptr;
extern char GC_arrays[];

static void *unsafe(void *profile) { return (void *)GC_get_prof_stats_unsafe(profile, sizeof(struct GC_prof_stats_s)); }

int main(void) {
    GC_init();
    GC_gcollect();
    size_t before = GC_get_bytes_since_gc(), total = GC_get_total_bytes();
    GC_incr_bytes_allocd(5000);
    CHECK(GC_get_bytes_since_gc() == before + 5000 && GC_get_total_bytes() == total + 5000);
    before = GC_get_expl_freed_bytes_since_gc();
    GC_incr_bytes_freed(700);
    CHECK(GC_get_expl_freed_bytes_since_gc() == before + 700);

    void *kept = GC_malloc(3000000);
    GC_gcollect();
    CHECK(GC_get_memory_use() >= 3000000 && GC_get_free_bytes() <= GC_get_heap_size());
    CHECK(GC_get_obtained_from_os_bytes() >= GC_get_heap_size());
    struct GC_prof_stats_s profile, again;
    GC_get_prof_stats(&profile, sizeof profile);
    CHECK(GC_call_with_alloc_lock(unsafe, &again) == (void *)sizeof again);
    CHECK(memcmp(&profile, &again, sizeof profile) == 0);
    CHECK(profile.heapsize_full == GC_get_heap_size() + GC_get_unmapped_bytes());
    CHECK(profile.free_bytes_full == GC_get_free_bytes() + GC_get_unmapped_bytes());
    CHECK(profile.bytes_allocd_since_gc == GC_get_bytes_since_gc());
    CHECK(profile.allocd_bytes_before_gc == GC_get_total_bytes() - GC_get_bytes_since_gc());
    CHECK(profile.non_gc_bytes == GC_get_non_gc_bytes() && profile.gc_no == GC_get_gc_no());
    CHECK(profile.expl_freed_bytes_since_gc == GC_get_expl_freed_bytes_since_gc());
    CHECK(profile.obtained_from_os_bytes == GC_get_obtained_from_os_bytes());
    CHECK((int)profile.markers_m1 == GC_get_parallel());
    GC_reachable_here(kept);

    for (int n = 0; n <= 2048; n += 64) {
        void *p = GC_malloc(n);
        /* libgc answers 0 for sizes that its table has not yet. */
        CHECK(GC_get_size_map_at(n) == GC_size(p) || GC_get_size_map_at(n) == 0);
    }
    CHECK(GC_get_size_map_at(-1) == (size_t)-1 && GC_get_size_map_at(1 << 20) == (size_t)-1);
    CHECK(GC_objfreelist_ptr && GC_aobjfreelist_ptr && GC_uobjfreelist_ptr && GC_auobjfreelist_ptr && GC_arrays[0] == GC_arrays[0]);
    return 0;
}
