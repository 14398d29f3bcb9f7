// xtask: larder-only
/* Threads walk the loader's list and allocate, collect and look for paths to objects in the callback, while others do the same
 * outside of one. On libgc a thread that holds the list waits for the allocation lock, and its holder for the list. */
#include "check.h"
#include <link.h>
#include <pthread.h>

enum { THREADS = 3, WALKS = 25 };

static void use_heap(long salt) {
    GC_word *list = 0;
    for (long i = 0; i < 300; i++) {
        GC_word *cell = GC_malloc(16 + i % 50 * 32);
        CHECK(cell[0] == 0 && cell[1] == 0);
        cell[0] = (GC_word)list;
        cell[1] = salt + i;
        list = cell;
    }
    for (long i = 299; i >= 0; i--, list = (GC_word *)list[0]) CHECK((long)list[1] == salt + i);
}
static int visit(struct dl_phdr_info *info, size_t bytes UNUSED, void *data) {
    CHECK(info->dlpi_name != 0);
    use_heap((long)data);
    if ((long)data % 3 == 0) GC_gcollect();
    return 1;
}
static void *walker(void *argument) {
    for (long i = 0; i < WALKS; i++) {
        dl_iterate_phdr(visit, (void *)(i + (long)argument));
        use_heap(i);
        if (i % 4 == 0) GC_gcollect();
    }
    return argument;
}

int main(void) {
    /* Each cycle is followed by a stop of another kind. */
    setenv("GC_BACKTRACES", "1", 1);
    setenv("GC_LOG_FILE", "/dev/null", 1);
    GC_INIT();
    pthread_t threads[THREADS];
    for (long i = 0; i < THREADS; i++) CHECK(GC_pthread_create(&threads[i], 0, walker, (void *)(i * 1000)) == 0);
    walker((void *)1);
    for (int i = 0; i < THREADS; i++) CHECK(GC_pthread_join(threads[i], 0) == 0);
    return 0;
}
