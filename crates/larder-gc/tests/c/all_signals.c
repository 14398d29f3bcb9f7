// xtask: under larder run
/* Who waits for all signals does not get the one that stops threads: not by sigwait and its relatives, nor from a descriptor. The signal
 * is blocked by a system call, which nothing stands before, so that it waits for the thread together with another one. */
#include "check.h"
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static sigset_t all;
static const struct timespec no_time = {0, 0};

static void change(int how, int signal) {
    unsigned long set = 1ul << (signal - 1);
    CHECK(syscall(SYS_rt_sigprocmask, how, &set, 0, sizeof set) == 0);
}
static void send(int signal) { CHECK(syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), signal) == 0); }

static int by_sigwait(void) {
    int got;
    CHECK(sigwait(&all, &got) == 0);
    return got;
}
static int by_sigwaitinfo(void) {
    siginfo_t info;
    int got = sigwaitinfo(&all, &info);
    CHECK(info.si_signo == got);
    return got;
}
static int by_sigtimedwait(void) { return sigtimedwait(&all, 0, &no_time); }
static int descriptor;
static int by_descriptor(void) {
    struct signalfd_siginfo info;
    CHECK(read(descriptor, &info, sizeof info) == sizeof info);
    return (int)info.ssi_signo;
}

int main(void) {
    GC_init();
    int stop = GC_get_suspend_signal();
    /* Of several signals that wait, the lowest comes first. */
    const int other = SIGRTMIN + 5;
    CHECK(stop < other);
    sigfillset(&all);
    change(SIG_BLOCK, stop);
    change(SIG_BLOCK, other);
    descriptor = signalfd(-1, &all, SFD_NONBLOCK);
    CHECK(descriptor >= 0);

    int (*ways[])(void) = {by_sigwait, by_sigwaitinfo, by_sigtimedwait, by_descriptor};
    send(stop);
    for (int i = 0; i < 4; i++) {
        send(other);
        CHECK(ways[i]() == other);
        CHECK(sigismember(&all, stop) == 1);
    }
    CHECK(sigtimedwait(&all, 0, &no_time) == -1 && errno == EAGAIN);
    CHECK(poll(&(struct pollfd){descriptor, POLLIN, 0}, 1, 0) == 0);
    /* As the kernel has it, no set is one at a bad address. */
    CHECK(sigtimedwait(opaque(0), 0, &no_time) == -1 && errno == EFAULT);
    change(SIG_UNBLOCK, stop);
    GC_gcollect();
    return 0;
}
