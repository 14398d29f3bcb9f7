//! The allocation sequences as data, for a compiler that emits them inline.
//!
//! A sequence of the thread or processor way is, with `T` a scratch register and `N` another:
//!
//! ```text
//!     start:  arm: the address of this sequence's descriptor goes to fs:[rseq_cs]
//!             T = 0 (thread) or the 32-bit word at fs:[index]; if T >= indices (unsigned), go to slow
//!             T = base + (T << shift)
//!             object = [T]
//!             N = object + size
//!             if N > [T + 8] (unsigned), go to slow
//!             [T] = N        the commit, the last instruction of the range
//! ```
//!
//! The descriptor's range begins behind the arming store and ends behind the commit; its abort handler has the signature
//! 0x53053053 in the four bytes before it and goes to `start`. `slow` calls the host's slow path. Nothing else is needed: after
//! a flip the pair is closed, so code of the old shape goes to `slow` until the host has emitted it anew. Threads that run it have
//! a registered area: the heap sees to that when they attach.

use core::sync::atomic::Ordering;

use larder_percpu::Mode;
use larder_percpu::sequence::SLAB_SHIFT;

use crate::buffers::{Buffers, Way};
use crate::source::ChunkSource;

/// Whom the buffers of a sequence belong to. The numbers are those of `larder_vm.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Owners {
    /// Concurrency ids: the index is `mm_cid`.
    ConcurrencyIds = 0,
    /// Threads: there is no index.
    Threads = 1,
    /// CPUs: the index is `cpu_id`.
    Cpus = 2,
    /// Nobody: objects come from a shared level.
    Nobody = 5,
}

/// What a compiler needs to know of the sequence that is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Shape {
    /// Offset from the thread pointer (`fs:0`) of `rseq_cs`.
    pub rseq_cs: isize,
    /// Offset from the thread pointer of the 32-bit index word.
    pub index: isize,
    /// Indices from here on have no buffer.
    pub indices: u32,
    /// The buffer of index `i` begins at `base + (i << shift)`.
    pub shift: u32,
    /// The buffer of index 0; 0 where buffers belong to threads: then it is the address of the thread's own
    /// [`Lab`](crate::Lab).
    pub base: usize,
    /// Offset of the frontier in a buffer.
    pub frontier: usize,
    /// Offset of the limit.
    pub limit: usize,
    /// Whom the buffers belong to.
    pub owners: Owners,
    /// Bytes of the heap's own before an object: it begins so far behind what was the frontier. There are none; what an object begins with is
    /// the host's to write.
    pub header: u32,
}

/// Where a buffer's limit is.
const LIMIT: usize = core::mem::offset_of!(larder_percpu::sequence::Slot, limit);

impl Shape {
    /// No sequence: there is no index that has a buffer.
    pub const NONE: Self = Self::without_index(Owners::Nobody);

    /// Of buffers that are not found by an index.
    pub const fn without_index(owners: Owners) -> Self {
        Self {
            rseq_cs: 0,
            index: 0,
            indices: 0,
            shift: SLAB_SHIFT,
            base: 0,
            frontier: 0,
            limit: LIMIT,
            owners,
            header: 0,
        }
    }
}

impl<S: ChunkSource> Buffers<S> {
    /// The sequence that is in use now; `None` where there is none to inline: without sequences, and where objects come from
    /// a shared level, whose sequence is a function (`larder_percpu::sequence::level`).
    pub fn shape(&self) -> Option<Shape> {
        let owners = self.owners();
        let (ground, base) = match self.way() {
            Way::Thread => (&self.thread_ground, 0),
            Way::Processor => (&self.processor_ground, self.slabs.load(Ordering::Relaxed)),
            Way::Shared | Way::ThreadAlone => return None,
        };
        let (rseq_cs, index) = ground.offsets();
        Some(Shape { rseq_cs, index, indices: ground.indices(), base, ..Shape::without_index(owners) })
    }

    /// Whom the buffers belong to now: perhaps not whom they were meant for, where the system has no restartable sequences, or no
    /// concurrency ids.
    pub fn owners(&self) -> Owners {
        match self.way() {
            Way::Thread | Way::ThreadAlone => Owners::Threads,
            Way::Shared => Owners::Nobody,
            Way::Processor if self.transactions.mode() == Mode::ConcurrencyIds => Owners::ConcurrencyIds,
            Way::Processor => Owners::Cpus,
        }
    }
}
