/* A child of fork that begins to use the heap, forked by another thread than the main one: its only thread has the number of a main thread, and not its stack.
 * Once everything between the two was looked through, most of which is not mapped. */
#include "check.h"
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

enum { OBJECTS = 100 };

static void *forks(void *unused) {
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        GC_INIT();
        struct GC_stack_base base;
        CHECK(GC_get_stack_base(&base) == GC_SUCCESS);
        /* Of this thread's stack, which is not long. */
        CHECK((char *)base.mem_base > (char *)&base && (char *)base.mem_base - (char *)&base < 1 << 24);
        uintptr_t *volatile list = 0;
        for (uintptr_t i = 0; i < OBJECTS; i++) {
            uintptr_t *object = GC_MALLOC(2 * sizeof *object);
            CHECK(object);
            object[0] = (uintptr_t)list;
            object[1] = i;
            list = object;
            GC_gcollect();
        }
        uintptr_t i = OBJECTS;
        for (const uintptr_t *object = list; object; object = (const uintptr_t *)object[0]) CHECK(object[1] == --i);
        CHECK(i == 0);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    return unused;
}

int main(void) {
    pthread_t thread;
    CHECK(pthread_create(&thread, 0, forks, 0) == 0);
    CHECK(pthread_join(thread, 0) == 0);
    return 0;
}
