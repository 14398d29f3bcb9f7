/*
 * bodies.h - what the Barnes-Hut programs share: a star cluster, an octree built anew at every step, and forces from it.
 *
 * A step of the simulation (Endo's thesis, 2001, section 1.1, "BH") first builds an octree over the bodies, and then
 * calculates forces, speeds and places from it. Memory is allocated in the first phase only; the tree of the last step
 * becomes garbage as a whole. Bodies live as long as the program.
 *
 * All threads go through the phases of a step together, with a barrier after each:
 *
 *   bounds   each thread finds the box around its bodies
 *   count    each thread finds the cell of each of its bodies, in a fixed grid of 8 x 8 x 8, and counts
 *   scatter  each thread puts pointers to its bodies where their cell's share of one array is
 *   build    threads take cells one by one, and build the subtree of each with its masses and centres;
 *            with `one_builder`, one thread takes all of them
 *   crown    one thread joins the 512 subtrees
 *   force    threads take bodies in bunches and walk the tree
 *   move     each thread moves its bodies
 *
 * The tree depends on the places of the bodies alone, sums are taken in a fixed order, and no two threads write one sum, so the
 * result is the same to the last bit for every number of threads.
 */
#ifndef BODIES_H
#define BODIES_H

#include "barrier.h"
#include "report.h"

#include <math.h>
#include <stdatomic.h>

enum {
    GRID_LEVELS = 3,
    CELLS = 1 << (3 * GRID_LEVELS),
    BUNCH = 64,
    /* Bodies this deep in the same place share a chain instead of being split for ever. */
    DEEPEST = 60,
    MOST_THREADS = 4096
};

static const double OPENING = 1.0;     /* open a node that looks larger than this; Barnes and Hut (1986) use 1 */
static const double SOFTENING2 = 1e-4; /* squared length below which gravity fades */
static const double TIME_STEP = 1.0 / 512;

typedef struct {
    double x, y, z;
} Vector;

/* What a tree consists of. A body is its own leaf. */
typedef struct Thing {
    int is_body;
    double mass;
    Vector centre; /* of mass; a body's place */
} Thing;

typedef struct Body {
    Thing thing;
    Vector speed, force;
    double potential;
    struct Body *same_place; /* only below DEEPEST */
} Body;

typedef struct {
    Thing thing;
    double size; /* length of an edge */
    Thing *child[8];
} Node;

/* One step's tree, and what is needed to build it. Everything in it is garbage when the next step begins. */
typedef struct {
    Vector low; /* corner and edge of the box around everything */
    double size;
    Body **sorted; /* bodies by cell */
    int first[CELLS + 1];
    Thing *subtree[CELLS];
    Node *root;
} Step;

static long threads, bodies_count, steps;
static int one_builder; /* the tree is built by one thread while the others wait (the thesis's BH-st) */
static Body **bodies;
static Step *step;
static pthread_barrier_t barrier;
static _Atomic long next_cell, next_bunch;
static Vector thread_low[MOST_THREADS], thread_high[MOST_THREADS];
static int (*thread_count)[CELLS]; /* bodies of a thread in a cell, then where its next one goes */
static int *cell_of;
static _Thread_local long own_nodes; /* that this thread made */
static _Atomic long nodes_made;
static double first_energy, last_energy;

static int octant(Vector place, Vector middle) {
    return (place.x >= middle.x) | (place.y >= middle.y) << 1 | (place.z >= middle.z) << 2;
}

static Vector part_of_box(Vector low, double half, int octant) {
    return (Vector){low.x + (octant & 1 ? half : 0), low.y + (octant & 2 ? half : 0), low.z + (octant & 4 ? half : 0)};
}

static Node *new_node(double size) {
    Node *node = GC_NEW(Node);
    if (!node) {
        fprintf(stderr, "Barnes-Hut: out of memory\n");
        exit(3);
    }
    node->size = size;
    own_nodes++;
    return node;
}

