/* Every function of larder_vm.h once: what it promises holds. Exits with 0 when everything is right. */
#include "../../../../apps/vm/vm.h"

#include <sched.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition) \
    do { \
        if (!(condition)) \
            fail("line %d: %s", __LINE__, #condition); \
    } while (0)

enum { STRONG, WEAK_KIND, PAIRS };

/* As vm_scan, for objects whose references are weak, or pairs: bits 1 to 7 of the header say so. */
static void scan(void *context, void *object, uintptr_t from, uintptr_t to, larder_vm_visitor *visitor) {
    uintptr_t word = *(uintptr_t *)object, *slot = slot_of((Ref)object, 0);
    switch (word >> 1 & 0x7f) {
    case STRONG:
        vm_scan(context, object, from, to, visitor);
        break;
    case WEAK_KIND:
        for (size_t i = 0; i < refs_of(word); i++)
            visitor->weak(visitor, slot + i);
        break;
    default:
        for (size_t i = 0; i + 1 < refs_of(word); i += 2)
            visitor->ephemeron(visitor, slot + i, slot + i + 1);
    }
}

static int begun, ended, flips, last_way = -1;
static void flipped(void *context, int way) { CHECK(context == &begun); flips++; last_way = way; }
static void before(void *context, int kind) { (void)kind; CHECK(context == &begun); begun++; }
static void after(void *context, int kind) { (void)kind; CHECK(context == &begun); ended++; }

static Ref make_kind(Thread *thread, int kind, size_t refs) {
    Ref object = make(thread, refs, 1, 0);
    *(uintptr_t *)object |= (uintptr_t)kind << 1;
    return object;
}

static void *wait_long(void *argument) {
    return (char *)argument + 1;
}

static void handles_and_weak_references(Thread *thread) {
    ROOTS(thread, 4);
    root[0] = make(thread, 0, 1, 42);
    uint32_t strong = larder_vm_handle(thread, make(thread, 0, 1, 43), LARDER_VM_STRONG);
    uint32_t weak = larder_vm_handle(thread, root[0], LARDER_VM_WEAK);
    Ref there = make(thread, 0, 1, 44);
    uint32_t pinned = larder_vm_handle(thread, there, LARDER_VM_PINNED);
    root[1] = make_kind(thread, WEAK_KIND, 2);
    set(thread, root[1], 0, root[0]);
    root[2] = make_kind(thread, PAIRS, 2);
    Ref value = make(thread, 0, 1, 45);
    set(thread, root[2], 1, value);
    set(thread, root[2], 0, root[0]);
    Ref watched = make(thread, 0, 1, 46);
    larder_vm_watch(thread, watched, 99);
    set(thread, root[1], 1, watched);

    larder_vm_collect(thread, LARDER_VM_YOUNG);
    CHECK(*word_of(root[0], 0) == 42 && get(root[1], 0) == root[0] && larder_vm_handle_get(thread, weak) == root[0]);
    CHECK(get(root[2], 0) == root[0] && *word_of(get(root[2], 1), 0) == 45);
    CHECK(*word_of(larder_vm_handle_get(thread, strong), 0) == 43);
    CHECK(larder_vm_handle_get(thread, pinned) == there && *word_of(there, 0) == 44);
    CHECK(get(root[1], 1) == 0);
    uintptr_t token = 0;
    Ref dead = larder_vm_next_dead(thread, &token);
    CHECK(dead && token == 99 && *word_of(dead, 0) == 46 && !larder_vm_next_dead(thread, &token));

    root[0] = 0;
    larder_vm_handle_set(thread, strong, there);
    larder_vm_collect(thread, LARDER_VM_FULL);
    CHECK(get(root[1], 0) == 0 && larder_vm_handle_get(thread, weak) == 0);
    CHECK(get(root[2], 0) == 0 && get(root[2], 1) == 0);
    CHECK(larder_vm_handle_get(thread, strong) == there);
    larder_vm_handle_release(thread, strong);
    larder_vm_handle_release(thread, weak);
    larder_vm_handle_release(thread, pinned);
    DONE(thread);
}

static void tags_and_old_objects(Thread *thread) {
    ROOTS(thread, 1);
    uintptr_t *old = larder_vm_allocate_old(thread, 8 * 102);
    CHECK(old);
    old[0] = header(100, 8 * 102);
    root[0] = (Ref)old | 5;
    for (int i = 0; i < 100; i++) {
        Ref fresh = make(thread, 0, 1, i);
        /* By hand: a store, and what must follow it. */
        *slot_of(root[0] - 5, i) = fresh | (i % 8);
        larder_vm_barrier(thread, slot_of(root[0] - 5, i), fresh | (i % 8));
    }
    for (int round = 0; round < 4; round++) {
        larder_vm_collect(thread, round % 2);
        CHECK((root[0] & 7) == 5);
        for (int i = 0; i < 100; i++) {
            Ref tagged = get(root[0] - 5, i);
            CHECK((tagged & 7) == (uintptr_t)(i % 8) && *word_of(tagged & ~(Ref)7, 0) == (uint64_t)i);
        }
    }
    DONE(thread);
}

static int fork_here(void *calls) {
    ++*(int *)calls;
    return fork();
}

static void a_child_collects(Thread *thread) {
    ROOTS(thread, 1);
    root[0] = make(thread, 0, 1, 48);
    int calls = 0;
    for (int i = 0; i < 2; i++) {
        int status = -1, pid = larder_vm_fork(thread, i ? fork_here : NULL, &calls);
        if (pid == 0) {
            larder_vm_collect(thread, LARDER_VM_FULL);
            for (int j = 0; j < 50000; j++)
                make(thread, 1, j % 20, 0);
            _exit(*word_of(root[0], 0) == 48 ? 0 : 1);
        }
        CHECK(pid > 0 && calls == i && waitpid(pid, &status, 0) == pid && status == 0);
    }
    DONE(thread);
}

/* Every size by its function: objects of so many words, zeroed, one behind the other. */
static void functions_of_all_sizes(Thread *thread) {
    const larder_vm_functions *functions = larder_vm_get_functions(vm);
    CHECK(functions->of_words[0] == functions->of_words[1]);
    ROOTS(thread, 1);
    root[0] = make(thread, LARDER_VM_MOST_WORDS + 1, 0, 0);
    for (int round = 0; round < 40; round++)
        for (size_t words = 1; words <= LARDER_VM_MOST_WORDS; words++) {
            uintptr_t *object = functions->of_words[words](thread);
            CHECK(object);
            for (size_t i = 0; i < words; i++)
                CHECK(object[i] == 0);
            object[0] = header(0, 8 * words);
            for (size_t i = 1; i < words; i++)
                object[i] = words * 1000 + i;
            set(thread, root[0], words, (Ref)object);
        }
    larder_vm_collect(thread, LARDER_VM_YOUNG);
    for (size_t words = 1; words <= LARDER_VM_MOST_WORDS; words++)
        for (size_t i = 1; i < words; i++)
            CHECK(((uintptr_t *)get(root[0], words))[i] == words * 1000 + i);
    DONE(thread);
}

static void *join(void *thread) {
    CHECK(!pthread_join(*(pthread_t *)thread, 0));
    return 0;
}

/* What a compiler would emit from larder_vm_get_sequence: `size` bytes, or 0. */
static uintptr_t by_sequence(const larder_vm_sequence *s, size_t size) {
    uintptr_t object, next, t;
    __asm__ volatile(
        "2: lea 77f(%%rip), %[t]\n"
        "   mov %[t], %%fs:(%[arm])\n"
        "3: mov %%fs:(%[index]), %k[t]\n"
        "   cmp %[indices], %k[t]\n"
        "   jae 6f\n"
        "   shl %%cl, %[t]\n"
        "   add %[base], %[t]\n"
        "   mov (%[t]), %[object]\n"
        "   lea (%[object], %[size]), %[next]\n"
        "   cmp 8(%[t]), %[next]\n"
        "   ja 6f\n"
        "   mov %[next], (%[t])\n"
        "4: jmp 8f\n"
        "   .long 0x53053053\n"
        "5: jmp 2b\n"
        "6: xor %k[object], %k[object]\n"
        "8:\n"
        "   .pushsection .data.rel, \"aw\"\n"
        "   .balign 32\n"
        "77: .long 0, 0\n"
        "   .quad 3b, 4b - 3b, 5b\n"
        "   .popsection\n"
        : [object] "=&r"(object), [next] "=&r"(next), [t] "=&r"(t)
        : [arm] "r"(s->rseq_cs), [index] "r"(s->index), [indices] "r"(s->indices), "c"(s->shift), [base] "r"(s->base),
          [size] "r"(size)
        : "memory", "cc");
    return object;
}

/* A list made by the sequence, and by the slow path where that finds nothing, beside a thread that does the same. */
static void *list_by_sequence(void *argument) {
    Thread *thread = argument ? argument : larder_vm_attach(vm);
    larder_vm_sequence sequence;
    if (larder_vm_get_sequence(vm, &sequence) == LARDER_VM_PROCESSORS) {
        long fast = 0;
        enum { LENGTH = 20000 };
        ROOTS(thread, 1);
        CHECK(sequence.frontier == 0 && sequence.limit == 8 && sequence.header == 0);
        for (long n = 0; n < LENGTH; n++) {
            uintptr_t *object = (uintptr_t *)by_sequence(&sequence, 32);
            if (object)
                fast++;
            else
                object = larder_vm_allocate_slow(thread, 32);
            CHECK(object && !object[1]);
            object[0] = header(1, 24);
            object[1] = root[0];
            object[2] = n;
            root[0] = (Ref)object;
        }
        for (long n = LENGTH - 1; n >= 0; n--) {
            CHECK(*word_of(root[0], 0) == (uint64_t)n);
            root[0] = get(root[0], 0);
        }
        CHECK(root[0] == 0 && fast > LENGTH * 9 / 10);
        DONE(thread);
    }
    if (!argument)
        larder_vm_detach(thread);
    return 0;
}

_Static_assert(offsetof(Thread, rseq_cs) == 96 && offsetof(Thread, index) == 104 && offsetof(Thread, base) == 112,
               "where the inline sequence of larder_vm.h looks");

static void a_compiler_may_inline_the_sequence(Thread *thread) {
    larder_vm_sequence sequence;
    int way = larder_vm_get_sequence(vm, &sequence);
    CHECK(way == LARDER_VM_PROCESSORS ? !memcmp(&sequence, thread->sequence, sizeof sequence) : thread->sequence->indices == 0);
    CHECK(way == (vm_config.association == LARDER_VM_BY_NOBODY ? -1 : way ? LARDER_VM_PROCESSORS : LARDER_VM_THREADS));
    CHECK(way == LARDER_VM_THREADS || vm_config.association != LARDER_VM_BY_THREAD);
    CHECK(sequence.association == thread->sequence->association);
    CHECK((sequence.association == LARDER_VM_BY_THREAD) == (way == LARDER_VM_THREADS));
    CHECK((sequence.association == LARDER_VM_BY_NOBODY) == (way == -1));
    CHECK(way != LARDER_VM_PROCESSORS || sequence.association == LARDER_VM_BY_CPU ||
          sequence.association == LARDER_VM_BY_CONCURRENCY_ID);
    CHECK(vm_config.association != LARDER_VM_BY_CPU || sequence.association != LARDER_VM_BY_CONCURRENCY_ID);
    pthread_t other;
    CHECK(!pthread_create(&other, 0, list_by_sequence, 0));
    list_by_sequence(thread);
    larder_vm_blocking(thread, join, &other);
}

/* Threads that have each a buffer with much left: more than processors could waste, so the next collection flips. */
enum { SLEEPERS = 2100, OBJECTS = 20000 };
static pthread_barrier_t all_have_some, all_may_end;
static long sleepers;

static void *wait_at(void *barrier) {
    pthread_barrier_wait(barrier);
    return 0;
}

static void *sleeper(void *nothing) {
    (void)nothing;
    Thread *thread = larder_vm_attach(vm);
    CHECK(thread);
    make(thread, 0, 1, 1);
    larder_vm_blocking(thread, wait_at, &all_have_some);
    larder_vm_blocking(thread, wait_at, &all_may_end);
    larder_vm_detach(thread);
    return 0;
}

static cpu_set_t usable;

/* The calling thread, and what it creates, stays on the first, or the last, of the usable CPUs. One that moved while no other allocated would
 * leave more buffers behind than threads allocate: a flip back. */
static void stay_on_one(int last) {
    cpu_set_t one;
    int found = -1;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &usable) && (last || found < 0))
            found = cpu;
    if (found < 0)
        return;
    CPU_ZERO(&one);
    CPU_SET(found, &one);
    CHECK(!sched_setaffinity(0, sizeof one, &one));
}

