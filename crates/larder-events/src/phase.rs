//! What a cycle is made of: stretches of time with a name, and how much was done in each.

use larder_units::Nanos;

macro_rules! phases {
    ($($variant:ident = $code:literal, $name:literal, $unit:literal, $meaning:literal;)*) => {
        /// A part of a cycle. A number belongs to a meaning as long as [`VERSION`](crate::VERSION) stays the same.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u64)]
        pub enum PhaseKind {
            $(#[doc = $meaning] $variant = $code,)*
        }

        impl PhaseKind {
            /// Every kind, in the order of a cycle.
            pub const ALL: &'static [PhaseKind] = &[$(PhaseKind::$variant,)*];

            /// The name in logs and timelines.
            pub const fn name(self) -> &'static str {
                match self {
                    $(PhaseKind::$variant => $name,)*
                }
            }

            /// What [`Phase::amount`] counts; empty where it counts nothing.
            pub const fn unit(self) -> &'static str {
                match self {
                    $(PhaseKind::$variant => $unit,)*
                }
            }

            /// One sentence for people.
            pub const fn meaning(self) -> &'static str {
                match self {
                    $(PhaseKind::$variant => $meaning,)*
                }
            }
        }
    };
}

phases! {
    Census = 1, "census", "", "Before a concurrent cycle, beside the program: blocks that the last cycle left empty are found.";
    Watch = 2, "watch", "bytes", "Before it begins, beside the program: every page of the heap is made clean.";
    StartStop = 3, "start_stop", "threads", "The short stop at the beginning of a concurrent cycle, until the threads were resumed.";
    StopThreads = 4, "stop_threads", "threads", "In a stop: from the request until all threads stood still.";
    StartRoots = 5, "start_roots", "", "In a short stop: uncollectable objects (in the first), and the stacks, registers and thread-local storage of threads that ran, as far as that is quickly done.";
    Beside = 6, "mark_beside", "bytes", "Beside the program, until only the final stop was left.";
    StaticData = 7, "static_data", "", "Beside the program: static data.";
    Stacks = 19, "stacks", "threads", "Beside the program: stacks, registers and thread-local storage of the other threads, of which each stands still for a moment.";
    Trace = 8, "trace", "bytes", "Beside the program: marking, before the first round of cleaning.";
    SecondStop = 20, "second_stop", "threads", "The short stop of a concurrent cycle between tracing and cleaning: from here on objects are born marked, and roots are looked at again.";
    TraceNew = 21, "trace_new", "bytes", "Beside the program: marking what the roots that were looked at again led to.";
    Clean = 9, "clean", "pages", "Beside the program: a round of cleaning, from asking for written pages until what they led to was marked.";
    Wait = 10, "wait", "", "Beside the program: until somebody came to finish the cycle.";
    Stop = 11, "stop", "threads", "The stop of a stop cycle, or the final one of a concurrent cycle, until the threads were resumed.";
    Retire = 12, "retire", "bytes", "In the stop: buffers give back what they have not handed out.";
    Written = 13, "written", "pages", "In the final stop: pages that were written since the last round are asked for, and what marked objects have there is listed; with uffd all markers do that, and mark what it leads to.";
    Roots = 14, "roots", "bytes", "In the stop: roots are listed.";
    Mark = 15, "mark", "objects", "In the stop: marking.";
    Decide = 16, "links_and_finalizers", "finalizers", "In the stop: links are cleared, finalizers queued, and what they need is marked.";
    Sweep = 17, "sweep", "", "After the stop: large objects that died are freed, and old epochs are forgotten.";
    Return = 18, "return_memory", "bytes", "After the stop: a census where there is too much, and memory goes back to the kernel.";
}

/// One stretch of time in a cycle. Two of a cycle lie apart, or one in the other.
///
/// Every bit pattern is a valid phase, and there is no padding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Phase {
    /// The [`PhaseKind`] as a number; [`Phase::kind`] reads it.
    pub code: u64,
    /// When it began, on the monotonic clock.
    pub start: Nanos,
    /// How long it took.
    pub took: Nanos,
    /// How much was done, in the kind's unit.
    pub amount: u64,
}

impl Phase {
    /// Words that a phase takes in a file.
    pub(crate) const WORDS: usize = size_of::<Phase>() / size_of::<u64>();

    /// The kind, or `None` where a newer writer had one that this reader does not know.
    pub fn kind(&self) -> Option<PhaseKind> {
        PhaseKind::ALL.iter().copied().find(|kind| *kind as u64 == self.code)
    }

    /// When it ended.
    pub fn end(&self) -> Nanos {
        Nanos(self.start.0.saturating_add(self.took.0))
    }

    pub(crate) fn to_words(self) -> [u64; Self::WORDS] {
        [self.code, self.start.0, self.took.0, self.amount]
    }

    #[cfg_attr(not(feature = "std"), allow(dead_code, reason = "only the reader needs it"))]
    pub(crate) fn from_words([code, start, took, amount]: [u64; Self::WORDS]) -> Self {
        Phase { code, start: Nanos(start), took: Nanos(took), amount }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_numbers_are_read_back() {
        for kind in PhaseKind::ALL {
            assert_eq!(PhaseKind::ALL.iter().filter(|other| other.name() == kind.name()).count(), 1);
            let phase = Phase { code: *kind as u64, start: Nanos(3), took: Nanos(4), amount: 5 };
            assert_eq!(phase.kind(), Some(*kind));
            assert_eq!(Phase::from_words(phase.to_words()), phase);
            assert!(kind.meaning().ends_with('.'), "{}", kind.name());
        }
        assert_eq!(Phase { code: 99, ..Phase::default() }.kind(), None);
    }
}
