/*
 * cube - an approximate solution of Rubik's cube, breadth first.
 *
 * usage: cube [THREADS [ci|thesis [DEPTH [KEPT [ROUNDS]]]]]
 *
 * The program "Cube" of Endo's thesis (2001, section 1.1): all states within DEPTH (3) turns of the present ones are calculated,
 * the best KEPT (20) of the last level are the next round's present ones, and that is done ROUNDS (5) times. Threads allocate states in parallel; a
 * state points to the one it came from.
 *
 * A state is better when more stickers have the colour of their face's middle. Which states there are does not depend on the threads, and
 * states that look the same count once, so the selection does not either. At the end the way to each selected state is followed to the
 * beginning and every turn of it is checked; `sum` is made of the stickers of the states selected in each round.
 */
#include "barrier.h"
#include "thesis.h"

#include <stdatomic.h>

enum { STICKERS = 54, TURNS = 18, SCRAMBLE = 30, CHUNK = 16, MOST_KEPT = 1000 };

typedef struct State {
    struct State *from, *next; /* next: in its thread's list */
    unsigned char turn, score, sticker[STICKERS];
} State;

static unsigned char source_of[TURNS][STICKERS]; /* where the sticker at a place comes from */
static long threads, depth, kept, rounds;
static State **level; /* the states that the threads expand */
static long level_size;
static _Atomic long next_chunk;
static State **thread_list; /* what each thread made of them */
static long *thread_made;
static State *best[MOST_KEPT];
static long best_count;
static uint64_t sum, states_made;
static pthread_barrier_t barrier;

/* Stickers lie on the cube of edge 3 around the origin: a place in {-1, 0, 1}^3 and the direction it faces. */
typedef struct {
    int at[3], faces[3];
} Place;

static Place places[STICKERS];

static void turn_vector(int v[3], int axis) {
    int p = (axis + 1) % 3, q = (axis + 2) % 3, old = v[p];
    v[p] = -v[q];
    v[q] = old;
}

static void make_turns(void) {
    int n = 0;
    for (int axis = 0; axis < 3; axis++)
        for (int side = -1; side <= 1; side += 2)
            for (int i = -1; i <= 1; i++)
                for (int j = -1; j <= 1; j++) {
                    Place *place = &places[n++];
                    place->at[axis] = place->faces[axis] = side;
                    place->at[(axis + 1) % 3] = i;
                    place->at[(axis + 2) % 3] = j;
                }
    for (int turn = 0; turn < TURNS; turn++) {
        int axis = turn / 6, side = turn / 3 % 2 * 2 - 1, quarters = turn % 3 + 1;
        for (int s = 0; s < STICKERS; s++) {
            Place place = places[s];
            if (place.at[axis] == side)
                for (int q = 0; q < quarters; q++) {
                    turn_vector(place.at, axis);
                    turn_vector(place.faces, axis);
                }
            for (int to = 0; to < STICKERS; to++)
                if (!memcmp(&places[to], &place, sizeof place))
                    source_of[turn][to] = s;
        }
    }
}

static int score_of(const State *state) {
    int score = 0;
    for (int s = 0; s < STICKERS; s++)
        score += state->sticker[s] == state->sticker[s / 9 * 9 + 4];
    return score;
}

static State *turned(State *from, int turn) {
    State *state = allocated("cube", GC_MALLOC(sizeof *state));
    for (int s = 0; s < STICKERS; s++)
        state->sticker[s] = from->sticker[source_of[turn][s]];
    STORE(&state->from, from);
    state->turn = turn;
    state->score = score_of(state);
    return state;
}

/* Higher scores first; among equals the stickers decide. */
static int compare_states(const void *p, const void *q) {
    const State *a = *(State *const *)p, *b = *(State *const *)q;
    return a->score != b->score ? b->score - a->score : memcmp(a->sticker, b->sticker, STICKERS);
}

