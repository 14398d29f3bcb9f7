//! The first form: tickets, and a mailbox that is full or not.

use super::{Apart, patience, std};
use crate::asymmetric;
use crate::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use crate::cell::UnsafeCell;
use crate::event_count::{EventCount, stay};
use crate::line::Line;
use crate::spin::give_way;
use crate::step;
use core::fmt;
use core::mem::MaybeUninit;
use std::boxed::Box;

/// How often a thread looks, and gives its processor away, before it draws a ticket that is not served at once, and how often it
/// may lose one that is. By number and not by time: among many threads, each has its processor back after all others had it.
const ROUNDS: u32 = 10;

/// Those of a word take 16 bytes, four to a cache line. With 32, one thread that puts and one that takes passed 10.7 million
/// messages by a second of processor time where they now pass 12.6 (1024 slots; Xeon, Sapphire Rapids, 2 CPUs, 2026-11-22).
struct Slot<T> {
    /// Ticket of the put and of the take that may use the slot, without its upper half: a thread that has a ticket is waited for,
    /// so no other's is 2^32 away. Sync: `ticket.turn`.
    turn: AtomicU32,
    /// Whether the value is there; the notes' mailbox is null when it is not. Sync: `ticket.mail`.
    full: AtomicBool,
    /// Sync: `ticket.mail`, `ticket.turn`.
    value: UnsafeCell<MaybeUninit<T>>,
}

/// A bounded queue that serves puts and takes in the order of their tickets. See the [module](super).
pub struct TicketQueue<T> {
    slots: Box<[Slot<T>]>,
    /// Of each slot: somebody delivered, or the turn moved on. Beside the slots, since it is read for each message and changes only
    /// where somebody sleeps. Sync: its own.
    changed: Box<[EventCount]>,
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
    ///
    /// # Panics
    /// With more than 2^31 slots.
    pub fn with_capacity(capacity: usize) -> Self {
        asymmetric::init();
        let capacity = capacity.max(1).next_power_of_two();
        assert!(capacity <= 1 << 31, "a TicketQueue has at most 2^31 slots");
        let slot = |turn| Slot {
            turn: AtomicU32::new(low(turn)),
            full: AtomicBool::new(false),
            value: UnsafeCell::new(MaybeUninit::uninit()),
        };
        let (puts, takes) = (Line(AtomicUsize::new(0)), Line(AtomicUsize::new(0)));
        let changed = (0..capacity).map(|_| EventCount::new()).collect();
        Self { slots: (0..capacity).map(slot).collect(), changed, mask: capacity - 1, puts, takes }
    }

    /// How many values it holds at most.
    pub fn capacity(&self) -> usize {
        self.mask + 1
    }

    /// Puts a value when its ticket's turn has come; while the queue is full it waits.
    pub fn put(&self, value: T) {
        // ORDER ticket.turn: Relaxed; a hint.
        let ticket = self.draw(&self.puts, |slot, ticket| slot.turn.load(Ordering::Relaxed) == low(ticket));
        let (slot, changed) = (&self.slots[ticket & self.mask], &self.changed[ticket & self.mask]);
        // ORDER ticket.turn: Acquire, with the store in `take`. Weaker, this write could overtake its read.
        let order = step::order("ticket.turn: Acquire", Ordering::Acquire);
        changed.wait_for(patience(), || (slot.turn.load(order) == low(ticket)).then_some(()));
        // SAFETY: this thread has the turn's put, and the take waits for `full`.
        slot.value.with_mut(|place| unsafe { (*place).write(value) });
        // ORDER ticket.mail: Release, with the load in `take`.
        slot.full.store(true, step::order("ticket.mail: Release", Ordering::Release));
        changed.notify_all();
    }

    /// Takes the value of its ticket when that has come; while the queue is empty it waits.
    pub fn take(&self) -> T {
        // ORDER ticket.turn, ticket.mail: Relaxed; a hint.
        let ticket = self.draw(&self.takes, |slot, ticket| {
            slot.full.load(Ordering::Relaxed) && slot.turn.load(Ordering::Relaxed) == low(ticket)
        });
        let (slot, changed) = (&self.slots[ticket & self.mask], &self.changed[ticket & self.mask]);
        // ORDER ticket.turn: Acquire, with the store below: `full` is that of this turn.
        let turn = step::order("ticket.turn: Acquire", Ordering::Acquire);
        // ORDER ticket.mail: Acquire, with the store in `put`.
        let mail = step::order("ticket.mail: Acquire", Ordering::Acquire);
        changed.wait_for(patience(), || (slot.turn.load(turn) == low(ticket) && slot.full.load(mail)).then_some(()));
        // SAFETY: this thread has the turn's take, and the value is there.
        let value = slot.value.with_mut(|place| unsafe { (*place).assume_init_read() });
        // ORDER ticket.mail: Relaxed; the store of the turn publishes it to the next put and take.
        slot.full.store(false, Ordering::Relaxed);
        // ORDER ticket.turn: Release, with the loads above and in `put`.
        slot.turn
            .store(low(ticket.wrapping_add(self.capacity())), step::order("ticket.turn: Release", Ordering::Release));
        changed.notify_all();
        value
    }

    /// Draws the next ticket: for a while only if it is served at once, and then whatever it is. Whoever has a ticket is waited
    /// for by all who come later, even if it has given its processor to them; who has none yet is in nobody's way.
    #[inline]
    fn draw(&self, cursor: &AtomicUsize, is_ready: impl Fn(&Slot<T>, usize) -> bool) -> usize {
        let mut apart = Apart::new();
        let mut losses = 0;
        // ORDER ticket.draw: Relaxed, here and below; the slot orders what is handed over.
        let mut served_at_once = || {
            let mut ticket = cursor.load(Ordering::Relaxed);
            while is_ready(&self.slots[ticket & self.mask], ticket) {
                if losses == ROUNDS {
                    return Some(cursor.fetch_add(1, Ordering::Relaxed));
                }
                let next = ticket.wrapping_add(1);
                match cursor.compare_exchange_weak(ticket, next, Ordering::Relaxed, Ordering::Relaxed) {
                    Ok(_) => return Some(ticket),
                    Err(_) => ticket = apart.then_read(cursor),
                }
                losses += 1;
            }
            None
        };
        let rounds = if cfg!(loom) { 1 } else { ROUNDS };
        for round in 0..rounds {
            if round > 0 {
                give_way();
            }
            if let Some(ticket) = stay(&mut served_at_once) {
                return ticket;
            }
        }
        cursor.fetch_add(1, Ordering::Relaxed)
    }
}

/// What of a ticket a slot has.
fn low(ticket: usize) -> u32 {
    ticket as u32
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
