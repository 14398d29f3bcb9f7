/*
 * gc.h - the C interface of Larder, in the words of libgc.
 *
 * A program compiled against this header runs on Larder and, unchanged, on libgc 8.2 or later: names, types and values
 * agree. This is the part of the interface that ordinary programs use; a program that needs more of it can be compiled against
 * libgc's own header and runs on Larder just the same.
 *
 *     #define GC_THREADS          before the include, in every file that uses threads
 *     #include <gc.h>
 *     cc -pthread program.c -lgc
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

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* An unsigned and a signed integer as wide as a pointer. */
typedef unsigned long GC_word;
typedef long GC_signed_word;

#ifdef __GNUC__
#define GC_ATTR_MALLOC __attribute__((__malloc__))
#define GC_ATTR_ALLOC_SIZE(place) __attribute__((__alloc_size__(place)))
#define GC_ATTR_NONNULL(place) __attribute__((__nonnull__(place)))
#else
#define GC_ATTR_MALLOC
#define GC_ATTR_ALLOC_SIZE(place)
#define GC_ATTR_NONNULL(place)
#endif

/* ---- Start ---------------------------------------------------------------------------------------------------------- */

/* Initialises the collector and registers the calling thread. Reads the GC_ variables of the environment. Harmless when repeated; the
 * first allocation does it too, so that only programs with settings of their own must call it.
 * threads: start; collector: no; handler: no */
void GC_init(void);

/* 1 after GC_init.   threads: any; collector: yes; handler: yes */
int GC_is_init_called(void);

/* Version of the interface: major << 16 | minor << 8 | micro.   threads: any; collector: yes; handler: yes */
unsigned GC_get_version(void);

#define GC_INIT() GC_init()

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

#define GC_MALLOC(bytes) GC_malloc(bytes)
#define GC_MALLOC_ATOMIC(bytes) GC_malloc_atomic(bytes)
#define GC_MALLOC_UNCOLLECTABLE(bytes) GC_malloc_uncollectable(bytes)
#define GC_MALLOC_ATOMIC_UNCOLLECTABLE(bytes) GC_malloc_atomic_uncollectable(bytes)
#define GC_MALLOC_IGNORE_OFF_PAGE(bytes) GC_malloc_ignore_off_page(bytes)
#define GC_MALLOC_ATOMIC_IGNORE_OFF_PAGE(bytes) GC_malloc_atomic_ignore_off_page(bytes)
#define GC_REALLOC(object, bytes) GC_realloc(object, bytes)
#define GC_FREE(object) GC_free(object)
#define GC_STRDUP(text) GC_strdup(text)
#define GC_STRNDUP(text, most) GC_strndup(text, most)
#define GC_NEW(type) ((type *)GC_malloc(sizeof(type)))
#define GC_NEW_ATOMIC(type) ((type *)GC_malloc_atomic(sizeof(type)))
#define GC_NEW_UNCOLLECTABLE(type) ((type *)GC_malloc_uncollectable(sizeof(type)))

/* Called when memory has run out, with the size wanted; its result becomes the allocation's. It may free memory, not return (longjmp), or
 * end the program.   setting: threads: any; collector: no; handler: no */
typedef void *(*GC_oom_func)(size_t bytes);
void GC_set_oom_fn(GC_oom_func function) GC_ATTR_NONNULL(1);
GC_oom_func GC_get_oom_fn(void);

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

/* Whether an address in the middle of an object, found in the heap or in static data, keeps the object. Default 1. On stacks and in
 * registers it always does.   threads: start; collector: no; handler: no */
void GC_set_all_interior_pointers(int on);
int GC_get_all_interior_pointers(void);

/* With GC_set_all_interior_pointers(0): addresses that are `offset` bytes inside an object keep it too.
 * threads: any; collector: no; handler: no */
void GC_register_displacement(size_t offset);

/* 1: the data of loaded libraries is not searched, except for what GC_add_roots names. The program's own data is searched by Larder all the same;
 * libgc on Linux searches neither then.
 * threads: start; collector: no; handler: no */
