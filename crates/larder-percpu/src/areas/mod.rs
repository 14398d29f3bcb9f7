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

use crate::ground::{is_registered, word};
use crate::locked::{self, Busy, Held};
use crate::sequence::frame::{HEADER, stride};
use crate::sequence::inlined::Hold;
use crate::sequence::{Frame, Header};

mod commit;
mod one_shot;

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

    /// The ticket of a transaction that was begun by the inlined sequence.
    #[inline(always)]
    pub fn of(hold: Hold) -> Self {
        Self { token: hold.token, index: hold.index as u32, locked: if hold.is_locked() { LOCKED } else { 0 } }
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
        let stride = stride(self.content);
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
                frame.index.store(index, Ordering::Relaxed);
                // ORDER domain.armable: Release, with the load in `armable`: base, stride, map and index are seen. Whoever is so early
                // finds no indices yet, and is refused.
                frame.rseq_cs.store(rseq_cs, Ordering::Release);
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

    /// The offset by which the inlined sequences arm; none where they may not.
    #[inline(always)]
    fn armable(&self) -> Option<isize> {
        // ORDER domain.armable: Acquire, with the store in `make`; free of cost on x86-64.
        let rseq_cs = self.frame.rseq_cs.load(Ordering::Acquire);
        (rseq_cs != Hold::LOCKED).then_some(rseq_cs)
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
        let index = word(self.frame.index.load(Ordering::Relaxed)) as usize;
        if !is_registered(self.frame.rseq_cs.load(Ordering::Relaxed)) || index >= self.sequence_areas() {
            return None;
        }
        let map = self.frame.map.load(Ordering::Relaxed);
        // SAFETY: the map has an entry for each index.
        Some(if map.is_null() { index } else { unsafe { map.add(index).read() as usize } })
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
        let aborted = abort() || membarrier::register().rseq && abort();
        if !aborted {
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
            *self.frame.rseq_cs.get_mut() = Hold::LOCKED;
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
