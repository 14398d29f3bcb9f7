//! How much memory the heap takes: at its limit, and after phases of different objects.

use core::ptr;
use core::sync::atomic::{AtomicUsize, Ordering};

use larder_fixed::inject::{Point, at_points};
use larder_fixed::options::Options;
use larder_fixed::{allocate, cycle, free, hooks, init, kind, object, pacing, stats};
use larder_testkit::table::Words;
use larder_testkit::verifier::{self, Rules};
use larder_testkit::{Random, beside, crowd, in_child, pattern};
use larder_units::{BLOCK, Bytes};

/// Fills a table with objects of `size(i)` bytes until it is full or memory is exhausted; returns how many there are.
fn fill(table: Words, size: impl Fn(usize) -> usize) -> usize {
    for i in 0..table.count() {
        // SAFETY: in a root at once.
        let at = unsafe { allocate(kind::NORMAL, size(i)) };
        if at.is_null() {
            return i;
        }
        // SAFETY: a fresh object.
        unsafe { pattern::fill(at, 0, size(i), table.start() as u64 + i as u64) };
        table.set(i, at.expose_provenance());
    }
    table.count()
}

fn check(table: Words, n: usize, size: impl Fn(usize) -> usize) {
    for i in 0..n {
        let at = table.get(i);
        assert_eq!(object::base(at), Some(at));
        // SAFETY: kept by the table.
        unsafe { pattern::check(ptr::with_exposed_provenance(at), 0, size(i), table.start() as u64 + i as u64) };
    }
}

/// Whatever was promised at the start.
#[test]
fn a_heap_is_collected_before_it_is_larger_than_the_machine() {
    in_child("a_heap_is_collected_before_it_is_larger_than_the_machine", &[], || {
        init(&Options { initial_heap: Bytes(1 << 44), ..Options::default() });
        let memory = larder_sys::memory::physical_memory();
        assert!(stats::snapshot().budget < memory.0, "a cycle after {} bytes of {memory}", stats::snapshot().budget);
        pacing::expand(1 << 30);
        assert!(stats::snapshot().budget < memory.0);
    });
}

/// Where everything is freed explicitly, nobody goes for a cycle that is not due: files are read on the way there, and locks are taken.
#[test]
fn large_objects_that_are_freed_ask_for_no_cycles() {
    /// Sync: a count.
    static ASKED: AtomicUsize = AtomicUsize::new(0);
    fn hook(p: Point) {
        if p == Point::PrepareLocked {
            ASKED.fetch_add(1, Ordering::Relaxed);
        }
    }
    in_child("large_objects_that_are_freed_ask_for_no_cycles", &[], || {
        const OBJECTS: usize = 10_000;
        init(&Options::default());
        verifier::watch(Rules::WITH_FINALIZERS);
        at_points(Some(hook));
        for _ in 0..OBJECTS {
            // SAFETY: nobody else has it.
            unsafe { free(allocate(kind::NORMAL, 40_000)) };
        }
        at_points(None);
        // At most an eighth counts as allocated.
        let asked = ASKED.load(Ordering::Relaxed);
        assert!(beside::is_asked() || asked < OBJECTS / 100, "{asked} times, {} cycles", cycle::number());
    });
}

const MAX: usize = 24 << 20;

/// A heap that goes on with what is freed explicitly has nothing to gain by a cycle, however much is allocated.
#[test]
fn a_heap_that_goes_on_with_what_is_freed_is_not_collected() {
    in_child("a_heap_that_goes_on_with_what_is_freed_is_not_collected", &[], || {
        init(&Options::default());
        let mut random = Random::new(1);
        let held = Words::roots(400);
        let small = |random: &mut Random| 16 + random.below(500);
        // A byte beyond two blocks: what is counted as freed is what was counted as allocated, a block more than this.
        let large = |_: &mut Random| 2 * BLOCK.0 + 1;
        for (name, total, most, size) in
            [("small", 1 << 30, 8, &small as &dyn Fn(&mut Random) -> usize), ("large", 4 << 30, 8, &large)]
        {
            let before = cycle::number();
            let mut allocated = 0;
            while allocated < total {
                let (at, size) = (random.below(held.count()), size(&mut random));
                let old = ptr::with_exposed_provenance_mut::<u8>(held.get(at));
                if !old.is_null() {
                    // SAFETY: nobody else has it.
                    unsafe { free(old) };
                }
                // SAFETY: in a root at once.
                held.set(at, unsafe { allocate(kind::NORMAL, size) }.expose_provenance());
                allocated += size;
            }
            let cycles = cycle::number() - before;
            assert!(cycles <= most, "{name}: {cycles} cycles");
        }
    });
}

