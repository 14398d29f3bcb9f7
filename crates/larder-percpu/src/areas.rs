//! A domain without its type: the areas of all indices, and the operations on them by address.
//!
//! Areas are numbered. First come those of the kernel's indices, which sequences work on; then the *shards*, which are
//! worked on under their locks; last one more shard, for code that interrupted a holder. With sequences there is one shard
//! and its spare, for threads that the kernel gives no index (made by raw clone, or without registration) and for an
//! index that is closed at the moment. Without sequences there are as many shards as there would be indices.
//!
//! Everything begins with a sequence and, where it refuses, goes on here with a lock, so no operation waits for a take-over.

use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, compiler_fence};

use larder_sys::memory::{self, ReserveError};
use larder_sys::rseq_area::{CPU_ID, MM_CID, RSEQ_CS};
use larder_sys::topology::{self, Level};
use larder_sys::{cpus, membarrier, rseq_area, thread};
use larder_units::Bytes;

use crate::locked::{self, Busy, Held};
use crate::sequence::frame::HEADER;
use crate::sequence::list::{list_pop, list_push};
use crate::sequence::region::{self, REFUSED};
use crate::sequence::stack::{self, Batch};
use crate::sequence::transaction::{self as commit, MISMATCH, PairRequest};
use crate::sequence::word::{self, Exchanged};
use crate::sequence::{Frame, Header, level};

/// What areas belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// Concurrency ids (`mm_cid`): as many areas as threads run at once. CPUs, where the kernel has none (before 6.3).
    ConcurrencyId,
    /// CPUs.
    Cpu,
    /// Cores, packages or nodes: areas that several CPUs share.
    Level(Level),
}

/// How a domain works in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// By sequences, on concurrency ids.
    ConcurrencyIds,
    /// By sequences, on CPUs.
    Cpus,
    /// By sequences, on levels that CPUs share.
    Levels,
    /// By locks: there are no sequences, for the reason given.
    Locks(&'static str),
}

/// How a domain is made.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// What areas belong to.
    pub by: By,
    /// How many indices to make room for; 0 for as many as the machine could ever have. A thread whose index lies beyond
    /// uses the shard.
    pub indices: u32,
    /// Whether sequences are used where the system has them. Without, everything works by locks: for single-stepping
    /// debuggers, in which a sequence never ends, and for tests.
    pub sequences: bool,
}

impl Options {
    /// The defaults for this association.
    pub const fn new(by: By) -> Self {
        Self { by, indices: 0, sequences: true }
    }
}

/// A transaction's index and token, by which its commits recognise it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// Never 0 in a transaction that was begun; 0 holds nowhere.
    pub token: u64,
    /// The area's number.
    pub index: u32,
    /// Whether it was begun under a lock.
    locked: u32,
}

impl Ticket {
    /// A ticket that holds nowhere.
    pub const NONE: Self = Self { token: 0, index: 0, locked: 0 };

    /// Puts a ticket together again from its [`parts`](Ticket::parts).
    pub const fn from_parts(token: u64, packed: u32) -> Self {
        Self { token, index: packed & !LOCKED, locked: packed & LOCKED }
    }

    /// The token, and the rest in one word.
    pub const fn parts(self) -> (u64, u32) {
        (self.token, self.packed())
    }

    /// The index as commits compare it: for a locked ticket no index that the kernel gives out.
    const fn packed(self) -> u32 {
        self.index | self.locked
    }
}

/// Marks the index of a ticket that was begun under a lock.
const LOCKED: u32 = 1 << 30;

const UNSET: u32 = 0;
const BUSY: u32 = 1;
const READY: u32 = 2;

/// Areas begin at multiples of this, so that two indices share no pair of lines (the prefetcher fetches pairs).
const STRIDE: usize = 128;

/// The areas of one domain.
///
/// It can be a static: the areas are mapped when it is first used, or by [`Core::set_up`].
#[repr(C)]
pub struct Core {
    frame: Frame,
    /// Sync: `domain.ready`.
    state: AtomicU32,
    /// How many shards, the spare one not counted. Sync: as the frame.
    shards: AtomicU32,
    /// Bytes of the mapping. Sync: as the frame.
    mapped: AtomicUsize,
    /// Why there are no sequences: a place in `REASONS`. Sync: as the frame.
    reason: AtomicPtr<&'static str>,
    /// Operations that went by a lock. Sync: a counter.
    by_lock: AtomicU64,
    options: Options,
    content: usize,
}

impl Core {
    /// A domain whose areas hold `content` bytes each.
    pub const fn new(content: usize, options: Options) -> Self {
        Self {
            frame: Frame::unset(),
            state: AtomicU32::new(UNSET),
            shards: AtomicU32::new(0),
            mapped: AtomicUsize::new(0),
            reason: AtomicPtr::new(core::ptr::null_mut()),
            by_lock: AtomicU64::new(0),
            options,
            content,
        }
    }

