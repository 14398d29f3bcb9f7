// xtask: under larder run, calls write to the heap
/* Threads that sleep in blocking calls are not woken to be stopped: the kernel counts how often a thread went to sleep, and
 * the count stays. What only their stacks, registers and arguments refer to survives, and each call ends as if nothing had
 * been: no EINTR, timeouts exact. Without the tool, and on the stock library, they are signalled. */
#include "lists.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

static int in, out;        /* The two ends of a pipe, or of a pair of sockets. */
static volatile pid_t sleeper_id;
static sem_t door;
static pthread_mutex_t mutex;
static pthread_cond_t condition;
static pthread_rwlock_t rwlock;
static pthread_barrier_t barrier;
static mtx_t c11_mutex;
static int ready, queue;
static pthread_t other;
static pid_t child;

/* How often a thread has gone to sleep by itself, or -1; and whether it sleeps. */
static long sleeps(pid_t id, int *asleep) {
    char path[64], text[4096];
    snprintf(path, sizeof path, "/proc/self/task/%d/status", id);
    FILE *file = fopen(path, "r");
    if (file == 0) return -1;
    size_t bytes = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[bytes] = 0;
    char *state = strstr(text, "State:\t"), *count = strstr(text, "\nvoluntary_ctxt_switches:");
    CHECK(state && count);
    *asleep = state[7] == 'S';
    return atol(count + 25);
}

static struct timespec soon(clockid_t clock, int seconds) {
    struct timespec t;
    clock_gettime(clock, &t);
    t.tv_sec += seconds;
    return t;
}

static void write_x(void) { CHECK(write(out, "x", 1) == 1); }
static void post(void) { CHECK(sem_post(&door) == 0); }
static void unlock(void) { CHECK(pthread_mutex_unlock(&mutex) == 0); }
static void c11_unlock(void) { CHECK(mtx_unlock(&c11_mutex) == thrd_success); }
static void rwunlock(void) { CHECK(pthread_rwlock_unlock(&rwlock) == 0); }
static void wake(void) {
    CHECK(pthread_mutex_lock(&mutex) == 0);
    ready = 1;
    CHECK(pthread_cond_signal(&condition) == 0 && pthread_mutex_unlock(&mutex) == 0);
}
static void meet(void) { CHECK(pthread_barrier_wait(&barrier) <= 0); }
static void end_child(void) { CHECK(kill(child, SIGTERM) == 0); }
static void usr2(void) { CHECK(syscall(SYS_tgkill, getpid(), sleeper_id, SIGUSR2) == 0); }
static void drain(void) {
    static char bytes[1 << 16];
    while (read(in, bytes, sizeof bytes) == sizeof bytes) {}
}
static void send_message(void) {
    struct { long type; char text[1]; } message = {1, {'x'}};
    CHECK(msgsnd(queue, &message, 1, 0) == 0);
}
static void nothing(void) {}

/* Longer than a loaded machine, or one that stands still for a while, needs to wake the sleeper. */
enum { LONG_SECONDS = 900 };
static const struct timespec long_time = {LONG_SECONDS, 0};
/* A short one, long enough for some stops. */
#define SHORT_NS 300000000L

static void *waits_for_door(void *unused) {
    while (sem_wait(&door) != 0) {}
    return unused;
}

static char path[64];
static void connect_to(void) {
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    strcpy(a.sun_path + 1, path);
    int s = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK(connect(s, (struct sockaddr *)&a, sizeof a) == 0);
    close(s);
}
static int held = -1;
static void file_unlock(void) { CHECK(flock(held, LOCK_UN) == 0); close(held); }
static void open_other_end(void) {
    int f = open(path, O_WRONLY);
    CHECK(f >= 0);
    close(f);
}

