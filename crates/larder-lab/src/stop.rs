//! What happens to the buffers when the world is stopped, when a thread ends, and in the child of a fork.

use core::sync::atomic::Ordering;

use larder_percpu::Mode;
use larder_policy::labs::{FlipFacts, Side, few_threads, next_side, side_by_number};
use larder_sync::region::{self, fillings::address};
use larder_sys::membarrier;
use larder_units::Bytes;

use crate::buffers::{Buffers, Way};
use crate::config::{Lowest, Processors};
use crate::counters::add;
use crate::lab::Lab;
use crate::source::{Chunk, ChunkSource, Why};

/// What a stop found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retired {
    /// Lowest buffers with something left, and how much: what VEE'05 calls wasted.
    pub partly_used: usize,
    /// See `partly_used`.
    pub unused: Bytes,
    /// Threads that allocated since the last stop, as far as the slow path saw it, or as the host said.
    pub allocating_threads: usize,
    /// Lowest buffers that were filled since the last stop: as many owners had one.
    pub owners: usize,
    /// The side to which the buffers were flipped.
    pub flipped: Option<Side>,
}

/// The sum over a set of buffers.
#[derive(Default)]
struct Found {
    partly_used: usize,
    unused: usize,
    obtained: usize,
    used: usize,
}

impl<S: ChunkSource> Buffers<S> {
    /// Takes back what every buffer has, and decides about sizes and the flip.
    ///
    /// Each rest goes to [`ChunkSource::give_back`], sidelined chunks too. Every pair gets a value that it never had, so a
    /// refill that read it before will not commit, wherever it was. `threads` calls its argument with every thread's buffer,
    /// the same ones each time. `allocating_threads` is how many threads allocated since the last stop, if the host knows; where
    /// the buffers do not belong to threads, the slow path sees only those that came by.
    ///
    /// # Safety
    /// The world is stopped: every thread that uses these buffers stands still, with no deferral (but for the caller), or is
    /// the caller. The epoch of the space is still that of the chunks; it changes after this call, and before the world goes
    /// on, if the collection makes them invalid.
    pub unsafe fn retire_all(
        &self,
        threads: impl Fn(&mut dyn FnMut(&Lab)),
        allocating_threads: Option<usize>,
    ) -> Retired {
        let stop = self.stops.load(Ordering::Relaxed) + 1;
        self.stops.store(stop, Ordering::Relaxed);
        // Even, and larger than any before: a closed pair that never was.
        let stamp = stop * 16;
        let epoch = self.source.epoch();
        let rest = |start: usize, end: usize| {
            // SAFETY: the pair that owned it was closed, and nobody can have read it in time to commit.
            unsafe { self.source.give_back(Chunk { start, end, epoch }, Why::Stop) };
        };

        let mut lowest = Found::default();
        let note = |lab: &Lab, had: Option<(usize, usize)>, found: &mut Found| {
            if let Some((start, end)) = had {
                found.partly_used += 1;
                found.unused += end - start;
                rest(start, end);
            }
            found.obtained += lab.obtained().0;
            found.used += usize::from(lab.is_in_use());
        };
        self.close_processors(stamp, |lab, had| note(lab, had, &mut lowest));
        let by_processors = lowest.used;
        threads(&mut |lab| note(lab, region::close(lab, stamp), &mut lowest));
        let allocating = allocating_threads.unwrap_or(lowest.used - by_processors);

        let (obtained, sizes) = (Bytes(lowest.obtained), self.config.sizes);
        threads(&mut |lab| lab.after_collection(sizes, obtained));
        (0..self.processors()).for_each(|processor| self.lab_of(processor).after_collection(sizes, obtained));

        for level in self.upper.iter().flatten() {
            let mut found = Found::default();
            let mut any_open = false;
            for lab in level.all_from(0).map(|index| level.lab(index)) {
                let had = region::close(lab, stamp).map(|(start, end)| (address(start), address(end)));
                any_open |= lab.fillings.count() != 0;
                note(lab, had, &mut found);
            }
            if any_open && level.has_sequence() && S::STOPPED_ANYWHERE {
                // What has read a frontier of before does not commit any more, so numbers may be used again.
                membarrier::abort_sequences();
            }
            level.all_from(0).for_each(|index| level.lab(index).fillings.begin_anew());
            let (obtained, sizes) = (Bytes(found.obtained), level.upper.sizes);
            level.all_from(0).for_each(|index| level.lab(index).after_collection(sizes, obtained));
            add(&level.counters.partly_used, found.partly_used);
            add(&level.counters.partly_used_bytes, found.unused);
        }

        while let Some(chunk) = self.sideline.drain() {
            add(&self.counters.sideline_unused, 1);
            add(&self.counters.sideline_unused_bytes, chunk.bytes().0);
            if chunk.epoch == epoch {
                rest(chunk.start, chunk.end);
            }
        }

        add(&self.counters.partly_used, lowest.partly_used);
        add(&self.counters.partly_used_bytes, lowest.unused);
        let way = self.way();
        let by = match way {
            Way::Thread | Way::ThreadAlone => &self.counters.collections_by_threads,
            Way::Processor => &self.counters.collections_by_processors,
            Way::Shared => &self.counters.collections_by_levels,
        };
        add(by, 1);
        let unused = Bytes(lowest.unused);
        // Where processors have buffers, threads only count; where objects come from a shared level, there are none.
        let owners = match way {
            Way::Thread | Way::ThreadAlone => lowest.used - by_processors,
            Way::Processor => by_processors,
            Way::Shared => 0,
        };
        let known = || {
            let mut known = 0;
            threads(&mut |_| known += 1);
            known
        };
        let flipped = self.flip(unused, allocating, known);
        self.sharers.store(0, Ordering::Relaxed);
        self.largest.store(0, Ordering::Relaxed);
        Retired { partly_used: lowest.partly_used, unused, allocating_threads: allocating, owners, flipped }
    }

