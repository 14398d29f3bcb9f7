/* Objects that the main thread has in the places of its arguments and its environment alone, which lie behind its first frame. */
#include "check.h"
#include <unistd.h>

extern char **environ;

enum { OBJECTS = 100 };
static int died;

static void count(void *object, void *data) {
    (void)object;
    (void)data;
    died++;
}

static NOINLINE void put(char **into) {
    *into = GC_malloc_atomic(64);
    strcpy(*into, "kept");
    GC_register_finalizer(*into, count, 0, 0, 0);
}

static char **arguments;
static void put_all(void) {
    put(&arguments[0]);
    put(&environ[0]);
}

static void collect_often(void) {
    for (int i = 0; i < 3; i++) {
        collect();
        for (int n = 0; n < OBJECTS; n++) memset(GC_malloc_atomic(64), 'x', 64);
    }
}

int main(int n, char **argv) {
    CHECK(n >= 1 && environ[0]);
    /* The page of the first is searched. Where the other lies on the next one, which depends on the stack's random place, the program begins again. */
    if ((GC_word)&argv[-1] >> 12 != (GC_word)&environ[0] >> 12) {
        execv("/proc/self/exe", argv);
        CHECK(!"the program begins again");
    }
    GC_INIT();
    arguments = argv;
    far_away(put_all);
    far_away(collect_often);
    CHECK(died == 0);
    CHECK(strcmp(argv[0], "kept") == 0 && strcmp(environ[0], "kept") == 0);
    return 0;
}
