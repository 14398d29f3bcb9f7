// xtask: under larder run
/* A program may begin the collector, and make threads, before the preloaded object is initialised: here from the first function that the loader calls. Then
 * the thread that has the object look for the C library's functions, which takes the loader's lock, is stopped while another one collects. */
#include "check.h"
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PROCESSES = 100 };
/* Long enough for the collector to ask the kernel which of its pages were written, by a call that the object stands before. */
static volatile char data[64 << 20];
static int begun, cycles;

static void note(GC_EventType event) {
    if (event == GC_EVENT_PRE_STOP_WORLD) __atomic_store_n(&begun, 1, __ATOMIC_SEQ_CST);
}
static void *collects(void *unused) {
    for (;;) {
        GC_gcollect();
        __atomic_add_fetch(&cycles, 1, __ATOMIC_SEQ_CST);
    }
    return unused;
}

static void first(int count, char **arguments, char **environment) {
    (void)arguments, (void)environment;
    if (count == 1) return;
    GC_init();
    GC_set_on_collection_event(note);
    data[0] = 1;
    pthread_t thread;
    CHECK(GC_pthread_create(&thread, 0, collects, 0) == 0);
    while (!__atomic_load_n(&begun, __ATOMIC_SEQ_CST)) {}
}
__attribute__((section(".preinit_array"), used)) static void (*before_all)(int, char **, char **) = first;

int main(int count, char **arguments) {
    if (count > 1) {
        while (__atomic_load_n(&cycles, __ATOMIC_SEQ_CST) == 0) {}
        _exit(0);
    }
    for (int i = 0; i < PROCESSES; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            execl("/proc/self/exe", arguments[0], "again", (char *)0);
            _exit(1);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    return 0;
}
