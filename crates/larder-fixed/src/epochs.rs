//! What mark bytes mean at the moment.
//!
//! | | `old` | `young` | `new` |
//! |---|---|---|---|
//! | between cycles | survived the last one | handed out since | as `old` |
//! | while a full cycle marks | not marked yet | not marked yet | marked |
//! | while a young cycle marks | as `young` | not marked yet | marked, or survived an earlier one |
//!
//! An object is allocated when its byte is any of the three. Where no cycle is young, `old` and `young` are the same between cycles (but for the time until
//! the first full one), and the byte of what is handed out is that of what survived. Where cycles are (see [`crate::concurrent`]), a young one leaves the
//! marks of survivors as they are and gives them to what it finds: so nothing is done for an old object.

use core::sync::atomic::{AtomicU16, AtomicU32, Ordering, fence};

use larder_sys::hint;

use crate::heap::{LAST_EPOCH, next_epoch};

/// What is going on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Cycle {
    /// No cycle marks.
    None,
    /// One that marks everything that is alive.
    Full,
    /// One in which survivors keep their marks.
    Young,
}

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Epochs {
    pub old: u8,
    pub young: u8,
    pub new: u8,
    pub cycle: Cycle,
}

/// The present ones.
///
/// Sync: collector and marker thread write in a stopped world; read by marker threads (ordered by the round's start) and by anyone
/// who asks whether an object is allocated.
static NOW: AtomicU32 = AtomicU32::new(Epochs { old: 1, young: 1, new: 1, cycle: Cycle::None }.to_word());

/// Above all epochs.
const NO_MARK: u8 = u8::MAX;

/// The byte of an object that is marked and was not scanned, whose block waits for that: see [`crate::grey`]. Above all epochs; no object has it outside of
/// a cycle.
pub(crate) const GREY: u8 = LAST_EPOCH + 1;
const _: () = assert!(GREY < NO_MARK);

/// What may be freed without a lock: the bytes `old` and `young`; while a cycle marks, two that no object has.
///
/// Sync: as `NOW`.
static FREED_ALONE: AtomicU16 = AtomicU16::new(u16::from_le_bytes([1, 1]));

/// Whether an object whose byte this is is allocated, and no cycle marks.
#[inline(always)]
pub(crate) fn may_be_freed_alone(mark: u8) -> bool {
    let [old, young] = FREED_ALONE.load(Ordering::Relaxed).to_le_bytes();
    // They are the same where no young cycles run.
    mark == old || hint::unusual() && mark == young
}

impl Epochs {
    const fn to_word(self) -> u32 {
        u32::from_le_bytes([self.old, self.young, self.new, self.cycle as u8])
    }

    /// The present ones.
    #[inline(always)]
    pub fn now() -> Self {
        let [old, young, new, cycle] = NOW.load(Ordering::Relaxed).to_le_bytes();
        let cycle = match cycle {
            0 => Cycle::None,
            1 => Cycle::Full,
            _ => Cycle::Young,
        };
        Self { old, young, new, cycle }
    }

    /// Makes these the present ones. World stopped.
    pub fn begin(self) {
        NOW.store(self.to_word(), Ordering::Relaxed);
        let freed_alone = if self.marking() { [NO_MARK; 2] } else { [self.old, self.young] };
        FREED_ALONE.store(u16::from_le_bytes(freed_alone), Ordering::Relaxed);
        // ORDER cycle.epochs: Release, with the fence in `object::is_allocated`, for the marks that this thread writes after
        // it; a helper passes the fence of the crew's gate.
        fence(Ordering::Release);
    }

    /// Whether a cycle marks.
    #[inline(always)]
    pub fn marking(self) -> bool {
        self.cycle != Cycle::None
    }

    /// Whether an object whose byte this is is allocated.
    #[inline(always)]
    pub const fn is_allocated(self, mark: u8) -> bool {
        mark == self.young || mark == self.old || mark == self.new || mark == GREY
    }

    /// In a cycle: whether an object whose byte this is is marked.
    #[inline(always)]
    pub const fn is_marked(self, mark: u8) -> bool {
        mark == self.new || mark == GREY
    }

