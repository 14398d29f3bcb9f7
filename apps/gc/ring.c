/*
 * ring - a token goes round through sleeping threads while one more thread allocates.
 *
 * usage: ring [THREADS [HOPS [HOP_BYTES]]]
 *
 * Nearly all threads sleep nearly all the time, as in a server, and each holds an object on its stack that must survive. What is measured
 * is the hop from one thread to the next: the longest one contains the longest pause as the program feels it, whatever a
 * library says about its own pauses. Every holder of the token allocates HOP_BYTES; a thread outside the ring churns, so that collections happen.
 */
#include "report.h"

#include <stdatomic.h>

typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    long token; /* hops left when it arrives, -1 while there is none */
    double sent_s;
} Place;

enum { KEPT_WORDS = 6, CHURN_WINDOW = 2000, CHURN_BYTES = 256 };

static long threads, hops, hop_bytes;
static Place *places;
static double *thread_longest_s, *thread_total_s;
static uint64_t *thread_sum;
static atomic_int churning = 1;
static atomic_long churned;

static void *allocated(void *memory) {
    if (!memory) {
        fprintf(stderr, "ring: out of memory\n");
        exit(3);
    }
    return memory;
}

static void send(long to, long token) {
    Place *place = &places[to];
    pthread_mutex_lock(&place->lock);
    place->token = token;
    place->sent_s = now_s();
    pthread_cond_signal(&place->changed);
    pthread_mutex_unlock(&place->lock);
}

/* The token travels until it is at 0; then 0 goes once round, so that everyone sees the end. */
static void *pass_on(void *argument) {
    long me = (intptr_t)argument;
    Place *place = &places[me];
    uint64_t *kept = allocated(GC_MALLOC(KEPT_WORDS * sizeof *kept));
    for (int i = 0; i < KEPT_WORDS; i++)
        kept[i] = me * 1000 + i;
    for (;;) {
        pthread_mutex_lock(&place->lock);
        while (place->token < 0)
            pthread_cond_wait(&place->changed, &place->lock);
        double taken = now_s() - place->sent_s;
        long token = place->token;
        place->token = -1;
        pthread_mutex_unlock(&place->lock);

        thread_total_s[me] += taken;
        if (taken > thread_longest_s[me])
            thread_longest_s[me] = taken;
        for (int i = 0; i < KEPT_WORDS; i++)
            if (kept[i] != (uint64_t)me * 1000 + i) {
                fprintf(stderr, "ring: the object of sleeping thread %ld was changed: lost by the collector\n", me);
                exit(1);
            }
        /* The old copy becomes garbage at every hop. */
        uint64_t *copy = allocated(GC_MALLOC(KEPT_WORDS * sizeof *kept + hop_bytes));
        memcpy(copy, kept, KEPT_WORDS * sizeof *kept);
        kept = copy;
        thread_sum[me] += token;
        if (token > 0) {
            send((me + 1) % threads, token - 1);
        } else {
            if (me + 1 < threads)
                send(me + 1, 0);
            return 0;
        }
    }
}

static void *churn(void *argument) {
    (void)argument;
    char **window = allocated(GC_MALLOC(CHURN_WINDOW * sizeof *window));
    uint64_t state = 17;
    long count = 0;
    while (churning) {
        window[random_next(&state) % CHURN_WINDOW] = allocated(GC_MALLOC(CHURN_BYTES));
        /* A breath now and then: without it this thread would be most of what the others wait for. */
        if (++count % 1000 == 0) {
            struct timespec breath = {0, 200000};
            nanosleep(&breath, 0);
        }
    }
    churned = count;
    return 0;
}

int main(int argc, char **argv) {
    threads = argument(argc, argv, 1, "THREADS", 64, 2, 100000);
    hops = argument(argc, argv, 2, "HOPS", 50000, 1, 1000000000);
    hop_bytes = argument(argc, argv, 3, "HOP_BYTES", 1024, 0, 1 << 30);
    /* Whole rounds, so that the end begins at thread 0 and reaches everyone. */
    hops = (hops + threads - 1) / threads * threads;
    report_start();
    places = allocated(GC_MALLOC_ATOMIC(threads * sizeof *places));
    thread_longest_s = allocated(GC_MALLOC_ATOMIC(threads * sizeof *thread_longest_s));
    thread_total_s = allocated(GC_MALLOC_ATOMIC(threads * sizeof *thread_total_s));
    thread_sum = allocated(GC_MALLOC_ATOMIC(threads * sizeof *thread_sum));
    for (long t = 0; t < threads; t++) {
        pthread_mutex_init(&places[t].lock, 0);
        pthread_cond_init(&places[t].changed, 0);
        places[t].token = -1;
        places[t].sent_s = 0;
        thread_longest_s[t] = thread_total_s[t] = 0;
        thread_sum[t] = 0;
    }
    pthread_t churner;
    double start = now_s();
    if (pthread_create(&churner, 0, churn, 0)) {
        fprintf(stderr, "ring: no thread could be started\n");
        return 3;
    }
    send(0, hops);
    run_threads(threads, pass_on);
    double seconds = now_s() - start;
    churning = 0;
    pthread_join(churner, 0);
    double longest = 0, total = 0;
    uint64_t sum = 0;
    for (long t = 0; t < threads; t++) {
        longest = thread_longest_s[t] > longest ? thread_longest_s[t] : longest;
        total += thread_total_s[t];
        sum = sum * 31 + thread_sum[t];
    }
    printf("program=ring threads=%ld hops=%ld sum=%016" PRIx64 " ok=1 hop_mean_us=%.1f hop_max_us=%.1f churned=%ld", threads,
           hops, sum, total / hops * 1e6, longest * 1e6, (long)churned);
    report_end(seconds);
    return 0;
}
