//! Who may use whose free blocks: the thesis's locality-aware page sharing (LPS, section 2.2.4) and its dial.
//!
//! An owner that has no free block of its own takes a new one while that is allowed, and somebody else's otherwise. What is
//! allowed follows from the allowable consumption ratio k and three quantities, counted in blocks:
//!
//! | here | thesis | meaning |
//! |---|---|---|
//! | `used` | u | hold objects, or are asked for; `most_used_by_owners` is the sum of each owner's maximum |
//! | `living` | l | hold objects that survived the last cycle; u itself where the program frees explicitly |
//! | `consumed` | a | obtained and not given back, used or free |
//!
//! Section 2.3 shows for memory that is never given back: a <= k max(u) and a <= sum of max(u_i). The first is page
//! sharing's consumption times k, the second that of all-local lists.
//!
//! **Memory that is given back** begins a new era: what is still held then is `kept`, and all maxima begin anew at their
//! present values. In every era a <= max(k max(u), kept) and a <= max(sum of max(u_i), kept): a grows only as the thesis
//! has it, from `kept` on, so its proof holds for each growth, and where nothing has grown a is `kept` or less.

use larder_units::{Blocks, Bytes, Nanos};

/// The allowable consumption ratio k, in thousandths; never below 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ratio(u32);

impl Ratio {
    /// k = 1: as little memory as page sharing.
    pub const ONE: Self = Self(1000);
    /// The largest k that is told apart.
    pub const MOST: Self = Self(1_000_000);

    /// A ratio of so many thousandths, moved into `ONE..=MOST`.
    pub const fn from_thousandths(thousandths: u32) -> Self {
        Self(if thousandths < Self::ONE.0 {
            Self::ONE.0
        } else if thousandths > Self::MOST.0 {
            Self::MOST.0
        } else {
            thousandths
        })
    }

    /// The ratio in thousandths.
    pub const fn thousandths(self) -> u32 {
        self.0
    }

    /// `k * n`, rounded up: k may be any real number, blocks are whole.
    pub const fn times_rounded_up(self, n: Blocks) -> Blocks {
        Blocks(n.0.saturating_mul(self.0 as usize).div_ceil(1000))
    }
}

/// The facts of 2.2.4, in blocks. The blocks that are asked for count as used already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Consumption {
    /// a, without the blocks that are asked for.
    pub consumed: Blocks,
    /// max l.
    pub most_living: Blocks,
    /// The sum over all owners i of max u_i.
    pub most_used_by_owners: Blocks,
}

/// Whether an owner without a free block may take `wanted` new ones rather than another owner's: the thesis's
/// `heap_expansion_allowed`, a < k max(l) and a < sum of max(u_i).
///
/// A run of several blocks is asked for block by block: the last one decides.
pub const fn heap_expansion_allowed(facts: Consumption, k: Ratio, wanted: Blocks) -> bool {
    let before_last = facts.consumed.0 + wanted.0.saturating_sub(1);
    before_last < k.times_rounded_up(facts.most_living).0 && before_last < facts.most_used_by_owners.0
}

/// What the ratio is regulated by, after a cycle.
#[derive(Clone, Copy, Debug)]
pub struct RatioFacts {
    /// Free blocks that were taken from the taker's own list since the last look.
    pub local: usize,
    /// Free blocks that were taken from others' lists.
    pub remote: usize,
    /// What it cost to clear one block of the taker's own, on average; 0 where none was measured.
    pub local_cost: Nanos,
    /// What it cost to clear one block of another owner's.
    pub remote_cost: Nanos,
    /// max l.
    pub most_living: Blocks,
    /// Memory that the blocks of all owners may take: what the heap's maximum, or the machine or container, leaves to them; 0
    /// where there is no limit.
    pub limit: Bytes,
    /// Owners that have blocks.
    pub owners: usize,
}

