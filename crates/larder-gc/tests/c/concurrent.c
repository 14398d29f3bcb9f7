// xtask: larder-only, calls write to the heap
/*
 * Cycles that mark beside the program: everything of libgc that is visible during a cycle stays right. Larder only, because the
 * stock library's incremental mode answers some of the questions in other words.
 */
#include "check.h"
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

enum { NODES = 200000, LINKS = 400, ROUNDS = 30 };

typedef struct Node {
    struct Node *left, *right;
    GC_word number;
} Node;

static Node *tree;
static volatile int stop, finalized;

static Node *make(long from, long to) {
    if (from >= to)
        return 0;
    Node *node = GC_MALLOC(sizeof *node);
    long middle = from + (to - from) / 2;
    node->number = middle;
    node->left = make(from, middle);
    node->right = make(middle + 1, to);
    return node;
}

static long count(const Node *node, long from, long to) {
    if (!node)
        return 0;
    CHECK((long)node->number >= from && (long)node->number < to);
    return 1 + count(node->left, from, node->number) + count(node->right, node->number + 1, to);
}

/* Rotates the tree's upper levels for ever: pointers move among old objects while they are marked. */
static void rotate(Node **place, int depth) {
    Node *node = *place;
    if (!node || depth == 0)
        return;
    rotate(&node->left, depth - 1);
    Node *pivot = node->left;
    if (!pivot)
        return;
    node->left = pivot->right;
    pivot->right = node;
    *place = pivot;
    GC_END_STUBBORN_CHANGE(node);
    GC_END_STUBBORN_CHANGE(pivot);
}

static void *rotates(void *argument) {
    Node **mine = argument;
    while (!stop) {
        rotate(mine, 12);
        for (int i = 0; i < 50; i++)
            GC_reachable_here(GC_MALLOC(40));
    }
    CHECK(count(*mine, 0, NODES) == NODES);
    return 0;
}

/* Begins a cycle, if none is under way, and returns while it marks, or when it waits to be finished. */
static void begin_cycle(void) {
    GC_start_incremental_collection();
    sched_yield();
}

/* Ends the cycle under way. */
static void end_cycle(void) {
    while (GC_collect_a_little())
        sched_yield();
}

static void *read_slot(void *slot) { return *(void **)slot; }

static void no_op(void *object UNUSED, void *data UNUSED) { finalized++; }

static GC_word *slots;
static void make_links(void) {
    for (int i = 0; i < LINKS; i++) {
        GC_word *object = GC_MALLOC(24);
        object[0] = i;
        slots[i] = GC_HIDE_POINTER(object);
        CHECK(GC_general_register_disappearing_link((void **)&slots[i], object) == GC_SUCCESS);
        GC_register_finalizer(object, no_op, 0, 0, 0);
    }
}

/* A link that is read through the lock gives an object that is there, or nothing; it is never cleared too early. */
static void links(void) {
    slots = GC_MALLOC_ATOMIC_UNCOLLECTABLE(LINKS * sizeof *slots);
    for (int round = 0; round < ROUNDS; round++) {
        far_away(make_links);
        begin_cycle();
        int there = 0;
        GC_word *kept[LINKS];
        for (int i = 0; i < LINKS; i++) {
            void *hidden = GC_call_with_alloc_lock(read_slot, &slots[i]);
            kept[i] = hidden ? GC_REVEAL_POINTER(hidden) : 0;
        }
        end_cycle();
        GC_gcollect();
        for (int i = 0; i < LINKS; i++)
            if (kept[i]) {
                there++;
                CHECK(kept[i][0] == (GC_word)i && GC_base(kept[i]) == kept[i]);
                CHECK(slots[i] == GC_HIDE_POINTER(kept[i]));
                GC_unregister_disappearing_link((void **)&slots[i]);
            } else {
                CHECK(slots[i] == 0);
            }
        CHECK(there > 0 || round > 0);
        memset(kept, 0, sizeof kept);
    }
    GC_FREE(slots);
}

