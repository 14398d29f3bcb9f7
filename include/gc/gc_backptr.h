/*
 * gc_backptr.h - why an object is alive.
 *
 * Larder searches from the roots when it is asked, with the world stopped, so the answers hold for all objects and cost nothing before. Debian's libgc is built without these functions.
 */
#ifndef GC_BACKPTR_H
#define GC_BACKPTR_H

#include "gc.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    GC_UNREFERENCED,   /* nothing leads to the object */
    GC_NO_SPACE,       /* the address is in no object */
    GC_REFD_FROM_ROOT, /* a root at *base */
    GC_REFD_FROM_REG,  /* a root without an address: a thread's argument, or the object is uncollectable */
    GC_REFD_FROM_HEAP, /* the word *offset bytes into the object at *base */
    GC_FINALIZER_REFD  /* a finalizer that waits to run, or its value */
} GC_ref_kind;

/* What refers to the object that `address` points into, on a shortest path from a root. 0 for what is not wanted.
 * threads: registered; collector: no; handler: no */
GC_ref_kind GC_get_back_ptr_info(void *address, void **base, size_t *offset) GC_ATTR_NONNULL(1);

/* An address in the heap; an address in an object.   threads: registered; collector: no; handler: no */
void *GC_generate_random_heap_address(void);
void *GC_generate_random_valid_address(void);

/* Prints, in the log, the path from a root to an object: of the program's choice, or, after a collection, a random one.   threads: registered; collector: no; handler: no */
void GC_print_backtrace(void *address) GC_ATTR_NONNULL(1);
void GC_generate_random_backtrace(void);

#ifdef __cplusplus
}
#endif

#endif
