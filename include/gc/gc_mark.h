/*
 * gc_mark.h - what a language's runtime tells the collector: kinds of objects, mark procedures, roots, questions about the heap.
 *
 * The three answers behind "threads", "collector" and "handler" are explained in gc.h. In the sections on marking, "cycle" means: only from a mark
 * procedure, or from the function of GC_set_push_other_roots, while the world is stopped.
 */
#ifndef GC_MARK_H
#define GC_MARK_H

#include "gc.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Descriptors ------------------------------------------------------------------------------------------------------ */

/* A word says how an object is scanned; its low two bits are a tag:
 *
 *   GC_DS_LENGTH      the word is a length in bytes, a multiple of 8, from the object's start; each word in it may be a pointer
 *   GC_DS_BITMAP      the upper 62 bits stand for the first 62 words, the highest for the first; a set bit: may be a pointer
 *   GC_DS_PROC        a mark procedure scans the object: GC_MAKE_PROC(index, environment)
 *   GC_DS_PER_OBJECT  the descriptor lies in the object, as many bytes from its start as the word without its tag says; or, where that is negative, in the structure that the object's first
 *                     word points to, at -(that) - GC_INDIR_PER_OBJ_BIAS. A first word of 0 means: nothing to scan yet
 */
#define GC_DS_TAG_BITS 2
#define GC_DS_TAGS ((1 << GC_DS_TAG_BITS) - 1)
#define GC_DS_LENGTH 0
#define GC_DS_BITMAP 1
#define GC_DS_PROC 2
#define GC_DS_PER_OBJECT 3
#define GC_INDIR_PER_OBJ_BIAS 0x10
#define GC_MAKE_PROC(index, environment) \
    (((((environment) << GC_LOG_MAX_MARK_PROCS) | (index)) << GC_DS_TAG_BITS) | GC_DS_PROC)

/* ---- Mark procedures -------------------------------------------------------------------------------------------------- */

/* An entry of a mark stack. Programs only pass its address on. */
struct GC_ms_entry {
    void *opaque;
};

/* Scans the object at `object`: for each pointer in it, top = GC_MARK_AND_PUSH(pointer, top, limit, its address); returns the last top. It runs on several threads at once, in a
 * stopped world, so it takes no lock and allocates nothing; and also on an object that was just allocated, whose words are 0. `environment` is that of GC_MAKE_PROC. */
typedef struct GC_ms_entry *(*GC_mark_proc)(GC_word *object, struct GC_ms_entry *top, struct GC_ms_entry *limit,
                                            GC_word environment);

/* As much as a mark procedure is expected to scan in a call, on average; a longer object pushes its rest as an entry of its own. */
#define GC_PROC_BYTES 100

/* There are 64 mark procedures; the first 8 numbers are for runtimes that must know theirs when they are compiled. */
#define GC_LOG_MAX_MARK_PROCS 6
#define GC_MAX_MARK_PROCS (1 << GC_LOG_MAX_MARK_PROCS)
#define GC_RESERVED_MARK_PROCS 8
#define GC_GCJ_RESERVED_MARK_PROC_INDEX 0

/* Registers a mark procedure and returns its index. Too many abort the program. "inner": the caller holds the allocation lock.
 * threads: any; collector: no, inner yes; handler: no */
unsigned GC_new_proc(GC_mark_proc procedure);
unsigned GC_new_proc_inner(GC_mark_proc procedure);

/* Marks the object that an address points into, if there is one, and queues it to be scanned. `source` is where the address was found.
 * threads: cycle */
struct GC_ms_entry *GC_mark_and_push(void *address, struct GC_ms_entry *top, struct GC_ms_entry *limit, void **source);
#define GC_MARK_AND_PUSH(address, top, limit, source)                                   \
    ((GC_word)(address) >= (GC_word)GC_least_plausible_heap_addr &&                     \
             (GC_word)(address) <= (GC_word)GC_greatest_plausible_heap_addr             \
         ? GC_mark_and_push(address, top, limit, source)                                \
         : (top))

/* No object lies below the first or above the second. */
extern void *GC_least_plausible_heap_addr;
extern void *GC_greatest_plausible_heap_addr;

/* ---- Kinds ------------------------------------------------------------------------------------------------------------ */

/* Makes a kind of objects and returns its number. All its objects have the descriptor, plus their size where `add_size` is 1, and are zeroed where `clear` is 1. `lists` comes from
 * GC_new_free_list. There are 16 kinds in all; too many abort the program.   threads: any; collector: no, inner yes; handler: no */
void **GC_new_free_list(void);
void **GC_new_free_list_inner(void);
unsigned GC_new_kind(void **lists, GC_word descriptor, int add_size, int clear) GC_ATTR_NONNULL(1);
unsigned GC_new_kind_inner(void **lists, GC_word descriptor, int add_size, int clear) GC_ATTR_NONNULL(1);

