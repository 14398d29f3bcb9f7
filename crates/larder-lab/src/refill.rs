//! Refilling: of a thread's or a processor's buffer (VEE'05, section 5.1), and of the levels above (HAB, listings 1 and 2).
//!
//! **A processor's buffer** is refilled inside a transaction on its processor, and everything is decided by its commit:
//!
//! | step | what may have happened meanwhile |
//! |---|---|
//! | begin; read the pair | |
//! | get a chunk: from the sideline, or the levels above, or the space | anything: the thread was preempted, moved, slept |
//! | commit: the pair, if it is still the one that was read, becomes the new one | nothing: one instruction |
//! | the old rest, which nobody can have taken since, is merged or given back | whatever |
//! | sizes and statistics by further commits, as far as they go | the first that fails ends it |
//!
//! A commit that meets interference reopens: it begins again, and if processor, pair and collection epoch are the ones it
//! knows, the interference was benign and the same commit is tried again. Otherwise the chunk is sidelined, and the
//! allocation starts over; it finds a buffer that somebody else has filled, or a chunk on the sideline.
//!
//! Comparing the pair would be enough for correctness, because a stop gives every pair a value that it never had: (a number
//! of the stop, 0). The transaction is what tells a refill early, and counts what the paper counts.
//!
//! **A thread's buffer** can be changed meanwhile only by a handler of the same thread, or by a stop inside `obtain`. The
//! commit is the same comparison without a transaction.

use core::sync::atomic::Ordering;

use larder_percpu::sequence;
use larder_percpu::sequence::transaction::INTERFERED;
use larder_policy::labs::{Room, multiple, wish};
use larder_sync::region::fillings::address;
use larder_sync::region::{self, Taken};
use larder_units::Bytes;

use crate::buffers::{Buffers, Way};
use crate::config::Lowest;
use crate::counters::add;
use crate::lab::Lab;
use crate::level::Level;
use crate::source::{Chunk, ChunkSource, Point, Request, Why};

/// How often a refill reopens before it gives its chunk to the sideline: with so many begins of others on one processor
/// during single commits, the next comer is there already.
const REOPENS: u32 = 8;

/// How often a thread that keeps moving looks for its buffer before it takes what others have.
const MOVES: u32 = 8;

/// What a refill did.
pub(crate) enum Refilled {
    /// The buffer is full, and this is the object that it was for.
    Object(usize),
    /// The buffer changed meanwhile: look again.
    Again,
    /// There is no memory for a buffer.
    Nothing,
}

/// What a level's buffer gave.
enum Given {
    Chunk(Chunk),
    /// The thread may have moved: look again.
    Again,
    /// Somebody refills it, or there is no memory for it.
    None,
}

impl<S: ChunkSource> Buffers<S> {
    /// Refills the buffer that allocations use now.
    ///
    /// # Safety
    /// As for [`Buffers::allocate`].
    pub(crate) unsafe fn refill(&self, mine: &Lab, bytes: usize) -> Refilled {
        match self.way() {
            Way::Processor => {
                mine.note_use();
                self.refill_processor(bytes)
            }
            // SAFETY: the caller's promise.
            Way::Thread | Way::ThreadAlone => unsafe { self.refill_thread(mine, bytes) },
            Way::Shared => {
                mine.note_use();
                let Some(chunk) = self.obtain_at(0, bytes, bytes) else { return Refilled::Nothing };
                // Perhaps from above the level; a level's own chunk was made ready as a whole.
                self.source.prepare(chunk);
                self.put_rest_aside(chunk, bytes);
                Refilled::Object(chunk.start)
            }
        }
    }

    /// Keeps what a chunk has behind an object of `bytes` for the next comer, where another of the kind fits.
    fn put_rest_aside(&self, chunk: Chunk, bytes: usize) {
        let (_, rest) = chunk.split(bytes);
        if rest.bytes().0 >= bytes {
            self.put_aside(rest);
        } else if rest.bytes().0 != 0 {
            // SAFETY: the end of a chunk of this epoch (an allocation is not stopped in), and nobody else's.
            unsafe { self.source.give_back(rest, Why::Abandoned) };
        }
    }

