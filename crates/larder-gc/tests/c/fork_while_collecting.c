/* One thread forks while others allocate and collect: each child has a working heap. */
#include "check.h"
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CHILDREN = 100, OBJECTS = 1000 };

static int stop;
static NOINLINE void use_heap(void) {
    GC_word *list = 0;
    int n = 0;
    for (int i = 0; i < OBJECTS; i++) {
        GC_word *cell = GC_malloc(16 + i % 40 * 16);
        CHECK(cell[0] == 0 && cell[1] == 0);
        cell[0] = (GC_word)list;
        cell[1] = ~(GC_word)i;
        list = cell;
    }
    for (int i = OBJECTS - 1; list; list = (GC_word *)list[0], n++, i--) CHECK(list[1] == ~(GC_word)i);
    CHECK(n == OBJECTS);
}
static void *allocates(void *unused) {
    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) use_heap();
    return unused;
}
static void *collects(void *unused) {
    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
        use_heap();
        GC_gcollect();
    }
    return unused;
}

int main(void) {
    GC_set_handle_fork(1);
    GC_init();
    pthread_t t[4];
    for (int i = 0; i < 4; i++) CHECK(GC_pthread_create(&t[i], 0, i % 2 ? collects : allocates, 0) == 0);
    for (int i = 0; i < CHILDREN; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            use_heap();
            GC_gcollect();
            use_heap();
            _exit(0);
        }
        use_heap();
        int status;
        CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    for (int i = 0; i < 4; i++) CHECK(GC_pthread_join(t[i], 0) == 0);
    return 0;
}
