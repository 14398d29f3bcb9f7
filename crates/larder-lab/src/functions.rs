//! Specialised allocation functions: one for each way and each size up to 40 words (VEE'05, sections 5 and 5.2).
//!
//! All instances of a class have one size, so the function that allocates them knows it, and it knows whom the buffers belong
//! to: its fast path tests neither. The sets are segregated by that. When a stop flips the buffers, functions of the set
//! that is not in use find empty buffers, because the stop has closed them all, and their slow path goes the right way; so a
//! thread that was stopped inside one, and code that still calls the old set, are only slower. The host is told by
//! [`ChunkSource::flipped`] and updates its classes, and whatever code it has generated.
//!
//! ```
//! # use larder_lab::{AllocationFunction, Buffers, BumpSpace, Config, Lab};
//! # let mut memory = vec![0u64; 1 << 16];
//! # let range = memory.as_mut_ptr_range();
//! # let space = unsafe { BumpSpace::new(range.start.expose_provenance(), range.end.expose_provenance(), true) };
//! # let buffers = Buffers::new(space, Config::by_concurrency_id());
//! # buffers.set_up().unwrap();
//! # let mine = Lab::new();
//! let pair = AllocationFunction::new(&buffers, 2).unwrap();
//! // SAFETY: set up; nobody stops this thread.
//! let cell = unsafe { pair.allocate(&buffers, &mine) };
//! assert_ne!(cell, 0);
//! ```

use core::marker::PhantomData;
use core::sync::atomic::{AtomicPtr, Ordering};

use larder_percpu::sequence;

use crate::buffers::{Buffers, WORD, Way};
use crate::counters::add;
use crate::lab::Lab;
use crate::source::ChunkSource;

/// The largest size that has functions of its own, in words.
pub const SPECIALISED: usize = 40;

/// Allocates an object of one size: its address, or 0. The second argument is the calling thread's own buffer.
///
/// # Safety
/// As for [`Buffers::allocate`].
pub type Function<S> = unsafe extern "C" fn(&Buffers<S>, &Lab) -> usize;

macro_rules! set {
    ($name:ident, $way:expr, |$buffers:ident, $mine:ident, $bytes:ident| $take:expr) => {
        unsafe extern "C" fn $name<S: ChunkSource, const WORDS: usize>($buffers: &Buffers<S>, $mine: &Lab) -> usize {
            let $bytes = WORDS * WORD;
            // SAFETY: the set is given out only where its way is, or was, the one of the buffers; the caller vouches for the rest.
            unsafe {
                let at = $take;
                if at != 0 { at } else { missed($buffers, $mine, $bytes, $way) }
            }
        }
    };
}

set!(by_thread, Way::Thread, |buffers, mine, bytes| buffers.take_by_thread(mine, bytes));
set!(by_processor, Way::Processor, |buffers, mine, bytes| buffers.take_by_processor(bytes));
set!(shared, Way::Shared, |buffers, mine, bytes| buffers.take_shared(bytes));
set!(by_thread_alone, Way::ThreadAlone, |buffers, mine, bytes| sequence::bump_own(&mine.slot, bytes));

/// The slow path of a function of this set.
#[cold]
unsafe fn missed<S: ChunkSource>(buffers: &Buffers<S>, mine: &Lab, bytes: usize, way: Way) -> usize {
    if buffers.way() != way {
        add(&buffers.counters.redirected, 1);
    }
    // SAFETY: the caller's promise.
    unsafe { buffers.allocate_slow(mine, bytes) }
}

macro_rules! sizes {
    ($name:ident) => {
        sizes! { $name; 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36
            37 38 39 40 }
    };
    ($name:ident; $($words:literal)*) => {
        [$($name::<S, $words> as Function<S>,)*]
    };
}

/// One set for each way; a constant of its own, because statics cannot be generic.
struct Sets<S>(PhantomData<S>);

impl<S: ChunkSource> Sets<S> {
    const BY_THREAD: [Function<S>; SPECIALISED] = sizes!(by_thread);
    const BY_PROCESSOR: [Function<S>; SPECIALISED] = sizes!(by_processor);
    const SHARED: [Function<S>; SPECIALISED] = sizes!(shared);
    const BY_THREAD_ALONE: [Function<S>; SPECIALISED] = sizes!(by_thread_alone);

    const fn of(way: Way) -> &'static [Function<S>; SPECIALISED] {
        match way {
            Way::Thread => &const { Self::BY_THREAD },
            Way::Processor => &const { Self::BY_PROCESSOR },
            Way::Shared => &const { Self::SHARED },
            Way::ThreadAlone => &const { Self::BY_THREAD_ALONE },
        }
    }
}

impl<S: ChunkSource> Buffers<S> {
    /// The set that is in use: the function for objects of `n` words is at `n - 1`.
    pub fn functions(&self) -> &'static [Function<S>; SPECIALISED] {
        Sets::of(self.way())
    }
}

/// The function by which the instances of a class are allocated: part of what the host keeps about the class.
pub struct AllocationFunction<S> {
    /// A [`Function`]. Sync: written in a stopped world.
    function: AtomicPtr<()>,
    words: usize,
    space: PhantomData<fn(&S)>,
}

impl<S: ChunkSource + 'static> AllocationFunction<S> {
    /// The function for objects of so many words; `None` where the size has none of its own.
    pub fn new(buffers: &Buffers<S>, words: usize) -> Option<Self> {
        let function = buffers.functions().get(words.checked_sub(1)?)?;
        Some(Self { function: AtomicPtr::new(*function as *mut ()), words, space: PhantomData })
    }

    /// Takes the function of the set that is in use now: after a flip, while the world is stopped. Not doing it costs time only.
    pub fn update(&self, buffers: &Buffers<S>) {
        self.function.store(buffers.functions()[self.words - 1] as *mut (), Ordering::Relaxed);
    }

    /// How many words the objects have.
    pub fn words(&self) -> usize {
        self.words
    }

    /// Allocates an instance: its address, or 0.
    ///
    /// # Safety
    /// As for [`Buffers::allocate`], with the buffers that the function was made for.
    #[inline(always)]
    pub unsafe fn allocate(&self, buffers: &Buffers<S>, mine: &Lab) -> usize {
        // SAFETY: what is stored is a `Function<S>`.
        let function = unsafe { core::mem::transmute::<*mut (), Function<S>>(self.function.load(Ordering::Relaxed)) };
        // SAFETY: the caller's promise.
        unsafe { function(buffers, mine) }
    }
}
