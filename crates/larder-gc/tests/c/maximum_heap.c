/* GC_MAXIMUM_HEAP_SIZE: the heap stays below it, the out-of-memory function is asked for what does not fit, and
 * garbage makes room again; with one thread and with several. */
#include "check.h"
#include <pthread.h>

enum { MEBIBYTES = 24, OBJECT = 5000, THREADS = 4 };

static int asked;
static void *none(size_t bytes) {
    CHECK(bytes >= OBJECT);
    __atomic_add_fetch(&asked, 1, __ATOMIC_RELAXED);
    return 0;
}

/* Objects until there is no more room; returns how many, all of which are there. */
static NOINLINE size_t fill(void) {
    GC_word *list = 0, *object;
    size_t made = 0, found = 0;
    for (; (object = GC_malloc(OBJECT)) != 0; made++) {
        CHECK(object[0] == 0 && object[OBJECT / 8 - 1] == 0);
        object[0] = (GC_word)list;
        object[OBJECT / 8 - 1] = made;
        list = object;
    }
    for (GC_word *next; list; list = next, found++) {
        CHECK(list[OBJECT / 8 - 1] == made - 1 - found);
        next = (GC_word *)list[0];
        list[0] = 0; /* A stale pointer to one of them shall not keep the others. */
    }
    CHECK(found == made && GC_get_heap_size() <= (size_t)MEBIBYTES << 20);
    return made;
}
static size_t made;
static NOINLINE void fill_alone(void) { made = fill(); }
static void *fill_together(void *unused) {
    fill();
    return unused;
}

int main(void) {
    setenv("GC_MAXIMUM_HEAP_SIZE", "24M", 1);
    GC_init();
    GC_set_oom_fn(none);
    GC_set_warn_proc(GC_ignore_warn_proc);
    for (int i = 0; i < 5; i++) {
        far_away(fill_alone);
        CHECK(asked > 0);
        CHECK(made * OBJECT > (size_t)MEBIBYTES << 19); /* At least half of it is good for objects. */
        asked = 0;
        collect();
    }
    CHECK(GC_malloc((size_t)MEBIBYTES << 20) == 0 && asked == 1);
    pthread_t t[THREADS];
    for (int i = 0; i < THREADS; i++) CHECK(GC_pthread_create(&t[i], 0, fill_together, 0) == 0);
    for (int i = 0; i < THREADS; i++) CHECK(GC_pthread_join(t[i], 0) == 0);
    collect();
    for (int i = 0; i < 10000; i++) CHECK(GC_malloc(OBJECT) != 0);
    return 0;
}
