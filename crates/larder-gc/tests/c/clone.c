// xtask: under larder run
/* A child of clone that shares its parent's memory, and has its thread-local storage too, sleeps in blocking calls while another thread collects:
 * its stack is not taken for its parent's, whether the parent waits for it or goes on. Nor is a handler that runs in the child one of the parent's.
 * On the stock library, and without the tool, a stop waits for a parent that waits. */
#include "lists.h"
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LENGTH = 500, STACK = 1 << 16, CYCLES = 5 };

static int in, out;
static volatile int asleep, collected;
static char static_stack[STACK] __attribute__((aligned(16)));

static void sleep_in_a_call(void) {
    char byte;
    asleep = 1;
    while (read(in, &byte, 1) != 1) {}
}
static void handler(int signal) {
    (void)signal;
    sleep_in_a_call();
}
static int returns(void *unused) { return unused != 0; }
static int sleeps(void *unused) {
    (void)unused;
    sleep_in_a_call();
    _exit(0);
}
static int sleeps_in_a_handler(void *unused) {
    (void)unused;
    syscall(SYS_tgkill, syscall(SYS_getpid), syscall(SYS_gettid), SIGUSR1);
    _exit(0);
}

/* Collects while the child sleeps, and wakes it. */
static void *collector(void *unused) {
    while (!asleep) sched_yield();
    for (int i = 0; i < CYCLES; i++) {
        GC_gcollect();
        for (int j = 0; j < 20; j++) use_heap();
    }
    collected = 1;
    CHECK(write(out, "x", 1) == 1);
    return unused;
}

static NOINLINE void with_child(int (*f)(void *), char *stack, int flags) {
    GC_word *list = make_list(LENGTH);
    int status;
    pthread_t t;
    asleep = collected = 0;
    clear_stack();
    CHECK(GC_pthread_create(&t, 0, collector, 0) == 0);
    pid_t child = clone(f, stack + STACK, flags | CLONE_VM | SIGCHLD, 0);
    CHECK(child > 0);
    /* Its own calls, and its objects, beside those of a child that still sleeps. */
    while (!collected) {
        usleep(10);
        use_heap();
    }
    CHECK(GC_pthread_join(t, 0) == 0);
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(length_of(list) == LENGTH);
}

int main(void) {
    int ends[2];
    GC_init();
    CHECK(pipe(ends) == 0);
    in = ends[0];
    out = ends[1];
    CHECK(signal(SIGUSR1, handler) == SIG_DFL);
    char *mapped = mmap(0, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(mapped != MAP_FAILED);
    for (int i = 0; i < 3; i++) {
        with_child(sleeps, static_stack, CLONE_VFORK);
        with_child(sleeps, mapped, CLONE_VFORK);
        with_child(sleeps_in_a_handler, mapped, CLONE_VFORK);
    }
    /* The seventh argument. */
    int flags = CLONE_VM | CLONE_VFORK | CLONE_CHILD_SETTID | SIGCHLD, status;
    pid_t its = 0, child = clone(returns, mapped + STACK, flags, 0, 0, 0, &its);
    CHECK(child > 0 && its == child && waitpid(child, &status, 0) == child && status == 0);
    with_child(sleeps, mapped, 0);
    with_child(sleeps_in_a_handler, static_stack, 0);
    return 0;
}
