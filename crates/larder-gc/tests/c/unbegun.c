// xtask: larder-only
/* What a thread is made with is live while the thread has not registered, though nothing refers to it but the C library's own memory: threads of the C
 * library's pthread_create, on its stacks and on the program's, wait before they look at what they were given, while the heap is
 * collected and what is dead is written over. When they have ended it is not kept. libgc frees it. */
#include "check.h"
#include <pthread.h>
#include <semaphore.h>
#include <sys/mman.h>

enum { THREADS = 64, WORDS = 6, STACK = 256 << 10, LEFT_OVER = 8 };

static sem_t go;
static pthread_t ids[THREADS];
static void *links[THREADS];

static uintptr_t word(int thread, int i) { return 0x5eedUL * (thread + 1) + i; }

static void *run(void *argument) {
    /* The only other place where the object's address is now is this thread's stack, which nobody searches. */
    while (sem_wait(&go)) {}
    struct GC_stack_base base;
    CHECK(GC_get_stack_base(&base) == GC_SUCCESS && GC_register_my_thread(&base) == GC_SUCCESS);
    uintptr_t *words = argument;
    int thread = words[0] / 0x5eedUL - 1;
    for (int i = 0; i < WORDS; i++) CHECK(words[i] == word(thread, i));
    GC_gcollect();
    for (int i = 0; i < WORDS; i++) CHECK(words[i] == word(thread, i));
    GC_unregister_my_thread();
    return NULL;
}

static NOINLINE void make(int thread, void *stack) {
    uintptr_t *words = GC_MALLOC(WORDS * sizeof *words);
    for (int i = 0; i < WORDS; i++) words[i] = word(thread, i);
    links[thread] = (void *)GC_HIDE_POINTER(words);
    GC_GENERAL_REGISTER_DISAPPEARING_LINK(&links[thread], words);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    if (stack) CHECK(!pthread_attr_setstack(&attributes, stack, STACK));
    CHECK(!pthread_create(&ids[thread], &attributes, run, words));
    pthread_attr_destroy(&attributes);
}

static NOINLINE void overwrite(void) {
    for (int i = 0; i < 20000; i++) {
        memset(GC_MALLOC_ATOMIC(WORDS * sizeof(uintptr_t)), 0xee, WORDS * sizeof(uintptr_t));
        memset(GC_MALLOC(WORDS * sizeof(uintptr_t)), 0xee, WORDS * sizeof(uintptr_t));
    }
}

static int kept(void) {
    int n = 0;
    for (int i = 0; i < THREADS; i++) n += links[i] != NULL;
    return n;
}

int main(void) {
    GC_INIT();
    GC_allow_register_threads();
    sem_init(&go, 0, 0);
    char *stacks =
        mmap(NULL, (size_t)THREADS * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(stacks != MAP_FAILED);
    for (int round = 0; round < 3; round++) {
        for (int t = 0; t < THREADS; t++) make(t, t % 4 == 3 ? stacks + (size_t)t * STACK : NULL);
        for (int i = 0; i < 3; i++) {
            collect();
            overwrite();
        }
        CHECK(kept() == THREADS);
        for (int t = 0; t < THREADS; t++) sem_post(&go);
        for (int t = 0; t < THREADS; t++) pthread_join(ids[t], NULL);
        for (int i = 0; i < 3; i++) collect();
        /* A word here and there may look like an address. */
        CHECK(kept() <= LEFT_OVER);
    }
    return 0;
}
