/* Threads through the collector. Part of gc.h, where GC_THREADS is defined.
 *
 * A thread that GC_pthread_create starts is registered from its first instruction to its last, and an object in its start argument or result is alive on the way.
 * The functions behave as those without GC_, in whose places the macros put them; define GC_NO_THREAD_REDIRECTS before the include to do without the macros.
 * GC_NO_DLOPEN, GC_NO_PTHREAD_SIGMASK and GC_NO_PTHREAD_CANCEL leave single ones out; GC_PTHREAD_REDIRECTS_ONLY leaves out the declarations, for a second include.
 */
#if !defined(GC_PTHREAD_REDIRECTS_H) || defined(GC_PTHREAD_REDIRECTS_ONLY)
#define GC_PTHREAD_REDIRECTS_H

#if defined(GC_H) && defined(GC_PTHREADS)

#ifndef GC_PTHREAD_REDIRECTS_ONLY

#include <pthread.h>
#ifndef GC_NO_DLOPEN
#include <dlfcn.h>
#endif
#ifndef GC_NO_PTHREAD_SIGMASK
#include <signal.h>
#endif

#ifndef GC_SUSPEND_THREAD_ID
#define GC_SUSPEND_THREAD_ID pthread_t
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* threads: registered; collector: no; handler: no */
int GC_pthread_create(pthread_t *thread, GC_PTHREAD_CREATE_CONST pthread_attr_t *attributes, void *(*start)(void *), void *argument);
int GC_pthread_join(pthread_t thread, void **result);
int GC_pthread_detach(pthread_t thread);
#ifndef GC_NO_PTHREAD_CANCEL
int GC_pthread_cancel(pthread_t thread);
#endif
#ifndef GC_PTHREAD_EXIT_DECLARED
#define GC_PTHREAD_EXIT_DECLARED
void GC_pthread_exit(void *result) GC_PTHREAD_EXIT_ATTRIBUTE;
#endif

/* As pthread_sigmask, but never blocks the signal that stops threads.   threads: any; collector: no; handler: no */
#ifndef GC_NO_PTHREAD_SIGMASK
int GC_pthread_sigmask(int how, const sigset_t *set, sigset_t *old_set);
#endif

/* As dlopen, and never in the middle of a collection.   threads: registered; collector: no; handler: no */
#ifndef GC_NO_DLOPEN
void *GC_dlopen(const char *path, int mode);
#endif

#ifdef __cplusplus
}
#endif

#endif /* GC_PTHREAD_REDIRECTS_ONLY */

#if !defined(GC_NO_THREAD_REDIRECTS) && !defined(GC_USE_LD_WRAP)
#undef pthread_create
#undef pthread_join
#undef pthread_detach
#undef pthread_exit
#define pthread_create GC_pthread_create
#define pthread_join GC_pthread_join
#define pthread_detach GC_pthread_detach
#define pthread_exit GC_pthread_exit
#ifndef GC_NO_PTHREAD_CANCEL
#undef pthread_cancel
#define pthread_cancel GC_pthread_cancel
#endif
#ifndef GC_NO_PTHREAD_SIGMASK
#undef pthread_sigmask
#define pthread_sigmask GC_pthread_sigmask
#endif
#ifndef GC_NO_DLOPEN
#undef dlopen
#define dlopen GC_dlopen
#endif
#endif

#endif /* GC_H and GC_PTHREADS */

#endif
