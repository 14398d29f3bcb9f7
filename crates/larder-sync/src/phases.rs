//! The phases of a cycle that marks beside a program, and who takes it from one to the next.
//!
//! | from | to | who |
//! |---|---|---|
//! | `Idle` | `Asked` | anyone ([`Phases::ask`]) |
//! | `Asked` | `Marking` | the marker thread, with the lock of cycles ([`Phases::begin`]) |
//! | `Asked` | `Idle` | the marker thread ([`Phases::call_off`]), or who has the lock and collects ([`Phases::claim`]) |
//! | `Marking` | `Looking` | the marker thread ([`Phases::offer`]) |
//! | `Marking` | `Ready` | the marker thread ([`Phases::ready`]) |
//! | `Looking`, `Ready` | `Marking` | the marker thread ([`Phases::take_back`]) |
//! | `Looking`, `Ready` | `Finishing` | who has the lock and collects ([`Phases::claim`]) |
//! | `Finishing` | `Idle` | the same ([`Phases::finished`]) |
//! | all from `Marking` on | `Abandoned` | a child of fork ([`Phases::reset_after_fork`]) |
//! | `Abandoned` | `Idle` | who has the lock and has taken back what was left ([`Phases::finished`]) |
//!
//! What belongs to the cycle (its mark stack, what is watched) is the marker thread's in `Asked` and `Marking`, and the collector's in `Finishing`;
//! the phase hands it over. So neither `Looking` nor `Ready` is left but by compare-and-swap, and a cycle has one who ends it.
//!
//! The marker thread marks without the lock, and a collector that has the lock does not wait for it: it gives the lock back, says that it is in a
//! [`hurry`](Phases::hurry), and waits for the end of `Marking`.

use crate::atomic::{AtomicBool, AtomicU32, Ordering};
use crate::parker::Event;
use crate::step;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Phase {
    /// There is no cycle.
    Idle = 0,
    /// One was asked for.
    Asked = 1,
    /// The marker thread marks.
    Marking = 2,
    /// It is about to look at roots again, and has offered the cycle to whoever collects.
    Looking = 3,
    /// Nothing is left but the last stop.
    Ready = 4,
    /// In the last stop.
    Finishing = 5,
    /// In a child of fork, whose parent had a cycle under way.
    Abandoned = 6,
}

impl Phase {
    const ALL: [Self; 7] =
        [Self::Idle, Self::Asked, Self::Marking, Self::Looking, Self::Ready, Self::Finishing, Self::Abandoned];
}

/// What a collector finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// No cycle is under way, and none begins before the lock is given back.
    Nothing,
    /// One was asked for, and has not begun: there is none now, as with `Nothing`.
    NotBegun,
    /// One that the caller has to finish.
    Claimed,
    /// The marker thread marks.
    Marking,
    /// One of the parent's, of which the caller must take back what it has left.
    Abandoned,
}

/// The phase of the one cycle, and what those who change it wait for.
pub struct Phases {
    /// Sync: `phases.hand_over`.
    phase: AtomicU32,
    /// The marker thread sleeps here. Sync: its own.
    bell: Event,
    /// Happens when `Marking` ends. Sync: its own.
    marked: Event,
    /// Somebody waits for the end of `Marking`. Sync: a hint that the marker thread looks at; cleared before a cycle begins.
    hurry: AtomicBool,
}

impl Phases {
    const_unless_loom! {
        /// No cycle.
        pub fn new() -> Self {
            Self {
                phase: AtomicU32::new(Phase::Idle as u32),
                bell: Event::new(),
                marked: Event::new(),
                hurry: AtomicBool::new(false),
            }
        }
    }

    /// The phase.
    #[inline]
    pub fn now(&self) -> Phase {
        // ORDER phases.hand_over: Acquire, with the stores of whoever had the cycle before.
        Phase::ALL[self.phase.load(Ordering::Acquire) as usize]
    }

    fn enter(&self, phase: Phase) {
        // ORDER phases.hand_over: Release, with the loads in `now` and `change`. Weaker, who has the cycle next could miss what was done to it.
        self.phase.store(phase as u32, step::order("phases: Release", Ordering::Release));
    }

