//! Threads that come and go, objects of every size, and cycles that follow one another with hardly a pause: blocks change their use
//! while others are being given back to the kernel.

use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use larder_fixed::options::Options;
use larder_fixed::sharing::{self, Setting, Sharing};
use larder_fixed::{allocate, cycle, free, init, kind, object};
use larder_testkit::verifier::{self, Rules};
use larder_testkit::{Random, WITHOUT_SEQUENCES, crowd, in_child, pattern};

/// Threads of a generation, and how many generations there are.
const THREADS: usize = 4;
const GENERATIONS: usize = 24;
/// Bytes that a thread allocates.
const EACH: usize = 6 << 20;
/// Objects that it keeps.
const KEPT: usize = 24;
const LARGEST: usize = 128 << 10;

/// Objects that are made between two cycles: without any, the collecting thread would leave the others no time where there are
/// few processors.
const PROGRESS: usize = 16;

/// Sync: set once, by the test.
static OVER: AtomicBool = AtomicBool::new(false);
/// Objects made by all threads. Sync: a count for the collecting thread, relaxed.
static MADE: AtomicUsize = AtomicUsize::new(0);

/// Waits until the others have gone on.
fn await_progress() {
    let seen = MADE.load(Ordering::Relaxed);
    while !OVER.load(Ordering::Relaxed) && MADE.load(Ordering::Relaxed).wrapping_sub(seen) < PROGRESS {
        std::thread::yield_now();
    }
}

/// Allocates by turns objects of all sizes, keeps the last few in its frame, and frees some of them itself.
fn consume(seed: u64) {
    let mut random = Random::new(seed);
    let mut kept = [(ptr::null_mut::<u8>(), 0, 0); KEPT];
    let (mut made, mut size, mut id) = (0, 16, seed << 32);
    while made < EACH {
        let place = random.below(KEPT);
        let (old, bytes, number) = kept[place];
        if !old.is_null() {
            // SAFETY: the frame keeps it.
            unsafe { pattern::check(old, 0, bytes, number) };
            if random.below(4) == 0 {
                // SAFETY: nothing else refers to it.
                unsafe { free(old) };
            }
        }
        let bytes = size - random.below(size / 2);
        id += 1;
        // SAFETY: in the frame at once.
        kept[place] = (unsafe { allocate(kind::NORMAL, bytes) }, bytes, id);
        assert_eq!(object::base(kept[place].0.addr()), Some(kept[place].0.addr()));
        // SAFETY: a fresh object.
        unsafe {
            assert_eq!(pattern::first_set(kept[place].0, bytes), None, "a fresh object is cleared");
            pattern::fill(kept[place].0, 0, bytes, id);
        }
        // Kept in memory, where the collector looks.
        core::hint::black_box(&mut kept);
        made += bytes;
        MADE.fetch_add(1, Ordering::Relaxed);
        size = if size >= LARGEST { 16 } else { size * 2 };
    }
}

/// With the verifier, or with several times as many cycles, in which the heap's own assertions and the objects' contents have to do.
fn turn_over(name: &str, environment: &[(&str, &str)], sharing: Sharing, verified: bool) {
    in_child(name, environment, || {
        init(&Options { sharing: Setting { sharing, ..Setting::default() }, ..Options::default() });
        assert_eq!(sharing::sharing(), sharing);
        if verified {
            verifier::watch(Rules::WITH_FINALIZERS);
        }
        let collector = crowd::spawn(|| {
            while !OVER.load(Ordering::Relaxed) {
                cycle::collect();
                await_progress();
            }
        });
        // As many as it takes: how often the collector has its turn beside them is the machine's business.
        let mut generation = 0;
        while generation < GENERATIONS || cycle::number() <= 100 {
            crowd::all(THREADS, move |i| consume((generation * THREADS + i + 1) as u64));
            generation += 1;
        }
        OVER.store(true, Ordering::Relaxed);
        collector.join();
        assert!(cycle::collect());
        assert!(!verified || verifier::cycles() == cycle::number());
    });
}

#[test]
fn blocks_change_their_use_while_threads_come_and_go() {
    turn_over("blocks_change_their_use_while_threads_come_and_go", &[], Sharing::AllShared, false);
}

#[test]
fn blocks_change_their_use_without_sequences() {
    turn_over("blocks_change_their_use_without_sequences", &[WITHOUT_SEQUENCES], Sharing::AllShared, false);
}

#[test]
fn blocks_change_their_use_among_owners() {
    turn_over("blocks_change_their_use_among_owners", &[], Sharing::LocalityAware, true);
}
