/* A limited address space (ulimit -v): the heap takes what it needs and leaves the rest, and a program that has used the rest up before
 * the first cycle is collected all the same. */
#include "check.h"
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 2, ROUNDS = 16, OBJECTS = 50000, MANY = 80, LARGE = 500 };

static void *none(size_t bytes) {
    (void)bytes;
    return 0;
}

static NOINLINE void use_heap(void) {
    GC_word *list = 0;
    int n = 0;
    for (int i = 0; i < OBJECTS; i++) {
        GC_word *cell = GC_malloc(16 + i % 8 * 16);
        CHECK(cell != 0 && cell[0] == 0 && cell[1] == 0);
        cell[0] = (GC_word)list;
        cell[1] = ~(GC_word)i;
        list = cell;
    }
    for (int i = OBJECTS - 1; list; list = (GC_word *)list[0], n++, i--) CHECK(list[1] == ~(GC_word)i);
    CHECK(n == OBJECTS);
}
static void *thread(void *unused) {
    for (int i = 0; i < ROUNDS; i++) {
        use_heap();
        memset(GC_malloc(1 << 20), 1, 1 << 20);
    }
    return unused;
}
static void limited(void) {
    GC_init();
    pthread_t t[THREADS];
    for (int i = 0; i < THREADS; i++) CHECK(GC_pthread_create(&t[i], 0, thread, 0) == 0);
    thread(0);
    for (int i = 0; i < THREADS; i++) CHECK(GC_pthread_join(t[i], 0) == 0);
    GC_gcollect();
    use_heap();
}

/* Nothing of the address space is left when the first cycle comes. */
static void used_up(void) {
    GC_init();
    use_heap();
    GC_word cycles = GC_get_gc_no();
    for (size_t size = (size_t)1 << 30; size >= 4096;)
        if (mmap(0, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED) size /= 2;
    GC_gcollect();
    CHECK(GC_get_gc_no() > cycles);
}

/* Libraries have most of it when the heap is made: that leaves something to the program. */
static void late(void) {
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_AS, &limit) == 0);
    size_t most = limit.rlim_cur / 16 * 11;
    CHECK(mmap(0, most, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED);
    GC_init();
    use_heap();
    CHECK(mmap(0, limit.rlim_cur / 16, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED);
    GC_gcollect();
    CHECK(GC_get_gc_no() > 0);
}

/* Three quarters of the limit are stacks, whose threads are there at the same time; a heap that had taken its share at the start left no room. */
static pthread_barrier_t all_there;
static void *sleeper(void *unused) {
    GC_word *own = GC_malloc(64);
    *own = ~(GC_word)(size_t)unused;
    int r = pthread_barrier_wait(&all_there);
    CHECK(r == 0 || r == PTHREAD_BARRIER_SERIAL_THREAD);
    for (int i = 0; i < 2000; i++) CHECK(GC_malloc(64) != 0);
    CHECK(*own == ~(GC_word)(size_t)unused);
    return unused;
}
static void stacks(void) {
    GC_init();
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_AS, &limit) == 0);
    pthread_attr_t attr;
    CHECK(pthread_attr_init(&attr) == 0 && pthread_attr_setstacksize(&attr, limit.rlim_cur / MANY / 4 * 3 & ~(size_t)0xffff) == 0);
    CHECK(pthread_barrier_init(&all_there, 0, MANY) == 0);
    pthread_t t[MANY];
    for (size_t i = 0; i < MANY; i++) CHECK(GC_pthread_create(&t[i], &attr, sleeper, (void *)i) == 0);
    for (int i = 0; i < MANY; i++) CHECK(GC_pthread_join(t[i], 0) == 0);
    GC_gcollect();
    use_heap();
}

/* The program limits itself when the heap is there: it has room for threads, the limit holds for the heap, and both can go on. */
static void itself(void) {
    GC_init();
    use_heap();
    struct rlimit limit = {(rlim_t)1 << 30, (rlim_t)1 << 30};
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
    stacks();
    static char *objects[1024];
    int most = 0;
    while (most < 1024 && (objects[most] = GC_malloc_atomic(1 << 20)) != 0) most++;
    CHECK(most > LARGE && most < 1024);
    memset(objects, 0, sizeof objects);
    use_heap();
}