    /// A chunk for a buffer, for an object of `bytes`.
    fn bring(&self, lab: &Lab, bytes: usize) -> Option<Chunk> {
        if let Some(chunk) = self.sideline.take(bytes, self.source.epoch()) {
            add(&self.counters.sideline_used, 1);
            return Some(chunk);
        }
        let size = lab.size(self.config.sizes);
        self.largest.fetch_max(size.0, Ordering::Relaxed);
        let sharers = match lab.is_in_use() {
            true => self.sharers.load(Ordering::Relaxed),
            false => self.sharers.fetch_add(1, Ordering::Relaxed) + 1,
        };
        let room = Room { left: self.source.left(), sharers };
        let (least, most) = wish(self.config.near_end, size, Bytes(bytes), room);
        let chunk = self.obtain_at(0, least.0, most.0)?;
        add(&self.counters.labs, 1);
        add(&self.counters.lab_bytes, chunk.bytes().0);
        self.source.prepare(chunk);
        Some(chunk)
    }

    fn refill_processor(&self, bytes: usize) -> Refilled {
        let core = &self.transactions;
        let mut ticket = core.begin();
        let processor = ticket.index as usize;
        if processor >= self.processors().min(core.sequence_areas()) {
            // A thread that the kernel gives no index, on the transactions' shard.
            return Refilled::Nothing;
        }
        let lab = self.lab_of(processor);
        let (seen, epoch) = (lab.slot.load(), self.source.epoch());
        if region::rest(seen) >= bytes {
            return Refilled::Again;
        }
        self.source.at(Point::Begun);
        let Some(chunk) = self.bring(lab, bytes) else { return Refilled::Nothing };
        let placed = Placed::new(&self.source, seen, chunk, bytes);
        self.source.at(Point::Obtained);
        let pair = lab.slot.frontier.as_ptr().cast::<u64>();
        let mut reopened = 0;
        loop {
            // SAFETY: the pair of this processor, aligned; only sequences on it and stops write there.
            let status =
                unsafe { core.compare_pair(ticket, pair, seen.map(|w| w as u64), placed.pair.map(|w| w as u64)) };
            if status == 0 {
                break;
            }
            if reopened == 0 {
                add(&self.counters.transactions_failed, 1);
            }
            ticket = core.begin();
            reopened += 1;
            let is_benign = status == INTERFERED
                && reopened <= REOPENS
                && ticket.index as usize == processor
                && lab.slot.load() == seen
                && self.source.epoch() == epoch;
            if !is_benign {
                add(&self.counters.transactions_invalid, 1);
                self.put_aside(chunk);
                return Refilled::Again;
            }
            add(&self.counters.transactions_reopened, 1);
            self.source.at(Point::Reopened);
        }
        add(&self.counters.transactions_succeeded, 1);
        self.source.at(Point::Committed);
        self.give_back_rest(&placed, epoch);
        self.source.at(Point::RestGivenBack);
        // SAFETY: words of this processor's buffer that only such commits and stops write.
        let store = |(word, value): (&core::sync::atomic::AtomicUsize, usize)| unsafe {
            core.store_64(ticket, word.as_ptr().cast(), value as u64) == 0
        };
        if !lab.after_refill(self.config.sizes, chunk.bytes()).into_iter().all(store) {
            add(&self.counters.statistics_interfered, 1);
        }
        Refilled::Object(placed.object)
    }

    /// # Safety
    /// `mine` is the calling thread's.
    unsafe fn refill_thread(&self, mine: &Lab, bytes: usize) -> Refilled {
        let (seen, epoch) = (mine.slot.load(), self.source.epoch());
        if region::rest(seen) >= bytes {
            // A handler was faster; or the kernel keeps no area for this thread, and the fast path refuses it.
            // SAFETY: the caller's promise.
            return match unsafe { sequence::bump_own(&mine.slot, bytes) } {
                0 => Refilled::Again,
                at => Refilled::Object(at),
            };
        }
        self.source.at(Point::Begun);
        let Some(chunk) = self.bring(mine, bytes) else { return Refilled::Nothing };
        let placed = Placed::new(&self.source, seen, chunk, bytes);
        self.source.at(Point::Obtained);
        // SAFETY: the caller's promise.
        if !unsafe { self.replace_own(mine, seen, placed.pair) } {
            add(&self.counters.refills_beaten, 1);
            self.put_aside(chunk);
            return Refilled::Again;
        }
        mine.note_refill(self.config.sizes, chunk.bytes());
        self.source.at(Point::Committed);
        self.give_back_rest(&placed, epoch);
        self.source.at(Point::RestGivenBack);
        Refilled::Object(placed.object)
    }

