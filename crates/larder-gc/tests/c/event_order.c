/* Events of many threads' cycles: the client is told one cycle after the other and all of each, by one thread at a time. Once the world is
 * said to run its function may take locks of the program's and use malloc, though a thread was stopped in the middle of both. */
#include "check.h"
#include <pthread.h>
#include <stdlib.h>

enum { THREADS = 24, ROUNDS = 20000 };
static const int ORDER[] = {GC_EVENT_START, GC_EVENT_PRE_STOP_WORLD, GC_EVENT_POST_STOP_WORLD, GC_EVENT_MARK_START,
                            GC_EVENT_MARK_END, GC_EVENT_PRE_START_WORLD, GC_EVENT_POST_START_WORLD,
                            GC_EVENT_RECLAIM_START, GC_EVENT_RECLAIM_END, GC_EVENT_END};
enum { STEPS = sizeof ORDER / sizeof *ORDER };
static int inside, step, cycles;
static void *kept;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned long under_lock;

static void event(GC_EventType e) {
    CHECK(__atomic_exchange_n(&inside, 1, __ATOMIC_ACQUIRE) == 0);
    CHECK((int)e == ORDER[step]);
    step = (step + 1) % STEPS;
    if (e == GC_EVENT_POST_START_WORLD || e == GC_EVENT_END) {
        pthread_mutex_lock(&lock);
        free(kept);
        kept = malloc(100 + cycles % 5000);
        pthread_mutex_unlock(&lock);
        CHECK(kept != 0);
    }
    cycles += e == GC_EVENT_END;
    __atomic_store_n(&inside, 0, __ATOMIC_RELEASE);
}

static void *churn(void *argument) {
    void **ring = GC_MALLOC(64 * sizeof *ring);
    void *outside[16] = {0};
    for (int i = 0; i < ROUNDS; i++) {
        size_t size = 16 + (size_t)(i * 37 + (long)argument * 11) % 700;
        unsigned char *object = GC_MALLOC(size);
        object[size - 1] = (unsigned char)i;
        if (ring[i % 64]) CHECK(ring[i % 64] != object);
        ring[i % 64] = object;
        pthread_mutex_lock(&lock);
        for (int k = 0; k < 100; k++) __asm__ volatile("" : "+m"(under_lock));
        under_lock++;
        pthread_mutex_unlock(&lock);
        free(outside[i % 16]);
        outside[i % 16] = malloc(size * 3);
    }
    for (int i = 0; i < 16; i++) free(outside[i]);
    return 0;
}

int main(void) {
    GC_init();
    GC_set_on_collection_event(event);
    pthread_t threads[THREADS];
    for (long i = 0; i < THREADS; i++) CHECK(GC_pthread_create(&threads[i], 0, churn, (void *)i) == 0);
    for (int i = 0; i < 20; i++) GC_gcollect();
    for (int i = 0; i < THREADS; i++) CHECK(GC_pthread_join(threads[i], 0) == 0);
    CHECK(cycles >= 20 && step == 0 && inside == 0 && under_lock == (unsigned long)THREADS * ROUNDS);
    GC_set_on_collection_event(0);
    free(kept);
    return 0;
}