/* The tree with `body` in it. */
static Thing *insert(Thing *tree, Body *body, Vector low, double size, int depth) {
    if (!tree)
        return &body->thing;
    if (tree->is_body) {
        Body *other = (Body *)tree;
        if (depth == DEEPEST) {
            STORE(&body->same_place, other);
            return &body->thing;
        }
        tree = &new_node(size)->thing;
        insert(tree, other, low, size, depth);
    }
    Node *node = (Node *)tree;
    double half = size / 2;
    int o = octant(body->thing.centre, (Vector){low.x + half, low.y + half, low.z + half});
    STORE(&node->child[o], insert(node->child[o], body, part_of_box(low, half, o), half, depth + 1));
    return tree;
}

/* Sets the mass of a node and its centre from those of its children. */
static void weigh_children(Node *node) {
    double mass = 0, x = 0, y = 0, z = 0;
    for (int o = 0; o < 8; o++) {
        /* Bodies that share a place hang behind one another. */
        for (Thing *part = node->child[o]; part; part = part->is_body ? (Thing *)((Body *)part)->same_place : 0) {
            mass += part->mass;
            x += part->mass * part->centre.x;
            y += part->mass * part->centre.y;
            z += part->mass * part->centre.z;
        }
    }
    node->thing.mass = mass;
    if (mass > 0)
        node->thing.centre = (Vector){x / mass, y / mass, z / mass};
}

static void weigh(Thing *tree) {
    if (!tree || tree->is_body)
        return;
    Node *node = (Node *)tree;
    for (int o = 0; o < 8; o++)
        weigh(node->child[o]);
    weigh_children(node);
}

/* A cell's number is the path to it: three bits a level, the first level highest. */
static int find_cell(Vector place) {
    Vector low = step->low;
    double half = step->size / 2;
    int cell = 0;
    for (int level = 0; level < GRID_LEVELS; level++, half /= 2) {
        int o = octant(place, (Vector){low.x + half, low.y + half, low.z + half});
        low = part_of_box(low, half, o);
        cell = cell << 3 | o;
    }
    return cell;
}

static void build_cell(int cell) {
    Vector low = step->low;
    double size = step->size;
    for (int level = GRID_LEVELS - 1; level >= 0; level--) {
        size /= 2;
        low = part_of_box(low, size, cell >> (3 * level) & 7);
    }
    Thing *tree = 0;
    for (int i = step->first[cell]; i < step->first[cell + 1]; i++)
        tree = insert(tree, step->sorted[i], low, size, GRID_LEVELS);
    weigh(tree);
    STORE(&step->subtree[cell], tree);
}

/* The nodes above the cells; they are there even where little is below them. */
static Thing *build_crown(int path, int level, double size) {
    if (level == GRID_LEVELS)
        return step->subtree[path];
    Node *node = new_node(size);
    int any = 0;
    for (int o = 0; o < 8; o++) {
        Thing *child = build_crown(path << 3 | o, level + 1, size / 2);
        STORE(&node->child[o], child);
        any |= !!child;
    }
    if (!any && level > 0)
        return 0;
    weigh_children(node);
    return &node->thing;
}

static void pull(Body *body, const Thing *by, Vector way, double distance2) {
    double distance = sqrt(distance2 + SOFTENING2);
    double potential = by->mass / distance, factor = potential / (distance * distance);
    body->force.x += factor * way.x;
    body->force.y += factor * way.y;
    body->force.z += factor * way.z;
    body->potential -= potential;
}

static void feel(Body *body, const Thing *tree) {
    Vector way = {tree->centre.x - body->thing.centre.x, tree->centre.y - body->thing.centre.y,
                  tree->centre.z - body->thing.centre.z};
    double distance2 = way.x * way.x + way.y * way.y + way.z * way.z;
    if (tree->is_body) {
        const Body *other = (const Body *)tree;
        if (other != body)
            pull(body, tree, way, distance2);
        if (other->same_place)
            feel(body, &other->same_place->thing);
        return;
    }
    const Node *node = (const Node *)tree;
    if (node->size * node->size < OPENING * OPENING * distance2) {
        pull(body, tree, way, distance2);
        return;
    }
    for (int o = 0; o < 8; o++)
        if (node->child[o])
            feel(body, node->child[o]);
}

