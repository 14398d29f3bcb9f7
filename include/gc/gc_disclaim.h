/*
 * gc_disclaim.h - functions that are asked before the memory of dead objects is used again.
 */
#ifndef GC_DISCLAIM_H
#define GC_DISCLAIM_H

#include "gc.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Asked about each dead object of its kind after a cycle, with the allocation lock held and the world running: 0 gives the object up, anything else keeps it until the next cycle asks again. It must
 * not make the object reachable. GC_free does not ask. */
typedef int (*GC_disclaim_proc)(void *object);

/* Sets the function for a kind. With `mark_from_all`, what dead objects refer to is kept for the function to see; then of a chain of dead objects one goes in each cycle. Does nothing in the leak-finding
 * mode.   threads: any; collector: no; handler: no */
void GC_register_disclaim_proc(int kind, GC_disclaim_proc function, int mark_from_all) GC_ATTR_NONNULL(2);

/* What is to be called for an object of GC_finalized_malloc, and with what. It must live as long as such objects; it may be collected memory. */
struct GC_finalizer_closure {
    GC_finalization_proc proc;
    void *cd;
};

/* Before GC_finalized_malloc.   threads: any; collector: no; handler: no */
void GC_init_finalized_malloc(void);

/* A zeroed object that `closure` finalizes in the cycle that finds it dead, after which it is freed: cheaper than GC_register_finalizer, and the finalizer cannot bring it back. GC_base of it is one word
 * before it.   threads: registered; collector: no; handler: no */
void *GC_finalized_malloc(size_t bytes, const struct GC_finalizer_closure *closure) GC_ATTR_MALLOC GC_ATTR_ALLOC_SIZE(1)
    GC_ATTR_NONNULL(2);

#ifdef __cplusplus
}
#endif

#endif
