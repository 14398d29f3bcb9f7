/* Debug allocation: whatever the header's size is, base and user's pointer differ by it. */
#include "check.h"
#include <gc/gc_mark.h>

static int died;
static void *expected_data = "data";
static void run(void *object, void *data) {
    CHECK(data == expected_data && *(long *)object == 1234567);
    died++;
}
static void make(void) {
    for (int i = 0; i < 100; i++) {
        long *p = GC_debug_malloc(64, "debug.c", i);
        *p = 1234567;
        GC_debug_register_finalizer_ignore_self(p, run, expected_data, 0, 0);
    }
}

int main(void) {
    GC_init();
    CHECK(GC_debug_header_size == GC_get_debug_header_size());
    char *p = GC_debug_malloc(100, "debug.c", 1);
    CHECK((char *)GC_base(p) + GC_get_debug_header_size() == p);
    CHECK(GC_USR_PTR_FROM_BASE(GC_base(p + 50)) == p);
    for (int i = 0; i < 100; i++) CHECK(p[i] == 0);
    memset(p, 5, 100);
    p = GC_debug_realloc(p, 1000, "debug.c", 2);
    for (int i = 0; i < 100; i++) CHECK(p[i] == 5);
    GC_debug_free(p);
    CHECK(strcmp(GC_debug_strdup("text", "debug.c", 3), "text") == 0);
    CHECK(strcmp(GC_debug_strndup("text", 2, "debug.c", 3), "te") == 0);
    p = GC_debug_malloc_uncollectable(10, "debug.c", 4);
    GC_debug_free(p);
    p = GC_debug_malloc_atomic(10, "debug.c", 5);
    GC_debug_free(p);
    far_away(make);
    collect();
    collect();
    CHECK(died >= 90);
    return 0;
}
