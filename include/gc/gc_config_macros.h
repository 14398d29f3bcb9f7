/* What the declarations of the other headers are made of. Part of gc.h.
 *
 * One platform: Linux on x86-64. A program that defines GC_THREADS, or the older GC_LINUX_THREADS or LINUX_THREADS, gets the declarations for
 * threads, and calls like pthread_create are redirected (gc_pthread_redirects.h). */
#ifndef GC_CONFIG_MACROS_H
#define GC_CONFIG_MACROS_H

#include <stddef.h>

#if (defined(LINUX_THREADS) || defined(GC_LINUX_THREADS)) && !defined(GC_THREADS)
#define GC_THREADS
#endif
#ifdef GC_THREADS
#ifndef GC_LINUX_THREADS
#define GC_LINUX_THREADS
#endif
#define GC_PTHREADS
#define GC_HAVE_PTHREAD_EXIT
#ifndef _REENTRANT
#define _REENTRANT 1
#endif
#endif

#ifdef GC_PTHREADS
/* In the declarations of functions that take the places of GC_pthread_create and GC_pthread_exit. */
#ifndef GC_PTHREAD_CREATE_CONST
#define GC_PTHREAD_CREATE_CONST const
#endif
#ifndef GC_PTHREAD_EXIT_ATTRIBUTE
#define GC_PTHREAD_EXIT_ATTRIBUTE __attribute__((__noreturn__))
#endif
#endif

#define __GC

#if defined(__GNUC__) && defined(__GNUC_MINOR__)
#define GC_GNUC_PREREQ(major, minor) ((__GNUC__ << 8) + __GNUC_MINOR__ >= ((major) << 8) + (minor))
#else
#define GC_GNUC_PREREQ(major, minor) 0
#endif

/* Before and in each declaration of libgc's headers; there is nothing to say on Linux. */
#ifndef GC_API
#define GC_API extern
#endif
#ifndef GC_CALL
#define GC_CALL
#endif
#ifndef GC_CALLBACK
#define GC_CALLBACK
#endif

/* A program whose out-of-memory function returns an object that it has already defines GC_OOM_FUNC_RETURNS_ALIAS. */
#ifndef GC_ATTR_MALLOC
#if defined(__GNUC__) && !defined(GC_OOM_FUNC_RETURNS_ALIAS)
#define GC_ATTR_MALLOC __attribute__((__malloc__))
#else
#define GC_ATTR_MALLOC
#endif
#endif
#ifdef __GNUC__
#ifndef GC_ATTR_ALLOC_SIZE
#define GC_ATTR_ALLOC_SIZE(place) __attribute__((__alloc_size__(place)))
#define GC_ATTR_CALLOC_SIZE(count, size) __attribute__((__alloc_size__(count, size)))
#endif
#ifndef GC_ATTR_NONNULL
#define GC_ATTR_NONNULL(place) __attribute__((__nonnull__(place)))
#endif
#ifndef GC_ATTR_CONST
#define GC_ATTR_CONST __attribute__((__const__))
#endif
#ifndef GC_ATTR_DEPRECATED
#ifdef GC_BUILD
#define GC_ATTR_DEPRECATED
#else
#define GC_ATTR_DEPRECATED __attribute__((__deprecated__))
#endif
#endif
#endif
#ifndef GC_ATTR_ALLOC_SIZE
#define GC_ATTR_ALLOC_SIZE(place)
#endif
#ifndef GC_ATTR_CALLOC_SIZE
#define GC_ATTR_CALLOC_SIZE(count, size)
#endif
#ifndef GC_ATTR_NONNULL
#define GC_ATTR_NONNULL(place)
#endif
#ifndef GC_ATTR_CONST
#define GC_ATTR_CONST
#endif
#ifndef GC_ATTR_DEPRECATED
#define GC_ATTR_DEPRECATED
#endif

/* Before constructors of C++ that convert one allocator of libgc's headers to another. Ours convert without being asked; a program's own may not. */
#if defined(__cplusplus) && !defined(GC_ATTR_EXPLICIT)
#if __cplusplus >= 201103L && !defined(__clang__)
#define GC_ATTR_EXPLICIT explicit
#else
#define GC_ATTR_EXPLICIT
#endif
#endif

/* Behind functions of C++ that throw nothing. */
#if defined(__cplusplus) && !defined(GC_NOEXCEPT)
#if __cplusplus >= 201103L
#define GC_NOEXCEPT noexcept
#else
#define GC_NOEXCEPT throw()
#endif
#endif

#endif