#[test]
fn at_its_limit_the_heap_says_so_and_loses_nothing() {
    in_child("at_its_limit_the_heap_says_so_and_loses_nothing", &[], || {
        init(&Options { max_heap: Bytes(MAX), ..Options::default() });
        verifier::watch(Rules::EXACT);
        let table = Words::roots(1 << 20);
        for size in [24, 1000, 9000, 100_000, 60] {
            let got = fill(table, |_| size);
            let cycles = cycle::number();
            assert!(got * size > MAX * 6 / 10, "only {got} objects of {size} bytes fit into {MAX} bytes");
            assert!(got < table.count() && stats::snapshot().heap <= MAX, "{:?}", stats::snapshot());
            check(table, got, |_| size);
            // It goes on saying so, after trying.
            // SAFETY: null.
            assert!(unsafe { allocate(kind::NORMAL, 4 << 20) }.is_null());
            assert!(cycle::number() > cycles);
            // Free some, and as many fit again.
            for i in 0..got / 2 {
                let at = ptr::with_exposed_provenance_mut(table.get(i));
                table.set(i, 0);
                // SAFETY: nothing refers to it.
                unsafe { free(at) };
            }
            for i in 0..got / 4 {
                // SAFETY: in a root at once.
                let at = unsafe { allocate(kind::NORMAL, size) };
                assert!(!at.is_null(), "object {i} of {} after {} were freed, {size} bytes each", got / 4, got / 2);
                // SAFETY: a fresh object.
                unsafe { pattern::fill(at, 0, size, table.start() as u64 + i as u64) };
                table.set(i, at.expose_provenance());
            }
            check(table, got / 4, |_| size);
            table.clear();
        }
        // SAFETY: impossible sizes are null, not a crash.
        unsafe {
            for bytes in [MAX + 1, usize::MAX / 2, usize::MAX - 15, usize::MAX] {
                assert!(allocate(kind::NORMAL, bytes).is_null(), "{bytes} bytes");
            }
        }
    });
}

#[test]
fn sixty_four_threads_at_the_limit_lose_nothing() {
    in_child("sixty_four_threads_at_the_limit_lose_nothing", &[], || {
        let max = MAX / 2;
        init(&Options { max_heap: Bytes(max), ..Options::default() });
        verifier::watch(Rules::EXACT);
        crowd::all(64, |t| {
            let table = Words::roots(4000);
            let size = [40, 500, 3000, 50_000][t % 4];
            let got = fill(table, |_| size);
            check(table, got, |_| size);
            table.clear();
        });
        // Everybody has left, so there is room again.
        let table = Words::roots(5_000);
        assert_eq!(fill(table, |_| 1000), 5_000);
        check(table, 5_000, |_| 1000);
        assert!(stats::snapshot().heap <= max);
    });
}

/// Cycles after which everything is used up at once, as by other threads while the one that collected has no CPU.
static TAKEN_AFTER: AtomicUsize = AtomicUsize::new(0);

/// Uses up all memory, and keeps nothing.
unsafe extern "C" fn take_everything() {
    if TAKEN_AFTER.load(Ordering::Relaxed) == 0 {
        return;
    }
    TAKEN_AFTER.fetch_sub(1, Ordering::Relaxed);
    cycle::disable();
    for size in (0..=16).map(|n| (1 << 20) >> n) {
        // SAFETY: nothing is done with the objects.
        while !unsafe { allocate(kind::POINTER_FREE, size) }.is_null() {}
    }
    cycle::enable();
}

