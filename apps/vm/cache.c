/*
 * cache - a cache whose old entries are replaced all the time.
 *
 * usage: cache [OPTIONS] [OPERATIONS [ENTRIES]]
 *
 * A table of ENTRIES lists, shared out among the threads, lives in the old generation. Each operation looks an entry up and
 * checks it; one in four replaces it by a new one with a payload of its own, so that old objects refer to young ones all the
 * time, and old entries die old.
 */
#include "vm.h"

static long operations = 2000000, entries = 20000;

/* The table is cut into parts of SLOTS references. An entry has references to its value and to the entry that it replaced
 * last time, which is cut off behind that. */
enum { SLOTS = 512 };

static long part_of(long entry) {
    return entry / SLOTS;
}

static uint64_t stamp(long entry, uint64_t version) {
    return mixed(entry * UINT64_C(1000003) + version);
}

static Ref new_entry(Thread *thread, long entry, uint64_t version) {
    ROOTS(thread, 1);
    size_t words = 2 + stamp(entry, version) % 24;
    root[0] = make(thread, 0, words, stamp(entry, version));
    for (size_t i = 1; i < words; i++)
        *word_of(root[0], i) = stamp(entry, version) + i;
    Ref fresh = make(thread, 2, 2, entry);
    *word_of(fresh, 1) = version;
    set(thread, fresh, 0, root[0]);
    DONE(thread);
    return fresh;
}

/* Checks an entry and returns its version. No safepoint. */
static uint64_t check(Ref at, long entry) {
    uint64_t version = *word_of(at, 1);
    if (*word_of(at, 0) != (uint64_t)entry)
        fail("entry %ld became %" PRIu64, entry, *word_of(at, 0));
    Ref value = get(at, 0);
    size_t words = 2 + stamp(entry, version) % 24;
    if (*(uintptr_t *)value >> 32 != 8 * (1 + words) || *word_of(value, 0) != stamp(entry, version))
        fail("the value of entry %ld is another one's", entry);
    for (size_t i = 1; i < words; i++)
        if (*word_of(value, i) != stamp(entry, version) + i)
            fail("the value of entry %ld has changed", entry);
    return version;
}

static uint64_t use(Thread *thread, long number) {
    uint64_t random = number, sum = 0;
    long mine = entries / vm_threads, first = number * mine;
    ROOTS(thread, 1);
    for (long i = 0; i < operations / vm_threads; i++) {
        larder_vm_poll(thread);
        uint64_t r = random_next(&random);
        /* Some entries are looked up much more often than others. */
        long entry = first + (long)(r % 8 ? (r >> 8) % (mine / 16 + 1) : (r >> 8) % mine);
        root[0] = get(vm_global[0], part_of(entry));
        uint64_t version = check(get(root[0], entry % SLOTS), entry);
        if (r >> 60 < 4) {
            Ref fresh = new_entry(thread, entry, version + 1);
            Ref old = get(root[0], entry % SLOTS);
            set(thread, fresh, 1, old);
            set(thread, old, 1, 0);
            set(thread, root[0], entry % SLOTS, fresh);
        }
    }
    for (long entry = first; entry < first + mine; entry++)
        sum += mixed(entry) ^ check(get(get(vm_global[0], part_of(entry)), entry % SLOTS), entry);
    DONE(thread);
    return sum;
}

int main(int argc, char **argv) {
    int left = vm_begin(argc, argv);
    if (left > 1)
        operations = vm_number("OPERATIONS", argv[1], 1, 2000000000);
    if (left > 2)
        entries = vm_number("ENTRIES", argv[2], 1000, 10000000);
    Thread *thread = larder_vm_attach(vm);
    vm_global[0] = make(thread, part_of(entries) + 1, 0, 0);
    for (long part = 0; part <= part_of(entries); part++) {
        Ref slots = make(thread, SLOTS, 0, 0);
        set(thread, vm_global[0], part, slots);
    }
    for (long entry = 0; entry < entries; entry++) {
        Ref fresh = new_entry(thread, entry, 0);
        set(thread, get(vm_global[0], part_of(entry)), entry % SLOTS, fresh);
    }
    larder_vm_detach(thread);
    return vm_end("cache", vm_in_threads(use), operations);
}
