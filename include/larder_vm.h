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
 * Objects. What an object looks like is yours to say (larder_vm_host). Of one of its first two words, the forwarding word, the lowest bit is
 * never set while it lives: the heap keeps there where a copied object went.
 *
 * Safepoints. An object may move while its thread is in a function that says "safepoint". An address that is needed after
 * one lives in a slot that the heap knows: an object's, a frame's, a handle.
 *
 * Threads. A thread attaches before it touches the heap, and detaches before it ends. A larder_vm_thread is used by the
 * thread that attached, only. A thread that may wait, for a lock or input, does so in larder_vm_blocking, or collections
 * wait for it. One that is attached to several heaps waits at each one's safepoints, too: it allocates in one in a blocking region of the
 * others, or two threads that collect both heaps may wait for one another.
 * Nothing here may be called in a signal handler, nor in a child of fork, but for one of larder_vm_fork.
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
 * The first two words are the thread's buffer. Where buffers belong to others it is never open.
 */
typedef struct larder_vm_thread larder_vm_thread;
struct larder_vm_thread {
    uintptr_t frontier;
    uintptr_t limit;
    uintptr_t reserved[6];
    uint32_t status;          /* not 0: call larder_vm_poll_slow */
    uint32_t barrier;         /* enum larder_vm_barrier */
    larder_vm_frame *frames;  /* the newest */
    uintptr_t card_bias;      /* the card of a slot is the byte at this plus slot >> 9; 1 is dirty */
    const struct larder_vm_sequence *sequence; /* for buffers of processors; its `indices` are 0 while processors have none */
    uintptr_t *rseq_cs;              /* the same for this thread, by address: where to arm, */
    const volatile uint32_t *index;  /* the index, */
    uintptr_t base;                  /* and the buffer of index 0; while processors have none, one that is never open */
};

enum larder_vm_barrier {
    LARDER_VM_CONDITIONAL_CARDS = 0,  /* mark the slot's card if it is not marked */
    LARDER_VM_CARDS = 1,              /* mark it always */
    LARDER_VM_STORE_BUFFER = 2        /* note the slot's address */
};

/* Whom allocation buffers belong to: those of the young generation, and those of the old one for what is old from the beginning. */
enum larder_vm_association {
    LARDER_VM_BY_CONCURRENCY_ID = 0,  /* as many as threads run at once. Where the host has `flipped`, threads have their own while they are few,
                                         which costs fewer instructions: four for each CPU at most, or as many as take a sixteenth of the young
                                         generation */
    LARDER_VM_BY_THREAD = 1,          /* one for each thread */
    LARDER_VM_BY_CPU = 2,
    LARDER_VM_FLIP = 3,               /* threads, or concurrency ids where threads leave too much unused */
    LARDER_VM_FLIP_TO_CPU = 4,        /* threads, or CPUs */
    LARDER_VM_BY_NOBODY = 5,          /* there are none: objects come one by one from the lowest level, which there must be */
    LARDER_VM_ALWAYS_BY_ID = 6        /* concurrency ids, however few the threads are */
};

/* What happens where less of the young generation is left than buffers would take. */
enum larder_vm_near_end {
    LARDER_VM_SHRINK = 0,  /* buffers get smaller, so that everybody gets some of the rest */
    LARDER_VM_SINGLY = 1   /* they do not; who gets none allocates object by object. Collects far more often with many threads */
};

/*
 * Who shares larger buffers, between those of the association and the young generation: threads of these CPUs refill theirs from one.
 * There can be several such levels, each wider than the one below: cores and packages, say. (Nodes and caches are wider than one
 * another on different machines, and may be anywhere.)
 */
enum larder_vm_level {
    LARDER_VM_NO_LEVEL = 0,
    LARDER_VM_CORE = 1,     /* hardware threads of a core */
    LARDER_VM_CACHE = 2,    /* CPUs with one last-level cache */
    LARDER_VM_PACKAGE = 3,
    LARDER_VM_NODE = 4,
    LARDER_VM_PROCESS = 5   /* all */
};

/* How the sizes of a level's buffers follow what happens. */
enum larder_vm_sizing {
    LARDER_VM_FIXED = 0,     /* not at all */
    LARDER_VM_ADAPTIVE = 1,  /* half again as large at each refill, half as large at each collection */
    LARDER_VM_BY_SHARE = 2   /* by the buffer's share of what all of the level allocate */
};

/* The most levels. */
enum { LARDER_VM_LEVELS = 3 };

