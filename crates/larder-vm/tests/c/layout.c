/*
 * A host whose objects begin with a word of any value, so that the forwarding word is their second; and one whose middle levels follow each
 * of the policies. Exits with 0 when everything is right.
 */
#include <larder_vm.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "line %d: %s\n", __LINE__, #condition); \
            exit(1); \
        } \
    } while (0)

/* The number has all its bits, the lowest too. The shape: bits 1 to 31 how many references, from 32 on the size. */
typedef struct object { uintptr_t number, shape; struct object *item[]; } object;

static uintptr_t shape_of(size_t items, size_t bytes) { return items << 1 | bytes << 32; }
static size_t items_of(uintptr_t shape) { return (shape & 0xffffffff) >> 1; }

static size_t size_of(void *context, const void *at, uintptr_t shape) {
    (void)context;
    (void)at;
    CHECK(!(shape & 1));
    return shape >> 32;
}

static void scan(void *context, void *at, uintptr_t from, uintptr_t to, larder_vm_visitor *visitor) {
    (void)context;
    (void)from;
    (void)to;
    visitor->slots(visitor, (uintptr_t *)((object *)at)->item, items_of(((object *)at)->shape));
}

/* Odd, even, small and large ones, and some that are addresses in the heap. */
static uintptr_t number_of(long n) { return n % 3 ? (uintptr_t)n * 0x9e3779b97f4a7c15 : (uintptr_t)n << 1 | 1; }

/* Bytes behind the references are of the number, too. */
static object *make(larder_vm_thread *thread, long n, size_t items, int old) {
    size_t bytes = sizeof(object) + 8 * items + n % 50;
    object *made = old ? larder_vm_allocate_old(thread, bytes) : larder_vm_allocate(thread, bytes);
    CHECK(made && !made->number && !made->shape);
    made->number = number_of(n);
    made->shape = shape_of(items, bytes);
    memset((char *)made + bytes - n % 50, (int)n, n % 50);
    return made;
}

static void check(const object *at, long n, size_t items) {
    CHECK(at->number == number_of(n) && items_of(at->shape) == items);
    const unsigned char *end = (const unsigned char *)at + (at->shape >> 32);
    for (long i = 1; i <= n % 50; i++)
        CHECK(end[-i] == (unsigned char)n);
}

enum { LENGTH = 3000 };

/* A list, young and old objects by turns, each of which has a leaf as well; a long object that has all of them. */
static void objects_move(larder_vm_thread *thread) {
    uintptr_t root[3] = {0};
    larder_vm_frame frame;
    larder_vm_link(thread, &frame, root, 3);
    root[1] = (uintptr_t)make(thread, LENGTH, LENGTH, 0);
    for (long n = 0; n < LENGTH; n++) {
        root[2] = (uintptr_t)make(thread, n + 1, 0, n % 7 == 0);
        object *made = make(thread, n, 2, n % 5 == 0);
        larder_vm_store(thread, (uintptr_t *)&made->item[0], root[0]);
        larder_vm_store(thread, (uintptr_t *)&made->item[1], root[2]);
        root[0] = (uintptr_t)made;
        larder_vm_store(thread, (uintptr_t *)&((object *)root[1])->item[n], root[0]);
        /* Garbage between them, without a reference: sixteen bytes are the least that an object has. */
        CHECK(make(thread, 50 * n, 0, 0));
    }
    uint32_t pinned = larder_vm_handle(thread, root[0], LARDER_VM_PINNED);
    for (int round = 0; round < 6; round++) {
        larder_vm_collect(thread, round % 2);
        object *at = (object *)root[0], *all = (object *)root[1];
        CHECK(larder_vm_handle_get(thread, pinned) == root[0]);
        check(all, LENGTH, LENGTH);
        for (long n = LENGTH - 1; n >= 0; n--, at = at->item[0]) {
            CHECK(all->item[n] == at);
            check(at, n, 2);
            check(at->item[1], n + 1, 0);
        }
        CHECK(!at);
    }
    larder_vm_handle_release(thread, pinned);
    larder_vm_unlink(thread);
}

static void the_second_word_forwards(void) {
    for (int setting = 0; setting < 4; setting++) {
        larder_vm_config config;
        larder_vm_default_config(&config);
        config.young = config.most_young = 1 << 20;
        config.old = 16 << 20;
        config.collectors = 1 + setting;
        config.barrier = setting % 3;
        config.verify = config.poison = 1;
        config.collect_every = setting == 3 ? 20 : 0;
        larder_vm_host host = {.size = size_of, .scan = scan, .forwarding_word = 8};
        char why[200];
        larder_vm *vm = larder_vm_create(&config, &host, why, sizeof why);
        CHECK(vm);
        larder_vm_thread *thread = larder_vm_attach(vm);
        objects_move(thread);
        larder_vm_stats stats;
        larder_vm_get_stats(vm, &stats);
        CHECK(stats.moved_objects > LENGTH && stats.compacted_bytes > 0);
        larder_vm_detach(thread);
        larder_vm_destroy(vm);
        host.forwarding_word = 16;
        CHECK(!larder_vm_create(&config, &host, why, sizeof why) && strstr(why, "at 0 or 8"));
        host.forwarding_word = 4;
        CHECK(!larder_vm_create(&config, &host, why, sizeof why));
    }
}

/*
 * How long the next buffer of the level is. Small objects lie one behind the other until the level is given another buffer; an object that
 * does not fit into a thread's buffer, and is too large for one, comes from the young generation then, right behind the level's.
 */
