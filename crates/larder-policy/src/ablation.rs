//! Which of the marking's optimizations are left out, so that the effect of each can be seen (thesis 3.5.4).
//!
//! The thesis's versions are sets of these names (its table 3.2): "Simple" is `balance`, "No-Opt" `slo,nsb,bmb`, "No-SLO" `slo`,
//! and so on. Whatever is left out, a cycle finds the same objects.

/// An optimization that can be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Optimization {
    /// Markers steal from one another. Without: each marks what it reaches from its share of the roots.
    Balance = 0,
    /// Long objects are split. Without: the marker that takes one scans it to its end.
    Slo = 1,
    /// Idle markers are found by a word of each. Without: a shared counter behind a lock.
    Nsb = 2,
    /// Side tables are spread over the memory nodes. Without: their pages lie where they are touched first.
    Bmb = 3,
    /// Empty blocks are found when somebody needs them. Without: all of them in the pause.
    LazySweep = 4,
    /// Objects that were found are asked for, and wait in a queue until they are there.
    Prefetch = 5,
    /// The number of markers follows the heap. Without: as many as there may be.
    Markers = 6,
    /// The public part of a work list is a deque without locks. Without: the thesis's, the lower part of the one stack, behind a
    /// lock, one entry at a time.
    Deque = 7,
    /// A concurrent cycle scans written memory again beside the program. Without: all of it in the final stop, as in the thesis (5.2).
    Clean = 8,
    /// Addresses in an array that refer to objects of one block are taken eight at a time. Without: one by one.
    Clusters = 9,
    /// Memory that a large heap is given is backed with huge pages where many are free. Without: as the kernel does unasked.
    HugePages = 10,
    /// What is scanned again of large objects is copied, and the next look compares. Without: it is scanned each time.
    Copies = 11,
    /// Objects that are found in no order are scanned block by block, when nothing else is left. Without: one by one, in the order in which they are found.
    Grey = 12,
}

/// A set of optimizations that are left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ablation(u16);

impl Ablation {
    /// Nothing is left out.
    pub const NONE: Self = Self(0);
    /// Every optimization with its name.
    pub const NAMES: [(Optimization, &str); 13] = [
        (Optimization::Balance, "balance"),
        (Optimization::Slo, "slo"),
        (Optimization::Nsb, "nsb"),
        (Optimization::Bmb, "bmb"),
        (Optimization::LazySweep, "lazy-sweep"),
        (Optimization::Prefetch, "prefetch"),
        (Optimization::Markers, "markers"),
        (Optimization::Deque, "deque"),
        (Optimization::Clean, "clean"),
        (Optimization::Clusters, "clusters"),
        (Optimization::HugePages, "huge-pages"),
        (Optimization::Copies, "copies"),
        (Optimization::Grey, "grey"),
    ];

    /// Leaves one more out.
    pub const fn and(self, optimization: Optimization) -> Self {
        Self(self.0 | 1 << optimization as u16)
    }

    /// Whether the optimization is left out.
    #[inline]
    pub const fn leaves_out(self, optimization: Optimization) -> bool {
        self.0 & 1 << optimization as u16 != 0
    }

    /// The set of a text such as `slo,nsb`; the first name that is none, where there is one. An empty text is the empty set.
    pub fn parse(text: &str) -> Result<Self, &str> {
        text.split(',').map(str::trim).filter(|name| !name.is_empty()).try_fold(Self::NONE, |set, name| {
            match Self::NAMES.iter().find(|(_, known)| *known == name) {
                Some(&(optimization, _)) => Ok(set.and(optimization)),
                None => Err(name),
            }
        })
    }

    /// As a number, to be kept in an atomic.
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// The set of a number that [`Ablation::bits`] returned.
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_read_by_name() {
        assert_eq!(Ablation::parse(""), Ok(Ablation::NONE));
        let set = Ablation::parse("slo, nsb").unwrap();
        assert!(set.leaves_out(Optimization::Slo) && set.leaves_out(Optimization::Nsb));
        assert!(!set.leaves_out(Optimization::Bmb) && !set.leaves_out(Optimization::Balance));
        assert_eq!(Ablation::parse("slo,fast"), Err("fast"));
        assert_eq!(Ablation::parse("SLO"), Err("SLO"));
    }

    #[test]
    fn every_optimization_has_one_name_and_a_bit_of_its_own() {
        let mut all = Ablation::NONE;
        for (optimization, name) in Ablation::NAMES {
            assert!(!all.leaves_out(optimization), "{name}");
            assert_eq!(Ablation::parse(name), Ok(Ablation::NONE.and(optimization)));
            all = all.and(optimization);
        }
        assert_eq!(Ablation::from_bits(all.bits()), all);
        assert_eq!(all.bits(), (1 << Ablation::NAMES.len()) - 1);
    }
}