    /// Closes the buffers of processors and calls `each` with every one and what it had left.
    ///
    /// Threads that were stopped by a signal have been aborted by it. The barrier is for those that nobody stopped (a thread
    /// that the host does not know, in its first allocation), as in the fixed heap. Where threads stop only between allocations
    /// ([`ChunkSource::STOPPED_ANYWHERE`]), there are no sequences to abort, and the stop itself has ordered their stores.
    fn close_processors(&self, stamp: usize, mut each: impl FnMut(&Lab, Option<(usize, usize)>)) {
        let labs = || (0..self.processors()).map(|processor| self.lab_of(processor));
        let mut any_open = false;
        for lab in labs() {
            any_open |= lab.bar();
        }
        if any_open && S::STOPPED_ANYWHERE {
            // ORDER lab.bar: the barrier orders the stores in `bar` before the loads in `barred` for every CPU, and aborts the
            // sequences that began before; one that begins later reads the closed limits.
            membarrier::abort_sequences();
        }
        for lab in labs() {
            each(lab, lab.barred(stamp));
        }
    }

    /// Whether the known threads have outgrown buffers of their own, where they have them while they are few: the next stop flips, and
    /// until then each new thread may have a buffer. They are counted only where that decides something.
    pub fn is_due_to_flip(&self, known: impl FnOnce() -> usize) -> bool {
        self.side() == Side::Threads && self.side_by_number(known) == Some(Side::Processors)
    }

    fn side_by_number(&self, known: impl FnOnce() -> usize) -> Option<Side> {
        let can = matches!(self.config.lowest, Lowest::FewThreads(_)) && self.processors() != 0;
        can.then(|| {
            let few = few_threads(larder_sys::cpus::allowed_to_process(), self.config.room, self.config.sizes.first());
            side_by_number(self.side(), known(), few)
        })
    }

    fn side_by_waste(&self, unused: Bytes, allocating_threads: usize) -> Option<Side> {
        let Lowest::Flip(wanted) = self.config.lowest else { return None };
        if self.processors() == 0 {
            return None;
        }
        let by_id = wanted == Processors::ConcurrencyIds && self.transactions.mode() == Mode::ConcurrencyIds;
        let cpus = larder_sys::cpus::allowed_to_process();
        let processors = if by_id { cpus.min(allocating_threads) } else { cpus };
        let largest = Bytes(self.largest.load(Ordering::Relaxed));
        Some(next_side(self.side(), FlipFacts { unused, largest, processors, allocating_threads }))
    }

    fn flip(&self, unused: Bytes, allocating_threads: usize, known: impl FnOnce() -> usize) -> Option<Side> {
        let side = self.side();
        let next = self.side_by_number(known).or_else(|| self.side_by_waste(unused, allocating_threads))?;
        if next == side {
            return None;
        }
        match next {
            Side::Threads => {
                self.set_way(Way::Thread);
                add(&self.counters.flips_to_threads, 1);
            }
            Side::Processors => {
                self.set_way(Way::Processor);
                add(&self.counters.flips_to_processors, 1);
            }
        }
        self.source.flipped(next);
        Some(next)
    }

    /// Takes back what a thread's own buffer has: when the thread ends. The caller defers stops.
    ///
    /// # Safety
    /// `mine` is the calling thread's, or that of a thread that does not run any more.
    pub unsafe fn retire_own(&self, mine: &Lab) {
        let epoch = self.source.epoch();
        loop {
            let seen = mine.slot.load();
            // SAFETY: the caller's promise.
            if !unsafe { self.replace_own(mine, seen, [0, 0]) } {
                continue;
            }
            if region::rest(seen) != 0 {
                add(&self.counters.abandoned_bytes, region::rest(seen));
                // SAFETY: the pair that owned it was replaced.
                unsafe { self.source.give_back(Chunk { start: seen[0], end: seen[1], epoch }, Why::Abandoned) };
            }
            return;
        }
    }

    /// In the child of a fork: buffers that another thread was refilling are free for others to refill. What that thread had
    /// in its hands is lost until the next collection, as is what lies in the buffers of the threads that the child does not
    /// have, unless the host gives those to [`retire_own`](Self::retire_own).
    pub fn after_fork_in_child(&self) {
        for level in self.upper.iter().flatten() {
            level.forget_marks();
        }
    }
}