    /// In a cycle: whether an object whose byte this is is allocated and not marked.
    #[inline(always)]
    pub const fn is_unmarked(self, mark: u8) -> bool {
        mark == self.old || mark == self.young
    }

    /// The epochs of a full cycle, from those between cycles.
    pub const fn of_full_cycle(self) -> Self {
        Self { new: self.unused(), cycle: Cycle::Full, ..self }
    }

    /// The epochs of a young cycle, from those between cycles.
    pub const fn of_young_cycle(self) -> Self {
        Self { old: self.young, cycle: Cycle::Young, ..self }
    }

    /// The epochs after this cycle. Where the next one may be young, what is handed out from here on can be told `apart` from what
    /// survived. After a young cycle it can in any case: its survivors bear an epoch older than those of what has died lately, and the one that follows
    /// that epoch is one of these.
    pub const fn after_cycle(self, apart: bool) -> Self {
        let young = if apart || matches!(self.cycle, Cycle::Young) { self.unused() } else { self.new };
        Self { old: self.new, young, new: self.new, cycle: Cycle::None }
    }

    /// The epochs after this cycle, given up: everything is allocated that was. What a full one has marked is to bear the byte of young
    /// objects again.
    pub const fn given_up(self) -> Self {
        let old = match self.cycle {
            Cycle::Young => self.new,
            _ => self.old,
        };
        Self { old, new: old, cycle: Cycle::None, ..self }
    }

    /// An epoch that no object bears: the one after the latest.
    const fn unused(self) -> u8 {
        let next = next_epoch(match self.cycle {
            Cycle::Full => self.new,
            _ => self.young,
        });
        // Survivors may be many cycles old.
        let is_used = next == self.old || next == self.new || next == self.young;
        if is_used { next_epoch(next) } else { next }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Through many more cycles than there are epochs, with times in which no cycle may be young: what survived, what is new and what a cycle marks are
    /// told apart, and nothing that died in one of the last hundred cycles comes to life.
    #[test]
    fn epochs_in_use_differ_whatever_cycles_follow_one_another() {
        // After each so many cycles the next one may not be young.
        for turned_off in [usize::MAX, 60, 13, 5, 2, 1] {
            let mut now = Epochs { old: 1, young: 1, new: 1, cycle: Cycle::None };
            let mut dead: Vec<Vec<u8>> = Vec::new();
            let mut was_apart = false;
            for i in 0..2000_usize {
                let full = !was_apart || i % 7 == 0 || i > 1000 && i % 100 != 0;
                let apart = !(i + 1).is_multiple_of(turned_off);
                assert!(!now.marking() && now.old == now.new);
                let marking = if full { now.of_full_cycle() } else { now.of_young_cycle() };
                assert!(marking.is_allocated(now.old) && marking.is_allocated(now.young));
                assert!(marking.is_unmarked(now.young) && !marking.is_unmarked(marking.new));
                assert_eq!(marking.is_unmarked(now.old), full, "{now:?}, {marking:?}");
                let recent = || dead.iter().rev().take(100).flatten();
                assert!(recent().all(|&mark| !marking.is_allocated(mark)), "in cycle {i}: {marking:?}");
                let given_up = marking.given_up();
                assert_eq!((given_up.old, given_up.young, given_up.new), (now.old, now.young, now.old));
                let after = marking.after_cycle(apart);
                assert!(after.old == marking.new && after.young != now.young);
                assert!(after.young != after.old || !apart);
                dead.push(if full { vec![now.old, now.young] } else { vec![now.young] });
                let mut recent = dead.iter().rev().take(100).flatten();
                assert!(recent.all(|&mark| !after.is_allocated(mark)), "after cycle {i}: {after:?}");
                (now, was_apart) = (after, apart);
            }
        }
    }

    #[test]
    fn without_young_cycles_all_are_one() {
        let mut now = Epochs { old: 1, young: 1, new: 1, cycle: Cycle::None };
        for _ in 0..600 {
            let marking = now.of_full_cycle();
            assert_eq!(marking.new, next_epoch(now.old));
            assert_eq!(marking.given_up(), now);
            let after = marking.after_cycle(false);
            assert_eq!((after.old, after.young), (after.new, after.new));
            now = after;
        }
    }
}