    /// Maps the areas and finds out how to work. Every first use does it; by hand, an error can be dealt with, and a signal
    /// handler can be the first to use the domain.
    ///
    /// Not for signal handlers: it asks the dynamic loader.
    pub fn set_up(&self) -> Result<(), ReserveError> {
        loop {
            // ORDER domain.ready: Acquire, with the store below: the frame is seen whole.
            match self.state.compare_exchange(UNSET, BUSY, Ordering::Acquire, Ordering::Acquire) {
                Err(READY) => return Ok(()),
                Err(_) => thread::yield_now(),
                Ok(_) => {
                    let made = self.make();
                    // ORDER domain.ready: Release, with the exchange above.
                    self.state.store(if made.is_ok() { READY } else { UNSET }, Ordering::Release);
                    return made;
                }
            }
        }
    }

    fn make(&self) -> Result<(), ReserveError> {
        locked::set_up();
        let found = ground(self.options);
        let wanted = match self.options.indices {
            0 => cpus::possible() as u32,
            n => n,
        };
        let (indices, shards) = if found.is_ok() { (wanted, 1) } else { (0, wanted) };
        let stride = (HEADER + self.content).next_multiple_of(STRIDE);
        let areas = (indices + shards + 1) as usize;
        // The map from CPUs to areas stands behind the areas.
        let map_bytes = if matches!(self.options.by, By::Level(_)) { wanted as usize * size_of::<u32>() } else { 0 };
        let size = Bytes(areas * stride + map_bytes).to_pages_rounded_up().to_bytes();
        let base = memory::map_lazy(size)?.as_ptr();
        let frame = &self.frame;
        if let By::Level(level) = self.options.by {
            // SAFETY: the mapping has room for the map behind the areas, and nobody else knows it yet.
            let map = unsafe { base.add(areas * stride) }.cast::<u32>();
            for cpu in 0..wanted as usize {
                // A leader beyond the room, on a domain made smaller than the machine, would be no area.
                let leader = topology::leader(level, cpu).min(cpu) as u32;
                // SAFETY: `cpu` is below the number of entries.
                unsafe { map.add(cpu).write(leader) };
            }
            frame.map.store(map, Ordering::Relaxed);
        }
        frame.base.store(base, Ordering::Relaxed);
        frame.stride.store(stride, Ordering::Relaxed);
        self.mapped.store(size.0, Ordering::Relaxed);
        self.shards.store(shards, Ordering::Relaxed);
        match found {
            Ok((rseq_cs, index)) => {
                frame.rseq_cs.store(rseq_cs, Ordering::Relaxed);
                frame.index.store(index, Ordering::Relaxed);
            }
            Err(why) => self.reason.store(core::ptr::from_ref(why).cast_mut(), Ordering::Relaxed),
        }
        // ORDER domain.ready: Release, with the load in `has_sequences`.
        frame.indices.store(indices, Ordering::Release);
        Ok(())
    }

    /// Sets the domain up where that was not done, and stops the process where there is no memory for it.
    fn ensure(&self) {
        // ORDER domain.ready: Acquire, with the store in `set_up`.
        if self.state.load(Ordering::Acquire) != READY
            && let Err(error) = self.set_up()
        {
            larder_sys::die!(
                "no address space for the areas of a domain ({} bytes, errno {}): raise ulimit -v",
                error.wanted.0,
                error.errno
            );
        }
    }

    /// Whether sequences may be called.
    #[inline(always)]
    fn has_sequences(&self) -> bool {
        // ORDER domain.ready: Acquire, with the store in `make`; free of cost on x86-64.
        self.frame.indices.load(Ordering::Acquire) != 0
    }

    /// How the domain works.
    pub fn mode(&self) -> Mode {
        self.ensure();
        if !self.has_sequences() {
            // SAFETY: without sequences, `make` stored a reference to one of the statics that hold reasons.
            return Mode::Locks(unsafe { *self.reason.load(Ordering::Relaxed) });
        }
        match self.options.by {
            By::Level(_) => Mode::Levels,
            _ if self.is_by_concurrency_id() => Mode::ConcurrencyIds,
            _ => Mode::Cpus,
        }
    }

    fn is_by_concurrency_id(&self) -> bool {
        self.frame.index.load(Ordering::Relaxed) - self.frame.rseq_cs.load(Ordering::Relaxed) == MM_CID - RSEQ_CS
    }

    /// How many areas there are, shards included: the index of a transaction is below.
    pub fn areas(&self) -> usize {
        self.ensure();
        self.sequence_areas() + self.shards.load(Ordering::Relaxed) as usize + 1
    }

    /// How many areas sequences work on.
    pub fn sequence_areas(&self) -> usize {
        // Relaxed: the caller has seen that the domain is set up, or takes 0 for an answer.
        self.frame.indices.load(Ordering::Relaxed) as usize
    }

    /// The frame, for those who call sequences themselves.
    pub fn frame(&self) -> &Frame {
        &self.frame
    }

    /// The address of an area's content.
    #[inline(always)]
    pub fn content(&self, index: usize) -> *mut u8 {
        // SAFETY: the areas lie one after the other in the mapping.
        unsafe { self.area(index).add(HEADER) }
    }

    #[inline(always)]
    fn area(&self, index: usize) -> *mut u8 {
        let (base, stride) = (self.frame.base.load(Ordering::Relaxed), self.frame.stride.load(Ordering::Relaxed));
        base.wrapping_add(index * stride)
    }

    /// An area's head.
    #[inline(always)]
    pub fn header(&self, index: usize) -> &Header {
        // SAFETY: the mapping lives as long as the domain; every part of a header is an atomic.
        unsafe { &*self.area(index).cast::<Header>() }
    }

