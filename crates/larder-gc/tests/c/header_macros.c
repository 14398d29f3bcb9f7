/* Macros of the headers for programs in C90, and for programs that declare functions in the place of the library's. */
#define GC_THREADS
#define GC_NO_THREAD_REDIRECTS
#include "check.h"
#include <gc/gc_inline.h>

/* A program's own, which only hands on. */
static int create(pthread_t *thread, GC_PTHREAD_CREATE_CONST pthread_attr_t *attributes, void *(*start)(void *), void *argument) {
    return GC_pthread_create(thread, attributes, start, argument);
}
static void leave(void *result) GC_PTHREAD_EXIT_ATTRIBUTE;
static void leave(void *result) {
    GC_pthread_exit(result);
}
static void *start(void *argument) {
    leave(argument);
    /* No return: the compiler knows that nobody comes here. */
}

/* In C90 declarations come first in a block, in those that macros make, too. */
#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wdeclaration-after-statement"
static void *lists[GC_TINY_FREELISTS], *plain_lists[GC_TINY_FREELISTS];
static void inlined(void) {
    void *two, *three, *plain, *pair;
    int i;
    for (i = 0; i < 1000; i++) {
        GC_FAST_MALLOC_GRANS(two, 2, lists, 0, GC_I_NORMAL, GC_malloc(2 * GC_GRANULE_BYTES), (void)0);
        GC_MALLOC_WORDS(three, 3, lists);
        GC_MALLOC_ATOMIC_WORDS(plain, 5, plain_lists);
        GC_CONS(pair, two, three, lists);
        CHECK(((void **)pair)[0] == two && ((void **)pair)[1] == three);
        CHECK(GC_size(two) >= 2 * GC_GRANULE_BYTES && GC_size(three) >= 3 * sizeof(void *));
        CHECK(GC_size(plain) >= 5 * sizeof(void *));
    }
    GC_FAST_MALLOC_GRANS(two, GC_TINY_FREELISTS, lists, 0, GC_I_NORMAL, 0, (void)0);
    CHECK(two == 0);
}
#pragma GCC diagnostic pop

int main(void) {
    pthread_t thread;
    void *result = 0;
    GC_INIT();
    inlined();
    CHECK(create(&thread, 0, start, &thread) == 0 && GC_pthread_join(thread, &result) == 0 && result == &thread);
    return 0;
}
