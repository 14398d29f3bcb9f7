/*
 * gc.h - the C interface of Larder, in the words of libgc.
 *
 * A program compiled against this header runs on Larder and, unchanged, on libgc 8.2: names, types and values agree. A program compiled
 * against libgc's own header runs on Larder just the same.
 *
 *     #define GC_THREADS          before the include, in every file that uses threads
 *     #define GC_DEBUG            before the include: the macros in capitals allocate objects that know where they were made
 *     #include <gc.h>
 *     cc -pthread program.c -lgc
 *
 * Beside it: gc_mark.h (kinds, mark procedures, roots of one's own), gc_typed.h (objects with a description of their pointers), gc_gcj.h
 * (descriptions behind the first word), gc_inline.h (lists of objects), gc_disclaim.h (questions before memory is used again),
 * gc_backptr.h (why an object is alive), javaxfc.h (all finalizers; suspending a thread), leak_detector.h (malloc that finds
 * leaks), gc_cpp.h and gc_allocator.h (C++).
 *
 * The smallest program:
 *
 *     int main(void) {
 *         GC_INIT();
 *         for (int i = 0; i < 1000000; i++) {
 *             char **pair = GC_MALLOC(2 * sizeof(char *));
 *             pair[0] = GC_STRDUP("kept as long as something points to it");
 *         }
 *     }
 *
 * What keeps an object alive: a word that holds an address inside it, in a register or on the stack of a registered
 * thread, in thread-local storage, in the program's or a loaded library's data, in a range given to GC_add_roots, or in another
 * live object that was not allocated as pointer-free. Memory of malloc and mmap is not searched.
 *
 * Who may call
 * ------------
 * Each function has a line with three answers.
 *
 *   threads    any         every thread, registered or not
 *              registered  a registered thread: the one that called GC_init, one started through GC_pthread_create, or one that
 *                          called GC_register_my_thread; not from inside GC_do_blocking
 *              start       one thread, before others exist; best before GC_init
 *   collector  yes         also from a callback that runs during a collection (collection events, warnings, GC_call_with_alloc_lock):
 *                          the caller holds the allocation lock then
 *              no          such a call would wait for a lock that its own thread holds
 *   handler    yes         from a signal handler, whatever it interrupted
 *              no          not from a signal handler that may have interrupted this library
 *
 * Finalizers, the finalizer notifier and the out-of-memory function are not collector callbacks: they run as ordinary code of a
 * registered thread, without a lock. "handler yes" for allocation is a promise of Larder alone; other libraries with this
 * interface do not make it.
 *
 * Every function waits while a collection has the world stopped, and goes on after it. After fork the child has one thread, which is registered
 * if the thread that forked was, and everything here works in it, provided that fork is the C library's. After vfork only exec and
 * _exit are allowed, as always; under `larder run`, which makes vfork a fork, the child may allocate, too.
 */
#ifndef GC_H
#define GC_H

#include "gc_version.h"
#include "gc_config_macros.h"

