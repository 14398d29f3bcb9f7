/* A lock-free array of statistics: one transaction updates count, sum and largest, each prefix of the chain being a state
 * that a reader may see. */
#include <larder_cs.h>

#include <pthread.h>
#include <stdio.h>

enum { THREADS = 8, SAMPLES = 50000 };

/* The sum follows the count, the largest follows the sum: whoever reads "count" last has counted no sample without sum. */
struct statistics {
    volatile int64_t sum;
    volatile int64_t count;
    volatile int64_t largest;
};

static cs_domain *domain;

static void note(int64_t sample) {
    for (;;) {
        cs_handle handle;
        csxBegin(domain, &handle);
        struct statistics *s = csxHere(&handle);
        /* Sum and count are committed by one store of both words. */
        uint64_t old[2] = {(uint64_t)s->sum, (uint64_t)s->count};
        uint64_t next[2] = {old[0] + (uint64_t)sample, old[1] + 1};
        if (csxCAS128(&handle, next, old, (void *)&s->sum) != CS_STORED) {
            continue; /* nothing was stored: begin again */
        }
        /* The transaction is still open. Losing this one is harmless: the largest is advisory, and a later sample may mend it. */
        if (sample > s->largest) {
            csxST64(&handle, (void *)&s->largest, sample);
        }
        csxEnd(&handle);
        return;
    }
}

static void *run(void *unused) {
    (void)unused;
    for (int i = 1; i <= SAMPLES; i++) {
        note(i);
    }
    return NULL;
}

int main(void) {
    domain = csxCreate(CS_BY_CPU, sizeof(struct statistics));
    if (!domain) {
        perror("statistics");
        return 1;
    }
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) {
        if (pthread_create(&threads[i], NULL, run, NULL)) {
            return 1;
        }
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    int64_t count = 0, sum = 0, largest = 0;
    for (unsigned i = 0; i < csxIndices(domain); i++) {
        struct statistics *s = csxArea(domain, i);
        count += s->count;
        sum += s->sum;
        if (s->largest > largest) {
            largest = s->largest;
        }
    }
    printf("%lld samples, mean %lld, largest %lld\n", (long long)count, (long long)(sum / count), (long long)largest);
    csxDestroy(domain);
    return count == (int64_t)THREADS * SAMPLES && sum == (int64_t)THREADS * SAMPLES * (SAMPLES + 1) / 2 ? 0 : 1;
}
