/* Memory that runs out: the out-of-memory function is asked, what exists stays usable, and garbage makes room again. */
#include "check.h"

static int asked;
static size_t asked_for;
static void *none(size_t bytes) {
    asked++;
    asked_for = bytes;
    return 0;
}
static int warned;
static void warn(char *message, GC_word argument) {
    char text[1000];
    snprintf(text, sizeof text, message, argument);
    warned += strstr(text, "Out of Memory") != 0;
}

/* Objects until there is no more room; all of them are there. */
static void fill(void) {
    void ***list = 0;
    int objects = 0, found = 0;
    for (void ***p; (p = GC_malloc(10000)) != 0; objects++) {
        p[0] = (void **)list;
        list = p;
    }
    CHECK(objects > 500 && objects < 2000);
    for (void ***p = list, ***next; p; p = next, found++) {
        next = (void ***)p[0];
        p[0] = 0; /* A stale pointer to one of them shall not keep the others. */
    }
    CHECK(found == objects);
}

/* Lists are not asked for: what the client's function returns is none. But it is warned. */
static void fill_with_lists(void) {
    int asked_before = asked, warned_before = warned;
    void *all = 0, *list;
    while ((list = GC_malloc_many(64))) {
        void *last = list;
        while (GC_NEXT(last)) last = GC_NEXT(last);
        GC_NEXT(last) = all;
        all = list;
    }
    CHECK(asked == asked_before && warned > warned_before && all);
}

int main(void) {
    GC_init();
    CHECK(GC_get_oom_fn()(100) == 0);
    GC_set_oom_fn(none);
    GC_set_warn_proc(warn);
    CHECK(GC_get_oom_fn() == none && GC_get_warn_proc() == warn);
    volatile size_t huge = -100;
    GC_set_max_heap_size(16 << 20);
    CHECK(GC_malloc(1 << 30) == 0 && asked == 1 && asked_for == 1 << 30 && warned > 0);
    CHECK(GC_malloc_atomic(huge) == 0 && asked == 2);
    CHECK(GC_malloc_many(1 << 30) == 0 && asked == 3);

    far_away(fill);
    CHECK(asked >= 3);
    collect();
    far_away(fill_with_lists);
    collect();
    for (int i = 0; i < 1000; i++) CHECK(GC_malloc(10000) != 0);
    return 0;
}