    /// Replaces the pair of a thread's own buffer if it is `old`: one instruction, in which no handler of the thread's comes
    /// between, and a stop does not either, because threads stand still then.
    ///
    /// # Safety
    /// `mine` is the calling thread's, or that of a thread that does not run any more.
    pub(crate) unsafe fn replace_own(&self, mine: &Lab, old: [usize; 2], new: [usize; 2]) -> bool {
        mine.slot.compare_exchange_own(old, new)
    }

    fn give_back_rest(&self, placed: &Placed, epoch: u64) {
        if placed.is_merged {
            add(&self.counters.merged, 1);
        } else if let Some((start, end)) = placed.abandoned {
            add(&self.counters.abandoned_bytes, end - start);
            // SAFETY: the commit has replaced the pair that owned it, in the epoch in which it was read.
            unsafe { self.source.give_back(Chunk { start, end, epoch }, Why::Abandoned) };
        }
    }

    /// A chunk from upper level `k`, or from the space above the last.
    pub(crate) fn obtain_at(&self, k: usize, least: usize, most: usize) -> Option<Chunk> {
        let Some(level) = self.upper.get(k).and_then(Option::as_ref) else {
            // Objects that pass a level by, which somebody refills, share what the space hands out at least.
            let passes_by = self.way() == Way::Shared && least == most;
            if passes_by && let Some(chunk) = self.sideline.take(least, self.source.epoch()) {
                add(&self.counters.sideline_used, 1);
                return Some(chunk);
            }
            return self.source.obtain(Request { least: Bytes(least), most: Bytes(most), may_collect: false });
        };
        let mut here = level.here();
        if most > level.lab(here).size(level.upper.sizes).0 {
            add(&level.counters.oversized, 1);
            return self.obtain_at(k + 1, least, most);
        }
        self.source.at(Point::Chosen);
        let taken = |chunk: Chunk| {
            add(&level.counters.taken, 1);
            add(&level.counters.taken_bytes, chunk.bytes().0);
            Some(chunk)
        };
        for _ in 0..MOVES {
            let given = match level.has_sequence() {
                true => self.take_here(k, level, here, least, most),
                false => self.take_from(k, level, here, least, most),
            };
            match given {
                Given::Chunk(chunk) => {
                    if !level.has_sequence() && level.here() != here {
                        add(&level.counters.migrated, 1);
                    }
                    return taken(chunk);
                }
                Given::Again => here = level.here(),
                Given::None => break,
            }
        }
        // Listing 1: all others in turn, then the heap.
        for other in level.all_from(here).skip(1) {
            if let Given::Chunk(chunk) = self.take_from(k, level, other, least, most) {
                add(&level.counters.fallen_over, 1);
                return taken(chunk);
            }
        }
        add(&level.counters.passed_on, 1);
        self.obtain_at(k + 1, least, most)
    }

    /// By sequence: what is taken is the buffer of the CPU on which it was taken.
    fn take_here(&self, k: usize, level: &Level, here: usize, least: usize, most: usize) -> Given {
        let epoch = self.source.epoch();
        let chunk = |start: usize, bytes: usize| Given::Chunk(Chunk { start, end: start + bytes, epoch });
        let at = level.bump(most);
        if at != 0 {
            return chunk(at, most);
        }
        let seen = level.lab(here).slot.load();
        if region::is_marked(seen) {
            return Given::None;
        }
        let rest = region::rest(seen).min(most);
        if rest >= least {
            // Perhaps of another buffer, if the thread has moved; it takes its own in any case.
            return match level.bump(rest) {
                0 => Given::Again,
                at => chunk(at, rest),
            };
        }
        self.refill_level(k, level, here, seen, least, most)
    }

