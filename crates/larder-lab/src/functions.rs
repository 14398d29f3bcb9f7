//! Specialised allocation functions: one for each way and each size up to 40 words (VEE'05, sections 5 and 5.2).
//!
//! All instances of a class have one size, so the function that allocates them knows it, and it knows whom the buffers belong
//! to: its fast path tests neither. The sets are segregated by that. When a stop flips the buffers, functions of the set
//! that is not in use find empty buffers, because the stop has closed them all, and their slow path goes the right way; so a
//! thread that was stopped inside one, and code that still calls the old set, are only slower. The host is told by
//! [`ChunkSource::flipped`](crate::ChunkSource::flipped) and updates its classes, and whatever code it has generated.
//!
//! What a function is called with is the host's: a [`Site`], its record of the calling thread, say. The host says how its fast
//! path takes in each way, and what happens where that takes nothing: its slow path polls for stops, refills, and collects.
//!
//! ```
//! # use larder_lab::{AllocationFunction, Buffers, BumpSpace, Config, Lab, Site, Way};
//! struct Thread<'b> {
//!     buffers: &'b Buffers<BumpSpace>,
//!     lab: Lab,
//! }
//!
//! // SAFETY: whoever allocates has set the buffers up, and nobody stops its thread.
//! unsafe impl Site for Thread<'_> {
//!     unsafe fn take(&self, way: Way, bytes: usize) -> usize {
//!         unsafe { self.buffers.take_in(way, &self.lab, bytes) }
//!     }
//!     unsafe fn missed(&self, way: Way, bytes: usize) -> usize {
//!         self.buffers.note_miss(way);
//!         unsafe { self.buffers.allocate_slow(&self.lab, bytes) }
//!     }
//! }
//! # let mut memory = vec![0u64; 1 << 16];
//! # let range = memory.as_mut_ptr_range();
//! # let space = unsafe { BumpSpace::new(range.start.expose_provenance(), range.end.expose_provenance(), true) };
//! # let buffers = Buffers::new(space, Config::by_concurrency_id());
//! # buffers.set_up().unwrap();
//! let mine = Thread { buffers: &buffers, lab: Lab::new() };
//! let pair = AllocationFunction::new(buffers.way(), 2).unwrap();
//! // SAFETY: set up; nobody stops this thread.
//! let cell = unsafe { pair.allocate(&mine) };
//! assert_ne!(cell, 0);
//! ```

use core::marker::PhantomData;
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::buffers::{WORD, Way};

/// The largest size that has functions of its own, in words.
pub const SPECIALISED: usize = 40;

/// What allocation functions are called with: from it they find the buffers.
///
/// # Safety
/// Both methods return 0, or the address of so many bytes that are nobody else's.
pub unsafe trait Site {
    /// The fast path of `way`, which is or was the way of the buffers: `bytes`, or 0. It is compiled for each way and size, so
    /// it is inlined, and what it asks about them costs nothing.
    ///
    /// # Safety
    /// As the implementation says.
    unsafe fn take(&self, way: Way, bytes: usize) -> usize;

    /// The slow path, where `take` returned 0. The buffers' way may be another one.
    ///
    /// # Safety
    /// As for [`take`](Self::take).
    unsafe fn missed(&self, way: Way, bytes: usize) -> usize;
}

/// Allocates an object of one size: its address, or 0.
///
/// # Safety
/// As for [`Site::take`].
pub type Function<T> = unsafe extern "C" fn(&T) -> usize;

macro_rules! set {
    ($name:ident, $way:expr) => {
        unsafe extern "C" fn $name<T: Site, const WORDS: usize>(site: &T) -> usize {
            // SAFETY: the caller's promise.
            unsafe {
                let at = site.take($way, WORDS * WORD);
                if at != 0 { at } else { missed(site, $way, WORDS) }
            }
        }
    };
}

set!(by_thread, Way::Thread);
set!(by_processor, Way::Processor);
set!(shared, Way::Shared);
set!(by_thread_alone, Way::ThreadAlone);

/// Kept out of the functions, so that each is nothing but its fast path and a jump.
#[cold]
#[inline(never)]
unsafe fn missed<T: Site>(site: &T, way: Way, words: usize) -> usize {
    // SAFETY: the caller's promise.
    unsafe { site.missed(way, words * WORD) }
}

macro_rules! sizes {
    ($name:ident) => {
        sizes! { $name; 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36
            37 38 39 40 }
    };
    ($name:ident; $($words:literal)*) => {
        [$($name::<T, $words> as Function<T>,)*]
    };
}

/// One set for each way; a constant of its own, because statics cannot be generic.
struct Sets<T>(PhantomData<T>);

impl<T: Site> Sets<T> {
    const BY_THREAD: [Function<T>; SPECIALISED] = sizes!(by_thread);
    const BY_PROCESSOR: [Function<T>; SPECIALISED] = sizes!(by_processor);
    const SHARED: [Function<T>; SPECIALISED] = sizes!(shared);
    const BY_THREAD_ALONE: [Function<T>; SPECIALISED] = sizes!(by_thread_alone);
}

/// The function of a way's set for objects of so many words; `None` where the size has none of its own.
pub fn function<T: Site>(way: Way, words: usize) -> Option<Function<T>> {
    let set = match way {
        Way::Thread => Sets::BY_THREAD,
        Way::Processor => Sets::BY_PROCESSOR,
        Way::Shared => Sets::SHARED,
        Way::ThreadAlone => Sets::BY_THREAD_ALONE,
    };
    set.get(words.checked_sub(1)?).copied()
}

/// The function by which the instances of a class are allocated: part of what the host keeps about the class.
pub struct AllocationFunction<T> {
    /// A [`Function`]. Sync: written in a stopped world.
    function: AtomicPtr<()>,
    words: usize,
    site: PhantomData<fn(&T)>,
}

impl<T: Site> AllocationFunction<T> {
    /// The function for objects of so many words where buffers have this way; `None` where the size has none of its own.
    pub fn new(way: Way, words: usize) -> Option<Self> {
        let function = function::<T>(way, words)?;
        Some(Self { function: AtomicPtr::new(function as *mut ()), words, site: PhantomData })
    }

    /// Takes the function of the set that is in use now: after a flip, while the world is stopped. Not doing it costs time only.
    pub fn update(&self, way: Way) {
        if let Some(function) = function::<T>(way, self.words) {
            self.function.store(function as *mut (), Ordering::Relaxed);
        }
    }

    /// How many words the objects have.
    pub fn words(&self) -> usize {
        self.words
    }

    /// The function, for code that is generated.
    pub fn function(&self) -> Function<T> {
        // SAFETY: what is stored is a `Function<T>`.
        unsafe { core::mem::transmute::<*mut (), Function<T>>(self.function.load(Ordering::Relaxed)) }
    }

    /// Allocates an instance: its address, or 0.
    ///
    /// # Safety
    /// As for [`Site::take`].
    #[inline(always)]
    pub unsafe fn allocate(&self, site: &T) -> usize {
        // SAFETY: the caller's promise.
        unsafe { self.function()(site) }
    }
}