/* Allocates an object of a kind. Uncollectable: of a kind whose objects live until GC_free (kinds 0 and 1 stand for GC_malloc_atomic_uncollectable and GC_malloc_uncollectable). Or special: of
 * whatever kind GC_get_kind_and_size told for another object.   threads: registered; collector: no; handler: yes */
void *GC_generic_malloc(size_t bytes, int kind) GC_ATTR_MALLOC GC_ATTR_ALLOC_SIZE(1);
void *GC_generic_malloc_ignore_off_page(size_t bytes, int kind) GC_ATTR_MALLOC GC_ATTR_ALLOC_SIZE(1);
void *GC_generic_malloc_uncollectable(size_t bytes, int kind) GC_ATTR_MALLOC GC_ATTR_ALLOC_SIZE(1);
void *GC_generic_or_special_malloc(size_t bytes, int kind) GC_ATTR_MALLOC GC_ATTR_ALLOC_SIZE(1);
void *GC_debug_generic_or_special_malloc(size_t bytes, int kind, GC_EXTRA_PARAMS) GC_ATTR_MALLOC GC_ATTR_ALLOC_SIZE(1);
#ifdef GC_DEBUG
#define GC_GENERIC_OR_SPECIAL_MALLOC(bytes, kind) GC_debug_generic_or_special_malloc(bytes, kind, GC_EXTRAS)
#else
#define GC_GENERIC_OR_SPECIAL_MALLOC(bytes, kind) GC_generic_or_special_malloc(bytes, kind)
#endif

/* The kind of the object that starts at `object`, and through `size`, unless that is 0, its size.   threads: any; collector: yes; handler: yes */
int GC_get_kind_and_size(const void *object, size_t *size) GC_ATTR_NONNULL(1);

/* Registers a function that writes a word or two about an object, at most GC_TYPE_DESCR_LEN bytes with the final 0, for reports of leaks.
 * threads: any; collector: no; handler: no */
#define GC_TYPE_DESCR_LEN 40
typedef void (*GC_describe_type_fn)(void *object, char *text);
void GC_register_describe_type_fn(int kind, GC_describe_type_fn function);

/* Bytes between the start of a debug object and what its program sees of it.   threads: any; collector: yes; handler: yes */
size_t GC_get_debug_header_size(void) GC_ATTR_CONST;
#define GC_USR_PTR_FROM_BASE(base) ((void *)((char *)(base) + GC_get_debug_header_size()))
extern size_t GC_debug_header_size GC_ATTR_DEPRECATED;

/* ---- Roots of one's own ----------------------------------------------------------------------------------------------- */

/* Called in each cycle to push roots that only the program knows. A function should call the one that was set before it.
 * setting: threads: any; collector: no; handler: no */
typedef void (*GC_push_other_roots_proc)(void);
void GC_set_push_other_roots(GC_push_other_roots_proc function);
GC_push_other_roots_proc GC_get_push_other_roots(void);

/* Search the words from `low` up to `high`: as static data; as a stack, in which addresses inside of objects always count; as static data of which only what has changed
 * matters unless `all`, which on Larder is everything.   threads: cycle */
void GC_push_all(void *low, void *high);
void GC_push_all_eager(void *low, void *high);
void GC_push_conditional(void *low, void *high, int all);

/* Would push the collector's own tables, which Larder searches without being told.   threads: cycle */
void GC_push_finalizer_structures(void);

/* Called at the start of each cycle with the allocation lock held; 0 for none.   setting: threads: any; collector: no; handler: no */
typedef void (*GC_start_callback_proc)(void);
void GC_set_start_callback(GC_start_callback_proc function);
GC_start_callback_proc GC_get_start_callback(void);

/* ---- Questions -------------------------------------------------------------------------------------------------------- */

/* The mark of the object that starts at `object`. In a cycle: whether it was reached; outside: whether it is allocated. Setting it does not mark what the object refers to.
 * threads: any, with the allocation lock held; collector: yes; handler: no */
int GC_is_marked(const void *object) GC_ATTR_NONNULL(1);
void GC_set_mark_bit(const void *object) GC_ATTR_NONNULL(1);
void GC_clear_mark_bit(const void *object) GC_ATTR_NONNULL(1);

/* Calls `function` with each object that the last cycle kept or that is newer. The caller holds the allocation lock; the function does not allocate.
 * threads: any; collector: yes; handler: no */
typedef void (*GC_reachable_object_proc)(void *object, size_t bytes, void *value);
void GC_enumerate_reachable_objects_inner(GC_reachable_object_proc function, void *value) GC_ATTR_NONNULL(1);

/* Whether an address lies in static data that the collector finds by itself, and not in a range of GC_add_roots.   threads: registered; collector: no; handler: no */
int GC_is_tmp_root(void *address);

/* Returns its argument. libgc clears the dead part of the stack here; Larder's frames are shallow.   threads: any; collector: yes; handler: yes */
void *GC_clear_stack(void *argument);

#ifdef __cplusplus
}
#endif

#endif
