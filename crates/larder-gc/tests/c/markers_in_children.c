// xtask: larder-only
/* In a child of fork the library makes no thread of its own where another thread of the program may have been inside dlopen: what the C
 * library knows of thread-local storage may be half changed there, and pthread_create ends the process then. (Larder once made its
 * markers all the same, and children that used the heap alone ended with status 127.) It makes them where the parent had no other thread,
 * and once the child has made one itself. libgc marks with one thread in every child. */
#include "check.h"
#include <dirent.h>
#include <pthread.h>
#include <unistd.h>

static int threads(void) {
    int n = 0;
    DIR *all = opendir("/proc/self/task");
    CHECK(all);
    for (struct dirent *one; (one = readdir(all)) != 0;) n += one->d_name[0] != '.';
    closedir(all);
    return n;
}
static void cycles(void) {
    for (int i = 0; i < 3; i++) GC_gcollect();
}
static void *nothing(void *argument) { return argument; }
static int may_end[2];
static void *waits(void *argument) {
    char byte;
    CHECK(read(may_end[0], &byte, 1) == 0);
    return argument;
}
static void alone(void) {
    CHECK(threads() == 1);
    cycles();
    CHECK(threads() >= 2);
}
static void not_alone(void) {
    CHECK(threads() == 1);
    cycles();
    CHECK(threads() == 1);
    /* Nor in a child of the child. */
    const char *text;
    static int depth;
    if (depth++ == 0) CHECK(in_child(not_alone, &text) == 0 && text[0] == 0);
    pthread_t thread;
    CHECK(GC_pthread_create(&thread, 0, nothing, 0) == 0 && GC_pthread_join(thread, 0) == 0);
    cycles();
    CHECK(threads() >= 2);
}

int main(void) {
    const char *text;
    setenv("GC_MARKERS", "2", 1);
    GC_INIT();
    /* Work for several markers. */
    void *volatile large = GC_malloc(8 << 20);
    cycles();
    CHECK(threads() >= 2);
    CHECK(in_child(alone, &text) == 0 && text[0] == 0);
    pthread_t thread;
    CHECK(pipe(may_end) == 0 && GC_pthread_create(&thread, 0, waits, 0) == 0);
    CHECK(in_child(not_alone, &text) == 0 && text[0] == 0);
    close(may_end[1]);
    CHECK(GC_pthread_join(thread, 0) == 0 && large);
    return 0;
}
