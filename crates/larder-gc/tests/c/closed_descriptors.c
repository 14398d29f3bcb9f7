// xtask: larder-only
/* A program that closes every descriptor but the first three while cycles mark beside it: they go on, and what it opens afterwards stays open.
 * (Larder's marked beside it no more, and said so.) */
#include "check.h"
#include <fcntl.h>
#include <unistd.h>

enum { NODES = 1 << 17, SLOTS = 1 << 10, FILES = 20 };

typedef struct node {
    struct node *next;
    GC_word value;
} node;

/* So much is allocated that cycles come, with enough alive that it is worth marking beside the program. */
static NOINLINE void replace_all(node **lists) {
    for (int i = 0; i < 20 * NODES; i++) {
        node *n = GC_malloc(sizeof *n);
        node **list = &lists[i % SLOTS];
        n->value = i;
        n->next = i % (SLOTS * 100) < SLOTS ? 0 : *list;
        *list = n;
    }
}
static NOINLINE void check_all(node **lists) {
    for (int i = 0; i < SLOTS; i++) {
        int n = 0;
        for (node *at = lists[i]; at; at = at->next, n++) CHECK((int)at->value % SLOTS == i);
        CHECK(n > 0 && n <= 100);
    }
}

int main(void) {
    GC_init();
    GC_enable_incremental();
    node **lists = GC_malloc(SLOTS * sizeof *lists);
    replace_all(lists);
    int said = memfd_create("said", 0);
    CHECK(said >= 0 && dup2(said, 2) == 2);
    int files[FILES];
    for (int round = 0; round < 5; round++) {
        CHECK(close_range(3, ~0u, 0) == 0);
        replace_all(lists);
        for (int i = 0; i < FILES; i++) CHECK((files[i] = open("/dev/null", O_RDONLY)) >= 0);
        replace_all(lists);
        check_all(lists);
        for (int i = 0; i < FILES; i++) CHECK(fcntl(files[i], F_GETFD) == 0);
    }
    return lseek(2, 0, SEEK_END) != 0;
}