/// The next k.
///
/// It grows by a quarter while remote blocks cost more than a twentieth of what clearing costs altogether, and shrinks by an
/// eighth while they cost less than a hundredth: memory that buys nothing is given up slowly, so that k does not swing.
/// It stays within the number of owners, beyond which it changes nothing (2.2.4), and within what `limit` has room for.
pub fn regulated(k: Ratio, facts: RatioFacts) -> Ratio {
    const DEAR: u64 = 20;
    const CHEAP: u64 = 100;
    let (local, remote) = (facts.local_cost.0, facts.remote_cost.0);
    let whole = local * facts.local as u64 + remote * facts.remote as u64;
    let lost = if local == 0 { 0 } else { remote.saturating_sub(local) * facts.remote as u64 };
    let next = if whole == 0 {
        k.0
    } else if lost > whole / DEAR {
        k.0.saturating_add(k.0 / 4)
    } else if lost < whole / CHEAP {
        k.0 - k.0 / 8
    } else {
        k.0
    };
    let by_owners = u32::try_from(facts.owners.max(1).saturating_mul(1000)).unwrap_or(Ratio::MOST.0);
    let room = if facts.limit.0 == 0 || facts.most_living.0 == 0 {
        Ratio::MOST.0
    } else {
        let living = facts.most_living.to_bytes().0;
        u32::try_from((facts.limit.0 as u128 * 1000 / living as u128).min(u128::from(Ratio::MOST.0)))
            .unwrap_or(Ratio::MOST.0)
    };
    Ratio::from_thousandths(next.min(by_owners).min(room))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(a: usize, l: usize, sum: usize) -> Consumption {
        Consumption { consumed: Blocks(a), most_living: Blocks(l), most_used_by_owners: Blocks(sum) }
    }

    #[test]
    fn expansion_is_allowed_below_both_bounds_only() {
        let k = |thousandths| Ratio::from_thousandths(thousandths);
        for (a, l, sum, k, wanted, allowed) in [
            (9, 10, 20, k(1000), 1, true),
            (10, 10, 20, k(1000), 1, false),
            (14, 10, 20, k(1500), 1, true),
            (15, 10, 20, k(1500), 1, false),
            (19, 10, 20, k(4000), 1, true),
            (20, 10, 20, k(4000), 1, false),
            (0, 0, 20, k(4000), 1, false),
            (16, 10, 20, k(2000), 4, true),
            (17, 10, 20, k(2000), 4, false),
            // k max(l) = 4.5: a = 4 is below.
            (4, 3, 20, k(1500), 1, true),
            (5, 3, 20, k(1500), 1, false),
        ] {
            assert_eq!(
                heap_expansion_allowed(facts(a, l, sum), k, Blocks(wanted)),
                allowed,
                "a {a} l {l} sum {sum} {k:?}"
            );
        }
    }

    #[test]
    fn ratios_stay_in_their_range() {
        assert_eq!(Ratio::from_thousandths(0), Ratio::ONE);
        assert_eq!(Ratio::from_thousandths(u32::MAX), Ratio::MOST);
        assert_eq!(Ratio::from_thousandths(1500).times_rounded_up(Blocks(3)), Blocks(5));
        assert_eq!(Ratio::ONE.times_rounded_up(Blocks(usize::MAX / 2000)), Blocks(usize::MAX / 2000));
    }

    fn ratio_facts() -> RatioFacts {
        RatioFacts {
            local: 100,
            remote: 100,
            local_cost: Nanos(1000),
            remote_cost: Nanos(1000),
            most_living: Blocks(100),
            limit: Bytes(0),
            owners: 8,
        }
    }

    #[test]
    fn the_ratio_follows_the_cost_of_remote_blocks() {
        let k = Ratio::from_thousandths(2000);
        let grown = regulated(k, RatioFacts { remote_cost: Nanos(2000), ..ratio_facts() });
        assert_eq!(grown.thousandths(), 2500);
        assert_eq!(regulated(k, ratio_facts()).thousandths(), 1750);
        assert_eq!(regulated(k, RatioFacts { local: 0, remote: 0, ..ratio_facts() }), k);
        // A twentieth is lost at 1.1 times the cost of half the blocks, about; a hundredth at 1.02.
        assert_eq!(regulated(k, RatioFacts { remote_cost: Nanos(1050), ..ratio_facts() }), k);
        assert_eq!(regulated(k, RatioFacts { local_cost: Nanos(0), ..ratio_facts() }).thousandths(), 1750);
    }

    #[test]
    fn the_ratio_is_bounded_by_owners_and_memory() {
        let dear = RatioFacts { remote_cost: Nanos(9000), ..ratio_facts() };
        let mut k = Ratio::ONE;
        for _ in 0..50 {
            k = regulated(k, dear);
        }
        assert_eq!(k.thousandths(), 8000);
        let tight = RatioFacts { limit: Bytes(Blocks(250).to_bytes().0), ..dear };
        assert_eq!(regulated(k, tight).thousandths(), 2500);
        let none = RatioFacts { limit: Bytes(1), ..dear };
        assert_eq!(regulated(k, none), Ratio::ONE);
        for _ in 0..50 {
            k = regulated(k, ratio_facts());
        }
        assert_eq!(k, Ratio::ONE);
    }
}
