/* The four orders of finalizers, what registering returns, and when they run. */
#include "check.h"

struct node {
    struct node *next;
    int number;
    long pad[4];
};

static int order[100], runs;
static void run(void *object, void *data) {
    CHECK((intptr_t)data == ((struct node *)object)->number);
    order[runs++] = (int)(intptr_t)data;
}
static struct node *make(int number, struct node *next) {
    struct node *n = GC_malloc(sizeof *n);
    n->number = number;
    n->next = next;
    return n;
}
#define REGISTER(how, n) GC_register_finalizer##how(n, run, (void *)(intptr_t)(n)->number, 0, 0)

static void chain(void) {
    struct node *c = make(3, 0), *b = make(2, c), *a = make(1, b);
    REGISTER(, c);
    REGISTER(, b);
    REGISTER(, a);
}
static void chain_without_order(void) {
    struct node *c = make(3, 0), *b = make(2, c), *a = make(1, b);
    REGISTER(_no_order, a);
    REGISTER(_no_order, b);
    REGISTER(_no_order, c);
}
static void selfish(void) {
    struct node *a = make(1, 0), *b = make(2, 0);
    a->next = a;
    b->next = b;
    REGISTER(_ignore_self, a);
    REGISTER(, b);
}
static void cycle(void) {
    struct node *a = make(1, 0), *b = make(2, a);
    a->next = b;
    REGISTER(_no_order, a);
    REGISTER(_no_order, b);
}
static void unreachable_behind(void) {
    struct node *b = make(2, 0), *a = make(1, b);
    REGISTER(_no_order, a);
    REGISTER(_unreachable, b);
}
static void overwritten(void) {
    struct node *a = make(1, 0);
    GC_finalization_proc old = (GC_finalization_proc)1;
    void *data = (void *)1;
    GC_register_finalizer(a, run, (void *)7, &old, &data);
    CHECK(old == 0 && data == 0);
    GC_register_finalizer_no_order(a, run, (void *)1, &old, &data);
    CHECK(old == run && data == (void *)7);
    struct node *b = make(2, 0);
    REGISTER(, b);
    GC_register_finalizer(b, 0, 0, &old, &data);
    CHECK(old == run && data == (void *)2);
}
static void expect(void (*f)(void), int cycles, int count, const int *sequence) {
    runs = 0;
    far_away(f);
    for (int i = 0; i < cycles; i++) collect();
    CHECK(runs == count);
    for (int i = 0; sequence && i < count; i++) CHECK(order[i] == sequence[i]);
}

int main(void) {
    GC_init();
    /* Pointers that a dead frame may still hold keep nothing: on libgc as here the frames are overwritten. */
    expect(chain, 1, 1, (int[]){1});
    collect();
    CHECK(runs == 2 && order[1] == 2);
    collect();
    CHECK(runs == 3 && order[2] == 3);
    expect(chain_without_order, 1, 3, 0);
    GC_set_warn_proc(GC_ignore_warn_proc);
    expect(selfish, 3, 1, (int[]){1});
    expect(cycle, 1, 2, 0);
    expect(unreachable_behind, 1, 1, (int[]){1});
    collect();
    collect();
    CHECK(runs == 2 && order[1] == 2);
    expect(overwritten, 2, 1, (int[]){1});

    /* Not in the heap: ignored, and answered. */
    int outside;
    GC_finalization_proc old = (GC_finalization_proc)1;
    void *data = (void *)1;
    GC_register_finalizer(&outside, run, 0, &old, &data);
    CHECK(old == 0 && data == 0);

    GC_set_finalize_on_demand(1);
    runs = 0;
    far_away(chain_without_order);
    collect();
    CHECK(runs == 0 && GC_should_invoke_finalizers());
    CHECK(GC_invoke_finalizers() == 3 && runs == 3);
    CHECK(!GC_should_invoke_finalizers() && GC_invoke_finalizers() == 0);
    return 0;
}
