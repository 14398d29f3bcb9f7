/* One thread forks while others allocate and collect: each child has a working heap. */
#include "forks.h"

int main(void) {
    GC_set_handle_fork(1);
    GC_init();
    fork_beside_threads(fork, 100, BUSY / 2);
    return 0;
}
