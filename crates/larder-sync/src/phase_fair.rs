//! A reader-writer lock in alternating phases, with parking on both sides (Brandenburg and Anderson's PF-T, carried to the
//! end that the notes describe in "waiting policies for locks").
//!
//! Readers and writers take turns: a reader that comes while a writer is there waits for that one writer, however many
//! more wait; a writer waits for the writers before it, and one group of readers between any two.
//!
//! **When to use:** where neither side may starve, and reading is worth doing side by side. **When not:** where reading is
//! nearly all there is ([`biased`](crate::biased) around this), or sections are a few instructions (a mutex). **Progress and
//! fairness:** a reader that finds a writer stands aside for at most 6 us, then arrives, and waits for at most one writing
//! phase (and its wake); writers exclude one another by
//! [`RawMutex`](crate::mutex::RawMutex), whose fairness they have. Nobody spins without bound. **Cost:** a reader adds to one word to
//! come and to another to go. **Recursion:** a thread that reads must not read again: a writer between would wait
//! for the first and be waited for by the second. **Cancellation:** a thread must not be cancelled while it waits.
//!
//! # Words
//!
//! | word | bits | meaning |
//! |---|---|---|
//! | `arrived` | 0 | the phase; it changes when a writer leaves |
//! | | 1 | a writer is there: readers wait |
//! | | 2 and up | readers that came, modulo 2^30 |
//! | `left` | 1 | the writer sleeps until the count is `target` |
//! | | 2 and up | readers that went |
//! | `waiting` | 0 | the phase of those who may wait here |
//! | | 7 and up | the reader that began to wait last |
//!
//! A reader that finds a writer pushes itself onto `waiting`, unless the phase there has changed: then that writer has left,
//! and the reader goes in. The writer that leaves takes the whole stack and changes the phase with one exchange, so nobody is
//! pushed after the last look. It wakes two readers, and each of those two of what is left (concurrent helping), so
//! that neither the writer nor one reader pays for all.
//!
//! The writer's sleep needs no fence: the flag lies in the word that departing readers add to, so one of the two operations
//! comes first. Either the writer sees the last departure, or the last reader sees the flag.

use crate::atomic::{AtomicPtr, AtomicU32, Ordering, spin_loop};
use crate::line;
use crate::mutex::RawMutex;
use crate::spin::Patience;
use crate::step;
use crate::waiter::{Cell, MESSAGE};
use core::ptr::{self, NonNull};

const PHASE: u32 = 1;
const WRITER: u32 = 2;
const READER: u32 = 4;
const COUNT: u32 = !3;
/// Of `left`.
const ASLEEP: u32 = 2;
const GO: u32 = MESSAGE;
/// How long either side looks before it sleeps.
const WAIT_NS: u64 = 2 * crate::spin::SLEEP_AND_WAKE_NS;

/// How long a reader that finds a writer stands aside before it arrives, in `pause` instructions (26 ns on AMD's family
/// 26): 6 us in all at most, with looks between.
const ASIDE_PAUSES: [u32; 3] = [32, 64, 128];
/// Pauses between two looks of a writer that waits for readers, at most.
const DRAIN_PAUSES: u32 = 16;

#[repr(align(128))]
struct Reader {
    /// Who began to wait before. Sync: `phase.push`.
    next: AtomicPtr<Reader>,
    /// Whom this one is to wake. Sync: `cell.tell`.
    to_wake: AtomicPtr<Reader>,
    cell: Cell,
}

/// A reader-writer lock in alternating phases, without data. See the [module](self).
pub struct RawPhaseFair {
    /// Sync: `phase.read`.
    arrived: AtomicU32,
    /// Sync: `phase.drain`.
    left: AtomicU32,
    /// Sync: `phase.drain`.
    target: AtomicU32,
    /// Sync: `phase.push`.
    waiting: AtomicPtr<Reader>,
    /// Where the writer sleeps until readers have left. Sync: its own.
    drained: Cell,
    writers: RawMutex,
}

