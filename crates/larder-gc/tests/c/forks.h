/* Forks beside threads that allocate and collect: each child has a working heap. */
#ifndef FORKS_H
#define FORKS_H

#include "lists.h"
#include <pthread.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BUSY = 4 };

static int stop_busy;
static void *allocates(void *unused) {
    while (!__atomic_load_n(&stop_busy, __ATOMIC_RELAXED)) use_heap();
    return unused;
}
static void *collects(void *unused) {
    while (!__atomic_load_n(&stop_busy, __ATOMIC_RELAXED)) {
        use_heap();
        GC_gcollect();
    }
    return unused;
}

/* Makes children by `forks`, which is fork with what a program has to do around it, while `collecting` threads collect and
 * others allocate. */
static void fork_beside_threads(pid_t (*forks)(void), int children, int collecting) {
    pthread_t t[BUSY];
    for (int i = 0; i < BUSY; i++) CHECK(GC_pthread_create(&t[i], 0, i < collecting ? collects : allocates, 0) == 0);
    for (int i = 0; i < children; i++) {
        pid_t child = forks();
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
    __atomic_store_n(&stop_busy, 1, __ATOMIC_RELAXED);
    for (int i = 0; i < BUSY; i++) CHECK(GC_pthread_join(t[i], 0) == 0);
}

/* `forks`, with the calls around it that GC_set_handle_fork(-1) leaves to the program. */
#define BY_HAND(forks)                                          \
    GC_atfork_prepare();                                        \
    pid_t child = (forks);                                      \
    child == 0 ? GC_atfork_child() : GC_atfork_parent();        \
    return child

#endif
