//! What a collector will look at soon: while an entry waits here, the memory that it leads to is on its way.
//!
//! What slots refer to is anywhere in memory, and a collector that looked at each referent as soon as it found the slot
//! would wait for memory most of the time. So a slot goes through a short queue, and its referent is prefetched when it
//! enters.

/// Entries that wait. Fewer leave memory idle; more do not fit into the processor's list of outstanding loads.
const LENGTH: usize = 16;

/// A queue of up to `LENGTH` entries; first in, first out.
pub(crate) struct Ahead {
    entries: [[usize; 2]; LENGTH],
    /// Entries that have come out, and that have gone in. Wrap.
    out: usize,
    inside: usize,
}

impl Ahead {
    pub const fn new() -> Self {
        Self { entries: [[0; 2]; LENGTH], out: 0, inside: 0 }
    }

    /// Puts an entry in; the eldest comes out if there is no room for another.
    #[inline(always)]
    pub fn push(&mut self, entry: [usize; 2]) -> Option<[usize; 2]> {
        self.entries[self.inside % LENGTH] = entry;
        self.inside = self.inside.wrapping_add(1);
        if self.inside.wrapping_sub(self.out) == LENGTH { self.pop() } else { None }
    }

    /// Takes the eldest out.
    #[inline(always)]
    pub fn pop(&mut self) -> Option<[usize; 2]> {
        if self.inside == self.out {
            return None;
        }
        let entry = self.entries[self.out % LENGTH];
        self.out = self.out.wrapping_add(1);
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_out_in_order_and_none_is_lost() {
        let mut ahead = Ahead::new();
        ahead.out = usize::MAX - 5;
        ahead.inside = ahead.out;
        let mut found = vec![];
        for n in 0..100 {
            found.extend(ahead.push([n, 0]));
            assert!(found.len() + LENGTH > n);
            if n % 40 == 39 {
                found.extend(std::iter::from_fn(|| ahead.pop()));
                assert_eq!(found.len(), n + 1);
            }
        }
        found.extend(std::iter::from_fn(|| ahead.pop()));
        assert_eq!(found, (0..100).map(|n| [n, 0]).collect::<Vec<_>>());
    }
}
