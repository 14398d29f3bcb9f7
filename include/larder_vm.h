/*
 * larder_vm.h: a generational heap that moves objects, for language implementers.
 *
 * Link with -llarder_vm. x86-64 Linux.
 *
 * The host, which is your program, says where references are in an object; the heap finds what is reachable, moves it, and
 * updates the references. docs/porting.md leads through it.
 *
 * References. A slot is an aligned word. It holds 0, the address of an object's first byte with any of its lowest three bits
 * set (they are yours, and stay), or a word that is no address in the heap. Objects begin at multiples of 16.
 *
 * Objects. The first word of an object is yours while it lives, but for its lowest bit, which is never set: the heap keeps
 * there where a copied object went.
 *
 * Safepoints. An object may move while its thread is in a function that says "safepoint". An address that is needed after
 * one lives in a slot that the heap knows: an object's, a frame's, a handle.
 *
 * Threads. A thread attaches before it touches the heap, and detaches before it ends. A larder_vm_thread is used by the
 * thread that attached, only. A thread that may wait, for a lock or input, does so in larder_vm_blocking, or collections
 * wait for it. Nothing here may be called in a signal handler, nor in a child of fork, but for one of larder_vm_fork.
 *
 * Errors. Memory that is exhausted is a null pointer. Misuse that is noticed stops the process with one line on standard
 * error.
 */
#ifndef LARDER_VM_H
#define LARDER_VM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct larder_vm larder_vm;

/* A frame of a thread's shadow stack: slots of yours that are roots while the frame is linked. */
typedef struct larder_vm_frame {
    struct larder_vm_frame *previous;
    size_t count;
    uintptr_t *slots;
} larder_vm_frame;

/*
 * What the heap knows of a thread, as far as it is published: a compiler may inline what reads these words. The functions
 * below that are static inline are the sequences.
 *
 * The first two words are the thread's buffer. Where buffers belong to others it is never open, and the sequence calls.
 */
typedef struct larder_vm_thread {
    uintptr_t frontier;
    uintptr_t limit;
    uintptr_t reserved[6];
    uint32_t status;          /* not 0: call larder_vm_poll_slow */
    uint32_t barrier;         /* enum larder_vm_barrier */
    larder_vm_frame *frames;  /* the newest */
    uintptr_t card_bias;      /* the card of a slot is the byte at this plus slot >> 9; 1 is dirty */
} larder_vm_thread;

enum larder_vm_barrier {
    LARDER_VM_CONDITIONAL_CARDS = 0,  /* mark the slot's card if it is not marked */
    LARDER_VM_CARDS = 1,              /* mark it always */
    LARDER_VM_STORE_BUFFER = 2        /* note the slot's address */
};

/* Whom allocation buffers belong to. */
enum larder_vm_association {
    LARDER_VM_BY_CONCURRENCY_ID = 0,  /* as many as threads run at once */
    LARDER_VM_BY_THREAD = 1,          /* one for each thread; allocation can be inlined */
    LARDER_VM_BY_CPU = 2,
    LARDER_VM_FLIP = 3                /* threads, or concurrency ids where threads leave too much unused */
};

enum larder_vm_kind { LARDER_VM_YOUNG = 0, LARDER_VM_FULL = 1 };

enum larder_vm_keep {
    LARDER_VM_STRONG = 0,
    LARDER_VM_WEAK = 1,    /* reads as 0 when the object has died */
    LARDER_VM_PINNED = 2   /* strong, and the object is not moved */
};

/* Given to `scan`, which calls these with the object's slots. */
typedef struct larder_vm_visitor {
    void (*slots)(struct larder_vm_visitor *, uintptr_t *first, size_t count);
    /* Set to 0 when the referent has died. */
    void (*weak)(struct larder_vm_visitor *, uintptr_t *slot);
    /* The value is kept while the key is kept by something else. */
    void (*ephemeron)(struct larder_vm_visitor *, uintptr_t *key, uintptr_t *value);
} larder_vm_visitor;

/*
 * What the host supplies. `size` and `scan` run in a stopped world on several threads at once; they read nothing but the
 * object and memory outside of the heap, and call nothing of this header but the visitor.
 */
