/* Every function of larder_vm.h once: what it promises holds. Exits with 0 when everything is right. */
#include "../../../../apps/vm/vm.h"

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

static int begun, ended;
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

int main(int argc, char **argv) {
    (void)argc;
    program_name = argv[0];
    char why[200];
    larder_vm_host host = {&begun, vm_size, scan, vm_roots, before, after};
    for (int setting = 0; setting < 12; setting++) {
        larder_vm_default_config(&vm_config);
        vm_config.young = vm_config.most_young = 1 << 20;
        vm_config.old = 16 << 20;
        vm_config.verify = vm_config.poison = 1;
        vm_config.association = setting % 4;
        vm_config.barrier = setting % 3;
        vm_config.collect_every = setting == 11 ? 1 : 0;
        vm = larder_vm_create(&vm_config, &host, why, sizeof why);
        if (!vm)
            fail("%s", why);
        Thread *thread = larder_vm_attach(vm);
        CHECK(thread);
        handles_and_weak_references(thread);
        tags_and_old_objects(thread);
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
    CHECK(begun == ended && begun > 0);
    vm_config.young = 1000;
    CHECK(!larder_vm_create(&vm_config, &host, why, sizeof why));
    CHECK(!strcmp(why, "the young generation must have at least 256 KiB"));
    CHECK(!larder_vm_create(&vm_config, &host, why, 5) && !strcmp(why, "the "));
    return 0;
}
