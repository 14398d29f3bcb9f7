//! Static data of which most was never written: what was written is found wherever it is, and the rest is left alone.

use core::sync::atomic::{AtomicUsize, Ordering};

use larder_fixed::options::Options;
use larder_fixed::{allocate, cycle, init, kind};
use larder_testkit::{Random, crowd, in_child, pattern};
use larder_units::{Bytes, PAGE};

/// Words of the table, and of a page.
const WORDS: usize = (64 << 20) / size_of::<usize>();
const PER_PAGE: usize = PAGE.0 / size_of::<usize>();
/// Bytes of an object.
const SIZE: usize = 200;

/// Sync: written by one thread at a time, before others read.
static TABLE: [AtomicUsize; WORDS] = [const { AtomicUsize::new(0) }; WORDS];

/// Puts an object that is known nowhere else into a word of the table.
fn put(word: usize) {
    // SAFETY: in a root at once.
    let object = unsafe { allocate(kind::NORMAL, SIZE) };
    TABLE[word].store(object.expose_provenance(), Ordering::Relaxed);
    // SAFETY: a fresh object.
    unsafe { pattern::fill(object, 0, SIZE, word as u64) };
}

/// Checks the objects in the words, after a cycle and what took the room that it freed.
fn check(words: &[usize]) {
    assert!(cycle::collect());
    for _ in 0..20_000 {
        // SAFETY: dropped at once.
        unsafe { pattern::fill(allocate(kind::NORMAL, SIZE), 0, SIZE, u64::MAX) };
    }
    for &word in words {
        let object = core::ptr::with_exposed_provenance::<u8>(TABLE[word].load(Ordering::Relaxed));
        // SAFETY: the table keeps it.
        unsafe { pattern::check(object, 0, SIZE, word as u64) };
    }
}

/// Pages of the table that are mapped to anything, the kernel's zeros included.
fn mapped() -> usize {
    let low = TABLE.as_ptr().addr().next_multiple_of(PAGE.0);
    let mut pages = vec![0u8; (TABLE.as_ptr_range().end.addr() - low) / PAGE.0];
    // SAFETY: the range is mapped, and the vector has a byte for each of its pages.
    let done =
        unsafe { libc::mincore(core::ptr::with_exposed_provenance_mut(low), pages.len() * PAGE.0, pages.as_mut_ptr()) };
    assert_eq!(done, 0);
    pages.iter().filter(|page| **page & 1 != 0).count()
}

/// The first and the last word, both sides of a page's bounds, neighbours with gaps of all lengths, and random places.
fn places() -> Vec<usize> {
    let mut words = vec![0, WORDS - 1];
    for page in [1, 2, 15, 16, 17, 40, 100, 1000, 1001, 1003, 4000] {
        words.extend([page * PER_PAGE - 1, page * PER_PAGE]);
    }
    let mut random = Random::new(7);
    words.extend((0..100).map(|_| random.below(WORDS)));
    words.sort_unstable();
    words.dedup();
    words
}

fn heap() {
    // A huge page would map what nobody touched, where the kernel gives them to those who do not ask.
    // SAFETY: of this process alone.
    unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) };
    init(&Options { initial_heap: Bytes::mib(64), ..Options::default() });
}

#[test]
fn what_was_written_is_found_and_the_rest_is_not_touched() {
    in_child("what_was_written_is_found_and_the_rest_is_not_touched", &[], || {
        heap();
        let words = places();
        // In a thread of its own, whose stack holds no addresses later.
        crowd::all(1, {
            let words = words.clone();
            move |_| words.iter().for_each(|&word| put(word))
        });
        let before = mapped();
        check(&words);
        assert!(before < words.len() * 2 + 2, "{before} pages");
        if larder_sys::watch::scan_works() == Ok(true) {
            // Short gaps are read.
            assert!(mapped() < before + words.len() * 16, "{} pages, {before} before", mapped());
        } else {
            eprintln!("SKIPPED: this kernel does not tell which pages hold something (Linux 6.7 does)");
        }
        // What is written later is found as well.
        let more: Vec<usize> = words.iter().map(|word| (word + 333 * PER_PAGE) % WORDS).collect();
        crowd::all(1, {
            let more = more.clone();
            move |_| more.iter().for_each(|&word| put(word))
        });
        check(&more);
    });
}

#[test]
fn all_is_found_where_the_kernel_cannot_be_asked() {
    in_child("all_is_found_where_the_kernel_cannot_be_asked", &[], || {
        heap();
        let words = places();
        crowd::all(1, {
            let words = words.clone();
            move |_| words.iter().for_each(|&word| put(word))
        });
        let mut none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: no file can be opened any more.
        unsafe {
            libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut none);
            none.rlim_cur = 0;
            assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const none), 0);
        }
        check(&words);
    });
}

#[test]
fn a_child_of_fork_finds_what_it_wrote() {
    in_child("a_child_of_fork_finds_what_it_wrote", &[], || {
        heap();
        let words = places();
        put(5000 * PER_PAGE);
        check(&[5000 * PER_PAGE]);
        // SAFETY: the child does what any program may.
        let child = unsafe { libc::fork() };
        if child == 0 {
            crowd::all(1, {
                let words = words.clone();
                move |_| words.iter().for_each(|&word| put(word))
            });
            check(&words);
            // SAFETY: no destructors are wanted.
            unsafe { libc::_exit(0) };
        }
        let mut status = 0;
        // SAFETY: the child of above.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
    });
}
