// xtask: larder-only
/* A thread takes the signal away that is to stop it. It is sent again, for a stop and for GC_suspend_thread. libgc's stop waits for ever, if
 * GC_RETRY_SIGNALS is not set. */
#include "check.h"
#include <gc/javaxfc.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 3 };

static sigset_t stop_alone;
static int seen(int *word) { return __atomic_load_n(word, __ATOMIC_SEQ_CST); }

/* The round in which the next signal is taken, one in which one was, and the last one that is over. */
static int begun, taken, over;
/* Between two rounds it is a mutator with the signal open. */
static void *thief(void *unused) {
    for (int round = 1; round <= ROUNDS; round++) {
        sigset_t waiting;
        CHECK(pthread_sigmask(SIG_BLOCK, &stop_alone, 0) == 0);
        __atomic_store_n(&begun, round, __ATOMIC_SEQ_CST);
        do CHECK(sigpending(&waiting) == 0);
        while (!sigismember(&waiting, GC_get_suspend_signal()));
        CHECK(sigtimedwait(&stop_alone, 0, &(struct timespec){0, 0}) == GC_get_suspend_signal());
        __atomic_store_n(&taken, round, __ATOMIC_SEQ_CST);
        CHECK(pthread_sigmask(SIG_UNBLOCK, &stop_alone, 0) == 0);
        while (seen(&over) < round) {}
    }
    return unused;
}

int main(void) {
    GC_init();
    sigemptyset(&stop_alone);
    sigaddset(&stop_alone, GC_get_suspend_signal());

    pthread_t t;
    CHECK(GC_pthread_create(&t, 0, thief, 0) == 0);
    for (int round = 1; round <= ROUNDS; round++) {
        while (seen(&begun) < round) {}
        if (round == ROUNDS) GC_suspend_thread(t);
        else GC_gcollect();
        CHECK(seen(&taken) == round);
        __atomic_store_n(&over, round, __ATOMIC_SEQ_CST);
    }
    GC_resume_thread(t);
    CHECK(GC_pthread_join(t, 0) == 0);
    return 0;
}
