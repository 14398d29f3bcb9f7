/* Each variable of the environment, in a process of its own. */
#include "check.h"
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void garbage(size_t bytes) {
    for (size_t done = 0; done < bytes; done += 1000) GC_malloc(1000);
}
static void initial(void) {
    setenv("GC_INITIAL_HEAP_SIZE", "64M", 1);
    GC_init();
    GC_word before = GC_get_gc_no();
    garbage(40 << 20);
    /* A cycle beside the program begins after half of the budget, so that it has ended when the budget is used up. */
    CHECK(GC_get_gc_no() <= before + (GC_is_incremental_mode() ? 1 : 0));
}
static void maximum(void) {
    setenv("GC_MAXIMUM_HEAP_SIZE", "8M", 1);
    GC_init();
    GC_set_warn_proc(GC_ignore_warn_proc);
    garbage(100 << 20);
    CHECK(GC_get_heap_size() <= 8 << 20);
    char **list = 0;
    for (;;) {
        char **p = GC_malloc(10000);
        if (p == 0) break;
        p[0] = (char *)list;
        list = p;
    }
    CHECK(GC_get_heap_size() <= 8 << 20);
    GC_reachable_here(list);
}
static void bad_sizes(void) {
    setenv("GC_INITIAL_HEAP_SIZE", "much", 1);
    GC_init();
    CHECK(GC_malloc(10));
}
static void bad_maximum(void) {
    setenv("GC_MAXIMUM_HEAP_SIZE", "more", 1);
    GC_init();
    CHECK(GC_malloc(10));
}
static void dont_gc(void) {
    setenv("GC_DONT_GC", "1", 1);
    GC_init();
    CHECK(GC_is_disabled());
    GC_word before = GC_get_gc_no();
    GC_gcollect();
    CHECK(GC_get_gc_no() == before);
    GC_enable();
    GC_gcollect();
    CHECK(GC_get_gc_no() == before + 1);
}
/* One variable, for children that differ in nothing else. */
static const char *name, *value;
static void start(void) {
    if (value) setenv(name, value, 1);
    GC_init();
}
static void *nothing(void *argument) { return argument; }
static void numbers(void) {
    static const char *const values[][2] = {
        {"GC_FREE_SPACE_DIVISOR", "7"}, {"GC_FULL_FREQUENCY", "4"}, {"GC_PAUSE_TIME_TARGET", "50"}, {"GC_USE_ENTIRE_HEAP", "1"},
        {"GC_FORCE_UNMAP_ON_GCOLLECT", "1"}, {"GC_MARKERS", "1"}, {"GC_NPROCS", "1"}, {"GC_UNMAP_THRESHOLD", "5"},
        {"GC_LARGE_ALLOC_WARN_INTERVAL", "1000"}, {"GC_NO_BLACKLIST_WARNING", "1"}, {"GC_RETRY_SIGNALS", "1"},
        {"GC_USE_GETWRITEWATCH", "0"}, {"GC_DISABLE_INCREMENTAL", "1"}, {"GC_ALL_INTERIOR_POINTERS", "1"},
        {"GC_COLLECT_AT_MALLOC", "100"}};
    for (unsigned i = 0; i < sizeof values / sizeof *values; i++) setenv(values[i][0], values[i][1], 1);
    GC_set_all_interior_pointers(0);
    GC_init();
    CHECK(GC_get_free_space_divisor() == 7 && GC_get_full_freq() == 4 && GC_get_time_limit() == 50);
    CHECK(GC_use_entire_heap == 1 && GC_get_force_unmap_on_gcollect() == 1 && GC_get_parallel() == 0);
    CHECK(GC_get_all_interior_pointers() == 1);
    GC_enable_incremental();
    CHECK(GC_is_incremental_mode() == 0);
    garbage(10 << 20);
    GC_gcollect();
}
/* What stands behind a number does not count, and numbers that are none or too small are ignored. */
static void odd_numbers(void) {
    setenv("GC_FREE_SPACE_DIVISOR", "7k", 1);
    setenv("GC_FULL_FREQUENCY", " 4, please", 1);
    setenv("GC_PAUSE_TIME_TARGET", "50k", 1);
    setenv("GC_USE_ENTIRE_HEAP", "0", 1);
    setenv("GC_FORCE_UNMAP_ON_GCOLLECT", "0", 1);
    GC_init();
    CHECK(GC_get_free_space_divisor() == 7 && GC_get_full_freq() == 4 && GC_get_time_limit() == 50);
    CHECK(GC_use_entire_heap == 0 && GC_get_force_unmap_on_gcollect() == 0);
}
static void no_numbers(void) {
    setenv("GC_FREE_SPACE_DIVISOR", "0", 1);
    setenv("GC_FULL_FREQUENCY", "-3", 1);
    setenv("GC_PAUSE_TIME_TARGET", "soon", 1);
    setenv("GC_NPROCS", "some", 1);
    GC_init();
    CHECK(GC_get_free_space_divisor() == 3 && GC_get_full_freq() == 19 && GC_get_time_limit() == GC_TIME_UNLIMITED);
}
/* Prints how many cycles it takes to make garbage beside a live heap. */
static void cycles(void) {
    start();
    char **list = 0;
    for (int i = 0; i < 2000; i++) {
        char **p = GC_malloc(10000);
        p[0] = (char *)list;
        list = p;
    }
    GC_gcollect();
    GC_word before = GC_get_gc_no();
    garbage(300 << 20);
    fprintf(stderr, "%lu cycles\n", GC_get_gc_no() - before);
    GC_reachable_here(list);
}
static unsigned long cycles_with(const char *of, const char *is) {
    const char *text;
    unsigned long n;
    name = of;
    value = is;
    CHECK(in_child(cycles, &text) == 0 && sscanf(text, "%lu cycles", &n) == 1);
    return n;
}
/* Prints how many markers help once there is a second thread; libgc creates them then. */
static void helpers(void) {
    pthread_t thread;
    start();
    CHECK(GC_pthread_create(&thread, 0, nothing, 0) == 0 && GC_pthread_join(thread, 0) == 0);
    fprintf(stderr, "%d helpers\n", GC_get_parallel());
}
static int helpers_with(const char *of, const char *is, const char *warning) {
    const char *text, *line;
    int n;
    name = of;
    value = is;
    CHECK(in_child(helpers, &text) == 0 && occurs("Warning", text) == (warning != 0));
    CHECK(warning == 0 || occurs(warning, text) == 1);
    line = strrchr(text, ':') ? strchr(strrchr(text, ':'), '\n') + 1 : text;
    CHECK(sscanf(line, "%d helpers", &n) == 1);
    return n;
}
static void few_markers_of_many_processors(void) {
    setenv("GC_PRINT_STATS", "1", 1);
    setenv("GC_MARKERS", "2", 1);
    name = "GC_NPROCS";
    value = "5";
    helpers();
}
/* Prints how much memory went back to the kernel in cycles after a large heap had died. */
static int collections;
static NOINLINE void large_heap(void) {
    char **list = 0;
    for (int i = 0; i < 100; i++) {
        char **p = GC_malloc(1000000);
        p[0] = (char *)list;
        list = p;
    }
    CHECK(GC_get_heap_size() >= 100 * 1000000);
    GC_reachable_here(list);
}
static void unmapped(void) {
    start();
    far_away(large_heap);
    for (int i = 0; i < collections; i++) collect();
    fprintf(stderr, "%lu unmapped\n", (unsigned long)GC_get_unmapped_bytes());
}
static unsigned long unmapped_with(int n, const char *of, const char *is) {
    const char *text;
    unsigned long bytes;
    collections = n;
    name = of;
    value = is;
    CHECK(in_child(unmapped, &text) == 0 && sscanf(text, "%lu unmapped", &bytes) == 1);
    return bytes;
}
/* Prints how many of the objects died whose middle alone is referred to from the heap. */
#define MIDDLES 100
static int died;
static void finalizer(void *object, void *data) {
    (void)object;
    (void)data;
    died++;
}
static char **middles;
static NOINLINE void make_middles(void) {
    for (int i = 0; i < MIDDLES; i++) {
        char *p = GC_malloc(100);
        GC_register_finalizer_no_order(p, finalizer, 0, 0, 0);
        middles[i] = p + 50;
    }
}
static void interior(void) {
    GC_set_all_interior_pointers(0);
    start();
    middles = GC_malloc_uncollectable(MIDDLES * sizeof *middles);
    far_away(make_middles);
    collect();
    collect();
    fprintf(stderr, "%d died\n", died);
}
static int died_with(const char *is) {
    const char *text;
    int n;
    name = "GC_ALL_INTERIOR_POINTERS";
    value = is;
    CHECK(in_child(interior, &text) == 0 && sscanf(text, "%d died", &n) == 1);
    return n;
}
static void disabled(void) {
    setenv("GC_DISABLE_INCREMENTAL", "1", 1);
    GC_init();
    GC_enable_incremental();
    CHECK(GC_is_incremental_mode() == 0);
}
static void leaks_and_increments(void) {
    setenv("GC_FIND_LEAK", "1", 1);
    GC_init();
    CHECK(GC_get_find_leak() == 1);
    GC_enable_incremental();
    CHECK(GC_is_incremental_mode() == 0 || getenv("LARDER_CONCURRENT"));
}
static void incremental(void) {
    setenv("GC_ENABLE_INCREMENTAL", "1", 1);
    GC_init();
    fprintf(stderr, "mode %d\n", GC_is_incremental_mode());
    garbage(10 << 20);
    GC_gcollect();
}
static void print_stats(void) {
    setenv("GC_PRINT_STATS", "1", 1);
    GC_init();
    garbage(30 << 20);
    GC_gcollect();
}
static void verbose(void) {
    setenv("GC_PRINT_VERBOSE_STATS", "1", 1);
    GC_init();
    GC_gcollect();
}
static char log_name[] = "/tmp/larder-environment-XXXXXX";
static void log_file(void) {
    setenv("GC_LOG_FILE", log_name, 1);
    setenv("GC_PRINT_STATS", "1", 1);
    GC_init();
    GC_gcollect();
}
static void error_in_log(void) {
    log_file();
    GC_malloc((size_t)1 << 50);
}
static void only_log(void) {
    setenv("GC_ONLY_LOG_TO_FILE", "1", 1);
    log_file();
    GC_malloc((size_t)1 << 50);
}
static void no_log(void) {
    setenv("GC_LOG_FILE", "/nowhere/log", 1);
    GC_init();
    CHECK(GC_malloc(10));
}
static void bad_interval(void) {
    setenv("GC_LARGE_ALLOC_WARN_INTERVAL", "0", 1);
    GC_init();
}
/* A fault stands still, for a debugger: the process has said so, and lives. */
static void faulty(void) {
    alarm(900); /* For one whose parent is gone: a loaded machine is slow. */
    setenv("GC_LOOP_ON_ABORT", "1", 1);
    GC_init();
    raise(SIGSEGV);
    _exit(0);
}
static void stands_still(void) {
    int ends[2], status;
    char text[1000];
    size_t used = 0;
    CHECK(pipe(ends) == 0);
    int child = fork();
    if (child == 0) {
        dup2(ends[1], 2);
        faulty();
    }
    close(ends[1]);
    do {
        ssize_t n = read(ends[0], text + used, sizeof text - 1 - used);
        CHECK(n > 0);
        used += n;
        text[used] = 0;
    } while (!strstr(text, "looping in handler\n"));
    CHECK(strstr(text, "Caught signal 11: looping in handler\n"));
    CHECK(waitpid(child, &status, WNOHANG) == 0);
    kill(child, SIGKILL);
    CHECK(waitpid(child, &status, 0) == child);
    close(ends[0]);
}
/* Debian's build ignores GC_BACKTRACES, since it lacks the functions of gc_backptr.h. */
extern void GC_generate_random_backtrace(void) __attribute__((weak));
static void backtraces(void) {
    setenv("GC_BACKTRACES", "3", 1);
    GC_init();
    void *volatile kept = GC_malloc(100);
    GC_gcollect();
    CHECK(kept);
}
static void address_map(void) {
    setenv("GC_PRINT_ADDRESS_MAP", "1", 1);
    GC_init();
    GC_gcollect();
}
static void dumps(void) {
    setenv("GC_DUMP_REGULARLY", "1", 1);
    GC_init();
    GC_gcollect();
}
static void trace(void) {
    setenv("GC_TRACE", "123", 1);
    setenv("GC_PRINT_BACK_HEIGHT", "1", 1);
    GC_init();
    GC_gcollect();
}
static char *read_file(const char *name) {
    static char text[100000];
    FILE *file = fopen(name, "r");
    CHECK(file);
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    return text;
}

