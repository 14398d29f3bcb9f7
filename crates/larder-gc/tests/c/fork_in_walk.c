// xtask: larder-only
/* Threads fork in the callback of a walk over the loader's list, while collectors wait for the list and others fork without it. Nobody waits for
 * whom waits for him: a fork keeps collectors out, and who collects needs the list. The children collect, too. On libgc a thread that holds the list
 * and forks waits for the allocation lock, and its holder for the list. */
#include "check.h"
#include <link.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FORKS = 12 };
static volatile int forking = 2;

static void use_heap(long salt) {
    GC_word *list = 0;
    for (long i = 0; i < 200; i++) {
        GC_word *cell = GC_malloc(16 + i % 50 * 32);
        cell[0] = (GC_word)list;
        cell[1] = salt + i;
        list = cell;
    }
    GC_gcollect();
    for (long i = 199; i >= 0; i--, list = (GC_word *)list[0]) CHECK((long)list[1] == salt + i);
}
static void spawn(long salt) {
    pid_t child = fork();
    if (child == 0) {
        alarm(900);
        use_heap(salt);
        _exit(7);
    }
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
}
static int visit(struct dl_phdr_info *info UNUSED, size_t bytes UNUSED, void *salt) {
    /* Time for a collector to come and wait for the list. */
    for (int i = 0; i < 50; i++) sched_yield();
    spawn((long)salt);
    return 1;
}
static void *in_walks(void *argument) {
    for (long i = 0; i < FORKS; i++) dl_iterate_phdr(visit, (void *)i);
    __atomic_sub_fetch(&forking, 1, __ATOMIC_SEQ_CST);
    return argument;
}
static void *outside(void *argument) {
    for (long i = 0; i < FORKS; i++) spawn(i);
    __atomic_sub_fetch(&forking, 1, __ATOMIC_SEQ_CST);
    return argument;
}
static void *collector(void *argument) {
    do use_heap(5);
    while (forking);
    return argument;
}

int main(void) {
    GC_INIT();
    pthread_t threads[4];
    void *(*const each[])(void *) = {in_walks, outside, collector, collector};
    for (int i = 0; i < 4; i++) CHECK(GC_pthread_create(&threads[i], 0, each[i], 0) == 0);
    for (int i = 0; i < 4; i++) CHECK(GC_pthread_join(threads[i], 0) == 0);
    return 0;
}
