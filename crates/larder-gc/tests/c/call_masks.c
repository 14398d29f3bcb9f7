// xtask: under larder run
/* Calls that change the mask while they sleep: a handler that runs in one may be stopped there, since the mask does not hold the stop signal, whatever
 * the program wants. All else is as it says. */
#include "check.h"
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static sigset_t all_but_usr1;
static int epoll;
static const struct timespec no_time = {0, 0};

/* As the kernel has it. */
static unsigned long mask(void) {
    unsigned long now;
    CHECK(syscall(SYS_rt_sigprocmask, SIG_BLOCK, 0, &now, sizeof now) == 0);
    return now;
}
static int blocks(unsigned long set, int signal) { return set >> (signal - 1) & 1; }

static volatile int ran;
static void handler(int signal) {
    CHECK(signal == SIGUSR1);
    unsigned long now = mask();
    CHECK(!blocks(now, GC_get_suspend_signal()));
    CHECK(blocks(now, SIGUSR2) && blocks(now, SIGTERM));
    ran++;
}

static int in_sigsuspend(const sigset_t *set) { return sigsuspend(set); }
static int in_ppoll(const sigset_t *set) { return ppoll(0, 0, set ? 0 : &no_time, set); }
static int in_pselect(const sigset_t *set) { return pselect(0, 0, 0, 0, set ? 0 : &no_time, set); }
static struct epoll_event event;
static int in_epoll_pwait(const sigset_t *set) { return epoll_pwait(epoll, &event, 1, set ? -1 : 0, set); }
static int in_epoll_pwait2(const sigset_t *set) {
    int result = epoll_pwait2(epoll, &event, 1, set ? 0 : &no_time, set);
    /* Linux 5.11. */
    return result == -1 && errno == ENOSYS ? in_epoll_pwait(set) : result;
}
/* BSD's, with 32 signals, under a name by which the header does not have it; and the one behind both. */
extern int bsd_sigpause(int);
__asm__(".symver bsd_sigpause, sigpause@GLIBC_2.2.5");
extern int __sigpause(int, int);
static int bits(void) { return ~(1 << (SIGUSR1 - 1)); }
static int in_sigpause(const sigset_t *set) { return set ? bsd_sigpause(bits()) : 0; }
static int in_either_sigpause(const sigset_t *set) { return set ? __sigpause(bits(), 0) : 0; }

static int (*const calls[])(const sigset_t *) = {in_ppoll, in_pselect, in_epoll_pwait, in_epoll_pwait2, in_sigpause, in_either_sigpause, in_sigsuspend};
enum { CALLS = sizeof calls / sizeof *calls };

int main(void) {
    sigset_t usr1;
    GC_init();
    struct sigaction action = {.sa_handler = handler};
    CHECK(sigaction(SIGUSR1, &action, 0) == 0);
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    CHECK(sigprocmask(SIG_BLOCK, &usr1, 0) == 0);
    sigfillset(&all_but_usr1);
    sigdelset(&all_but_usr1, SIGUSR1);
    epoll = epoll_create1(0);
    CHECK(epoll >= 0);
    unsigned long before = mask();
    for (int i = 0; i < CALLS; i++) {
        /* It waits for the thread, and arrives where the call opens it. */
        CHECK(raise(SIGUSR1) == 0 && ran == i);
        CHECK(calls[i](&all_but_usr1) == -1 && errno == EINTR);
        CHECK(ran == i + 1);
        CHECK(mask() == before && sigismember(&all_but_usr1, GC_get_suspend_signal()) == 1);
        /* No mask changes none. */
        if (i < CALLS - 1) CHECK(raise(SIGUSR1) == 0 && calls[i](0) == 0 && ran == i + 1);
        if (i < CALLS - 1) CHECK(sigtimedwait(&usr1, 0, &no_time) == SIGUSR1);
    }
    return 0;
}