    /// Operations that were done under a lock.
    pub fn by_lock(&self) -> u64 {
        self.by_lock.load(Ordering::Relaxed)
    }

    // Shards.

    /// Runs `f` with a shard's lock held: `f` gets the area's number and address.
    fn with_shard<R>(&self, f: impl FnOnce(usize, *mut u8) -> R) -> R {
        self.by_lock.fetch_add(1, Ordering::Relaxed);
        let (first, shards) = (self.sequence_areas(), self.shards.load(Ordering::Relaxed) as usize);
        if locked::is_inside() {
            let spare = first + shards;
            let Ok(_held) = Held::wait(self.header(spare), true) else {
                larder_sys::die!("a handler of a fault used a domain whose last lock its own thread holds");
            };
            return f(spare, self.area(spare));
        }
        let start = if shards > 1 { cpus::current() } else { 0 };
        for turn in 0..shards {
            let index = first + (start + turn) % shards;
            // Nothing is held here, so no lock is this thread's own.
            if let Ok(Some(_held)) = Held::try_hold(self.header(index), false) {
                return f(index, self.area(index));
            }
        }
        let index = first + start % shards;
        match Held::wait(self.header(index), false) {
            Ok(_held) => f(index, self.area(index)),
            Err(Busy) => {
                larder_sys::die!("the lock of a domain has this thread as its owner, but the thread holds none")
            }
        }
    }

    /// What a refused operation does before it takes a lock: sets the domain up, and empties an index whose taker stayed
    /// behind in the parent process. True when sequences should be tried again.
    fn prepare(&self) -> bool {
        let was_ready = self.has_sequences();
        self.ensure();
        if !self.has_sequences() {
            return false;
        }
        let Some(index) = self.current_index() else { return !was_ready };
        let header = self.header(index);
        if header.closed.load(Ordering::Relaxed) == 0 {
            // Opened meanwhile, or the thread has moved.
            return true;
        }
        if !locked::is_left_behind(header.owner.load(Ordering::Relaxed)) {
            return false;
        }
        // The taker is not in this process: what it had taken is gone with it.
        self.take_over(index, |_| {
            // SAFETY: the area is closed and ours; all zero is what it was in the beginning.
            unsafe { core::ptr::write_bytes(self.content(index), 0, self.content) };
        })
        .is_ok()
    }

    /// The area of the calling thread's index now: a hint, stale at once. `None` where the kernel gives it none.
    pub fn current_index(&self) -> Option<usize> {
        if !self.has_sequences() {
            return None;
        }
        let word = |offset: isize| {
            let at = thread::thread_pointer().wrapping_offset(offset);
            // SAFETY: the offset was found to be inside the area, which every thread has at the same offset.
            unsafe { at.cast::<u32>().read_volatile() }
        };
        let is_registered = word(self.frame.rseq_cs.load(Ordering::Relaxed) + CPU_ID - RSEQ_CS) <= i32::MAX as u32;
        let index = word(self.frame.index.load(Ordering::Relaxed)) as usize;
        if !is_registered || index >= self.sequence_areas() {
            return None;
        }
        let map = self.frame.map.load(Ordering::Relaxed);
        // SAFETY: the map has an entry for each index.
        Some(if map.is_null() { index } else { unsafe { map.add(index).read() as usize } })
    }

    // Transactions.

    /// Begins a transaction. Not on levels: a token says nothing about another CPU of the area.
    #[inline(always)]
    pub fn begin(&self) -> Ticket {
        if self.has_sequences() {
            // SAFETY: the frame is set up and has indices.
            let begun = unsafe { commit::begin(&self.frame) };
            if begun.token != 0 {
                return Ticket { token: begun.token, index: begun.index as u32, locked: 0 };
            }
        }
        self.begin_slow()
    }

    #[cold]
    fn begin_slow(&self) -> Ticket {
        if self.prepare() {
            // SAFETY: `prepare` says that there are sequences.
            let begun = unsafe { commit::begin(&self.frame) };
            if begun.token != 0 {
                return Ticket { token: begun.token, index: begun.index as u32, locked: 0 };
            }
        }
        self.with_shard(|index, area| {
            // SAFETY: the shard's header; its lock is held.
            let token = unsafe { &(*area.cast::<Header>()).token };
            let new = token.load(Ordering::Relaxed) + 1;
            token.store(new, Ordering::Relaxed);
            Ticket { token: new, index: index as u32, locked: LOCKED }
        })
    }

    /// Whether nobody has begun on the ticket's index since, the thread is there, and it is open. A hint: the commit decides.
    #[inline]
    pub fn holds(&self, ticket: Ticket) -> bool {
        if ticket.token == 0 {
            return false;
        }
        let header = self.header(ticket.index as usize);
        header.closed.load(Ordering::Relaxed) == 0
            && header.token.load(Ordering::Relaxed) == ticket.token
            && (ticket.locked != 0 || self.current_index() == Some(ticket.index as usize))
    }

