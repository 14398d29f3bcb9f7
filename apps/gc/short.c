/*
 * short - a program that starts, allocates a little and ends, again and again.
 *
 * usage: short [AT_ONCE [STARTS [OBJECTS]]]
 *
 * Tools that rename files or follow links live for a few milliseconds: what they ask of a collector is to be there at once. The program starts
 * itself STARTS times, AT_ONCE at a time; each start links OBJECTS of 16 to 256 bytes into a list, and reads them again. What it
 * prints of one start is processor time and time on the clock, in which the loader's work is counted too.
 */
#include "report.h"

#include <spawn.h>
#include <sys/wait.h>

extern char **environ;

typedef struct Link {
    struct Link *next;
    uint64_t number;
} Link;

/* The sum of what it read, modulo 251. */
static int one_life(long objects) {
    GC_INIT();
    uint64_t state = 1, sum = 0;
    Link *list = 0;
    for (long i = 0; i < objects; i++) {
        uint64_t random = random_next(&state);
        Link *link = GC_MALLOC(sizeof *link + random % 240);
        if (!link)
            return 255;
        link->next = list;
        link->number = random;
        list = link;
    }
    for (; list; list = list->next)
        sum += list->number;
    return sum % 251;
}

static double children_cpu_s(void) {
    struct rusage usage;
    getrusage(RUSAGE_CHILDREN, &usage);
    return usage.ru_utime.tv_sec + usage.ru_stime.tv_sec + (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

int main(int argc, char **argv) {
    if (argc == 3 && !strcmp(argv[1], "life"))
        return one_life(atol(argv[2]));
    long at_once = argument(argc, argv, 1, "AT_ONCE", 1, 1, 1000);
    long starts = argument(argc, argv, 2, "STARTS", 1000, 1, 1000000);
    long objects = argument(argc, argv, 3, "OBJECTS", 1000, 0, 100000000);
    char number[32];
    snprintf(number, sizeof number, "%ld", objects);
    char *arguments[] = {argv[0], "life", number, 0};
    report_start();

    double begun_s = now_s(), begun_cpu_s = children_cpu_s();
    long running = 0, wrong = 0;
    int sum = -1;
    for (long i = 0; i < starts || running; ) {
        if (i < starts && running < at_once) {
            pid_t child;
            int error = posix_spawn(&child, "/proc/self/exe", 0, 0, arguments, environ);
            if (error) {
                fprintf(stderr, "short: start %ld of %ld failed: %s\n", i + 1, starts, strerror(error));
                return 3;
            }
            running++;
            i++;
            continue;
        }
        int status;
        if (wait(&status) < 0)
            return 3;
        running--;
        int found = WIFEXITED(status) ? WEXITSTATUS(status) : -2;
        if (sum == -1)
            sum = found;
        wrong += found != sum || found < 0 || found == 255;
    }
    double seconds = now_s() - begun_s, cpu = children_cpu_s() - begun_cpu_s;
    if (wrong)
        fprintf(stderr, "short: %ld of %ld lives ended in another way than the first\n", wrong, starts);
    printf("program=short at_once=%ld starts=%ld objects=%ld sum=%d ok=%d start_cpu_us=%.1f start_us=%.1f", at_once, starts, objects,
           sum, !wrong, cpu / starts * 1e6, seconds / starts * 1e6);
    report_end(seconds);
    return wrong ? 1 : 0;
}
