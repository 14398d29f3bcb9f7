// xtask: larder-only
/* GC_set_handle_fork(-1), and forks by the system call itself, which runs no handlers of pthread_atfork. The C library
 * knows nothing of them either, so libgc's child may wait for ever. */
#include "forks.h"
#include <sys/syscall.h>

static pid_t forks(void) { BY_HAND((pid_t)syscall(SYS_fork)); }

int main(void) {
    GC_set_handle_fork(-1);
    GC_init();
    fork_beside_threads(forks, 60, 1);
    return 0;
}
