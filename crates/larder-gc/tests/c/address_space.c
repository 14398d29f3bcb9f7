/* A limited address space (ulimit -v): the heap makes do with less. */
#include "check.h"
#include <pthread.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 2, ROUNDS = 16, OBJECTS = 50000 };

static NOINLINE void use_heap(void) {
    GC_word *list = 0;
    int n = 0;
    for (int i = 0; i < OBJECTS; i++) {
        GC_word *cell = GC_malloc(16 + i % 8 * 16);
        CHECK(cell != 0 && cell[0] == 0 && cell[1] == 0);
        cell[0] = (GC_word)list;
        cell[1] = ~(GC_word)i;
        list = cell;
    }
    for (int i = OBJECTS - 1; list; list = (GC_word *)list[0], n++, i--) CHECK(list[1] == ~(GC_word)i);
    CHECK(n == OBJECTS);
}
static void *thread(void *unused) {
    for (int i = 0; i < ROUNDS; i++) {
        use_heap();
        memset(GC_malloc(1 << 20), 1, 1 << 20);
    }
    return unused;
}
static void limited(void) {
    GC_init();
    pthread_t t[THREADS];
    for (int i = 0; i < THREADS; i++) CHECK(GC_pthread_create(&t[i], 0, thread, 0) == 0);
    thread(0);
    for (int i = 0; i < THREADS; i++) CHECK(GC_pthread_join(t[i], 0) == 0);
    GC_gcollect();
    use_heap();
}

/* The program itself under a limit that holds from its first instruction. */
static void run_with(rlim_t mebibytes) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        struct rlimit limit = {mebibytes << 20, mebibytes << 20};
        CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
        execl("/proc/self/exe", "address_space", "limited", (char *)0);
        CHECK(!"started again");
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(int argc, char **argv) {
    (void)argv;
    if (argc > 1) {
        limited();
        return 0;
    }
    run_with(1024);
    run_with(300);
    return 0;
}
