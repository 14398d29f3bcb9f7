//! The fixed heap's buffers: one run of free, ready cells for each association index, kind and size class.
//!
//! VEE'05 section 5: buffers belong to processors, not to threads, so their number (and what they waste) grows with
//! CPUs. Here the index is the concurrency id, or the CPU, or, where the kernel has no restartable sequences, the
//! thread. All cells of a buffer have one size, so a buffer is empty exactly when its frontier meets its limit, and
//! what a stop retires is a whole number of cells.

use core::sync::atomic::{AtomicUsize, Ordering};

use larder_percpu::Ground;
pub use larder_percpu::ground::Association;
pub use larder_percpu::sequence::SLAB;
use larder_percpu::sequence::{self, Slot};
use larder_sys::memory::{self, ReserveError};
use larder_sys::{membarrier, tls};
use larder_units::Bytes;

/// Size classes for which a slab has room.
pub const CLASSES: usize = 64;
/// Kinds of objects for which a slab has room.
pub const KINDS: usize = 16;

const _: () = assert!(CLASSES * KINDS * size_of::<Slot>() == SLAB);

/// A slab's offset of the slot for a kind and a class.
#[inline(always)]
pub const fn slot_offset(kind: usize, class: usize) -> usize {
    (kind * CLASSES + class) * size_of::<Slot>()
}

/// The buffers of the process.
///
/// Sync: `slabs` is written once, by `set_up`; the slots are described at [`Slot`].
pub struct Labs {
    ground: Ground,
    /// Address of the slab of index 0; as many slabs again behind them keep limits while buffers are retired.
    slabs: AtomicUsize,
}

/// What a refill found when it wanted to install a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Installed {
    /// The run is the index's buffer now.
    Yes,
    /// The index has a buffer already (another thread refilled it, or the thread moved): keep the run aside.
    No,
}

impl Labs {
    /// Buffers that are all empty.
    pub const fn new() -> Self {
        Self { ground: Ground::new(), slabs: AtomicUsize::new(0) }
    }

    /// Maps the slabs and chooses the association.
    pub fn set_up(&self, possible_cpus: usize) -> Result<Association, ReserveError> {
        let slabs = memory::map_lazy(Bytes(2 * possible_cpus * SLAB))?;
        self.slabs.store(slabs.as_ptr().expose_provenance(), Ordering::Relaxed);
        Ok(self.ground.set_up(possible_cpus))
    }

    /// Whether buffers belong to threads because sequences are not available.
    pub fn by_thread(&self) -> bool {
        self.ground.indices() == 0
    }

    /// The fast path: takes `bytes` (a cell, or several that lie side by side) from the current index's buffer, or returns 0.
    ///
    /// # Safety
    /// `set_up` found sequences, and this thread knows it. `offset` comes from [`slot_offset`], and `bytes` is the size of the class that it was made for, or
    /// a multiple.
    #[inline(always)]
    pub unsafe fn take(&self, offset: usize, bytes: usize) -> usize {
        let slot = self.slabs.load(Ordering::Relaxed) + offset;
        // SAFETY: `set_up` mapped as many slabs as the ground has indices.
        unsafe { sequence::bump(&self.ground, slot, bytes) }
    }

    /// The fast path where buffers belong to threads; 0 when the thread has none or it is empty.
    ///
    /// # Safety
    /// As for [`Labs::take`].
    #[inline]
    pub unsafe fn take_own(&self, offset: usize, bytes: usize) -> usize {
        match own_slot(offset) {
            // SAFETY: the slot is in the calling thread's own slab.
            Some(slot) => unsafe { sequence::bump_own(slot, bytes) },
            None => 0,
        }
    }

    /// Makes `[frontier, limit)` the current index's buffer if that is exhausted.
    ///
    /// The caller is in a slow path, so no stop comes between its taking the run from a block and this.
    ///
    /// # Safety
    /// As for [`Labs::take`]; the run is the caller's alone, ready to hand out, and a multiple of `bytes` long.
    pub unsafe fn install(&self, offset: usize, bytes: usize, run: [usize; 2]) -> Installed {
        if self.by_thread() {
            let Some(slot) = own_slot(offset) else { return Installed::No };
            let rest = slot.limit.load(Ordering::Relaxed).saturating_sub(slot.frontier.load(Ordering::Relaxed));
            if rest >= bytes {
                return Installed::No;
            }
            sequence::replace_own(slot, run);
            return Installed::Yes;
        }
        let Some(index) = self.ground.current_index() else { return Installed::No };
        let first = self.slabs.load(Ordering::Relaxed) + offset;
        // SAFETY: the slot of an index below the number of slabs.
        let slot = unsafe { &*core::ptr::with_exposed_provenance::<Slot>(first + index * SLAB) };
        let seen = [slot.frontier.load(Ordering::Relaxed), slot.limit.load(Ordering::Relaxed)];
        // The two loads are not one: a torn pair can only look fuller or emptier than it is, and the sequence below
        // compares both words again.
        if seen[0] + bytes <= seen[1] {
            return Installed::No;
        }
        // SAFETY: as for `bump`. If the thread moved meanwhile, the pair of the new index is compared instead: equal
        // means exhausted as well.
        if unsafe { sequence::replace(&self.ground, first, seen, run) } { Installed::Yes } else { Installed::No }
    }