static atomic_int old_has_allocated, may_end;

/* Allocates by the function that it had at first: it knows no other safepoint, so it stops inside of that. */
static void *by_the_old_function(void *argument) {
    larder_vm_function four = *(larder_vm_function *)argument;
    stay_on_one(1);
    Thread *thread = larder_vm_attach(vm);
    CHECK(thread);
    ROOTS(thread, 1);
    for (long n = 0; n < OBJECTS || !may_end; n++) {
        uintptr_t *object = four(thread);
        CHECK(object && !object[1]);
        object[0] = header(1, 32);
        object[2] = n;
        object[1] = n % 50 ? root[0] : 0;
        root[0] = (Ref)object;
        old_has_allocated = 1;
    }
    long last = *word_of(root[0], 0), count = 0;
    for (Ref at = root[0]; at; at = get(at, 0))
        CHECK(*word_of(at, 0) == (uint64_t)last - count++);
    CHECK(count == last % 50 + 1);
    DONE(thread);
    larder_vm_detach(thread);
    return 0;
}

static void a_flip_redirects_functions(const larder_vm_host *host) {
    larder_vm_default_config(&vm_config);
    vm_config.young = vm_config.most_young = 128 << 20;
    vm_config.buffer = 16 << 10;
    vm_config.association = LARDER_VM_FLIP;
    vm_config.verify = 1;
    vm = larder_vm_create(&vm_config, host, 0, 0);
    CHECK(vm);
    Thread *thread = larder_vm_attach(vm);
    const larder_vm_functions *functions = larder_vm_get_functions(vm);
    larder_vm_function old = functions->of_words[4];
    CHECK(thread->sequence->indices == 0);
    sleepers = 4 * sysconf(_SC_NPROCESSORS_CONF) + 4;
    if (sleepers > SLEEPERS)
        sleepers = SLEEPERS;
    static pthread_t handle[SLEEPERS + 1];
    pthread_barrier_init(&all_have_some, 0, sleepers + 1);
    pthread_barrier_init(&all_may_end, 0, sleepers + 1);
    /* Its own collection may be the one that flips. */
    int before_flip = flips;
    /* It fails where there are more CPUs than the set has room for, and leaves that empty. */
    int is_known = !sched_getaffinity(0, sizeof usable, &usable);
    stay_on_one(0);
    for (long i = 0; i < sleepers; i++)
        CHECK(!pthread_create(&handle[i], 0, sleeper, 0));
    CHECK(!pthread_create(&handle[sleepers], 0, by_the_old_function, &old));
    larder_vm_blocking(thread, wait_at, &all_have_some);
    while (!old_has_allocated)
        larder_vm_poll(thread);
    larder_vm_collect(thread, LARDER_VM_YOUNG);
    larder_vm_stats stats;
    larder_vm_get_stats(vm, &stats);
    if (flips == before_flip) {
        /* Without restartable sequences processors have no buffers. */
        CHECK(stats.flips == 0 && functions->of_words[4] == old);
        printf("skipped: nothing flips here\n");
    } else {
        CHECK(last_way == LARDER_VM_PROCESSORS && stats.flips == 1 && functions->of_words[4] != old);
        for (int i = 0; i < 100; i++) {
            uintptr_t *object = old(thread);
            CHECK(object);
            object[0] = header(1, 32);
        }
        CHECK(thread->limit == 0 && thread->sequence->indices != 0);
        larder_vm_get_stats(vm, &stats);
        CHECK(stats.redirected >= 100);
    }
    may_end = 1;
    CHECK(!pthread_join(handle[sleepers], 0));
    larder_vm_get_stats(vm, &stats);
    uint64_t redirected = stats.redirected;
    for (int i = 0; i < 1000; i++) {
        uintptr_t *object = functions->of_words[4](thread);
        CHECK(object);
        object[0] = header(1, 32);
    }
    larder_vm_get_stats(vm, &stats);
    CHECK(stats.redirected == redirected);
    larder_vm_blocking(thread, wait_at, &all_may_end);
    larder_vm_detach(thread);
    for (long i = 0; i < sleepers; i++)
        CHECK(!pthread_join(handle[i], 0));
    larder_vm_destroy(vm);
    if (is_known)
        CHECK(!sched_setaffinity(0, sizeof usable, &usable));
}

