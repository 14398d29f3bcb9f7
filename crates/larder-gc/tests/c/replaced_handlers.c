// xtask: under larder run
/* However many handlers a signal has had, whoever installs the next one is told of the last one, and that one runs. So it is before the library
 * begins, after, and for the signal that stops threads. A program that asks the kernel itself may install what it was told. */
#include "check.h"
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

static volatile int ran = -1;
#define HANDLER(n) static void handler_##n(int signal) { (void)signal; ran = n; }
HANDLER(0) HANDLER(1) HANDLER(2) HANDLER(3) HANDLER(4) HANDLER(5) HANDLER(6)
enum { HANDLERS = 7 };
static void (*const handlers[HANDLERS])(int) = {handler_0, handler_1, handler_2, handler_3, handler_4, handler_5, handler_6};

static void (*by_sigaction(int signal, void (*handler)(int)))(int) {
    struct sigaction new = {.sa_handler = handler}, old;
    CHECK(sigaction(signal, &new, &old) == 0);
    return old.sa_handler;
}
static void (*by_signal(int signal_number, void (*handler)(int)))(int) { return signal(signal_number, handler); }

typedef void (*install_function(int, void (*)(int)))(int);
static void replace(int signal, install_function *install) {
    /* Whoever comes back to the first one each time needs a new place for each other one. */
    for (int first = 0; first < HANDLERS; first++)
        for (int i = 0; i < HANDLERS; i++) {
            install(signal, handlers[first]);
            CHECK(install(signal, handlers[i]) == handlers[first]);
            struct sigaction now;
            CHECK(sigaction(signal, 0, &now) == 0 && now.sa_handler == handlers[i]);
            ran = -1;
            CHECK(raise(signal) == 0 && ran == i);
        }
    CHECK(install(signal, SIG_DFL) == handlers[HANDLERS - 1]);
}

/* The kernel's own action. */
struct action {
    void (*handler)(int);
    unsigned long flags;
    void *restorer;
    unsigned long mask;
};
static void as_the_kernel_says(int signal) {
    struct action action = {0, 0, 0, 0};
    by_sigaction(signal, handler_3);
    CHECK(syscall(SYS_rt_sigaction, signal, 0, &action, sizeof action.mask) == 0);
    by_sigaction(signal, SIG_IGN);
    by_sigaction(signal, action.handler);
    ran = -1;
    CHECK(raise(signal) == 0 && ran == 3);
    CHECK(by_sigaction(signal, SIG_DFL) == handler_3);
}

static void all(int signal) {
    replace(signal, by_sigaction);
    replace(signal, by_signal);
}

int main(void) {
    all(SIGUSR1);
    as_the_kernel_says(SIGUSR1);
    GC_init();
    all(SIGUSR1);
    all(SIGUSR2);
    as_the_kernel_says(SIGUSR2);
    all(GC_get_suspend_signal());
    return 0;
}
