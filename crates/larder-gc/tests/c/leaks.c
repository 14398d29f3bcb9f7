/* The leak-finding mode: what became unreachable without having been freed is reported, by cycles and when the program ends. */
#include "check.h"
#include <gc/gc_mark.h>

static void leak_plain(void) {
    for (int i = 0; i < 3; i++) GC_malloc_atomic(100);
    GC_malloc(100000);
}
static void leak_debug(void) {
    for (int i = 0; i < 5; i++) *(char *)GC_debug_malloc(33, "leaky.c", 10 + i) = 1;
    GC_debug_malloc_atomic(44, "leaky.c", 20);
    GC_debug_free(GC_debug_malloc(55, "honest.c", 1));
    GC_free(GC_malloc(66));
    GC_malloc_uncollectable(77);
}
static void nothing(void *object, void *data) {
    (void)object;
    (void)data;
}
static void start(void) {
    GC_set_find_leak(1);
    GC_init();
    CHECK(GC_get_find_leak() == 1);
}

static void in_cycles(void) {
    start();
    void **kept = GC_malloc(64);
    far_away(leak_plain);
    far_away(leak_debug);
    collect();
    fprintf(stderr, "SECOND\n");
    collect();
    fprintf(stderr, "END\n");
    CHECK(kept[3] == 0);
    /* Finalizers and links are refused. */
    void *link, *p = GC_malloc(8);
    CHECK(GC_general_register_disappearing_link(&link, p) == GC_UNIMPLEMENTED);
    CHECK(GC_register_long_link(&link, p) == GC_UNIMPLEMENTED);
    GC_register_finalizer(p, nothing, 0, 0, 0);
    GC_free(p);
    GC_free(kept);
}
static void at_exit(void) {
    start();
    far_away(leak_debug);
}
static void by_environment(void) {
    setenv("GC_FIND_LEAK", "1", 1);
    GC_init();
    CHECK(GC_get_find_leak() == 1);
    far_away(leak_debug);
}
static void aborting(void) {
    setenv("GC_ABORT_ON_LEAK", "1", 1);
    start();
    far_away(leak_debug);
    collect();
}
static char *dangling;
static void written_after_free(void) {
    setenv("GC_FINDLEAK_DELAY_FREE", "1", 1);
    start();
    char *p = GC_debug_malloc(50, "late.c", 9);
    dangling = p;
    GC_debug_free(p);
    for (int i = 0; i < 10; i++) GC_debug_free(GC_debug_malloc(50, "fine.c", 8));
    collect();
    dangling[3] = 1;
    dangling = 0;
    p = opaque(0);
    collect();
}
static void describe(void *object, char *text) {
    CHECK(*(volatile long *)object == 12);
    strcpy(text, "a dozen");
}
static void leak_described(void) { *(volatile long *)GC_debug_malloc(8, "described.c", 1) = 12; }
static void described(void) {
    start();
    GC_register_describe_type_fn(1, describe);
    far_away(leak_described);
    collect();
}

int main(void) {
    const char *text;
    CHECK(in_child(in_cycles, &text) == 0);
    CHECK(occurs("Found ", text) >= 1 && occurs("leaked objects:\n", text) == occurs("Found ", text));
    CHECK(occurs("(leaky.c:1", text) == 5 && occurs("sz= 33, NORMAL)", text) == 5);
    CHECK(occurs("(leaky.c:20, sz= 44, PTRFREE)", text) == 1 && occurs("honest.c", text) == 0);
    CHECK(occurs("object at ", text) == 4 && occurs("(atomic)", text) == 3 && occurs("(composite)", text) == 1);
    CHECK(occurs("of appr. 1", text) == 4);
    /* Each is reported once, and collected then. */
    CHECK(strstr(strstr(text, "SECOND"), "leak") == 0);
    CHECK(in_child(at_exit, &text) == 0 && occurs("(leaky.c:", text) == 6);
    CHECK(in_child(by_environment, &text) == 0 && occurs("(leaky.c:", text) == 6);
    CHECK(ABORTED(in_child(aborting, &text)) && strstr(text, "Leaked or smashed objects encountered"));
    CHECK(in_child(written_after_free, &text) == 0);
    CHECK(strstr(text, "smashed") && strstr(text, "(late.c:9, sz= ") && occurs("fine.c", text) == 0);
    CHECK(in_child(described, &text) == 0);
    CHECK(strstr(text, "(described.c:1, sz= 8, a dozen)"));
    return 0;
}