typedef struct larder_vm_host {
    void *context; /* given to each function */
    /* The object's size in bytes, as it was allocated. `word` is its first word: do not read that from memory. */
    size_t (*size)(void *context, const void *object, uintptr_t word);
    /* Shows the object's slots. Those with addresses outside of [from, to) need not be shown. */
    void (*scan)(void *context, void *object, uintptr_t from, uintptr_t to, larder_vm_visitor *);
    /* Shows roots outside of the heap, by `slots`. May be null. */
    void (*roots)(void *context, larder_vm_visitor *);
    /* A collection begins, or ends, with the world stopped. `kind` is enum larder_vm_kind. May be null. */
    void (*before)(void *context, int kind);
    void (*after)(void *context, int kind);
} larder_vm_host;

/* larder_vm_default_config fills it in. Sizes in bytes. */
typedef struct larder_vm_config {
    size_t young;          /* the young generation, both halves: at least 256 KiB */
    size_t most_young;     /* how far it may grow; not above `young` fixes it */
    size_t old;            /* the most that old and large objects may take */
    size_t buffer;         /* allocation buffers; 0: sizes that adapt, from 4 KiB to 512 KiB */
    int association;       /* enum larder_vm_association */
    int barrier;           /* enum larder_vm_barrier */
    int collectors;        /* threads that collect, at most 16; 0: as many as CPUs may be used, fewer for little work */
    int tenure;            /* young collections that an object survives before it is old: 1 to 6 */
    int never_collect;     /* the null collector: all of `young` is for allocation, and then there is no more */
    int ambiguous_stacks;  /* look through the threads' stacks for words that may be references; such objects are not moved */
    int verify;            /* look at all of the heap after each collection. Slow */
    int poison;            /* overwrite what is freed. Slow */
    int collect_every;     /* collect at every so many-th slow allocation; 0: when it is due. Slow */
} larder_vm_config;

/* What a heap has done. Times in nanoseconds, sizes in bytes. */
typedef struct larder_vm_stats {
    uint64_t young_collections;
    uint64_t full_collections;
    uint64_t pause_ns;          /* time in which collections stopped the program */
    uint64_t longest_pause_ns;
    uint64_t stopping_ns;       /* of pause_ns: until every thread stood */
    uint64_t copying_ns;        /* of pause_ns: copying */
    uint64_t compacting_ns;     /* of pause_ns: marking and compacting */
    uint64_t copied_bytes;      /* within the young generation */
    uint64_t promoted_bytes;
    uint64_t moved_objects;     /* copied or promoted */
    uint64_t compacted_bytes;
    uint64_t marked_bytes;
    uint64_t dirty_cards;
    uint64_t kept_blocks;       /* that pinned objects kept where they were, summed over collections */
    uint64_t buffers;           /* allocation buffers taken */
    uint64_t buffer_bytes;
    uint64_t unused_bytes;      /* of buffer_bytes, what collections found unused */
    uint64_t large_objects;
    uint64_t large_bytes;
    uint64_t finalized;
    uint64_t young_bytes;       /* the young generation's size now */
    uint64_t old_bytes;         /* what the old generation has handed out, large objects included */
} larder_vm_stats;

/* Fills in the defaults: 8 MiB young, 256 MiB old, conditional cards, buffers by concurrency id. */
void larder_vm_default_config(larder_vm_config *);

/* A heap, or null; then `error`, if it is not null, holds up to `size` bytes of a line that says why. The host is copied. */
larder_vm *larder_vm_create(const larder_vm_config *, const larder_vm_host *, char *error, size_t size);

/* Ends a heap from which every thread has detached. */
void larder_vm_destroy(larder_vm *);

/* Attaches the calling thread, or returns null when there is no memory for that. Waits while a collection is on. */
larder_vm_thread *larder_vm_attach(larder_vm *);
/* Detaches the calling thread. */
void larder_vm_detach(larder_vm_thread *);

/* What the static inline functions call. The first two are safepoints. */
void *larder_vm_allocate_slow(larder_vm_thread *, size_t size);
void larder_vm_poll_slow(larder_vm_thread *);
void larder_vm_after_store(larder_vm_thread *, uintptr_t *slot, uintptr_t value);

/* The longest object that is allocated inline. */
#define LARDER_VM_LARGEST_INLINED 8192

