/* Objects with finalizers that refer to each other, or one to itself, are never finalized, and each cycle warns of them. */
#include "check.h"

static int finalized, warned;
static void GC_CALLBACK count(void *object UNUSED, void *data UNUSED) { finalized++; }
static void GC_CALLBACK warn(char *format, GC_word argument) {
    char text[200];
    snprintf(text, sizeof text, format, argument);
    if (strncmp(text, "GC Warning: Finalization cycle involving 0x", 43) == 0) warned++;
    CHECK(GC_base((void *)argument) == (void *)argument);
}

static void make_cycle(void) {
    void **one = GC_MALLOC(40), **other = GC_MALLOC(40), **itself = GC_MALLOC(40);
    one[0] = other;
    other[0] = one;
    itself[0] = itself;
    GC_register_finalizer(one, count, 0, 0, 0);
    GC_register_finalizer(other, count, 0, 0, 0);
    GC_register_finalizer(itself, count, 0, 0, 0);
}
static void make_others(void) {
    void **itself = GC_MALLOC(40);
    itself[0] = itself;
    GC_register_finalizer_ignore_self(itself, count, 0, 0, 0);
    GC_register_finalizer_no_order(GC_MALLOC(40), count, 0, 0, 0);
    GC_register_finalizer(GC_MALLOC(40), count, 0, 0, 0);
}

int main(void) {
    GC_init();
    GC_set_warn_proc(warn);
    for (int i = 0; i < 20; i++) far_away(make_others);
    for (int i = 0; i < 4; i++) collect();
    CHECK(finalized > 50 && warned == 0);
    finalized = 0;
    for (int i = 0; i < 3; i++) far_away(make_cycle);
    for (int i = 0; i < 4; i++) collect();
    CHECK(warned >= 4 && finalized < 9);
    return 0;
}
