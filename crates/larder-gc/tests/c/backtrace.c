// xtask: larder-headers
/* Why an object is alive. Debian's libgc is built without these functions. */
#include "check.h"
#include <gc/gc_backptr.h>
#include <gc/gc_typed.h>

struct pair {
    void *pointer;
    GC_word number;
};
static void *head;
static GC_word hidden_end, hidden_lost;
static int died;
static void finalizer(void *object, void *data) {
    (void)object;
    (void)data;
    died++;
}
static void make(void) {
    GC_word bits = 1;
    GC_descr descriptor = GC_make_descriptor(&bits, 2);
    void *end = GC_malloc_atomic(100), *next = end;
    for (int i = 0; i < 5; i++) {
        struct pair *p = i % 2 ? GC_malloc_explicitly_typed(sizeof *p, descriptor) : GC_debug_malloc(sizeof *p, "path.c", i);
        p->pointer = next;
        /* What is no pointer by its description leads nowhere; a circle is no way either. */
        p->number = (GC_word)(i % 2 ? end : p);
        next = p;
    }
    head = next;
    hidden_end = ~(GC_word)end;
    void *lost = GC_malloc_atomic(100);
    hidden_lost = ~(GC_word)lost;
}
static NOINLINE const char *path(GC_word hidden) {
    captured_begin();
    GC_set_log_fd(2);
    GC_print_backtrace((void *)~hidden);
    return captured_end();
}
static NOINLINE int referrer(GC_word hidden, void **base, size_t *offset) {
    return GC_get_back_ptr_info((void *)~hidden, base, offset);
}

static GC_word hidden_finalized;
static void make_finalized(void) {
    hidden_finalized = ~(GC_word)GC_malloc(16);
    GC_register_finalizer((void *)~hidden_finalized, finalizer, 0, 0, 0);
}

/* What a cycle does not search leads nowhere. */
static void *excluded[4];
static GC_word hidden_excluded;
static void make_excluded(void) {
    excluded[2] = GC_malloc(64);
    hidden_excluded = ~(GC_word)excluded[2];
}
static void excluded_data(void) {
    void *base = 0;
    size_t offset;
    far_away(make_excluded);
    CHECK(referrer(hidden_excluded, &base, &offset) == GC_REFD_FROM_ROOT && base == &excluded[2]);
    GC_exclude_static_roots(excluded, excluded + 4);
    clear_stack();
    CHECK(referrer(hidden_excluded, &base, &offset) == GC_UNREFERENCED);
    GC_clear_exclusion_table();
    CHECK(referrer(hidden_excluded, &base, &offset) == GC_REFD_FROM_ROOT);
}

int main(void) {
    void *base = 0;
    size_t offset;
    CHECK(GC_get_back_ptr_info(&base, 0, 0) == GC_NO_SPACE);
    GC_init();
    CHECK(GC_generate_random_valid_address() == 0);
    far_away(make);
    clear_stack();
    /* Who asks has the address, and is no path. */
    int kind = referrer(hidden_end, &base, &offset);
    CHECK(kind == GC_REFD_FROM_HEAP && offset == 0 && *(GC_word *)base == ~hidden_end);
    kind = referrer(hidden_lost, &base, &offset);
    CHECK(kind == GC_UNREFERENCED || kind == GC_NO_SPACE);
    /* Here it may be as short as the frames of this test that name the object; it is never longer than through the five. */
    const char *text = path(hidden_end);
    CHECK(occurs("Reachable from root at ", text) == 1);
    CHECK(occurs("Reachable from offset ", text) == 0 || occurs("Reachable from offset ", text) == 5);
    CHECK(GC_get_back_ptr_info(head, &base, &offset) == GC_REFD_FROM_ROOT && offset == 0 && *(void **)base == head);
    captured_begin();
    GC_print_backtrace(head);
    text = captured_end();
    CHECK(occurs("(path.c:4, sz= 16)", text) == 1 && occurs("Reachable from root at ", text) == 1);
    CHECK(GC_get_back_ptr_info(&base, 0, 0) == GC_NO_SPACE);

    /* From the heap: only the uncollectable object knows it. */
    void **keeper = GC_malloc_uncollectable(64);
    keeper[3] = GC_malloc_atomic(40);
    GC_word hidden = ~(GC_word)keeper[3];
    clear_stack();
    kind = referrer(hidden, &base, &offset);
    CHECK(kind == GC_REFD_FROM_ROOT || (kind == GC_REFD_FROM_HEAP && base == keeper && offset == 24));
    CHECK(GC_get_back_ptr_info(keeper, 0, 0) == GC_REFD_FROM_REG || GC_get_back_ptr_info(keeper, 0, 0) == GC_REFD_FROM_ROOT);

    excluded_data();

    /* By a finalizer that waits. */
    GC_set_finalize_on_demand(1);
    far_away(make_finalized);
    collect();
    kind = referrer(hidden_finalized, &base, &offset);
    CHECK(kind == GC_FINALIZER_REFD || kind == GC_REFD_FROM_ROOT || !GC_should_invoke_finalizers());

    captured_begin();
    GC_generate_random_backtrace();
    text = captured_end();
    CHECK(occurs("****Chosen address ", text) == 1 && occurs("eachable ", text) >= 1);
    for (int i = 0; i < 100; i++) {
        void *address = GC_generate_random_valid_address();
        CHECK(GC_is_heap_ptr(address) && GC_base(address) && GC_generate_random_heap_address());
    }
    return 0;
}
