/* What a stop does to a thread that sleeps in the kernel: calls that Linux restarts go on (sem_wait, read), calls that it
 * never restarts return EINTR (nanosleep, poll, sem_timedwait), as on libgc. */
#include "check.h"
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Longer than a loaded machine, or one that stands still for a while, needs for the next stop. */
enum { LONG_SECONDS = 900 };

static sem_t never, later;
static int pipe_ends[2];
static volatile pid_t thread_id;
/* The number of the call that the thread is in, or comes out of. */
static int returned;

static void note(void) { __atomic_add_fetch(&returned, 1, __ATOMIC_SEQ_CST); }
static int returns(void) { return __atomic_load_n(&returned, __ATOMIC_SEQ_CST); }

static void *sleeper(void *unused) {
    thread_id = (pid_t)syscall(SYS_gettid);
    note();

    struct timespec end = {LONG_SECONDS, 0}, rest = {0, 0};
    CHECK(nanosleep(&end, &rest) == -1 && errno == EINTR && rest.tv_sec > 0 && rest.tv_sec <= LONG_SECONDS);
    note();

    struct pollfd nothing = {.fd = pipe_ends[0], .events = POLLIN};
    CHECK(poll(&nothing, 1, LONG_SECONDS * 1000) == -1 && errno == EINTR);
    note();

    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += LONG_SECONDS;
    CHECK(sem_timedwait(&never, &end) == -1 && errno == EINTR);
    note();

    CHECK(sem_wait(&later) == 0);
    note();

    char byte;
    CHECK(read(pipe_ends[0], &byte, 1) == 1 && byte == 'x');
    note();
    return unused;
}

/* Whether the thread sleeps in the kernel now. */
static int sleeps(void) {
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", thread_id);
    FILE *file = fopen(path, "r");
    if (file == 0) return 1; /* No /proc: hope. */
    size_t bytes = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[bytes] = 0;
    char *end = strrchr(text, ')');
    return end != 0 && end[2] == 'S';
}

int main(void) {
    GC_init();
    sem_init(&never, 0, 0);
    sem_init(&later, 0, 0);
    CHECK(pipe(pipe_ends) == 0);
    pthread_t t;
    CHECK(GC_pthread_create(&t, 0, sleeper, 0) == 0);
    while (returns() == 0) {}

    /* A collection that comes too early changes nothing; the next one is sure to come. */
    for (int call = 1; call <= 3; call++)
        while (returns() == call) GC_gcollect();

    for (int call = 4; call <= 5; call++) {
        for (int i = 0; i < 20; i++) {
            while (!sleeps()) {}
            CHECK(returns() == call);
            GC_gcollect();
        }
        CHECK(returns() == call);
        if (call == 4) CHECK(sem_post(&later) == 0);
        else CHECK(write(pipe_ends[1], "x", 1) == 1);
        while (returns() == call) {}
    }
    CHECK(GC_pthread_join(t, 0) == 0);
    return 0;
}
