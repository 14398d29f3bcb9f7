//! The young generation as the space below the allocation buffers of `larder-lab`.
//!
//! It never collects by itself: an allocation that finds nothing collects where it holds nothing, and takes its object
//! from what that has freed. So the buffers' slow path is never stopped in.

use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use larder_lab::{Chunk, ChunkSource, Request, Why};
use larder_units::Bytes;

use crate::space::Space;
use crate::young::Young;

/// Where the buffers get their memory.
pub struct YoungSource {
    /// Sync: set once, before any thread attaches.
    space: AtomicPtr<Space>,
    /// Sync: as `space`.
    young: AtomicPtr<Young>,
    /// Counts collections. Sync: changed in a stopped world.
    epoch: AtomicU64,
}

impl YoungSource {
    pub(crate) const fn new() -> Self {
        Self {
            space: AtomicPtr::new(core::ptr::null_mut()),
            young: AtomicPtr::new(core::ptr::null_mut()),
            epoch: AtomicU64::new(0),
        }
    }

    /// Names the parts of the heap that it belongs to.
    ///
    /// # Safety
    /// They live as long as this.
    pub(crate) unsafe fn connect(&self, space: &Space, young: &Young) {
        self.space.store(core::ptr::from_ref(space).cast_mut(), Ordering::Relaxed);
        self.young.store(core::ptr::from_ref(young).cast_mut(), Ordering::Relaxed);
    }

    fn parts(&self) -> (&Space, &Young) {
        // SAFETY: `connect` was called before any thread could attach.
        unsafe { (&*self.space.load(Ordering::Relaxed), &*self.young.load(Ordering::Relaxed)) }
    }

    /// A collection begins: chunks of before are no memory any more when it ends.
    pub(crate) fn next_epoch(&self) {
        self.epoch.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: the young generation hands out each piece once until the next collection, which changes the epoch.
unsafe impl ChunkSource for YoungSource {
    fn obtain(&self, request: Request) -> Option<Chunk> {
        if request.may_collect {
            return None;
        }
        let (space, young) = self.parts();
        let range = young.obtain(space, request.least.0, request.most.0)?;
        space.fill(range.clone(), 0);
        Some(Chunk { start: range.start, end: range.end, epoch: self.epoch() })
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
