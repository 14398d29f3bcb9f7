// xtask: under larder run
/* Where writes are noticed by faults, no thread is stopped inside the handler: another one's write to the page that it has just made
 * writable would be missed. So the stop's signal is masked there, also where the tool stands between the library and sigaction. On the stock library,
 * and where writes are noticed otherwise, this program shows nothing. */
#include "check.h"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The kernel's own action: what sigaction says may be another. */
struct action {
    void *handler;
    unsigned long flags;
    void *restorer;
    unsigned long mask;
};

int main(void) {
    const char *watch = getenv("LARDER_WATCH");
    struct action action = {0, 0, 0, 0};
    /* Cycles mark beside the program, however short they are. */
    setenv("LARDER_PAUSE", "1us", 1);
    GC_init();
    char **list = 0;
    for (int i = 0; i < 400000; i++) {
        char **p = GC_malloc(64 + i % 100);
        p[0] = i % 4 ? (char *)list : 0;
        list = p;
    }
    CHECK(syscall(SYS_rt_sigaction, SIGSEGV, 0, &action, sizeof action.mask) == 0);
    if (getenv("LARDER_CONCURRENT") && watch && strcmp(watch, "mprotect") == 0) {
        CHECK(action.handler != 0);
        CHECK(action.mask >> (GC_get_suspend_signal() - 1) & 1);
    }
    return 0;
}
