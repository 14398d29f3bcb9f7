/* A fork child has one thread and a working heap. */
#include "check.h"
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile int stop;
static NOINLINE int use_heap(void) {
    GC_word *list = 0;
    int n = 0;
    for (int i = 0; i < 1000; i++) {
        GC_word *cell = GC_malloc(64);
        cell[0] = (GC_word)list;
        list = cell;
    }
    for (; list; list = (GC_word *)list[0]) n++;
    return n;
}
static void *busy(void *unused) {
    (void)unused;
    while (!stop) CHECK(use_heap() == 1000);
    return 0;
}

int main(void) {
    GC_set_handle_fork(1);
    GC_init();
    pthread_t t[3];
    for (int i = 0; i < 3; i++) CHECK(GC_pthread_create(&t[i], 0, busy, 0) == 0);
    for (int i = 0; i < 20; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            for (int j = 0; j < 20; j++) CHECK(use_heap() == 1000);
            GC_gcollect();
            CHECK(use_heap() == 1000);
            _exit(0);
        }
        CHECK(use_heap() == 1000);
        int status;
        CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    stop = 1;
    for (int i = 0; i < 3; i++) CHECK(GC_pthread_join(t[i], 0) == 0);
    return 0;
}
