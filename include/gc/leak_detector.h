/*
 * leak_detector.h - a program's malloc and free through the collector's debug allocation, to find what is never freed:
 *
 *     cc -include leak_detector.h program.c -lgc        with GC_set_find_leak(1) first in main, or GC_FIND_LEAK=1 in the environment
 *
 * Each collection reports the objects that became unreachable without free; CHECK_LEAKS() collects.
 */
#ifndef GC_LEAK_DETECTOR_H
#define GC_LEAK_DETECTOR_H

#ifndef GC_DEBUG
#define GC_DEBUG
#endif
#include "gc.h"

#ifndef GC_DONT_INCLUDE_STDLIB
#include <stdlib.h>
#include <string.h>
#endif

#undef malloc
#undef calloc
#undef realloc
#undef free
#undef strdup
#undef strndup
#undef memalign
#undef posix_memalign
#define malloc(bytes) GC_MALLOC(bytes)
#define calloc(count, bytes) GC_MALLOC((count) * (bytes))
#define realloc(object, bytes) GC_REALLOC(object, bytes)
#define free(object) GC_FREE(object)
#define strdup(text) GC_STRDUP(text)
#define strndup(text, most) GC_STRNDUP(text, most)
#define memalign(alignment, bytes) GC_memalign(alignment, bytes)
#define posix_memalign(result, alignment, bytes) GC_posix_memalign(result, alignment, bytes)

#ifndef CHECK_LEAKS
#define CHECK_LEAKS() GC_gcollect()
#endif

#endif
