// xtask: larder-only
/* A signal handler allocates, 1000 times a second, whatever it interrupts: an allocation, an explicit free, a
 * collection. libgc does not promise this (the handler would wait for the lock that its own thread holds). */
#include "check.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/time.h>

enum { THREADS = 4, KEPT = 64, TICKS = 1000, TICK_MICROSECONDS = 1000 };

static int stop, started, ticks;
/* What the handler of this thread allocated last; thread-local storage is searched. */
static __thread GC_word *kept[KEPT];
static __thread unsigned next;

static void fill(GC_word *object, size_t bytes, GC_word salt) {
    size_t words = bytes / 8;
    for (size_t w = 0; w < words; w++) CHECK(object[w] == 0);
    object[0] = words;
    for (size_t w = 1; w < words; w++) object[w] = salt + w;
}
static void check(const GC_word *object) {
    GC_word salt = object[1] - 1;
    for (size_t w = 1; w < object[0]; w++) CHECK(object[w] == salt + w);
}
static size_t size_of(unsigned i) { return i % 50 == 49 ? 40000 : 16 + i * 7919 % 64 * 16; }

static void handler(int signal) {
    int before = errno; /* An allocation may change it, as malloc may. */
    CHECK(GC_thread_is_registered());
    for (int i = 0; i < 8; i++) {
        unsigned place = next++ % KEPT;
        if (kept[place] != 0) check(kept[place]);
        size_t bytes = size_of(next);
        GC_word *object = GC_malloc(bytes);
        CHECK(object != 0);
        fill(object, bytes, (GC_word)object ^ (GC_word)signal << 56);
        kept[place] = object;
    }
    errno = before;
    __atomic_add_fetch(&ticks, 1, __ATOMIC_RELAXED);
}

static NOINLINE void allocate(unsigned salt) {
    GC_word *objects[100];
    for (unsigned i = 0; i < 100; i++) {
        size_t bytes = size_of(salt + i);
        objects[i] = GC_malloc(bytes);
        fill(objects[i], bytes, (GC_word)objects[i]);
    }
    for (unsigned i = 0; i < 100; i++) {
        check(objects[i]);
        if (i % 3 == 0) GC_free(objects[i]);
    }
}
static void *thread(void *argument) {
    unsigned salt = (unsigned)(uintptr_t)argument;
    __atomic_add_fetch(&started, 1, __ATOMIC_RELAXED);
    for (unsigned i = 0; !__atomic_load_n(&stop, __ATOMIC_RELAXED); i++) {
        allocate(salt + i * 100);
        if (i % 200 == 0) GC_gcollect();
    }
    for (int i = 0; i < KEPT; i++)
        if (kept[i] != 0) check(kept[i]);
    return 0;
}

int main(void) {
    GC_init();
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    CHECK(sigaction(SIGALRM, &action, 0) == 0);
    pthread_t t[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++) CHECK(GC_pthread_create(&t[i], 0, thread, (void *)(i * 1000)) == 0);
    /* What a thread holds before it is registered is not kept. */
    while (__atomic_load_n(&started, __ATOMIC_RELAXED) < THREADS) {}
    struct itimerval storm = {{0, TICK_MICROSECONDS}, {0, TICK_MICROSECONDS}};
    CHECK(setitimer(ITIMER_REAL, &storm, 0) == 0);
    /* The kernel prefers the main thread for a process's signal; it does the same work as the others. */
    for (unsigned i = 0; __atomic_load_n(&ticks, __ATOMIC_RELAXED) < TICKS; i++) {
        /* Half of the ticks go to the other threads. */
        sigset_t set;
        sigemptyset(&set);
        sigaddset(&set, SIGALRM);
        pthread_sigmask(i % 2 ? SIG_BLOCK : SIG_UNBLOCK, &set, 0);
        for (unsigned j = 0; j < 20; j++) allocate(i * 2000 + j * 100);
        if (i % 8 < 2) GC_gcollect();
    }
    storm = (struct itimerval){0};
    CHECK(setitimer(ITIMER_REAL, &storm, 0) == 0);
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    for (int i = 0; i < THREADS; i++) CHECK(GC_pthread_join(t[i], 0) == 0);
    for (int i = 0; i < KEPT; i++)
        if (kept[i] != 0) check(kept[i]);
    return 0;
}
