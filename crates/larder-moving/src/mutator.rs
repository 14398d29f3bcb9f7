//! One thread's use of a heap: allocation, stores, roots, safepoints.

use core::marker::PhantomData;
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::cycle::Outcome;
use crate::functions::{ClassFunction, Site};
use crate::handles::{Finalizer, Handle, Keep};
use crate::heap::{Heap, OutOfMemory, Want};
use crate::host::{Collection, Host};
use crate::space::{LARGEST_SMALL, rounded};
use crate::thread::{Frame, Thread};

/// The calling thread, attached to a heap. Detaches when dropped.
///
/// An object may move whenever the thread reaches a *safepoint*: [`allocate`](Self::allocate) and its kin,
/// [`poll`](Self::poll), [`blocking`](Self::blocking), [`collect`](Self::collect). An address that is needed beyond one
/// lives in a root: a local, a frame's slot, a handle.
pub struct Mutator<'h, H: Host> {
    heap: &'h Heap<H>,
    thread: &'h Thread,
    /// A thread's record is its own.
    _stays: PhantomData<*const ()>,
}

/// A root of the thread's, until the scope that it was made in ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Local(usize);

impl<'h, H: Host> Mutator<'h, H> {
    pub(crate) fn new(heap: &'h Heap<H>, thread: &'h Thread) -> Self {
        Self { heap, thread, _stays: PhantomData }
    }

    /// Gives the mutator up as its record's address; [`Mutator::from_raw`] brings it back. For doors whose callers are not
    /// Rust.
    pub fn into_raw(self) -> *const Thread {
        core::mem::ManuallyDrop::new(self).thread
    }

    /// The mutator of a record, to be used or, by dropping it, to be detached.
    ///
    /// # Safety
    /// The record came from [`Mutator::into_raw`] of a heap with this host, which still lives; the caller is its thread, and
    /// drops at most one of these.
    pub unsafe fn from_raw(thread: *const Thread) -> Self {
        // SAFETY: the caller's promise; a record names the heap that it is attached to.
        unsafe {
            let thread = &*thread;
            Self::new(&*thread.heap.get().cast::<Heap<H>>(), thread)
        }
    }

