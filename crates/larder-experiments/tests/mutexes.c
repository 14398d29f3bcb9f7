/* What a pthread program may expect of its mutexes and condition variables, whichever lock is under them. */
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#undef assert
#define assert(fact) ((fact) ? (void)0 : (fprintf(stderr, "line %d: %s\n", __LINE__, #fact), exit(1)))

enum { THREADS = 8, TIMES = 2000 };
static pthread_mutex_t plain = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t adaptive = PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP;
static pthread_mutex_t again = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static pthread_mutex_t checking = PTHREAD_ERRORCHECK_MUTEX_INITIALIZER_NP;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static long count, turn;

static void *add(void *mutex) {
    for (int i = 0; i < TIMES; i++) {
        assert(pthread_mutex_lock(mutex) == 0);
        count++;
        assert(pthread_mutex_unlock(mutex) == 0);
    }
    return NULL;
}

static void all_add(pthread_mutex_t *mutex) {
    pthread_t threads[THREADS];
    count = 0;
    for (int i = 0; i < THREADS; i++) assert(pthread_create(&threads[i], NULL, add, mutex) == 0);
    for (int i = 0; i < THREADS; i++) assert(pthread_join(threads[i], NULL) == 0);
    assert(count == (long)THREADS * TIMES);
}

static void *go_round(void *me) {
    for (int lap = 0; lap < 50; lap++) {
        pthread_mutex_lock(&plain);
        while (turn % THREADS != (long)me) assert(pthread_cond_wait(&changed, &plain) == 0);
        turn++;
        pthread_mutex_unlock(&plain);
        assert(pthread_cond_broadcast(&changed) == 0);
    }
    return NULL;
}

static struct timespec in_ms(clockid_t clock, long ms) {
    struct timespec time;
    clock_gettime(clock, &time);
    time.tv_nsec += ms * 1000000;
    time.tv_sec += time.tv_nsec / 1000000000;
    time.tv_nsec %= 1000000000;
    return time;
}

static void *find_held(void *unused) {
    (void)unused;
    assert(pthread_mutex_trylock(&plain) == EBUSY);
    assert(pthread_mutex_trylock(&again) == EBUSY);
    assert(pthread_mutex_unlock(&again) == EPERM);
    assert(pthread_mutex_unlock(&checking) == EPERM);
    struct timespec soon = in_ms(CLOCK_REALTIME, 5);
    assert(pthread_mutex_timedlock(&plain, &soon) == ETIMEDOUT);
    soon.tv_nsec = -1;
    assert(pthread_mutex_timedlock(&plain, &soon) == EINVAL);
    return NULL;
}

static void kinds(void) {
    pthread_t other;
    pthread_mutex_lock(&plain);
    assert(pthread_mutex_lock(&again) == 0 && pthread_mutex_lock(&again) == 0 && pthread_mutex_trylock(&again) == 0);
    assert(pthread_mutex_lock(&checking) == 0 && pthread_mutex_lock(&checking) == EDEADLK);
    assert(pthread_mutex_destroy(&plain) == EBUSY);
    assert(pthread_create(&other, NULL, find_held, NULL) == 0 && pthread_join(other, NULL) == 0);
    for (int i = 0; i < 3; i++) assert(pthread_mutex_unlock(&again) == 0);
    assert(pthread_mutex_unlock(&again) == EPERM);
    assert(pthread_mutex_unlock(&checking) == 0 && pthread_mutex_unlock(&plain) == 0);

    struct timespec soon = in_ms(CLOCK_REALTIME, 5);
    pthread_mutex_lock(&plain);
    assert(pthread_cond_timedwait(&changed, &plain, &soon) == ETIMEDOUT);
    assert(pthread_mutex_trylock(&plain) == EBUSY);
    pthread_mutex_unlock(&plain);

    pthread_condattr_t attributes;
    pthread_cond_t monotonic;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    assert(pthread_cond_init(&monotonic, &attributes) == 0);
    soon = in_ms(CLOCK_MONOTONIC, 5);
    pthread_mutex_lock(&plain);
    assert(pthread_cond_timedwait(&monotonic, &plain, &soon) == ETIMEDOUT);
    pthread_mutex_unlock(&plain);
    assert(pthread_cond_destroy(&monotonic) == 0);
}

/* What is shared between processes is left to the C library, and works beside ours. */
static void shared(void) {
    pthread_mutexattr_t attributes;
    pthread_mutex_t mutex;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    assert(pthread_mutex_init(&mutex, &attributes) == 0);
    all_add(&mutex);
    assert(pthread_mutex_destroy(&mutex) == 0);
}

static volatile int over;
static void *contend(void *unused) {
    (void)unused;
    while (!over) {
        pthread_mutex_lock(&adaptive);
        pthread_mutex_unlock(&adaptive);
    }
    return NULL;
}

/* A fork with the lock held, while others wait for it: the child releases it and goes on alone. */
static void forks(void) {
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, contend, NULL);
    for (int i = 0; i < 20; i++) {
        pthread_mutex_lock(&adaptive);
        pid_t child = fork();
        if (child == 0) {
            pthread_mutex_unlock(&adaptive);
            for (int j = 0; j < 10; j++) {
                pthread_mutex_lock(&adaptive);
                pthread_mutex_unlock(&adaptive);
            }
            all_add(&adaptive);
            _exit(7);
        }
        pthread_mutex_unlock(&adaptive);
        int status;
        assert(child > 0 && waitpid(child, &status, 0) == child);
        assert(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    }
    over = 1;
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
}

int main(void) {
    alarm(900); /* For one that hangs: a loaded machine is slow. */
    all_add(&plain);
    all_add(&adaptive);
    all_add(&again);
    all_add(&checking);
    pthread_t threads[THREADS];
    for (long i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, go_round, (void *)i);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    assert(turn == THREADS * 50);
    kinds();
    shared();
    forks();
    for (int i = 0; i < 1000; i++) {
        pthread_mutex_t mutex;
        pthread_mutex_init(&mutex, NULL);
        pthread_mutex_lock(&mutex);
        pthread_mutex_unlock(&mutex);
        assert(pthread_mutex_destroy(&mutex) == 0);
    }
    puts("all good");
    return 0;
}