void GC_set_no_dls(int on);
int GC_get_no_dls(void);

/* The words from `low` up to `high` are searched at each collection. GC_remove_roots ends it for the words of its range (on libgc for registered ranges
 * that lie inside as a whole). GC_clear_roots ends it for all, and on Larder for the program's own data, for good; libgc finds that anew.
 * threads: any; collector: no; handler: no */
void GC_add_roots(void *low, void *high_plus_1);
void GC_remove_roots(void *low, void *high_plus_1);
void GC_clear_roots(void);

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

/* Calls `function` on the collecting thread at each event; 0 ends it. The function holds the allocation lock: it may use what says "collector:
 * yes", take a time, store numbers; between POST_STOP_WORLD and PRE_START_WORLD it must not take a lock that a stopped thread may
 * hold, which includes malloc and printf.   threads: any; collector: no; handler: no */
typedef void (*GC_on_collection_event_proc)(GC_EventType event);
void GC_set_on_collection_event(GC_on_collection_event_proc function);
GC_on_collection_event_proc GC_get_on_collection_event(void);

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

#define GC_REGISTER_FINALIZER(o, f, v, of, ov) GC_register_finalizer(o, f, v, of, ov)
#define GC_REGISTER_FINALIZER_IGNORE_SELF(o, f, v, of, ov) GC_register_finalizer_ignore_self(o, f, v, of, ov)
#define GC_REGISTER_FINALIZER_NO_ORDER(o, f, v, of, ov) GC_register_finalizer_no_order(o, f, v, of, ov)
#define GC_REGISTER_FINALIZER_UNREACHABLE(o, f, v, of, ov) GC_register_finalizer_unreachable(o, f, v, of, ov)

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
#define GC_UNIMPLEMENTED 3
#define GC_NOT_FOUND 4

/* Calls `function(argument)` with the allocation lock held: no collection happens meanwhile, and no other thread has the lock. Other threads may
 * allocate. The function must not.
 * threads: registered; collector: no; handler: no */
typedef void *(*GC_fn_type)(void *argument);
void *GC_call_with_alloc_lock(GC_fn_type function, void *argument) GC_ATTR_NONNULL(1);

/* Does nothing that a compiler can see through: `object`, and what it points to, is alive up to here. */
#ifdef __GNUC__
#define GC_reachable_here(object) __asm__ volatile(" " : : "X"(object) : "memory")
#else
void GC_noop1(GC_word);
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

#ifdef GC_THREADS

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

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>

/* As the functions of the same names without GC_; a thread that these start is registered from its first instruction to its last, and an
 * object in its start argument or result is alive on the way. The lines below put them in place of the originals; define
 * GC_NO_THREAD_REDIRECTS to do without.   threads: registered; collector: no; handler: no */
int GC_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument);
int GC_pthread_join(pthread_t thread, void **result);
int GC_pthread_detach(pthread_t thread);
int GC_pthread_cancel(pthread_t thread);
void GC_pthread_exit(void *result) __attribute__((__noreturn__));

/* As pthread_sigmask, but never blocks the signal that stops threads.   threads: any; collector: no; handler: no */
int GC_pthread_sigmask(int how, const sigset_t *set, sigset_t *old_set);

/* As dlopen, and never in the middle of a collection.   threads: registered; collector: no; handler: no */
void *GC_dlopen(const char *path, int mode);

#ifndef GC_NO_THREAD_REDIRECTS
#undef pthread_create
#undef pthread_join
#undef pthread_detach
#undef pthread_cancel
#undef pthread_exit
#undef pthread_sigmask
#undef dlopen
#define pthread_create GC_pthread_create
#define pthread_join GC_pthread_join
#define pthread_detach GC_pthread_detach
#define pthread_cancel GC_pthread_cancel
#define pthread_exit GC_pthread_exit
#define pthread_sigmask GC_pthread_sigmask
#define dlopen GC_dlopen
#endif

#endif /* GC_THREADS */

#ifdef __cplusplus
}
#endif

#endif /* GC_H */
