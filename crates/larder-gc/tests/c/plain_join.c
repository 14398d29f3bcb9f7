/* Threads of the collector's that are joined by the C library's pthread_join: their storage is gone afterwards, and no
 * cycle looks for it. (Larder once did, and was ended by a fault.) */
#include "check.h"
#include <pthread.h>

enum { ROUNDS = 40, THREADS = 64, STACK_BYTES = 8 << 20 };

static __thread void *local[64];
static void *thread(void *argument) {
    local[0] = GC_malloc(16);
    CHECK(local[0] != 0);
    return argument;
}

int main(void) {
    GC_init();
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    /* Stacks this large do not stay in the C library's cache: they are unmapped. */
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    for (int round = 0; round < ROUNDS; round++) {
        pthread_t t[THREADS];
        for (int i = 0; i < THREADS; i++) CHECK(GC_pthread_create(&t[i], &attributes, thread, &t[i]) == 0);
        for (int i = 0; i < THREADS; i++) {
            void *result;
            CHECK(pthread_join(t[i], &result) == 0 && result == &t[i]);
        }
        GC_gcollect();
    }
    return 0;
}