/* An object of `size` bytes, zeroed; null when there is no room. Safepoint. Its first words must be such that `size` and
 * `scan` work before the thread's next safepoint. */
static inline void *larder_vm_allocate(larder_vm_thread *thread, size_t size)
{
    if (size - 1 < LARDER_VM_LARGEST_INLINED) {
        uintptr_t object = thread->frontier;
        uintptr_t next = object + ((size + 15) & ~(size_t)15);
        if (next <= thread->limit) {
            thread->frontier = next;
            return (void *)object;
        }
    }
    return larder_vm_allocate_slow(thread, size);
}

/* The same in the old generation, for what is known to live long. Safepoint. */
void *larder_vm_allocate_old(larder_vm_thread *, size_t size);

/* What must follow a store of a reference into an object, unless larder_vm_allocate returned that since the thread's last
 * safepoint. (Not larder_vm_allocate_old: such an object is old at once.) */
static inline void larder_vm_barrier(larder_vm_thread *thread, uintptr_t *slot, uintptr_t value)
{
    volatile uint8_t *card = (volatile uint8_t *)(thread->card_bias + ((uintptr_t)slot >> 9));
    if (thread->barrier == LARDER_VM_STORE_BUFFER)
        larder_vm_after_store(thread, slot, value);
    else if (thread->barrier == LARDER_VM_CARDS || *card != 1)
        *card = 1;
}

/* Stores a reference into an object's slot. */
static inline void larder_vm_store(larder_vm_thread *thread, uintptr_t *slot, uintptr_t value)
{
    *(volatile uintptr_t *)slot = value;
    larder_vm_barrier(thread, slot, value);
}

/* Stands still if a collection wants that: for loops that do not allocate. Safepoint. */
static inline void larder_vm_poll(larder_vm_thread *thread)
{
    if (*(volatile uint32_t *)&thread->status != 0)
        larder_vm_poll_slow(thread);
}

/* Links a frame of `count` slots, which are roots until it is unlinked, the newest first. */
static inline void larder_vm_link(larder_vm_thread *thread, larder_vm_frame *frame, uintptr_t *slots, size_t count)
{
    frame->previous = thread->frames;
    frame->count = count;
    frame->slots = slots;
    thread->frames = frame;
}

static inline void larder_vm_unlink(larder_vm_thread *thread)
{
    thread->frames = thread->frames->previous;
}

/* Runs `f`, which does not touch the heap and may wait. Safepoint. */
void *larder_vm_blocking(larder_vm_thread *, void *(*f)(void *), void *argument);

/* Forks by `f(argument)`, or by fork() where `f` is null, and returns what that does. In the child the heap is as it was and
 * the calling thread its only one. A process with several heaps forks one in the `f` of another. Safepoint. */
int larder_vm_fork(larder_vm_thread *, int (*f)(void *), void *argument);

/* Collects; `kind` is enum larder_vm_kind. Safepoint. */
void larder_vm_collect(larder_vm_thread *, int kind);

/* Roots that belong to no thread. `keep` is enum larder_vm_keep. */
uint32_t larder_vm_handle(larder_vm_thread *, uintptr_t reference, int keep);
uintptr_t larder_vm_handle_get(larder_vm_thread *, uint32_t handle);
void larder_vm_handle_set(larder_vm_thread *, uint32_t handle, uintptr_t reference);
void larder_vm_handle_release(larder_vm_thread *, uint32_t handle);

/* Asks to be told when an object has died; larder_vm_next_dead then returns it, once, with `token`. */
void larder_vm_watch(larder_vm_thread *, uintptr_t object, uintptr_t token);
/* The next watched object that has died, or 0. Weak references to it were cleared; it is an ordinary object from now on. */
uintptr_t larder_vm_next_dead(larder_vm_thread *, uintptr_t *token);

/* Adds a readable, aligned range outside of the heap, for as long as the heap lives, whose words may be references to objects
 * or into them. Such objects are kept, and not moved. */
void larder_vm_add_ambiguous(larder_vm *, const void *from, const void *to);

void larder_vm_get_stats(larder_vm *, larder_vm_stats *);

#ifdef __cplusplus
}
#endif
#endif
