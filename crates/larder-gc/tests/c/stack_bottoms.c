/* A program with fibers that says only during a collection, in its GC_push_other_roots, on which stack each thread runs,
 * as Crystal does: the threads' stacks are looked at after that. Beyond the fiber's stack is memory that cannot be read. And
 * the handle of a new thread is there when the thread begins. */
#include "check.h"
#include <gc/gc_mark.h>
#include <pthread.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

enum { STACK = 1 << 16, LENGTH = 200 };

static GC_push_other_roots_proc before;
static void *handle;                    /* The thread's, where it runs on its fiber; else null. */
static struct GC_stack_base fiber_base; /* Where its stack begins. */
static ucontext_t home, fiber;
static int entered[2], leave[2];
static pthread_t thread;

static void push(void) {
    if (handle) GC_set_stackbottom(handle, &fiber_base);
    if (before) before();
}

static NOINLINE GC_word *make(void) {
    GC_word *list = 0;
    for (int i = 0; i < LENGTH; i++) {
        GC_word *cell = GC_malloc(32);
        cell[0] = (GC_word)list;
        cell[1] = 77;
        list = cell;
    }
    return list;
}

static void on_fiber(void) {
    GC_alloc_unlock();
    GC_word *list = make();
    char byte = 0;
    int n = 0;
    CHECK(write(entered[1], &byte, 1) == 1 && read(leave[0], &byte, 1) == 1);
    for (; list; list = (GC_word *)list[0], n++) CHECK(list[1] == 77);
    CHECK(n == LENGTH);
    GC_alloc_lock();
}

static void *body(void *unused) {
    CHECK(pthread_equal(thread, pthread_self()));
    struct GC_stack_base own;
    void *me = GC_get_my_stackbottom(&own);
    char *low = mmap(0, STACK + 2 * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(low != MAP_FAILED && mprotect(low + 4096, STACK, PROT_READ | PROT_WRITE) == 0);
    CHECK(getcontext(&fiber) == 0);
    fiber.uc_stack.ss_sp = low + 4096;
    fiber.uc_stack.ss_size = STACK;
    fiber.uc_link = &home;
    makecontext(&fiber, on_fiber, 0);
    GC_alloc_lock(); /* No collection while the stack and what is said of it differ. */
    fiber_base.mem_base = low + 4096 + STACK;
    handle = me;
    CHECK(swapcontext(&home, &fiber) == 0);
    handle = 0;
    GC_set_stackbottom(me, &own);
    GC_alloc_unlock();
    CHECK(munmap(low, STACK + 2 * 4096) == 0);
    return unused;
}

int main(void) {
    GC_init();
    before = GC_get_push_other_roots();
    GC_set_push_other_roots(push);
    CHECK(pipe(entered) == 0 && pipe(leave) == 0);
    for (int i = 0; i < 20; i++) {
        char byte = 0;
        CHECK(GC_pthread_create(&thread, 0, body, 0) == 0);
        CHECK(read(entered[0], &byte, 1) == 1);
        for (int k = 0; k < 5; k++) {
            GC_gcollect();
            for (int j = 0; j < 1000; j++) memset(GC_malloc(32), 0xdd, 32);
        }
        CHECK(write(leave[1], &byte, 1) == 1 && GC_pthread_join(thread, 0) == 0);
    }
    return 0;
}