int main(int argc, char **argv) {
    (void)argc;
    program_name = argv[0];
    char why[200];
    larder_vm_host host = {
        .context = &begun, .size = vm_size, .scan = scan, .roots = vm_roots, .before = before, .after = after, .flipped = flipped};
    for (int setting = 0; setting < 16; setting++) {
        larder_vm_default_config(&vm_config);
        vm_config.young = vm_config.most_young = 1 << 20;
        vm_config.old = 16 << 20;
        vm_config.verify = vm_config.poison = 1;
        vm_config.association = setting == 4 ? LARDER_VM_ALWAYS_BY_ID : setting % 4;
        vm_config.barrier = setting % 3;
        vm_config.level[0] = setting % 6;
        vm_config.level_buffer[0] = setting % 6 && setting > 6 ? 64 << 10 : 0;
        vm_config.buffer = vm_config.level_buffer[0] / 4;
        vm_config.collect_every = setting == 11 ? 1 : 0;
        if (setting >= 12) {
            /* Three levels, above threads, processors that may be flipped to, and nobody. */
            static const int associations[] = {
                LARDER_VM_BY_THREAD, LARDER_VM_FLIP_TO_CPU, LARDER_VM_BY_NOBODY, LARDER_VM_BY_NOBODY};
            static const int levels[] = {LARDER_VM_CORE, LARDER_VM_PACKAGE, LARDER_VM_PROCESS};
            vm_config.association = associations[setting - 12];
            vm_config.near_end = setting % 2 ? LARDER_VM_SHRINK : LARDER_VM_SINGLY;
            vm_config.by_share = setting == 12;
            vm_config.buffer = setting == 13 ? 8 << 10 : 0;
            for (int k = 0; k < LARDER_VM_LEVELS; k++) {
                vm_config.level[k] = setting == 15 && k > 0 ? LARDER_VM_NO_LEVEL : levels[k];
                vm_config.level_buffer[k] = setting == 15 && k > 0 ? 0 : 16 << 10 << k;
                vm_config.level_sizing[k] = setting == 14 ? k : LARDER_VM_FIXED;
            }
        }
        vm = larder_vm_create(&vm_config, &host, why, sizeof why);
        if (!vm)
            fail("%s", why);
        Thread *thread = larder_vm_attach(vm);
        CHECK(thread);
        handles_and_weak_references(thread);
        tags_and_old_objects(thread);
        functions_of_all_sizes(thread);
        if (vm_config.collect_every == 0)
            a_compiler_may_inline_the_sequence(thread);
        if (setting < 4)
            a_child_collects(thread);
        static uintptr_t words[4];
        larder_vm_add_ambiguous(vm, words, words + 4);
        words[2] = make(thread, 0, 1, 47) + 9;
        for (int i = 0; i < 100000; i++)
            make(thread, 1, i % 20, 0);
        CHECK(*word_of(words[2] - 9, 0) == 47);
        words[2] = 0;
        CHECK(larder_vm_blocking(thread, wait_long, why) == why + 1);
        larder_vm_poll(thread);
        CHECK(!larder_vm_allocate(thread, (size_t)1 << 40) && !larder_vm_allocate(thread, SIZE_MAX));
        CHECK(larder_vm_allocate(thread, 0));
        larder_vm_stats stats;
        larder_vm_get_stats(vm, &stats);
        CHECK(stats.young_collections >= 6 && stats.full_collections >= 3 && stats.finalized == 1);
        larder_vm_detach(thread);
        larder_vm_destroy(vm);
    }
    a_flip_redirects_functions(&host);
    CHECK(begun == ended && begun > 0);
    vm_config.young = 1000;
    CHECK(!larder_vm_create(&vm_config, &host, why, sizeof why));
    CHECK(!strcmp(why, "the young generation must have at least 256 KiB"));
    vm_config.young = 1 << 20;
    vm_config.level[0] = 6;
    CHECK(!larder_vm_create(&vm_config, &host, why, sizeof why) && strstr(why, "0 to 5"));
    vm_config.level[0] = LARDER_VM_NO_LEVEL;
    vm_config.level_buffer[0] = 4096;
    CHECK(!larder_vm_create(&vm_config, &host, why, sizeof why) && strstr(why, "no level"));
    vm_config.level[0] = LARDER_VM_PROCESS;
    vm_config.buffer = 8192;
    CHECK(!larder_vm_create(&vm_config, &host, why, sizeof why) && strstr(why, "make the upper ones larger"));
    vm_config.by_share = 1;
    CHECK(!larder_vm_create(&vm_config, &host, why, sizeof why) && strstr(why, "leave buffer at 0"));
    vm_config.by_share = 0;
    vm_config.level_buffer[0] = vm_config.buffer = 0;
    vm_config.level[1] = LARDER_VM_CORE;
    CHECK(!larder_vm_create(&vm_config, &host, why, sizeof why) && strstr(why, "wider from below"));
    vm_config.level[0] = LARDER_VM_NO_LEVEL;
    CHECK(!larder_vm_create(&vm_config, &host, why, sizeof why) && strstr(why, "missing below another one"));
    vm_config.level[1] = LARDER_VM_NO_LEVEL;
    vm_config.association = LARDER_VM_BY_NOBODY;
    CHECK(!larder_vm_create(&vm_config, &host, why, sizeof why) && strstr(why, "nobody has buffers"));
    vm_config.association = 7;
    CHECK(!larder_vm_create(&vm_config, &host, why, sizeof why) && strstr(why, "0 to 6"));
    vm_config.association = LARDER_VM_BY_THREAD;
    vm_config.near_end = 2;
    CHECK(!larder_vm_create(&vm_config, &host, why, sizeof why) && strstr(why, "0 or 1"));
    vm_config.near_end = LARDER_VM_SHRINK;
    vm_config.young = 1000;
    CHECK(!larder_vm_create(&vm_config, &host, why, 5) && !strcmp(why, "the "));
    strcpy(why, "as it was");
    CHECK(!larder_vm_create(&vm_config, &host, why, 0) && !strcmp(why, "as it was"));
    CHECK(!larder_vm_create(&vm_config, &host, why, 1) && !strcmp(why, ""));
    return 0;
}