/* System calls that write into objects which are being watched. */
static void system_calls(void) {
    int ends[2];
    CHECK(pipe(ends) == 0);
    Node **box = GC_MALLOC(sizeof *box * 64);
    for (int round = 0; round < ROUNDS; round++) {
        Node *node = GC_MALLOC(sizeof *node);
        node->number = round;
        begin_cycle();
        CHECK(write(ends[1], &node, sizeof node) == sizeof node);
        CHECK(read(ends[0], &box[round], sizeof node) == sizeof node);
        node = 0;
        end_cycle();
        for (int i = 0; i <= round; i++)
            CHECK(box[i]->number == (GC_word)i);
    }
    close(ends[0]);
    close(ends[1]);
}

static void *short_life(void *argument) {
    Node *node = make(0, 500);
    CHECK(count(node, 0, 500) == 500);
    return argument;
}

static void *unregistered(void *argument) { return GC_MALLOC_UNCOLLECTABLE((size_t)argument); }

int main(void) {
    GC_INIT();
    CHECK(!GC_is_incremental_mode() || getenv("LARDER_CONCURRENT") || getenv("GC_ENABLE_INCREMENTAL"));
    GC_enable_incremental();
    if (!GC_is_incremental_mode()) {
        fprintf(stderr, "SKIPPED: nothing here watches writes\n");
        return 0;
    }
    CHECK(GC_incremental_protection_needs() == GC_PROTECTS_NONE || getenv("LARDER_WATCH"));
    GC_set_time_limit(2);
    CHECK(GC_get_time_limit() == 2);
    tree = make(0, NODES);
    CHECK(count(tree, 0, NODES) == NODES);

    /* The program's structure changes, and threads come and go, while cycles mark. */
    Node *other = make(0, NODES);
    pthread_t changer;
    CHECK(GC_pthread_create(&changer, 0, rotates, &other) == 0);
    for (int round = 0; round < ROUNDS; round++) {
        begin_cycle();
        rotate(&tree, 14);
        pthread_t thread;
        void *result;
        CHECK(GC_pthread_create(&thread, 0, short_life, tree) == 0);
        CHECK(GC_pthread_join(thread, &result) == 0 && (result != 0));
        if (round % 3 == 0)
            GC_gcollect();
        if (round % 3 == 1)
            end_cycle();
    }
    stop = 1;
    CHECK(GC_pthread_join(changer, 0) == 0);
    CHECK(count(other, 0, NODES) == NODES);
    CHECK(count(tree, 0, NODES) == NODES);

    links();
    system_calls();

    /* Disabled in the middle: the cycle rests, and goes on afterwards. */
    GC_word cycles = GC_get_gc_no();
    end_cycle();
    begin_cycle();
    GC_disable();
    cycles = GC_get_gc_no();
    for (int i = 0; i < 200000; i++)
        GC_reachable_here(GC_MALLOC(64));
    GC_gcollect();
    CHECK(GC_get_gc_no() == cycles);
    GC_enable();
    GC_gcollect();
    CHECK(GC_get_gc_no() > cycles);

    /* A world that the program stops itself. */
    begin_cycle();
    GC_stop_world_external();
    CHECK(tree->number < NODES);
    GC_start_world_external();

    /* Large objects that are freed and made while a cycle marks. */
    for (int round = 0; round < ROUNDS; round++) {
        char *large = GC_MALLOC(300000);
        begin_cycle();
        memset(large, round, 300000);
        GC_FREE(large);
        large = GC_MALLOC(300000);
        CHECK(large[0] == 0 && large[299999] == 0);
        large = GC_REALLOC(large, 900000);
        CHECK(large[0] == 0 && large[299999] == 0);
    }
    pthread_t stranger;
    void *object;
    CHECK(pthread_create(&stranger, 0, unregistered, (void *)100) == 0 && pthread_join(stranger, &object) == 0);
    GC_gcollect();
    GC_FREE(object);
    CHECK(count(tree, 0, NODES) == NODES);
    CHECK(finalized > 0);
    return 0;
}
