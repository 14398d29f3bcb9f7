//! Allocation functions of a heap: for objects of 1 to 40 words, in a set for each way of the buffers (VEE'05, 5 and 5.2).
//!
//! A class keeps the function for the size of its instances and calls it with the thread's record. The fast path is that of one way
//! and one size and tests neither; the slow path polls for stops. When a collection flips the buffers, the heap's own table is
//! changed, and [`Host::flipped`] says so, while the world is stopped: the host updates its classes and the calls that it has
//! generated. What still calls the old set finds closed buffers there and is redirected, at the price of the slow path.

use core::marker::PhantomData;
use core::sync::atomic::{AtomicPtr, Ordering};

use larder_lab::{AllocationFunction, SPECIALISED, Way, function};

use crate::heap::Heap;
use crate::host::Host;
use crate::space::rounded;
use crate::thread::Thread;

/// A thread's record, as the allocation functions of a heap with this host take it. It is nothing but the record: compiled
/// code passes that one's address.
#[repr(transparent)]
pub struct Site<H> {
    thread: Thread,
    host: PhantomData<fn(H)>,
}

/// The allocation function of a class of such a host; [`Mutator::allocate_by`](crate::Mutator::allocate_by) calls it.
pub type ClassFunction<H> = AllocationFunction<Site<H>>;

impl<H: Host> Site<H> {
    /// # Safety
    /// The thread is attached to a heap with this host.
    pub(crate) unsafe fn of(thread: &Thread) -> &Self {
        // SAFETY: transparent.
        unsafe { &*core::ptr::from_ref(thread).cast() }
    }

    fn heap(&self) -> &Heap<H> {
        // SAFETY: a record names the heap that it is attached to, and who made this has vouched for the host.
        unsafe { &*self.thread.heap.get().cast() }
    }
}

// SAFETY: memory of the heap's buffers. `take` and `missed` ask that the caller is the record's thread, between safepoints.
unsafe impl<H: Host> larder_lab::Site for Site<H> {
    #[inline(always)]
    unsafe fn take(&self, way: Way, bytes: usize) -> usize {
        if way.is_by_thread() {
            return self.thread.take_own(rounded(bytes));
        }
        if way == Way::Processor {
            return self.thread.take_by_processor(rounded(bytes));
        }
        self.heap().take_in(way, &self.thread, rounded(bytes))
    }

    unsafe fn missed(&self, way: Way, bytes: usize) -> usize {
        let heap = self.heap();
        // First, because the stop may flip.
        if self.thread.status.wants_stop() {
            heap.stop_here(&self.thread);
        }
        heap.buffers.note_miss(way);
        heap.allocate_slow(&self.thread, bytes).unwrap_or(0)
    }
}

/// The functions of the set in use, for code that is generated: `of_words[n]` allocates objects of `n` words; `of_words[0]` is that
/// for one word. They take the thread's record and return the object's address, or 0.
#[repr(C)]
pub struct Functions {
    of_words: [AtomicPtr<()>; SPECIALISED + 1],
}

impl Functions {
    pub(crate) fn new<H: Host>(way: Way) -> Self {
        let table = Self { of_words: [const { AtomicPtr::new(core::ptr::null_mut()) }; SPECIALISED + 1] };
        table.use_set::<H>(way);
        table
    }

    /// Replaces all functions by those of another way. No thread runs compiled code.
    pub(crate) fn use_set<H: Host>(&self, way: Way) {
        for (words, place) in self.of_words.iter().enumerate() {
            if let Some(function) = function::<Site<H>>(way, words.max(1)) {
                place.store(function as *mut (), Ordering::Relaxed);
            }
        }
    }
}