static void none(void) {}
static void piped(void) {
    int ends[2];
    CHECK(pipe(ends) == 0);
    in = ends[0];
    out = ends[1];
}
static void full(void) {
    static char bytes[4096];
    piped();
    CHECK(fcntl(out, F_SETFL, O_NONBLOCK) == 0);
    while (write(out, bytes, sizeof bytes) > 0) {}
    CHECK(fcntl(out, F_SETFL, 0) == 0);
    CHECK(fcntl(in, F_SETFL, O_NONBLOCK) == 0);
}
static void sockets(void) {
    int ends[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    in = ends[0];
    out = ends[1];
}
static void listening(void) {
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    snprintf(path, sizeof path, "larder-sleeping-%d", getpid());
    strcpy(a.sun_path + 1, path);
    in = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK(bind(in, (struct sockaddr *)&a, sizeof a) == 0 && listen(in, 1) == 0);
}
static void blocked_usr2(void) {
    sigset_t s;
    sigemptyset(&s);
    sigaddset(&s, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &s, 0);
}
static void locked(void) { CHECK(pthread_mutex_lock(&mutex) == 0); }
static void c11_locked(void) { CHECK(mtx_lock(&c11_mutex) == thrd_success); }
static void write_locked(void) { CHECK(pthread_rwlock_wrlock(&rwlock) == 0); }
static void thread(void) { CHECK(GC_pthread_create(&other, 0, waits_for_door, 0) == 0); }
static void forked(void) {
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        for (;;) pause();
    }
}
static void message_queue(void) { CHECK((queue = msgget(IPC_PRIVATE, 0600)) >= 0); }
static void in_folder(const char *what) {
    const char *folder = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/larder-%s-%d", folder && strlen(folder) < 30 ? folder : "/tmp", what, getpid());
}
static void file_locked(void) {
    in_folder("lock");
    held = open(path, O_RDWR | O_CREAT, 0600);
    CHECK(held >= 0 && flock(held, LOCK_EX) == 0);
}
static void fifo(void) {
    in_folder("fifo");
    CHECK(mknod(path, S_IFIFO | 0600, 0) == 0);
}

/* A buffer for the next call, which takes it: who allocates may wait for a lock, and would look as if asleep in the call. */
static char *volatile spare;
static NOINLINE void make_spare(void) { spare = GC_malloc_atomic(64); }
/* Nothing but the call's argument refers to the buffer while it is filled. */
#define BYTE(call)                                 \
    do {                                           \
        char *b = spare;                           \
        spare = 0;                                 \
        CHECK((call) == 1 && b[0] == 'x');         \
    } while (0)

