/*
 * sets - a ring of objects whose size is near a power of two (Dice's notes, "malloc for Haswell").
 *
 * usage: sets [BYTES [NODES [STEPS]]]
 *
 * NODES objects (250) of BYTES bytes (1010) are linked into a ring in no order, and walked STEPS times: `a->w = 0; a = a->next`. All of them
 * would fit into the first-level cache, one line of each, but an allocator that puts them 1024 bytes apart lets them begin on 4 of its 64
 * sets. Prints the time of a step on the CPU and how many of 64 sets the objects begin on.
 */
#include "report.h"

typedef struct Node {
    struct Node *next;
    volatile int w;
} Node;

static Node *ring;

static double thread_cpu_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

int main(int argc, char **argv) {
    long bytes = argument(argc, argv, 1, "BYTES", 1010, 16, 1 << 20);
    long n = argument(argc, argv, 2, "NODES", 250, 1, 1 << 20);
    long steps = argument(argc, argv, 3, "STEPS", 10000000, 1, 1L << 40);
    GC_INIT();
    Node **nodes = GC_MALLOC(n * sizeof *nodes);
    for (long i = 0; i < n; i++)
        if (!(nodes[i] = GC_MALLOC(bytes))) {
            fprintf(stderr, "sets: out of memory\n");
            return 3;
        }
    long on_set[64] = {0}, used = 0, fullest = 0;
    for (long i = 0; i < n; i++) {
        long *set = &on_set[(uintptr_t)nodes[i] >> 6 & 63];
        used += !*set;
        if (++*set > fullest)
            fullest = *set;
    }
    uint64_t state = 2014;
    for (long i = n - 1; i > 0; i--) {
        long other = random_next(&state) % (i + 1);
        Node *node = nodes[i];
        nodes[i] = nodes[other];
        nodes[other] = node;
    }
    for (long i = 0; i < n; i++)
        nodes[i]->next = nodes[(i + 1) % n];
    ring = nodes[0];
    double best = 1e9;
    Node *a = ring;
    for (int round = 0; round < 5; round++) {
        double start = thread_cpu_s();
        for (long i = 0; i < steps / 5; i++) {
            a->w = 0;
            a = a->next;
        }
        double taken = (thread_cpu_s() - start) / (steps / 5);
        if (taken < best)
            best = taken;
    }
    /* After whole turns the walk is where it began. */
    if (steps / 5 * 5 % n == 0 && a != ring) {
        fprintf(stderr, "sets: the ring was changed\n");
        return 1;
    }
    printf("sets bytes=%ld nodes=%ld steps=%ld step_ns=%.2f sets=%ld fullest=%ld\n", bytes, n, steps, best * 1e9, used, fullest);
    return 0;
}