    /// Runs a commit under the lock of the ticket's shard.
    #[cold]
    fn commit_slow(&self, ticket: Ticket, commit: impl FnOnce() -> u32) -> u32 {
        if ticket.locked == 0 {
            return commit::INTERFERED;
        }
        self.by_lock.fetch_add(1, Ordering::Relaxed);
        let index = ticket.index as usize;
        let is_spare = index + 1 == self.areas();
        let header = self.header(index);
        // Code that interrupted a holder may wait only for the spare shard.
        let held = if is_spare || !locked::is_inside() {
            Held::wait(header, is_spare).ok()
        } else {
            Held::try_hold(header, false).ok().flatten()
        };
        let Some(_held) = held else { return commit::INTERFERED };
        if header.token.load(Ordering::Relaxed) != ticket.token {
            return commit::INTERFERED;
        }
        commit()
    }

    /// Stores 32 bits: 0, or `INTERFERED`.
    ///
    /// # Safety
    /// `at` is writable and aligned; while transactions run, only they and compare forms on this index write there.
    #[inline(always)]
    pub unsafe fn store_32(&self, ticket: Ticket, at: *mut u32, value: u32) -> u32 {
        if self.has_sequences() {
            // SAFETY: the frame is set up; the caller vouches for the place.
            let status =
                unsafe { commit::commit_store_32(&self.frame, ticket.packed().into(), ticket.token, at, value) };
            if status == 0 {
                return 0;
            }
        }
        // SAFETY: as above; the lock is held.
        self.commit_slow(ticket, || unsafe {
            AtomicU32::from_ptr(at).store(value, Ordering::Relaxed);
            0
        })
    }

    /// Stores 64 bits: 0, or `INTERFERED`.
    ///
    /// # Safety
    /// As for [`Core::store_32`].
    #[inline(always)]
    pub unsafe fn store_64(&self, ticket: Ticket, at: *mut u64, value: u64) -> u32 {
        if self.has_sequences() {
            // SAFETY: the frame is set up; the caller vouches for the place.
            let status =
                unsafe { commit::commit_store_64(&self.frame, ticket.packed().into(), ticket.token, at, value) };
            if status == 0 {
                return 0;
            }
        }
        // SAFETY: as above; the lock is held.
        self.commit_slow(ticket, || unsafe {
            AtomicU64::from_ptr(at).store(value, Ordering::Relaxed);
            0
        })
    }

    /// Stores 32 bits where there are `old`: 0, `INTERFERED` or `MISMATCH`.
    ///
    /// # Safety
    /// As for [`Core::store_32`].
    #[inline(always)]
    pub unsafe fn compare_32(&self, ticket: Ticket, at: *mut u32, old: u32, new: u32) -> u32 {
        if self.has_sequences() {
            // SAFETY: the frame is set up; the caller vouches for the place.
            let status =
                unsafe { commit::commit_compare_32(&self.frame, ticket.packed().into(), ticket.token, at, old, new) };
            if status != commit::INTERFERED {
                return status;
            }
        }
        self.commit_slow(ticket, || {
            // SAFETY: as above; the lock is held.
            let word = unsafe { AtomicU32::from_ptr(at) };
            if word.load(Ordering::Relaxed) != old {
                return MISMATCH;
            }
            word.store(new, Ordering::Relaxed);
            0
        })
    }

    /// Stores 64 bits where there are `old`: 0, `INTERFERED` or `MISMATCH`.
    ///
    /// # Safety
    /// As for [`Core::store_32`].
    #[inline(always)]
    pub unsafe fn compare_64(&self, ticket: Ticket, at: *mut u64, old: u64, new: u64) -> u32 {
        if self.has_sequences() {
            // SAFETY: the frame is set up; the caller vouches for the place.
            let status =
                unsafe { commit::commit_compare_64(&self.frame, ticket.packed().into(), ticket.token, at, old, new) };
            if status != commit::INTERFERED {
                return status;
            }
        }
        self.commit_slow(ticket, || {
            // SAFETY: as above; the lock is held.
            let word = unsafe { AtomicU64::from_ptr(at) };
            if word.load(Ordering::Relaxed) != old {
                return MISMATCH;
            }
            word.store(new, Ordering::Relaxed);
            0
        })
    }

    /// Stores a pair where there is `old`: 0, `INTERFERED` or `MISMATCH`.
    ///
    /// # Safety
    /// As for [`Core::store_32`]; the address is a multiple of 16.
    #[inline(always)]
    pub unsafe fn compare_pair(&self, ticket: Ticket, at: *mut u64, old: [u64; 2], new: [u64; 2]) -> u32 {
        if self.has_sequences() {
            let request = PairRequest { old, new, address: at, index: ticket.packed().into(), token: ticket.token };
            // SAFETY: the frame is set up; the caller vouches for the place.
            let status = unsafe { commit::commit_pair(&self.frame, &request) };
            if status != commit::INTERFERED {
                return status;
            }
        }
        // SAFETY: as above; the lock is held.
        self.commit_slow(ticket, || unsafe { compare_store_pair_locked(at, old, new) })
    }

    // One-shot operations. The offset is counted from the beginning of the content.

    /// Adds to a word.
    ///
    /// # Safety
    /// The word lies in the content.
    #[inline(always)]
    pub unsafe fn add(&self, offset: usize, value: u64) {
        // SAFETY: the frame is set up; the caller vouches for the word.
        if !(self.has_sequences() && unsafe { word::add(&self.frame, HEADER + offset, value) } == 0) {
            // SAFETY: as above.
            unsafe { self.add_slow(offset, value) }
        }
    }

