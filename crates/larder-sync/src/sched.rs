//! Whether another thread runs at this moment: hints for choosing who gets a lock next.
//!
//! Linux 6.18 publishes no such flag. What it does publish for each thread is the processor it runs on, in the area that
//! the C library registers for restartable sequences, and it is up to date whenever the thread executes an instruction. So
//! if another thread's word names the processor on which this thread runs, that thread does not run. If it names
//! another processor nothing follows; but threads that look leave their name on the processor's slot as they look, and a
//! name that has been replaced belongs to a thread that has been displaced.
//!
//! Every answer is old at once, and inside a virtual machine it knows nothing of the host. Use it to choose, never to be
//! safe.

#[cfg(all(feature = "std", not(loom)))]
use crate::atomic::Ordering;

/// What is known about another thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Running {
    /// It does not run, or did not a moment ago.
    No,
    /// Nothing speaks against it.
    Perhaps,
}

/// Says whether a thread that waits for a lock runs.
pub trait RunningOracle {
    /// How long a waiter whose patience is over gives its processor away before it sleeps, in nanoseconds. While it does, it
    /// is passed over, which costs nothing; once it sleeps, the lock waits for it. A queue in which all sleep stays so:
    /// each hand-over is a wake, and whoever comes back has lost patience before its turn.
    const YIELDING_NS: u64 = 0;

    /// What the calling thread publishes when it begins to wait.
    fn mark() -> usize;

    /// The calling thread, whose mark this is, looks.
    fn looks(mark: usize);

    /// Whether the thread that published `mark` runs.
    ///
    /// # Safety
    /// That thread waits, so it has not ended.
    unsafe fn is_running(mark: usize) -> Running;
}

/// Knows nothing: everybody runs, perhaps.
pub struct Ignorant;

impl RunningOracle for Ignorant {
    fn mark() -> usize {
        0
    }
    #[inline]
    fn looks(_mark: usize) {}
    unsafe fn is_running(_mark: usize) -> Running {
        Running::Perhaps
    }
}

/// Compares processors, by the words that the kernel keeps for restartable sequences. Without them it knows nothing.
#[cfg(all(feature = "std", not(loom)))]
pub struct ByProcessor;

#[cfg(all(feature = "std", not(loom)))]
mod by_processor {
    use super::{ByProcessor, Ordering, Running, RunningOracle};
    use crate::line::Line;
    use core::sync::atomic::{AtomicIsize, AtomicU32, AtomicUsize};
    use larder_sys::rseq_area;
    use larder_sys::thread::thread_pointer;

    /// Slots; processors beyond share them, which makes the hint worse and nothing else.
    const SLOTS: usize = 256;
    /// Who looked last on each processor. Sync: hints, Relaxed.
    static LAST: [Line<AtomicUsize>; SLOTS] = [const { Line(AtomicUsize::new(0)) }; SLOTS];

    const UNKNOWN: isize = isize::MIN;
    const NONE: isize = isize::MAX;
    /// Offset of `cpu_id` from the thread pointer. Sync: every thread finds the same, Relaxed.
    static OFFSET: AtomicIsize = AtomicIsize::new(UNKNOWN);

    #[cold]
    fn find() -> isize {
        let offset = rseq_area::find().map_or(NONE, |area| area.offset + rseq_area::CPU_ID);
        // ORDER sched.hint: Relaxed; the number is the whole message.
        OFFSET.store(offset, Ordering::Relaxed);
        offset
    }

    fn own_word() -> Option<*mut u32> {
        // ORDER sched.hint: Relaxed; as above.
        let offset = match OFFSET.load(Ordering::Relaxed) {
            UNKNOWN => find(),
            known => known,
        };
        (offset != NONE).then(|| thread_pointer().wrapping_offset(offset).cast())
    }

    /// # Safety
    /// The word belongs to a thread that has not ended.
    unsafe fn read(word: *mut u32) -> u32 {
        // SAFETY: aligned and alive; the kernel writes it by aligned stores, others only read.
        // ORDER sched.hint: Relaxed; a hint.
        unsafe { AtomicU32::from_ptr(word) }.load(Ordering::Relaxed)
    }

    impl RunningOracle for ByProcessor {
        const YIELDING_NS: u64 = 20_000_000;

        fn mark() -> usize {
            let mark = own_word().map_or(0, |word| word.expose_provenance());
            Self::looks(mark);
            mark
        }

        #[inline]
        fn looks(mark: usize) {
            if mark == 0 {
                return;
            }
            // SAFETY: the calling thread's own word.
            let cpu = unsafe { read(core::ptr::with_exposed_provenance_mut(mark)) };
            let last = &LAST[cpu as usize % SLOTS];
            // ORDER sched.hint: Relaxed, both; a hint. The load keeps a line that has the name already from being written.
            if last.load(Ordering::Relaxed) != mark {
                last.store(mark, Ordering::Relaxed);
            }
        }

        unsafe fn is_running(mark: usize) -> Running {
            let (Some(own), true) = (own_word(), mark != 0) else { return Running::Perhaps };
            // SAFETY: this thread's word; and, by the caller's promise, a living thread's.
            let (before, its, after) =
                unsafe { (read(own), read(core::ptr::with_exposed_provenance_mut(mark)), read(own)) };
            // ORDER sched.hint: Relaxed; a hint.
            let displaced = LAST[its as usize % SLOTS].load(Ordering::Relaxed) != mark;
            if (before == after && its == before) || displaced { Running::No } else { Running::Perhaps }
        }
    }
}