/* Puts the box around everything from the threads' boxes, with a little room so that no body is on its far side. */
static void begin_step(void) {
    Vector low = thread_low[0], high = thread_high[0];
    for (long t = 1; t < threads; t++) {
        low = (Vector){fmin(low.x, thread_low[t].x), fmin(low.y, thread_low[t].y), fmin(low.z, thread_low[t].z)};
        high = (Vector){fmax(high.x, thread_high[t].x), fmax(high.y, thread_high[t].y), fmax(high.z, thread_high[t].z)};
    }
    Step *fresh = GC_NEW(Step);
    Body **sorted = GC_MALLOC(bodies_count * sizeof *sorted);
    if (!fresh || !sorted) {
        fprintf(stderr, "Barnes-Hut: out of memory\n");
        exit(3);
    }
    fresh->low = low;
    fresh->size = fmax(fmax(high.x - low.x, high.y - low.y), high.z - low.z) * 1.001 + 1e-9;
    STORE(&fresh->sorted, sorted);
    step = fresh;
    next_cell = 0;
    next_bunch = 0;
}

/* Turns the counts into places: cells one after the other, within a cell the threads one after the other. */
static void place_cells(void) {
    int place = 0;
    for (int cell = 0; cell < CELLS; cell++) {
        step->first[cell] = place;
        for (long t = 0; t < threads; t++) {
            int count = thread_count[t][cell];
            thread_count[t][cell] = place;
            place += count;
        }
    }
    step->first[CELLS] = place;
}

static double energy(void) {
    double total = 0;
    for (long i = 0; i < bodies_count; i++) {
        Vector v = bodies[i]->speed;
        total += bodies[i]->thing.mass * (v.x * v.x + v.y * v.y + v.z * v.z + bodies[i]->potential) / 2;
    }
    return total;
}

static void kick(Body *body, double time) {
    body->speed.x += body->force.x * time;
    body->speed.y += body->force.y * time;
    body->speed.z += body->force.z * time;
}

/* Whether this thread is the one that works alone until the next barrier. */
static int alone(void) { return pthread_barrier_wait(&barrier) == PTHREAD_BARRIER_SERIAL_THREAD; }

static void *simulate(void *argument) {
    long me = (intptr_t)argument, from = bodies_count * me / threads, to = bodies_count * (me + 1) / threads;
    for (long s = 0; s <= steps; s++) {
        Vector low = {INFINITY, INFINITY, INFINITY}, high = {-INFINITY, -INFINITY, -INFINITY};
        for (long i = from; i < to; i++) {
            Vector at = bodies[i]->thing.centre;
            STORE(&bodies[i]->same_place, 0);
            low = (Vector){fmin(low.x, at.x), fmin(low.y, at.y), fmin(low.z, at.z)};
            high = (Vector){fmax(high.x, at.x), fmax(high.y, at.y), fmax(high.z, at.z)};
        }
        thread_low[me] = low;
        thread_high[me] = high;
        if (alone())
            begin_step();
        pthread_barrier_wait(&barrier);

        memset(thread_count[me], 0, sizeof thread_count[me]);
        for (long i = from; i < to; i++)
            thread_count[me][cell_of[i] = find_cell(bodies[i]->thing.centre)]++;
        if (alone())
            place_cells();
        pthread_barrier_wait(&barrier);

        for (long i = from; i < to; i++)
            STORE(&step->sorted[thread_count[me][cell_of[i]]++], bodies[i]);
        pthread_barrier_wait(&barrier);

        if (!one_builder || me == 0)
            for (long cell; (cell = next_cell++) < CELLS;)
                build_cell(cell);
        if (alone())
            STORE(&step->root, (Node *)build_crown(0, 0, step->size));
        pthread_barrier_wait(&barrier);

        /* By cell, so that one walk finds in the cache what the walk before it used. */
        for (long bunch; (bunch = next_bunch++) * BUNCH < bodies_count;) {
            long end = (bunch + 1) * BUNCH < bodies_count ? (bunch + 1) * BUNCH : bodies_count;
            for (long i = bunch * BUNCH; i < end; i++) {
                Body *body = step->sorted[i];
                body->force = (Vector){0, 0, 0};
                body->potential = 0;
                feel(body, &step->root->thing);
            }
        }
        pthread_barrier_wait(&barrier);

        /* Leapfrog: half a kick ends the last step, half a kick begins the next. Energy is known between the two. */
        if (s > 0)
            for (long i = from; i < to; i++)
                kick(bodies[i], TIME_STEP / 2);
        if (s == 0 || s == steps) {
            if (alone())
                *(s == 0 ? &first_energy : &last_energy) = energy();
            pthread_barrier_wait(&barrier);
        }
        if (s < steps)
            for (long i = from; i < to; i++) {
                Body *body = bodies[i];
                kick(body, TIME_STEP / 2);
                body->thing.centre.x += body->speed.x * TIME_STEP;
                body->thing.centre.y += body->speed.y * TIME_STEP;
                body->thing.centre.z += body->speed.z * TIME_STEP;
            }
    }
    nodes_made += own_nodes;
    return 0;
}