static void in_read(void) {
    BYTE(read(in, b, 1));
}
static void in_readv(void) {
    BYTE(readv(in, &(struct iovec){b, 1}, 1));
}
static void in_write(void) {
    CHECK(write(out, "x", 1) == 1);
}
static void in_poll(void) {
    CHECK(poll(&(struct pollfd){in, POLLIN, 0}, 1, LONG_SECONDS * 1000) == 1);
}
static void in_poll_timeout(void) {
    CHECK(poll(&(struct pollfd){in, POLLIN, 0}, 1, 300) == 0);
}
static void in_ppoll(void) {
    CHECK(ppoll(&(struct pollfd){in, POLLIN, 0}, 1, &long_time, 0) == 1);
}
static void in_select(void) {
    fd_set s;
    FD_ZERO(&s);
    FD_SET(in, &s);
    struct timeval t = {LONG_SECONDS, 0};
    CHECK(select(in + 1, &s, 0, 0, &t) == 1 && FD_ISSET(in, &s));
}
static void in_pselect(void) {
    fd_set s;
    FD_ZERO(&s);
    FD_SET(in, &s);
    CHECK(pselect(in + 1, &s, 0, 0, &long_time, 0) == 1);
}
static void in_epoll_wait(void) {
    int e = epoll_create1(0);
    struct epoll_event w = {.events = EPOLLIN}, g;
    CHECK(epoll_ctl(e, EPOLL_CTL_ADD, in, &w) == 0);
    CHECK(epoll_wait(e, &g, 1, LONG_SECONDS * 1000) == 1);
    close(e);
}
static void in_nanosleep(void) {
    CHECK(nanosleep(&(struct timespec){0, SHORT_NS}, 0) == 0);
}
static void in_clock_nanosleep(void) {
    CHECK(clock_nanosleep(CLOCK_MONOTONIC, 0, &(struct timespec){0, SHORT_NS}, 0) == 0);
}
static void in_usleep(void) {
    CHECK(usleep(SHORT_NS / 1000) == 0);
}
static void in_sleep(void) {
    CHECK(sleep(1) == 0);
}
static void in_sigwait(void) {
    sigset_t s;
    int got;
    sigemptyset(&s);
    sigaddset(&s, SIGUSR2);
    CHECK(sigwait(&s, &got) == 0 && got == SIGUSR2);
}
static void in_sem_wait(void) {
    CHECK(sem_wait(&door) == 0);
}
static void in_sem_timedwait(void) {
    struct timespec t = soon(CLOCK_REALTIME, LONG_SECONDS);
    CHECK(sem_timedwait(&door, &t) == 0);
}
static void in_sem_timeout(void) {
    struct timespec t = soon(CLOCK_REALTIME, 1);
    CHECK(sem_timedwait(&door, &t) == -1 && errno == ETIMEDOUT);
}
static void in_mutex_lock(void) {
    CHECK(pthread_mutex_lock(&mutex) == 0 && pthread_mutex_unlock(&mutex) == 0);
}
static void in_mtx_lock(void) {
    CHECK(mtx_lock(&c11_mutex) == thrd_success && mtx_unlock(&c11_mutex) == thrd_success);
}
static void in_cond_wait(void) {
    CHECK(pthread_mutex_lock(&mutex) == 0);
    while (!ready) CHECK(pthread_cond_wait(&condition, &mutex) == 0);
    unlock();
}
static void in_cond_timedwait(void) {
    struct timespec t = soon(CLOCK_REALTIME, 1);
    CHECK(pthread_mutex_lock(&mutex) == 0);
    CHECK(pthread_cond_timedwait(&condition, &mutex, &t) == ETIMEDOUT);
    unlock();
}
static void in_join(void) {
    CHECK(pthread_join(other, 0) == 0);
}
static void in_barrier_wait(void) {
    meet();
}
static void in_rdlock(void) {
    CHECK(pthread_rwlock_rdlock(&rwlock) == 0);
    rwunlock();
}
static void in_wrlock(void) {
    CHECK(pthread_rwlock_wrlock(&rwlock) == 0);
    rwunlock();
}
/* The same functions under names that only programs of before 2021 know. */
#define OLDER(name)                                           \
    extern int older_##name(void *);                          \
    __asm__(".symver older_" #name ", __" #name "@GLIBC_2.2.5")
OLDER(pthread_mutex_lock);
OLDER(pthread_rwlock_rdlock);
OLDER(pthread_rwlock_wrlock);
static void in_older_mutex_lock(void) {
    CHECK(older_pthread_mutex_lock(&mutex) == 0 && pthread_mutex_unlock(&mutex) == 0);
}
static void in_older_rdlock(void) {
    CHECK(older_pthread_rwlock_rdlock(&rwlock) == 0);
    rwunlock();
}
static void in_older_wrlock(void) {
    CHECK(older_pthread_rwlock_wrlock(&rwlock) == 0);
    rwunlock();
}
static void in_accept(void) {
    int s = accept(in, 0, 0);
    CHECK(s >= 0);
    close(s);
}
static void in_recv(void) {
    BYTE(recv(in, b, 1, 0));
}
static void in_recvfrom(void) {
    BYTE(recvfrom(in, b, 1, 0, 0, 0));
}
static void in_recvmsg(void) {
    BYTE(recvmsg(in, &(struct msghdr){.msg_iov = &(struct iovec){b, 1}, .msg_iovlen = 1}, 0));
}
static void in_waitpid(void) {
    int s;
    CHECK(waitpid(child, &s, 0) == child && WTERMSIG(s) == SIGTERM);
}
static void in_waitid(void) {
    siginfo_t i;
    CHECK(waitid(P_PID, child, &i, WEXITED) == 0 && i.si_status == SIGTERM);
}
static void in_msgrcv(void) {
    struct { long type;
    char text[1];
    } m;
    CHECK(msgrcv(queue, &m, 1, 0, 0) == 1 && m.text[0] == 'x');
    msgctl(queue, IPC_RMID, 0);
}
static void in_flock(void) {
    int f = open(path, O_RDWR);
    CHECK(f >= 0 && flock(f, LOCK_EX) == 0);
    close(f);
}
static void in_open_fifo(void) {
    int f = open(path, O_RDONLY);
    CHECK(f >= 0);
    close(f);
}

/* Each call has a name, what is made ready, what the sleeper does, and how it is woken; where the last is `nothing` it times
 * out. */
static const struct call {
    const char *name;
    void (*begin)(void), (*call)(void), (*end)(void);
} calls[] = {
    {"read", piped, in_read, write_x},
    {"readv", piped, in_readv, write_x},
    {"write", full, in_write, drain},
    {"poll", piped, in_poll, write_x},
    {"poll_timeout", piped, in_poll_timeout, nothing},
    {"ppoll", piped, in_ppoll, write_x},
    {"select", piped, in_select, write_x},
    {"pselect", piped, in_pselect, write_x},
    {"epoll_wait", piped, in_epoll_wait, write_x},
    {"nanosleep", none, in_nanosleep, nothing},
    {"clock_nanosleep", none, in_clock_nanosleep, nothing},
    {"usleep", none, in_usleep, nothing},
    {"sleep", none, in_sleep, nothing},
    {"sigwait", blocked_usr2, in_sigwait, usr2},
    {"sem_wait", none, in_sem_wait, post},
    {"sem_timedwait", none, in_sem_timedwait, post},
    {"sem_timeout", none, in_sem_timeout, nothing},
    {"mutex_lock", locked, in_mutex_lock, unlock},
    {"mtx_lock", c11_locked, in_mtx_lock, c11_unlock},
    {"cond_wait", none, in_cond_wait, wake},
    {"cond_timedwait", none, in_cond_timedwait, nothing},
    {"join", thread, in_join, post},
    {"barrier_wait", none, in_barrier_wait, meet},
    {"rdlock", write_locked, in_rdlock, rwunlock},
    {"wrlock", write_locked, in_wrlock, rwunlock},
    {"older_mutex_lock", locked, in_older_mutex_lock, unlock},
    {"older_rdlock", write_locked, in_older_rdlock, rwunlock},
    {"older_wrlock", write_locked, in_older_wrlock, rwunlock},
    {"accept", listening, in_accept, connect_to},
    {"recv", sockets, in_recv, write_x},
    {"recvfrom", sockets, in_recvfrom, write_x},
    {"recvmsg", sockets, in_recvmsg, write_x},
    {"waitpid", forked, in_waitpid, end_child},
    {"waitid", forked, in_waitid, end_child},
    {"msgrcv", message_queue, in_msgrcv, send_message},
    {"flock", file_locked, in_flock, file_unlock},
    {"open_fifo", fifo, in_open_fifo, open_other_end},
};

/* The list is in a register while the thread sleeps, where the compiler keeps registers over calls. */
static void *sleeper(void *argument) {
    const struct call *call = argument;
    GC_word *list = make_list(500);
    make_spare();
    clear_stack();
    sleeper_id = (pid_t)syscall(SYS_gettid);
    call->call();
    CHECK(length_of(list) == 500);
    return 0;
}

static void test(const struct call *call) {
    ready = 0;
    sleeper_id = 0;
    path[0] = 0;
    /* Ends a cycle that is under way beside the program, and the next one does not begin for what the sleeper allocates: a thread that is
     * stopped, or looked at, just before it comes to its call sleeps as well, and may get a signal in the call. */
    GC_gcollect();
    call->begin();
    pthread_t t;
    CHECK(GC_pthread_create(&t, 0, sleeper, (void *)call) == 0);
    while (sleeper_id == 0) sched_yield();
    int asleep = 0;
    long before = 0;
    for (int looks = 0; looks < 20;) {
        long now = sleeps(sleeper_id, &asleep);
        if (now < 0) return; /* No /proc: nothing can be shown. */
        /* Before the first time it may have lost its CPU on the way to sleep, and looks like one that sleeps. */
        looks = asleep && now > 0 && now == before ? looks + 1 : 0;
        before = now;
    }
    for (int i = 0; i < 5; i++) {
        GC_gcollect();
        make_list(20000);
    }
    long after = sleeps(sleeper_id, &asleep);
    /* One that times out may be through by now. */
    if (call->end != nothing && (!asleep || after != before)) {
        fprintf(stderr, "%s: woken: %ld, %ld\n", call->name, before, after);
        _exit(1);
    }
    call->end();
    CHECK(GC_pthread_join(t, 0) == 0);
    close(in);
    close(out);
    in = out = -1;
    if (path[0] == '/') CHECK(unlink(path) == 0);
}

int main(void) {
    GC_init();
    sem_init(&door, 0, 0);
    pthread_mutex_init(&mutex, 0);
    pthread_cond_init(&condition, 0);
    pthread_rwlock_init(&rwlock, 0);
    pthread_barrier_init(&barrier, 0, 2);
    mtx_init(&c11_mutex, mtx_plain);
    in = out = -1;
    blocked_usr2();
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) test(&calls[i]);
    return 0;
}