int main(void) {
    const char *text;
    CHECK(in_child(initial, &text) == 0 && text[0] == 0);
    CHECK(in_child(maximum, 0) == 0);
    CHECK(in_child(bad_sizes, &text) == 0 && occurs("Bad initial heap size much", text) == 1);
    CHECK(in_child(bad_maximum, &text) == 0 && occurs("Bad maximum heap size more", text) == 1);
    CHECK(in_child(dont_gc, &text) == 0 && text[0] == 0);
    CHECK(in_child(numbers, &text) == 0 && text[0] == 0);
    CHECK(in_child(odd_numbers, &text) == 0 && text[0] == 0);
    CHECK(in_child(no_numbers, &text) == 0 && text[0] == 0);
    CHECK(in_child(bad_interval, &text) == 0);
    CHECK(occurs("GC_LARGE_ALLOC_WARN_INTERVAL environment variable has bad value: Ignoring", text) == 1);
    /* Where the machine offers no way, Larder says so. */
    CHECK(in_child(incremental, &text) == 0 && (occurs("mode 1", text) || occurs("cycles stop the program", text)));
    CHECK(in_child(disabled, &text) == 0 && text[0] == 0);
    CHECK(in_child(leaks_and_increments, &text) == 0 && text[0] == 0);

    /* How many cycles there are beside the program depends on how fast each is. */
    if (!getenv("LARDER_CONCURRENT")) {
        CHECK(cycles_with("GC_FREE_SPACE_DIVISOR", "40") > cycles_with("GC_FREE_SPACE_DIVISOR", "1"));
        CHECK(cycles_with("GC_USE_ENTIRE_HEAP", "1") <= cycles_with("GC_USE_ENTIRE_HEAP", 0));
    }

    static const char too_many[] = "Too big or invalid number of mark threads: ";
    CHECK(helpers_with("GC_MARKERS", "4", 0) == 3 && helpers_with("GC_MARKERS", "4x", 0) == 3);
    CHECK(helpers_with("GC_MARKERS", "0", too_many) == 15 && helpers_with("GC_MARKERS", "17", too_many) == 15);
    CHECK(helpers_with("GC_NPROCS", "3", 0) == 2 && helpers_with("GC_NPROCS", "100", 0) == 15);
    CHECK(in_child(few_markers_of_many_processors, &text) == 0 && occurs("Number of processors: 5\n", text) == 1);
    CHECK(occurs("Started 1 mark helper threads\n", text) == 1 && occurs("1 helpers\n", text) == 1);

    /* libgc keeps what is free for some collections; both give it back at last, unless they must not. */
    CHECK(unmapped_with(20, "GC_UNMAP_THRESHOLD", 0) > 0 && unmapped_with(20, "GC_UNMAP_THRESHOLD", "0") == 0);
    CHECK(unmapped_with(5, "GC_FORCE_UNMAP_ON_GCOLLECT", "1") > unmapped_with(5, "GC_FORCE_UNMAP_ON_GCOLLECT", "0"));
    CHECK(unmapped_with(20, "GC_UNMAP_THRESHOLD", "1") > 0);

    CHECK(died_with("1") == 0 && died_with(0) >= MIDDLES - 10);
    stands_still();
    CHECK(in_child(backtraces, &text) == 0);
    CHECK((occurs("0x", text) >= 3) == (GC_generate_random_backtrace != 0));

    /* The lines that scripts read. */
    CHECK(in_child(print_stats, &text) == 0);
    static const char *const lines[] = {
        "Number of processors: ", "Grow heap to ", "Initiating full world-stop collection!\n", "\n--> Marking for collection #",
        " allocated bytes\n", "World-stopped marking took ", " in average)\n", "In-use heap: ", " KiB pointers + ", " KiB other)\n",
        " finalization entries; ", " short/long disappearing links alive\n", " finalization-ready objects; ",
        " short/long links cleared\n", "Finalize and initiate sweep took ", "Complete collection took ", " KiB unmapped + ",
        " KiB internal)\n"};
    for (unsigned i = 0; i < sizeof lines / sizeof *lines; i++) CHECK(occurs(lines[i], text) >= 1);
    CHECK(occurs("GC #", text) == occurs("Complete collection took", text));
    unsigned long number, freed, heap, ms, ns;
    CHECK(sscanf(strstr(text, "GC #"), "GC #%lu freed %lu bytes, heap %lu KiB", &number, &freed, &heap) == 3 && number == 1);
    CHECK(sscanf(strstr(text, "Complete collection took"), "Complete collection took %lu ms %lu ns", &ms, &ns) == 2);
    /* Whatever it is set to. */
    name = "GC_PRINT_STATS";
    value = "0";
    CHECK(in_child(start, &text) == 0 && occurs("Number of processors: ", text) == 1);
    CHECK(in_child(verbose, &text) == 0 && occurs("Complete collection took", text) >= 1);

    CHECK(mkstemp(log_name) >= 0);
    CHECK(in_child(log_file, &text) == 0 && text[0] == 0);
    CHECK(occurs("Complete collection took", read_file(log_name)) >= 1);
    CHECK(occurs("Out of Memory!", read_file(log_name)) == 0);
    CHECK(in_child(only_log, &text) == 0 && occurs("Out of Memory!", text) == 1);
    CHECK(occurs("Out of Memory!", read_file(log_name)) == 0);
    CHECK(in_child(error_in_log, &text) == 0 && text[0] == 0 && occurs("Out of Memory!", read_file(log_name)) == 1);
    CHECK(in_child(no_log, &text) == 0 && occurs("Failed to open /nowhere/log as log file", text) == 1);
    unlink(log_name);

    CHECK(in_child(address_map, &text) == 0 && occurs("[stack]", text) >= 1);
    CHECK(occurs("---------- Begin address map ----------\n", text) == occurs("---------- End address map ----------\n", text));
    CHECK(in_child(dumps, &text) == 0 && occurs("***GC Dump collection #", text) >= 2);
    CHECK(in_child(trace, &text) == 0 && occurs("Tracing not enabled: Ignoring GC_TRACE value", text) == 1);
    CHECK(occurs("Back height not available", text) >= 1);
    return 0;
}
