/* Threads that are suspended at a bad moment: in a blocking region with all signals masked, with a lock of the C library's, when they were about
 * to take the allocation lock that others wait for, while they create threads, and by one another. Everybody else goes on. */
#include "check.h"
#include <gc/javaxfc.h>
#include <gc/gc_mark.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

/* malloc, with a lock that everybody can see. */
static char memory[1 << 24];
static volatile int malloc_lock, holds_malloc, malloc_goes_on;
static size_t used;
void *malloc(size_t bytes) {
    while (__atomic_exchange_n(&malloc_lock, 1, __ATOMIC_ACQUIRE)) sched_yield();
    char *at = memory + used + 16;
    used += (bytes + 31) & ~(size_t)15;
    if (used > sizeof memory) abort();
    *(size_t *)(at - 16) = bytes;
    __atomic_store_n(&malloc_lock, 0, __ATOMIC_RELEASE);
    return at;
}
void *calloc(size_t n, size_t bytes) { return malloc(n * bytes); }
void free(void *p) { (void)p; }
void *realloc(void *p, size_t bytes) {
    char *new = malloc(bytes);
    size_t old = p ? *(size_t *)((char *)p - 16) : 0;
    for (size_t i = 0; i < old && i < bytes; i++) new[i] = ((char *)p)[i];
    return new;
}

static volatile int in_call, out_of_call;
static int ends[2];
static void *blocks(void *unused) {
    sigset_t all;
    sigfillset(&all);
    CHECK(pthread_sigmask(SIG_SETMASK, &all, 0) == 0);
    in_call = 1;
    char byte;
    CHECK(read(ends[0], &byte, 1) == 1);
    CHECK(pthread_sigmask(SIG_UNBLOCK, &all, 0) == 0);
    in_call = 0;
    return unused;
}
static void *blocks_for_long(void *unused) {
    for (int i = 0; i < 2; i++) {
        GC_do_blocking(blocks, 0);
        out_of_call = i + 1;
    }
    return unused;
}
static void in_a_region(void) {
    CHECK(pipe(ends) == 0);
    pthread_t t;
    CHECK(GC_pthread_create(&t, 0, blocks_for_long, 0) == 0);
    for (int i = 0; i < 2; i++) {
        while (!in_call) usleep(100);
        GC_suspend_thread(t);
        CHECK(GC_is_thread_suspended(t));
        GC_gcollect();
        GC_suspend_thread(t);
        /* Its call may end, not its region. The second time it is resumed before that. */
        if (i == 1) GC_resume_thread(t);
        CHECK(write(ends[1], "", 1) == 1);
        if (i == 1) break;
        usleep(20000);
        GC_gcollect();
        CHECK(out_of_call == 0 && GC_is_thread_suspended(t));
        GC_resume_thread(t);
        CHECK(!GC_is_thread_suspended(t));
        while (out_of_call == 0) usleep(100);
    }
    CHECK(GC_pthread_join(t, 0) == 0 && out_of_call == 2);
}

/* Collections go on meanwhile, and do not want that lock to make a marker. */
static void *mallocs(void *unused) {
    while (__atomic_exchange_n(&malloc_lock, 1, __ATOMIC_ACQUIRE)) sched_yield();
    holds_malloc = 1;
    while (!malloc_goes_on) sched_yield();
    __atomic_store_n(&malloc_lock, 0, __ATOMIC_RELEASE);
    return unused;
}
static void *lists[64];
static void with_a_lock_of_the_c_library(void) {
    pthread_t t;
    CHECK(GC_pthread_create(&t, 0, mallocs, 0) == 0);
    while (!holds_malloc) usleep(100);
    GC_suspend_thread(t);
    for (int i = 0; i < 1000000; i++) {
        void **p = GC_malloc(64);
        *p = lists[i % 64];
        lists[i % 64] = p;
    }
    for (int i = 0; i < 3; i++) GC_gcollect();
    malloc_goes_on = 1;
    GC_resume_thread(t);
    CHECK(GC_pthread_join(t, 0) == 0);
    memset(lists, 0, sizeof lists);
    GC_gcollect();
}

