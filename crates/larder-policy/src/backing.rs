//! What kind of pages is behind memory that the heap grows into.

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_threads_take_huge_pages() {
        assert!(!prefers_small_pages(1, 1));
        assert!(!prefers_small_pages(8, 2));
        assert!(prefers_small_pages(9, 2));
    }
}
