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
        /// Places are never reused for another meaning: a new counter goes to the end.
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
    AllocatedBytes, "allocated_bytes", "bytes", Total, "Bytes handed out since the start, as far as they are known: buffers count when they are retired.";
    Refills, "refills", "buffers", Total, "Times an allocation buffer got new memory.";
    SidelinedBuffers, "sidelined_buffers", "buffers", Total, "Buffers that were kept for the next comer, because another thread had refilled first.";
    LargeAllocations, "large_allocations", "objects", Total, "Objects given a run of blocks of their own.";
    ThreadsRegistered, "threads_registered", "threads", Gauge, "Threads that the collector knows now.";
    ThreadsStartedTotal, "threads_started_total", "threads", Total, "Threads that were ever registered.";
    BlocksInUse, "blocks_in_use", "blocks", Gauge, "Blocks that hold objects or buffers.";
    HeapBytes, "heap_bytes", "bytes", Gauge, "Memory that the heap holds from the kernel.";
    ReturnedBytesTotal, "returned_bytes_total", "bytes", Total, "Memory given back to the kernel.";
    FinalizersRun, "finalizers_run", "finalizers", Total, "Finalizers that were called.";
    OomEvents, "oom_events", "requests", Total, "Requests that the heap could not serve.";
    AbortedCycles, "aborted_cycles", "cycles", Total, "Cycles that were given up before marking ended.";
    SlowNestedAllocations, "slow_nested_allocations", "objects", Total, "Allocations from a signal handler that interrupted a slow path.";
    SampledNs, "sampled_ns", "nanoseconds", Gauge, "When the other counters were last brought up to date, on the monotonic clock.";
    LiveBytes, "live_bytes", "bytes", Gauge, "Bytes found live by the last complete cycle.";
    BufferWasteBytes, "buffer_waste_bytes", "bytes", Total, "Bytes that stops took back from buffers unused; they return to their blocks.";
    RootsRegistered, "roots_registered", "ranges", Gauge, "Address ranges registered as roots, loaded libraries included.";
    LinksRegistered, "links_registered", "links", Gauge, "Disappearing links that are registered.";
    FinalizersRegistered, "finalizers_registered", "finalizers", Gauge, "Objects that have a finalizer.";
    FreedExplicitly, "freed_explicitly", "objects", Total, "Objects that the program freed itself.";
    BlocksSwept, "blocks_swept", "blocks", Total, "Blocks swept for a refill.";
    MarkersAvailable, "markers_available", "threads", Gauge, "Marker threads that exist, the collecting thread included.";
    MaxHeapBytes, "max_heap_bytes", "bytes", Gauge, "Limit of the heap; zero when there is none.";
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
