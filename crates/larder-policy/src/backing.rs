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
///
/// `usable_cpus` may read files, and is not asked by programs with few threads.
pub fn prefers_small_pages(threads: usize, usable_cpus: impl FnOnce() -> usize) -> bool {
    threads > THREADS_FOR_A_CPU && threads > THREADS_FOR_A_CPU * usable_cpus()
}

/// Where a heap is as large as this, what has no pointers and what has some have parts of their own ...
const APART_FROM: Bytes = Bytes::mib(32);
/// ... that are so long, of its size: memory that is not used before the next cycle at worst.
const APART_SHARE: usize = 128;
/// No longer: huge pages are not for what is as long as one of them.
const MOST_APART: Blocks = Blocks(64);
/// Where a heap is as large as this, parts for objects without pointers may be whole huge pages: then one is no more of it than what is left behind the blocks of a few classes.
const IN_HUGE_PAGES_FROM: Bytes = Bytes::mib(64);

/// As many blocks as the heap grows by for objects with pointers or for others that want runs of `n`, of which the rest is kept for more of that kind; none
/// where it is small. Whole runs: a program whose objects all want such runs has no use for what is left of a part, and where the address space is limited
/// nobody takes its place.
pub fn apart(size: Bytes, n: Blocks) -> Blocks {
    if size < APART_FROM {
        return Blocks(0);
    }
    let share = Bytes(size.0 / APART_SHARE).to_blocks_rounded_up().min(MOST_APART);
    Blocks(share.0.next_multiple_of(n.0))
}

/// A run that each of several parts of a class's lists may have begun is no more of the heap than this share.
const RUN_SHARE: usize = 256;

/// In how many of `parts` parts the blocks lie of a class whose blocks are `run` blocks long, in a heap of that size. Each part has a run under way, of each class and kind that
/// is in use: where runs are long, those of two CPUs were a tenth of a small heap.
pub fn parts_in_use(parts: usize, run: Blocks, size: Bytes) -> usize {
    if run.0 == 1 { parts } else { (size.0 / RUN_SHARE / run.to_bytes().0).clamp(1, parts) }
}

/// As many where the part is of whole huge pages, each so long: one at least, in a heap that is large enough, and none in others.
pub fn apart_in_huge_pages(size: Bytes, page: Bytes) -> Blocks {
    if size < IN_HUGE_PAGES_FROM {
        return Blocks(0);
    }
    let share = size.0 / APART_SHARE;
    Bytes((share - share % page.0).max(page.0)).to_blocks_rounded_up()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_large_has_parts() {
        const PAGE: usize = 128;
        for (mib, small, huge) in [
            (1, 0, 0),
            (31, 0, 0),
            (32, 16, 0),
            (63, 32, 0),
            (64, 32, PAGE),
            (128, 64, PAGE),
            (511, 64, PAGE),
            (512, 64, 2 * PAGE),
            (4000, 64, 15 * PAGE),
        ] {
            assert_eq!(apart(Bytes::mib(mib), Blocks(1)), Blocks(small), "{mib} MiB");
            assert_eq!(apart_in_huge_pages(Bytes::mib(mib), Bytes::mib(2)), Blocks(huge), "{mib} MiB");
        }
    }

    #[test]
    fn nothing_is_left_of_a_part() {
        for mib in 32..256 {
            for n in [1, 4, 16] {
                let (part, least) = (apart(Bytes::mib(mib), Blocks(n)), apart(Bytes::mib(mib), Blocks(1)));
                assert!(part.0.is_multiple_of(n) && part >= least && part <= MOST_APART, "{part:?} of {mib} MiB");
            }
        }
    }

    #[test]
    fn long_runs_lie_in_few_parts_of_a_small_heap() {
        for (run, mib, parts) in [
            (1, 0, 8),
            (4, 0, 1),
            (4, 31, 1),
            (4, 32, 2),
            (4, 1000, 8),
            (16, 100, 1),
            (16, 128, 2),
            (16, 500, 7),
            (16, 4000, 8),
        ] {
            assert_eq!(parts_in_use(8, Blocks(run), Bytes::mib(mib)), parts, "{run} blocks, {mib} MiB");
            assert_eq!(parts_in_use(1, Blocks(run), Bytes::mib(mib)), 1);
        }
    }

    #[test]
    fn few_threads_take_huge_pages() {
        assert!(!prefers_small_pages(1, || unreachable!("nobody asks")));
        assert!(prefers_small_pages(5, || 1));
        assert!(!prefers_small_pages(8, || 2));
        assert!(prefers_small_pages(9, || 2));
    }
}
