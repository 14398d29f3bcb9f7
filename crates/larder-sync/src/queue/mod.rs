//! Bounded queues for many producers and consumers: the notes' PTLQueue, in both of its forms, with parking.
//!
//! Both are a ring of slots and two cursors, and a slot's *turn* says whose it is. What differs:
//!
//! | | [`TicketQueue`] (first form) | [`BoundedQueue`] (second form) |
//! |---|---|---|
//! | who arrives | draws a ticket, and is bound to it | claims a slot by compare-and-swap, if it is ready |
//! | full, empty | looks ten times; then draws a ticket all the same and waits in the order of tickets | may return; `put` and `take` wait in no order |
//! | turn of slot `i` | `i + k * capacity`: of the tickets that may use it | the same when empty, one more when full |
//! | a slow thread delays | those of its own slot | those behind it, when it has claimed a slot and not finished |
//!
//! **When to use:** the second form in general, and where a try is needed; the first where nobody must be passed by for long: who
//! has waited for ten looks is served in its turn, whoever comes later. **When not:** the first form where threads often sleep in
//! it: a ticket is served in turn even if its holder does not run, and everybody waits for it.
//! **Progress:** neither is lock-free: a thread that stops between claiming and finishing delays others. Nobody spins without
//! bound. **Order:** first in, first out in claims. **Cost:** one atomic addition or compare-and-swap, a store, and a look at
//! whether somebody sleeps, without a fence ([`asymmetric`](crate::asymmetric)). Who loses at a
//! cursor stays away for 1 to 7 us, so that one goes on alone instead of two side by side. Who waits looks for 10 us, at its own
//! cursor and slot only, and gives its processor away after each microsecond; then it sleeps. **Cancellation, panics:** a thread must
//! not be cancelled in here; nothing here runs the caller's code while a slot is claimed.
//!
//! # What is different from the published first form
//!
//! There, who arrives adds one to the cursor and is bound to that ticket at once. With more threads than processors most tickets
//! are then in the hands of threads that do not run: with two threads of either kind on two processors and 16 slots, every 16
//! messages waited for four switches of the kernel. Here a thread that would have to wait looks ten times, a microsecond each, and
//! gives its processor away in between; while it has no ticket it is in nobody's way. A ticket that is served at once is drawn by
//! compare-and-swap; who has looked ten times, or lost ten swaps, draws by fetch-and-add, whatever the ticket, as published. So at
//! most ten turns of the kernel pass until a thread has its place in the order.
//!
//! # The flaw of the published second form
//!
//! Its `tryTake` returns "empty" when the slot at its cursor is not full, and claims that this happens if and only if the
//! queue was empty at some moment of the call. It does not: with one `put` that has its ticket and has not
//! delivered, and a second `put` that came later and *has returned*, the slot at the cursor is not full, and the queue
//! holds the second value all the time. Here a try that finds its slot unfinished asks the other cursor, and
//! returns [`TakeError::Busy`] when somebody is on the way. `tests/loom_queue.rs` shows both.

extern crate std;

mod bounded;
mod ticket;
pub use bounded::{BoundedQueue, PutError, TakeError};
pub use ticket::TicketQueue;

use crate::atomic::{AtomicUsize, Ordering, spin_loop};
use crate::spin::{Patience, SLEEP_AND_WAKE_NS};

fn patience() -> Patience {
    Patience::for_nanos(SLEEP_AND_WAKE_NS)
}

/// Keeps threads apart that have met at a cursor: who loses waits, longer each time, while the winner goes on alone with
/// all lines in its cache. Two that go on side by side transfer four lines for each message.
struct Apart {
    pauses: u32,
}

/// The first wait, in `pause` instructions of 26 ns (AMD's family 26) to 50 ns: some ten messages of the winner.
const FIRST_PAUSES: u32 = 32;
/// The longest.
const MOST_PAUSES: u32 = 256;

impl Apart {
    fn new() -> Self {
        Self { pauses: FIRST_PAUSES }
    }

    /// Waits, and reads the cursor.
    #[cold]
    fn then_read(&mut self, cursor: &AtomicUsize) -> usize {
        if !cfg!(loom) {
            for _ in 0..self.pauses {
                spin_loop();
            }
            self.pauses = (self.pauses * 2).min(MOST_PAUSES);
        }
        // ORDER queue.claim: Relaxed, as wherever a cursor is read.
        cursor.load(Ordering::Relaxed)
    }
}
