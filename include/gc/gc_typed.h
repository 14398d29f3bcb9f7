/*
 * gc_typed.h - objects with a description of which of their words are pointers.
 *
 *     struct pair { long number; void *pointer; };
 *     GC_word bitmap[GC_BITMAP_SIZE(struct pair)] = {0};
 *     GC_set_bit(bitmap, GC_WORD_OFFSET(struct pair, pointer));
 *     GC_descr descriptor = GC_make_descriptor(bitmap, GC_WORD_LEN(struct pair));   once for the type
 *     struct pair *p = GC_MALLOC_EXPLICITLY_TYPED(sizeof *p, descriptor);
 *
 * Descriptions of any length are exact. With GC_DEBUG the macros forget the description and make debug objects.
 */
#ifndef GC_TYPED_H
#define GC_TYPED_H

#include "gc.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A bit for each word of an object, the lowest bit of the first element for the first word. */
typedef GC_word *GC_bitmap;
#define GC_WORDSZ (8 * sizeof(GC_word))
#define GC_get_bit(bitmap, i) (((bitmap)[(i) / GC_WORDSZ] >> ((i) % GC_WORDSZ)) & 1)
#define GC_set_bit(bitmap, i) ((bitmap)[(i) / GC_WORDSZ] |= (GC_word)1 << ((i) % GC_WORDSZ))
#define GC_WORD_OFFSET(type, field) (offsetof(type, field) / sizeof(GC_word))
#define GC_WORD_LEN(type) (sizeof(type) / sizeof(GC_word))
#define GC_BITMAP_SIZE(type) ((GC_WORD_LEN(type) + GC_WORDSZ - 1) / GC_WORDSZ)

/* What GC_make_descriptor makes of a bitmap of `bits` bits. A long one takes memory that is never freed; without memory it becomes a conservative one.
 * threads: registered; collector: no; handler: no */
typedef GC_word GC_descr;
GC_descr GC_make_descriptor(const GC_word *bitmap, size_t bits);

/* A zeroed object of at least as many bytes as the description has words. It must not be given to GC_realloc.
 * threads: registered; collector: no; handler: yes */
void *GC_malloc_explicitly_typed(size_t bytes, GC_descr descriptor) GC_ATTR_MALLOC GC_ATTR_ALLOC_SIZE(1);
void *GC_malloc_explicitly_typed_ignore_off_page(size_t bytes, GC_descr descriptor) GC_ATTR_MALLOC GC_ATTR_ALLOC_SIZE(1);

/* A zeroed array of `count` elements of `bytes` bytes, a multiple of 8, each with the same description.
 * threads: registered; collector: no; handler: no */
void *GC_calloc_explicitly_typed(size_t count, size_t bytes, GC_descr descriptor) GC_ATTR_MALLOC GC_ATTR_CALLOC_SIZE(1, 2);

#ifdef GC_DEBUG
#define GC_MALLOC_EXPLICITLY_TYPED(bytes, descriptor) ((void)(descriptor), GC_MALLOC(bytes))
#define GC_CALLOC_EXPLICITLY_TYPED(count, bytes, descriptor) ((void)(descriptor), GC_MALLOC((count) * (bytes)))
#else
#define GC_MALLOC_EXPLICITLY_TYPED(bytes, descriptor) GC_malloc_explicitly_typed(bytes, descriptor)
#define GC_CALLOC_EXPLICITLY_TYPED(count, bytes, descriptor) GC_calloc_explicitly_typed(count, bytes, descriptor)
#endif

#ifdef __cplusplus
}
#endif

#endif
