// xtask: larder-only
/* A program handles the stop signal itself, which it says only after the library has begun, and where the kernel may
 * queue no signals: then nothing tells who sent one. Its handler gets what it sends itself, and nothing of what stops
 * the world. libgc's threads would never answer a stop again. */
#include "check.h"
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>

enum { THREADS = 2, CYCLES = 40, SENT = 20 };

static int handled, with_context, over, started;

static void plain(int signal) {
    CHECK(signal == SIGPWR);
    __atomic_add_fetch(&handled, 1, __ATOMIC_RELAXED);
}
static void precise(int signal, siginfo_t *info, void *context) {
    CHECK(signal == SIGPWR && info->si_signo == SIGPWR && context != 0);
    __atomic_add_fetch(&with_context, 1, __ATOMIC_RELAXED);
}
static int sum(int *count) { return __atomic_exchange_n(count, 0, __ATOMIC_RELAXED); }

static NOINLINE void use_heap(void) {
    GC_word *list = 0;
    for (int i = 0; i < 200; i++) {
        GC_word *cell = GC_malloc(16 + i % 20 * 16);
        CHECK(cell[0] == 0 && cell[1] == 0);
        cell[0] = (GC_word)list;
        cell[1] = i;
        list = cell;
    }
    for (int i = 199; i >= 0; i--, list = (GC_word *)list[0]) CHECK((int)list[1] == i);
}
static void *busy(void *unused) {
    __atomic_add_fetch(&started, 1, __ATOMIC_RELAXED);
    while (!__atomic_load_n(&over, __ATOMIC_RELAXED)) use_heap();
    return unused;
}
static void cycles(void) {
    for (int i = 0; i < CYCLES; i++) {
        GC_gcollect();
        use_heap();
    }
}

static void with_limit(rlim_t limit) {
    struct rlimit pending = {limit, RLIM_INFINITY};
    CHECK(getrlimit(RLIMIT_SIGPENDING, &pending) == 0);
    if (limit < pending.rlim_cur) pending.rlim_cur = limit;
    CHECK(setrlimit(RLIMIT_SIGPENDING, &pending) == 0);

    struct sigaction action = {0};
    action.sa_handler = plain;
    CHECK(sigaction(SIGPWR, &action, 0) == 0);
    pthread_t threads[THREADS];
    over = started = 0;
    for (int i = 0; i < THREADS; i++) CHECK(GC_pthread_create(&threads[i], 0, busy, 0) == 0);
    while (__atomic_load_n(&started, __ATOMIC_RELAXED) < THREADS) {}
    cycles();
    CHECK(sum(&handled) == 0);

    __atomic_store_n(&over, 1, __ATOMIC_RELAXED);
    for (int i = 0; i < THREADS; i++) CHECK(GC_pthread_join(threads[i], 0) == 0);
    for (int i = 0; i < SENT; i++) CHECK(raise(SIGPWR) == 0);
    CHECK(sum(&handled) == SENT);

    /* Another one, with three arguments. */
    action.sa_sigaction = precise;
    action.sa_flags = SA_SIGINFO;
    CHECK(sigaction(SIGPWR, &action, 0) == 0);
    GC_gcollect();
    for (int i = 0; i < SENT; i++) CHECK(raise(SIGPWR) == 0);
    CHECK(sum(&handled) == 0 && sum(&with_context) == SENT);
}

int main(void) {
    GC_INIT();
    with_limit(RLIM_INFINITY);
    with_limit(0);
    return 0;
}