    #[cold]
    unsafe fn add_slow(&self, offset: usize, value: u64) {
        // SAFETY: as for `add`.
        if self.prepare() && unsafe { word::add(&self.frame, HEADER + offset, value) } == 0 {
            return;
        }
        self.with_shard(|_, area| {
            // SAFETY: the caller vouches for the word; the lock is held.
            let word = unsafe { word_at(area, offset) };
            word.store(word.load(Ordering::Relaxed).wrapping_add(value), Ordering::Relaxed);
        });
    }

    /// Stores to a word and returns what it was.
    ///
    /// # Safety
    /// As for [`Core::add`].
    #[inline(always)]
    pub unsafe fn exchange(&self, offset: usize, new: u64) -> u64 {
        if self.has_sequences() {
            // SAFETY: as for `add`.
            let Exchanged { old, status } = unsafe { word::exchange(&self.frame, HEADER + offset, new) };
            if status == 0 {
                return old;
            }
        }
        // SAFETY: the caller's promise.
        unsafe { self.exchange_slow(offset, new) }
    }

    #[cold]
    unsafe fn exchange_slow(&self, offset: usize, new: u64) -> u64 {
        if self.prepare() {
            // SAFETY: as for `add`.
            let Exchanged { old, status } = unsafe { word::exchange(&self.frame, HEADER + offset, new) };
            if status == 0 {
                return old;
            }
        }
        self.with_shard(|_, area| {
            // SAFETY: as in `add_slow`.
            let word = unsafe { word_at(area, offset) };
            let old = word.load(Ordering::Relaxed);
            word.store(new, Ordering::Relaxed);
            old
        })
    }

    /// Runs a sequence that returns a status; where it is refused, tries again after `prepare`, and then `locked` with the
    /// shard's area.
    #[inline(always)]
    fn status(&self, sequence: impl Fn() -> u32, locked: impl FnOnce(*mut u8) -> u32) -> u32 {
        if self.has_sequences() {
            let status = sequence();
            if status != word::REFUSED {
                return status;
            }
        }
        self.status_slow(sequence, locked)
    }

    #[cold]
    fn status_slow(&self, sequence: impl Fn() -> u32, locked: impl FnOnce(*mut u8) -> u32) -> u32 {
        if self.prepare() {
            let status = sequence();
            if status != word::REFUSED {
                return status;
            }
        }
        self.with_shard(|_, area| locked(area))
    }

    /// As `status`, for sequences that return a word.
    #[inline(always)]
    fn word(&self, sequence: impl Fn() -> usize, locked: impl FnOnce(*mut u8) -> usize) -> usize {
        if self.has_sequences() {
            let word = sequence();
            if word != REFUSED {
                return word;
            }
        }
        self.word_slow(sequence, locked)
    }

    #[cold]
    fn word_slow(&self, sequence: impl Fn() -> usize, locked: impl FnOnce(*mut u8) -> usize) -> usize {
        if self.prepare() {
            let word = sequence();
            if word != REFUSED {
                return word;
            }
        }
        self.with_shard(|_, area| locked(area))
    }

    /// Stores to a word that is `old`: 0 or `MISMATCH`.
    ///
    /// # Safety
    /// As for [`Core::add`].
    #[inline(always)]
    pub unsafe fn compare_store(&self, offset: usize, old: u64, new: u64) -> u32 {
        self.status(
            // SAFETY: as for `add`.
            || unsafe { word::compare_store(&self.frame, HEADER + offset, old, new) },
            // SAFETY: as in `add_slow`.
            |area| compare_store_locked(unsafe { word_at(area, offset) }, old, new),
        )
    }

    /// Stores to a word that is `old`, if another word is `also`: 0 or `MISMATCH`.
    ///
    /// # Safety
    /// As for [`Core::add`], for both words.
    #[inline(always)]
    pub unsafe fn compare_two_store(&self, offset: usize, old: u64, new: u64, other: usize, also: u64) -> u32 {
        self.status(
            // SAFETY: as for `add`.
            || unsafe { word::compare_two_store(&self.frame, HEADER + offset, old, new, HEADER + other, also) },
            |area| {
                // SAFETY: as in `add_slow`.
                let (word, second) = unsafe { (word_at(area, offset), word_at(area, other)) };
                if second.load(Ordering::Relaxed) != also {
                    return MISMATCH;
                }
                compare_store_locked(word, old, new)
            },
        )
    }

    /// Stores to a pair that is `old`: 0 or `MISMATCH`.
    ///
    /// # Safety
    /// As for [`Core::add`]; the offset is a multiple of 16.
    #[inline(always)]
    pub unsafe fn compare_store_pair(&self, offset: usize, old: [u64; 2], new: [u64; 2]) -> u32 {
        let words = [old[0], old[1], new[0], new[1]];
        self.status(
            // SAFETY: as for `add`.
            || unsafe { word::compare_store_pair(&self.frame, HEADER + offset, &words) },
            // SAFETY: as in `add_slow`.
            |area| unsafe { compare_store_pair_locked(area.add(HEADER + offset).cast(), old, new) },
        )
    }