static size_t next_level_buffer(larder_vm_thread *thread) {
    static uintptr_t last;
    uintptr_t at;
    do {
        object *made = larder_vm_allocate(thread, 32);
        CHECK(made);
        made->shape = shape_of(0, 32);
        at = (uintptr_t)made;
        last += 32;
    } while (at == last);
    last = at;
    object *behind = larder_vm_allocate(thread, 8176);
    CHECK(behind);
    behind->shape = shape_of(0, 8176);
    return (uintptr_t)behind - at;
}

static void levels_follow_a_policy(void) {
    /* Sizing, most, least, refills; the first three buffers and the first after a collection, in KiB. */
    static const int settings[][8] = {
        {LARDER_VM_FIXED, 64, 0, 0, 64, 64, 64, 64},
        {LARDER_VM_FIXED, 0, 0, 0, 1024, 1024, 1024, 1024},
        /* Half again as long, in whole buffers of 8 KiB; half as long. */
        {LARDER_VM_ADAPTIVE, 128, 16, 0, 16, 24, 40, 32},
        {LARDER_VM_ADAPTIVE, 128, 0, 0, 32, 48, 72, 56},
        /* All of 2.1 MiB, but no share before: half of it by 8 refills, and by 50. */
        {LARDER_VM_BY_SHARE, 128, 16, 8, 16, 16, 16, 128},
        {LARDER_VM_BY_SHARE, 128, 16, 0, 16, 16, 16, 24},
    };
    larder_vm_config config;
    larder_vm_default_config(&config);
    config.young = config.most_young = 4 << 20;
    config.old = 16 << 20;
    config.verify = 1;
    config.association = LARDER_VM_BY_THREAD;
    config.near_end = LARDER_VM_SINGLY;
    config.buffer = 8 << 10;
    config.level[0] = LARDER_VM_PROCESS;
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        const int *s = settings[i];
        config.level_sizing[0] = s[0];
        config.level_buffer[0] = s[1] << 10;
        config.level_least[0] = s[2] << 10;
        config.level_refills[0] = s[3];
        larder_vm_host host = {.size = size_of, .scan = scan, .forwarding_word = 8};
        larder_vm *vm = larder_vm_create(&config, &host, 0, 0);
        CHECK(vm);
        larder_vm_thread *thread = larder_vm_attach(vm);
        for (int n = 4; n < 8; n++) {
            for (long i = 0; n == 7 && s[0] == LARDER_VM_BY_SHARE && i < 1 << 16; i++)
                ((object *)larder_vm_allocate(thread, 32))->shape = shape_of(0, 32);
            if (n == 7)
                larder_vm_collect(thread, LARDER_VM_YOUNG);
            size_t kib = next_level_buffer(thread) >> 10;
            if (kib != (size_t)s[n]) {
                fprintf(stderr, "setting %zu: buffer %d is %zu KiB, not %d\n", i, n - 3, kib, s[n]);
                exit(1);
            }
        }
        larder_vm_detach(thread);
        larder_vm_destroy(vm);
    }
    char why[200];
    larder_vm_host host = {.size = size_of, .scan = scan};
    config.level_sizing[0] = LARDER_VM_FIXED;
    config.level_refills[0] = 0;
    CHECK(!larder_vm_create(&config, &host, why, sizeof why) && strstr(why, "sizes that change"));
    config.level_sizing[0] = 3;
    CHECK(!larder_vm_create(&config, &host, why, sizeof why) && strstr(why, "0 to 2"));
    config.level_sizing[0] = LARDER_VM_ADAPTIVE;
    config.level_refills[0] = 5;
    CHECK(!larder_vm_create(&config, &host, why, sizeof why) && strstr(why, "by share"));
    config.level_sizing[0] = LARDER_VM_BY_SHARE;
    config.level_refills[0] = -5;
    CHECK(!larder_vm_create(&config, &host, why, sizeof why) && strstr(why, "negative"));
    config.level_refills[0] = 5;
    config.level_least[0] = 256 << 10;
    CHECK(!larder_vm_create(&config, &host, why, sizeof why) && strstr(why, "above level_buffer"));
    config.level[0] = LARDER_VM_NO_LEVEL;
    CHECK(!larder_vm_create(&config, &host, why, sizeof why) && strstr(why, "no level"));
}

/* What a compiler would emit for buffers of threads, by nothing but the numbers. */
static void the_sequence_of_threads_is_data(void) {
    larder_vm_config config;
    larder_vm_default_config(&config);
    config.association = LARDER_VM_BY_THREAD;
    larder_vm_host host = {.size = size_of, .scan = scan, .forwarding_word = 8};
    larder_vm *vm = larder_vm_create(&config, &host, 0, 0);
    CHECK(vm);
    larder_vm_thread *thread = larder_vm_attach(vm);
    larder_vm_sequence sequence;
    CHECK(larder_vm_get_sequence(vm, &sequence) == LARDER_VM_THREADS);
    CHECK(sequence.association == LARDER_VM_BY_THREAD && sequence.indices == 0);
    uintptr_t *frontier = (uintptr_t *)((char *)thread + sequence.frontier);
    uintptr_t *limit = (uintptr_t *)((char *)thread + sequence.limit);
    long fast = 0;
    for (long n = 0; n < 1000; n++) {
        uintptr_t at = *frontier;
        if (at + 32 <= *limit) {
            *frontier = at + 32;
            at += sequence.header;
            fast++;
        } else
            at = (uintptr_t)larder_vm_allocate_slow(thread, 32);
        object *made = (object *)at;
        CHECK(made && !made->number && !made->shape);
        made->number = number_of(n);
        made->shape = shape_of(2, 32);
    }
    CHECK(fast > 900);
    larder_vm_detach(thread);
    larder_vm_destroy(vm);
}

int main(void) {
    the_second_word_forwards();
    levels_follow_a_policy();
    the_sequence_of_threads_is_data();
    return 0;
}
