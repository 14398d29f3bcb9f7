// xtask: under larder run
/* In some calls the C library makes a thread of its own with all signals blocked, and may wait there for a lock of the loader's. Whoever holds that one
 * may have been stopped, so a collection must not wait for the thread that makes such a call. */
#include "check.h"
#include <aio.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

enum { CALLS = 30000 };
static int done, file;

static int is_done(void) { return __atomic_load_n(&done, __ATOMIC_SEQ_CST); }

static void *collects(void *unused) {
    while (!is_done()) GC_gcollect();
    return unused;
}
/* A library of the C library's, which has thread-local storage to be set up where it has threads. */
static void *loads(void *unused) {
    while (!is_done()) {
        void *library = dlopen("libm.so.6", RTLD_NOW), *other = dlopen("libresolv.so.2", RTLD_NOW);
        CHECK(library && other);
        CHECK(dlclose(library) == 0 && dlclose(other) == 0);
    }
    return unused;
}
static void reads(void) {
    struct aiocb request = {.aio_fildes = file, .aio_buf = GC_malloc_atomic(8), .aio_nbytes = 8};
    const struct aiocb *const list[] = {&request};
    CHECK(aio_read(&request) == 0);
    while (aio_error(&request) == EINPROGRESS) aio_suspend(list, 1, 0);
    CHECK(aio_return(&request) == 8 && memcmp((void *)request.aio_buf, "contents", 8) == 0);
}
static void writes_in_a_list(void) {
    struct aiocb request = {.aio_fildes = file, .aio_buf = "contents", .aio_nbytes = 8, .aio_lio_opcode = LIO_WRITE};
    struct aiocb *const list[] = {&request};
    CHECK(lio_listio(LIO_WAIT, list, 1, 0) == 0 && aio_return(&request) == 8);
}
/* The notice comes on a thread that the collector does not know. */
static void rings(union sigval door) { sem_post(door.sival_ptr); }
static void waits_for_a_timer(void) {
    sem_t door;
    timer_t timer;
    struct sigevent ring = {.sigev_notify = SIGEV_THREAD, .sigev_notify_function = rings, .sigev_value.sival_ptr = &door};
    sem_init(&door, 0, 0);
    CHECK(timer_create(CLOCK_MONOTONIC, &ring, &timer) == 0);
    CHECK(timer_settime(timer, 0, &(struct itimerspec){.it_value.tv_nsec = 1}, 0) == 0);
    while (sem_wait(&door) != 0) CHECK(errno == EINTR);
    CHECK(timer_delete(timer) == 0);
}

int main(void) {
    GC_init();
    /* Threads that end when they have nothing to do, so that each call makes one. */
    aio_init(&(struct aioinit){.aio_threads = 1, .aio_num = 64, .aio_idle_time = 0});
    file = memfd_create("contents", 0);
    CHECK(write(file, "contents", 8) == 8);
    pthread_t collector, loader;
    CHECK(GC_pthread_create(&collector, 0, collects, 0) == 0);
    CHECK(GC_pthread_create(&loader, 0, loads, 0) == 0);
    waits_for_a_timer();
    for (int i = 0; i < CALLS; i++) {
        reads();
        if (i % 10 == 0) writes_in_a_list();
    }
    __atomic_store_n(&done, 1, __ATOMIC_SEQ_CST);
    CHECK(GC_pthread_join(loader, 0) == 0 && GC_pthread_join(collector, 0) == 0);
    return 0;
}
