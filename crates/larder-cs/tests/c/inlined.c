/* The inlined forms beside the library's, in threads, signal handlers and take-overs: everything that was stored is found again.
 * Exits with 0. (Compiled with CS_NO_INLINE the same holds for the library's forms alone.) */
#define _GNU_SOURCE
#include <larder_cs.h>

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>

#define CHECK(x)                                                        \
    do {                                                                \
        if (!(x)) {                                                     \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x);     \
            exit(1);                                                    \
        }                                                               \
    } while (0)

enum { THREADS = 6, ROUNDS = 20000, NODES = 32 };

/* Every word has its own form of commit, and counts what was committed by it. */
struct area {
    int64_t stored, compared, added;
    struct node *list;
    uint64_t pair[2];
    int32_t stored_small, compared_small;
};

struct node {
    struct node *next;
    long used;
};

static cs_domain *domain;
static struct node nodes[NODES];
/* Commits that succeeded, by their form; what was found. */
static struct area made, found;
static volatile int stop;

#define COUNT(form) __atomic_fetch_add(&made.form, 1, __ATOMIC_RELAXED)

/* A transaction with every form of commit in a chain; `called` of them by the library. */
static void transact(int called) {
    cs_handle h;
    unsigned index = csxBegin(domain, &h);
    CHECK(index < csxIndices(domain) && csxHere(&h) == csxArea(domain, index));
    volatile struct area *a = csxHere(&h);
    int64_t stored = a->stored, compared = a->compared;
    int32_t stored_small = a->stored_small, compared_small = a->compared_small;
    uint64_t pair[2] = {a->pair[0], a->pair[1]}, next[2] = {pair[0] + 1, pair[1] + 1};
    int r = called & 1 ? (csxST64)(&h, (void *)&a->stored, stored + 1) : csxST64(&h, (void *)&a->stored, stored + 1);
    CHECK(r != CS_MISMATCH);
    if (r == CS_STORED) COUNT(stored);
    /* Only transactions write these words, so a mismatch would be a commit without protection. */
    r = called & 2 ? (csxCAS64)(&h, compared + 1, compared, (void *)&a->compared)
                   : csxCAS64(&h, compared + 1, compared, (void *)&a->compared);
    CHECK(r != CS_MISMATCH);
    if (r == CS_STORED) COUNT(compared);
    r = csxST32(&h, (void *)&a->stored_small, stored_small + 1);
    if (r == CS_STORED) COUNT(stored_small);
    r = csxCAS32(&h, compared_small + 1, compared_small, (void *)&a->compared_small);
    CHECK(r != CS_MISMATCH);
    if (r == CS_STORED) COUNT(compared_small);
    r = csxCAS128(&h, next, pair, (void *)a->pair);
    CHECK(r != CS_MISMATCH);
    if (r == CS_STORED) {
        COUNT(pair[0]);
        CHECK(csxCAS128(&h, next, pair, (void *)a->pair) != CS_STORED);
    }
    csxEnd(&h);
    CHECK(csxST64(&h, (void *)&a->stored, 0) == CS_INTERFERED);
}

static void one_shots(void) {
    csxAdd64(domain, offsetof(struct area, added), 3);
    (csxAdd64)(domain, offsetof(struct area, added), -2);
    COUNT(added);
    struct node *node = csxPop(domain, offsetof(struct area, list));
    if (node) {
        node->used++;
        csxPush(domain, offsetof(struct area, list), node);
    }
}

static void handler(int signal) {
    (void)signal;
    transact(0);
    one_shots();
}

static void take(void *area, void *argument) {
    struct area *a = area;
    (void)argument;
    CHECK(a->pair[0] == a->pair[1]);
    found.stored += a->stored, found.compared += a->compared, found.added += a->added;
    found.stored_small += a->stored_small, found.compared_small += a->compared_small, found.pair[0] += a->pair[0];
    a->stored = a->compared = a->added = 0;
    a->stored_small = a->compared_small = 0;
    a->pair[0] = a->pair[1] = 0;
}

static void empty(void *area, void *argument) {
    struct area *a = area;
    for (struct node *node = a->list; node; node = node->next) ++*(long *)argument;
    a->list = NULL;
}

static void *run(void *unused) {
    (void)unused;
    for (int i = 0; i < ROUNDS; i++) {
        transact(i);
        one_shots();
    }
    return NULL;
}

static void *take_often(void *unused) {
    (void)unused;
    for (unsigned i = 0; !stop; i++) CHECK(csxTakeOver(domain, i % csxIndices(domain), take, NULL) == 0);
    return NULL;
}

static void storm(int by) {
    domain = csxCreate(by, sizeof(struct area));
    CHECK(domain);
    made = found = (struct area){0};
    stop = 0;
    for (int i = 0; i < NODES; i++) csxPush(domain, offsetof(struct area, list), &nodes[i]);
    signal(SIGALRM, handler);
    struct itimerval often = {{0, 300}, {0, 300}}, never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &often, 0);
    pthread_t threads[THREADS], taker;
    for (int i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, run, NULL) == 0);
    CHECK(pthread_create(&taker, NULL, take_often, NULL) == 0);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    stop = 1;
    pthread_join(taker, NULL);
    setitimer(ITIMER_REAL, &never, 0);
    signal(SIGALRM, SIG_IGN);
    long left = 0;
    for (unsigned i = 0; i < csxIndices(domain); i++) {
        CHECK(csxTakeOver(domain, i, take, NULL) == 0 && csxTakeOver(domain, i, empty, &left) == 0);
    }
    CHECK(left == NODES);
    CHECK(found.stored == made.stored && found.compared == made.compared && found.added == made.added);
    CHECK(found.stored_small == made.stored_small && found.compared_small == made.compared_small);
    CHECK(found.pair[0] == made.pair[0] && made.pair[0] > ROUNDS);
    /* The handle's failures are counted once each, whoever found them. */
    struct cs_statistics s;
    csxStatistics(domain, &s);
    CHECK(s.begun == s.succeeded + s.failed && s.abandoned == 0 && s.begun >= (uint64_t)THREADS * ROUNDS);
    CHECK(csxMode(domain) != CS_LOCKS || s.by_lock > s.begun);
    csxDestroy(domain);
}

int main(void) {
    storm(CS_BY_CPU);
    storm(CS_BY_CONCURRENCY_ID);
    return 0;
}
