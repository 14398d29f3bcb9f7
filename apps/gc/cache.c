/*
 * cache - a cache in memory that answers requests on a schedule: how long does a client wait?
 *
 * usage: cache [THREADS [MIB [SECONDS [RATE [PUTS]]]]]
 *
 * The cache holds about MIB (64) of entries: a key and a value of a few hundred bytes in eight pieces, behind a table of buckets. Each
 * of THREADS (2) answers RATE (2000) requests a second for SECONDS (2): it looks a key up, checks the value's pieces, and
 * makes a reply of about 2 KiB that is garbage at once; PUTS (10) of a hundred requests also replace the value by a new one.
 *
 * Pointers are stored by GC_PTR_STORE_AND_DIRTY, so that a collector may rely on a write barrier.
 *
 * Requests arrive on a schedule that does not wait for anybody. The *simple* latency of a request is the time from when
 * its work began until it was done; the *metered* one is from when it should have begun: a late request delays those behind
 * it, as a client feels it. Both are reported in microseconds at 50, 99 and 99.9 percent, and the longest.
 */
#include "report.h"

enum { PIECES = 8, PIECE_BYTES = 64, REPLY_PIECES = 12, REPLY_BYTES = 160 };

typedef struct {
    uint64_t key, version;
    char *piece[PIECES];
} Value;

typedef struct Entry {
    uint64_t key;
    Value *value;
    struct Entry *next;
} Entry;

static long threads, entries, requests_each, rate, puts_percent;
static Entry **buckets;
static long bucket_count;
static double start_s;
/* Seconds, for each thread's requests in order; malloc's, so that they are not part of the heap. */
static double *simple_s, *metered_s;
static uint64_t *thread_sum;

static void *allocated(void *object) {
    if (!object) {
        fprintf(stderr, "cache: out of memory\n");
        exit(3);
    }
    return object;
}

static Value *new_value(uint64_t key, uint64_t version) {
    Value *value = allocated(GC_MALLOC(sizeof *value));
    value->key = key;
    value->version = version;
    for (int i = 0; i < PIECES; i++) {
        char *piece = allocated(GC_MALLOC_ATOMIC(PIECE_BYTES));
        memset(piece, (int)(key + version + i) & 0x7f, PIECE_BYTES);
        GC_PTR_STORE_AND_DIRTY(&value->piece[i], piece);
    }
    GC_reachable_here(value);
    return value;
}

static Entry *find(uint64_t key) {
    Entry *entry = buckets[key % bucket_count];
    while (entry && entry->key != key)
        entry = entry->next;
    return entry;
}

static void fail(uint64_t key, const char *what) {
    fprintf(stderr, "cache: the entry of key %" PRIu64 " %s: lost by the collector, or given out twice\n", key, what);
    exit(1);
}

static uint64_t answer(uint64_t key, int put) {
    Entry *entry = find(key);
    if (!entry)
        fail(key, "is not there");
    Value *value = __atomic_load_n(&entry->value, __ATOMIC_ACQUIRE);
    char **reply = allocated(GC_MALLOC(REPLY_PIECES * sizeof *reply));
    uint64_t sum = 0;
    for (int i = 0; i < REPLY_PIECES; i++) {
        const char *piece = value->piece[i % PIECES];
        char expected = (char)((value->key + value->version + i % PIECES) & 0x7f);
        if (value->key != key || piece[0] != expected || piece[PIECE_BYTES - 1] != expected)
            fail(key, "was changed");
        GC_PTR_STORE_AND_DIRTY(&reply[i], allocated(GC_MALLOC_ATOMIC(REPLY_BYTES)));
        memcpy(reply[i], piece, PIECE_BYTES);
    }
    for (int i = 0; i < REPLY_PIECES; i++)
        sum += reply[i][PIECE_BYTES - 1];
    if (put) {
        GC_PTR_STORE_AND_DIRTY(&entry->value, new_value(key, value->version + 1));
    }
    GC_reachable_here(reply);
    return sum != 0;
}

static void *serve(void *argument) {
    long me = (intptr_t)argument;
    uint64_t random = 77 + me, sum = 0;
    for (long r = 0; r < requests_each; r++) {
        double due = start_s + (double)r / rate;
        double wait = due - now_s();
        if (wait > 0) {
            struct timespec t = {(time_t)wait, (long)((wait - (time_t)wait) * 1e9)};
            nanosleep(&t, 0);
        }
        double begun = now_s();
        uint64_t draw = random_next(&random);
        sum += answer(draw % entries, (long)(draw >> 40) % 100 < puts_percent);
        double done = now_s();
        simple_s[me * requests_each + r] = done - begun;
        metered_s[me * requests_each + r] = done - due;
    }
    thread_sum[me] = sum;
    return 0;
}

static void print_latency(const char *name, double *times_s, long n) {
    qsort(times_s, n, sizeof *times_s, compare_doubles);
    printf(" %s_p50_us=%.1f %s_p99_us=%.1f %s_p999_us=%.1f %s_max_us=%.1f", name, times_s[n / 2] * 1e6, name,
           times_s[n * 99 / 100] * 1e6, name, times_s[n * 999 / 1000] * 1e6, name, times_s[n - 1] * 1e6);
}

int main(int argc, char **argv) {
    threads = argument(argc, argv, 1, "THREADS", 2, 1, 10000);
    long mib = argument(argc, argv, 2, "MIB", 64, 1, 1 << 20);
    long seconds = argument(argc, argv, 3, "SECONDS", 2, 1, 100000);
    rate = argument(argc, argv, 4, "RATE", 2000, 1, 10000000);
    puts_percent = argument(argc, argv, 5, "PUTS", 10, 0, 100);
    report_start();
    /* What an entry takes: itself, its value, the value's pieces, and its bucket. */
    entries = (mib << 20) / (sizeof(Entry) + sizeof(Value) + PIECES * (PIECE_BYTES + 8) + 16);
    bucket_count = entries * 2;
    buckets = allocated(GC_MALLOC(bucket_count * sizeof *buckets));
    for (long key = 0; key < entries; key++) {
        Entry *entry = allocated(GC_MALLOC(sizeof *entry));
        entry->key = key;
        GC_PTR_STORE_AND_DIRTY(&entry->value, new_value(key, 0));
        GC_PTR_STORE_AND_DIRTY(&entry->next, buckets[key % bucket_count]);
        GC_PTR_STORE_AND_DIRTY(&buckets[key % bucket_count], entry);
    }
    requests_each = rate * seconds;
    long all = threads * requests_each;
    simple_s = allocated(malloc(all * sizeof *simple_s));
    metered_s = allocated(malloc(all * sizeof *metered_s));
    thread_sum = allocated(GC_MALLOC_ATOMIC(threads * sizeof *thread_sum));
    /* Pauses count from here. */
    pause_count = 0;
    time_to_stop_max_s = 0;
    paused_s = 0;
    start_s = now_s();
    run_threads(threads, serve);
    double taken = now_s() - start_s;
    uint64_t sum = 0;
    for (long t = 0; t < threads; t++)
        sum += thread_sum[t];
    if (sum != (uint64_t)all) {
        fprintf(stderr, "cache: %" PRIu64 " of %ld requests were answered rightly\n", sum, all);
        return 1;
    }
    printf("program=cache threads=%ld mib=%ld entries=%ld rate=%ld puts=%ld requests=%ld sum=%" PRIu64 " ok=1", threads,
           mib, entries, rate, puts_percent, all, sum);
    print_latency("simple", simple_s, all);
    print_latency("metered", metered_s, all);
    report_end(taken);
    return 0;
}
