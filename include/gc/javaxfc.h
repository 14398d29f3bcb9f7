/*
 * javaxfc.h - for runtimes of Java and its like.
 */
#ifndef GC_JAVAXFC_H
#define GC_JAVAXFC_H

#include "gc.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Runs all registered finalizers, those of reachable objects too, until none is registered any more.   threads: registered; collector: no; handler: no */
void GC_finalize_all(void);

#ifdef GC_THREADS
/* Suspends a registered thread until GC_resume_thread, however often it was suspended; returns when it stands still. Collections go on meanwhile. Does nothing for other threads. A thread may suspend itself.
 * threads: registered; collector: no; handler: no */
#ifndef GC_SUSPEND_THREAD_ID
#define GC_SUSPEND_THREAD_ID void *
#endif
void GC_suspend_thread(GC_SUSPEND_THREAD_ID thread);
void GC_resume_thread(GC_SUSPEND_THREAD_ID thread);
int GC_is_thread_suspended(GC_SUSPEND_THREAD_ID thread);
#endif

#ifdef __cplusplus
}
#endif

#endif
