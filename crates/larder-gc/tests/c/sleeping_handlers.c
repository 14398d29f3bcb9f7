// xtask: under larder run
/* What interrupts a thread that sleeps in a blocking call is a mutator: signal handlers, also those that collect, sleep
 * themselves, or leave by longjmp; the cleanup of a cancelled call. Collections come all the time. A handler that ran in a
 * stopped world, or a thread that went on in one, would lose objects or find them changed. */
#include "check.h"
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Longer than a loaded machine, or one that stands still for a while, needs for the next signal. */
enum { LONG_SECONDS = 900 };

static int pipe_ends[2], over;
static sem_t go, done, never;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static volatile int handled, cleaned;
static __thread sigjmp_buf out;
static __thread GC_word *kept;

static NOINLINE void use_heap(int objects) {
    GC_word *list = 0;
    int n = 0;
    for (int i = 0; i < objects; i++) {
        GC_word *cell = GC_malloc(16 + i % 20 * 16);
        CHECK(cell[0] == 0 && cell[1] == 0);
        cell[0] = (GC_word)list;
        cell[1] = 1000 + i;
        list = cell;
    }
    for (int i = objects - 1; list; list = (GC_word *)list[0], n++, i--) CHECK((int)list[1] == 1000 + i);
    CHECK(n == objects);
}

/* Collections, until the end: each cycle would free what a stopped mutator made meanwhile. */
static void *collector(void *unused) {
    while (!__atomic_load_n(&over, __ATOMIC_RELAXED)) {
        GC_gcollect();
        use_heap(300);
    }
    return unused;
}

static void allocates(int signal) {
    int before = errno;
    CHECK(signal == SIGUSR1);
    use_heap(200);
    __atomic_add_fetch(&handled, 1, __ATOMIC_RELAXED);
    errno = before;
}
static void collects(int signal, siginfo_t *info, void *context) {
    CHECK(signal == SIGUSR2 && info->si_signo == SIGUSR2 && context != 0);
    GC_gcollect();
    use_heap(50);
    __atomic_add_fetch(&handled, 1, __ATOMIC_RELAXED);
}
/* A region inside a handler inside a region. */
static void sleeps(int signal) {
    GC_word *cell = GC_malloc(32);
    cell[1] = (GC_word)signal;
    nanosleep(&(struct timespec){0, 100000}, 0);
    CHECK(cell[0] == 0 && (int)cell[1] == signal);
    use_heap(20);
    __atomic_add_fetch(&handled, 1, __ATOMIC_RELAXED);
}
static void jumps(int signal) {
    CHECK(signal == SIGURG);
    use_heap(20);
    siglongjmp(out, 1);
}

static void *reader(void *id) {
    GC_word *list = 0;
    for (int i = 0; i < 100; i++) {
        GC_word *cell = GC_malloc(32);
        cell[0] = (GC_word)list;
        cell[1] = 7;
        list = cell;
    }
    *(volatile pid_t *)id = (pid_t)syscall(SYS_gettid);
    char byte;
    CHECK(read(pipe_ends[0], &byte, 1) == 1);
    int n = 0;
    for (; list; list = (GC_word *)list[0], n++) CHECK(list[1] == 7);
    CHECK(n == 100);
    return 0;
}
static void install(int signal, void (*handler)(int), int flags) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags}, got;
    CHECK(sigaction(signal, &action, 0) == 0);
    CHECK(sigaction(signal, 0, &got) == 0 && got.sa_handler == handler && (got.sa_flags & ~0x04000000) == flags);
}
/* A thread in read, which is restarted after every handler. */
static void handlers_in_a_call(int rounds) {
    static volatile pid_t id;
    id = 0;
    install(SIGUSR1, allocates, SA_RESTART);
    install(SIGWINCH, sleeps, SA_RESTART);
    struct sigaction action = {.sa_sigaction = collects, .sa_flags = SA_SIGINFO | SA_RESTART}, got;
    sigfillset(&action.sa_mask);
    CHECK(sigaction(SIGUSR2, &action, 0) == 0 && sigaction(SIGUSR2, 0, &got) == 0 && got.sa_sigaction == collects);
    pthread_t t;
    CHECK(GC_pthread_create(&t, 0, reader, (void *)&id) == 0);
    while (id == 0) sched_yield();
    int kinds[3] = {SIGUSR1, SIGUSR2, SIGWINCH};
    for (int i = 0; i < rounds; i++) {
        int before = handled;
        CHECK(syscall(SYS_tgkill, getpid(), id, kinds[i % 3]) == 0);
        while (__atomic_load_n(&handled, __ATOMIC_RELAXED) == before) sched_yield();
    }
    CHECK(write(pipe_ends[1], "x", 1) == 1 && GC_pthread_join(t, 0) == 0);
}