    /// Listing 2: from this buffer, wherever the thread is.
    fn take_from(&self, k: usize, level: &Level, index: usize, least: usize, most: usize) -> Given {
        match region::take(level.lab(index), least, most) {
            Taken::Run(start, end) => {
                Given::Chunk(Chunk { start: address(start), end: address(end), epoch: self.source.epoch() })
            }
            Taken::Refilling => Given::None,
            Taken::Short(seen) => self.refill_level(k, level, index, seen, least, most),
        }
    }

    /// Refills a level's buffer that had `seen`, and takes a first chunk from it.
    fn refill_level(
        &self,
        k: usize,
        level: &Level,
        index: usize,
        seen: [usize; 2],
        least: usize,
        most: usize,
    ) -> Given {
        let (lab, counters, epoch) = (level.lab(index), &level.counters, self.source.epoch());
        let Some(mark) = region::mark(lab, seen, level.next_mark()) else {
            add(&counters.beaten, 1);
            return Given::None;
        };
        self.source.at(Point::Marked);
        // Before anything else is asked for: inside `obtain`, the epoch of this rest may end.
        if region::rest(seen) != 0 {
            add(&counters.tail_bytes, region::rest(seen));
            let rest = Chunk { start: address(seen[0]), end: address(seen[1]), epoch };
            // SAFETY: the mark has replaced the pair that owned it.
            unsafe { self.source.give_back(rest, Why::Abandoned) };
        }
        self.source.at(Point::TailGivenBack);
        let Some(number) = lab.fillings.next() else {
            region::give_up(lab, mark);
            return Given::None;
        };
        let size = multiple(lab.size(level.upper.sizes), Bytes(most));
        let sharers = level.in_use() + usize::from(!lab.is_in_use());
        let room = Room { left: self.source.left(), sharers };
        let (asked_least, asked_most) = wish(self.config.near_end, size, Bytes(least), room);
        let Some(chunk) = self.obtain_at(k + 1, asked_least.0, asked_most.0) else {
            region::give_up(lab, mark);
            return Given::None;
        };
        self.source.at(Point::LevelObtained);
        add(&counters.refills, 1);
        add(&counters.refill_bytes, chunk.bytes().0);
        if k == 0 && self.config.lowest == Lowest::Nobody {
            // Objects are taken from it by the fast path.
            self.source.prepare(chunk);
        }
        let (first, rest) = chunk.split(most.min(chunk.bytes().0));
        if level.has_sequence() {
            if level.finish_here(&mark, number | rest.start, number | rest.end) {
                self.finished(level, lab, chunk);
                return Given::Chunk(first);
            }
            // The thread has moved: the whole chunk is for those who are here.
            if region::finish(lab, mark, number | chunk.start, number | chunk.end) {
                self.finished(level, lab, chunk);
                return Given::Again;
            }
        } else if region::finish(lab, mark, number | rest.start, number | rest.end) {
            self.finished(level, lab, chunk);
            return Given::Chunk(first);
        }
        // A stop, or a fork's child, has closed it.
        add(&counters.unfinished, 1);
        self.source.prepare(chunk);
        self.put_aside(chunk);
        Given::None
    }

    fn finished(&self, level: &Level, lab: &Lab, chunk: Chunk) {
        lab.note_refill(level.upper.sizes, chunk.bytes());
        self.source.at(Point::Finished);
    }
}

/// Where an object and the new buffer lie.
struct Placed {
    object: usize,
    /// The buffer's new pair.
    pair: [usize; 2],
    /// What the old pair had left, if it had anything.
    abandoned: Option<(usize, usize)>,
    /// Whether that is part of the new pair.
    is_merged: bool,
}

impl Placed {
    fn new(source: &impl ChunkSource, seen: [usize; 2], chunk: Chunk, bytes: usize) -> Self {
        let has_rest = region::rest(seen) != 0;
        let is_merged = has_rest && seen[1] == chunk.start && source.may_join(chunk.start);
        let object = if is_merged { seen[0] } else { chunk.start };
        let abandoned = (has_rest && !is_merged).then_some((seen[0], seen[1]));
        Self { object, pair: [object + bytes, chunk.end], abandoned, is_merged }
    }
}
