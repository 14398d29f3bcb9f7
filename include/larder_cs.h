/*
 * larder_cs.h: restartable critical sections on per-CPU memory.
 *
 * Link with -llarder_cs. x86-64 Linux; kernel 5.10 and glibc 2.35 for sequences, any other by short locks (csMode says
 * which).
 *
 * A transaction runs ordinary code between begin and commit. A commit is a conditional store: it stores only if no other
 * transaction began on the same index (CPU) since this one did, and the thread is on that index. After a commit that
 * succeeded the transaction stays open, so commits can be chained; every prefix of the chain must be a consistent state.
 * Being preempted, sleeping in a system call, or moving to another CPU and back does not fail a transaction by itself.
 *
 *     int cpu;
 *     do {
 *         cpu = csBegin();
 *     } while (csST64C(&hits[cpu].n, hits[cpu].n + 1) != 0);
 *     csEnd();
 *
 * Nothing is excluded while the body runs, so it may read values that do not belong together before its commit fails. Words
 * that are shared are read whole (declare them volatile or _Atomic), memory that is reachable stays mapped, and a long loop
 * asks csValid.
 *
 * Who may call: any thread, and signal handlers. Without sequences a handler must not leave by longjmp, and a thread must
 * not be cancelled asynchronously. A child of fork may go on. A child of vfork must not call anything here.
 * Nothing here allocates by malloc, locks across a body, or changes errno unless it says so.
 *
 * Words that the one-shot operations (csxAdd64, csxPush, csxPop) write do not invalidate transactions; a transaction commits
 * to such a word by a compare form only.
 */
#ifndef LARDER_CS_H
#define LARDER_CS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What commits return. */
enum {
    CS_STORED = 0,
    CS_INTERFERED = 1, /* another transaction began on the index, or the thread is elsewhere: nothing was stored */
    CS_MISMATCH = 2    /* the transaction holds, but the word is another one: nothing was stored */
};

/* How a domain works in this process. */
enum cs_mode {
    CS_LOCKS = 0,           /* no sequences here: a lock covers each begin and each commit, never a body */
    CS_CPUS = 1,            /* sequences, indices are CPUs */
    CS_CONCURRENCY_IDS = 2  /* sequences, indices are the kernel's mm_cid: as many as threads run at once */
};

/* Counts since the domain was made. Exact when no transaction is under way. */
struct cs_statistics {
    uint64_t begun;      /* transactions, reopened ones included */
    uint64_t succeeded;  /* ended without having met interference */
    uint64_t failed;     /* a commit met interference */
    uint64_t reopened;   /* begun by a reopen */
    uint64_t invalid;    /* given up by an invalidate */
    uint64_t abandoned;  /* left open: a begin inside, a reopen, an invalidate */
    uint64_t taken_over; /* take-overs */
    uint64_t by_lock;    /* operations that were done under a lock */
};

/*
 * The paper's interface. The open transaction belongs to the thread; there is one domain for the process.
 *
 * csBegin inside an open transaction (in a called function, in a signal handler) opens a new one in its place, and csEnd
 * leaves none open: the outer transaction is invalid after that, never silently valid. So a handler that calls csBegin calls
 * csEnd or csInvalidate before it returns.
 */
int csBegin(void);       /* begin; returns the index, a CPU or one of a few more, below csIndices() */
int csValid(void);       /* not 0 while it holds; a hint, true a moment ago */
void csEnd(void);        /* end normally */
void csInvalidate(void); /* give it up; counted as invalid */
int csReopen(void);      /* begin anew after interference; 0 if the index is the same as before */

/* Attempt a store. 0 if it was made, CS_INTERFERED (the transaction is over then), or CS_MISMATCH (it is still open). */
int csST32C(void *addr, int32_t val);
int csCAS32C(int32_t new_value, int32_t old_value, void *addr);
int csST64C(void *addr, int64_t val);
int csCAS64C(int64_t new_value, int64_t old_value, void *addr);
/* Compares 16 bytes and stores 16; addr is a multiple of 16. */
int csCAS128C(const uint64_t new_value[2], const uint64_t old_value[2], void *addr);

/*
 * Takes an index over, the way out for a body that fails again and again (64 times, say): f runs while the index is closed, so that
 * what your tables have for it is f's alone; transactions that are open there fail. Costs, returns and masks what csxTakeOver does.
 */
