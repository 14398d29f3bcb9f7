/*
 * gc_inline.h - allocation from free lists that the program keeps itself.
 *
 * On Larder GC_malloc is as fast as popping a list; these macros are for programs that have them.
 *
 * A program keeps an array of GC_TINY_FREELISTS pointers, all 0 at first, where the collector sees it, one for each thread and kind.
 */
#ifndef GC_INLINE_H
#define GC_INLINE_H

#include "gc.h"
#include "gc_tiny_fl.h"

#if defined(__GNUC__)
#define GC_EXPECT(condition, usual) __builtin_expect(condition, usual)
#else
#define GC_EXPECT(condition, usual) (condition)
#endif
#ifndef GC_ASSERT
#ifdef NDEBUG
#define GC_ASSERT(condition)
#else
#include <assert.h>
#define GC_ASSERT(condition) assert(condition)
#endif
#endif
#ifndef GC_PREFETCH_FOR_WRITE
#if defined(__GNUC__) && !defined(GC_NO_PREFETCH_FOR_WRITE)
#define GC_PREFETCH_FOR_WRITE(address) __builtin_prefetch((address), 1)
#else
#define GC_PREFETCH_FOR_WRITE(address) (void)0
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The numbers of the kinds of GC_malloc_atomic and GC_malloc. */
#define GC_I_PTRFREE 0
#define GC_I_NORMAL 1

/* Stores a list of new objects of a kind, linked through their first words, the rest zeroed unless they are pointer-free; 0 without memory. Unlike elsewhere `bytes` is what the objects take in all. The
 * caller's `list` lies where the collector sees it.   threads: registered; collector: no; handler: no */
void GC_generic_malloc_many(size_t bytes, int kind, void **list);

/* One object of a kind.   threads: registered; collector: no; handler: yes */
void *GC_malloc_kind(size_t bytes, int kind) GC_ATTR_MALLOC GC_ATTR_ALLOC_SIZE(1);
#ifdef GC_THREADS
void *GC_malloc_kind_global(size_t bytes, int kind) GC_ATTR_MALLOC GC_ATTR_ALLOC_SIZE(1);
#else
#define GC_malloc_kind_global GC_malloc_kind
#endif

/* Sets `result` to a new object of `granules` granules from lists[granules]. An empty list is filled by GC_generic_malloc_many; larger objects come from `otherwise`. Lists may begin as (void *)1: then the
 * first allocations, up to `direct` granules in each list, come from `otherwise`, too. `initialise` runs with `result` set, while its first word is still the link. */
#define GC_FAST_MALLOC_GRANS(result, granules, lists, direct, kind, otherwise, initialise)                   \
    do {                                                                                                     \
        void **GC_list;                                                                                      \
        void *GC_head;                                                                                       \
        void *GC_rest;                                                                                       \
        if (GC_EXPECT((granules) >= GC_TINY_FREELISTS, 0)) {                                                 \
            (result) = (otherwise);                                                                          \
            break;                                                                                           \
        }                                                                                                    \
        GC_list = (lists) + (granules);                                                                      \
        GC_head = *GC_list;                                                                                  \
        if (GC_EXPECT((GC_word)GC_head <= (GC_word)(direct) + GC_TINY_FREELISTS + 1, 0)) {                   \
            /* No address: nothing, or what was allocated directly so far, plus one. */                      \
            if (GC_head != 0 && (GC_word)GC_head <= (GC_word)(direct)) {                                     \
                *GC_list = (char *)GC_head + (granules) + 1;                                                 \
                (result) = (otherwise);                                                                      \
                break;                                                                                       \
            }                                                                                                \
            GC_generic_malloc_many((granules) == 0 ? GC_GRANULE_BYTES : GC_RAW_BYTES_FROM_INDEX(granules),   \
                                   kind, GC_list);                                                           \
            GC_head = *GC_list;                                                                              \
            if (GC_head == 0) {                                                                              \
                (result) = (*GC_get_oom_fn())((granules) * GC_GRANULE_BYTES);                                \
                break;                                                                                       \
            }                                                                                                \
        }                                                                                                    \
        GC_rest = *(void **)GC_head;                                                                         \
        (result) = GC_head;                                                                                  \
        *GC_list = GC_rest;                                                                                  \
        initialise;                                                                                          \
        GC_PREFETCH_FOR_WRITE(GC_rest);                                                                      \
        if ((kind) != GC_I_PTRFREE) {                                                                        \
            GC_end_stubborn_change(GC_list);                                                                 \
            GC_reachable_here(GC_rest);                                                                      \
        }                                                                                                    \
        GC_ASSERT(GC_size(result) >= (granules) * GC_GRANULE_BYTES);                                         \
    } while (0)

/* The same for a number of words. For programs that set GC_all_interior_pointers to 0, since nothing is added for pointers past the end. */
#define GC_WORDS_TO_WHOLE_GRANULES(words) GC_WORDS_TO_GRANULES((words) + GC_GRANULE_WORDS - 1)
#define GC_MALLOC_WORDS_KIND(result, words, lists, kind, initialise)                                         \
    do {                                                                                                     \
        size_t GC_granules = GC_WORDS_TO_WHOLE_GRANULES(words);                                              \
        GC_FAST_MALLOC_GRANS(result, GC_granules, lists, 0, kind,                                            \
                             GC_malloc_kind(GC_granules * GC_GRANULE_BYTES, kind), initialise);              \
    } while (0)
#define GC_MALLOC_WORDS(result, words, lists) \
    GC_MALLOC_WORDS_KIND(result, words, lists, GC_I_NORMAL, *(void **)(result) = 0)
#define GC_MALLOC_ATOMIC_WORDS(result, words, lists) GC_MALLOC_WORDS_KIND(result, words, lists, GC_I_PTRFREE, (void)0)

/* A pair of two words. */
#define GC_CONS(result, first, second, lists)                                                                \
    do {                                                                                                     \
        void *GC_first = (void *)(first);                                                                    \
        void *GC_second = (void *)(second);                                                                  \
        GC_MALLOC_WORDS_KIND(result, 2, lists, GC_I_NORMAL, (void)0);                                        \
        if ((result) != 0) {                                                                                 \
            *(void **)(result) = GC_first;                                                                   \
            GC_PTR_STORE_AND_DIRTY((void **)(result) + 1, GC_second);                                        \
            GC_reachable_here(GC_first);                                                                     \
        }                                                                                                    \
    } while (0)

/* Says in the log that Larder keeps no free lists.   threads: any; collector: yes; handler: no */
void GC_print_free_list(int kind, size_t granules);

#ifdef __cplusplus
}
#endif

#endif
