/* Suspending one thread, and the events that tell of threads that a cycle stops. */
#include "check.h"
#include <gc/javaxfc.h>
#include <gc/gc_mark.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

static volatile unsigned long ticks;
static volatile int stop, asleep_value;
static void *run(void *unused) {
    (void)unused;
    void **kept = GC_malloc(64);
    kept[0] = GC_malloc(64);
    *(long *)kept[0] = 1234;
    while (!stop) {
        ticks++;
        void **p = GC_malloc(40);
        p[0] = kept;
        CHECK(*(long *)kept[0] == 1234);
    }
    return kept[0];
}
static unsigned long advanced(void) {
    unsigned long before = ticks;
    for (int i = 0; i < 100; i++) {
        sched_yield();
        usleep(100);
    }
    return ticks - before;
}
static pthread_t sleeper;
static void *suspends_itself(void *unused) {
    (void)unused;
    sleeper = pthread_self();
    asleep_value = 1;
    GC_suspend_thread(pthread_self());
    asleep_value = 2;
    return 0;
}
static int stopped, resumed;
static pthread_t thread;
static void thread_event(GC_EventType event, void *which) {
    CHECK(event == GC_EVENT_THREAD_SUSPENDED || event == GC_EVENT_THREAD_UNSUSPENDED);
    /* The other thread collects, too, and stops this one. */
    if (!pthread_equal((pthread_t)which, thread)) return;
    if (event == GC_EVENT_THREAD_SUSPENDED) stopped++;
    if (event == GC_EVENT_THREAD_UNSUSPENDED) resumed++;
}

int main(void) {
    GC_init();
    GC_allow_register_threads();
    CHECK(GC_pthread_create(&thread, 0, run, 0) == 0);
    while (ticks < 1000) sched_yield();

    CHECK(GC_get_on_thread_event() == 0);
    GC_set_on_thread_event(thread_event);
    CHECK(GC_get_on_thread_event() == thread_event);
    /* A cycle tells of the threads that it stops: not of one that waits for that cycle itself, since its own was due. Of 1000 cycles
     * that is not true for long. */
    for (int i = 0; i < 1000 && resumed == 0; i++) GC_gcollect();
    CHECK(stopped >= 1 && resumed >= 1);
    GC_set_on_thread_event(0);

    for (int round = 0; round < 20; round++) {
        CHECK(!GC_is_thread_suspended(thread));
        GC_suspend_thread(thread);
        CHECK(GC_is_thread_suspended(thread));
        CHECK(advanced() == 0);
        GC_suspend_thread(thread);
        /* Cycles go on, and what the thread holds is kept. */
        for (int i = 0; i < 3; i++) GC_gcollect();
        for (int i = 0; i < 1000; i++) GC_malloc(64);
        CHECK(GC_is_thread_suspended(thread));
        GC_resume_thread(thread);
        CHECK(!GC_is_thread_suspended(thread));
        unsigned long before = ticks;
        while (ticks == before) usleep(100);
    }
    GC_resume_thread(thread);

    pthread_t other;
    CHECK(GC_pthread_create(&other, 0, suspends_itself, 0) == 0);
    while (asleep_value == 0 || !GC_is_thread_suspended(other)) usleep(100);
    GC_gcollect();
    usleep(2000);
    CHECK(asleep_value == 1);
    GC_resume_thread(other);
    CHECK(GC_pthread_join(other, 0) == 0 && asleep_value == 2);

    stop = 1;
    void *result;
    CHECK(GC_pthread_join(thread, &result) == 0 && *(long *)result == 1234);
    return 0;
}
