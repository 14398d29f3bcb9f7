//! What is recorded about one cycle.

use core::mem::{size_of, transmute};

use larder_units::{Bytes, Nanos};

use crate::ring::CYCLE_WORDS;

/// Why a cycle was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Cause {
    /// Enough was allocated since the last cycle.
    Budget = 0,
    /// The program asked for it.
    Explicit = 1,
    /// A test mode collects at every Nth refill.
    Stress = 2,
    /// The heap could not grow: because of its maximum size, or because the kernel gave no memory.
    MaxHeap = 3,
    /// Reserved: the heap would otherwise have grown. No writer uses it yet.
    Expand = 4,
    /// Reserved: the program is about to end. No writer uses it yet.
    Shutdown = 5,
}

impl Cause {
    /// Every cause.
    pub const ALL: [Cause; 6] =
        [Cause::Budget, Cause::Explicit, Cause::Stress, Cause::MaxHeap, Cause::Expand, Cause::Shutdown];

    /// The name in logs.
    pub const fn name(self) -> &'static str {
        match self {
            Cause::Budget => "budget",
            Cause::Explicit => "explicit",
            Cause::Stress => "stress",
            Cause::MaxHeap => "max_heap",
            Cause::Expand => "expand",
            Cause::Shutdown => "shutdown",
        }
    }
}

/// One cycle.
///
/// Every bit pattern is a valid record, since a reader takes it from memory that another process wrote; there is no
/// padding. Fields that a writer does not know are zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CycleRecord {
    /// Number of the cycle in its process, counted from 1.
    pub number: u64,
    /// The [`Cause`] as a number; [`CycleRecord::cause`] reads it.
    pub cause_code: u32,
    /// Markers that took part, the collecting thread included.
    pub markers: u32,
    /// When the stop was requested, on the monotonic clock.
    pub start: Nanos,
    /// From the request until every thread had stopped.
    pub time_to_stop: Nanos,
    /// From the last answer until everything is decided: buffers are retired, roots and objects marked, links cleared,
    /// finalizers queued and what they need marked.
    pub mark: Nanos,
    /// From the request until the threads were resumed, or woken where that comes last: what a running thread sees.
    pub pause: Nanos,
    /// From the request until the work after the resume was done.
    pub total: Nanos,
    /// Threads stopped by a signal.
    pub threads: u32,
    /// Threads that were in a blocking region and were left alone.
    pub threads_blocked: u32,
    /// Stacks, data segments, thread-local storage and registered ranges that were scanned.
    pub roots: Bytes,
    /// Found live.
    pub live: Bytes,
    /// Held from the kernel after the cycle.
    pub heap: Bytes,
    /// Handed out since the last cycle.
    pub allocated: Bytes,
    /// Taken back unused from buffers at this stop.
    pub buffer_waste: Bytes,
    /// Given back to the kernel by this cycle.
    pub returned: Bytes,
    /// Objects marked.
    pub marked_objects: u64,
    /// Finalizers queued.
    pub finalizable: u64,
    /// Disappearing links cleared.
    pub links_cleared: u64,
    /// From the beginning of a concurrent cycle until only the final stop was left; zero for a stop cycle. The fields above
    /// are about the final stop.
    pub marked_beside: Nanos,
    /// The longest of the short stops of a concurrent cycle before the final one.
    pub start_pause: Nanos,
    /// How often a concurrent cycle scanned written pages beside the program.
    pub cleaning_rounds: u64,
    /// Pages that it scanned so.
    pub pages_cleaned: u64,
    /// Written pages that were left to the final stop.
    pub pages_left: u64,
    /// 1 where marking beside the program was cut short: it was overtaken, or somebody wanted the cycle to end.
    pub hurried: u64,
    /// How often threads of the program helped to mark, because they allocated faster than the cycle marked.
    pub helps: u64,
    /// When the stop at the beginning of a concurrent cycle was requested; zero for a stop cycle.
    pub begun: Nanos,
    /// Bytes that threads of the program marked to help.
    pub bytes_helped: u64,
    /// Most markers that marked beside the program at once, threads that helped not counted; zero for a stop cycle.
    pub markers_beside: u64,
    /// How many phases follow; [`Writer::publish`](crate::Writer::publish) sets it.
    pub phases: u64,
    /// 1 for a young cycle, which traced what was handed out since the last one; its live bytes are an estimate.
    pub young: u64,
    /// Bytes of stacks that the final stop of a concurrent cycle did not read, since nobody had written to them. They are among the roots.
    pub unwritten_stacks: Bytes,
    /// How often a written page had a copy, so that only the words that differ were looked up.
    pub pages_compared: u64,
    /// Objects that were scanned with others of their blocks, since they had been found in no order.
    pub objects_by_block: u64,
}

const _: () = assert!(size_of::<CycleRecord>() == CYCLE_WORDS * size_of::<u64>());
// `Bytes` holds a `usize`, which the format fixes at eight bytes.
const _: () = assert!(size_of::<usize>() == 8);

impl CycleRecord {
    /// A record with everything unknown but its number and cause.
    pub fn new(number: u64, cause: Cause) -> Self {
        CycleRecord { number, cause_code: cause as u32, ..Default::default() }
    }

    /// The cause, or `None` where a newer writer had one that this reader does not know.
    pub fn cause(&self) -> Option<Cause> {
        Cause::ALL.into_iter().find(|cause| *cause as u32 == self.cause_code)
    }

    /// When the cycle began: at the request of its first stop.
    pub fn began(&self) -> Nanos {
        if self.begun.0 > 0 { self.begun } else { self.start }
    }

    pub(crate) fn to_words(self) -> [u64; CYCLE_WORDS] {
        // SAFETY: both types have the same number of bytes (asserted above), and the record consists of integers without
        // padding, so that every byte is initialised.
        unsafe { transmute(self) }
    }

    #[cfg_attr(not(feature = "std"), allow(dead_code, reason = "only the reader needs it"))]
    pub(crate) fn from_words(words: [u64; CYCLE_WORDS]) -> Self {
        // SAFETY: both types have the same number of bytes (asserted above), and every bit pattern is a valid record.
        unsafe { transmute(words) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_back() {
        let mut record = CycleRecord::new(7, Cause::Expand);
        record.threads_blocked = 3;
        record.links_cleared = 9;
        record.objects_by_block = 5;
        assert_eq!(CycleRecord::from_words(record.to_words()), record);
        assert_eq!(record.to_words()[0], 7);
        assert_eq!(record.to_words()[CYCLE_WORDS - 1], 5);
    }

    #[test]
    fn a_cause_from_a_newer_writer_is_unknown() {
        let mut record = CycleRecord::new(1, Cause::Shutdown);
        assert_eq!(record.cause(), Some(Cause::Shutdown));
        record.cause_code = 77;
        assert_eq!(record.cause(), None);
    }
}
