//! What a heap has done.

use core::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What a heap has done since it was made, and what it has now.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[repr(C)]
        pub struct Stats {
            $($(#[$doc])* pub $name: u64,)*
        }

        /// Sync: each is added to with Relaxed, by mutators or in a stopped world; a reader gets each by itself.
        #[derive(Default)]
        pub(crate) struct Counters {
            $(pub $name: AtomicU64,)*
        }

        impl Counters {
            pub fn read(&self) -> Stats {
                Stats { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Young collections, those that began a full one included.
    young_collections,
    /// Full collections.
    full_collections,
    /// Time that collections stopped the program, from the request to the resume, in nanoseconds.
    pause_ns,
    /// The longest of them.
    longest_pause_ns,
    /// Of `pause_ns`: until every thread stood.
    stopping_ns,
    /// Of `pause_ns`: copying.
    copying_ns,
    /// Of `pause_ns`: marking and compacting.
    compacting_ns,
    /// Bytes copied within the young generation.
    copied_bytes,
    /// Bytes promoted to the old generation.
    promoted_bytes,
    /// Objects copied or promoted.
    moved_objects,
    /// Bytes of old objects moved by compactions.
    compacted_bytes,
    /// Bytes of objects found by full collections, large ones included.
    marked_bytes,
    /// Cards scanned.
    dirty_cards,
    /// Blocks that pinned objects kept where they were, summed over collections.
    kept_blocks,
    /// Allocation buffers taken in the young generation. [`Heap::buffers`](crate::Heap::buffers) knows more of them.
    buffers,
    /// Bytes of those buffers.
    buffer_bytes,
    /// Of them, bytes that collections found unused.
    unused_bytes,
    /// Allocations by a function, or a sequence, of the set that was not in use.
    redirected,
    /// Times that allocation buffers went from threads to processors, or back.
    flips,
    /// Collections that found buffers with threads. This and the next nine, with `buffers` to `unused_bytes`, are the columns of
    /// VEE'05's table 2.
    by_threads,
    /// Collections that found buffers with processors.
    by_processors,
    /// Refills of processors' buffers whose transaction committed.
    transactions,
    /// Those whose transaction met interference.
    transactions_failed,
    /// Of these, the ones that found their buffer changed.
    transactions_invalid,
    /// Chunks kept for the next comer.
    sidelined,
    /// Their bytes.
    sidelined_bytes,
    /// Of the chunks kept, those that collections discarded.
    sidelined_unused,
    /// Their bytes.
    sidelined_unused_bytes,
    /// Buffers in which collections found something left: `unused_bytes` together.
    partly_used,
    /// Buffers taken in the old generation for objects that are old from the beginning.
    old_buffers,
    /// Their bytes.
    old_buffer_bytes,
    /// Large objects allocated.
    large_objects,
    /// Their bytes.
    large_bytes,
    /// Objects whose finalizers became ready.
    finalized,
    /// The young generation's size now, in bytes.
    young_bytes,
    /// What the old generation has handed out, large objects included, in bytes.
    old_bytes,
    /// Objects that came straight from the young generation, without a buffer, because they are too large for one. This and the next
    /// two are all the reasons that there are; large objects lie apart.
    direct,
    /// The same, because there was room for the object and none for a buffer.
    singly,
    /// The same, because the collection that was made for the object provided it.
    provided,
    /// The three for the old generation.
    old_direct,
    /// See `old_direct`.
    old_singly,
    /// See `old_direct`.
    old_provided,
}

impl Counters {
    pub fn add(counter: &AtomicU64, n: usize) {
        counter.fetch_add(n as u64, Ordering::Relaxed);
    }
}
