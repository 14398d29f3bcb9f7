//! What the sequences read about a domain, and what stands at the head of each index's area.

use core::sync::atomic::{AtomicIsize, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize};

/// Where a domain's areas are, and which index the kernel keeps for it. The sequences know the offsets.
///
/// Sync: written once by `Core::set_up`, `indices` last (ORDER `domain.ready`); read with `Relaxed` after that was seen.
#[repr(C, align(64))]
pub struct Frame {
    /// Offset of `rseq_cs` from the thread pointer.
    pub rseq_cs: AtomicIsize,
    /// Offset of the index word from the thread pointer.
    pub index: AtomicIsize,
    /// The area of index 0.
    pub base: AtomicPtr<u8>,
    /// Bytes from one area to the next.
    pub stride: AtomicUsize,
    /// How many indices sequences may use; 0 where there are no sequences, and until the domain is set up.
    ///
    /// A caller looks at it before it calls a sequence: with the offsets unset, the store that arms would hit the thread
    /// control block.
    pub indices: AtomicU32,
    /// For levels that several CPUs share: the area of each CPU.
    pub map: AtomicPtr<u32>,
}

impl Frame {
    /// A frame whose sequences may not be called yet.
    pub const fn unset() -> Self {
        Self {
            rseq_cs: AtomicIsize::new(0),
            index: AtomicIsize::new(0),
            base: AtomicPtr::new(core::ptr::null_mut()),
            stride: AtomicUsize::new(0),
            indices: AtomicU32::new(0),
            map: AtomicPtr::new(core::ptr::null_mut()),
        }
    }
}

impl Default for Frame {
    fn default() -> Self {
        Self::unset()
    }
}

/// The head of each area: one cache line. All zero in an area that nobody has touched, which costs no memory.
#[repr(C, align(64))]
pub struct Header {
    /// The token of the last transaction that began here; the next one is one higher, so no two are ever alike.
    ///
    /// Sync: written by `begin` on this index, by take-over while the index is closed, and under `owner` where there are no
    /// sequences.
    pub token: AtomicU64,
    /// Not 0 while another thread has, or takes, the area's content.
    ///
    /// Sync: `takeover.close`: written by the thread that holds `owner`; tested inside every sequence.
    pub closed: AtomicU64,
    /// Who holds the lock of this index: for take-over, and for everything where there are no sequences.
    ///
    /// Sync: see `locked`.
    pub owner: AtomicU64,
    /// Transactions that met interference. Sync: a counter.
    pub failed: AtomicU64,
    /// Transactions that were reopened. Sync: a counter.
    pub reopened: AtomicU64,
    /// Transactions that were given up as invalid. Sync: a counter.
    pub invalid: AtomicU64,
    /// Transactions that were dropped, neither ended nor failed. Sync: a counter.
    pub abandoned: AtomicU64,
    /// Tokens that no transaction got: take-overs. Sync: a counter.
    pub taken: AtomicU64,
}

/// Bytes of a [`Header`]: where an area's content begins.
pub const HEADER: usize = size_of::<Header>();

/// Bytes from one area to the next, for so many of content: a power of two, so that code that knows the content's size finds
/// an area by a shift. At least two lines, so that two indices share no pair of lines (the prefetcher fetches pairs).
pub const fn stride(content: usize) -> usize {
    let area = (HEADER + content).next_power_of_two();
    if area < 2 * HEADER { 2 * HEADER } else { area }
}

const _: () = assert!(HEADER == 64);
const _: () = assert!(core::mem::offset_of!(Header, token) == 0 && core::mem::offset_of!(Header, closed) == 8);
const _: () = assert!(core::mem::offset_of!(Frame, index) == 8 && core::mem::offset_of!(Frame, base) == 16);
const _: () = assert!(core::mem::offset_of!(Frame, stride) == 24 && core::mem::offset_of!(Frame, indices) == 32);
const _: () = assert!(core::mem::offset_of!(Frame, map) == 40);
