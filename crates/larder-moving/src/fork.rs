//! Fork: a child whose heap is whole.
//!
//! The mutator that forks stops the world as a collection does, so no other thread is inside the heap: none has a lock, a
//! half-made refill or a half-moved object. What the child has to mend is then little: it has one thread, so the others'
//! records become free and their roots go; every buffer is taken back; the collectors are forgotten, and made anew when the
//! child first collects.
//!
//! `pthread_atfork` would not do: its handlers run on whatever thread forks, which may be in the middle of an allocation.

use crate::heap::Heap;
use crate::host::Host;
use crate::thread::{Thread, Threads};

impl<H: Host> Heap<H> {
    /// Calls `fork` in a stopped world; in the child, where it returns 0, all other threads are gone.
    pub(crate) fn fork(&self, thread: &Thread, fork: impl FnOnce() -> i32) -> i32 {
        self.while_safe(thread, || {
            let _guard = self.collecting.lock();
            let result = self.registry.with(|threads| {
                self.stop(threads);
                // The lock of the handles is the only one that is taken by threads that are not attached.
                let result = self.handles.with(|_| fork());
                if result == 0 {
                    // SAFETY: a child of fork has one thread.
                    unsafe { self.after_fork_in_child(thread, threads) };
                }
                self.release(threads);
                result
            });
            self.safepoint.announce();
            result
        })
    }

    /// # Safety
    /// The calling thread is the only one of the process, and the world was stopped when it forked.
    unsafe fn after_fork_in_child(&self, own: &Thread, threads: &Threads) {
        // SAFETY: the caller's promise. Chunks stay what they are: the epoch need not change.
        unsafe { self.retire(threads) };
        self.buffers.after_fork_in_child();
        // Old buffers live on from collection to collection; only those of threads that are gone are taken back.
        self.old_buffers.after_fork_in_child();
        for thread in threads.iter().filter(|&thread| !core::ptr::eq(thread, own)) {
            self.flush_stores(thread);
            // SAFETY: the thread of this record is not in this process.
            unsafe { self.old_buffers.retire_own(&thread.old_lab) };
            self.forget_roots(thread);
            // SAFETY: the caller's promise; the thread of this record is not in this process.
            unsafe { thread.status.reset_after_fork() };
            threads.free(thread);
        }
        // SAFETY: the caller's promise.
        unsafe { self.gang.reset_after_fork() };
    }
}
