// xtask: larder-only
/* Threads that register themselves and end without a word. Their stacks go, and collections must not look at them. libgc
 * wants GC_unregister_my_thread, and dies without. */
#include "check.h"
#include <pthread.h>
#undef pthread_create
#undef pthread_join

static void *body(void *unused) {
    struct GC_stack_base base;
    CHECK(GC_get_stack_base(&base) == GC_SUCCESS && GC_register_my_thread(&base) == GC_SUCCESS);
    CHECK(GC_malloc(100) != 0);
    return unused;
}
static void *unregisters(void *unused) {
    body(unused);
    CHECK(GC_unregister_my_thread() == GC_SUCCESS);
    return unused;
}

int main(void) {
    GC_init();
    GC_allow_register_threads();
    pthread_attr_t attributes;
    CHECK(pthread_attr_init(&attributes) == 0);
    /* Stacks this large do not stay in the C library's cache: they are unmapped. */
    CHECK(pthread_attr_setstacksize(&attributes, 64 << 20) == 0);
    for (int i = 0; i < 50; i++) {
        pthread_t t;
        CHECK(pthread_create(&t, &attributes, i % 2 ? body : unregisters, 0) == 0 && pthread_join(t, 0) == 0);
        GC_gcollect();
    }
    return 0;
}
