//! What the buffers did: every column of VEE'05, table 2, that is about buffers, and of HAB, tables I and II.
//!
//! Only slow paths count, so a counter is a relaxed addition on a shared line.

use core::sync::atomic::{AtomicU64, Ordering};

/// What a counter is called, in what it counts, and what it means.
#[derive(Clone, Copy, Debug)]
pub struct Description {
    /// Stable: the key in JSON.
    pub name: &'static str,
    /// `bytes`, or the thing counted.
    pub unit: &'static str,
    /// One sentence.
    pub meaning: &'static str,
}

macro_rules! counters {
    ($(#[$live_doc:meta])* $live:ident, $(#[$read_doc:meta])* $read:ident: $($name:ident, $unit:literal, $meaning:literal;)*) => {
        $(#[$live_doc])*
        #[derive(Debug, Default)]
        pub struct $live {
            $(pub(crate) $name: AtomicU64,)*
        }

        $(#[$read_doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $read {
            $(#[doc = $meaning] pub $name: u64,)*
        }

        impl $live {
            pub(crate) const fn new() -> Self {
                Self { $($name: AtomicU64::new(0),)* }
            }

            /// The present values. While threads run, they need not belong together.
            pub fn read(&self) -> $read {
                $read { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }

        impl $read {
            /// Every counter with its description, in the order of the fields.
            pub const DESCRIPTIONS: &'static [Description] =
                &[$(Description { name: stringify!($name), unit: $unit, meaning: $meaning },)*];

            /// The values in the order of [`DESCRIPTIONS`](Self::DESCRIPTIONS).
            pub fn values(&self) -> [u64; Self::DESCRIPTIONS.len()] {
                [$(self.$name,)*]
            }

            /// What was added since `earlier`.
            pub fn since(&self, earlier: &Self) -> Self {
                Self { $($name: self.$name - earlier.$name,)* }
            }
        }
    };
}

counters! {
    /// The counters of one set of buffers.
    ///
    /// Sync: counters.
    Counters,
    /// What one set of buffers did.
    Statistics:
    labs, "buffers", "Lowest buffers that were filled.";
    lab_bytes, "bytes", "Memory obtained for lowest buffers.";
    transactions_succeeded, "transactions", "Refills of processors' buffers that committed.";
    transactions_failed, "transactions", "Refills whose transaction met interference.";
    transactions_reopened, "transactions", "Times a refill began its transaction again because nothing that it depends on had changed.";
    transactions_invalid, "transactions", "Refills that found their buffer changed, so that their chunk was sidelined.";
    refills_beaten, "refills", "Refills of threads' buffers that found their buffer changed: by a handler, or a stop.";
    statistics_interfered, "transactions", "Refills that committed, and were interfered with before all statistics were updated.";
    sidelined, "chunks", "Chunks that were kept for the next comer.";
    sidelined_bytes, "bytes", "Their memory.";
    sideline_used, "chunks", "Chunks that a next comer took.";
    sideline_unused, "chunks", "Sidelined chunks that a collection discarded.";
    sideline_unused_bytes, "bytes", "Their memory.";
    dropped, "chunks", "Chunks that were obtained before a collection and not used before it.";
    dropped_bytes, "bytes", "Their memory.";
    merged, "refills", "Refills whose new chunk followed on the old rest, so that both became one buffer.";
    abandoned_bytes, "bytes", "Rests of buffers that were filled anew, given back.";
    collections_by_threads, "collections", "Stops at which the buffers belonged to threads.";
    collections_by_processors, "collections", "Stops at which the buffers belonged to processors.";
    collections_by_levels, "collections", "Stops at which objects came straight from a shared level.";
    partly_used, "buffers", "Buffers in which a stop found something left.";
    partly_used_bytes, "bytes", "What it found.";
    direct, "objects", "Objects too large for a buffer, straight from the space.";
    direct_bytes, "bytes", "Their memory.";
    singly, "objects", "Objects straight from the space because there was nothing left for a buffer.";
    singly_bytes, "bytes", "Their memory.";
    redirected, "objects", "Allocations by a function of the set that is not in use.";
    flips_to_processors, "flips", "Times the buffers went from threads to processors.";
    flips_to_threads, "flips", "Times they went back.";
}

counters! {
    /// The counters of one upper level.
    ///
    /// Sync: counters.
    LevelCounters,
    /// What one upper level did. What HAB counts as foreign is `migrated` and `fallen_over` together.
    LevelStatistics:
    taken, "allocations", "Chunks (or objects) taken from this level's buffers.";
    taken_bytes, "bytes", "Their memory.";
    migrated, "allocations", "Of those, by threads that were on another CPU's buffer when they had taken it.";
    fallen_over, "allocations", "Of those, from another buffer because the own one was being refilled.";
    oversized, "allocations", "Requests larger than a buffer, passed on to the level above.";
    passed_on, "allocations", "Requests that no buffer could serve, passed on to the level above.";
    refills, "buffers", "Buffers that were filled.";
    refill_bytes, "bytes", "Memory obtained for them.";
    beaten, "refills", "Refills that somebody else had begun first.";
    unfinished, "refills", "Refills during which a stop closed the buffer.";
    tail_bytes, "bytes", "Rests too small for a request, given back at a refill.";
    partly_used, "buffers", "Buffers in which a stop found something left.";
    partly_used_bytes, "bytes", "What it found.";
}

/// Adds to a counter.
pub(crate) fn add(counter: &AtomicU64, n: usize) {
    // Relaxed: a counter.
    counter.fetch_add(n as u64, Ordering::Relaxed);
}
