// xtask: larder-only
/* A stop that arrives while a thread runs a signal handler on an alternate stack, announced by GC_register_altstack or
 * not: both stacks are searched. Not so on libgc, which searches only the alternate stack where it was announced, and
 * stops the process where it was not. (Larder once did the latter in both cases.) */
#include "check.h"
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

enum { OBJECTS = 64, BYTES = 112 };

/* Pointers in disguise, in memory that is not searched: they keep nothing. */
static GC_word *disguised;
/* Not searched either: each is cleared when its object is found dead. */
static void **links;
static char alternate[1 << 16] __attribute__((aligned(16)));
static int entered[2], leave[2];
static int announced;

static NOINLINE void make(int first, int count) {
    for (int i = first; i < first + count; i++) {
        GC_word *object = GC_malloc(BYTES);
        for (int w = 0; w < BYTES / 8; w++) object[w] = 0x5eed + i;
        disguised[i] = ~(GC_word)object;
        links[i] = object;
        CHECK(GC_general_register_disappearing_link(&links[i], object) == GC_SUCCESS);
    }
}
static NOINLINE void check_contents(void *const *objects, int first) {
    for (int i = 0; i < OBJECTS; i++) {
        GC_word *object = objects[i];
        for (int w = 0; w < BYTES / 8; w++) CHECK(object[w] == (GC_word)0x5eed + first + i);
    }
}
static NOINLINE void reveal(void **objects, int first) {
    for (int i = 0; i < OBJECTS; i++) objects[i] = (void *)~disguised[first + i];
}

/* Holds the second group on the alternate stack while the world is stopped. */
static void on_alternate_stack(int signal) {
    (void)signal;
    void *objects[OBJECTS];
    char byte = 0;
    CHECK((char *)objects >= alternate && (char *)objects < alternate + sizeof alternate);
    reveal(objects, OBJECTS);
    opaque(objects);
    CHECK(write(entered[1], &byte, 1) == 1);
    CHECK(read(leave[0], &byte, 1) == 1);
    check_contents(objects, OBJECTS);
}
/* Holds the first group on its own stack meanwhile. */
static NOINLINE void interrupted(void) {
    void *objects[OBJECTS];
    reveal(objects, 0);
    opaque(objects);
    raise(SIGUSR1);
    check_contents(objects, 0);
    opaque(objects);
}
static void *thread(void *unused) {
    if (announced) {
        pthread_attr_t attributes;
        void *stack;
        size_t bytes;
        CHECK(pthread_getattr_np(pthread_self(), &attributes) == 0);
        CHECK(pthread_attr_getstack(&attributes, &stack, &bytes) == 0);
        pthread_attr_destroy(&attributes);
        GC_register_altstack(stack, bytes, alternate, sizeof alternate);
    }
    stack_t own = {.ss_sp = alternate, .ss_size = sizeof alternate};
    CHECK(sigaltstack(&own, 0) == 0);
    interrupted();
    own.ss_flags = SS_DISABLE;
    CHECK(sigaltstack(&own, 0) == 0);
    return unused;
}

/* Three groups: on the ordinary stack, on the alternate one, and nowhere. */
static NOINLINE void make_all(void) { make(0, 3 * OBJECTS); }

static void round_with(int with_announcement) {
    announced = with_announcement;
    pthread_t t;
    char byte = 0;
    far_away(make_all);
    CHECK(GC_pthread_create(&t, 0, thread, 0) == 0);
    CHECK(read(entered[0], &byte, 1) == 1);
    for (int i = 0; i < 5; i++) {
        collect();
        for (int j = 0; j < 20000; j++) memset(GC_malloc(BYTES), 0xdd, BYTES);
    }
    int dead = 0;
    for (int i = 0; i < 2 * OBJECTS; i++) CHECK(links[i] != 0);
    for (int i = 2 * OBJECTS; i < 3 * OBJECTS; i++) dead += links[i] == 0;
    CHECK(dead > OBJECTS / 2); /* Otherwise the test shows nothing. */
    CHECK(write(leave[1], &byte, 1) == 1);
    CHECK(GC_pthread_join(t, 0) == 0);
    for (int i = 0; i < 3 * OBJECTS; i++) GC_unregister_disappearing_link(&links[i]);
}

int main(void) {
    GC_init();
    CHECK(pipe(entered) == 0 && pipe(leave) == 0);
    disguised = malloc(3 * OBJECTS * sizeof *disguised);
    links = malloc(3 * OBJECTS * sizeof *links);
    CHECK(disguised != 0 && links != 0);
    /* The stack is only found where the kernel says that it is in use. */
    struct sigaction action = {.sa_handler = on_alternate_stack, .sa_flags = SA_ONSTACK | SA_RESTART};
    CHECK(sigaction(SIGUSR1, &action, 0) == 0);
    for (int i = 0; i < 4; i++) round_with(i % 2);
    return 0;
}
