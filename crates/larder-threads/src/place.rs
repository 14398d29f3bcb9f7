//! Where a thread stands: which parts of its stacks are live.
//!
//! A handler of the client's on an alternate stack may be stopped like any other code: by the signal, where it leaves a slow
//! path, or in a region; and it may collect. Then two stacks are live: the alternate one from its stack pointer up, and the
//! ordinary one from where the handler interrupted it. One address that is taken for the other's is worse than
//! a lost object: between the two stacks may be memory that is not mapped.

use larder_sync::atomic::Ordering;

use crate::ground::red_zone::Asleep;
use crate::ground::signal;
use crate::record::Thread;

/// The live parts of a thread's stacks.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    /// The ordinary stack is live from here to its base.
    stack_pointer: usize,
    /// The live part of an alternate stack, or the registers that the kernel saved; empty without either.
    alternate: [usize; 2],
}

impl Place {
    /// Where the calling thread stands, whose frames and saved registers lie at and above `sp`. A system call.
    pub(crate) fn of(thread: &Thread, sp: usize) -> Self {
        match signal::alternate_stack_in_use().or_else(|| thread.disarmed_stack_at(sp)) {
            None => Self { stack_pointer: sp, alternate: [0, 0] },
            Some(stack) => {
                // SAFETY: the range is this thread's own stack, in use.
                let interrupted = unsafe { stack.interrupted(sp) };
                Self { stack_pointer: interrupted.unwrap_or(thread.stack_base()), alternate: [sp, stack.high] }
            }
        }
    }

    /// The same place, for a thread that sleeps and was found so by a signal: its red zone is not live. On an alternate stack nothing changes.
    pub(crate) fn asleep(self, asleep: Asleep) -> Self {
        match self.alternate {
            [0, 0] => Self { stack_pointer: asleep.stack_pointer, alternate: asleep.registers },
            _ => self,
        }
    }
}

impl Thread {
    /// What the thread has published.
    pub(crate) fn place(&self) -> Place {
        Place {
            stack_pointer: self.stack_pointer(),
            alternate: [0, 1].map(|end| self.stopped_on[end].load(Ordering::Relaxed)),
        }
    }

    /// Publishes a place, by the thread itself.
    pub(crate) fn publish(&self, place: Place) {
        self.stack_pointer.store(place.stack_pointer, Ordering::Relaxed);
        for (word, end) in self.stopped_on.iter().zip(place.alternate) {
            word.store(end, Ordering::Relaxed);
        }
    }

    /// Runs `f` while the calling thread, whose record this is, has published that it stands at `sp`: for a collector, whose
    /// own stacks are roots.
    pub fn standing_at<R>(&self, sp: usize, f: impl FnOnce() -> R) -> R {
        self.publish(Place::of(self, sp));
        let result = f();
        self.leave_place();
        result
    }

    /// The thread runs on: what it has published of an alternate stack will soon be wrong.
    pub(crate) fn leave_place(&self) {
        self.stopped_on.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }
}
