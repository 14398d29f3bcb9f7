// xtask: larder-only
/* The first thread that needs memory runs with the policy for work in the background, on one CPU: markers, which are made then, run as the
 * program does. (Larder's inherited both, and the program waited for markers that had no CPU.) libgc makes its markers in GC_init. */
#include "check.h"
#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

typedef struct node {
    struct node *left, *right;
} node;

static NOINLINE node *tree(int levels) {
    node *n = GC_malloc(sizeof *n);
    if (levels > 0) {
        n->left = tree(levels - 1);
        n->right = tree(levels - 1);
    }
    return n;
}

/* How many threads of the collector's there are. Each has its name when it is scheduled as it should be. */
static int check_markers(const cpu_set_t *cpus) {
    int n = 0;
    DIR *tasks = opendir("/proc/self/task");
    CHECK(tasks != 0);
    for (struct dirent *task; (task = readdir(tasks)) != 0;) {
        char path[300], name[32] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", task->d_name);
        FILE *file = fopen(path, "r");
        if (!file) continue;
        CHECK(fgets(name, sizeof name, file) != 0);
        fclose(file);
        if (strncmp(name, "larder-", 7) != 0) continue;
        n++;
        int number = atoi(task->d_name);
        cpu_set_t own;
        CHECK(sched_getscheduler(number) == SCHED_OTHER);
        CHECK(sched_getaffinity(number, sizeof own, &own) == 0);
        /* Markers in stops are kept off the CPU of who wakes them. */
        CHECK(CPU_COUNT(&own) >= CPU_COUNT(cpus) - 1);
        if (strcmp(name, "larder-conc\n") == 0) CHECK(CPU_EQUAL(&own, cpus));
    }
    closedir(tasks);
    return n;
}

static void *in_the_background(void *cpus) {
    struct sched_param none = {.sched_priority = 0};
    CHECK(sched_setscheduler(0, SCHED_BATCH, &none) == 0);
    cpu_set_t first;
    CPU_ZERO(&first);
    for (int cpu = 0; CPU_COUNT(&first) == 0; cpu++)
        if (CPU_ISSET(cpu, (cpu_set_t *)cpus)) CPU_SET(cpu, &first);
    CHECK(sched_setaffinity(0, sizeof first, &first) == 0);
    node *kept = tree(17);
    /* Where it has one CPU and nothing watches writes, there are no markers. */
    for (int i = 0; i < 20 && check_markers(cpus) == 0; i++) tree(16);
    return kept;
}

int main(void) {
    if (sched_getscheduler(0) != SCHED_OTHER) return 0;
    GC_init();
    GC_enable_incremental();
    cpu_set_t cpus;
    CHECK(sched_getaffinity(0, sizeof cpus, &cpus) == 0);
    pthread_t thread;
    CHECK(GC_pthread_create(&thread, 0, in_the_background, &cpus) == 0);
    CHECK(GC_pthread_join(thread, 0) == 0);
    check_markers(&cpus);
    return 0;
}
