// xtask: larder-only
/* A handler on an alternate stack is a mutator like any other: it collects, it is stopped where it leaves a slow path or
 * waits for another's collection, and it sleeps in a blocking region. Each time two stacks are live, with memory
 * between them that cannot be read. (Larder once took an address on the one for the other's.) Of an alternate stack that was announced,
 * what has returned is not searched while a thread stands on it. (Larder once searched it, the collector's own frames with it.) libgc
 * forbids allocation in handlers. */
#include "check.h"
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

enum { STACK = 1 << 16, LENGTH = 300, DEAD = 64 };

static int over;

static NOINLINE GC_word *make(GC_word value) {
    GC_word *list = 0;
    for (int i = 0; i < LENGTH; i++) {
        GC_word *cell = GC_malloc(16 + i % 30 * 16);
        cell[0] = (GC_word)list;
        cell[1] = value;
        list = cell;
    }
    return list;
}
static NOINLINE void check_list(GC_word *list, GC_word value) {
    int n = 0;
    for (; list; list = (GC_word *)list[0], n++) CHECK(list[1] == value);
    CHECK(n == LENGTH);
}

static void *sleep_a_little(void *unused) {
    usleep(300);
    return unused;
}
static void on_alternate_stack(int signal) {
    GC_word *list = make(signal);
    GC_gcollect();
    check_list(list, signal);
    for (int i = 0; i < 20; i++) {
        GC_word *next = make(signal);
        check_list(list, signal);
        list = next;
    }
    GC_do_blocking(sleep_a_little, 0);
    check_list(list, signal);
}
static NOINLINE void interrupted(GC_word value) {
    GC_word *list = make(value);
    CHECK(raise(SIGUSR1) == 0);
    check_list(list, value);
}

/* Not searched: each is cleared when its object is found dead. */
static void **links;
/* Leaves the addresses of dead objects on the stack, below what a cycle takes. */
static NOINLINE void leave_addresses(void) {
    volatile char gap[STACK / 2];
    void *objects[DEAD];
    gap[0] = 0;
    for (int i = 0; i < DEAD; i++) {
        objects[i] = links[i] = GC_malloc(112);
        CHECK(GC_general_register_disappearing_link(&links[i], objects[i]) == GC_SUCCESS);
    }
    opaque(objects);
    gap[STACK / 2 - 1] = gap[0];
}
static void collect_above_addresses(int signal) {
    (void)signal;
    leave_addresses();
    GC_gcollect();
    int dead = 0;
    for (int i = 0; i < DEAD; i++) {
        dead += links[i] == 0;
        GC_unregister_disappearing_link(&links[i]);
    }
    CHECK(dead > DEAD / 2);
}
static void *announced_thread(void *unused) {
    char *low = malloc(STACK);
    CHECK(low != 0);
    GC_register_altstack(0, 0, low, STACK);
    stack_t own = {.ss_sp = low, .ss_size = STACK};
    CHECK(sigaltstack(&own, 0) == 0);
    CHECK(raise(SIGUSR2) == 0);
    own.ss_flags = SS_DISABLE;
    CHECK(sigaltstack(&own, 0) == 0);
    GC_register_altstack(0, 0, 0, 0);
    free(low);
    return unused;
}

static void use_alternate_stack(int rounds) {
    /* The kernel puts it below what was mapped before, and the page on either side is a hole. */
    char *low = mmap(0, STACK + 2 * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(low != MAP_FAILED && mprotect(low + 4096, STACK, PROT_READ | PROT_WRITE) == 0);
    stack_t own = {.ss_sp = low + 4096, .ss_size = STACK};
    CHECK(sigaltstack(&own, 0) == 0);
    for (int i = 0; i < rounds; i++) interrupted(1000 + i);
    own.ss_flags = SS_DISABLE;
    CHECK(sigaltstack(&own, 0) == 0);
    CHECK(munmap(low, STACK + 2 * 4096) == 0);
}
static void *thread(void *unused) {
    use_alternate_stack(40);
    return unused;
}
static void *collector(void *unused) {
    while (!__atomic_load_n(&over, __ATOMIC_RELAXED)) {
        GC_gcollect();
        check_list(make(1), 1);
    }
    return unused;
}

int main(void) {
    GC_init();
    struct sigaction action = {.sa_handler = on_alternate_stack, .sa_flags = SA_ONSTACK | SA_RESTART};
    CHECK(sigaction(SIGUSR1, &action, 0) == 0);
    pthread_t t[3];
    links = malloc(DEAD * sizeof *links);
    CHECK(links != 0);
    struct sigaction above = {.sa_handler = collect_above_addresses, .sa_flags = SA_ONSTACK};
    CHECK(sigaction(SIGUSR2, &above, 0) == 0);
    CHECK(GC_pthread_create(&t[0], 0, announced_thread, 0) == 0);
    CHECK(GC_pthread_join(t[0], 0) == 0);
    CHECK(GC_pthread_create(&t[0], 0, collector, 0) == 0);
    for (int i = 1; i < 3; i++) CHECK(GC_pthread_create(&t[i], 0, thread, 0) == 0);
    use_alternate_stack(40);
    for (int i = 1; i < 3; i++) CHECK(GC_pthread_join(t[i], 0) == 0);
    __atomic_store_n(&over, 1, __ATOMIC_RELAXED);
    CHECK(GC_pthread_join(t[0], 0) == 0);
    return 0;
}