/// A program of many threads in a small heap, most of it garbage, was told that memory is exhausted: who lost its CPU after each of two cycles found
/// everything in use again.
#[test]
fn who_comes_late_after_its_cycles_is_not_told_that_memory_is_exhausted() {
    in_child("who_comes_late_after_its_cycles_is_not_told_that_memory_is_exhausted", &[], || {
        init(&Options { max_heap: Bytes(MAX), ..Options::default() });
        hooks::AFTER_CYCLE.set(Some(take_everything));
        // SAFETY: nothing is done with the object.
        let is_served = |size| !unsafe { allocate(kind::NORMAL, size) }.is_null();
        for size in [24, 3000, 30_000, 100_000, 2 << 20] {
            // Once before the request, and after each of five cycles for it.
            TAKEN_AFTER.store(6, Ordering::Relaxed);
            // SAFETY: allocates only.
            unsafe { take_everything() };
            assert!(is_served(size), "no memory for {size} bytes in a heap without a live object");
            assert_eq!(TAKEN_AFTER.load(Ordering::Relaxed), 0, "the request for {size} bytes came too early");
        }
        // Somebody who is always faster does not make it try for ever.
        TAKEN_AFTER.store(usize::MAX, Ordering::Relaxed);
        // SAFETY: allocates only.
        unsafe { take_everything() };
        let before = cycle::number();
        assert!(!is_served(100_000) && (50..200).contains(&(cycle::number() - before)));
        // Nor is it tried again where memory is in use.
        TAKEN_AFTER.store(0, Ordering::Relaxed);
        let table = Words::roots(1 << 10);
        assert!(fill(table, |_| 100_000) < table.count());
        let before = cycle::number();
        assert!(!is_served(100_000));
        assert_eq!(cycle::number() - before, 2);
    });
}

/// Allocates and drops in phases of different sizes. After each, the heap is near what lives; over all, blocks are used
/// again by other classes.
#[test]
fn memory_is_used_again_and_given_back() {
    in_child("memory_is_used_again_and_given_back", &[], || {
        init(&Options::default());
        verifier::watch(Rules::EXACT);
        let survivors = Words::roots(64);
        let table = Words::roots(2 << 20);
        let phase = 32 << 20;
        let mut random = Random::new(3);
        let mut most = 0;
        for (n, size) in [48, 3000, 600, 200_000, 15_000, 100, 5_000_000, 24, 8000, 1500].into_iter().enumerate() {
            fill_some(table, phase / size, size);
            // A few live on, so that some blocks stay.
            let i = random.below(phase / size);
            survivors.set(n, table.get(i));
            table.clear();
            assert!(cycle::collect_and_unmap());
            let s = stats::snapshot();
            let (objects, live) = verifier::reached();
            // Each survivor may hold a block of up to 16.
            let needed = live + objects * 16 * BLOCK.0;
            assert!(s.heap <= needed + (1 << 20), "{} bytes for {live} live ones in {objects} objects: {s:?}", s.heap);
            // All address space that was ever used.
            let used = s.heap + s.unmapped;
            if n == 0 {
                most = used;
            }
            assert!(used < 2 * most + phase, "phase {n}: {used} bytes were used, {most} in the first");
        }
    });
}

fn fill_some(table: Words, n: usize, size: usize) {
    for i in 0..n {
        // SAFETY: in a root at once.
        let at = unsafe { allocate(kind::POINTER_FREE, size) };
        assert!(!at.is_null());
        table.set(i, at.expose_provenance());
    }
}

/// With a steady amount of live data, the heap stays bounded however long the program runs.
#[test]
fn a_steady_program_does_not_grow() {
    in_child("a_steady_program_does_not_grow", &[], || {
        init(&Options::default());
        verifier::watch(Rules::EXACT);
        let table = Words::roots(4000);
        let mut random = Random::new(9);
        let mut sizes = vec![];
        for round in 0..12 {
            for _ in 0..30_000 {
                let bytes = [24, 60, 200, 1000, 5000, 40_000][random.below(60).min(5)];
                // SAFETY: in a root at once.
                let at = unsafe { allocate(kind::POINTER_FREE, bytes) };
                table.set(random.below(table.count()), at.expose_provenance());
            }
            if round >= 3 {
                sizes.push(stats::snapshot().heap);
            }
        }
        let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
        // What dies while a cycle marks stays for another one, and for several where they are young.
        let spread = match (beside::is_asked(), beside::is_young_asked()) {
            (false, _) => least / 4,
            (true, false) => *least,
            (true, true) => 2 * least,
        };
        assert!(most - least <= spread, "{sizes:?}");
        beside::expect_cycles(5);
    });
}