    /// The heap.
    pub fn heap(&self) -> &'h Heap<H> {
        self.heap
    }

    /// The thread's record: what compiled code uses. See [`crate::sequence`].
    pub fn thread(&self) -> &'h Thread {
        self.thread
    }

    /// A zeroed object of `bytes` bytes (rounded up to a multiple of 16, and at least that) in the young generation. A
    /// safepoint.
    #[inline(always)]
    pub fn allocate(&self, bytes: usize) -> Result<*mut u8, OutOfMemory> {
        if bytes <= LARGEST_SMALL {
            let at = self.heap.take(self.thread, rounded(bytes));
            if at != 0 {
                return Ok(self.heap.space.pointer(at));
            }
        }
        let at = self.heap.allocate_slow(self.thread, bytes)?;
        Ok(self.heap.space.pointer(at))
    }

    /// As [`Mutator::allocate`], by a class's function, which knows how long its instances are and whom the buffers belong to.
    /// A safepoint.
    #[inline(always)]
    pub fn allocate_by(&self, function: &ClassFunction<H>) -> Result<*mut u8, OutOfMemory> {
        // SAFETY: the calling thread's record, attached to a heap with this host; the thread is between safepoints.
        let at = unsafe { function.allocate(Site::of(self.thread)) };
        if at == 0 {
            return Err(OutOfMemory { wanted: larder_units::Bytes(function.words() * larder_lab::WORD) });
        }
        Ok(self.heap.space.pointer(at))
    }

    /// As [`Mutator::allocate`], in the old generation: for what is known to live long. A safepoint.
    pub fn allocate_old(&self, bytes: usize) -> Result<*mut u8, OutOfMemory> {
        Ok(self.heap.space.pointer(self.heap.allocate_old(self.thread, bytes)?))
    }

    /// Stores a reference into an object's slot. Every store of a reference goes through here, or through the sequence that
    /// [`crate::sequence`] publishes, but for stores of 0, and stores into an object that [`Mutator::allocate`] returned since
    /// the thread's last safepoint. (Not `allocate_old`: such an object is old at once.)
    ///
    /// # Safety
    /// The slot is one of a live object's, and the value is a reference of this heap, 0, or no address of it.
    #[inline(always)]
    pub unsafe fn store(&self, slot: *mut usize, value: usize) {
        // SAFETY: the caller's promise. Atomic, because another thread may read or write the slot.
        unsafe { AtomicUsize::from_ptr(slot) }.store(value, Ordering::Relaxed);
        self.heap.after_store(self.thread, slot.addr(), value);
    }

    /// What must follow a store that the host makes itself, a compare-and-swap for instance.
    #[inline(always)]
    pub fn after_store(&self, slot: *mut usize, value: usize) {
        self.heap.after_store(self.thread, slot.addr(), value);
    }

    /// Stands still if a collection wants that. A safepoint, for loops that do not allocate.
    #[inline(always)]
    pub fn poll(&self) {
        if self.thread.status.wants_stop() {
            self.heap.stop_here(self.thread);
        }
    }

    /// Runs `f`, which does not touch the heap and may take long or wait; collections do not wait for it. A safepoint.
    pub fn blocking<R>(&mut self, f: impl FnOnce() -> R) -> R {
        self.heap.while_safe(self.thread, f)
    }

    /// Forks by calling `fork`, which returns what fork(2) does; returns that. A safepoint: other threads are waited for as
    /// for a collection. In the child the heap is as it was, the calling thread is its only mutator, and collectors are made
    /// when it first collects. References that only other threads' locals and frames held are gone there.
    ///
    /// A child that uses the heap without this, because some code has called fork(2) by itself, may wait for ever; one that
    /// calls exec(2) at once needs nothing. With several heaps, fork one in the function of the other.
    pub fn fork(&mut self, fork: impl FnOnce() -> i32) -> i32 {
        self.heap.fork(self.thread, fork)
    }

    /// Collects. A safepoint.
    pub fn collect(&self, kind: Collection) {
        if self.heap.config.null {
            return;
        }
        if let Outcome::Overtaken = self.heap.collect(self.thread, kind, Want::Nothing, None) {
            unreachable!("a collection that was asked for is not given up");
        }
    }

    fn locals<R>(&self, f: impl FnOnce(&mut crate::list::List<usize>) -> R) -> R {
        // SAFETY: the owner thread, and `f` does not come back here.
        f(unsafe { &mut *self.thread.locals.get() })
    }

    /// Runs `f`; the locals that were made in it end with it.
    pub fn scope<R>(&self, f: impl FnOnce(&Self) -> R) -> R {
        let before = self.locals(|locals| locals.len());
        let result = f(self);
        self.locals(|locals| locals.truncate(before));
        result
    }

    /// A local root with this reference.
    pub fn local(&self, value: usize) -> Local {
        self.locals(|locals| {
            locals.push(value);
            Local(locals.len() - 1)
        })
    }

    /// A local's reference, as it is now.
    pub fn get(&self, local: Local) -> usize {
        self.locals(|locals| locals.as_slice()[local.0])
    }

    /// Changes a local.
    pub fn set(&self, local: Local, value: usize) {
        self.locals(|locals| locals.as_mut_slice()[local.0] = value);
    }

    /// Links a frame: its slots are roots until it is unlinked.
    ///
    /// # Safety
    /// The frame and its slots stay where they are until [`Mutator::unlink`], and the frame is this thread's newest.
    pub unsafe fn link(&self, frame: *mut Frame) {
        // SAFETY: the caller's promise.
        unsafe { (*frame).previous = self.thread.frames.get() };
        self.thread.frames.set(frame);
    }

    /// Unlinks the newest frame.
    ///
    /// # Safety
    /// There is one.
    pub unsafe fn unlink(&self) {
        // SAFETY: the caller's promise.
        self.thread.frames.set(unsafe { (*self.thread.frames.get()).previous });
    }

    /// Makes a handle of a reference.
    pub fn handle(&self, value: usize, keep: Keep) -> Handle {
        self.heap.handles.with(|tables| tables.add(value, keep))
    }

    /// A handle's reference as it is now; 0 if it is weak and its object has died.
    pub fn get_handle(&self, handle: Handle) -> usize {
        self.heap.handles.with(|tables| tables.entry(handle).value)
    }

    /// Changes a handle's reference.
    pub fn set_handle(&self, handle: Handle, value: usize) {
        self.heap.handles.with(|tables| tables.entry(handle).value = value);
    }

    /// Ends a handle.
    pub fn release(&self, handle: Handle) {
        self.heap.handles.with(|tables| tables.release(handle));
    }

    /// Asks to be told when the object has died: [`Mutator::next_dead`] then returns it, once, with `token`. What is no address in the
    /// heap never dies.
    pub fn watch(&self, object: usize, token: usize) {
        self.heap.handles.with(|tables| tables.finalizers.push(Finalizer { object, token }));
    }

    /// The next object that is dead but for being watched, and its token. It and what it refers to are as they were; weak
    /// references to it have been cleared. It is an ordinary object from now on, and dies when nothing refers to it.
    pub fn next_dead(&self) -> Option<(usize, usize)> {
        self.heap.handles.with(|tables| tables.next_ready().map(|dead| (dead.object, dead.token)))
    }
}

impl<H: Host> Drop for Mutator<'_, H> {
    fn drop(&mut self) {
        self.heap.detach(self.thread);
    }
}
