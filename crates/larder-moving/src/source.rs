//! The two generations as the spaces below the allocation buffers of `larder-lab`: each has a set of its own.
//!
//! They never collect by themselves: an allocation that finds nothing collects where it holds nothing, and takes its object
//! from what that has freed. So the buffers' slow path is never stopped in.

use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use larder_lab::{Chunk, ChunkSource, Request, Why};
use larder_units::Bytes;

use crate::old::Old;
use crate::space::Space;
use crate::young::Young;

/// Where buffers get their memory: a generation.
pub struct Source<G> {
    /// Sync: set once, before any thread attaches.
    space: AtomicPtr<Space>,
    /// Sync: as `space`.
    generation: AtomicPtr<G>,
    /// Counts the collections that leave no buffer as it was. Sync: changed in a stopped world.
    epoch: AtomicU64,
}

/// Where the buffers of the young generation get their memory.
pub type YoungSource = Source<Young>;
/// Where buffers for objects that are old from the beginning get theirs.
pub type OldSource = Source<Old>;

impl<G> Source<G> {
    pub(crate) const fn new() -> Self {
        Self {
            space: AtomicPtr::new(core::ptr::null_mut()),
            generation: AtomicPtr::new(core::ptr::null_mut()),
            epoch: AtomicU64::new(0),
        }
    }

    /// Names the parts of the heap that it belongs to.
    ///
    /// # Safety
    /// They live as long as this.
    pub(crate) unsafe fn connect(&self, space: &Space, generation: &G) {
        self.space.store(core::ptr::from_ref(space).cast_mut(), Ordering::Relaxed);
        self.generation.store(core::ptr::from_ref(generation).cast_mut(), Ordering::Relaxed);
    }

    fn parts(&self) -> (&Space, &G) {
        // SAFETY: `connect` was called before any thread could attach.
        unsafe { (&*self.space.load(Ordering::Relaxed), &*self.generation.load(Ordering::Relaxed)) }
    }

    /// A collection of this generation begins, a full one for the old: chunks of before are no memory any more when it ends.
    pub(crate) fn next_epoch(&self) {
        self.epoch.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: the young generation hands out each piece once until the next collection, which changes the epoch.
unsafe impl ChunkSource for YoungSource {
    /// Mutators stop at safepoints, and only they allocate.
    const STOPPED_ANYWHERE: bool = false;

    fn obtain(&self, request: Request) -> Option<Chunk> {
        if request.may_collect {
            return None;
        }
        let (space, young) = self.parts();
        let range = young.obtain(space, request.least.0, request.most.0)?;
        space.fill(range.clone(), 0);
        Some(Chunk { start: range.start, end: range.end, epoch: self.epoch() })
    }

    fn may_join(&self, at: usize) -> bool {
        self.parts().1.may_join(at)
    }

    unsafe fn give_back(&self, rest: Chunk, _: Why) {
        let (space, young) = self.parts();
        young.give_back(space, rest.start..rest.end);
    }

    fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Relaxed)
    }

    fn left(&self) -> Bytes {
        Bytes(self.parts().1.left())
    }
}

// SAFETY: the old generation hands out each piece once until the next full collection, which changes the epoch.
unsafe impl ChunkSource for OldSource {
    /// Mutators stop at safepoints, and only they allocate.
    const STOPPED_ANYWHERE: bool = false;

    fn obtain(&self, request: Request) -> Option<Chunk> {
        if request.may_collect {
            return None;
        }
        let range = self.parts().1.obtain(request.least.0, request.most.0)?;
        Some(Chunk { start: range.start, end: range.end, epoch: self.epoch() })
    }

    fn prepare(&self, chunk: Chunk) {
        self.parts().0.fill(chunk.start..chunk.end, 0);
    }

    /// Only what lies at the end goes back: anything else is found by the next full collection, which slides over it.
    unsafe fn give_back(&self, rest: Chunk, _: Why) {
        self.parts().1.give_back(rest.start..rest.end);
    }

    fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Relaxed)
    }

    fn left(&self) -> Bytes {
        self.parts().1.left()
    }
}
