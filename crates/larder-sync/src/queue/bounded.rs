//! The second form: claims by compare-and-swap, and forms that do not wait.

use super::{Apart, patience, std};
use crate::asymmetric;
use crate::atomic::{AtomicUsize, Ordering};
use crate::cell::UnsafeCell;
use crate::event_count::EventCount;
use crate::line::Line;
use crate::step;
use core::fmt;
use core::mem::MaybeUninit;
use std::boxed::Box;

struct Slot<T> {
    /// Ticket of the put that may use it, or one more for the take. Sync: `queue.slot`.
    turn: AtomicUsize,
    /// Sync: `queue.slot`.
    value: UnsafeCell<MaybeUninit<T>>,
}

/// Why a value was not put; it comes back.
#[derive(Debug, PartialEq, Eq)]
pub enum PutError<T> {
    /// The queue was full at some moment of the call.
    Full(T),
    /// The slot's last value is being taken by a thread that has not finished.
    Busy(T),
}

/// Why no value was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakeError {
    /// The queue was empty at some moment of the call.
    Empty,
    /// The next value is being put by a thread that has not finished; later values may be there.
    Busy,
}

/// A bounded queue for many producers and consumers, with forms that wait and forms that do not. See the
/// [module](super).
///
/// ```
/// use larder_sync::queue::{BoundedQueue, TakeError};
///
/// let queue = BoundedQueue::with_capacity(4);
/// queue.put("first");
/// assert_eq!(queue.take(), "first");
/// assert_eq!(queue.try_take(), Err(TakeError::Empty));
/// ```
pub struct BoundedQueue<T> {
    slots: Box<[Slot<T>]>,
    mask: usize,
    /// Sync: `queue.claim`.
    puts: Line<AtomicUsize>,
    /// Sync: `queue.claim`.
    takes: Line<AtomicUsize>,
    not_empty: Line<EventCount>,
    not_full: Line<EventCount>,
}

// SAFETY: a slot's value belongs to whoever has claimed its turn, one thread at a time; values move between threads.
unsafe impl<T: Send> Send for BoundedQueue<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for BoundedQueue<T> {}

impl<T> BoundedQueue<T> {
    /// A queue of at least this many slots: the next power of two, and at least 2, because a turn must tell a full slot
    /// from the next round.
    pub fn with_capacity(capacity: usize) -> Self {
        asymmetric::init();
        let capacity = capacity.max(2).next_power_of_two();
        let slots = (0..capacity)
            .map(|turn| Slot { turn: AtomicUsize::new(turn), value: UnsafeCell::new(MaybeUninit::uninit()) })
            .collect();
        Self {
            slots,
            mask: capacity - 1,
            puts: Line(AtomicUsize::new(0)),
            takes: Line(AtomicUsize::new(0)),
            not_empty: Line(EventCount::new()),
            not_full: Line(EventCount::new()),
        }
    }

    /// How many values it holds at most.
    pub fn capacity(&self) -> usize {
        self.mask + 1
    }

    /// Puts a value if there is room.
    ///
    /// # Errors
    /// [`PutError`] with the value.
    pub fn try_put(&self, value: T) -> Result<(), PutError<T>> {
        loop {
            match self.claim(&self.puts, 0) {
                Ok(ticket) => {
                    self.fill(ticket, value);
                    return Ok(());
                }
                Err(ticket) => {
                    // ORDER queue.claim: Relaxed, both. The takes first: if this thread's cursor is still the current one
                    // afterwards, then the queue was as full at that moment as they say.
                    let takes = self.takes.load(Ordering::Relaxed);
                    if self.puts.load(Ordering::Relaxed) == ticket {
                        let full = takes == ticket.wrapping_sub(self.capacity());
                        return Err(if full { PutError::Full(value) } else { PutError::Busy(value) });
                    }
                }
            }
        }
    }

    /// Takes the next value if it is there.
    ///
    /// # Errors
    /// [`TakeError`].
    pub fn try_take(&self) -> Result<T, TakeError> {
        loop {
            match self.claim(&self.takes, 1) {
                Ok(ticket) => return Ok(self.empty(ticket)),
                Err(ticket) => {
                    // ORDER queue.claim: Relaxed, both. The puts first: if nobody had claimed this slot at that moment, and this
                    // thread's cursor is still the current one afterwards, then the queue was empty at that moment.
                    let puts = self.puts.load(Ordering::Relaxed);
                    if self.takes.load(Ordering::Relaxed) == ticket {
                        let empty = puts == ticket || !step::kept("queue: busy is not empty");
                        return Err(if empty { TakeError::Empty } else { TakeError::Busy });
                    }
                }
            }
        }
    }

