// xtask: larder-only
/* A program that has nearly as many mappings as the kernel allows. Where a cycle beside it watches writes by protection, each written page is
 * one more, and what is left of the watch has to end all the same. The stock library can have no further mapping, and ends the program. */
#include "check.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, MOST = 70000, TREES = 40, DEPTH = 13, ROUNDS = 150 };

typedef struct node {
    struct node *child[2];
    size_t value[6];
} node;

static node *tree(int depth) {
    node *n = GC_malloc(sizeof *n);
    CHECK(n != 0 && n->value[0] == 0);
    n->value[0] = (size_t)depth;
    if (depth)
        for (int i = 0; i < 2; i++) n->child[i] = tree(depth - 1);
    return n;
}

static size_t count(const node *n) {
    return n == 0 ? 0 : 1 + count(n->child[0]) + count(n->child[1]);
}

/* Every other page may be read, until so many more mappings can be had; false where there can be more than is worth the time. */
static int use_mappings_up(int left) {
    char *pages = mmap(0, (size_t)MOST * 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(pages != MAP_FAILED);
    int used = 0;
    while (used < MOST && mprotect(pages + (size_t)used * 2 * PAGE, PAGE, PROT_READ) == 0) used++;
    if (used == MOST) return 0;
    for (; left > 0; left -= 2) {
        used--;
        CHECK(mprotect(pages + (size_t)used * 2 * PAGE, PAGE, PROT_NONE) == 0);
    }
    return 1;
}

static void with_left(int left) {
    static node *trees[TREES];
    GC_init();
    GC_set_warn_proc(GC_ignore_warn_proc);
    for (int i = 0; i < TREES; i++) trees[i] = tree(DEPTH);
    /* It may say that it cannot watch writes any more. */
    int nowhere = open("/dev/null", O_WRONLY);
    CHECK(nowhere >= 0);
    if (!use_mappings_up(left)) return;
    int outside = dup(2);
    dup2(nowhere, 2);
    for (int round = 0; round < ROUNDS; round++) {
        tree(DEPTH - 2);
        /* Writes here and there. */
        node *n = trees[round % TREES];
        for (int i = 0; i < DEPTH; i++) {
            n->value[2] = (size_t)round;
            n = n->child[(round * 7919 >> i) & 1];
        }
        if (round % 10 == 3) trees[round % TREES] = tree(DEPTH);
    }
    GC_gcollect();
    dup2(outside, 2);
    for (int i = 0; i < TREES; i++) CHECK(count(trees[i]) == ((size_t)2 << DEPTH) - 1);
}

int main(int argc, char **argv) {
    if (argc > 1) {
        with_left(atoi(argv[1]));
        return 0;
    }
    static const char *const left[] = {"0", "2", "4", "6", "10", "40"};
    for (size_t i = 0; i < sizeof left / sizeof *left; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            execl("/proc/self/exe", "many_mappings", left[i], (char *)0);
            CHECK(!"started again");
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
            fprintf(stderr, "with %s mappings left: status %x\n", left[i], (unsigned)status);
            return 1;
        }
    }
    return 0;
}
