// xtask: larder-only
/* Forks in a signal handler that interrupts allocations beside threads that allocate and collect: the child runs another program, say. The stock library
 * leaves a fork alone unless it is asked to handle forks, and then waits for ever for a lock that the interrupted code has. */
#include "check.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 3, FORKS = 60, LENGTH = 200 };

static int over, forks;
static void child_of_handler(int signal) {
    int error = errno, status = -1;
    (void)signal;
    pid_t child = fork();
    if (child == 0) _exit(7);
    CHECK(child > 0);
    while (waitpid(child, &status, 0) < 0) CHECK(errno == EINTR);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    __atomic_add_fetch(&forks, 1, __ATOMIC_RELAXED);
    errno = error;
}

static void *thread(void *unused) {
    while (!__atomic_load_n(&over, __ATOMIC_RELAXED)) {
        GC_word *list = 0;
        int n = 0;
        for (int i = 0; i < LENGTH; i++) {
            GC_word *cell = GC_malloc(900);
            CHECK(cell != 0 && cell[0] == 0 && cell[110] == 0);
            cell[0] = (GC_word)list;
            cell[110] = 1;
            list = cell;
        }
        for (; list; list = (GC_word *)list[0]) n++;
        CHECK(n == LENGTH);
    }
    return unused;
}

int main(void) {
    GC_init();
    struct sigaction action = {0};
    action.sa_handler = child_of_handler;
    action.sa_flags = SA_RESTART;
    CHECK(sigaction(SIGUSR2, &action, 0) == 0);
    pthread_t t[THREADS];
    for (int i = 0; i < THREADS; i++) CHECK(GC_pthread_create(&t[i], 0, thread, 0) == 0);
    for (int sent = 0; __atomic_load_n(&forks, __ATOMIC_RELAXED) < FORKS; sent++) {
        CHECK(pthread_kill(t[sent % THREADS], SIGUSR2) == 0);
        usleep(2000);
    }
    __atomic_store_n(&over, 1, __ATOMIC_RELAXED);
    for (int i = 0; i < THREADS; i++) CHECK(GC_pthread_join(t[i], 0) == 0);
    /* And one that is like any other. */
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        GC_gcollect();
        over = 0;
        for (int i = 0; i < 20000; i++) CHECK(GC_malloc(900) != 0);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    GC_gcollect();
    return 0;
}
