//! The race of a copying collection: several collectors find one object, and one copy of it must count.
//!
//! Each object has a word that says where it went. A collector that finds the object unmoved copies it to a place of its
//! own and offers the copy by one compare-and-swap; whoever comes second drops its copy and takes the first one's.
//! Copying before offering, not after: then a forwarded object is a finished one, and nobody waits.
//!
//! | bit | meaning |
//! |---|---|
//! | 0 | the rest of the word is the new address; otherwise the word is what the program keeps there |

use crate::atomic::{AtomicUsize, Ordering};
use crate::step;

/// Set in the word of an object that has moved. The program's own words there must not have it.
pub const MOVED: usize = 1;

/// What a collector finds in an object's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nobody has moved the object; this is the program's word.
    Here(usize),
    /// The object was copied to this address.
    Moved(usize),
}

fn found(word: usize) -> Found {
    if word & MOVED == 0 { Found::Here(word) } else { Found::Moved(word & !MOVED) }
}

/// Looks where the object is.
#[inline(always)]
pub fn look(word: &AtomicUsize) -> Found {
    // ORDER forward.offer: Acquire, with the compare-and-swap in `offer`. Weaker, the copy could be read before it is
    // written.
    found(word.load(step::order("forward.offer: Acquire of look", Ordering::Acquire)))
}

/// Offers the finished copy at `copy` for the object whose word was `seen`; returns the copy that counts.
///
/// Where that is not `copy`, the caller's copy is garbage.
#[inline]
pub fn offer(word: &AtomicUsize, seen: usize, copy: usize) -> usize {
    debug_assert!(seen & MOVED == 0 && copy & MOVED == 0, "larder: a forwarding word holds an even address");
    // ORDER forward.offer: Release, with the Acquire loads in `look` and here. Weaker, the address could be seen before
    // what is at it. Acquire on failure, for the same reason as in `look`.
    let release = step::order("forward.offer: Release", Ordering::Release);
    let acquire = step::order("forward.offer: Acquire of a loser", Ordering::Acquire);
    match word.compare_exchange(seen, copy | MOVED, release, acquire) {
        Ok(_) => copy,
        Err(theirs) => theirs & !MOVED,
    }
}

/// Leaves the address of the copy at `copy` in the word of an object that nobody else looks for at the same time.
#[inline(always)]
pub fn leave(word: &AtomicUsize, copy: usize) {
    debug_assert!(copy & MOVED == 0, "larder: a forwarding word holds an even address");
    // ORDER forward.offer: Relaxed; who looks later is ordered after the phase in which one collector was alone.
    word.store(copy | MOVED, Ordering::Relaxed);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_first_copy_counts() {
        let word = AtomicUsize::new(0x70);
        assert_eq!(look(&word), Found::Here(0x70));
        assert_eq!(offer(&word, 0x70, 0x1000), 0x1000);
        assert_eq!(offer(&word, 0x70, 0x2000), 0x1000);
        assert_eq!(look(&word), Found::Moved(0x1000));
        leave(&word, 0x3000);
        assert_eq!(look(&word), Found::Moved(0x3000));
    }
}