// SAFETY: readers' nodes are reached only while their threads wait.
unsafe impl Send for RawPhaseFair {}
// SAFETY: as above.
unsafe impl Sync for RawPhaseFair {}

impl RawPhaseFair {
    const_unless_loom! {
        /// A free lock.
        pub fn new() -> Self {
            Self {
                arrived: AtomicU32::new(0),
                left: AtomicU32::new(0),
                target: AtomicU32::new(0),
                waiting: AtomicPtr::new(ptr::null_mut()),
                drained: Cell::new(),
                writers: RawMutex::new(),
            }
        }
    }

    /// Goes in to read.
    #[inline]
    pub fn lock_shared(&self) {
        // Not in a model, where a look more would only hide the next access from it.
        if cfg!(not(loom)) {
            line::fetch_to_write(&self.arrived);
            // ORDER phase.read: Relaxed; a look whether to come later.
            if self.arrived.load(Ordering::Relaxed) & WRITER != 0 {
                self.stand_aside();
            }
        }
        // ORDER phase.read: Acquire, with the addition in `unlock_exclusive`. Weaker, this reader could miss what the last
        // writer wrote.
        let order = step::order("phase.read: Acquire", Ordering::Acquire);
        let arrived = self.arrived.fetch_add(READER, order);
        if arrived & WRITER != 0 {
            self.wait_for_phase(arrived & PHASE);
        }
    }

    /// Lets the writer that is there go on alone for a moment. Once a reader has arrived the next writer waits for it, so
    /// two threads of which each writes now and then would exchange their lines at every write.
    #[cold]
    fn stand_aside(&self) {
        for pauses in ASIDE_PAUSES {
            for _ in 0..pauses {
                spin_loop();
            }
            // ORDER phase.read: Relaxed; as in `lock_shared`.
            if self.arrived.load(Ordering::Relaxed) & WRITER == 0 {
                return;
            }
        }
    }

    #[cold]
    fn wait_for_phase(&self, phase: u32) {
        let node = Reader {
            next: AtomicPtr::new(ptr::null_mut()),
            to_wake: AtomicPtr::new(ptr::null_mut()),
            cell: Cell::new(),
        };
        let me = ptr::from_ref(&node).cast_mut().map_addr(|bits| bits | phase as usize);
        // ORDER phase.push: Acquire, with the exchange in `unlock_exclusive`, where the phase has changed.
        let acquire = step::order("phase.push: Acquire", Ordering::Acquire);
        let mut head = self.waiting.load(acquire);
        loop {
            if head.addr() & 1 != phase as usize {
                return;
            }
            // ORDER phase.push: Relaxed; the compare-and-swap publishes it.
            node.next.store(head.map_addr(|bits| bits & !1), Ordering::Relaxed);
            // ORDER phase.push: Release, with the exchange in `unlock_exclusive`. Weaker, the writer could read an old `next`.
            let order = step::order("phase.push: Release", Ordering::Release);
            match self.waiting.compare_exchange(head, me, order, acquire) {
                Ok(_) => break,
                Err(now) => head = now,
            }
        }
        node.cell.wait(Patience::for_nanos(WAIT_NS));
        // ORDER cell.tell: Relaxed; the message has acquired it.
        let rest = node.to_wake.load(Ordering::Relaxed);
        if step::kept("phase: readers help") {
            // SAFETY: they wait, and only this thread was told to wake them.
            unsafe { wake(rest) };
        }
    }

    /// Goes in to read if no writer is there.
    #[inline]
    pub fn try_lock_shared(&self) -> bool {
        // ORDER phase.read: Relaxed; the compare-and-swap decides.
        let mut arrived = self.arrived.load(Ordering::Relaxed);
        while arrived & WRITER == 0 {
            let order = step::order("phase.read: Acquire", Ordering::Acquire);
            // ORDER phase.read: Acquire, as in `lock_shared`.
            match self.arrived.compare_exchange_weak(arrived, arrived.wrapping_add(READER), order, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => arrived = now,
            }
        }
        false
    }

