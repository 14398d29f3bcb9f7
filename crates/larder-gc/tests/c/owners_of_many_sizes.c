/* Objects of many sizes, by several threads, where blocks have owners, whose free blocks come in three lengths: none is to get one that is shorter than what it
 * asks for. */
#include "check.h"
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

enum { OBJECTS = 300, ROUNDS = 12000, THREADS = 4, LARGEST = 33000 };
typedef struct { unsigned char *bytes; size_t size; unsigned char fill, freed; } Object;

static unsigned next(unsigned *seed) {
    *seed = *seed * 1103515245u + 12345;
    return *seed >> 8;
}

static void let_go(Object *o) {
    if (!o->bytes) return;
    for (size_t i = 0; i < o->size; i++) CHECK(o->bytes[i] == o->fill);
    if (o->freed) GC_free(o->bytes);
    o->bytes = 0;
}

static void *work(void *number) {
    unsigned seed = (unsigned)(GC_word)number;
    Object *objects = GC_malloc_uncollectable(OBJECTS * sizeof *objects);
    CHECK(objects);
    for (int i = 0; i < ROUNDS; i++) {
        Object *o = &objects[next(&seed) % OBJECTS];
        let_go(o);
        const size_t power = (size_t)16 << next(&seed) % 12, size = power + next(&seed) % power;
        o->size = size < LARGEST ? size : LARGEST;
        o->fill = (unsigned char)(next(&seed) | 0x81);
        o->freed = next(&seed) % 2;
        o->bytes = next(&seed) % 2 ? GC_malloc(o->size) : GC_malloc_atomic(o->size);
        CHECK(o->bytes);
        memset(o->bytes, o->fill, o->size);
    }
    for (int i = 0; i < OBJECTS; i++) let_go(&objects[i]);
    GC_free(objects);
    return 0;
}

static void run(void) {
    pthread_t threads[THREADS];
    alarm(600);
    GC_INIT();
    for (GC_word i = 0; i < THREADS; i++) CHECK(GC_pthread_create(&threads[i], 0, work, (void *)(i + 1)) == 0);
    for (int i = 0; i < THREADS; i++) CHECK(GC_pthread_join(threads[i], 0) == 0);
    exit(0);
}

int main(void) {
    static const char *const settings[] = {"all-local", "page-shared", "lps:1.5", "lps:auto"};
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        const pid_t child = fork();
        if (child == 0) {
            setenv("LARDER_SHARING", settings[i], 1);
            run();
        }
        int status;
        CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    return 0;
}