/* Whom they belong to at the moment. */
enum larder_vm_way { LARDER_VM_THREADS = 0, LARDER_VM_PROCESSORS = 1 };

enum larder_vm_kind { LARDER_VM_YOUNG = 0, LARDER_VM_FULL = 1 };

enum larder_vm_keep {
    LARDER_VM_STRONG = 0,
    LARDER_VM_WEAK = 1,    /* reads as 0 when the object has died */
    LARDER_VM_PINNED = 2   /* strong, and the object is not moved */
};

/* Given to `scan`, which calls these with the object's slots, each once. */
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
    /* The object's size in bytes, as it was allocated. `word` is its forwarding word: do not read that from memory. */
    size_t (*size)(void *context, const void *object, uintptr_t word);
    /* Shows the object's slots. Those with addresses outside of [from, to) need not be shown. */
    void (*scan)(void *context, void *object, uintptr_t from, uintptr_t to, larder_vm_visitor *);
    /* Shows roots outside of the heap, by `slots`, each once, and none that a linked frame has. May be null. */
    void (*roots)(void *context, larder_vm_visitor *);
    /* A collection begins, or ends, with the world stopped. `kind` is enum larder_vm_kind. May be null. */
    void (*before)(void *context, int kind);
    void (*after)(void *context, int kind);
    /* Allocation buffers belong to others now, with the world stopped (LARDER_VM_BY_CONCURRENCY_ID, when threads have become many or few; LARDER_VM_FLIP;
     * while a thread is attached, and in the child of a fork, too). `way` is
     * enum larder_vm_way. Time to take functions from larder_vm_get_functions anew, and to change the calls in generated code:
     * the old ones stay right, and are slow. May be null. */
    void (*flipped)(void *context, int way);
    /* Offset in bytes of the forwarding word: 0, or 8 where your objects begin with a word that is any number. */
    size_t forwarding_word;
} larder_vm_host;

/* larder_vm_default_config fills it in. Sizes in bytes. */
typedef struct larder_vm_config {
    size_t young;          /* the young generation, eden and survivors: at least 256 KiB */
    size_t most_young;     /* how far it may grow; not above `young` fixes it */
    size_t old;            /* the most that old and large objects may take */
    size_t least_old;      /* how large they may become before a collection looks for garbage among them; 0: an eighth of
                              `old`, which keeps memory small. As much as `old`: a fixed size, collected when nearly full */
    size_t buffer;         /* allocation buffers; 0: sizes that adapt, from 4 KiB to 512 KiB */
    int association;       /* enum larder_vm_association */
    int by_share;          /* of sizes that adapt: not 0: by the buffer's share of what all allocate, not by its refills */
    int near_end;          /* enum larder_vm_near_end */
    int level[LARDER_VM_LEVELS];            /* enum larder_vm_level, from below; LARDER_VM_NO_LEVEL from where there are no more */
    int level_sizing[LARDER_VM_LEVELS];     /* enum larder_vm_sizing */
    size_t level_buffer[LARDER_VM_LEVELS];  /* their buffers, or the most where sizes change; 0: 1 MiB, 2 MiB, 4 MiB. Not less than a
                                               buffer below */
    size_t level_least[LARDER_VM_LEVELS];   /* where sizes change: what they begin with, and the least; 0: a quarter of the most */
    int level_refills[LARDER_VM_LEVELS];    /* by share: refills that a buffer should have between two collections; 0: 50 */
    int barrier;           /* enum larder_vm_barrier */
    int collectors;        /* threads that collect, at most 16; 0: as many as CPUs may be used, fewer for little work */
    int tenure;            /* young collections that an object survives before it is old: 1 to 6 */
    int never_collect;     /* the null collector: all of `young` is for allocation, and then there is no more */
    int ambiguous_stacks;  /* look through the threads' stacks for words that may be references; such objects are not moved */
    int verify;            /* look at all of the heap after each collection. Slow */
    int poison;            /* overwrite what is freed, and let full collections move old objects that could stay. Slow */
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
    uint64_t redirected;        /* allocations by a function of the set that was not in use */
    uint64_t flips;             /* times that buffers went from threads to processors, or back */
    uint64_t by_threads;        /* collections that found buffers with threads; */
    uint64_t by_processors;     /* and with processors. (These to partly_used are the columns of VEE'05's table 2) */
    uint64_t transactions;      /* refills of processors' buffers that committed; */
    uint64_t transactions_failed;   /* that met interference; */
    uint64_t transactions_invalid;  /* and of those, that found their buffer changed */
    uint64_t sidelined;         /* buffers kept for the next comer */
    uint64_t sidelined_bytes;
    uint64_t sidelined_unused;  /* of them, what collections discarded */
    uint64_t sidelined_unused_bytes;
    uint64_t partly_used;       /* buffers in which collections found something left, unused_bytes together */
    uint64_t old_buffers;       /* buffers taken in the old generation, for larder_vm_allocate_old */
    uint64_t old_buffer_bytes;
    uint64_t large_objects;
    uint64_t large_bytes;
    uint64_t finalized;
    uint64_t young_bytes;       /* the young generation's size now */
    uint64_t old_bytes;         /* what the old generation has handed out, large objects included */
    uint64_t direct;            /* objects straight from the young generation, because they are too large for a buffer; */
    uint64_t singly;            /* because there was room for them and none for a buffer; */
    uint64_t provided;          /* because the collection that was made for them provided them */
    uint64_t old_direct;        /* the same three, for the old generation */
    uint64_t old_singly;
    uint64_t old_provided;
} larder_vm_stats;

