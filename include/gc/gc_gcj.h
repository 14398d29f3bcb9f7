/*
 * gc_gcj.h - objects whose first word points to a structure, a class or a table of methods, whose second word is their descriptor (gc_mark.h).
 */
#ifndef GC_GCJ_H
#define GC_GCJ_H

#include "gc.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Before the other functions: `procedure`, a GC_mark_proc, becomes the mark procedure of number `index`, which is below GC_RESERVED_MARK_PROCS. Debug objects are scanned by it, with an environment of
 * 1, which tells it that there is a debug header before the object. Later calls change nothing.   threads: start; collector: no; handler: no */
void GC_init_gcj_malloc(int index, void *procedure);

/* A zeroed object with `structure` in its first word.   threads: registered; collector: no; handler: yes, debug no */
void *GC_gcj_malloc(size_t bytes, void *structure) GC_ATTR_MALLOC GC_ATTR_ALLOC_SIZE(1);
void *GC_gcj_malloc_ignore_off_page(size_t bytes, void *structure) GC_ATTR_MALLOC GC_ATTR_ALLOC_SIZE(1);
void *GC_debug_gcj_malloc(size_t bytes, void *structure, GC_EXTRA_PARAMS) GC_ATTR_MALLOC GC_ATTR_ALLOC_SIZE(1);
#ifdef GC_DEBUG
#define GC_GCJ_MALLOC(bytes, structure) GC_debug_gcj_malloc(bytes, structure, GC_EXTRAS)
#define GC_GCJ_MALLOC_IGNORE_OFF_PAGE(bytes, structure) GC_debug_gcj_malloc(bytes, structure, GC_EXTRAS)
#else
#define GC_GCJ_MALLOC(bytes, structure) GC_gcj_malloc(bytes, structure)
#define GC_GCJ_MALLOC_IGNORE_OFF_PAGE(bytes, structure) GC_gcj_malloc_ignore_off_page(bytes, structure)
#endif

/* The kinds of these objects, 0 before GC_init_gcj_malloc. */
extern int GC_gcj_kind;
extern int GC_gcj_debug_kind;

#ifdef __cplusplus
}
#endif

#endif