/// What a cell of [`fill_by_turns`] has.
const CELL: usize = 64;

/// Objects in cells of [`CELL`] bytes, every other one of which has no pointers, until the table is full or memory is exhausted. Returns how many there are, and of which
/// kind the last one in each block is.
fn fill_by_turns(table: Words) -> (usize, Vec<Option<bool>>) {
    let mut blocks = Vec::new();
    for i in 0..table.count() {
        let is_pointer_free = i % 2 == 0;
        // SAFETY: in a root at once.
        let at = unsafe { allocate(if is_pointer_free { kind::POINTER_FREE } else { kind::NORMAL }, CELL - 1) };
        if at.is_null() {
            return (i, blocks);
        }
        table.set(i, at.expose_provenance());
        let block = (at.addr() - stats::used_range().0) / BLOCK.0;
        blocks.resize(blocks.len().max(block + 1), None);
        blocks[block] = Some(is_pointer_free);
    }
    (table.count(), blocks)
}

#[test]
fn in_a_large_heap_what_has_no_pointers_lies_in_parts_of_its_own() {
    in_child("in_a_large_heap_what_has_no_pointers_lies_in_parts_of_its_own", &[], || {
        init(&Options::default());
        verifier::watch(Rules::EXACT);
        let (n, blocks) = fill_by_turns(Words::roots(3 << 20));
        assert_eq!(n, 3 << 20);
        let (small, large) = blocks.split_at((32 << 20) / BLOCK.0);
        let changes = |blocks: &[Option<bool>]| {
            let kinds: Vec<bool> = blocks.iter().copied().flatten().collect();
            kinds.windows(2).filter(|pair| pair[0] != pair[1]).count()
        };
        assert!(changes(small) > small.len() / 2, "{} of {}", changes(small), small.len());
        assert!(changes(large) < large.len() / 8, "{} of {}", changes(large), large.len());
    });
}

#[test]
fn at_its_limit_a_heap_has_no_parts_to_spare() {
    in_child("at_its_limit_a_heap_has_no_parts_to_spare", &[], || {
        const MAX: usize = 80 << 20;
        init(&Options { max_heap: Bytes(MAX), ..Options::default() });
        verifier::watch(Rules::EXACT);
        let table = Words::roots(2 << 20);
        for _ in 0..3 {
            let (n, _) = fill_by_turns(table);
            assert!(n * CELL > MAX * 95 / 100, "{n} objects");
            assert!(
                stats::snapshot().heap <= MAX && stats::kept_apart().iter().all(|part| part.is_empty()),
                "{:?}",
                stats::snapshot()
            );
            table.clear();
        }
    });
}

/// By how much the heap grew when objects were wanted before the collector had swept.
static GREW: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Where the collector is about to sweep, and others have the CPU: a few megabytes in large objects.
unsafe extern "C" fn allocate_before_the_sweep(event: core::ffi::c_int) {
    if event != hooks::Event::ReclaimStart as core::ffi::c_int {
        return;
    }
    let before = stats::snapshot().heap;
    for _ in 0..40 {
        // SAFETY: nothing is done with the object.
        assert!(!unsafe { allocate(kind::POINTER_FREE, 100_000) }.is_null());
    }
    GREW.store(stats::snapshot().heap - before, Ordering::Relaxed);
}

/// Threads that a cycle had woken made the heap grow by a whole budget, until the collector had its CPU back and freed what it had found dead. In a
/// control group with room for the half of that, the program was killed.
#[test]
fn what_is_dead_and_large_is_taken_before_the_collector_has_swept() {
    in_child("what_is_dead_and_large_is_taken_before_the_collector_has_swept", &[], || {
        init(&Options::default());
        let table = Words::roots(200);
        fill_some(table, table.count(), 100_000);
        table.clear();
        hooks::EVENT.set(Some(allocate_before_the_sweep));
        assert!(cycle::collect());
        // A stale word may keep one or two.
        assert!(GREW.load(Ordering::Relaxed) <= 3 * 100_000, "{} bytes", GREW.load(Ordering::Relaxed));
    });
}