    fn change(&self, from: Phase, to: Phase) -> bool {
        // ORDER phases.hand_over: both, for who had the cycle before and who gets it.
        self.phase.compare_exchange(from as u32, to as u32, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Asks for a cycle. True where the caller is the one who did, and has to [`ring`](Self::ring).
    pub fn ask(&self) -> bool {
        self.change(Phase::Idle, Phase::Asked)
    }

    /// Has the marker thread look.
    pub fn ring(&self) {
        self.bell.bump_and_wake(1);
    }

    /// The marker thread's sleep: how often somebody has rung. Read before looking at the phase.
    pub fn rung(&self) -> u32 {
        self.bell.current()
    }

    /// Sleeps until somebody has rung since.
    pub fn sleep(&self, seen: u32) {
        self.bell.wait(seen);
    }

    /// The same, so many nanoseconds at most; says whether somebody has.
    pub fn sleep_for(&self, seen: u32, nanos: u64) -> bool {
        self.bell.wait_timeout(seen, nanos)
    }

    /// The marker thread prepares a cycle: nobody is in a hurry.
    pub fn prepare(&self) {
        self.hurry.store(false, Ordering::Relaxed);
    }

    /// The cycle begins. By the marker thread, which has the lock and has seen that it was asked for.
    pub fn begin(&self) {
        self.enter(Phase::Marking);
    }

    /// There will be no cycle. By the marker thread, or in [`Self::claim`]; true if nobody else has taken it.
    pub fn call_off(&self) -> bool {
        self.change(Phase::Asked, Phase::Idle)
    }

    /// The marker thread leaves the cycle to whoever collects, until it takes it back.
    pub fn offer(&self) {
        self.enter(Phase::Looking);
        self.marked.bump_and_wake_all();
    }

    /// Nothing is left but the last stop. By the marker thread.
    pub fn ready(&self) {
        self.enter(Phase::Ready);
        self.marked.bump_and_wake_all();
    }

    /// The marker thread goes on with a cycle that it has left to others; false where somebody has it.
    pub fn take_back(&self, from: Phase) -> bool {
        debug_assert!(matches!(from, Phase::Looking | Phase::Ready), "nothing else is offered");
        if !step::kept("phases: taken back if it is still there") {
            self.enter(Phase::Marking);
            return true;
        }
        self.change(from, Phase::Marking)
    }

    /// Takes the cycle under way over. The caller has the lock.
    pub fn claim(&self) -> Claim {
        loop {
            match self.now() {
                seen @ (Phase::Ready | Phase::Looking) if self.change(seen, Phase::Finishing) => return Claim::Claimed,
                Phase::Marking => return Claim::Marking,
                Phase::Abandoned => return Claim::Abandoned,
                Phase::Idle => return Claim::Nothing,
                Phase::Asked if self.call_off() => return Claim::NotBegun,
                _ => {}
            }
        }
    }

    /// The cycle is over. By who has claimed it, or taken back what an abandoned one had left.
    pub fn finished(&self) {
        self.enter(Phase::Idle);
    }

    /// Asks the marker thread to leave the rest to the stop, if it marks: what to [wait](Self::wait_until_marked) for. Then look again.
    pub fn hurry(&self) -> Option<u32> {
        let seen = self.marked.current();
        if self.now() != Phase::Marking {
            return None;
        }
        self.hurry.store(true, Ordering::Relaxed);
        Some(seen)
    }

    /// Sleeps until `Marking` has ended once since.
    pub fn wait_until_marked(&self, seen: u32) {
        self.marked.wait(seen);
    }

    /// Whether somebody is in a hurry.
    #[inline]
    pub fn hurries(&self) -> bool {
        self.hurry.load(Ordering::Relaxed)
    }

    /// The word that says so, for those who look at it all the time.
    pub fn hurry_word(&self) -> &AtomicBool {
        &self.hurry
    }

    /// In a child of fork, which has no marker thread.
    ///
    /// # Safety
    /// The calling thread is the only one of the process.
    pub unsafe fn reset_after_fork(&self) {
        // SAFETY: the caller's promise.
        unsafe {
            self.bell.reset_after_fork();
            self.marked.reset_after_fork();
        }
        let is_over = matches!(self.now(), Phase::Idle | Phase::Asked);
        self.enter(if is_over { Phase::Idle } else { Phase::Abandoned });
    }
}

impl Default for Phases {
    fn default() -> Self {
        Self::new()
    }
}