    /// Takes `bytes` from the region (frontier, limit) at `offset`: its address, or 0.
    ///
    /// # Safety
    /// As for [`Core::add`], for both words.
    #[inline(always)]
    pub unsafe fn bump(&self, offset: usize, bytes: usize) -> usize {
        self.word(
            // SAFETY: as for `add`.
            || unsafe { region::bump(&self.frame, HEADER + offset, bytes) },
            // SAFETY: as in `add_slow`.
            |area| unsafe { bump_locked(area, offset, bytes) },
        )
    }

    /// As [`Core::bump`], and stores `header` to the first word.
    ///
    /// # Safety
    /// As for [`Core::bump`]; the region's memory is writable, and `bytes` is at least 8.
    #[inline(always)]
    pub unsafe fn bump_header(&self, offset: usize, bytes: usize, header: u64) -> usize {
        self.word(
            // SAFETY: as for `add`.
            || unsafe { region::bump_header(&self.frame, HEADER + offset, bytes, header) },
            |area| {
                // SAFETY: as in `add_slow`.
                let at = unsafe { bump_locked(area, offset, bytes) };
                if at != 0 {
                    // SAFETY: the bytes are the caller's now; it vouches for the region's memory.
                    unsafe { AtomicU64::from_ptr(core::ptr::with_exposed_provenance_mut(at)) }
                        .store(header, Ordering::Relaxed);
                }
                at
            },
        )
    }

    /// Takes the first node of the list at `offset`, or 0.
    ///
    /// # Safety
    /// As for [`Core::add`]; what is in the list is readable until it is taken.
    #[inline(always)]
    pub unsafe fn list_pop(&self, offset: usize) -> usize {
        self.word(
            // SAFETY: as for `add`.
            || unsafe { list_pop(&self.frame, HEADER + offset) },
            |area| {
                // SAFETY: as in `add_slow`; the node is in the list, so its first word is readable.
                unsafe {
                    let head = word_at(area, offset);
                    let first = head.load(Ordering::Relaxed) as usize;
                    if first != 0 {
                        head.store(next_of(first).load(Ordering::Relaxed), Ordering::Relaxed);
                    }
                    first
                }
            },
        )
    }

    /// Puts a chain before the first node of the list at `offset`.
    ///
    /// # Safety
    /// As for [`Core::add`]; the chain from `first` to `last` is the caller's, and stays readable while it is in the list.
    #[inline(always)]
    pub unsafe fn list_push(&self, offset: usize, first: usize, last: usize) {
        self.status(
            // SAFETY: as for `add`.
            || unsafe { list_push(&self.frame, HEADER + offset, first, last) },
            |area| {
                // SAFETY: as in `add_slow`; the last node is the caller's.
                unsafe {
                    let head = word_at(area, offset);
                    next_of(last).store(head.load(Ordering::Relaxed), Ordering::Relaxed);
                    head.store(first as u64, Ordering::Relaxed);
                }
                0
            },
        );
    }

    /// Takes the last word of the stack at `offset`, or 0.
    ///
    /// # Safety
    /// As for [`Core::add`], for the count and the words.
    #[inline(always)]
    pub unsafe fn stack_pop(&self, offset: usize) -> usize {
        self.word(
            // SAFETY: as for `add`.
            || unsafe { stack::stack_pop(&self.frame, HEADER + offset) },
            |area| {
                let mut word = 0;
                // SAFETY: as in `add_slow`.
                let taken = unsafe { stack_pop_locked(area, offset, core::slice::from_mut(&mut word)) };
                if taken == 0 { 0 } else { word }
            },
        )
    }

    /// Puts a word on the stack at `offset`; false when it is full.
    ///
    /// # Safety
    /// As for [`Core::stack_pop`]; the stack has room for `capacity` words.
    #[inline(always)]
    pub unsafe fn stack_push(&self, offset: usize, value: usize, capacity: usize) -> bool {
        self.status(
            // SAFETY: as for `add`.
            || unsafe { stack::stack_push(&self.frame, HEADER + offset, value, capacity) },
            |area| {
                // SAFETY: as in `add_slow`.
                let put = unsafe { stack_push_locked(area, offset, &[value], capacity) };
                if put == 1 { 0 } else { MISMATCH }
            },
        ) == 0
    }

    /// Takes up to as many words as `into` has, last first; says how many.
    ///
    /// # Safety
    /// As for [`Core::stack_pop`].
    pub unsafe fn stack_pop_many(&self, offset: usize, into: &mut [usize]) -> usize {
        let batch = Batch { offset: HEADER + offset, words: into.as_mut_ptr(), count: into.len(), capacity: 0 };
        self.word(
            // SAFETY: as for `add`; the words are the caller's.
            || unsafe { stack::stack_pop_many(&self.frame, &batch) },
            // SAFETY: as in `add_slow`; nobody else uses the words.
            |area| unsafe { stack_pop_locked(area, offset, core::slice::from_raw_parts_mut(batch.words, batch.count)) },
        )
    }

