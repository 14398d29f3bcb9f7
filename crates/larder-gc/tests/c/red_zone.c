// xtask: larder-only
/* Threads asleep in a system call of the C library that has no use for its red zone keep nothing there. A function that makes system calls of its own
 * may: what only that refers to survives. (libgc keeps both.) */
#include "check.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { THREADS = 20, SIZE = 100, FILL = 0x5a };

/* Complements of addresses, so that they keep nothing. */
static GC_word left[THREADS], kept[THREADS];
static int left_dead, kept_dead, begun, awake;

static void finalizer(void *object, void *count) {
    (void)object;
    __atomic_add_fetch((int *)count, 1, __ATOMIC_RELAXED);
}
static GC_word object_for(int *count) {
    void *object = GC_malloc_atomic(SIZE);
    memset(object, FILL, SIZE);
    GC_register_finalizer_no_order(object, finalizer, count, 0, 0);
    return ~(GC_word)object;
}
static NOINLINE void make_objects(void) {
    for (int i = 0; i < THREADS; i++) {
        left[i] = object_for(&left_dead);
        kept[i] = object_for(&kept_dead);
    }
}

/* The words below the frame get the address, as from calls that have returned; then it sleeps in the library. */
static void *in_library(void *hidden) {
    GC_word word = *(GC_word *)hidden, count = 500;
    __atomic_add_fetch(&begun, 1, __ATOMIC_RELEASE);
    __asm__ volatile("not %0\n"
                     "neg %1\n"
                     "1: mov %0, (%%rsp, %1, 8)\n"
                     "inc %1\n"
                     "jnz 1b\n"
                     "xor %k0, %k0\n"
                     : "+r"(word), "+r"(count)
                     :
                     : "memory", "cc");
    while (!__atomic_load_n(&awake, __ATOMIC_ACQUIRE)) syscall(SYS_futex, &awake, FUTEX_WAIT_PRIVATE, 0, 0);
    return 0;
}

/* Sleeps until the word is not 0, and returns the complement of its argument, of which there is a copy in the red zone alone meanwhile. */
GC_word sleep_by_itself(int *word, GC_word hidden);
__asm__(".pushsection .text\n"
        "sleep_by_itself:\n"
        "not %rsi\n"
        "mov %rsi, -64(%rsp)\n"
        "1: mov $202, %eax\n"        /* SYS_futex */
        "mov $128, %esi\n"           /* FUTEX_WAIT_PRIVATE */
        "xor %edx, %edx\n"
        "xor %r10d, %r10d\n"
        "syscall\n"
        "cmpl $0, (%rdi)\n"
        "je 1b\n"
        "mov -64(%rsp), %rax\n"
        "ret\n"
        ".popsection\n");
static void *in_own_code(void *hidden) {
    __atomic_add_fetch(&begun, 1, __ATOMIC_RELEASE);
    unsigned char *object = (unsigned char *)sleep_by_itself(&awake, *(GC_word *)hidden);
    for (int i = 0; i < SIZE; i++) CHECK(object[i] == FILL);
    return 0;
}

int main(void) {
    pthread_t threads[2 * THREADS];
    GC_init();
    far_away(make_objects);
    for (int i = 0; i < THREADS; i++) {
        CHECK(GC_pthread_create(&threads[i], 0, in_library, &left[i]) == 0);
        CHECK(GC_pthread_create(&threads[THREADS + i], 0, in_own_code, &kept[i]) == 0);
    }
    /* A thread that is not asleep yet still has a use for what is below its frame. */
    for (int i = 0; i < 100000 && __atomic_load_n(&left_dead, __ATOMIC_RELAXED) < THREADS - 2; i++) {
        sched_yield();
        if (__atomic_load_n(&begun, __ATOMIC_ACQUIRE) < 2 * THREADS) continue;
        collect();
        GC_invoke_finalizers();
    }
    CHECK(left_dead >= THREADS - 2);
    CHECK(kept_dead == 0);
    __atomic_store_n(&awake, 1, __ATOMIC_RELEASE);
    syscall(SYS_futex, &awake, FUTEX_WAKE_PRIVATE, 2 * THREADS, 0, 0, 0);
    for (int i = 0; i < 2 * THREADS; i++) CHECK(GC_pthread_join(threads[i], 0) == 0);
    return 0;
}
