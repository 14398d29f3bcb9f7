/* What a fork writes to is copied, in the parent and in the child: not what nobody has used. Once 70 pages more than with a program that has no heap were. */
#include "check.h"
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BEFORE = 3, FORKS = 20, MOST = 75 };

static long faults(int who) {
    struct rusage usage;
    CHECK(getrusage(who, &usage) == 0);
    return usage.ru_minflt;
}

static void fork_once(void) {
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) _exit(0);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

int main(void) {
    GC_INIT();
    CHECK(GC_MALLOC(100));
    for (int i = 0; i < BEFORE; i++) fork_once();
    const long before = faults(RUSAGE_SELF) + faults(RUSAGE_CHILDREN);
    for (int i = 0; i < FORKS; i++) fork_once();
    CHECK(faults(RUSAGE_SELF) + faults(RUSAGE_CHILDREN) - before < (long)FORKS * MOST);
    return 0;
}
