/*
 * idle - threads that sleep all the time, each with a live stack of so many bytes, and one that collects.
 *
 * usage: idle [THREADS [STACK_BYTES [COLLECTIONS [WALK_MIB]]]]
 *
 * What a pause costs for each thread that has nothing to do with it: to find it asleep, and to look through its stack, its registers and its
 * thread-local storage. Each stack holds the only pointers to four objects, which are checked at the end. Between two collections the
 * collecting thread walks through WALK_MIB of memory, as a program that works would: then the stacks are in no cache.
 */
#include "report.h"

#include <pthread.h>
#include <semaphore.h>

enum { KEPT = 4, APART = 24 };

static long stack_bytes;
static sem_t asleep, over;

static void *sleeps(void *argument) {
    uintptr_t me = (uintptr_t)argument;
    uintptr_t *frame = __builtin_alloca(stack_bytes);
    memset(frame, 0, stack_bytes);
    for (int i = 0; i < KEPT; i++) {
        uintptr_t *object = GC_MALLOC(64);
        *object = me + i;
        frame[i * APART] = (uintptr_t)object;
    }
    /* The compiler may not keep what it knows of the frame. */
    __asm__ volatile("" : : "r"(frame) : "memory");
    sem_post(&asleep);
    while (sem_wait(&over)) {
    }
    __asm__ volatile("" : : "r"(frame) : "memory");
    for (int i = 0; i < KEPT; i++)
        if (*(uintptr_t *)frame[i * APART] != me + i) {
            fprintf(stderr, "idle: an object of sleeping thread %lu was changed: lost by the collector\n", (unsigned long)me);
            exit(1);
        }
    return 0;
}

int main(int argc, char **argv) {
    long threads = argument(argc, argv, 1, "THREADS", 1000, 0, 100000);
    stack_bytes = argument(argc, argv, 2, "STACK_BYTES", 1024, KEPT * APART * 8, 192 << 10);
    long collections = argument(argc, argv, 3, "COLLECTIONS", 200, 1, 1000000);
    size_t walk = (size_t)argument(argc, argv, 4, "WALK_MIB", 0, 0, 4096) << 20;
    GC_INIT();
    sem_init(&asleep, 0, 0);
    sem_init(&over, 0, 0);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 256 << 10);
    pthread_t *handles = GC_MALLOC((threads + 1) * sizeof *handles);
    for (long i = 0; i < threads; i++) {
        int error = pthread_create(&handles[i], &attributes, sleeps, (void *)(i * KEPT));
        if (error) {
            fprintf(stderr, "idle: thread %ld of %ld could not be started: %s\n", i + 1, threads, strerror(error));
            exit(3);
        }
    }
    for (long i = 0; i < threads; i++)
        while (sem_wait(&asleep)) {
        }
    volatile char *walked = walk ? malloc(walk) : 0;
    GC_gcollect();
    report_start();
    double begun = now_s();
    for (long i = 0; i < collections; i++) {
        for (size_t at = 0; walked && at < walk; at += 64)
            walked[at]++;
        GC_gcollect();
    }
    double seconds = now_s() - begun;
    for (long i = 0; i < threads; i++)
        sem_post(&over);
    for (long i = 0; i < threads; i++)
        pthread_join(handles[i], 0);
    printf("idle threads=%ld stack_bytes=%ld walk_mib=%zu", threads, stack_bytes, walk >> 20);
    report_end(seconds);
    return 0;
}
