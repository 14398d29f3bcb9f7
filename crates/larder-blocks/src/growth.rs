//! How far a range is mapped, where the address space is limited (`ulimit -v`).
//!
//! The kernel counts what is mapped, accessible or not. A range that is mapped as a whole at the start would take from the program what
//! the heap may never need: stacks of threads, malloc. So there the range's addresses are only chosen at the start, far from where the
//! kernel places mappings by itself, and its beginning is mapped. The rest follows in place, as blocks are taken. Everything about an
//! address is found by the same arithmetic as elsewhere. Something that lies in the way, which somebody has put there by its address,
//! ends the heap.
//!
//! A program may limit itself after the range was reserved as a whole, and then all of it counts. What of it was never made accessible is given
//! back when that is noticed, and the range goes on as one that is mapped as it is needed.
//!
//! One thread at a time maps, with signals blocked: an allocation in a handler may need more as well, and would wait for its own thread.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

use larder_sync::lock::Lock;
use larder_sys::memory::KeepErrno;
use larder_sys::signal::Mask;
use larder_sys::thread;
use larder_units::Blocks;

/// How far the range is mapped.
pub(crate) struct Growth {
    /// Sync: written before any other thread uses the heap, or under `lock`; `growth.on`.
    on: AtomicBool,
    /// Blocks that are mapped, from the first.
    ///
    /// Sync: written under `lock`; it only grows. Relaxed: when the call returns that maps, memory is there for every thread.
    mapped: AtomicUsize,
    /// Somebody relies on all of the range being mapped, so that it stays. Sync: written under `lock`.
    stays: AtomicBool,
    /// Held by who maps, and over a fork.
    lock: Lock,
    /// The thread that forks, by its thread pointer; it holds `lock`, and handlers that it runs meanwhile may allocate.
    ///
    /// Sync: written under `lock`. Relaxed: a thread that finds itself here has written that.
    forks: AtomicUsize,
}

impl Growth {
    pub(crate) const fn new() -> Self {
        Self {
            on: AtomicBool::new(false),
            mapped: AtomicUsize::new(0),
            stays: AtomicBool::new(false),
            lock: Lock::new(),
            forks: AtomicUsize::new(0),
        }
    }

    /// Before any other thread uses the heap.
    pub(crate) fn begin(&self, on: bool) {
        self.on.store(on, Ordering::Relaxed);
    }

    /// From here on the range is mapped as it is needed, if `give_back` gives back all but what it then returns. It is called where whoever
    /// begins to make memory accessible sees that already, and waits.
    pub(crate) fn begin_late(&self, give_back: impl FnOnce() -> Option<Blocks>) -> bool {
        self.exclusive(|| {
            if self.is_on() || self.stays.load(Ordering::Relaxed) {
                return false;
            }
            self.on.store(true, Ordering::Relaxed);
            // ORDER growth.on: full, with the fence in `Space::commit_to`: between this and the number of those who make memory accessible.
            // Who is not seen by its number sees this, and waits in `grow`.
            fence(Ordering::SeqCst);
            match give_back() {
                Some(mapped) => self.mapped.store(mapped.0, Ordering::Relaxed),
                None => self.on.store(false, Ordering::Relaxed),
            }
            self.is_on()
        })
    }

    /// A range that is mapped as a whole stays so.
    pub(crate) fn stay(&self) {
        self.exclusive(|| self.stays.store(true, Ordering::Relaxed));
    }

    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    pub(crate) fn mapped(&self) -> Blocks {
        Blocks(self.mapped.load(Ordering::Relaxed))
    }

    /// Sees to it that `goal` blocks are mapped, by `map(have, goal)`, which does all of it or nothing.
    pub(crate) fn grow(&self, goal: Blocks, map: impl FnOnce(Blocks, Blocks) -> bool) -> bool {
        if self.mapped() >= goal {
            return true;
        }
        self.exclusive(|| {
            let have = self.mapped();
            // Nothing was given back after all, and everything is mapped.
            if have >= goal || !self.is_on() {
                return true;
            }
            let done = map(have, goal);
            if done {
                self.mapped.store(goal.0, Ordering::Relaxed);
            }
            done
        })
    }

    /// Calls `f` with nobody else and no handler meanwhile.
    fn exclusive<R>(&self, f: impl FnOnce() -> R) -> R {
        let _errno = KeepErrno::new();
        let mask = Mask::all_but_faults().set();
        let guard = (!self.is_forking()).then(|| self.lock.lock());
        let result = f();
        drop(guard);
        mask.set();
        result
    }

    /// Whether the calling thread is between `before_fork` and what follows it.
    fn is_forking(&self) -> bool {
        self.forks.load(Ordering::Relaxed) == thread::thread_pointer().addr()
    }

    pub(crate) fn before_fork(&self) {
        let mask = Mask::all_but_faults().set();
        self.lock.lock_raw();
        self.forks.store(thread::thread_pointer().addr(), Ordering::Relaxed);
        mask.set();
    }

    /// # Safety
    /// The calling thread called `before_fork`.
    pub(crate) unsafe fn after_fork_in_parent(&self) {
        let mask = Mask::all_but_faults().set();
        self.forks.store(0, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { self.lock.unlock_raw() };
        mask.set();
    }

    /// # Safety
    /// The calling thread called `before_fork` and is the only one of the child.
    pub(crate) unsafe fn reset_after_fork(&self) {
        let mask = Mask::all_but_faults().set();
        self.forks.store(0, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { self.lock.reset_after_fork() };
        mask.set();
    }
}
