// xtask: under larder run
/* Where writes are noticed by faults, no thread is stopped inside the handler: another one's write to the page that it has just made
 * writable would be missed. So the stop's signal is masked there, also where the tool stands between the library and sigaction. Where writes
 * are noticed otherwise, this program shows nothing. */
#include "check.h"

#include <signal.h>
#include <stdbool.h>
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
    const bool by_faults = getenv("LARDER_CONCURRENT") && watch && strcmp(watch, "mprotect") == 0;
    char **list = 0;
    /* The handler is there from the first cycle on that gets so far. */
    do {
        for (int i = 0; i < 100000; i++) {
            char **p = GC_malloc(64 + i % 100);
            p[0] = i % 4 ? (char *)list : 0;
            list = p;
        }
        CHECK(syscall(SYS_rt_sigaction, SIGSEGV, 0, &action, sizeof action.mask) == 0);
    } while (by_faults && !action.handler);
    if (by_faults) CHECK(action.mask >> (GC_get_suspend_signal() - 1) & 1);
    return 0;
}
