/*
 * sgc.h - the interface of SGC, the memory manager of Toshio Endo's thesis (2001, appendix A), on Larder.
 *
 * A program of SGC compiles with this header and links to libgc. What the appendix has and libgc names differently is
 * here: SGC_init, and GC_collect for GC_gcollect. The rest is libgc's: GC_malloc and its relatives, GC_free, GC_expand_hp, GC_add_roots,
 * GC_clear_roots, GC_register_finalizer, GC_pthread_create, GC_pthread_join, and the variables GC_free_space_divisor, GC_dont_gc
 * and GC_gc_no, which are words and not ints where libgc has them so.
 *
 * The functions for Solaris threads (GC_thr_create, GC_thr_join) and for IRIX processes (GC_sproc, GC_sprocsp, GC_wait, GC_waitpid) belong
 * to systems that Larder does not run on.
 */
#ifndef SGC_H
#define SGC_H

#ifndef GC_THREADS
#define GC_THREADS
#endif
/* Of what libgc advises against, the variables belong to this interface: it has no functions to set them. */
#ifndef GC_ATTR_DEPRECATED
#define GC_ATTR_DEPRECATED
#endif
#include "gc/gc.h"

#include <errno.h>
#include <stdlib.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Choices at the start. There are none: the pointer to them is null. */
typedef struct SGC_attr SGC_attr_t;

/* Spelled with underscores, `inline` is also known in C90, which is what programs of SGC's time are written in. */

/* Initialises the collector, which will mark with `ngcp` threads: at least 1, at most what the library allows (16). Exactly once, before any other
 * call of this library; `attributes` is null. Sets GC_free_space_divisor to SGC's default of 4. Where the environment names markers (GC_MARKERS) or a divisor
 * (GC_FREE_SPACE_DIVISOR), those count.
 *
 * Returns 0; EINVAL for other arguments; EALREADY, and changes nothing, where the collector is initialised.
 * threads: start; collector: no; handler: no */
static __inline int SGC_init(int ngcp, SGC_attr_t *attributes) {
    if (ngcp < 1 || attributes != 0) return EINVAL;
    if (GC_is_init_called()) return EALREADY;
    GC_set_markers_count((unsigned)ngcp);
    if (getenv("GC_FREE_SPACE_DIVISOR") == 0) GC_set_free_space_divisor(4);
    GC_init();
    GC_allow_register_threads();
    return 0;
}

/* Collects now.   threads: registered; collector: no; handler: no */
static __inline void GC_collect(void) {
    GC_gcollect();
}

#ifdef __cplusplus
}
#endif

#endif