    /// Leaves after reading.
    ///
    /// # Safety
    /// Somebody is in who reads, on whose behalf this is called.
    #[inline]
    pub unsafe fn unlock_shared(&self) {
        // ORDER phase.drain: Release, with the loads of `left` in `lock_exclusive`: this reader's reads come before the writes
        // that follow. Acquire, with the flag: then `target` is there.
        let left = self.left.fetch_add(READER, step::order("phase.drain: AcqRel", Ordering::AcqRel));
        if left & ASLEEP != 0 {
            self.unlock_shared_slow(left.wrapping_add(READER));
        }
    }

    #[cold]
    fn unlock_shared_slow(&self, left: u32) {
        // ORDER phase.drain: Relaxed; the addition has acquired it.
        if left & COUNT == self.target.load(Ordering::Relaxed) && step::kept("phase: the last reader wakes the writer")
        {
            // SAFETY: the writer waits for the departure that this was, and for no other.
            unsafe { Cell::tell(NonNull::from(&self.drained), GO) };
        }
    }

    /// Goes in to write, after the writers before and the readers that are in.
    #[inline]
    pub fn lock_exclusive(&self) {
        self.writers.lock();
        // ORDER phase.read: Relaxed; a reader that comes later waits, and one that came before is waited for.
        let target = self.arrived.fetch_add(WRITER, Ordering::Relaxed) & COUNT;
        // ORDER phase.drain: Acquire, with the additions in `unlock_shared`. Weaker, this writer could write before a reader
        // has read.
        let order = step::order("phase.drain: Acquire", Ordering::Acquire);
        if self.left.load(order) & COUNT != target {
            self.drain(target);
        }
    }

    #[cold]
    fn drain(&self, target: u32) {
        let order = step::order("phase.drain: Acquire", Ordering::Acquire);
        let mut patience = Patience::for_nanos(WAIT_NS);
        let mut pauses = 1;
        while patience.spin_for(pauses) {
            pauses = (pauses * 2).min(DRAIN_PAUSES);
            // ORDER phase.drain: Acquire, as in `lock_exclusive`.
            if self.left.load(order) & COUNT == target {
                return;
            }
        }
        self.drained.reset();
        // ORDER phase.drain: Relaxed; the flag publishes it.
        self.target.store(target, Ordering::Relaxed);
        // ORDER phase.drain: Release, with the addition in `unlock_shared`, for `target` and the cell; Acquire, as above.
        let flag = step::order("phase.flag: AcqRel", Ordering::AcqRel);
        if self.left.fetch_or(ASLEEP, flag) & COUNT != target {
            self.drained.wait(Patience::none());
        }
        // ORDER phase.drain: Acquire, with the additions of all readers, of which each continues the release sequence.
        self.left.fetch_and(!ASLEEP, order);
    }

