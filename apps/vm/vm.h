/*
 * A small object model on larder_vm.h, the options and the result line, for the programs of this folder.
 *
 * An object is a header, references, and words that are not references. The header has the object's size in bytes in bits 32
 * to 63 and the number of its references in bits 8 to 31. The first other word of each object is its number, from which every
 * program can tell that it is the object that it should be.
 */
#ifndef VM_H
#define VM_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <inttypes.h>
#include <stdarg.h>
#include <larder_vm.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

typedef uintptr_t Ref;
typedef larder_vm_thread Thread;

static const char *program_name;
static larder_vm *vm;
static larder_vm_config vm_config;
static long vm_threads = 1;
static double vm_begun_s, vm_begun_cpu_s;

static inline double clock_s(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static inline double now_s(void) {
    return clock_s(CLOCK_MONOTONIC);
}

/* A random generator with a state of its own (splitmix64). */
static inline uint64_t random_next(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* A sum that depends on every value but not on their order. */
static inline uint64_t mixed(uint64_t value) {
    return random_next(&value);
}

__attribute__((noreturn, cold, format(printf, 1, 2))) static inline void fail(const char *format, ...) {
    va_list list;
    va_start(list, format);
    fprintf(stderr, "%s: ", program_name);
    vfprintf(stderr, format, list);
    fputc('\n', stderr);
    exit(1);
}

static inline uintptr_t header(size_t refs, size_t bytes) {
    return (uintptr_t)bytes << 32 | (uintptr_t)refs << 8;
}

static inline size_t refs_of(uintptr_t word) {
    return word >> 8 & 0xffffff;
}

static inline uintptr_t *slot_of(Ref object, size_t i) {
    return (uintptr_t *)object + 1 + i;
}

static inline Ref get(Ref object, size_t i) {
    return *(volatile uintptr_t *)slot_of(object, i);
}

static inline void set(Thread *thread, Ref object, size_t i, Ref value) {
    larder_vm_store(thread, slot_of(object, i), value);
}

/* Word `i` behind the references; word 0 is the number. */
static inline uint64_t *word_of(Ref object, size_t i) {
    return (uint64_t *)slot_of(object, refs_of(*(uintptr_t *)object) + i);
}

/* A new object. A safepoint. */
static inline Ref make(Thread *thread, size_t refs, size_t words, uint64_t number) {
    size_t bytes = 8 * (1 + refs + words);
    uintptr_t *object = larder_vm_allocate(thread, bytes);
    if (!object) {
        fprintf(stderr, "%s: out of memory: try a larger --old\n", program_name);
        exit(3);
    }
    object[0] = header(refs, bytes);
    if (words)
        object[1 + refs] = number;
    return (Ref)object;
}

/* A class: what all its instances are like, and the function that allocates them. `vm_classes` has all that were declared. */
typedef struct VmClass {
    size_t refs, words;
    larder_vm_function allocate;
    struct VmClass *next;
} VmClass;

static VmClass *vm_classes;

static void vm_adopt(VmClass *class) {
    class->allocate = larder_vm_get_functions(vm)->of_words[1 + class->refs + class->words];
}

/* Before the first instance. */
static inline void vm_declare(VmClass *class) {
    vm_adopt(class);
    class->next = vm_classes;
    vm_classes = class;
}

/* A new object of a class. A safepoint. */
static inline Ref make_one(Thread *thread, const VmClass *class, uint64_t number) {
    uintptr_t *object = class->allocate(thread);
    if (!object) {
        fprintf(stderr, "%s: out of memory: try a larger --old\n", program_name);
        exit(3);
    }
    object[0] = header(class->refs, 8 * (1 + class->refs + class->words));
    object[1 + class->refs] = number;
    return (Ref)object;
}

/* The heap's buffers belong to others: every class gets the function of the other set. */
static void vm_flipped(void *context, int way) {
    (void)context, (void)way;
    for (VmClass *class = vm_classes; class; class = class->next)
        vm_adopt(class);
}

/* Roots of a function: `ROOTS(thread, 3)` declares `root[0]` to `root[2]`; `DONE(thread)` ends them. */
#define ROOTS(thread, n) \
    Ref root[n]; \
    memset(root, 0, sizeof root); \
    larder_vm_frame frame_of_roots; \
    larder_vm_link(thread, &frame_of_roots, root, n)
#define DONE(thread) larder_vm_unlink(thread)

static size_t vm_size(void *context, const void *object, uintptr_t word) {
    (void)context, (void)object;
    return word >> 32;
}

static void vm_scan(void *context, void *object, uintptr_t from, uintptr_t to, larder_vm_visitor *visitor) {
    (void)context;
    uintptr_t *first = slot_of((Ref)object, 0), *end = first + refs_of(*(uintptr_t *)object);
    if ((uintptr_t)first < from)
        first = (uintptr_t *)((from + 7) & ~(uintptr_t)7);
    if ((uintptr_t)end > to)
        end = (uintptr_t *)((to + 7) & ~(uintptr_t)7);
    if (first < end)
        visitor->slots(visitor, first, end - first);
}

/* Objects that every thread may use. */
enum { VM_GLOBALS = 16 };
static Ref vm_global[VM_GLOBALS];

static void vm_roots(void *context, larder_vm_visitor *visitor) {
    (void)context;
    visitor->slots(visitor, vm_global, VM_GLOBALS);
}

/* The longest pause; and of young collections that did not become full ones the longest, and the sum. The heap counts a pause after its
 * collection, so each is looked at when the next begins. */
static uint64_t vm_longest_ns, vm_longest_young_ns, vm_young_pause_ns, vm_counted_pause_ns;
static int vm_last_kind;

static void vm_count_pause(const larder_vm_stats *s) {
    uint64_t pause = s->pause_ns - vm_counted_pause_ns;
    vm_counted_pause_ns = s->pause_ns;
    if (pause > vm_longest_ns)
        vm_longest_ns = pause;
    if (vm_last_kind != LARDER_VM_YOUNG)
        return;
    vm_young_pause_ns += pause;
    if (pause > vm_longest_young_ns)
        vm_longest_young_ns = pause;
}

static void vm_before(void *context, int kind) {
    (void)context, (void)kind;
    larder_vm_stats s;
    larder_vm_get_stats(vm, &s);
    vm_count_pause(&s);
}

static void vm_after(void *context, int kind) {
    (void)context;
    vm_last_kind = kind;
}

static long vm_number(const char *option, const char *text, long least, long most) {
    char *end;
    long value = text ? strtol(text, &end, 10) : 0;
    if (!text || end == text || *end || value < least || value > most)
        fail("%s needs a number from %ld to %ld", option, least, most);
    return value;
}

static int vm_choice(const char *option, const char *text, const char *const *choices) {
    for (int i = 0; text && choices[i]; i++)
        if (!strcmp(text, choices[i]))
            return i;
    fprintf(stderr, "%s: %s must be one of:", program_name, option);
    for (int i = 0; choices[i]; i++)
        fprintf(stderr, " %s", choices[i]);
    fputc('\n', stderr);
    exit(2);
}

/* What the heap did before the program began. */
static larder_vm_stats vm_before_it;

/* Uses every part of the heap once, so that the program does not wait for memory from the kernel: as a virtual machine is that has
 * run for a while. What it made is garbage, and its collections are not counted. */
static void vm_warm(void) {
    Thread *thread = larder_vm_attach(vm);
    if (!thread)
        fail("no memory for a thread");
    enum { BYTES = 4096 };
    size_t old = vm_config.least_old ? vm_config.least_old : vm_config.old / 8;
    for (size_t made = 0; made < 4 * vm_config.young + old / 8 * 7; made += BYTES) {
        uintptr_t *object = made < 4 * vm_config.young ? larder_vm_allocate(thread, BYTES) : larder_vm_allocate_old(thread, BYTES);
        if (!object)
            fail("out of memory while warming up: try a larger --old");
        memset(object, 1, BYTES);
        object[0] = header(0, BYTES);
    }
    larder_vm_collect(thread, LARDER_VM_FULL);
    larder_vm_detach(thread);
    larder_vm_get_stats(vm, &vm_before_it);
    vm_counted_pause_ns = vm_before_it.pause_ns;
    vm_longest_ns = vm_longest_young_ns = vm_young_pause_ns = 0;
    vm_last_kind = LARDER_VM_FULL;
}

/*
 * Takes the heap's options out of the arguments and makes the heap. What is left begins at argv[1]; returns how many.
 */
static inline int vm_begin(int argc, char **argv) {
    static const char *const associations[] = {"id", "thread", "cpu", "flip", "flip-cpu", "nobody", "id-always", 0};
    static const char *const ends[] = {"shrink", "singly", 0};
    static const char *const levels[] = {"none", "core", "cache", "package", "node", "process", 0};
    static const char *const sizings[] = {"fixed", "adaptive", "share", 0};
    static const char *const barriers[] = {"conditional", "cards", "stores", 0};
    program_name = argv[0];
    larder_vm_default_config(&vm_config);
    int left = 1, warm = 0, levels_so_far = 0;
    for (int i = 1; i < argc; i++) {
        const char *option = argv[i], *value = i + 1 < argc ? argv[i + 1] : 0;
        if (!strcmp(option, "--verify"))
            vm_config.verify = vm_config.poison = 1;
        else if (!strcmp(option, "--warm"))
            warm = 1;
        else if (!strcmp(option, "--by-share"))
            vm_config.by_share = 1;
        else if (!strcmp(option, "--null"))
            vm_config.never_collect = 1;
        else if (!strncmp(option, "--", 2)) {
            if (!strcmp(option, "--threads"))
                vm_threads = vm_number(option, value, 1, 1000);
            else if (!strcmp(option, "--young-kib"))
                vm_config.young = vm_config.most_young = (size_t)vm_number(option, value, 256, 1 << 24) << 10;
            else if (!strcmp(option, "--most-young-kib"))
                vm_config.most_young = (size_t)vm_number(option, value, 256, 1 << 24) << 10;
            else if (!strcmp(option, "--old"))
                vm_config.old = (size_t)vm_number(option, value, 1, 1 << 16) << 20;
            else if (!strcmp(option, "--least-old"))
                vm_config.least_old = (size_t)vm_number(option, value, 1, 1 << 16) << 20;
            else if (!strcmp(option, "--buffer-kib"))
                vm_config.buffer = (size_t)vm_number(option, value, 4, 512) << 10;
            else if (!strcmp(option, "--collectors"))
                vm_config.collectors = vm_number(option, value, 1, 16);
            else if (!strcmp(option, "--tenure"))
                vm_config.tenure = vm_number(option, value, 1, 6);
            else if (!strcmp(option, "--every"))
                vm_config.collect_every = vm_number(option, value, 1, 1 << 30);
            else if (!strcmp(option, "--association"))
                vm_config.association = vm_choice(option, value, associations);
            else if (!strcmp(option, "--near-end"))
                vm_config.near_end = vm_choice(option, value, ends);
            else if (!strcmp(option, "--level")) {
                if (levels_so_far == LARDER_VM_LEVELS)
                    fail("there can be %d levels", LARDER_VM_LEVELS);
                vm_config.level[levels_so_far++] = vm_choice(option, value, levels);
            } else if (!strcmp(option, "--level-kib")) {
                if (!levels_so_far)
                    fail("%s is for the level before it, and there is none: put --level first", option);
                vm_config.level_buffer[levels_so_far - 1] = (size_t)vm_number(option, value, 4, 1 << 20) << 10;
            } else if (!strcmp(option, "--level-sizing")) {
                if (!levels_so_far)
                    fail("%s is for the level before it, and there is none: put --level first", option);
                vm_config.level_sizing[levels_so_far - 1] = vm_choice(option, value, sizings);
            }
            else if (!strcmp(option, "--barrier"))
                vm_config.barrier = vm_choice(option, value, barriers);
            else
                fail("there is no option %s: see README.md", option);
            i++;
        } else
            argv[left++] = argv[i];
    }
    static const larder_vm_host host = {
        .size = vm_size, .scan = vm_scan, .roots = vm_roots, .before = vm_before, .after = vm_after,
        .flipped = vm_flipped};
    char why[200];
    vm = larder_vm_create(&vm_config, &host, why, sizeof why);
    if (!vm)
        fail("%s", why);
    if (warm)
        vm_warm();
    vm_begun_s = now_s();
    vm_begun_cpu_s = clock_s(CLOCK_PROCESS_CPUTIME_ID);
    return left;
}

/* Runs `body(number)` in `vm_threads` threads, attached; returns the sum of what they return. */
typedef struct {
    uint64_t (*body)(Thread *, long);
    long number;
    uint64_t sum;
} VmTask;

static void *vm_run_task(void *argument) {
    VmTask *task = argument;
    Thread *thread = larder_vm_attach(vm);
    if (!thread)
        fail("no memory for a thread");
    task->sum = task->body(thread, task->number);
    larder_vm_detach(thread);
    return 0;
}

static inline uint64_t vm_in_threads(uint64_t (*body)(Thread *, long)) {
    pthread_t *handles = calloc(vm_threads, sizeof *handles);
    VmTask *tasks = calloc(vm_threads, sizeof *tasks);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 256 << 10);
    for (long i = 0; i < vm_threads; i++) {
        tasks[i] = (VmTask){body, i, 0};
        if (pthread_create(&handles[i], &attributes, vm_run_task, &tasks[i]))
            fail("cannot start thread %ld of %ld", i, vm_threads);
    }
    uint64_t sum = 0;
    for (long i = 0; i < vm_threads; i++) {
        pthread_join(handles[i], 0);
        sum += tasks[i].sum;
    }
    free(handles);
    free(tasks);
    return sum;
}

/* Prints the result line and ends the heap. The checksum does not depend on settings, nor on the number of collections. */
static inline int vm_end(const char *name, uint64_t checksum, uint64_t operations) {
    double seconds = now_s() - vm_begun_s, cpu_s = clock_s(CLOCK_PROCESS_CPUTIME_ID) - vm_begun_cpu_s;
    larder_vm_stats s, end;
    larder_vm_get_stats(vm, &s);
    vm_count_pause(&s);
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    /* One collection more, not counted, says what is left in the buffers and on the sideline: then what was allocated is known. */
    if (!vm_config.never_collect) {
        Thread *thread = larder_vm_attach(vm);
        if (thread) {
            larder_vm_collect(thread, LARDER_VM_YOUNG);
            larder_vm_detach(thread);
        }
    }
    larder_vm_get_stats(vm, &end);
#define SINCE(field) (s.field - vm_before_it.field)
#define ALLOCATED(stats) (double)((stats).buffer_bytes - (stats).unused_bytes - (stats).sidelined_unused_bytes + (stats).large_bytes)
    double allocated = ALLOCATED(end) - ALLOCATED(vm_before_it);
#undef ALLOCATED
    printf("program=%s threads=%ld checksum=%016" PRIx64 " operations=%" PRIu64 " seconds=%.3f young=%" PRIu64 " full=%" PRIu64
           " pause_ms=%.1f longest_ms=%.2f copied_mib=%.1f promoted_mib=%.1f compacted_mib=%.1f copying_ms=%.1f"
           " compacting_ms=%.1f buffers=%" PRIu64 " buffer_mib=%.1f unused_mib=%.1f cards=%" PRIu64
           " by_threads=%" PRIu64 " by_processors=%" PRIu64 " transactions=%" PRIu64 " failed=%" PRIu64 " invalid=%" PRIu64
           " sidelined=%" PRIu64 " sidelined_mib=%.3f sidelined_unused=%" PRIu64 " sidelined_unused_mib=%.3f partly_used=%" PRIu64
           " redirected=%" PRIu64 " flips=%" PRIu64 " cpu_s=%.3f stopping_ms=%.1f young_pause_ms=%.3f longest_young_ms=%.3f allocated_mib=%.1f peak_mib=%.1f\n",
           name, vm_threads, checksum, operations, seconds, SINCE(young_collections), SINCE(full_collections), SINCE(pause_ns) / 1e6,
           vm_longest_ns / 1e6, SINCE(copied_bytes) / 1048576.0, SINCE(promoted_bytes) / 1048576.0, SINCE(compacted_bytes) / 1048576.0,
           SINCE(copying_ns) / 1e6, SINCE(compacting_ns) / 1e6, SINCE(buffers), SINCE(buffer_bytes) / 1048576.0, SINCE(unused_bytes) / 1048576.0,
           SINCE(dirty_cards), SINCE(by_threads), SINCE(by_processors), SINCE(transactions), SINCE(transactions_failed), SINCE(transactions_invalid),
           SINCE(sidelined), SINCE(sidelined_bytes) / 1048576.0, SINCE(sidelined_unused), SINCE(sidelined_unused_bytes) / 1048576.0, SINCE(partly_used),
           SINCE(redirected), SINCE(flips), cpu_s, SINCE(stopping_ns) / 1e6, vm_young_pause_ns / 1e6, vm_longest_young_ns / 1e6,
           allocated / 1048576.0, usage.ru_maxrss / 1024.0);
#undef SINCE
    larder_vm_destroy(vm);
    return 0;
}

#endif
