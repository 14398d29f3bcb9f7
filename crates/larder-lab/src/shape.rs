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

use larder_percpu::sequence::SLAB_SHIFT;

use crate::buffers::{Buffers, Way};
use crate::source::ChunkSource;

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
    /// Offset of the frontier in a buffer; the limit follows.
    pub frontier: usize,
}

impl Shape {
    /// No sequence: there is no index that has a buffer.
    pub const NONE: Self = Self { rseq_cs: 0, index: 0, indices: 0, shift: SLAB_SHIFT, base: 0, frontier: 0 };
}

impl<S: ChunkSource> Buffers<S> {
    /// The sequence that is in use now; `None` where there is none to inline: without sequences, and where objects come from
    /// a shared level, whose sequence is a function (`larder_percpu::sequence::level`).
    pub fn shape(&self) -> Option<Shape> {
        let (ground, base) = match self.way() {
            Way::Thread => (&self.thread_ground, 0),
            Way::Processor => (&self.processor_ground, self.slabs.load(Ordering::Relaxed)),
            Way::Shared | Way::ThreadAlone => return None,
        };
        let (rseq_cs, index) = ground.offsets();
        Some(Shape { rseq_cs, index, indices: ground.indices(), shift: SLAB_SHIFT, base, frontier: 0 })
    }
}
