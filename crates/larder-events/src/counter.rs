//! The counters: one table with the name, unit and meaning of each.

/// How a counter moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterKind {
    /// Only grows; a rate is the difference of two readings.
    Total,
    /// Holds the present value.
    Gauge,
}

/// What a counter is called and what it means.
#[derive(Clone, Copy, Debug)]
pub struct CounterDescription {
    /// Stable name: the key in JSON and in metrics.
    pub name: &'static str,
    /// `bytes`, `nanoseconds`, or the thing counted.
    pub unit: &'static str,
    /// Whether it only grows.
    pub kind: CounterKind,
    /// One sentence for people.
    pub meaning: &'static str,
}

macro_rules! counters {
    ($($variant:ident, $name:literal, $unit:literal, $kind:ident, $meaning:literal;)*) => {
        /// A counter in the header of an events file; the discriminant is its place there.
        ///
        /// A new counter goes to the end. Every counter here is written by the heap; a place belongs to a meaning as long as
        /// [`VERSION`](crate::VERSION) stays the same.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum Counter {
            $(#[doc = $meaning] $variant,)*
        }

        impl Counter {
            /// Every counter, in the order of their places.
            pub const ALL: &'static [Counter] = &[$(Counter::$variant,)*];
        }

        /// The description of every counter, in the order of their places.
        pub const COUNTERS: &[CounterDescription] = &[
            $(CounterDescription { name: $name, unit: $unit, kind: CounterKind::$kind, meaning: $meaning },)*
        ];
    };
}

counters! {
    AllocatedBytes, "allocated_bytes", "bytes", Total, "Bytes handed out since the start: a buffer counts as a whole when it is filled, what stops take back included; a large object when it is made.";
    Refills, "refills", "buffers", Total, "Times an allocation buffer got new memory.";
    ThreadsRegistered, "threads_registered", "threads", Gauge, "Threads that the collector knows now.";
    ThreadsStartedTotal, "threads_started_total", "threads", Total, "Threads that were ever registered.";
    BlocksInUse, "blocks_in_use", "blocks", Gauge, "Blocks that hold objects or buffers.";
    HeapBytes, "heap_bytes", "bytes", Gauge, "Memory that the heap holds from the kernel.";
    ReturnedBytesTotal, "returned_bytes_total", "bytes", Total, "Memory given back to the kernel.";
    AbortedCycles, "aborted_cycles", "cycles", Total, "Cycles that were given up before marking ended.";
    SampledNs, "sampled_ns", "nanoseconds", Gauge, "When the other counters were last brought up to date, on the monotonic clock.";
    LiveBytes, "live_bytes", "bytes", Gauge, "Bytes found live by the last complete cycle.";
    BufferWasteBytes, "buffer_waste_bytes", "bytes", Total, "Bytes that stops took back from buffers unused; they return to their blocks.";
    MarkersAvailable, "markers_available", "threads", Gauge, "Marker threads that exist, the collecting thread included.";
    MaxHeapBytes, "max_heap_bytes", "bytes", Gauge, "Limit of the heap; zero when there is none.";
    OwnedUsedBlocks, "owned_used_blocks", "blocks", Gauge, "Blocks that owners use for cells (the thesis's u); this and the next ones are zero where blocks have no owners.";
    OwnedMostUsedBlocks, "owned_most_used_blocks", "blocks", Gauge, "The most of it since memory was last given back (max u).";
    OwnedMostUsedByOwnersBlocks, "owned_most_used_by_owners_blocks", "blocks", Gauge, "The sum of the most that each owner used since then (sum of max u_i).";
    OwnedLivingBlocks, "owned_living_blocks", "blocks", Gauge, "Blocks whose objects survived the last cycle (l).";
    OwnedMostLivingBlocks, "owned_most_living_blocks", "blocks", Gauge, "The most of it since memory was last given back (max l).";
    OwnedConsumedBlocks, "owned_consumed_blocks", "blocks", Gauge, "Blocks that owners hold, used or free (a).";
    OwnedMostConsumedBlocks, "owned_most_consumed_blocks", "blocks", Gauge, "The most of it since the start.";
    OwnersSeen, "owners_seen", "owners", Gauge, "Owners of blocks so far.";
    LocalBlocks, "local_blocks", "blocks", Total, "Free blocks that an owner took and had before.";
    RemoteBlocks, "remote_blocks", "blocks", Total, "Free blocks that an owner took and another had before.";
    NewBlocks, "new_blocks", "blocks", Total, "Blocks that an owner took and nobody had before.";
    ConsumptionRatio, "consumption_ratio", "thousandths", Gauge, "The allowable consumption ratio k.";
}

const _: () = assert!(Counter::ALL.len() <= crate::ring::COUNTER_PLACES);

impl Counter {
    /// Name, unit and meaning.
    pub const fn description(self) -> &'static CounterDescription {
        &COUNTERS[self as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_places_agree() {
        for (place, counter) in Counter::ALL.iter().enumerate() {
            assert_eq!(*counter as usize, place);
            let name = counter.description().name;
            assert_eq!(COUNTERS.iter().filter(|c| c.name == name).count(), 1, "{name}");
            assert!(counter.description().meaning.ends_with('.'), "{name}");
        }
    }
}
