//! Bounded queues for many producers and consumers: the notes' PTLQueue, in both of its forms, with parking.
//!
//! Both are a ring of slots and two cursors, and a slot's *turn* says whose it is. What differs:
//!
//! | | [`TicketQueue`] (first form) | [`BoundedQueue`] (second form) |
//! |---|---|---|
//! | who arrives | takes a ticket by fetch-and-add, and is bound to it | claims a slot by compare-and-swap, if it is ready |
//! | full, empty | waits, in the order of tickets | may return; `put` and `take` wait in no order |
//! | turn of slot `i` | `i + k * capacity`: of the tickets that may use it | the same when empty, one more when full |
//! | a slow thread delays | those of its own slot | those behind it, when it has claimed a slot and not finished |
//!
//! **When to use:** the second form in general; the first where threads are few, run, and order of arrival matters. **When
//! not:** the first form with more threads than processors: a ticket is served in turn even if its holder does not run.
//! **Progress:** neither is lock-free: a thread that stops between claiming and finishing delays others. Nobody spins without
//! bound. **Order:** first in, first out in claims. **Cost:** one atomic addition or compare-and-swap, a store, and a look at
//! whether somebody sleeps, without a fence ([`asymmetric`](crate::asymmetric)). In the second form, who loses at a
//! cursor stays away for 1 to 7 us, so that one goes on alone instead of two side by side. Who waits looks for 10 us, at its own
//! cursor and slot only, and gives its processor away after each microsecond; then it sleeps. **Cancellation, panics:** a thread must
//! not be cancelled in here; nothing here runs the caller's code while a slot is claimed.
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

use crate::spin::{Patience, SLEEP_AND_WAKE_NS};

fn patience() -> Patience {
    Patience::for_nanos(SLEEP_AND_WAKE_NS)
}
