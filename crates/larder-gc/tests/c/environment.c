/* Each variable of the environment, in a process of its own. */
#include "check.h"
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
static void incremental(void) {
    setenv("GC_ENABLE_INCREMENTAL", "1", 1);
    GC_init();
    garbage(10 << 20);
    GC_gcollect();
}
static void keep_memory(void) {
    setenv("GC_UNMAP_THRESHOLD", "0", 1);
    GC_init();
    for (int i = 0; i < 100; i++) GC_malloc(1000000);
    for (int i = 0; i < 10; i++) GC_gcollect();
    CHECK(GC_get_unmapped_bytes() == 0);
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
static void only_log(void) {
    setenv("GC_ONLY_LOG_TO_FILE", "1", 1);
    log_file();
    GC_malloc((size_t)1 << 50);
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
    CHECK(in_child(incremental, 0) == 0);
    CHECK(in_child(keep_memory, &text) == 0 && text[0] == 0);

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
    CHECK(in_child(verbose, &text) == 0 && occurs("Complete collection took", text) >= 1);

    CHECK(mkstemp(log_name) >= 0);
    CHECK(in_child(log_file, &text) == 0 && text[0] == 0);
    CHECK(occurs("Complete collection took", read_file(log_name)) >= 1);
    CHECK(in_child(only_log, &text) == 0 && occurs("Out of Memory!", text) == 1);
    unlink(log_name);

    CHECK(in_child(address_map, &text) == 0 && occurs("[stack]", text) >= 1);
    CHECK(occurs("---------- Begin address map ----------\n", text) == occurs("---------- End address map ----------\n", text));
    CHECK(in_child(dumps, &text) == 0 && occurs("***GC Dump collection #", text) >= 2);
    CHECK(in_child(trace, &text) == 0 && occurs("Tracing not enabled: Ignoring GC_TRACE value", text) == 1);
    CHECK(occurs("Back height not available", text) >= 1);
    return 0;
}
