//! One upper level: buffers that several CPUs share (HAB).
//!
//! A buffer's pair is a region that many take from and one refills (`larder_sync::region`). It is reached in two ways, and
//! both end in a locked compare-and-swap on the same pair, so they mix:
//!
//! - the level sequence of `larder-percpu`, which looks the buffer up and takes in one piece, so that what it takes was the
//!   buffer of the CPU that it ran on at that moment; it compares the frontier alone, which takes half as long as the pair;
//! - selection and then allocation, as in the paper, with a look afterwards whether the thread has moved.
//!
//! **Fillings are numbered** (`region::fillings`), in the upper 16 bits of both words, so that a frontier says by itself which filling it
//! is of. The refiller takes the next number under its mark; a buffer that was filled 65535 times is not filled again before the next
//! stop, which begins anew when no sequence that has read an old number can commit any more.
//!
//! **A refiller that is preempted** leaves its mark for a time slice, and everybody on its CPUs falls over meanwhile. With as many
//! threads as CPUs that is rare (the paper's per cents); with 80 threads on 2 busy CPUs single windows of 50 ms had more than half
//! of their allocations fall over. So nothing long happens under the mark: chunks are made ready where objects are taken.

use core::sync::atomic::{AtomicUsize, Ordering};

use larder_percpu::areas::{Core, Options};
use larder_percpu::sequence::frame::HEADER;
use larder_percpu::sequence::level::{NUMBER_SHIFT, REFUSED, level_bump_numbered, level_compare_store_pair};
use larder_percpu::{By, Ground};
use larder_sync::region::{self, Mark};
use larder_sys::cpus;
use larder_sys::memory::ReserveError;
use larder_sys::rseq_area::Index;

use crate::config::{Selection, Upper};
use crate::counters::LevelCounters;
use crate::lab::Lab;

// The sequences leave the number out of an address where it is given out.
const _: () = assert!(NUMBER_SHIFT == region::fillings::NUMBER_SHIFT);

/// The buffers of one upper level.
pub(crate) struct Level {
    areas: Core,
    pub(crate) upper: Upper,
    selection: Selection,
    /// Where the kernel keeps the CPU's number, for selection without a sequence.
    ground: Ground,
    pub(crate) counters: LevelCounters,
    /// How many refills were begun: marks are numbered by it. Sync: a counter.
    marks: AtomicUsize,
}

impl Level {
    pub(crate) const fn new(upper: Upper, selection: Selection, sequences: bool) -> Self {
        let indices = match selection {
            Selection::Simulated { cpus, .. } => cpus,
            _ => 0,
        };
        let sequences = sequences && matches!(selection, Selection::Sequence);
        let options = Options { by: By::Level(upper.level), indices, sequences };
        Self {
            areas: Core::new(size_of::<Lab>(), options),
            upper,
            selection,
            ground: Ground::new(),
            counters: LevelCounters::new(),
            marks: AtomicUsize::new(0),
        }
    }

    pub(crate) fn set_up(&self) -> Result<(), ReserveError> {
        if matches!(self.selection, Selection::ReadThenSwap) {
            // Where there is no such place, `here` asks by a system call.
            self.ground.set_up_by(cpus::possible(), Index::CpuId);
        }
        self.areas.set_up()
    }

    /// How many CPUs there could be: buffers are numbered by the lowest CPU that uses them.
    fn cpus(&self) -> usize {
        match self.selection {
            Selection::Simulated { cpus, .. } => cpus as usize,
            // The last two areas are shards, which nobody uses here.
            _ => self.areas.areas() - if self.areas.sequence_areas() == 0 { 1 } else { 2 },
        }
    }

    /// The buffer that a CPU uses.
    fn of_cpu(&self, cpu: usize) -> usize {
        let map = self.areas.frame().map.load(Ordering::Relaxed);
        // SAFETY: the map has an entry for each CPU; numbers beyond it are moved into it.
        unsafe { map.add(cpu.min(self.cpus() - 1)).read() as usize }
    }

    /// The calling thread's buffer: stale as soon as it is known.
    pub(crate) fn here(&self) -> usize {
        match self.selection {
            Selection::Simulated { here, .. } => self.of_cpu(here()),
            Selection::ReadThenSwap => self.of_cpu(self.ground.current_index().unwrap_or_else(cpus::current)),
            Selection::Sequence => self.areas.current_index().unwrap_or_else(|| self.of_cpu(cpus::current())),
        }
    }

    /// Every buffer that some CPU uses, from `first` on and round.
    pub(crate) fn all_from(&self, first: usize) -> impl Iterator<Item = usize> + '_ {
        let cpus = self.cpus();
        (first..cpus).chain(0..first).filter(|&cpu| self.of_cpu(cpu) == cpu)
    }

    pub(crate) fn lab(&self, index: usize) -> &Lab {
        debug_assert!(index < self.cpus());
        // SAFETY: areas are mapped as long as the level lives; zero is a `Lab`, and all of it is atomics.
        unsafe { &*self.areas.content(index).cast() }
    }

    pub(crate) fn has_sequence(&self) -> bool {
        self.areas.sequence_areas() != 0
    }

    /// Takes `bytes` from the buffer of the CPU that this runs on; 0 when it has too little, is being refilled, or there is
    /// no sequence.
    #[inline]
    pub(crate) fn bump(&self, bytes: usize) -> usize {
        if !self.has_sequence() {
            return 0;
        }
        // SAFETY: the frame is set up, with a map; the pair is the first of the content, which is at a multiple of 64. Fillings are
        // numbered by `Lab::fillings`.
        match unsafe { level_bump_numbered(self.areas.frame(), HEADER, bytes) } {
            REFUSED => 0,
            at => at,
        }
    }

    /// As [`bump`](Self::bump), for a thread that takes from the level again and again.
    ///
    /// # Safety
    /// `guess` is writable, and the caller's alone.
    #[inline(always)]
    pub(crate) unsafe fn bump_guessed(&self, bytes: usize, guess: *mut usize) -> usize {
        // SAFETY: as in `bump`; the content is a `Lab`; the caller vouches for `guess`.
        unsafe { self.areas.level_bump_inlined::<Lab>(core::mem::offset_of!(Lab, slot), bytes, guess) }
    }

    /// A number for a mark.
    pub(crate) fn next_mark(&self) -> usize {
        self.marks.fetch_add(1, Ordering::Relaxed)
    }

    /// Opens a marked buffer if it is that of the CPU that this runs on.
    pub(crate) fn finish_here(&self, mark: &Mark, start: usize, end: usize) -> bool {
        let [old, zero] = mark.pair();
        let words = [old as u64, zero as u64, start as u64, end as u64];
        // SAFETY: as in `bump`.
        self.has_sequence() && unsafe { level_compare_store_pair(self.areas.frame(), HEADER, &words) } == 0
    }

    /// Buffers that were filled since the last stop.
    pub(crate) fn in_use(&self) -> usize {
        self.all_from(0).filter(|&index| self.lab(index).is_in_use()).count()
    }

    /// Opens the way for others where a thread that is not in this process was refilling.
    pub(crate) fn forget_marks(&self) {
        for index in self.all_from(0) {
            let lab = self.lab(index);
            let seen = lab.slot.load();
            if region::is_marked(seen) {
                lab.slot.compare_exchange(seen, [0, 0]);
            }
        }
    }
}

impl Drop for Level {
    fn drop(&mut self) {
        // SAFETY: nobody borrows the level any more.
        unsafe { self.areas.destroy() };
    }
}
