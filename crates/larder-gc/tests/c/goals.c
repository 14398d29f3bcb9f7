// xtask: larder-only
/* What is wanted of incremental cycles counts from wherever it comes: the environment, or calls before GC_init. Larder only: the log says so in its words. */
#include "check.h"
#include <stdio.h>

static void expect(void (*ask)(void), long us, long young) {
    const char *text, *line;
    long goal, between;
    CHECK(in_child(ask, &text) == 0);
    line = strstr(text, "Incremental mode: ");
    if (strstr(text, "cycles stop the program")) return; /* Nothing here watches its writes. */
    CHECK(line && sscanf(line, "Incremental mode: pauses of %ld us at most are wanted, %ld young", &goal, &between) == 2);
    if (goal != us || between != young) fprintf(stderr, "%ld us and %ld, not %ld and %ld\n", goal, between, us, young);
    CHECK(goal == us && between == young);
}

static void start(void) {
    setenv("GC_ENABLE_INCREMENTAL", "1", 1);
    setenv("GC_PRINT_STATS", "1", 1);
    GC_INIT();
}
static void by_environment(void) {
    setenv("GC_FULL_FREQUENCY", "7", 1);
    setenv("GC_PAUSE_TIME_TARGET", "50", 1);
    start();
}
static void by_no_number(void) {
    setenv("GC_FULL_FREQUENCY", "often", 1);
    setenv("GC_PAUSE_TIME_TARGET", "0", 1);
    start();
}
static void by_calls_before(void) {
    GC_set_full_freq(5);
    GC_set_time_limit(20);
    start();
}
static void by_a_fraction(void) {
    struct GC_timeval_s limit = {0, 500000};
    GC_set_time_limit_tv(limit);
    start();
}
static void by_our_environment(void) {
    setenv("LARDER_YOUNG", "3", 1);
    setenv("LARDER_PAUSE", "2500us", 1);
    by_environment();
}

int main(void) {
    const char *ours[] = {"LARDER_YOUNG", "LARDER_PAUSE", "LARDER_CONCURRENT", "LARDER_WATCH", "GC_DISABLE_INCREMENTAL"};
    for (unsigned i = 0; i < sizeof ours / sizeof *ours; i++) unsetenv(ours[i]);
    expect(start, 1000, 0);
    expect(by_environment, 50000, 7);
    expect(by_no_number, 1000, 0);
    expect(by_calls_before, 20000, 5);
    expect(by_a_fraction, 500, 0);
    expect(by_our_environment, 2500, 3);
    return 0;
}