    /// Puts as many of the words on the stack as there is room for; says how many.
    ///
    /// # Safety
    /// As for [`Core::stack_push`].
    pub unsafe fn stack_push_many(&self, offset: usize, words: &[usize], capacity: usize) -> usize {
        let batch = Batch { offset: HEADER + offset, words: words.as_ptr().cast_mut(), count: words.len(), capacity };
        self.word(
            // SAFETY: as for `add`; the sequence only reads the words.
            || unsafe { stack::stack_push_many(&self.frame, &batch) },
            // SAFETY: as in `add_slow`.
            |area| unsafe { stack_push_locked(area, offset, words, capacity) },
        )
    }

    // Levels.

    /// As [`Core::bump`], on a level.
    ///
    /// # Safety
    /// As for [`Core::bump`]; the domain is by level, and the offset a multiple of 16.
    #[inline(always)]
    pub unsafe fn level_bump(&self, offset: usize, bytes: usize) -> usize {
        self.word(
            // SAFETY: as for `add`.
            || unsafe { level::level_bump(&self.frame, HEADER + offset, bytes) },
            // SAFETY: as in `add_slow`.
            |area| unsafe { bump_locked(area, offset, bytes) },
        )
    }

    /// As [`Core::add`], on a level.
    ///
    /// # Safety
    /// As for [`Core::add`]; the domain is by level.
    #[inline(always)]
    pub unsafe fn level_add(&self, offset: usize, value: u64) {
        self.status(
            // SAFETY: as for `add`.
            || unsafe { level::level_add(&self.frame, HEADER + offset, value) },
            |area| {
                // SAFETY: as in `add_slow`.
                let word = unsafe { word_at(area, offset) };
                word.store(word.load(Ordering::Relaxed).wrapping_add(value), Ordering::Relaxed);
                0
            },
        );
    }

    /// As [`Core::compare_store`], on a level.
    ///
    /// # Safety
    /// As for [`Core::level_add`].
    #[inline(always)]
    pub unsafe fn level_compare_store(&self, offset: usize, old: u64, new: u64) -> u32 {
        self.status(
            // SAFETY: as for `add`.
            || unsafe { level::level_compare_store(&self.frame, HEADER + offset, old, new) },
            // SAFETY: as in `add_slow`.
            |area| compare_store_locked(unsafe { word_at(area, offset) }, old, new),
        )
    }

    /// As [`Core::compare_store_pair`], on a level.
    ///
    /// # Safety
    /// As for [`Core::level_add`]; the offset is a multiple of 16.
    #[inline(always)]
    pub unsafe fn level_compare_store_pair(&self, offset: usize, old: [u64; 2], new: [u64; 2]) -> u32 {
        let words = [old[0], old[1], new[0], new[1]];
        self.status(
            // SAFETY: as for `add`.
            || unsafe { level::level_compare_store_pair(&self.frame, HEADER + offset, &words) },
            // SAFETY: as in `add_slow`.
            |area| unsafe { compare_store_pair_locked(area.add(HEADER + offset).cast(), old, new) },
        )
    }

    // Take-over.

    /// Makes an area the caller's alone while `f` runs: closes it, aborts what is under way there, replaces its token, and
    /// opens it again. A transaction that began before fails, also if it slept through all of it.
    ///
    /// All signals but faults are masked meanwhile. Some microseconds; not for a handler that cannot afford them.
    pub fn take_over<R>(&self, index: usize, f: impl FnOnce(*mut u8) -> R) -> Result<R, Busy> {
        assert!(index < self.areas(), "area {index} of {}", self.areas());
        let header = self.header(index);
        let held =
            if locked::is_inside() { Held::try_hold(header, true)?.ok_or(Busy)? } else { Held::wait(header, true)? };
        let open = Open { header, _held: held };
        header.closed.store(1, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        if index < self.sequence_areas() {
            self.abort_sequences(index);
        }
        compiler_fence(Ordering::SeqCst);
        header.token.store(header.token.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        header.taken.fetch_add(1, Ordering::Relaxed);
        let result = f(self.content(index));
        drop(open);
        Ok(result)
    }

    /// ORDER takeover.close: the barrier comes after the store to `closed` on every CPU that runs this process: a sequence
    /// that had read "open" is aborted, or was committed before; one that begins after reads "closed". It also orders what
    /// such sequences stored before what the taker reads.
    fn abort_sequences(&self, index: usize) {
        let abort = || match self.options.by {
            // A concurrency id may be on any CPU; on a level are several.
            _ if self.is_by_concurrency_id() => membarrier::abort_sequences(),
            By::Level(_) => membarrier::abort_sequences(),
            _ => membarrier::abort_sequences_on(index),
        };
        // A process may have lost its registration by a way of being copied that the kernel does not count as fork.
        if !abort() && !(membarrier::register().rseq && abort()) {
            larder_sys::die!(
                "membarrier does not abort sequences any more, so nothing can be taken over; a sandbox that was entered \
                 after the domain was set up must allow membarrier"
            );
        }
    }

    /// Unmaps the areas.
    ///
    /// # Safety
    /// Nobody uses the domain any more, and no thread is inside one of its operations.
    pub unsafe fn destroy(&mut self) {
        if *self.state.get_mut() == READY {
            // SAFETY: the whole mapping of this domain; the caller vouches that nobody uses it.
            unsafe {
                let base = core::ptr::NonNull::new(*self.frame.base.get_mut());
                memory::unmap(base.expect("a domain that is set up has areas").as_ptr(), Bytes(*self.mapped.get_mut()));
            }
            *self.frame.indices.get_mut() = 0;
            *self.state.get_mut() = UNSET;
        }
    }
}

/// Opens an area again when dropped, then releases its lock.
struct Open<'c> {
    header: &'c Header,
    _held: Held<'c>,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        // ORDER takeover.open: Release, with the sequences' reading of `closed`: they see what the taker left.
        self.header.closed.store(0, Ordering::Release);
    }
}

