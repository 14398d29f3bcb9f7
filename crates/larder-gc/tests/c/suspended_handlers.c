// xtask: larder-only
/* A thread that has suspended itself runs no signal handler before it is resumed, as one that another thread suspends: what the handler made
 * would not be found by a cycle. libgc runs it. */
#include "check.h"
#include <gc/javaxfc.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

static volatile int handled, handled_when_resumed = -1;
static volatile int resumed;
static void handler(int signal) {
    CHECK(signal == SIGUSR1 && resumed);
    GC_malloc(64);
    handled++;
}
static void *suspends_itself(void *unused) {
    GC_suspend_thread(pthread_self());
    handled_when_resumed = handled;
    /* The mask is what it was. */
    CHECK(raise(SIGUSR1) == 0 && handled == 2);
    return unused;
}

/* A stop comes at any moment of it. */
enum { TIMES = 300 };
static volatile int over;
static void *suspends_itself_often(void *unused) {
    for (int i = 0; i < TIMES; i++) GC_suspend_thread(pthread_self());
    over = 1;
    return unused;
}

int main(void) {
    GC_init();
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    CHECK(sigaction(SIGUSR1, &action, 0) == 0);
    pthread_t t;
    CHECK(GC_pthread_create(&t, 0, suspends_itself, 0) == 0);
    while (!GC_is_thread_suspended(t)) sched_yield();
    CHECK(pthread_kill(t, SIGUSR1) == 0);
    for (int i = 0; i < 20; i++) {
        GC_gcollect();
        usleep(1000);
    }
    CHECK(handled == 0);
    resumed = 1;
    GC_resume_thread(t);
    CHECK(GC_pthread_join(t, 0) == 0 && handled_when_resumed == 1);

    CHECK(GC_pthread_create(&t, 0, suspends_itself_often, 0) == 0);
    while (!over) {
        GC_gcollect();
        GC_resume_thread(t);
    }
    CHECK(GC_pthread_join(t, 0) == 0);
    return 0;
}
