/*
 * stores - nothing but stores of references into old objects, by threads that store near one another.
 *
 * usage: stores [OPTIONS] [STORES]
 *
 * One old object of SLOTS references; thread t stores into the slots t, t + threads, ..., again and again, STORES in all. So the
 * cards of all threads' stores share cache lines, as the slots do where the threads are neighbours: what the barrier adds is
 * the difference between settings of --barrier, and between these and `--barrier none`, which leaves it out.
 */
#include "vm.h"

static long stores = 20000000;
static int without;

/* 32 KiB: what one cache line of cards covers. Each thread has whole cache lines of slots. */
enum { SLOTS = 4096, LINE = 8 };

static uint64_t run(Thread *thread, long number) {
    long rounds = stores / vm_threads / (SLOTS / vm_threads);
    for (long round = 0; round < rounds; round++) {
        Ref into = vm_global[0], value = vm_global[1];
        for (long line = number; line < SLOTS / LINE; line += vm_threads)
            for (long i = line * LINE; i < (line + 1) * LINE; i++) {
                if (without)
                    *(volatile uintptr_t *)slot_of(into, i) = value;
                else
                    set(thread, into, i, value);
            }
        larder_vm_poll(thread);
    }
    return rounds;
}

int main(int argc, char **argv) {
    for (int i = 1; i + 1 < argc; i++)
        if (!strcmp(argv[i], "--barrier") && !strcmp(argv[i + 1], "none")) {
            without = 1;
            argv[i + 1] = "conditional";
        }
    int left = vm_begin(argc, argv);
    if (left > 1)
        stores = vm_number("STORES", argv[1], 1000000, 2000000000000);
    Thread *thread = larder_vm_attach(vm);
    vm_global[1] = make(thread, 0, 1, 17);
    uintptr_t *into = larder_vm_allocate_old(thread, 8 * (1 + SLOTS));
    into[0] = header(SLOTS, 8 * (1 + SLOTS));
    vm_global[0] = (Ref)into;
    larder_vm_detach(thread);
    vm_in_threads(run);
    thread = larder_vm_attach(vm);
    /* Without a barrier the heap could not know of these references, were the value still young. */
    if (!without)
        larder_vm_collect(thread, LARDER_VM_YOUNG);
    for (long i = 0; i < SLOTS; i++)
        if (get(vm_global[0], i) != vm_global[1] || *word_of(get(vm_global[0], i), 0) != 17)
            fail("slot %ld is not what was stored", i);
    larder_vm_detach(thread);
    return vm_end("stores", mixed(SLOTS), stores);
}
