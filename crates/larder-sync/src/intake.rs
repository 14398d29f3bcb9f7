//! A list to which anybody adds, in a signal handler too, and from which one takes everything at once.
//!
//! A stack of indices after Treiber: the elements are linked through a word of their own, which the caller keeps.
//! Elements leave only all together, so an index that is seen twice at the head stands for the same list (no ABA).

use crate::atomic::{AtomicU32, Ordering};
use crate::step;

/// The end of the list.
pub const END: u32 = u32::MAX;

/// A list to which anybody adds, and from which one takes everything.
pub struct Intake {
    /// The element that was added last. Sync: `intake.add`.
    head: AtomicU32,
}

impl Intake {
    const_unless_loom! {
        /// An empty list.
        pub fn new() -> Self {
            Self { head: AtomicU32::new(END) }
        }
    }

    /// Adds an element; `link` stores into it which one comes after it. Takes no lock, so it may interrupt itself.
    pub fn add(&self, element: u32, link: impl Fn(u32)) {
        // ORDER intake.add: Relaxed; the value is only stored into the element, and compared again.
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            link(head);
            let order = step::order("intake.add: Release", Ordering::Release);
            // ORDER intake.add: Release, with the exchange in `take_all`. Weaker, the taker could read an old link.
            match self.head.compare_exchange_weak(head, element, order, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) if step::kept("intake: link again after a lost race") => head = now,
                Err(now) => {
                    let _ = self.head.compare_exchange(now, element, order, Ordering::Relaxed);
                    return;
                }
            }
        }
    }

    /// Takes the whole list; returns its first element, or [`END`].
    pub fn take_all(&self) -> u32 {
        // ORDER intake.add: Acquire, with the exchanges in `add`, of which each continues the release sequence of those
        // before it.
        self.head.swap(END, step::order("intake.add: Acquire", Ordering::Acquire))
    }
}

impl Default for Intake {
    fn default() -> Self {
        Self::new()
    }
}
