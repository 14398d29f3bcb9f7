/* A program that raises its limit of the stack, below which mappings lie already, and collects on a fiber that lies above the place where the main thread's stack
 * is said to begin. What lies between the fiber and the main thread's stack is no stack. */
#include "check.h"
#include <sys/mman.h>
#include <sys/resource.h>
#include <ucontext.h>

enum { STACK = 1 << 20 };
static ucontext_t main_context, fiber;
static int ran;

static void on_fiber(void) {
    for (int i = 0; i < 3; i++) collect();
    ran = 1;
    swapcontext(&fiber, &main_context);
}

static void *map(size_t bytes, int protection) {
    void *at = mmap(0, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

int main(void) {
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_STACK, &limit) == 0);
    limit.rlim_cur = limit.rlim_max;
    CHECK(setrlimit(RLIMIT_STACK, &limit) == 0);
    GC_INIT();
    map(STACK, PROT_NONE);
    char *high = map(STACK, PROT_READ | PROT_WRITE), *low = map(STACK, PROT_READ | PROT_WRITE);
    if (low > high) {
        char *other = low;
        low = high;
        high = other;
    }
    struct GC_stack_base own, told = {low + STACK};
    void *thread = GC_get_my_stackbottom(&own);
    GC_alloc_lock();
    GC_set_stackbottom(thread, &told);
    GC_alloc_unlock();
    CHECK(getcontext(&fiber) == 0);
    fiber.uc_stack.ss_sp = high;
    fiber.uc_stack.ss_size = STACK;
    makecontext(&fiber, on_fiber, 0);
    CHECK(swapcontext(&main_context, &fiber) == 0 && ran);
    GC_alloc_lock();
    GC_set_stackbottom(thread, &own);
    GC_alloc_unlock();
    collect();
    return 0;
}
