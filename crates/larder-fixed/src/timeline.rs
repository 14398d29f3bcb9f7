//! The phases of a cycle while they happen, in memory that is there already: threads stand still meanwhile, so nothing is
//! allocated or locked. They go to the events file with the cycle's record, when the world runs again.

use larder_events::{MOST_PHASES, Phase, PhaseKind};
use larder_sys::clock;
use larder_units::Nanos;

/// Phases in the order in which they ended.
pub(crate) struct Timeline {
    phases: [Phase; MOST_PHASES],
    used: usize,
}

/// Rounds of cleaning leave so much room to what comes after them. What marks beside the program has at most 32 rounds, so
/// all of them are there.
const ROOM_AFTER_ROUNDS: usize = 16;

impl Timeline {
    /// Nothing has happened.
    pub(crate) const fn new() -> Self {
        const NONE: Phase = Phase { code: 0, start: Nanos(0), took: Nanos(0), amount: 0 };
        Timeline { phases: [NONE; MOST_PHASES], used: 0 }
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.used = 0;
    }

    /// Adds a phase that has lasted from `start` until now. Returns now.
    pub(crate) fn add(&mut self, kind: PhaseKind, start: Nanos, amount: usize) -> Nanos {
        let now = clock::now();
        self.add_until(kind, start, now, amount);
        now
    }

    /// Adds a phase. One that has no room is left out; the figures of the record are right all the same.
    pub(crate) fn add_until(&mut self, kind: PhaseKind, start: Nanos, end: Nanos, amount: usize) {
        let room = if kind == PhaseKind::Clean { MOST_PHASES - ROOM_AFTER_ROUNDS } else { MOST_PHASES };
        if self.used < room {
            self.phases[self.used] = Phase { code: kind as u64, start, took: end.since(start), amount: amount as u64 };
            self.used += 1;
        }
    }

    /// Adds the phases of another, as far as there is room.
    pub(crate) fn append(&mut self, other: &Timeline) {
        let phases = &other.phases()[..other.used.min(MOST_PHASES - self.used)];
        self.phases[self.used..self.used + phases.len()].copy_from_slice(phases);
        self.used += phases.len();
    }

    /// What has happened.
    pub(crate) fn phases(&self) -> &[Phase] {
        &self.phases[..self.used]
    }
}
