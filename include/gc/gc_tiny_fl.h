/* The shape of the small free lists that gc_inline.h's macros keep: list i holds objects of i granules of 16 bytes; list 0 holds objects of one granule, for requests of 0 bytes. */
#ifndef GC_TINY_FL_H
#define GC_TINY_FL_H

#ifndef GC_GRANULE_BYTES
#define GC_GRANULE_BYTES 16
#define GC_GRANULE_WORDS 2
#endif
#define GC_WORDS_TO_GRANULES(words) ((words) / GC_GRANULE_WORDS)

/* How many lists there are: up to 24 granules. */
#ifndef GC_TINY_FREELISTS
#define GC_TINY_FREELISTS 25
#endif

/* The bytes of an object of a list, what GC_malloc adds for pointers past the end included. */
#define GC_RAW_BYTES_FROM_INDEX(index) ((index) * GC_GRANULE_BYTES)

#endif