/* Joins what the threads made to the next level. */
static void join_lists(void) {
    long made = 0;
    for (long t = 0; t < threads; t++)
        made += thread_made[t];
    level = allocated("cube", GC_MALLOC((made + 1) * sizeof *level));
    level_size = 0;
    for (long t = 0; t < threads; t++) {
        for (State *state = thread_list[t]; state; state = state->next)
            STORE(&level[level_size++], state);
        STORE(&thread_list[t], 0);
        thread_made[t] = 0;
    }
    if (level_size != made) {
        fprintf(stderr, "cube: %ld of %ld states are there: lost by the collector\n", level_size, made);
        exit(1);
    }
    states_made += made;
    next_chunk = 0;
}

static void select_best(void) {
    qsort(level, level_size, sizeof *level, compare_states);
    STORED(level);
    best_count = 0;
    for (long i = 0; i < level_size && best_count < kept; i++)
        if (best_count == 0 || compare_states(&best[best_count - 1], &level[i]))
            best[best_count++] = level[i];
    for (long i = 0; i < best_count; i++)
        for (int s = 0; s < STICKERS; s++)
            sum = sum_add(sum, best[i]->sticker[s]);
    level = allocated("cube", GC_MALLOC(best_count * sizeof *level));
    memcpy(level, best, best_count * sizeof *level);
    STORED(level);
    level_size = best_count;
}

static int alone(void) { return pthread_barrier_wait(&barrier) == PTHREAD_BARRIER_SERIAL_THREAD; }

static void *search(void *argument) {
    long me = (intptr_t)argument;
    for (long round = 0; round < rounds; round++) {
        for (long d = 0; d < depth; d++) {
            for (long chunk; (chunk = next_chunk++) * CHUNK < level_size;) {
                long end = (chunk + 1) * CHUNK < level_size ? (chunk + 1) * CHUNK : level_size;
                for (long i = chunk * CHUNK; i < end; i++)
                    for (int turn = 0; turn < TURNS; turn++) {
                        State *state = turned(level[i], turn);
                        STORE(&state->next, thread_list[me]);
                        STORE(&thread_list[me], state);
                        thread_made[me]++;
                    }
            }
            if (alone()) {
                join_lists();
                if (d == depth - 1)
                    select_best();
            }
            pthread_barrier_wait(&barrier);
        }
    }
    return 0;
}

/* Follows the way to a state back to `first`. */
static void check_way(const State *state, const State *first) {
    long turns = 0;
    for (; state->from; state = state->from, turns++)
        for (int s = 0; s < STICKERS; s++)
            if (state->sticker[s] != state->from->sticker[source_of[state->turn][s]]) {
                fprintf(stderr, "cube: a state changed after turn %d: lost by the collector, or given out twice\n", state->turn);
                exit(1);
            }
    if (state != first || turns != depth * rounds) {
        fprintf(stderr, "cube: a way has %ld turns, not %ld\n", turns, depth * rounds);
        exit(1);
    }
}

int main(int argc, char **argv) {
    threads = thesis_threads(argc, argv, 5);
    depth = thesis_size(argc, argv, 3, "DEPTH", 2, 3, 1, 6);
    kept = thesis_size(argc, argv, 4, "KEPT", 20, 20, 1, MOST_KEPT);
    rounds = thesis_size(argc, argv, 5, "ROUNDS", 5, 5, 1, 1000);
    report_start();
    make_turns();
    thread_list = allocated("cube", GC_MALLOC(threads * sizeof *thread_list));
    thread_made = allocated("cube", GC_MALLOC_ATOMIC(threads * sizeof *thread_made));
    memset(thread_made, 0, threads * sizeof *thread_made);
    State *first = allocated("cube", GC_MALLOC(sizeof *first));
    for (int s = 0; s < STICKERS; s++)
        first->sticker[s] = s / 9;
    uint64_t state = 2001;
    for (int i = 0; i < SCRAMBLE; i++)
        first = turned(first, random_next(&state) % TURNS);
    first->from = 0;
    level = allocated("cube", GC_MALLOC(sizeof *level));
    STORE(&level[0], first);
    level_size = 1;
    pthread_barrier_init(&barrier, 0, threads);
    double start = now_s();
    run_threads(threads, search);
    double seconds = now_s() - start;
    for (long i = 0; i < best_count; i++)
        check_way(best[i], first);
    thesis_begin("cube" SOFT, threads, sum, seconds);
    printf(" states=%" PRIu64 " best=%d/%d", states_made, best[0]->score, STICKERS);
    thesis_end();
    return 0;
}