    /// Closes every buffer and makes sure that no sequence under way can still commit.
    ///
    /// After this, in a stopped world, frontiers do not change. `each` is then called for every rest
    /// `(offset, frontier, limit)` that was not handed out.
    ///
    /// # Safety
    /// Every registered thread is stopped, blocked, or the caller; `slabs_of_threads` yields each thread's slab.
    pub unsafe fn retire_all(
        &self,
        kinds: usize,
        slabs_of_threads: impl Fn(&mut dyn FnMut(*mut u8)),
        mut each: impl FnMut(usize, usize, usize),
    ) {
        let used = slot_offset(kinds, 0) / size_of::<Slot>();
        // SAFETY: `slab` is the address of a mapped slab, and its slots are only used as the module says.
        let slots = |slab: usize| unsafe {
            core::slice::from_raw_parts(core::ptr::with_exposed_provenance::<Slot>(slab), used)
        };
        let mut rest = |i: usize, frontier: usize, limit: usize| {
            if frontier < limit {
                each(i * size_of::<Slot>(), frontier, limit);
            }
        };
        if self.by_thread() {
            slabs_of_threads(&mut |slab| {
                for (i, slot) in slots(slab.expose_provenance()).iter().enumerate() {
                    let limit = slot.limit.load(Ordering::Relaxed);
                    slot.limit.store(0, Ordering::Relaxed);
                    rest(i, slot.frontier.load(Ordering::Relaxed), limit);
                }
            });
            return;
        }
        let (slabs, indices) = (self.slabs.load(Ordering::Relaxed), self.ground.indices() as usize);
        // Frontiers may move until the barrier (an unregistered thread is never stopped), so the limits are saved
        // first, in the shadow behind the slabs, and the rests computed after it.
        let shadow = |index: usize| slabs + (indices + index) * SLAB;
        for index in 0..indices {
            let saved = slots(shadow(index));
            for (i, slot) in slots(slabs + index * SLAB).iter().enumerate() {
                let limit = slot.limit.load(Ordering::Relaxed);
                if limit != 0 || saved[i].limit.load(Ordering::Relaxed) != 0 {
                    saved[i].limit.store(limit, Ordering::Relaxed);
                    slot.limit.store(0, Ordering::Relaxed);
                }
            }
        }
        // ORDER lab.close: the barrier orders the stores above before the loads below for every CPU, and aborts the
        // sequences that began before; one that begins later reads the closed limits.
        membarrier::abort_sequences();
        for index in 0..indices {
            let saved = slots(shadow(index));
            for (i, slot) in slots(slabs + index * SLAB).iter().enumerate() {
                rest(i, slot.frontier.load(Ordering::Relaxed), saved[i].limit.load(Ordering::Relaxed));
            }
        }
    }

    /// The calling thread's present index: a hint, stale as soon as it is read. `None` where buffers belong to threads.
    pub fn current_index(&self) -> Option<usize> {
        self.ground.current_index()
    }

    /// How many association indices there are; 0 where buffers belong to threads.
    pub fn indices(&self) -> usize {
        self.ground.indices() as usize
    }
}

impl Default for Labs {
    fn default() -> Self {
        Self::new()
    }
}

/// Empties the calling thread's own slab: `each(offset, frontier, limit)` gets every rest. The caller defers stops.
pub fn retire_own(mut each: impl FnMut(usize, usize, usize)) {
    for offset in (0..SLAB).step_by(size_of::<Slot>()) {
        let Some(slot) = own_slot(offset) else { return };
        let limit = slot.limit.load(Ordering::Relaxed);
        slot.limit.store(0, Ordering::Relaxed);
        let frontier = slot.frontier.load(Ordering::Relaxed);
        if frontier < limit {
            each(offset, frontier, limit);
        }
    }
}

/// The calling thread's own slot, if it has a slab.
#[inline]
fn own_slot<'a>(offset: usize) -> Option<&'a Slot> {
    let slab = tls::with(|t| t.buffers.get());
    // SAFETY: a thread's slab is SLAB bytes and lives as long as the thread is registered.
    (!slab.is_null()).then(|| unsafe { &*slab.add(offset).cast::<Slot>() })
}
