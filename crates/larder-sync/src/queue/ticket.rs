//! The first form: tickets by fetch-and-add, and a mailbox that is full or not.

use super::{patience, std};
use crate::asymmetric;
use crate::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::cell::UnsafeCell;
use crate::event_count::EventCount;
use crate::line::Line;
use crate::step;
use core::fmt;
use core::mem::MaybeUninit;
use std::boxed::Box;

/// Those of a word take 32 bytes, two to a cache line. With lines of their own they took 128, and were no faster.
struct Slot<T> {
    /// Ticket of the put and of the take that may use the slot. Sync: `ticket.turn`.
    turn: AtomicUsize,
    /// Whether the value is there; the notes' mailbox is null when it is not. Sync: `ticket.mail`.
    full: AtomicBool,
    /// Sync: `ticket.mail`, `ticket.turn`.
    value: UnsafeCell<MaybeUninit<T>>,
    /// Somebody delivered, or the turn moved on. Sync: its own.
    changed: EventCount,
}

/// A bounded queue that serves puts and takes in the order of their tickets. See the [module](super).
pub struct TicketQueue<T> {
    slots: Box<[Slot<T>]>,
    mask: usize,
    /// Sync: `ticket.draw`.
    puts: Line<AtomicUsize>,
    /// Sync: `ticket.draw`.
    takes: Line<AtomicUsize>,
}

// SAFETY: a slot admits one put and one take at a time, and `full` says whose the value is.
unsafe impl<T: Send> Send for TicketQueue<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for TicketQueue<T> {}

impl<T> TicketQueue<T> {
    /// A queue of at least this many slots: the next power of two.
    pub fn with_capacity(capacity: usize) -> Self {
        asymmetric::init();
        let capacity = capacity.max(1).next_power_of_two();
        let slot = |turn| Slot {
            turn: AtomicUsize::new(turn),
            full: AtomicBool::new(false),
            value: UnsafeCell::new(MaybeUninit::uninit()),
            changed: EventCount::new(),
        };
        let (puts, takes) = (Line(AtomicUsize::new(0)), Line(AtomicUsize::new(0)));
        Self { slots: (0..capacity).map(slot).collect(), mask: capacity - 1, puts, takes }
    }

    /// How many values it holds at most.
    pub fn capacity(&self) -> usize {
        self.mask + 1
    }

    /// Puts a value when its ticket's turn has come.
    pub fn put(&self, value: T) {
        // ORDER ticket.draw: Relaxed; the slot orders what is handed over.
        let ticket = self.puts.fetch_add(1, Ordering::Relaxed);
        let slot = &self.slots[ticket & self.mask];
        // ORDER ticket.turn: Acquire, with the store in `take`. Weaker, this write could overtake its read.
        let order = step::order("ticket.turn: Acquire", Ordering::Acquire);
        slot.changed.wait_for(patience(), || (slot.turn.load(order) == ticket).then_some(()));
        // SAFETY: this thread has the turn's put, and the take waits for `full`.
        slot.value.with_mut(|place| unsafe { (*place).write(value) });
        // ORDER ticket.mail: Release, with the load in `take`.
        slot.full.store(true, step::order("ticket.mail: Release", Ordering::Release));
        slot.changed.notify_all();
    }

    /// Takes the value of its ticket when that has come.
    pub fn take(&self) -> T {
        // ORDER ticket.draw: Relaxed; as in `put`.
        let ticket = self.takes.fetch_add(1, Ordering::Relaxed);
        let slot = &self.slots[ticket & self.mask];
        // ORDER ticket.turn: Acquire, with the store below: `full` is that of this turn.
        let turn = step::order("ticket.turn: Acquire", Ordering::Acquire);
        // ORDER ticket.mail: Acquire, with the store in `put`.
        let mail = step::order("ticket.mail: Acquire", Ordering::Acquire);
        slot.changed.wait_for(patience(), || (slot.turn.load(turn) == ticket && slot.full.load(mail)).then_some(()));
        // SAFETY: this thread has the turn's take, and the value is there.
        let value = slot.value.with_mut(|place| unsafe { (*place).assume_init_read() });
        // ORDER ticket.mail: Relaxed; the store of the turn publishes it to the next put and take.
        slot.full.store(false, Ordering::Relaxed);
        // ORDER ticket.turn: Release, with the loads above and in `put`.
        slot.turn.store(ticket.wrapping_add(self.capacity()), step::order("ticket.turn: Release", Ordering::Release));
        slot.changed.notify_all();
        value
    }
}

impl<T> Drop for TicketQueue<T> {
    fn drop(&mut self) {
        for slot in &self.slots {
            // ORDER ticket.mail: Relaxed; nobody else has the queue.
            if slot.full.load(Ordering::Relaxed) {
                // SAFETY: full, and nobody else has it.
                slot.value.with_mut(|place| unsafe { (*place).assume_init_drop() });
            }
        }
    }
}

impl<T> fmt::Debug for TicketQueue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TicketQueue").field("capacity", &self.capacity()).finish_non_exhaustive()
    }
}