/* Two that wait for the lock: the one that is woken is suspended at once, and the other one goes on. */
static volatile long locked[2];
static volatile int stop_locking, wanted;
static void *nothing_locked(void *which) {
    locked[(long)which]++;
    return 0;
}
static void *locks(void *which) {
    while (!stop_locking) {
        int now = wanted;
        if (now > locked[(long)which]) GC_call_with_alloc_lock(nothing_locked, which);
        else sched_yield();
    }
    return 0;
}
static void *holds_until_they_sleep(void *unused) {
    wanted++;
    usleep(1000);
    return unused;
}
static void with_the_wake_of_another(void) {
    pthread_t t[2];
    for (long i = 0; i < 2; i++) CHECK(GC_pthread_create(&t[i], 0, locks, (void *)i) == 0);
    for (int round = 0; round < 300; round++) {
        int which = round % 2;
        GC_call_with_alloc_lock(holds_until_they_sleep, 0);
        GC_suspend_thread(t[which]);
        while (locked[!which] < wanted) sched_yield();
        GC_resume_thread(t[which]);
        while (locked[which] < wanted) sched_yield();
    }
    stop_locking = 1;
    for (int i = 0; i < 2; i++) CHECK(GC_pthread_join(t[i], 0) == 0);
}

/* Threads that begin and end all the time, one of which is suspended; the others go on meanwhile. */
static volatile int stop_creating;
static volatile long created[2];
static void *lives(void *p) {
    CHECK(*(long *)p == 77);
    return GC_malloc(40);
}
static void *creates(void *which) {
    while (!stop_creating) {
        pthread_t t;
        long *p = GC_malloc(sizeof *p);
        *p = 77;
        CHECK(GC_pthread_create(&t, 0, lives, p) == 0 && GC_pthread_join(t, 0) == 0);
        created[(long)which]++;
    }
    return 0;
}
static void while_they_create_threads(void) {
    pthread_t t;
    CHECK(GC_pthread_create(&t, 0, creates, (void *)0) == 0);
    while (created[0] == 0) sched_yield();
    for (int round = 0; round < 300; round++) {
        GC_suspend_thread(t);
        long before = created[0];
        GC_gcollect();
        for (int i = 0; i < 100; i++) GC_malloc(100);
        CHECK(created[0] == before);
        GC_resume_thread(t);
        while (created[0] == before) sched_yield();
    }
    stop_creating = 1;
    CHECK(GC_pthread_join(t, 0) == 0);
}

/* Two that suspend each other: one of them is first, and the main thread resumes whom it finds. */
static pthread_t both[2];
static volatile int ready, done;
static void *suspends_the_other(void *which) {
    __atomic_add_fetch(&ready, 1, __ATOMIC_SEQ_CST);
    while (ready < 2) sched_yield();
    for (int i = 0; i < 300; i++) {
        GC_suspend_thread(both[!(long)which]);
        GC_malloc(50);
        GC_resume_thread(both[!(long)which]);
    }
    __atomic_add_fetch(&done, 1, __ATOMIC_SEQ_CST);
    return 0;
}
static void by_one_another(void) {
    for (long i = 0; i < 2; i++) CHECK(GC_pthread_create(&both[i], 0, suspends_the_other, (void *)i) == 0);
    while (done < 2) {
        GC_gcollect();
        for (int i = 0; i < 2; i++) GC_resume_thread(both[i]);
    }
    for (int i = 0; i < 2; i++) CHECK(GC_pthread_join(both[i], 0) == 0);
}

int main(int count, char **arguments) {
    GC_init();
    GC_allow_register_threads();
    alarm(900); /* For one that hangs: a loaded machine is slow. */
    int only = count > 1 ? atoi(arguments[1]) : 0;
    if (only == 0 || only == 1) in_a_region();
    if (only == 0 || only == 2) with_a_lock_of_the_c_library();
    if (only == 0 || only == 3) while_they_create_threads();
    /* libgc's lock loses the wake, too. */
    if ((only == 0 && is_larder()) || only == 4) with_the_wake_of_another();
    if (only == 0 || only == 5) by_one_another();
    return 0;
}