/* Calls that are interrupted return EINTR, and what they say beside it is right. */
static void *interrupted(void *id) {
    *(volatile pid_t *)id = (pid_t)syscall(SYS_gettid);
    struct timespec rest = {0, 0};
    CHECK(nanosleep(&(struct timespec){LONG_SECONDS, 0}, &rest) == -1 && errno == EINTR && rest.tv_sec > 0 && rest.tv_sec <= LONG_SECONDS);
    sem_post(&done);
    CHECK(poll(&(struct pollfd){pipe_ends[0], POLLIN, 0}, 1, LONG_SECONDS * 1000) == -1 && errno == EINTR);
    sem_post(&done);
    CHECK(sem_wait(&never) == -1 && errno == EINTR);
    sem_post(&done);
    CHECK(pause() == -1 && errno == EINTR);
    sem_post(&done);
    return 0;
}
static void interruptions(void) {
    static volatile pid_t id;
    id = 0;
    install(SIGUSR1, allocates, 0);
    pthread_t t;
    CHECK(GC_pthread_create(&t, 0, interrupted, (void *)&id) == 0);
    while (id == 0) sched_yield();
    for (int i = 0; i < 4; i++) {
        /* One that comes before the call begins changes nothing. */
        while (sem_trywait(&done) != 0) {
            CHECK(syscall(SYS_tgkill, getpid(), id, SIGUSR1) == 0);
            usleep(1000);
        }
    }
    CHECK(GC_pthread_join(t, 0) == 0);
}

/* Out of a call by longjmp: afterwards the thread is a mutator like any other. */
enum { JUMPS = 200 };
static volatile int turn;
static void *jumper(void *id) {
    *(volatile pid_t *)id = (pid_t)syscall(SYS_gettid);
    for (volatile int i = 1; i <= JUMPS; i++) {
        kept = GC_malloc(64);
        kept[1] = (GC_word)i;
        if (sigsetjmp(out, 1) == 0) {
            turn = i;
            for (;;) poll(0, 0, 60000);
        }
        use_heap(100);
        CHECK(kept[0] == 0 && kept[1] == (GC_word)i);
    }
    return 0;
}
static void jumps_out(void) {
    static volatile pid_t id;
    install(SIGURG, jumps, 0);
    pthread_t t;
    CHECK(GC_pthread_create(&t, 0, jumper, (void *)&id) == 0);
    for (int i = 1; i <= JUMPS; i++) {
        while (turn != i) sched_yield();
        CHECK(syscall(SYS_tgkill, getpid(), id, SIGURG) == 0);
    }
    CHECK(GC_pthread_join(t, 0) == 0);
}