int csTakeOver(int index, void (*f)(void *argument), void *argument);

int csIndices(void);                       /* how many different indices csBegin may return: the length of your tables */
int csMode(void);                          /* an enum cs_mode */
void csStatistics(struct cs_statistics *into);

/* How often the kernel aborted a sequence, which was started over: of this process, all domains together. */
struct cs_restarts {
    char name[32]; /* of the sequence, ends with a zero */
    uint64_t count;
};
/* Fills the first `room` of `into`, one for each sequence; returns how many sequences there are. */
unsigned csRestarts(struct cs_restarts *into, unsigned room);

/*
 * The extended interface: domains and handles.
 *
 * A domain has one area of so many bytes for each index, all zero in the beginning, mapped when the index is first used.
 * Transactions on different domains do not interfere, so a body may use another structure. A handle carries the domain, the
 * index and the token; it may be given to another function, and an inner transaction on the same domain and index is
 * noticed exactly.
 */
typedef struct cs_domain cs_domain;

/* Its fields are the library's; csxBegin returns the index, csxHere the area. */
typedef struct {
    const cs_domain *domain;
    intptr_t rseq_cs;
    void *area;
    intptr_t index_word;
    uint64_t token;
    uint64_t index;
} cs_handle;

enum cs_by {
    CS_BY_CPU = 0,
    CS_BY_CONCURRENCY_ID = 1 /* CPUs before Linux 6.3 */
};

/* NULL and errno on failure (EINVAL, ENOMEM). Not for signal handlers. */
cs_domain *csxCreate(int by, size_t bytes);
/* Nobody uses the domain any more. NULL is allowed. */
void csxDestroy(cs_domain *domain);
unsigned csxIndices(const cs_domain *domain);
/* The area of an index below csxIndices: aligned to 64, as long as the domain lives. */
void *csxArea(const cs_domain *domain, unsigned index);
int csxMode(const cs_domain *domain);
void csxStatistics(const cs_domain *domain, struct cs_statistics *into);

unsigned csxBegin(const cs_domain *domain, cs_handle *handle); /* returns the index */
/* The area that the transaction works on. */
static inline void *csxHere(const cs_handle *handle) { return handle->area; }
int csxValid(const cs_handle *handle);
void csxEnd(cs_handle *handle);
void csxInvalidate(cs_handle *handle);
int csxReopen(cs_handle *handle); /* 0 if the index is the same as before */

int csxST32(cs_handle *handle, void *addr, int32_t val);
int csxCAS32(cs_handle *handle, int32_t new_value, int32_t old_value, void *addr);
int csxST64(cs_handle *handle, void *addr, int64_t val);
int csxCAS64(cs_handle *handle, int64_t new_value, int64_t old_value, void *addr);
int csxCAS128(cs_handle *handle, const uint64_t new_value[2], const uint64_t old_value[2], void *addr);

/* One-shot operations on the current index's area, at this offset (a multiple of 8). */
void csxAdd64(const cs_domain *domain, size_t offset, int64_t value);
/* A list whose head is the word at the offset; a node's first word is the next node's address. Nodes in the list stay
 * readable; what csxPop returned (NULL when the list is empty) is the caller's. */
void csxPush(const cs_domain *domain, size_t offset, void *node);
void *csxPop(const cs_domain *domain, size_t offset);

/*
 * Takes an index's area over: closes it, aborts what is under way there, makes open transactions fail, calls f with the area,
 * and opens it again. Meanwhile the area is f's alone; other threads use another index, and signals are masked.
 * 0, EINVAL (no such index), or EBUSY (the calling thread holds a lock of a domain itself, so it may not wait). Costs some
 * tens of microseconds.
 */
int csxTakeOver(const cs_domain *domain, unsigned index, void (*f)(void *area, void *argument), void *argument);

#ifdef __cplusplus
}
#endif

/* With GCC and clang all with a handle, and the one-shot operations, are inlined: by calls a transaction takes three times as long.
 * CS_NO_INLINE, and when it must be defined: see there. */
#if defined(__GNUC__) && defined(__x86_64__) && defined(__LP64__) && !defined(CS_NO_INLINE)
#include "larder_cs_inline.h"
#endif

#endif