/* Fills in the defaults: 8 MiB young, 256 MiB old, conditional cards, buffers by concurrency id. */
void larder_vm_default_config(larder_vm_config *);

/* A heap, or null; then `error`, if it is not null, holds up to `size` bytes of a line that says why. The host is copied. */
larder_vm *larder_vm_create(const larder_vm_config *, const larder_vm_host *, char *error, size_t size);

/* Ends a heap from which every thread has detached. */
void larder_vm_destroy(larder_vm *);

/* Attaches the calling thread, or returns null when there is no memory for that. Waits while a collection is on, and may itself stop the others to
 * flip the buffers (LARDER_VM_BY_CONCURRENCY_ID): hold nothing that an attached thread waits for outside of a blocking region. */
larder_vm_thread *larder_vm_attach(larder_vm *);
/* Detaches the calling thread. */
void larder_vm_detach(larder_vm_thread *);

/* What the static inline functions call. The first two are safepoints. */
void *larder_vm_allocate_slow(larder_vm_thread *, size_t size);
void larder_vm_poll_slow(larder_vm_thread *);
void larder_vm_after_store(larder_vm_thread *, uintptr_t *slot, uintptr_t value);

/* The longest object that is allocated inline. */
#define LARDER_VM_LARGEST_INLINED 8192

/*
 * The sequence that allocates from the buffer of the processor that the thread runs on, for a compiler that emits it inline; `object`,
 * `next` and `t` are registers. Nothing between the two labels may be left out, added or put in another order:
 *
 *     start:   lea   t, [descriptor]
 *              mov   fs:[rseq_cs], t
 *     begin:   mov   t, dword fs:[index]
 *              cmp   t, indices
 *              jae   slow
 *              shl   t, shift
 *              add   t, base
 *              mov   object, [t + frontier]
 *              lea   next, [object + size]          size: a multiple of 16, at most LARDER_VM_LARGEST_INLINED
 *              cmp   next, [t + limit]
 *              ja    slow
 *              mov   [t + frontier], next
 *     end:
 *
 * The descriptor is 32 bytes, aligned to 32: two words of 4 bytes that are 0, and three of 8: the address of begin, end - begin, and the
 * address of code that jumps to start, before which the 4 bytes 0x53053053 stand. It stays where it is as long as the thread lives. At
 * `slow`, larder_vm_allocate_slow is called: a safepoint, at which the buffers may be flipped (`flipped`).
 */
typedef struct larder_vm_sequence {
    intptr_t rseq_cs; /* these two are offsets from fs:0 */
    intptr_t index;
    uint32_t indices;
    uint32_t shift;
    uintptr_t base;
    size_t frontier;      /* offset of the next free address in a buffer, */
    size_t limit;         /* and of the first address that is not the buffer's: 8 behind the frontier */
    uint32_t association; /* enum larder_vm_association: whom the buffers belong to now. Perhaps not what was asked for: of a flip one side;
                             CPUs where the kernel has no concurrency ids; threads where it has no restartable sequences */
    uint32_t header;      /* bytes of the heap's own before an object: 0. What an object begins with is yours to write */
} larder_vm_sequence;

