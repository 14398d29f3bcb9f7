/* A program that locks its memory (mlockall), before the heap begins or after: what is locked is there at once, and what the heap only keeps
 * room for must not be. */
#include "check.h"
#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

enum { LISTS = 20, CELLS = 20000 };

static NOINLINE void use_heap(void) {
    for (int n = 0; n < LISTS; n++) {
        GC_word *list = 0;
        for (GC_word i = 0; i < CELLS; i++) {
            GC_word *cell = GC_malloc(32);
            CHECK(cell != 0 && cell[0] == 0 && cell[3] == 0);
            cell[0] = (GC_word)list;
            cell[3] = i;
            list = cell;
        }
        for (GC_word i = CELLS; list; list = (GC_word *)list[0]) CHECK(list[3] == --i);
    }
}
static void *thread(void *unused) {
    use_heap();
    return unused;
}

static long resident_mib(void) {
    long total = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file && fscanf(file, "%ld %ld", &total, &resident) == 2 && fclose(file) == 0);
    return resident * (sysconf(_SC_PAGESIZE) >> 10) >> 10;
}

/* A limit on locked memory may refuse it, and then nothing is seen. */
static int lock(int what) {
    if (mlockall(what) == 0) return 1;
    CHECK(errno == ENOMEM || errno == EPERM);
    return 0;
}

static void go_on(void) {
    use_heap();
    pthread_t t;
    CHECK(GC_pthread_create(&t, 0, thread, 0) == 0 && GC_pthread_join(t, 0) == 0);
    GC_gcollect();
    use_heap();
    /* Stacks of markers are locked as a whole, where they were there before; cycles beside the program have five, of 272 MiB. */
    CHECK(resident_mib() < 2048);
}
static void before(void) {
    if (!lock(MCL_FUTURE)) return;
    GC_init();
    go_on();
}
static void after(void) {
    GC_init();
    use_heap();
    if (lock(MCL_CURRENT | MCL_FUTURE)) go_on();
}
static void on_fault(void) {
    if (!lock(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT)) return;
    GC_init();
    go_on();
}

int main(void) {
    CHECK(setenv("GC_MARKERS", "1", 1) == 0);
    void (*ways[])(void) = {before, after, on_fault};
    for (int i = 0; i < 3; i++) {
        const char *printed;
        int status = in_child(ways[i], &printed);
        if (status != 0) fprintf(stderr, "way %d: status %x: %s\n", i, status, printed);
        CHECK(status == 0);
    }
    return 0;
}
