/* GC_set_handle_fork(-1): the program calls GC_atfork_* around each fork itself. */
#include "forks.h"

static pid_t forks(void) { BY_HAND(fork()); }

int main(void) {
    GC_set_handle_fork(-1);
    GC_init();
    fork_beside_threads(forks, 60, 1);
    return 0;
}
