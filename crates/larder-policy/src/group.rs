//! The heap within a control group: its limit of memory is shared with other processes and with the kernel's caches.

use larder_units::{Bytes, Nanos};

/// What is known about a control group, and what the heap could use without asking the kernel.
#[derive(Clone, Copy, Debug)]
pub struct GroupFacts {
    /// The group's limit.
    pub limit: Bytes,
    /// Memory that counts against it and that the kernel cannot simply drop.
    pub used: Bytes,
    /// Bytes of the heap, as large as it is now, that hold nothing.
    pub unused: Bytes,
}

/// Near the limit: less than this share of it is left.
const NEAR: usize = 8;
/// What stays for others: the kernel kills when the last page is gone, and a heap is not alone in its group.
const RESERVE: usize = 32;
/// The smallest step, near a limit: less would be no progress.
const LEAST_STEP: Bytes = Bytes(256 * 1024);

impl GroupFacts {
    /// What may be allocated until the group has nothing left: half of what the heap holds for nothing lies in pieces that are too short for what is wanted next,
    /// or in blocks of other classes, of which some object lives.
    fn available(&self) -> usize {
        self.room().0.saturating_add(self.unused.0 / 2)
    }

    /// What the group has left, less a reserve.
    pub fn room(&self) -> Bytes {
        self.limit.saturating_sub(self.used).saturating_sub(Bytes(self.limit.0 / RESERVE))
    }

    /// Whether free memory should go back to the kernel now, whatever the next budget will want.
    pub fn is_near(&self) -> bool {
        self.limit.saturating_sub(self.used).0 < self.limit.0 / NEAR
    }
}

/// The budget, bounded by half of what may still be allocated: a cycle takes memory of its own, and is late where its thread has no CPU.
pub fn bounded(budget: Bytes, facts: Option<GroupFacts>) -> Bytes {
    let Some(facts) = facts else { return budget };
    Bytes(budget.0.min((facts.available() / 2).max(LEAST_STEP.0)))
}

/// A reading is good for so long at least, and at most: limits are changed from outside.
const SHORTEST: Nanos = Nanos(20_000_000);
const LONGEST: Nanos = Nanos(250_000_000);
/// All processes of a group together take no more memory than so many bytes in a nanosecond.
const BYTES_PER_NANO: usize = 4;

/// How long what was found about the group, if it has a limit at all, need not be looked at again where the heap plans a budget of `planned`: as long as twice that
/// stays within [`bounded`], whoever takes memory meanwhile. `None` where the limit is near, which is looked at after each cycle.
pub fn good_for(facts: Option<GroupFacts>, planned: Bytes) -> Option<Nanos> {
    let Some(facts) = facts else { return Some(LONGEST) };
    let twice = Bytes(planned.0.saturating_mul(2));
    if facts.is_near() || bounded(twice, Some(facts)) < twice {
        return None;
    }
    let beyond = facts.available().saturating_sub(twice.0.saturating_mul(2));
    Some(Nanos((beyond / BYTES_PER_NANO) as u64).clamp(SHORTEST, LONGEST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_in_a_group() {
        let mib = Bytes::mib;
        let table = [
            // budget, limit, used, unused -> bounded, near
            (100, 3200, 0, 0, mib(100), false),
            (100, 320, 160, 0, mib(75), false),
            (100, 320, 160, 40, mib(85), false),
            (100, 320, 300, 0, mib(5), true),
            (100, 320, 300, 60, mib(20), true),
            // Nothing is left, and what the heap holds is not all good for what is wanted.
            (100, 320, 320, 200, mib(50), true),
            (100, 320, 320, 0, LEAST_STEP, true),
            (100, 320, 400, 0, LEAST_STEP, true),
            (2, 320, 160, 0, mib(2), false),
        ];
        for (budget, limit, used, unused, expected, near) in table {
            let facts = GroupFacts { limit: mib(limit), used: mib(used), unused: mib(unused) };
            assert_eq!(bounded(mib(budget), Some(facts)), expected, "{budget} {facts:?}");
            assert_eq!(facts.is_near(), near, "{facts:?}");
        }
        assert_eq!(bounded(mib(100), None), mib(100));
    }

    #[test]
    fn a_reading_is_good_for_longer_the_farther_the_limit_is() {
        let with = |room: usize| GroupFacts {
            limit: Bytes::mib(64 * 1024),
            used: Bytes::mib(62 * 1024 - room),
            unused: Bytes(0),
        };
        let good = |facts, planned| good_for(facts, Bytes::mib(planned));
        assert_eq!(good(None, 100), Some(LONGEST));
        assert_eq!(good(Some(with(40_000)), 100), Some(LONGEST));
        // 8 GiB left of 64, of which 2 are the reserve, is near; what is left beyond that lasts longer than anything.
        assert_eq!(good(Some(with(5_000)), 100), None);
        assert_eq!(good(Some(with(40_000)), 20_000), None, "twice the budget is bounded");
        let small = |used| GroupFacts { limit: Bytes::mib(640), used: Bytes::mib(used), unused: Bytes(0) };
        assert_eq!(good(Some(small(320)), 20), Some(Nanos(Bytes::mib(640 - 320 - 20 - 80).0 as u64 / 4)));
        assert_eq!(good(Some(small(320)), 75), Some(SHORTEST));
        assert_eq!(good(Some(small(320)), 76), None);
    }

    #[test]
    fn more_use_never_makes_a_budget_larger() {
        let mut last = usize::MAX;
        for used in 0..400 {
            let facts = GroupFacts { limit: Bytes::mib(320), used: Bytes::mib(used), unused: Bytes(0) };
            let now = bounded(Bytes::mib(1000), Some(facts)).0;
            assert!(now <= last && now > 0);
            last = now;
        }
    }
}