/*
 * From the processor's buffer: `size` bytes, a multiple of 16, or 0. It is that sequence with what it needs taken from the thread's
 * record, by address, and without the comparison, because the thread's index is always one that has a buffer. Nothing but
 * larder_vm_allocate calls it.
 * Define LARDER_VM_NO_SEQUENCES before including this for code that is unloaded while threads go on that allocated in it, or for
 * another compiler; larder_vm_allocate then calls a function.
 */
#if !defined(LARDER_VM_NO_SEQUENCES) && defined(__GNUC__) && defined(__x86_64__)
#define LARDER_VM_SEQUENCES 1
static inline uintptr_t larder_vm_take_by_processor(const larder_vm_thread *thread, size_t size)
{
    uintptr_t object, next, t;
    __asm__ volatile(
        "2: leaq 7f(%%rip), %[t]\n\t"
        "movq 96(%[thread]), %[next]\n\t"
        "movq %[t], (%[next])\n\t"
        "movq 104(%[thread]), %[next]\n"
        "3: movl (%[next]), %k[t]\n\t"
        "shlq $14, %[t]\n\t"
        "addq 112(%[thread]), %[t]\n\t"
        "movq (%[t]), %[object]\n\t"
        "leaq (%[object],%[size]), %[next]\n\t"
        "cmpq 8(%[t]), %[next]\n\t"
        "ja 6f\n\t"
        "movq %[next], (%[t])\n"
        "4:\n\t"
        ".pushsection __rseq_failure, \"ax\"\n\t"
        ".long 0x53053053\n"
        "5: jmp 2b\n"
        "6: xorl %k[object], %k[object]\n\t"
        "jmp 4b\n\t"
        ".popsection\n\t"
        ".pushsection __rseq_cs, \"aw\"\n\t"
        ".balign 32\n"
        "7: .long 0, 0\n\t"
        ".quad 3b, 4b - 3b, 5b\n\t"
        ".popsection"
        : [object] "=&r"(object), [next] "=&r"(next), [t] "=&r"(t)
        : [thread] "r"(thread), [size] "r"(size)
        : "memory", "cc");
    return object;
}
#endif

/* An object of `size` bytes, zeroed; null when there is no room. Safepoint. Its first words must be such that `size` and
 * `scan` work before the thread's next safepoint. */
static inline void *larder_vm_allocate(larder_vm_thread *thread, size_t size)
{
    if (size - 1 < LARDER_VM_LARGEST_INLINED) {
        size_t whole = (size + 15) & ~(size_t)15;
        uintptr_t object = thread->frontier;
        uintptr_t next = object + whole;
        if (next <= thread->limit) {
            thread->frontier = next;
            return (void *)object;
        }
#ifdef LARDER_VM_SEQUENCES
        object = larder_vm_take_by_processor(thread, whole);
        if (object)
            return (void *)object;
#endif
    }
    return larder_vm_allocate_slow(thread, size);
}

/*
 * Allocation functions, for a class to keep: each allocates objects of one size, as larder_vm_allocate does, and is made for one
 * way of the buffers, so that its fast path asks about neither. Safepoints.
 */
typedef void *(*larder_vm_function)(larder_vm_thread *);

/* The longest object that has a function, in words of 8 bytes. */
#define LARDER_VM_MOST_WORDS 40

/* The function for objects of n words is of_words[n]; of_words[0] is of_words[1]. */
typedef struct larder_vm_functions {
    larder_vm_function of_words[LARDER_VM_MOST_WORDS + 1];
} larder_vm_functions;

/* The heap's table, which lives as long as the heap. It changes when buffers are flipped, at a safepoint of every thread: what reads
 * a function from it for each call is never redirected. */
const larder_vm_functions *larder_vm_get_functions(larder_vm *);

/* Whom buffers belong to at the moment, enum larder_vm_way, and the sequence. Where that is LARDER_VM_PROCESSORS, it is the one above.
 * Where it is LARDER_VM_THREADS, there are no indices, `frontier` and `limit` are offsets into larder_vm_thread, and the first lines of
 * larder_vm_allocate are the sequence. -1: there is none (LARDER_VM_BY_NOBODY). */
int larder_vm_get_sequence(larder_vm *, larder_vm_sequence *);

/* Allocates as larder_vm_allocate in the old generation, for what is known to live long. Safepoint. */
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

/* Links a frame of `count` slots, which are roots until it is unlinked, the newest first. No other frame that is linked has one of them. */
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

/* Asks to be told when an object has died; larder_vm_next_dead then returns it, once, with `token`. What is no address in the heap
 * never dies. */
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
