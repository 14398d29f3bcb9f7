/* A sharded counter: each index has its own line, adding is a transaction, reading sums up. */
#include <larder_cs.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { THREADS = 8, ADDS = 100000 };

/* Two lines each: processors fetch lines in pairs. */
struct shard {
    volatile int64_t n;
    char rest[120];
};

static struct shard *shards;

static void add(int64_t n) {
    int cpu;
    do {
        cpu = csBegin();
    } while (csST64C((void *)&shards[cpu].n, shards[cpu].n + n) != CS_STORED);
    csEnd();
}

static void *run(void *unused) {
    (void)unused;
    for (int i = 0; i < ADDS; i++) {
        add(1);
    }
    return NULL;
}

int main(void) {
    shards = aligned_alloc(128, csIndices() * sizeof *shards);
    if (!shards) {
        perror("counter");
        return 1;
    }
    for (int i = 0; i < csIndices(); i++) {
        shards[i].n = 0;
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
    int64_t sum = 0;
    for (int i = 0; i < csIndices(); i++) {
        sum += shards[i].n;
    }
    struct cs_statistics s;
    csStatistics(&s);
    printf("counted %lld, by %s; %llu transactions succeeded, %llu failed\n", (long long)sum,
           csMode() == CS_LOCKS ? "locks" : "sequences", (unsigned long long)s.succeeded, (unsigned long long)s.failed);
    return sum == (int64_t)THREADS * ADDS ? 0 : 1;
}