/// A program that set a maximum below what its heap held got no large object any more, whatever it freed: each free run was taken for one that makes the heap
/// larger.
#[test]
fn a_heap_above_a_maximum_that_was_set_late_uses_what_it_has() {
    in_child("a_heap_above_a_maximum_that_was_set_late_uses_what_it_has", &[], || {
        init(&Options::default());
        verifier::watch(Rules::EXACT);
        let (kept, dropped) = (Words::roots(15_000), Words::roots(85_000));
        fill_some(kept, kept.count(), 1000);
        fill_some(dropped, dropped.count(), 1000);
        dropped.clear();
        let held = stats::snapshot().heap;
        pacing::set_max_heap(20 << 20);
        for size in [50_000, 1000, 200_000, 20_000] {
            for i in 0..1000 {
                // SAFETY: nothing is done with the object.
                assert!(!unsafe { allocate(kind::NORMAL, size) }.is_null(), "object {i} of {size} bytes");
            }
        }
        assert!(stats::snapshot().heap < held / 2, "{:?} of {held}", stats::snapshot());
        // Nor does it grow.
        let held = stats::snapshot().heap;
        // SAFETY: as above.
        assert!(unsafe { allocate(kind::NORMAL, 20 << 20) }.is_null() && stats::snapshot().heap <= held);
    });
}

/// A heap at its maximum with objects of these sizes, of which those that `given_back` names were freed and are not in memory any more, and those that
/// `freed_since` names are free and in memory.
fn at_its_maximum(sizes: &[usize], given_back: impl Fn(usize) -> bool, freed_since: impl Fn(usize) -> bool) {
    init(&Options::default());
    let table = Words::roots(sizes.len());
    for (i, &size) in sizes.iter().enumerate() {
        // SAFETY: in a root at once.
        table.set(i, unsafe { allocate(kind::POINTER_FREE, size) }.expose_provenance());
    }
    let free_those = |chosen: &dyn Fn(usize) -> bool| {
        for i in (0..sizes.len()).filter(|&i| chosen(i)) {
            let at = ptr::with_exposed_provenance_mut(table.get(i));
            table.set(i, 0);
            // SAFETY: nothing refers to it.
            unsafe { free(at) };
        }
    };
    let before = stats::snapshot().heap;
    free_those(&given_back);
    assert!(cycle::collect_and_unmap() && stats::snapshot().heap < before);
    free_those(&freed_since);
    pacing::set_max_heap(stats::snapshot().heap);
}

/// The object is had without a cycle, and the heap does not grow for it.
fn fits_at_once(size: usize) {
    let (cycles, held) = (cycle::number(), stats::snapshot().heap);
    // SAFETY: nothing is done with the object.
    assert!(!unsafe { allocate(kind::POINTER_FREE, size) }.is_null(), "{size} bytes, {:?}", stats::snapshot());
    assert!(cycle::number() == cycles && stats::snapshot().heap <= held, "{:?} of {held}", stats::snapshot());
}

/// A program whose heap was at its maximum, most of it free and in memory, was told that memory is exhausted: the shortest run that was long enough had
/// been given back to the kernel, and would have made the heap larger.
#[test]
fn at_its_maximum_a_heap_takes_what_is_in_memory_before_what_was_given_back() {
    in_child("at_its_maximum_a_heap_takes_what_is_in_memory_before_what_was_given_back", &[], || {
        at_its_maximum(&[8 << 20, 100_000, 1 << 20, 100_000], |i| i == 2, |i| i == 0);
        fits_at_once(600_000);
    });
}

#[test]
fn at_its_maximum_a_heap_gives_short_runs_back_for_a_long_one() {
    in_child("at_its_maximum_a_heap_gives_short_runs_back_for_a_long_one", &[], || {
        let sizes: Vec<_> = [1 << 20].into_iter().chain(std::iter::repeat_n(100_000, 40)).collect();
        at_its_maximum(&sizes, |i| i == 0, |i| i % 2 == 1);
        fits_at_once(600_000);
    });
}
