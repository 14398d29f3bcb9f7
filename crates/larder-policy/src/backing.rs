//! What kind of pages is behind memory that the heap grows into, and how much it grows at once.

use larder_units::{Blocks, Bytes};

/// Threads for each CPU up to which new memory is asked to come in huge pages.
const THREADS_FOR_A_CPU: usize = 4;

/// Whether a heap that grows does without huge pages.
///
/// Threads that write side by side to a huge page which is not there yet each clear one, and all but one throw theirs away. Fresh runs of
/// hundreds of threads lie in one huge page: 88 of a thousand threads cleared 88 in turn, 3 ms each where the host had to find the memory,
/// and a stop that came meanwhile waited 0.3 s for them, since nobody answers in the middle of a page fault. With 16 threads and more
/// on two CPUs a program was no slower without (docs/performance.md, "Huge pages").
pub fn prefers_small_pages(threads: usize, usable_cpus: usize) -> bool {
    threads > THREADS_FOR_A_CPU * usable_cpus
}

/// Where a heap is as large as this, what has no pointers has parts of its own ...
const APART_FROM: Bytes = Bytes::mib(32);
/// ... that are so long, of its size: memory that is not used before the next cycle at worst.
const APART_SHARE: usize = 128;
/// No longer: huge pages are not for what is as long as one of them.
const MOST_APART: Blocks = Blocks(64);

/// As many blocks as the heap grows by for objects without pointers, of which the rest is kept for others of that kind; none where it is small.
pub fn apart(size: Bytes) -> Blocks {
    if size < APART_FROM { Blocks(0) } else { Bytes(size.0 / APART_SHARE).to_blocks_rounded_up().min(MOST_APART) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_large_has_parts() {
        for (mib, blocks) in [(1, 0), (31, 0), (32, 16), (64, 32), (128, 64), (4000, 64)] {
            assert_eq!(apart(Bytes::mib(mib)), Blocks(blocks), "{mib} MiB");
        }
    }

    #[test]
    fn few_threads_take_huge_pages() {
        assert!(!prefers_small_pages(1, 1));
        assert!(!prefers_small_pages(8, 2));
        assert!(prefers_small_pages(9, 2));
    }
}