/* Cancelled in a call: the cleanup and the destructors use the heap. */
static void clean(void *cell) {
    use_heap(300);
    CHECK(((GC_word *)cell)[1] == 5);
    __atomic_add_fetch(&cleaned, 1, __ATOMIC_RELAXED);
}
static void clean_and_unlock(void *cell) {
    clean(cell);
    CHECK(pthread_mutex_unlock(&mutex) == 0);
}
static void *cancelled(void *which) {
    GC_word *cell = GC_malloc(32);
    cell[1] = 5;
    char byte;
    if ((GC_word)which == 0) {
        pthread_cleanup_push(clean, cell);
        sem_post(&go);
        read(pipe_ends[0], &byte, 1);
        pthread_cleanup_pop(0);
    } else if ((GC_word)which == 1) {
        pthread_mutex_lock(&mutex);
        pthread_cleanup_push(clean_and_unlock, cell);
        sem_post(&go);
        for (;;) pthread_cond_wait(&condition, &mutex);
        pthread_cleanup_pop(0);
    } else if ((GC_word)which == 2) {
        sigset_t set;
        sigfillset(&set);
        pthread_cleanup_push(clean, cell);
        sem_post(&go);
        for (;;) ppoll(0, 0, 0, &set);
        pthread_cleanup_pop(0);
    } else {
        pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, 0);
        pthread_cleanup_push(clean, cell);
        sem_post(&go);
        for (;;) nanosleep(&(struct timespec){0, 10000}, 0);
        pthread_cleanup_pop(0);
    }
    return 0;
}
static void cancellations(int rounds) {
    for (int i = 0; i < rounds; i++) {
        pthread_t t;
        void *result;
        CHECK(GC_pthread_create(&t, 0, cancelled, (void *)(GC_word)(i % 4)) == 0);
        while (sem_wait(&go) != 0) {}
        if (i % 8 < 4) usleep(200);
        CHECK(GC_pthread_cancel(t) == 0 && GC_pthread_join(t, &result) == 0 && result == PTHREAD_CANCELED);
        CHECK(cleaned == i + 1);
    }
}

/* On an alternate stack the thread is signalled; both stacks are searched. */
static void on_alternate_stack(void) {
    enum { BYTES = 1 << 16 };
    stack_t stack = {.ss_sp = mmap(0, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), .ss_size = BYTES};
    CHECK(sigaltstack(&stack, 0) == 0);
    install(SIGUSR1, sleeps, SA_ONSTACK);
    for (int i = 0; i < 50; i++) CHECK(raise(SIGUSR1) == 0);
    stack.ss_flags = SS_DISABLE;
    CHECK(sigaltstack(&stack, 0) == 0);
    CHECK(signal(SIGUSR1, SIG_IGN) == sleeps && signal(SIGUSR1, SIG_DFL) == SIG_IGN);
}

/* A fork in a handler in a call; the child collects and sleeps. */
static void forks(int signal) {
    int status;
    pid_t child = fork();
    CHECK(child >= 0 && signal == SIGUSR1);
    if (child == 0) {
        use_heap(1000);
        GC_gcollect();
        usleep(1000);
        use_heap(1000);
        _exit(0);
    }
    while (waitpid(child, &status, 0) != child) CHECK(errno == EINTR);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}
/* Whether a thread of another process sleeps with SIGUSR1 open. */
static int sleeps_openly(pid_t process, pid_t id) {
    char path[64], text[4096];
    snprintf(path, sizeof path, "/proc/%d/task/%d/status", process, id);
    FILE *file = fopen(path, "r");
    CHECK(file != 0);
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    char *state = strstr(text, "State:\t"), *mask = strstr(text, "SigBlk:\t");
    CHECK(state && mask);
    return state[7] == 'S' && !(strtoull(mask + 8, 0, 16) >> (SIGUSR1 - 1) & 1);
}
static void forks_in_a_call(void) {
    install(SIGUSR1, forks, SA_RESTART);
    pid_t id = (pid_t)syscall(SYS_gettid);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    for (int i = 0; i < 20; i++) {
        /* glibc's fork must not be interrupted by a handler that forks. */
        CHECK(pthread_sigmask(SIG_BLOCK, &set, 0) == 0);
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            while (!sleeps_openly(getppid(), id)) usleep(100);
            syscall(SYS_tgkill, getppid(), id, SIGUSR1);
            _exit(0);
        }
        CHECK(pthread_sigmask(SIG_UNBLOCK, &set, 0) == 0);
        int status;
        CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
}

int main(void) {
    GC_init();
    CHECK(pipe(pipe_ends) == 0);
    sem_init(&go, 0, 0);
    sem_init(&done, 0, 0);
    sem_init(&never, 0, 0);
    pthread_t t;
    CHECK(GC_pthread_create(&t, 0, collector, 0) == 0);
    handlers_in_a_call(600);
    interruptions();
    jumps_out();
    cancellations(300);
    on_alternate_stack();
    forks_in_a_call();
    __atomic_store_n(&over, 1, __ATOMIC_RELAXED);
    CHECK(GC_pthread_join(t, 0) == 0);
    return 0;
}