    /// Goes in to write if nobody is in.
    pub fn try_lock_exclusive(&self) -> bool {
        if !self.writers.try_lock() {
            return false;
        }
        // ORDER phase.drain: Relaxed; the compare-and-swap finds the same.
        let arrived = self.arrived.load(Ordering::Relaxed);
        // ORDER phase.drain: Acquire, as in `lock_exclusive`.
        let left = self.left.load(step::order("phase.drain: Acquire", Ordering::Acquire));
        // ORDER phase.read: Relaxed, as in `lock_exclusive`.
        let taken = left & COUNT == arrived & COUNT
            && self.arrived.compare_exchange(arrived, arrived | WRITER, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if !taken {
            // SAFETY: taken above.
            unsafe { self.writers.unlock() };
        }
        taken
    }

    /// Leaves after writing.
    ///
    /// # Safety
    /// The calling thread is in to write.
    pub unsafe fn unlock_exclusive(&self) {
        // ORDER phase.read: Relaxed; only a writer changes these bits.
        let bits = self.arrived.load(Ordering::Relaxed) & (PHASE | WRITER);
        let next_phase = ptr::without_provenance_mut(((bits & PHASE) ^ PHASE) as usize);
        // ORDER phase.push: Acquire, with the compare-and-swaps in `wait_for_phase`; Release, for a reader that finds the phase
        // changed there and goes in.
        let list = self.waiting.swap(next_phase, step::order("phase.swap: AcqRel", Ordering::AcqRel));
        // Clears WRITER and changes the phase; readers add meanwhile.
        // ORDER phase.read: Release, with `lock_shared`. Weaker, a reader could miss what this writer wrote.
        let order = step::order("phase.read: Release", Ordering::Release);
        self.arrived.fetch_add((bits ^ (PHASE | WRITER)).wrapping_sub(bits), order);
        // SAFETY: they wait, and are in no list any more.
        unsafe { wake(list.map_addr(|bits| bits & !1)) };
        // SAFETY: taken by `lock_exclusive`.
        unsafe { self.writers.unlock() };
    }

    /// Whether somebody was in a moment ago. It orders nothing.
    pub fn is_locked(&self) -> bool {
        // ORDER phase.read: Relaxed; a snapshot that guards no data.
        let arrived = self.arrived.load(Ordering::Relaxed);
        arrived & WRITER != 0 || arrived & COUNT != self.left.load(Ordering::Relaxed) & COUNT
    }
}

/// Wakes the first two readers of a list, each of which wakes half of the rest.
///
/// # Safety
/// They wait, and only the caller tells them anything.
unsafe fn wake(list: *mut Reader) {
    // ORDER phase.push: every access to a node here is Relaxed; whoever handed the list over has ordered it.
    let mut halves: [*mut Reader; 2] = [ptr::null_mut(); 2];
    let mut heads: [*mut Reader; 2] = [ptr::null_mut(); 2];
    let mut reader = list;
    let mut side = 0;
    // SAFETY: a reader is alive until it is told something.
    while let Some(this) = unsafe { reader.as_ref() } {
        let next = this.next.load(Ordering::Relaxed);
        if heads[side].is_null() {
            heads[side] = reader;
        } else {
            this.next.store(halves[side], Ordering::Relaxed);
            halves[side] = reader;
        }
        reader = next;
        side ^= 1;
    }
    for (head, half) in heads.into_iter().zip(halves) {
        if let Some(head) = NonNull::new(head) {
            // SAFETY: as above.
            let node = unsafe { head.as_ref() };
            node.to_wake.store(half, Ordering::Relaxed);
            // SAFETY: as above; the message is the last access.
            unsafe { Cell::tell(NonNull::from(&node.cell), GO) };
        }
    }
}

impl Default for RawPhaseFair {
    fn default() -> Self {
        Self::new()
    }
}

/// A reader-writer lock in alternating phases. See the [module](self).
#[cfg(all(feature = "std", not(loom)))]
pub type PhaseFairRwLock<T> = lock_api::RwLock<RawPhaseFair, T>;

// SAFETY: a writer goes in after all readers that came before it have left, and those that come later wait for it.
#[cfg(any(feature = "std", loom))]
unsafe impl lock_api::RawRwLock for RawPhaseFair {
    #[cfg(not(loom))]
    #[allow(clippy::declare_interior_mutable_const, reason = "the interface asks for it")]
    const INIT: Self = Self::new();
    #[cfg(loom)]
    const INIT: Self = panic!("a model makes its locks by `new`");

    type GuardMarker = lock_api::GuardSend;

    #[inline]
    fn lock_shared(&self) {
        Self::lock_shared(self);
    }

    #[inline]
    fn try_lock_shared(&self) -> bool {
        Self::try_lock_shared(self)
    }

    #[inline]
    unsafe fn unlock_shared(&self) {
        // SAFETY: the caller's promise.
        unsafe { Self::unlock_shared(self) };
    }

    #[inline]
    fn lock_exclusive(&self) {
        Self::lock_exclusive(self);
    }

    #[inline]
    fn try_lock_exclusive(&self) -> bool {
        Self::try_lock_exclusive(self)
    }

    #[inline]
    unsafe fn unlock_exclusive(&self) {
        // SAFETY: the caller's promise.
        unsafe { Self::unlock_exclusive(self) };
    }

    fn is_locked(&self) -> bool {
        Self::is_locked(self)
    }
}