    /// Puts a value; waits while the queue is full.
    pub fn put(&self, value: T) {
        let mut value = Some(value);
        let attempt = || {
            let ticket = self.claim(&self.puts, 0).ok()?;
            self.fill(ticket, value.take().expect("the first attempt that succeeds is the last"));
            Some(())
        };
        self.not_full.wait_and_pass_on(patience(), attempt, || self.is_ready(&self.puts, 0));
    }

    /// Takes the next value; waits while the queue is empty.
    pub fn take(&self) -> T {
        let attempt = || self.claim(&self.takes, 1).ok().map(|ticket| self.empty(ticket));
        self.not_empty.wait_and_pass_on(patience(), attempt, || self.is_ready(&self.takes, 1))
    }

    /// Claims the slot at a cursor if it is ready: if its turn is `ahead` of the ticket, which is returned. The error is the
    /// ticket whose slot was not ready while the cursor was there. It does not look at the other side's cursor, so who looks
    /// again and again takes no line from them but that of the slot.
    #[inline]
    fn claim(&self, cursor: &AtomicUsize, ahead: usize) -> Result<usize, usize> {
        // ORDER queue.claim: Relaxed, here and below; the slot's turn orders what is handed over.
        let mut ticket = cursor.load(Ordering::Relaxed);
        let mut apart = Apart::new();
        loop {
            // ORDER queue.slot: Acquire, with the stores in `fill` and `empty`. Weaker, a put could overtake the read of the last
            // value, and a take could see the old one.
            let order = step::order("queue.slot: Acquire", Ordering::Acquire);
            let turn = self.slots[ticket & self.mask].turn.load(order);
            match turn.wrapping_sub(ticket.wrapping_add(ahead)) as isize {
                0 => {
                    let next = ticket.wrapping_add(1);
                    match cursor.compare_exchange_weak(ticket, next, Ordering::Relaxed, Ordering::Relaxed) {
                        Ok(_) => return Ok(ticket),
                        Err(_) => ticket = apart.then_read(cursor),
                    }
                }
                behind => {
                    let now = cursor.load(Ordering::Relaxed);
                    if behind < 0 && now == ticket {
                        return Err(ticket);
                    }
                    ticket = now;
                }
            }
        }
    }

    /// Fills the slot that the calling thread has claimed.
    #[inline]
    fn fill(&self, ticket: usize, value: T) {
        let slot = &self.slots[ticket & self.mask];
        // SAFETY: this thread has claimed the turn, so the value is its own.
        slot.value.with_mut(|place| unsafe { (*place).write(value) });
        // ORDER queue.slot: Release, with the load in `claim`.
        slot.turn.store(ticket.wrapping_add(1), step::order("queue.slot: Release", Ordering::Release));
        self.not_empty.notify_one();
    }

    /// Empties the slot that the calling thread has claimed.
    #[inline]
    fn empty(&self, ticket: usize) -> T {
        let slot = &self.slots[ticket & self.mask];
        // SAFETY: this thread has claimed the turn, and the slot is full.
        let value = slot.value.with_mut(|place| unsafe { (*place).assume_init_read() });
        let free = ticket.wrapping_add(self.capacity());
        // ORDER queue.slot: Release, with the load in `claim`.
        slot.turn.store(free, step::order("queue.slot: Release", Ordering::Release));
        self.not_full.notify_one();
        value
    }

    /// Whether the slot at a cursor is ready to be claimed: its turn is `ahead` of the ticket. A sleeper that was woken for it
    /// may have found the slot before it unfinished, and sleeps again; whoever finishes that one wakes for that one only.
    fn is_ready(&self, cursor: &AtomicUsize, ahead: usize) -> bool {
        // ORDER queue.claim: Relaxed, here and below, as in `claim`.
        let mut ticket = cursor.load(Ordering::Relaxed);
        loop {
            // ORDER queue.slot: Acquire, with the stores of turns: a turn that is past brings the cursor's.
            let turn = self.slots[ticket & self.mask].turn.load(Ordering::Acquire);
            if turn == ticket.wrapping_add(ahead) {
                return true;
            }
            let now = cursor.load(Ordering::Relaxed);
            if now == ticket {
                return false;
            }
            ticket = now;
        }
    }
}

impl<T> Drop for BoundedQueue<T> {
    fn drop(&mut self) {
        while let Ok(value) = self.try_take() {
            drop(value);
        }
    }
}

impl<T> fmt::Debug for BoundedQueue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoundedQueue").field("capacity", &self.capacity()).finish_non_exhaustive()
    }
}
