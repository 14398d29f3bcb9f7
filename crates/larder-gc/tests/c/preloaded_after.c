// xtask: under larder run
/* What a program preloads itself comes behind the tool's object and before the C library, and its functions are called: those of condition variables,
 * too, which the C library has in two versions, and others without any. */
#include "check.h"
#include <pthread.h>
#include <time.h>
#include <unistd.h>

/* It calls a function that has a version: where an object has no versions at all, the loader takes what it has for any version. */
static const char SOURCE[] = "int getpid(void);\n"
                             "int pthread_cond_wait(void *c, void *m) { return c && m && getpid() ? 77 : 0; }\n"
                             "int pthread_cond_timedwait(void *c, void *m, void *t) { return c && m && t ? 78 : 0; }\n";

static void compile(const char *folder, char *library, size_t bytes) {
    char source[512], command[2048];
    snprintf(source, sizeof source, "%s/conditions.c", folder);
    snprintf(library, bytes, "%s/conditions.so", folder);
    FILE *file = fopen(source, "w");
    CHECK(file && fputs(SOURCE, file) >= 0 && fclose(file) == 0);
    snprintf(command, sizeof command, "${CC:-cc} -shared -fPIC -o '%s' '%s'", library, source);
    CHECK(system(command) == 0);
    unlink(source);
}

int main(int count, char **arguments) {
    char folder[256], library[512], list[4096];
    if (count == 1) {
        const char *parent = getenv("TMPDIR"), *before = getenv("LD_PRELOAD");
        snprintf(folder, sizeof folder, "%s/larder-preloaded-XXXXXX", parent ? parent : "/tmp");
        CHECK(before && mkdtemp(folder));
        compile(folder, library, sizeof library);
        snprintf(list, sizeof list, "%s:%s", before, library);
        setenv("LD_PRELOAD", list, 1);
        execl("/proc/self/exe", arguments[0], folder, library, (char *)0);
        return 1;
    }
    unlink(arguments[2]);
    rmdir(arguments[1]);
    GC_init();
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    CHECK(pthread_mutex_lock(&mutex) == 0);
    CHECK(pthread_cond_timedwait(&condition, &mutex, &now) == 78);
    CHECK(pthread_cond_wait(&condition, &mutex) == 77);
    CHECK(pthread_mutex_unlock(&mutex) == 0);
    return 0;
}
