/* A free list for each concurrency id, in one-shot operations; at the end every index's list is taken over. */
#include <larder_cs.h>

#include <pthread.h>
#include <stdio.h>

enum { THREADS = 8, NODES = 64, ROUNDS = 100000 };

struct node {
    struct node *next;
    volatile long used;
};

static struct node nodes[NODES];
static cs_domain *lists;
static long rounds_without;

static void *run(void *unused) {
    (void)unused;
    long without = 0;
    for (int i = 0; i < ROUNDS; i++) {
        struct node *node = csxPop(lists, 0);
        if (!node) {
            without++; /* the nodes are elsewhere at the moment */
            continue;
        }
        node->used++; /* ours alone, so no atomic is needed */
        csxPush(lists, 0, node);
    }
    __atomic_fetch_add(&rounds_without, without, __ATOMIC_RELAXED);
    return NULL;
}

static void count(void *area, void *argument) {
    long *found = argument;
    for (struct node *node = *(struct node **)area; node; node = node->next) {
        found[0]++;
        found[1] += node->used;
    }
    *(struct node **)area = NULL;
}

int main(void) {
    lists = csxCreate(CS_BY_CONCURRENCY_ID, sizeof(struct node *));
    if (!lists) {
        perror("free_list");
        return 1;
    }
    for (int i = 0; i < NODES; i++) {
        csxPush(lists, 0, &nodes[i]);
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
    long found[2] = {0, 0};
    for (unsigned i = 0; i < csxIndices(lists); i++) {
        if (csxTakeOver(lists, i, count, found)) {
            return 1;
        }
    }
    printf("%ld of %d nodes, used %ld times; %ld rounds found none\n", found[0], NODES, found[1], rounds_without);
    csxDestroy(lists);
    return found[0] == NODES && found[1] + rounds_without == (long)THREADS * ROUNDS ? 0 : 1;
}