/* All of a limit that comes late is used, by objects of one size or of many, and as memory gets short few cycles come: one for each 256 KiB before, 101, and
 * a fifth of the heap stayed empty. 0: all sizes. */
static NOINLINE void fill_with(size_t size) {
    struct chunk { struct chunk *next; void *objects[500]; } *chunks = 0;
    GC_word cycles = GC_get_gc_no(), seed = 1;
    size_t bytes = 0;
    for (int n = 500;; n++) {
        if (n == 500) {
            struct chunk *more = GC_malloc(sizeof *more);
            if (!more) break;
            more->next = chunks;
            chunks = more;
            n = 0;
        }
        seed = seed * 6364136223846793005 + 1442695040888963407;
        size_t wanted = size ? size : 16 + (seed >> 33) % 10000;
        if (!(chunks->objects[n] = seed >> 63 ? GC_malloc(wanted) : GC_malloc_atomic(wanted))) break;
        bytes += wanted;
    }
    cycles = GC_get_gc_no() - cycles;
    CHECK(cycles < 20);
    if (is_larder()) CHECK(bytes / 88 * 100 > GC_get_heap_size());
}
static void filled(size_t size) {
    GC_init();
    GC_set_oom_fn(none);
    GC_set_warn_proc(GC_ignore_warn_proc);
    use_heap();
    struct rlimit limit = {(rlim_t)160 << 20, (rlim_t)160 << 20};
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
    fill_with(size);
}

/* The same where cycles beside the program watch the heap's memory, so that all of its range stays mapped: the limit holds for the heap. */
static void watched(void) {
    GC_init();
    GC_enable_incremental();
    static GC_word *kept;
    for (int i = 0; i < 600000; i++) {
        GC_word *cell = GC_malloc(64);
        cell[0] = (GC_word)kept;
        kept = cell;
    }
    for (int i = 0; i < 30; i++) use_heap();
    struct rlimit limit = {(rlim_t)1 << 30, (rlim_t)1 << 30};
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
    static char *objects[1024];
    int most = 0;
    while (most < 1024 && (objects[most] = GC_malloc_atomic(1 << 20)) != 0) most++;
    /* Where the rest could be given back, the stacks of markers take most of the limit. */
    CHECK(most > 20 && most < 1024);
    memset(objects, 0, sizeof objects);
    for (int i = 0; i < 30; i++) use_heap();
}

/* Half of the limit is live data. */
static void half(void) {
    GC_init();
    static char *objects[LARGE];
    for (int i = 0; i < LARGE; i++) {
        CHECK((objects[i] = GC_malloc_atomic(1 << 20)) != 0);
        *objects[i] = (char)i;
    }
    for (int i = 0; i < LARGE; i++) CHECK(*objects[i] == (char)i && GC_base(objects[i]) == objects[i]);
}

/* The program itself under a limit that holds from its first instruction; 0 for none. */
static void run_with(rlim_t mebibytes, const char *part) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        struct rlimit limit = {mebibytes << 20, mebibytes << 20};
        CHECK(mebibytes == 0 || setrlimit(RLIMIT_AS, &limit) == 0);
        execl("/proc/self/exe", "address_space", part, (char *)0);
        CHECK(!"started again");
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(int argc, char **argv) {
    if (argc > 1) {
        if (!strcmp(argv[1], "limited")) limited();
        else if (!strcmp(argv[1], "late")) late();
        else if (!strcmp(argv[1], "stacks")) stacks();
        else if (!strcmp(argv[1], "half")) half();
        else if (!strcmp(argv[1], "itself")) itself();
        else if (!strcmp(argv[1], "watched")) watched();
        else if (!strncmp(argv[1], "filled", 6)) filled((size_t)atoi(argv[1] + 6));
        else used_up();
        return 0;
    }
    run_with(1024, "limited");
    run_with(300, "limited");
    run_with(300, "used up");
    run_with(1024, "stacks");
    run_with(1024, "half");
    if (is_larder()) run_with(0, "watched");
    if (getenv("LARDER_CONCURRENT")) return 0;
    /* Cycles beside the program want a thread, with a stack, for themselves. */
    run_with(300, "late");
    /* And what they watch stays mapped. */
    run_with(0, "itself");
    const char *const filled[] = {"filled 1000", "filled 3000", "filled 9000", "filled 0"};
    for (size_t i = 0; i < sizeof filled / sizeof *filled; i++) run_with(0, filled[i]);
    return 0;
}
