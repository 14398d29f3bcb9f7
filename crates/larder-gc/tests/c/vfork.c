// xtask: under larder run
/* A child of vfork that allocates, which POSIX does not allow, while other threads of its parent allocate: `larder run`
 * makes vfork a fork, so that neither gets the other's objects. On the stock library, and on Larder without the tool,
 * the child must not allocate; there this program shows nothing. Before the library begins, as in a program without it, the child runs in its
 * parent's memory as everywhere. */
#include "check.h"
#include <errno.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CHILDREN = 60, OBJECTS = 1000, THREADS = 3 };

static int stop;
static NOINLINE void use_heap(GC_word salt) {
    GC_word *list = 0;
    int n = 0;
    for (int i = 0; i < OBJECTS; i++) {
        GC_word *cell = GC_malloc(16 + i % 20 * 16);
        CHECK(cell[0] == 0 && cell[1] == 0);
        cell[0] = (GC_word)list;
        cell[1] = salt + i;
        list = cell;
    }
    for (int i = OBJECTS - 1; list; list = (GC_word *)list[0], n++, i--) CHECK(list[1] == salt + i);
    CHECK(n == OBJECTS);
}
static void *busy(void *argument) {
    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) use_heap((GC_word)argument);
    return 0;
}

/* The child says in its parent's memory why it could not become another program. */
static volatile int error;
#define OF_THE_C_LIBRARY(vfork)                                                                          \
    do {                                                                                                 \
        error = 0;                                                                                       \
        pid_t child = vfork();                                                                           \
        CHECK(child >= 0);                                                                               \
        if (child == 0) {                                                                                \
            execl("/nonexistent", "x", (char *)0);                                                       \
            error = errno;                                                                               \
            _exit(127);                                                                                  \
        }                                                                                                \
        int status;                                                                                      \
        CHECK(error == ENOENT);                                                                          \
        CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 127);   \
    } while (0)

extern pid_t __vfork(void) __attribute__((returns_twice));
static NOINLINE void before_the_library(void) {
    OF_THE_C_LIBRARY(vfork);
    OF_THE_C_LIBRARY(__vfork);
}

int main(void) {
    before_the_library();
    GC_init();
    pthread_t t[THREADS];
    for (GC_word i = 0; i < THREADS; i++) CHECK(GC_pthread_create(&t[i], 0, busy, (void *)(i << 32)) == 0);
    for (int i = 0; i < CHILDREN; i++) {
        pid_t child = vfork();
        CHECK(child >= 0);
        if (child == 0) {
            use_heap((GC_word)99 << 32);
            _exit(0);
        }
        use_heap((GC_word)98 << 32);
        int status;
        CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    for (int i = 0; i < THREADS; i++) CHECK(GC_pthread_join(t[i], 0) == 0);
    return 0;
}