#ifdef __cplusplus
extern "C" {
#endif

/* An unsigned and a signed integer as wide as a pointer. */
typedef unsigned long GC_word;
typedef long GC_signed_word;

/* Any object, in programs that were written when C had no void *. */
typedef void *GC_PTR;

/* ---- Start ---------------------------------------------------------------------------------------------------------- */

/* Initialises the collector and registers the calling thread. Reads the GC_ variables of the environment. Harmless when repeated; the
 * first allocation does it too, so that only programs with settings of their own must call it.
 * threads: start; collector: no; handler: no */
void GC_init(void);

/* 1 after GC_init.   threads: any; collector: yes; handler: yes */
int GC_is_init_called(void);

/* Version of the interface: major << 16 | minor << 8 | micro.   threads: any; collector: yes; handler: yes */
unsigned GC_get_version(void);

/* The end of the use of the collector; on Linux there is nothing to dispose of.   threads: start; collector: no; handler: no */
void GC_deinit(void);

/* GC_init with choices that a program may make by defining names before the include: GC_DONT_EXPAND, GC_FORCE_UNMAP_ON_GCOLLECT, GC_DONT_GC, GC_IGNORE_WARN
 * (no value), GC_MAX_RETRIES, GC_ALLOCD_BYTES_PER_FINALIZER, GC_FREE_SPACE_DIVISOR, GC_FULL_FREQ, GC_TIME_LIMIT, GC_MAXIMUM_HEAP_SIZE, GC_INITIAL_HEAP_SIZE,
 * and with GC_THREADS GC_MARKERS, GC_SIG_SUSPEND, GC_SIG_THR_RESTART (a number each). */
#ifdef GC_DONT_EXPAND
#define GC_CHOICE_DONT_EXPAND GC_set_dont_expand(1)
#else
#define GC_CHOICE_DONT_EXPAND (void)0
#endif
#ifdef GC_FORCE_UNMAP_ON_GCOLLECT
#define GC_CHOICE_FORCE_UNMAP GC_set_force_unmap_on_gcollect(1)
#else
#define GC_CHOICE_FORCE_UNMAP (void)0
#endif
#if defined(GC_DONT_GC)
#define GC_CHOICE_RETRIES (void)(GC_dont_gc = 1)
#elif defined(GC_MAX_RETRIES)
#define GC_CHOICE_RETRIES GC_set_max_retries(GC_MAX_RETRIES)
#else
#define GC_CHOICE_RETRIES (void)0
#endif
#ifdef GC_ALLOCD_BYTES_PER_FINALIZER
#define GC_CHOICE_FINALIZERS GC_set_allocd_bytes_per_finalizer(GC_ALLOCD_BYTES_PER_FINALIZER)
#else
#define GC_CHOICE_FINALIZERS (void)0
#endif
#ifdef GC_FREE_SPACE_DIVISOR
#define GC_CHOICE_DIVISOR GC_set_free_space_divisor(GC_FREE_SPACE_DIVISOR)
#else
#define GC_CHOICE_DIVISOR (void)0
#endif
#ifdef GC_FULL_FREQ
#define GC_CHOICE_FREQUENCY GC_set_full_freq(GC_FULL_FREQ)
#else
#define GC_CHOICE_FREQUENCY (void)0
#endif
#ifdef GC_TIME_LIMIT
#define GC_CHOICE_TIME GC_set_time_limit(GC_TIME_LIMIT)
#else
#define GC_CHOICE_TIME (void)0
#endif
#if defined(GC_MARKERS) && defined(GC_THREADS)
#define GC_CHOICE_MARKERS GC_set_markers_count(GC_MARKERS)
#else
#define GC_CHOICE_MARKERS (void)0
#endif
#if defined(GC_SIG_SUSPEND) && defined(GC_THREADS)
#define GC_CHOICE_SUSPEND GC_set_suspend_signal(GC_SIG_SUSPEND)
#else
#define GC_CHOICE_SUSPEND (void)0
#endif
#if defined(GC_SIG_THR_RESTART) && defined(GC_THREADS)
#define GC_CHOICE_RESTART GC_set_thr_restart_signal(GC_SIG_THR_RESTART)
#else
#define GC_CHOICE_RESTART (void)0
#endif
#ifdef GC_MAXIMUM_HEAP_SIZE
#define GC_CHOICE_MAXIMUM GC_set_max_heap_size(GC_MAXIMUM_HEAP_SIZE)
#else
#define GC_CHOICE_MAXIMUM (void)0
#endif
#ifdef GC_IGNORE_WARN
#define GC_CHOICE_WARN GC_set_warn_proc(GC_ignore_warn_proc)
#else
#define GC_CHOICE_WARN (void)0
#endif
#ifdef GC_INITIAL_HEAP_SIZE
#define GC_CHOICE_INITIAL                                                                   \
    do {                                                                                    \
        size_t GC_has = GC_get_heap_size();                                                 \
        if (GC_has < (GC_INITIAL_HEAP_SIZE)) (void)GC_expand_hp((GC_INITIAL_HEAP_SIZE) - GC_has); \
    } while (0)
#else
#define GC_CHOICE_INITIAL (void)0
#endif
#define GC_INIT()              \
    {                          \
        GC_CHOICE_DONT_EXPAND; \
        GC_CHOICE_FORCE_UNMAP; \
        GC_CHOICE_RETRIES;     \
        GC_CHOICE_FINALIZERS;  \
        GC_CHOICE_DIVISOR;     \
        GC_CHOICE_FREQUENCY;   \
        GC_CHOICE_TIME;        \
        GC_CHOICE_MARKERS;     \
        GC_CHOICE_SUSPEND;     \
        GC_CHOICE_RESTART;     \
        GC_CHOICE_MAXIMUM;     \
        GC_init();             \
        GC_CHOICE_WARN;        \
        GC_CHOICE_INITIAL;     \
    }

/* ---- Allocation ----------------------------------------------------------------------------------------------------- */

/* An object of at least `bytes` bytes, zeroed, aligned to 16; `bytes` may be 0. It is searched for pointers. When there is
 * no memory even after a collection, the result is what the out-of-memory function returns (0 unless one was set).
 * threads: registered; collector: no; handler: yes */
void *GC_malloc(size_t bytes) GC_ATTR_MALLOC GC_ATTR_ALLOC_SIZE(1);

/* The same for an object that never holds a pointer to a collected object, such as text or numbers. It is not searched, and *not* zeroed.
 * threads: registered; collector: no; handler: yes */
void *GC_malloc_atomic(size_t bytes) GC_ATTR_MALLOC GC_ATTR_ALLOC_SIZE(1);

/* As GC_malloc, but the object lives until GC_free, and what it points to lives with it: the way to keep collected objects
 * behind memory that is not searched, such as a pthread key.   threads: registered; collector: no; handler: yes */
void *GC_malloc_uncollectable(size_t bytes) GC_ATTR_MALLOC GC_ATTR_ALLOC_SIZE(1);

/* As GC_malloc_uncollectable, but not searched and not zeroed.   threads: registered; collector: no; handler: yes */
void *GC_malloc_atomic_uncollectable(size_t bytes) GC_ATTR_MALLOC GC_ATTR_ALLOC_SIZE(1);

/* As GC_malloc and GC_malloc_atomic, for large objects: the program promises to keep a pointer to somewhere within the first 256 bytes
 * (or the first page), so that a number that looks like an address further in retains nothing.
 * threads: registered; collector: no; handler: yes */
void *GC_malloc_ignore_off_page(size_t bytes) GC_ATTR_MALLOC GC_ATTR_ALLOC_SIZE(1);
void *GC_malloc_atomic_ignore_off_page(size_t bytes) GC_ATTR_MALLOC GC_ATTR_ALLOC_SIZE(1);

/* As GC_malloc, aligned to `alignment`, a power of two.   threads: registered; collector: no; handler: yes */
void *GC_memalign(size_t alignment, size_t bytes) GC_ATTR_MALLOC GC_ATTR_ALLOC_SIZE(2);

/* As GC_memalign; stores the object through `result` and returns 0, or returns EINVAL (alignment is not a power of two or not
 * a multiple of a pointer's size) or ENOMEM.   threads: registered; collector: no; handler: yes */
int GC_posix_memalign(void **result, size_t alignment, size_t bytes) GC_ATTR_NONNULL(1);

/* An object of the same kind with the same content up to the smaller size, at the same address where the size allows it. `object`
 * 0 allocates; `bytes` 0 frees and returns 0. The old object is freed when the content moved: other pointers to it become invalid.
 * threads: registered; collector: no; handler: no */
void *GC_realloc(void *object, size_t bytes) GC_ATTR_ALLOC_SIZE(2);

/* Frees an object now; 0 is ignored. Never needed for collected objects, whose pointers elsewhere become invalid by it.
 * Anything but the start of an object of this library stops the program.   threads: registered; collector: no; handler: no */
void GC_free(void *object);

/* A copy of a text, or of at most `most` bytes of it and a terminating zero, in a pointer-free object; 0 for 0 memory.
 * threads: registered; collector: no; handler: yes */
char *GC_strdup(const char *text) GC_ATTR_MALLOC;
char *GC_strndup(const char *text, size_t most) GC_ATTR_MALLOC GC_ATTR_NONNULL(1);

/* A list of several objects of at least `bytes` bytes each, linked through their first words, otherwise zeroed; 0 without memory. One object is
 * taken from the list at a time: p = list; list = GC_NEXT(p); GC_NEXT(p) = 0.   threads: registered; collector: no; handler: yes */
void *GC_malloc_many(size_t bytes) GC_ATTR_MALLOC;
#define GC_NEXT(object) (*(void **)(object))

/* Debug allocation: an object has GC_get_debug_header_size() bytes before it (gc_mark.h) that say where it was made, and guards behind it. GC_debug_free and each
 * collection say on standard error which guards were written over. Such an object must not be given to GC_free or GC_realloc, and other debug objects only to the
 * functions of this section. Usually they are reached through the macros below.
 * threads: registered; collector: no; handler: no */
#define GC_EXTRAS __FILE__, __LINE__
#define GC_EXTRA_PARAMS const char *file, int line
void *GC_debug_malloc(size_t bytes, GC_EXTRA_PARAMS) GC_ATTR_MALLOC GC_ATTR_ALLOC_SIZE(1);
void *GC_debug_malloc_atomic(size_t bytes, GC_EXTRA_PARAMS) GC_ATTR_MALLOC GC_ATTR_ALLOC_SIZE(1);
void *GC_debug_malloc_uncollectable(size_t bytes, GC_EXTRA_PARAMS) GC_ATTR_MALLOC GC_ATTR_ALLOC_SIZE(1);
void *GC_debug_malloc_atomic_uncollectable(size_t bytes, GC_EXTRA_PARAMS) GC_ATTR_MALLOC GC_ATTR_ALLOC_SIZE(1);
void *GC_debug_malloc_ignore_off_page(size_t bytes, GC_EXTRA_PARAMS) GC_ATTR_MALLOC GC_ATTR_ALLOC_SIZE(1);
void *GC_debug_malloc_atomic_ignore_off_page(size_t bytes, GC_EXTRA_PARAMS) GC_ATTR_MALLOC GC_ATTR_ALLOC_SIZE(1);
char *GC_debug_strdup(const char *text, GC_EXTRA_PARAMS) GC_ATTR_MALLOC;
char *GC_debug_strndup(const char *text, size_t most, GC_EXTRA_PARAMS) GC_ATTR_MALLOC GC_ATTR_NONNULL(1);
void *GC_debug_realloc(void *object, size_t bytes, GC_EXTRA_PARAMS) GC_ATTR_ALLOC_SIZE(2);
void GC_debug_free(void *object);

/* The same without a place, to stand in for malloc and realloc. */
void *GC_debug_malloc_replacement(size_t bytes) GC_ATTR_MALLOC GC_ATTR_ALLOC_SIZE(1);
void *GC_debug_realloc_replacement(void *object, size_t bytes) GC_ATTR_ALLOC_SIZE(2);

#if defined(GC_DEBUG_REPLACEMENT)
#define GC_MALLOC(bytes) GC_debug_malloc_replacement(bytes)
#define GC_REALLOC(object, bytes) GC_debug_realloc_replacement(object, bytes)
#elif defined(GC_DEBUG)
#define GC_MALLOC(bytes) GC_debug_malloc(bytes, GC_EXTRAS)
#define GC_REALLOC(object, bytes) GC_debug_realloc(object, bytes, GC_EXTRAS)
#else
#define GC_MALLOC(bytes) GC_malloc(bytes)
#define GC_REALLOC(object, bytes) GC_realloc(object, bytes)
#endif

#ifdef GC_DEBUG
#define GC_MALLOC_ATOMIC(bytes) GC_debug_malloc_atomic(bytes, GC_EXTRAS)
#define GC_MALLOC_UNCOLLECTABLE(bytes) GC_debug_malloc_uncollectable(bytes, GC_EXTRAS)
#define GC_MALLOC_ATOMIC_UNCOLLECTABLE(bytes) GC_debug_malloc_atomic_uncollectable(bytes, GC_EXTRAS)
#define GC_MALLOC_IGNORE_OFF_PAGE(bytes) GC_debug_malloc_ignore_off_page(bytes, GC_EXTRAS)
#define GC_MALLOC_ATOMIC_IGNORE_OFF_PAGE(bytes) GC_debug_malloc_atomic_ignore_off_page(bytes, GC_EXTRAS)
#define GC_FREE(object) GC_debug_free(object)
#define GC_STRDUP(text) GC_debug_strdup(text, GC_EXTRAS)
#define GC_STRNDUP(text, most) GC_debug_strndup(text, most, GC_EXTRAS)
#else
#define GC_MALLOC_ATOMIC(bytes) GC_malloc_atomic(bytes)
#define GC_MALLOC_UNCOLLECTABLE(bytes) GC_malloc_uncollectable(bytes)
#define GC_MALLOC_ATOMIC_UNCOLLECTABLE(bytes) GC_malloc_atomic_uncollectable(bytes)
#define GC_MALLOC_IGNORE_OFF_PAGE(bytes) GC_malloc_ignore_off_page(bytes)
#define GC_MALLOC_ATOMIC_IGNORE_OFF_PAGE(bytes) GC_malloc_atomic_ignore_off_page(bytes)
#define GC_FREE(object) GC_free(object)
#define GC_STRDUP(text) GC_strdup(text)
#define GC_STRNDUP(text, most) GC_strndup(text, most)
#endif
#define GC_NEW(type) ((type *)GC_MALLOC(sizeof(type)))
#define GC_NEW_ATOMIC(type) ((type *)GC_MALLOC_ATOMIC(sizeof(type)))
#define GC_NEW_UNCOLLECTABLE(type) ((type *)GC_MALLOC_UNCOLLECTABLE(sizeof(type)))

/* Objects that are written seldom were a kind of their own once; the names are left. */
void *GC_malloc_stubborn(size_t bytes) GC_ATTR_DEPRECATED;
void *GC_debug_malloc_stubborn(size_t bytes, GC_EXTRA_PARAMS) GC_ATTR_DEPRECATED;
void GC_change_stubborn(const void *object) GC_ATTR_DEPRECATED;
void GC_debug_change_stubborn(const void *object) GC_ATTR_DEPRECATED;
#define GC_MALLOC_STUBBORN(bytes) GC_MALLOC(bytes)
#define GC_NEW_STUBBORN(type) GC_NEW(type)
#define GC_CHANGE_STUBBORN(object) GC_change_stubborn(object)

/* The object (named by its base) has been changed, or the word at that address: a write barrier of the program's own, which
 * Larder takes where LARDER_WATCH is barrier or snapshot. The caller keeps what it stored until this returns.
 * threads: registered; collector: yes; handler: yes */
void GC_end_stubborn_change(const void *object) GC_ATTR_NONNULL(1);
void GC_debug_end_stubborn_change(const void *object) GC_ATTR_NONNULL(1);

/* Called when memory has run out, with the size wanted; its result becomes the allocation's. It may free memory, not return (longjmp), or
 * end the program.   setting: threads: any; collector: no; handler: no */
typedef void *(*GC_oom_func)(size_t bytes);
extern GC_oom_func GC_oom_fn GC_ATTR_DEPRECATED;
void GC_set_oom_fn(GC_oom_func function) GC_ATTR_NONNULL(1);
GC_oom_func GC_get_oom_fn(void);

/* Ends the program with status 1 because there is no memory.   threads: any; collector: no; handler: no */
void GC_abort_on_oom(void);

/* Called with a message before the program is aborted because of a wrong call, and with 0 before it is ended; returns.
 * setting: threads: any; collector: no; handler: no */
typedef void (*GC_abort_func)(const char *message);
void GC_set_abort_func(GC_abort_func function) GC_ATTR_NONNULL(1);
GC_abort_func GC_get_abort_func(void);

/* ---- Objects -------------------------------------------------------------------------------------------------------- */

/* The start of the object that `address` points into, or 0 where it points into none.
 * threads: any; collector: yes; handler: yes */
void *GC_base(void *address);

/* Whether `address` lies in the heap.   threads: any; collector: yes; handler: yes */
int GC_is_heap_ptr(const void *address);

/* How many bytes the object that starts at `object` can hold: at least what was asked for.
 * threads: any; collector: yes; handler: yes */
size_t GC_size(const void *object) GC_ATTR_NONNULL(1);

/* ---- Collecting ----------------------------------------------------------------------------------------------------- */

/* Collects now and returns when the cycle is complete. Does nothing while collection is disabled.
 * threads: registered; collector: no; handler: no */
void GC_gcollect(void);

/* The same, and gives free memory back to the kernel.   threads: registered; collector: no; handler: no */
void GC_gcollect_and_unmap(void);

/* Collects unless `stop` returns something else than 0 when it is asked, before and after marking, with the world stopped; 1 if it did, 0 if it was given up or is disabled.
 * threads: registered; collector: no; handler: no */
typedef int (*GC_stop_func)(void);
int GC_try_to_collect(GC_stop_func stop) GC_ATTR_NONNULL(1);

/* The function that GC_gcollect and the heap's own collections ask, except when memory ran out. setting: threads: any; collector: no; handler: no */
void GC_set_stop_func(GC_stop_func function) GC_ATTR_NONNULL(1);
GC_stop_func GC_get_stop_func(void);

/* 1: only calls collect, and memory that runs out.   threads: any; collector: no; handler: no */
void GC_set_disable_automatic_collection(int on);
int GC_get_disable_automatic_collection(void);

/* Whether GC_gcollect gives free memory back, too.   threads: any; collector: no; handler: no */
void GC_set_force_unmap_on_gcollect(int on);
int GC_get_force_unmap_on_gcollect(void);

/* Collection is off from a GC_disable until as many GC_enable; the heap grows meanwhile.
 * threads: any; collector: no; handler: no.  GC_is_disabled: collector: yes; handler: yes */
void GC_disable(void);
void GC_enable(void);
int GC_is_disabled(void);

/* Lets the heap grow by `bytes` before the next collection, so that a program that knows it will need them collects less at its start. On
 * Larder it takes no memory at once. 0 when the heap may not become so large (its maximum, or the address space reserved for it), else 1.   threads: any; collector: no; handler: no */
int GC_expand_hp(size_t bytes);

/* The heap never grows beyond `bytes`; 0 is no limit.   threads: any; collector: no; handler: no */
void GC_set_max_heap_size(GC_word bytes);

/* Trades memory for time: a cycle starts when about 1.7 * (live data + roots) / divisor was allocated since the last one, and up to 6 MiB more, of
 * which large heaps get less. Default 3; a larger number collects more often.   threads: any; collector: no; handler: no */
void GC_set_free_space_divisor(GC_word divisor);
GC_word GC_get_free_space_divisor(void);

/* More about when to collect. dont_expand: a cycle comes before the heap grows. min_bytes_allocd: at least so many bytes between cycles. allocd_bytes_per_finalizer: before
 * the heap grows, a cycle comes if there were fewer bytes for each new finalizer; 0 for no such rule. max_retries, dont_precollect: without effect on Larder.
 * threads: any; collector: no; handler: no */
void GC_set_dont_expand(int on);
int GC_get_dont_expand(void);
void GC_set_min_bytes_allocd(size_t bytes);
size_t GC_get_min_bytes_allocd(void);
void GC_set_allocd_bytes_per_finalizer(GC_word bytes);
GC_word GC_get_allocd_bytes_per_finalizer(void);
void GC_set_max_retries(GC_word count);
GC_word GC_get_max_retries(void);
void GC_set_dont_precollect(int on);
int GC_get_dont_precollect(void);

/* Incremental collection: collections that mark beside the program, which is stopped shortly at their beginning and end.
 * GC_enable_incremental turns them on where writes can be watched; GC_is_incremental_mode says whether they are on.
 * GC_start_incremental_collection begins one. GC_collect_a_little finishes one whose marking has ended, and returns 1 while
 * one marks. The time limit is how long a stop should last at most; GC_TIME_UNLIMITED, the default, means 1 ms.
 * GC_set_full_freq lets so many collections between two full ones trace only what was allocated since the last. The rate is
 * kept and steers nothing.
 * threads: any; collector: no; handler: no */
#define GC_PROTECTS_NONE 0
#define GC_PROTECTS_POINTER_HEAP 1
#define GC_PROTECTS_PTRFREE_HEAP 2
#define GC_PROTECTS_STATIC_DATA 4
#define GC_PROTECTS_STACK 8
#define GC_TIME_UNLIMITED 999999
int GC_is_incremental_mode(void);
int GC_incremental_protection_needs(void);
int GC_collect_a_little(void);
void GC_start_incremental_collection(void);
void GC_enable_incremental(void);
struct GC_timeval_s {
    unsigned long tv_ms;   /* milliseconds */
    unsigned long tv_nsec; /* nanoseconds beyond, below a million */
};
void GC_set_time_limit(unsigned long milliseconds);
unsigned long GC_get_time_limit(void);
void GC_set_time_limit_tv(struct GC_timeval_s limit);
struct GC_timeval_s GC_get_time_limit_tv(void);
void GC_set_full_freq(int cycles);
int GC_get_full_freq(void);
void GC_set_rate(int pages);
int GC_get_rate(void);
void GC_set_max_prior_attempts(int count);
int GC_get_max_prior_attempts(void);
void GC_set_manual_vdb_allowed(int on);
int GC_get_manual_vdb_allowed(void);

/* Whether code may run on the heap; before GC_init.   threads: start; collector: no; handler: no */
void GC_set_pages_executable(int on);
int GC_get_pages_executable(void);

/* Whether an address in the middle of an object, found in the heap or in static data, keeps the object. Default 1. On stacks and in
 * registers it always does.   threads: start; collector: no; handler: no */
void GC_set_all_interior_pointers(int on);
int GC_get_all_interior_pointers(void);

/* With GC_set_all_interior_pointers(0): addresses that are `offset` bytes inside an object keep it too.
 * threads: any; collector: no; handler: no */
void GC_register_displacement(size_t offset);

/* The same for debug objects, with the header before them and without. */
void GC_debug_register_displacement(size_t offset);
#ifdef GC_DEBUG
#define GC_REGISTER_DISPLACEMENT(offset) GC_debug_register_displacement(offset)
#else
#define GC_REGISTER_DISPLACEMENT(offset) GC_register_displacement(offset)
#endif

/* 1: the data of loaded libraries is not searched, except for what GC_add_roots names. The program's own data is searched by Larder all the same;
 * libgc on Linux searches neither then.
 * threads: start; collector: no; handler: no */
void GC_set_no_dls(int on);
int GC_get_no_dls(void);

/* The words from `low` up to `high` are searched at each collection. GC_remove_roots ends it for the registered ranges that lie in its range as a whole,
 * GC_clear_roots for all, and after GC_set_no_dls(1) for the program's own data, too.
 * threads: any; collector: no; handler: no */
void GC_add_roots(void *low, void *high_plus_1);
void GC_remove_roots(void *low, void *high_plus_1);
void GC_clear_roots(void);

/* The words of a range are not searched, be they static data or given to GC_add_roots; the second takes all such ranges back.
 * threads: any; collector: no; handler: no */
void GC_exclude_static_roots(void *low, void *high_plus_1);
void GC_clear_exclusion_table(void);

/* Asked about each range of a library's data (the program's name is empty): 0 keeps it from being searched. 0 for no such function. It runs in a
 * stopped world.   setting: threads: any; collector: no; handler: no */
typedef int (*GC_has_static_roots_func)(const char *name, void *start, size_t bytes);
void GC_register_has_static_roots_callback(GC_has_static_roots_func function);

/* ---- What the collector tells ----------------------------------------------------------------------------------------- */

/* Collections so far.   threads: any; collector: yes; handler: yes */
GC_word GC_get_gc_no(void);

/* Bytes in the heap, without what was given back; of these, bytes that are free (a lower bound, not all free memory is known between
 * collections); bytes that were given back; allocated since the last collection; allocated since the start.
 * threads: any; collector: yes; handler: yes */
size_t GC_get_heap_size(void);
size_t GC_get_free_bytes(void);
size_t GC_get_unmapped_bytes(void);
size_t GC_get_bytes_since_gc(void);
size_t GC_get_total_bytes(void);

/* The same five figures of one moment; 0 for those not wanted.   threads: any; collector: no; handler: no */
void GC_get_heap_usage_safe(GC_word *heap_size, GC_word *free_bytes, GC_word *unmapped_bytes, GC_word *bytes_since_gc,
                            GC_word *total_bytes);

/* Milliseconds in collections since GC_start_performance_measurement.   threads: any; collector: yes; handler: no */
void GC_start_performance_measurement(void);
unsigned long GC_get_full_gc_total_time(void);

/* Bytes freed by GC_free since the last collection; bytes that the kernel gave in all, what went back included; bytes in blocks that hold objects; bytes in uncollectable
 * objects, and what the program adds by setting the number.   threads: any; collector: yes; handler: yes */
size_t GC_get_expl_freed_bytes_since_gc(void);
size_t GC_get_obtained_from_os_bytes(void);
size_t GC_get_memory_use(void);
GC_word GC_get_non_gc_bytes(void);
void GC_set_non_gc_bytes(GC_word bytes);

/* How many bytes a request of `bytes` bytes takes, up to 2048; (size_t)-1 beyond.   threads: any, after GC_init; collector: yes; handler: yes */
size_t GC_get_size_map_at(int bytes);

/* All figures of one moment. GC_get_prof_stats stores those that fit into `size` bytes, sets what it does not know to -1, and returns the bytes of those it
 * knows. The unsafe one is for a caller that holds the allocation lock.   threads: any; collector: no, the unsafe one yes; handler: no */
struct GC_prof_stats_s {
    GC_word heapsize_full;             /* heap, with what was given back */
    GC_word free_bytes_full;           /* free, with what was given back */
    GC_word unmapped_bytes;            /* given back */
    GC_word bytes_allocd_since_gc;     /* allocated since the last collection */
    GC_word allocd_bytes_before_gc;    /* allocated before it */
    GC_word non_gc_bytes;              /* as GC_get_non_gc_bytes */
    GC_word gc_no;                     /* collections */
    GC_word markers_m1;                /* markers but one */
    GC_word bytes_reclaimed_since_gc;  /* what the last collection found dead */
    GC_word reclaimed_bytes_before_gc; /* what those before it found dead */
    GC_word expl_freed_bytes_since_gc; /* as GC_get_expl_freed_bytes_since_gc */
    GC_word obtained_from_os_bytes;    /* as GC_get_obtained_from_os_bytes */
};
size_t GC_get_prof_stats(struct GC_prof_stats_s *stats, size_t size);
#ifdef GC_THREADS
size_t GC_get_prof_stats_unsafe(struct GC_prof_stats_s *stats, size_t size);
#endif

/* Text about the collector's state, in the log: all, all under a name, block by block, links and finalizers.   threads: registered; collector: no; handler: no */
void GC_dump(void);
void GC_dump_named(const char *name);
void GC_dump_regions(void);
void GC_dump_finalization(void);

/* Where the log goes; standard error at first.   threads: any; collector: yes; handler: yes */
void GC_set_log_fd(int fd);

/* Called when the heap has grown by another step or given memory back; it must not allocate. 0 for none.   setting: threads: any; collector: no; handler: no */
typedef void (*GC_on_heap_resize_proc)(GC_word bytes);
extern GC_on_heap_resize_proc GC_on_heap_resize GC_ATTR_DEPRECATED;
void GC_set_on_heap_resize(GC_on_heap_resize_proc function);
GC_on_heap_resize_proc GC_get_on_heap_resize(void);

/* What happens in a collection, in the order in which the function is told. THREAD events come only to libgc's function for
 * thread events. */
typedef enum {
    GC_EVENT_START = 0,            /* a cycle begins */
    GC_EVENT_MARK_START = 1,       /* the world is stopped, marking begins */
    GC_EVENT_MARK_END = 2,
    GC_EVENT_RECLAIM_START = 3,    /* the world runs; what was not marked becomes free */
    GC_EVENT_RECLAIM_END = 4,
    GC_EVENT_END = 5,              /* the cycle is complete */
    GC_EVENT_PRE_STOP_WORLD = 6,   /* before the threads are stopped */
    GC_EVENT_POST_STOP_WORLD = 7,  /* all have stopped */
    GC_EVENT_PRE_START_WORLD = 8,  /* before they go on */
    GC_EVENT_POST_START_WORLD = 9, /* they run */
    GC_EVENT_THREAD_SUSPENDED = 10,
    GC_EVENT_THREAD_UNSUSPENDED = 11
} GC_EventType;

/* Calls `function` on the collecting thread at each event; 0 ends it. The last four of a cycle, from POST_START_WORLD on, may come from the thread that
 * begins the next one, before that one's first. Until PRE_START_WORLD the function holds the allocation lock: it may use what says "collector:
 * yes", take a time, store numbers; between POST_STOP_WORLD and PRE_START_WORLD it must not take a lock that a stopped thread may
 * hold, which includes malloc and printf.   threads: any; collector: no; handler: no */
typedef void (*GC_on_collection_event_proc)(GC_EventType event);
void GC_set_on_collection_event(GC_on_collection_event_proc function);
GC_on_collection_event_proc GC_get_on_collection_event(void);

#ifdef GC_THREADS
/* Calls `function` with each thread, a pthread_t, that a collection has stopped, and again before it goes on. The rules are those of GC_set_on_collection_event. */
typedef void (*GC_on_thread_event_proc)(GC_EventType event, void *thread);
void GC_set_on_thread_event(GC_on_thread_event_proc function);
GC_on_thread_event_proc GC_get_on_thread_event(void);
#endif

/* 1, before GC_init: objects that become unreachable without having been freed are reported on standard error, at each collection and when the program ends. Finalizers and
 * links are refused then. With debug allocation a report says where the object was made.   threads: start; collector: no; handler: no */
void GC_set_find_leak(int on);
int GC_get_find_leak(void);

/* Where warnings go; `format` has one place for the number. GC_ignore_warn_proc drops them.
 * setting: threads: any; collector: no; handler: no */
typedef void (*GC_warn_proc)(char *format, GC_word number);
void GC_set_warn_proc(GC_warn_proc function) GC_ATTR_NONNULL(1);
GC_warn_proc GC_get_warn_proc(void);
void GC_ignore_warn_proc(char *format, GC_word number);

/* ---- Finalizers and weak pointers --------------------------------------------------------------------------------------- */

/* Runs with the object and the value given at registration, when the object was found unreachable; the object lives on at least until it
 * returns. On an ordinary registered thread, in an allocation or in GC_invoke_finalizers. */
typedef void (*GC_finalization_proc)(void *object, void *value);

/* Registers a finalizer for the object that starts at `object`, 0 removes it; stores the one before through `old_function` and
 * `old_value` where these are not 0. They differ in what must be finalized first:
 *   register_finalizer              whatever points to an object is finalized before it; a cycle never is
 *   ..._ignore_self                 the same, but a pointer from the object to itself does not count
 *   ..._no_order                    all that is unreachable at once
 *   ..._unreachable                 as no_order, once it is not reachable from other finalizable objects either
 * threads: registered; collector: no; handler: no */
void GC_register_finalizer(void *object, GC_finalization_proc function, void *value, GC_finalization_proc *old_function,
                           void **old_value) GC_ATTR_NONNULL(1);
void GC_register_finalizer_ignore_self(void *object, GC_finalization_proc function, void *value,
                                       GC_finalization_proc *old_function, void **old_value) GC_ATTR_NONNULL(1);
void GC_register_finalizer_no_order(void *object, GC_finalization_proc function, void *value,
                                    GC_finalization_proc *old_function, void **old_value) GC_ATTR_NONNULL(1);
void GC_register_finalizer_unreachable(void *object, GC_finalization_proc function, void *value,
                                       GC_finalization_proc *old_function, void **old_value) GC_ATTR_NONNULL(1);

/* The same for debug objects. */
void GC_debug_register_finalizer(void *object, GC_finalization_proc function, void *value, GC_finalization_proc *old_function,
                                 void **old_value) GC_ATTR_NONNULL(1);
void GC_debug_register_finalizer_ignore_self(void *object, GC_finalization_proc function, void *value,
                                             GC_finalization_proc *old_function, void **old_value) GC_ATTR_NONNULL(1);
void GC_debug_register_finalizer_no_order(void *object, GC_finalization_proc function, void *value,
                                          GC_finalization_proc *old_function, void **old_value) GC_ATTR_NONNULL(1);
void GC_debug_register_finalizer_unreachable(void *object, GC_finalization_proc function, void *value,
                                             GC_finalization_proc *old_function, void **old_value) GC_ATTR_NONNULL(1);

#ifdef GC_DEBUG
#define GC_REGISTER_FINALIZER(o, f, v, of, ov) GC_debug_register_finalizer(o, f, v, of, ov)
#define GC_REGISTER_FINALIZER_IGNORE_SELF(o, f, v, of, ov) GC_debug_register_finalizer_ignore_self(o, f, v, of, ov)
#define GC_REGISTER_FINALIZER_NO_ORDER(o, f, v, of, ov) GC_debug_register_finalizer_no_order(o, f, v, of, ov)
#define GC_REGISTER_FINALIZER_UNREACHABLE(o, f, v, of, ov) GC_debug_register_finalizer_unreachable(o, f, v, of, ov)
#define GC_END_STUBBORN_CHANGE(object) GC_debug_end_stubborn_change(object)
#define GC_GENERAL_REGISTER_DISAPPEARING_LINK(link, object) GC_general_register_disappearing_link(link, GC_base((void *)(object)))
#define GC_REGISTER_LONG_LINK(link, object) GC_register_long_link(link, GC_base((void *)(object)))
#else
#define GC_REGISTER_FINALIZER(o, f, v, of, ov) GC_register_finalizer(o, f, v, of, ov)
#define GC_REGISTER_FINALIZER_IGNORE_SELF(o, f, v, of, ov) GC_register_finalizer_ignore_self(o, f, v, of, ov)
#define GC_REGISTER_FINALIZER_NO_ORDER(o, f, v, of, ov) GC_register_finalizer_no_order(o, f, v, of, ov)
#define GC_REGISTER_FINALIZER_UNREACHABLE(o, f, v, of, ov) GC_register_finalizer_unreachable(o, f, v, of, ov)
#define GC_END_STUBBORN_CHANGE(object) GC_end_stubborn_change(object)
#define GC_GENERAL_REGISTER_DISAPPEARING_LINK(link, object) GC_general_register_disappearing_link(link, object)
#define GC_REGISTER_LONG_LINK(link, object) GC_register_long_link(link, object)
#endif

/* Called for each object that a collection queues for finalization, with the allocation lock held; 0 for none.
 * setting: threads: any; collector: no; handler: no */
typedef void (*GC_await_finalize_proc)(void *object);
void GC_set_await_finalize_proc(GC_await_finalize_proc function);
GC_await_finalize_proc GC_get_await_finalize_proc(void);

/* Runs the finalizers that are due and says how many it ran.   threads: registered; collector: no; handler: no */
int GC_invoke_finalizers(void);

/* Whether there are any.   threads: any; collector: yes; handler: yes */
int GC_should_invoke_finalizers(void);

/* 1: finalizers run only in GC_invoke_finalizers, no longer in allocations; and `function` is called after a collection that made some due.
 * threads: any; collector: no; handler: no */
void GC_set_finalize_on_demand(int on);
int GC_get_finalize_on_demand(void);
typedef void (*GC_finalizer_notifier_proc)(void);
void GC_set_finalizer_notifier(GC_finalizer_notifier_proc function);
GC_finalizer_notifier_proc GC_get_finalizer_notifier(void);

/* 1, the default: an object of GC_register_finalizer_unreachable waits while an object that is queued without order can reach it. What queued
 * objects point to stays alive either way; libgc promises that only with 1.
 * threads: start; collector: no; handler: no */
void GC_set_java_finalization(int on);
int GC_get_java_finalization(void);

/* `link`, the address of a word, is set to 0 when `object` has become unreachable, before finalizers run. The word is a weak pointer if it is in
 * pointer-free memory, and must be read in GC_call_with_alloc_lock then. Without the "general" the object is the one that the word is in.
 * Returns 0, 1 (GC_DUPLICATE) where the link was registered before, 2 (GC_NO_MEMORY).
 * threads: registered; collector: no; handler: no */
int GC_register_disappearing_link(void **link) GC_ATTR_NONNULL(1);
int GC_general_register_disappearing_link(void **link, const void *object) GC_ATTR_NONNULL(1) GC_ATTR_NONNULL(2);

/* As GC_general_register_disappearing_link, but cleared only when finalizers can no longer bring the object back.
 * threads: registered; collector: no; handler: no */
int GC_register_long_link(void **link, const void *object) GC_ATTR_NONNULL(1) GC_ATTR_NONNULL(2);

/* Moves a registration to another word: GC_SUCCESS, GC_DUPLICATE, or GC_NOT_FOUND.   threads: registered; collector: no; handler: no */
int GC_move_disappearing_link(void **link, void **new_link) GC_ATTR_NONNULL(2);
int GC_move_long_link(void **link, void **new_link) GC_ATTR_NONNULL(2);

/* Ends a registration: 1 if there was one, else 0.   threads: registered; collector: no; handler: no */
int GC_unregister_disappearing_link(void **link);
int GC_unregister_long_link(void **link);

#define GC_SUCCESS 0
#define GC_DUPLICATE 1
#define GC_NO_MEMORY 2
#define GC_NO_THREADS 2 /* never returned */
#define GC_UNIMPLEMENTED 3
#define GC_NOT_FOUND 4

/* References from outside of the collector's sight that are strong or weak as the program says anew before each collection: `function` is asked about each object of
 * GC_toggleref_add, with the allocation lock held and the world running, until it answers DROP or a weak object died. Without a function adding does nothing.
 * GC_toggleref_add: threads: registered; collector: no; handler: no */
typedef enum { GC_TOGGLE_REF_DROP, GC_TOGGLE_REF_STRONG, GC_TOGGLE_REF_WEAK } GC_ToggleRefStatus;
typedef GC_ToggleRefStatus (*GC_toggleref_func)(void *object);
void GC_set_toggleref_func(GC_toggleref_func function);
GC_toggleref_func GC_get_toggleref_func(void);
int GC_toggleref_add(void *object, int is_strong) GC_ATTR_NONNULL(1);

/* A pointer in a form that keeps nothing alive. To be turned back in GC_call_with_alloc_lock, if the object may die meanwhile. */
typedef GC_word GC_hidden_pointer;
#define GC_HIDE_POINTER(pointer) (~(GC_hidden_pointer)(pointer))
#define GC_REVEAL_POINTER(hidden) ((void *)GC_HIDE_POINTER(hidden))
#if defined(I_HIDE_POINTERS) || defined(GC_I_HIDE_POINTERS)
#define HIDE_POINTER(pointer) GC_HIDE_POINTER(pointer)
#define REVEAL_POINTER(hidden) GC_REVEAL_POINTER(hidden)
#endif

/* Calls `function(argument)` with the allocation lock held: no collection happens meanwhile, and no other thread has the lock. Other threads may
 * allocate. The function must not.
 * threads: registered; collector: no; handler: no */
typedef void *(*GC_fn_type)(void *argument);
void *GC_call_with_alloc_lock(GC_fn_type function, void *argument) GC_ATTR_NONNULL(1);

/* The lock by itself; it does not nest.   threads: registered; collector: no; handler: no */
#ifdef GC_THREADS
void GC_alloc_lock(void);
void GC_alloc_unlock(void);
#else
#define GC_alloc_lock() (void)0
#define GC_alloc_unlock() (void)0
#endif

/* Does nothing that a compiler can see through: `object`, and what it points to, is alive up to here. */
#ifdef __GNUC__
#define GC_reachable_here(object) __asm__ volatile(" " : : "X"(object) : "memory")
#else
void GC_noop1(GC_word word);
#define GC_reachable_here(object) GC_noop1((GC_word)(object))
#endif

/* ---- Threads ------------------------------------------------------------------------------------------------------------ */

/* Where a stack begins. */
struct GC_stack_base {
    void *mem_base;
};

/* Calls `function` with the place at which the caller's stack begins.   threads: any; collector: no; handler: no */
typedef void *(*GC_stack_base_func)(struct GC_stack_base *base, void *argument);
void *GC_call_with_stack_base(GC_stack_base_func function, void *argument) GC_ATTR_NONNULL(1);

/* Stores where the calling thread's stack begins; GC_SUCCESS.   threads: any; collector: no; handler: no */
int GC_get_stack_base(struct GC_stack_base *base) GC_ATTR_NONNULL(1);

/* Calls `function(argument)` as a thread that does not touch the heap: it may sleep in the kernel for as long as it likes, a
 * collection neither waits for it nor signals it. It must not use collected objects, which stay alive.
 * threads: registered; collector: no; handler: no */
void *GC_do_blocking(GC_fn_type function, void *argument) GC_ATTR_NONNULL(1);

/* The way back in, from inside GC_do_blocking.   threads: inside GC_do_blocking, or registered; collector: no; handler: no */
void *GC_call_with_gc_active(GC_fn_type function, void *argument) GC_ATTR_NONNULL(1);

/* The base of the calling thread's stack as the collector knows it, with a handle of the thread; and its replacement, for programs that switch stacks: 0 is the calling thread.
 * The caller of GC_set_stackbottom holds the allocation lock, or comes before GC_init and means the main thread.   threads: registered; collector: no, setting yes; handler: no */
void *GC_get_my_stackbottom(struct GC_stack_base *base) GC_ATTR_NONNULL(1);
void GC_set_stackbottom(void *thread, const struct GC_stack_base *base) GC_ATTR_NONNULL(2);

/* Creates marker threads; Larder does that when it has work for them.   threads: registered; collector: no; handler: no */
void GC_start_mark_threads(void);

#ifdef GC_THREADS

/* The number of markers but one; and the number of markers, before GC_init, 0 for the collector's choice.   threads: start; collector: no, reading yes; handler: no */
int GC_get_parallel(void);
void GC_set_markers_count(unsigned count);

/* The calling thread's ordinary stack and its alternate signal stack. Larder finds both by itself; what is announced is searched in each collection.
 * threads: registered; collector: no; handler: no */
void GC_register_altstack(void *stack, GC_word stack_bytes, void *alternate, GC_word alternate_bytes);

/* Stops all other registered threads, and lets them go on. No allocation between.   threads: registered; collector: no; handler: no */
void GC_stop_world_external(void);
void GC_start_world_external(void);

/* Threads that were started without GC_pthread_create may be registered from now on.   threads: registered; collector: no; handler: no */
void GC_allow_register_threads(void);

/* Registers the calling thread: GC_SUCCESS, or GC_DUPLICATE where it was. Unregister before it ends.
 * threads: any, after GC_allow_register_threads; collector: no; handler: no */
int GC_register_my_thread(const struct GC_stack_base *base) GC_ATTR_NONNULL(1);

/* The calling thread uses collected memory no longer.   threads: registered; collector: no; handler: no */
int GC_unregister_my_thread(void);

/* Whether the calling thread is registered.   threads: any; collector: no; handler: yes */
int GC_thread_is_registered(void);

/* The signals that stop and resume threads: SIGPWR and SIGXCPU unless set. A thread must not block them for long; GC_pthread_sigmask leaves
 * them open.   setting: threads: start; collector: no; handler: no.  reading: threads: any; collector: yes; handler: yes */
void GC_set_suspend_signal(int number);
void GC_set_thr_restart_signal(int number);
int GC_get_suspend_signal(void);
int GC_get_thr_restart_signal(void);

/* 1, before GC_init: fork is handled through pthread_atfork. -1: the program calls the three functions around fork itself, which do nothing
 * otherwise. Larder handles the C library's fork in both cases; a fork by a system call of the program's own needs -1 and the calls.
 * GC_set_handle_fork: threads: start.  The others: registered, the same one before and after, with no other use of the library between; collector: no; handler: no */
void GC_set_handle_fork(int value);
void GC_atfork_prepare(void);
void GC_atfork_parent(void);
void GC_atfork_child(void);

#endif /* GC_THREADS */

/* ---- Checked pointers ------------------------------------------------------------------------------------------------- */

/* For programs whose preprocessor puts calls around pointer arithmetic. Each returns its first argument, and calls the function behind it when something is wrong; the first functions
 * print a line and abort. same_obj: both addresses lie in the same object, or none in the heap. is_valid_displacement: an address in the heap keeps an object. is_visible: a pointer stored
 * there is seen. pre_incr and post_incr add bytes to a pointer variable.   threads: registered; collector: no; handler: no */
void *GC_same_obj(void *p, void *q);
void *GC_is_valid_displacement(void *p);
void *GC_is_visible(void *p);
void *GC_pre_incr(void **pointer, ptrdiff_t bytes) GC_ATTR_NONNULL(1);
void *GC_post_incr(void **pointer, ptrdiff_t bytes) GC_ATTR_NONNULL(1);
extern void (*GC_same_obj_print_proc)(void *p, void *q);
extern void (*GC_is_valid_displacement_print_proc)(void *p);
extern void (*GC_is_visible_print_proc)(void *p);

/* Stores a pointer and tells of it, as above, the pointer that it overwrites included; with debug allocation checks both.
 * threads: registered; collector: no; handler: no */
void GC_ptr_store_and_dirty(void *place, const void *pointer);
void GC_debug_ptr_store_and_dirty(void *place, const void *pointer);

#if defined(GC_DEBUG) && defined(__GNUC__)
#define GC_PTR_ADD3(x, n, result) ((result)GC_same_obj((x) + (n), (x)))
#define GC_PRE_INCR3(x, n, result) ((result)GC_pre_incr((void **)(&(x)), (n) * sizeof(*x)))
#define GC_POST_INCR3(x, n, result) ((result)GC_post_incr((void **)(&(x)), (n) * sizeof(*x)))
#define GC_PTR_ADD(x, n) GC_PTR_ADD3(x, n, __typeof__(x))
#define GC_PRE_INCR(x, n) GC_PRE_INCR3(x, n, __typeof__(x))
#define GC_POST_INCR(x) GC_POST_INCR3(x, 1, __typeof__(x))
#define GC_POST_DECR(x) GC_POST_INCR3(x, -1, __typeof__(x))
#else
#define GC_PTR_ADD(x, n) ((x) + (n))
#define GC_PRE_INCR(x, n) ((x) += (n))
#define GC_POST_INCR(x) ((x)++)
#define GC_POST_DECR(x) ((x)--)
#endif
#ifdef GC_DEBUG
#define GC_PTR_STORE(p, q) (*(void **)GC_is_visible((void *)(p)) = GC_is_valid_displacement((void *)(q)))
#define GC_PTR_STORE_AND_DIRTY(p, q) GC_debug_ptr_store_and_dirty(p, q)
#else
#define GC_PTR_STORE(p, q) (*(void **)(p) = (void *)(q))
#define GC_PTR_STORE_AND_DIRTY(p, q) GC_ptr_store_and_dirty(p, q)
#endif

/* ---- Variables -------------------------------------------------------------------------------------------------------- */

/* What the functions of similar names set and get, as variables, which old programs read and write directly. They are live: read when they are used. GC_stackbottom is where the
 * main thread's stack begins. GC_use_entire_heap: no cycle before the heap, as large as it is, is used up. */
extern GC_word GC_gc_no GC_ATTR_DEPRECATED;
extern int GC_parallel GC_ATTR_DEPRECATED;
extern int GC_find_leak GC_ATTR_DEPRECATED;
extern int GC_all_interior_pointers GC_ATTR_DEPRECATED;
extern int GC_finalize_on_demand GC_ATTR_DEPRECATED;
extern int GC_java_finalization GC_ATTR_DEPRECATED;
extern GC_finalizer_notifier_proc GC_finalizer_notifier GC_ATTR_DEPRECATED;
extern int GC_dont_gc;
extern int GC_dont_expand GC_ATTR_DEPRECATED;
extern int GC_use_entire_heap GC_ATTR_DEPRECATED;
extern int GC_full_freq GC_ATTR_DEPRECATED;
extern GC_word GC_non_gc_bytes GC_ATTR_DEPRECATED;
extern int GC_no_dls GC_ATTR_DEPRECATED;
extern GC_word GC_free_space_divisor GC_ATTR_DEPRECATED;
extern GC_word GC_max_retries GC_ATTR_DEPRECATED;
extern char *GC_stackbottom GC_ATTR_DEPRECATED;
extern int GC_dont_precollect GC_ATTR_DEPRECATED;
extern unsigned long GC_time_limit GC_ATTR_DEPRECATED;

#ifdef __cplusplus
}
#endif

#ifdef GC_PTHREADS
#include "gc_pthread_redirects.h"
#endif

#endif /* GC_H */