static double random_unit(uint64_t *state) { return (random_next(state) >> 11) * 0x1p-53; }

static Vector random_direction(uint64_t *state, double length) {
    double z = 2 * random_unit(state) - 1, angle = 2 * M_PI * random_unit(state), r = sqrt(1 - z * z) * length;
    return (Vector){r * cos(angle), r * sin(angle), z * length};
}

/* A Plummer sphere in balance, in units where its mass, its scale and the constant of gravity are 1 (Aarseth, Henon, Wielen 1974). */
static void make_cluster(void) {
    uint64_t state = 2001;
    for (long i = 0; i < bodies_count; i++) {
        Body *body = GC_NEW(Body);
        if (!body) {
            fprintf(stderr, "Barnes-Hut: out of memory\n");
            exit(3);
        }
        double radius;
        do
            radius = 1 / sqrt(pow(random_unit(&state) + 1e-12, -2.0 / 3) - 1);
        while (radius > 10);
        double q, g;
        do {
            q = random_unit(&state);
            g = random_unit(&state) * 0.1;
        } while (g > q * q * pow(1 - q * q, 3.5));
        body->thing.is_body = 1;
        body->thing.mass = 1.0 / bodies_count;
        body->thing.centre = random_direction(&state, radius);
        body->speed = random_direction(&state, q * sqrt(2) * pow(1 + radius * radius, -0.25));
        STORE(&bodies[i], body);
    }
}

static uint64_t checksum(void) {
    uint64_t sum = 0xcbf29ce484222325u;
    for (long i = 0; i < bodies_count; i++) {
        uint64_t word[3];
        memcpy(word, &bodies[i]->thing.centre, sizeof word);
        for (int k = 0; k < 3; k++)
            sum = (sum ^ word[k]) * 0x100000001b3u;
    }
    return sum;
}

/* Makes the bodies and runs all steps; returns the time that the steps took. */
static double run_simulation(void) {
    bodies = GC_MALLOC(bodies_count * sizeof *bodies);
    thread_count = GC_MALLOC_ATOMIC(threads * sizeof *thread_count);
    cell_of = GC_MALLOC_ATOMIC(bodies_count * sizeof *cell_of);
    if (!bodies || !thread_count || !cell_of) {
        fprintf(stderr, "Barnes-Hut: out of memory\n");
        exit(3);
    }
    make_cluster();
    pthread_barrier_init(&barrier, 0, threads);
    double start = now_s();
    run_threads(threads, simulate);
    return now_s() - start;
}

/* Objects allocated by all threads: nodes, what each step has beside them, bodies, and the three arrays over bodies and threads. */
static inline long objects_made(void) { return nodes_made + 2 * (steps + 1) + bodies_count + 3; }

/* The part of the energy that was gained or lost. */
static double energy_drift(void) { return fabs(last_energy / first_energy - 1); }

/* A few bodies that meet closely gain energy by rounding alone. */
static int energy_is_kept(void) { return energy_drift() < 0.02 || bodies_count < 1000; }

#endif
