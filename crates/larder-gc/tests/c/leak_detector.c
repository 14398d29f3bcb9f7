/* leak_detector.h turns a program's malloc into something that finds what is never freed. */
#include "check.h"
#undef GC_MALLOC
#undef GC_REALLOC
#undef GC_FREE
#undef GC_STRDUP
#undef GC_STRNDUP
#define GC_MALLOC(n) GC_debug_malloc(n, GC_EXTRAS)
#define GC_REALLOC(p, n) GC_debug_realloc(p, n, GC_EXTRAS)
#define GC_FREE(p) GC_debug_free(p)
#define GC_STRDUP(s) GC_debug_strdup(s, GC_EXTRAS)
#define GC_STRNDUP(s, n) GC_debug_strndup(s, n, GC_EXTRAS)
#include <gc/leak_detector.h>

static void leak(void) {
    char *p = malloc(10);
    p = realloc(p, 20);
    p = strdup("never freed");
    p = strndup("never freed", 4);
    p = calloc(3, 5);
    free(p);
}
static void program(void) {
    GC_set_find_leak(1);
    GC_INIT();
    far_away(leak);
    clear_stack();
    CHECK_LEAKS();
}

int main(void) {
    const char *text;
    CHECK(in_child(program, &text) == 0);
    CHECK(occurs("leak_detector.c:", text) == 3 && strstr(text, "sz= 20, NORMAL") && strstr(text, "sz= 12, PTRFREE"));
    CHECK(strstr(text, "sz= 5, PTRFREE") && !strstr(text, "sz= 15"));
    return 0;
}