/// Why there may be no sequences; `Core` keeps the address of one of these.
static NOT_WANTED: &str = "the domain was made without";
static NO_BARRIER: &str = "membarrier cannot abort sequences (kernel 5.10 or later can)";

/// Where `rseq_cs` and the index are, or why there are no sequences.
fn ground(options: Options) -> Result<(isize, isize), &'static &'static str> {
    if !options.sequences {
        return Err(&NOT_WANTED);
    }
    let area = rseq_area::find().map_err(reason)?;
    if !membarrier::register().rseq {
        return Err(&NO_BARRIER);
    }
    let by_id = options.by == By::ConcurrencyId && area.index == rseq_area::Index::MmCid;
    Ok((area.offset + RSEQ_CS, area.offset + if by_id { MM_CID } else { CPU_ID }))
}

/// A static that holds the reason.
fn reason(why: &'static str) -> &'static &'static str {
    static REASONS: [&str; 3] = rseq_area::REASONS;
    static OTHER: &str = "restartable sequences are not available";
    REASONS.iter().find(|known| **known == why).unwrap_or(&OTHER)
}

/// # Safety
/// The word lies in the area's content.
unsafe fn word_at<'a>(area: *mut u8, offset: usize) -> &'a AtomicU64 {
    // SAFETY: the caller's promise; areas are mapped as long as the domain lives.
    unsafe { AtomicU64::from_ptr(area.add(HEADER + offset).cast()) }
}

/// # Safety
/// A node of a list, or the caller's own.
unsafe fn next_of<'a>(node: usize) -> &'a AtomicU64 {
    // SAFETY: a node's first word is the next one's address.
    unsafe { AtomicU64::from_ptr(core::ptr::with_exposed_provenance_mut(node)) }
}

fn compare_store_locked(word: &AtomicU64, old: u64, new: u64) -> u32 {
    if word.load(Ordering::Relaxed) != old {
        return MISMATCH;
    }
    word.store(new, Ordering::Relaxed);
    0
}

/// Both words by one instruction: a fork may copy the memory while another thread is in here.
///
/// # Safety
/// The pair is writable, at a multiple of 16, and the lock that guards it is held.
unsafe fn compare_store_pair_locked(at: *mut u64, old: [u64; 2], new: [u64; 2]) -> u32 {
    let done: u8;
    // SAFETY: the caller's promise; rbx, which the compiler keeps for itself, is put back.
    unsafe {
        core::arch::asm!(
            "xchg rbx, rsi",
            "cmpxchg16b xmmword ptr [rdi]",
            "sete r8b",
            "xchg rbx, rsi",
            in("rdi") at,
            inout("rsi") new[0] => _,
            in("rcx") new[1],
            inout("rax") old[0] => _,
            inout("rdx") old[1] => _,
            out("r8b") done,
            options(nostack),
        );
    }
    if done != 0 { 0 } else { MISMATCH }
}

/// # Safety
/// As for [`Core::bump`]; the shard's lock is held.
unsafe fn bump_locked(area: *mut u8, offset: usize, bytes: usize) -> usize {
    // SAFETY: the caller's promise.
    let (frontier, limit) = unsafe { (word_at(area, offset), word_at(area, offset + 8)) };
    let at = frontier.load(Ordering::Relaxed) as usize;
    let next = at.wrapping_add(bytes);
    if next > limit.load(Ordering::Relaxed) as usize {
        return 0;
    }
    frontier.store(next as u64, Ordering::Relaxed);
    at
}

/// # Safety
/// As for [`Core::stack_pop`]; the shard's lock is held.
unsafe fn stack_pop_locked(area: *mut u8, offset: usize, into: &mut [usize]) -> usize {
    // SAFETY: the caller's promise.
    let count = unsafe { word_at(area, offset) };
    let mut left = count.load(Ordering::Relaxed) as usize;
    let taken = left.min(into.len());
    for word in &mut into[..taken] {
        // SAFETY: word `left` of the stack, counted from one.
        *word = unsafe { word_at(area, offset + left * 8) }.load(Ordering::Relaxed) as usize;
        left -= 1;
    }
    count.store(left as u64, Ordering::Relaxed);
    taken
}

/// # Safety
/// As for [`Core::stack_push`]; the shard's lock is held.
unsafe fn stack_push_locked(area: *mut u8, offset: usize, words: &[usize], capacity: usize) -> usize {
    // SAFETY: the caller's promise.
    let count = unsafe { word_at(area, offset) };
    let mut used = count.load(Ordering::Relaxed) as usize;
    let put = capacity.saturating_sub(used).min(words.len());
    for word in &words[..put] {
        used += 1;
        // SAFETY: as in `stack_pop_locked`; there is room.
        unsafe { word_at(area, offset + used * 8) }.store(*word as u64, Ordering::Relaxed);
    }
    count.store(used as u64, Ordering::Relaxed);
    put
}
