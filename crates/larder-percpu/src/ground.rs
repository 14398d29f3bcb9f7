//! What every sequence needs to know about the machine: where the thread's rseq area lies and which index to use.

use core::sync::atomic::{AtomicIsize, AtomicU32, Ordering};

use larder_sys::membarrier;
use larder_sys::rseq_area::{self, CPU_ID, Index, RSEQ_CS};

/// How this process associates buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Association {
    /// By concurrency id (`mm_cid`).
    ConcurrencyId,
    /// By CPU number.
    Cpu,
    /// By thread: sequences are not available, for the reason given.
    Thread(&'static str),
}

/// The offsets that the sequences use, all relative to the thread pointer.
///
/// Sync: written once by [`Ground::set_up`] before any other thread allocates, read with `Relaxed`. A thread that reads
/// the old zero of `indices` takes the slow path, where the initialisation lock orders it.
///
/// The order of its words is known to the machine of `tests/steps`, which runs the sequences that read them.
#[repr(C)]
pub struct Ground {
    /// Offset of `rseq_cs`.
    pub(crate) sequence_word: AtomicIsize,
    /// Offset of the index word.
    pub(crate) index_word: AtomicIsize,
    /// How many indices there are; an index that is not below sends its sequence to the slow path. Zero where sequences
    /// are not available, which is how the fast path learns of it without a branch of its own.
    pub(crate) indices: AtomicU32,
}

const _: () = assert!(core::mem::offset_of!(Ground, index_word) == 8 && core::mem::offset_of!(Ground, indices) == 16);

impl Ground {
    /// A ground on which every sequence takes its slow path.
    pub const fn new() -> Self {
        Self { sequence_word: AtomicIsize::new(0), index_word: AtomicIsize::new(0), indices: AtomicU32::new(0) }
    }

    /// Finds out what the machine offers. `indices` is the number of possible CPUs.
    ///
    /// Sequences are used only where membarrier can abort them on other CPUs as well (kernel 5.10): without that, a
    /// stop could not close a buffer under a thread that it does not know.
    pub fn set_up(&self, indices: usize) -> Association {
        self.set_up_by(indices, Index::MmCid)
    }

    /// As [`Ground::set_up`], by the given index; by CPU where the kernel keeps no concurrency ids.
    pub fn set_up_by(&self, indices: usize, wanted: Index) -> Association {
        let barriers = membarrier::register();
        let area = match rseq_area::find() {
            Ok(area) if barriers.rseq => area,
            Ok(_) => return Association::Thread("membarrier cannot abort sequences (kernel 5.10 or later can)"),
            Err(why) => return Association::Thread(why),
        };
        let by_id = area.index == Index::MmCid && wanted == Index::MmCid;
        let index = if by_id { area.index_offset() } else { area.offset + CPU_ID };
        self.set(area, index, indices);
        if by_id { Association::ConcurrencyId } else { Association::Cpu }
    }

    /// Sets up for buffers that belong to threads: the same sequences, with an index that is 0 in every thread and a slot
    /// that is the thread's own. The kernel aborts them as any others, so a stop never finds one half-made. False where
    /// there are no sequences; then [`bump_own`](crate::sequence::bump_own) does it.
    pub fn set_up_for_threads(&self) -> bool {
        match rseq_area::find() {
            Ok(area) if membarrier::register().rseq => {
                self.set(area, larder_sys::tls::offset_of_zero(), 1);
                true
            }
            _ => false,
        }
    }

    fn set(&self, area: rseq_area::Area, index: isize, indices: usize) {
        self.sequence_word.store(area.offset + RSEQ_CS, Ordering::Relaxed);
        self.index_word.store(index, Ordering::Relaxed);
        self.indices.store(indices as u32, Ordering::Relaxed);
    }

    /// Offsets from the thread pointer of `rseq_cs` and of the index word: what a compiler needs to emit a sequence.
    pub fn offsets(&self) -> (isize, isize) {
        (self.sequence_word.load(Ordering::Relaxed), self.index_word.load(Ordering::Relaxed))
    }

    /// How many indices there are; zero where sequences are not available.
    #[inline(always)]
    pub fn indices(&self) -> u32 {
        // Relaxed: see `Sync` on the struct.
        self.indices.load(Ordering::Relaxed)
    }

    /// The calling thread's present index: a hint, stale as soon as it is read. `None` where sequences refuse the thread,
    /// because the kernel keeps no area for it, or gives it an index beyond the last.
    #[inline]
    pub fn current_index(&self) -> Option<usize> {
        let n = self.indices();
        if n == 0 {
            return None;
        }
        let (sequence_word, index_word) = self.offsets();
        let index = word(index_word);
        (is_registered(sequence_word) && index < n).then_some(index as usize)
    }
}

/// Whether the kernel keeps the calling thread's area, whose `rseq_cs` is at an offset that [`Ground`] or a frame has.
#[inline]
pub(crate) fn is_registered(sequence_word: isize) -> bool {
    word(sequence_word + CPU_ID - RSEQ_CS) <= i32::MAX as u32
}

/// A word of the calling thread's, at an offset that [`Ground`] or a frame has.
#[inline]
pub(crate) fn word(offset: isize) -> u32 {
    let at = larder_sys::thread::thread_pointer().wrapping_offset(offset);
    // SAFETY: the offset was found to be inside the area (or the thread's own block), which every thread has there.
    unsafe { at.cast::<u32>().read_volatile() }
}

impl Default for Ground {
    fn default() -> Self {
        Self::new()
    }
}
