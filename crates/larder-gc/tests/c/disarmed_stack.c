// xtask: under larder run
/* An alternate stack with SS_AUTODISARM, of which the kernel says nothing while a handler runs there, so that a second handler runs there as well:
 * whoever is stopped on it, or collects, has two stacks that are searched, and what lies between them is not. By library path alone such a stack
 * is not known, nor on libgc. */
#include "lists.h"
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef SS_AUTODISARM
#define SS_AUTODISARM (1u << 31)
#endif

enum { LENGTH = 500, BYTES = 1 << 17, CYCLES = 5 };

static volatile int inside, collected, collects;

static NOINLINE void wait_for_cycles(void) {
    GC_word *list = make_list(LENGTH);
    clear_stack();
    inside = 1;
    if (collects) {
        for (int i = 0; i < CYCLES; i++) {
            GC_gcollect();
            use_heap();
        }
    } else
        while (!collected) {}
    CHECK(length_of(list) == LENGTH);
}
static void waits(int signal) {
    CHECK(signal == SIGUSR1);
    wait_for_cycles();
}
/* The second handler, on the same stack. */
static void raises(int signal) {
    GC_word *list = make_list(LENGTH);
    CHECK(signal == SIGUSR2 && raise(SIGUSR1) == 0 && length_of(list) == LENGTH);
}

static void *on_such_a_stack(void *which) {
    char *memory = mmap(0, 3 * BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED && mprotect(memory + BYTES, BYTES, PROT_READ | PROT_WRITE) == 0);
    stack_t own = {.ss_sp = memory + BYTES, .ss_size = BYTES, .ss_flags = (int)SS_AUTODISARM}, none = {.ss_flags = SS_DISABLE};
    CHECK(sigaltstack(&own, 0) == 0);
    GC_word *list = make_list(LENGTH);
    clear_stack();
    CHECK(raise((int)(GC_word)which) == 0);
    CHECK(length_of(list) == LENGTH);
    CHECK(sigaltstack(&none, 0) == 0 && munmap(memory, 3 * BYTES) == 0);
    return 0;
}
static void *collector(void *unused) {
    while (!inside) sched_yield();
    for (int i = 0; i < CYCLES; i++) {
        GC_gcollect();
        for (int j = 0; j < 20; j++) use_heap();
    }
    collected = 1;
    return unused;
}

/* On a thread of its own or on the first one; with a second thread that collects, or in the handler. */
static void with(int signal, int in_first) {
    for (collects = 0; collects < 2; collects++) {
        pthread_t t, other;
        inside = collected = 0;
        if (!collects) CHECK(GC_pthread_create(&other, 0, collector, 0) == 0);
        if (in_first) on_such_a_stack((void *)(GC_word)signal);
        else CHECK(GC_pthread_create(&t, 0, on_such_a_stack, (void *)(GC_word)signal) == 0 && GC_pthread_join(t, 0) == 0);
        if (!collects) CHECK(GC_pthread_join(other, 0) == 0);
    }
}

int main(void) {
    GC_init();
    struct sigaction action = {.sa_handler = waits, .sa_flags = SA_ONSTACK};
    CHECK(sigaction(SIGUSR1, &action, 0) == 0);
    action.sa_handler = raises;
    CHECK(sigaction(SIGUSR2, &action, 0) == 0);
    for (int in_first = 0; in_first < 2; in_first++) {
        with(SIGUSR1, in_first);
        with(SIGUSR2, in_first);
    }
    return 0;
}
