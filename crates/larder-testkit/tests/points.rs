//! A stop of the world, and a signal handler that uses the heap, at every numbered point of the slow paths; and signals
//! at every moment.

use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use larder_fixed::inject::{POINTS, Point, at_points};
use larder_fixed::options::Options;
use larder_fixed::sharing::{Sharing, sharing};
use larder_fixed::{allocate, cycle, free, init, kind, object, stats, threads};
use larder_sys::{loader, thread};
use larder_testkit::fuzz::{self, Plan};
use larder_testkit::table::Words;
use larder_testkit::verifier::{self, Rules};
use larder_testkit::{Random, WITHOUT_SEQUENCES, crowd, handler, in_child, pattern, stop};

mod trap;

/// The point at which something happens, once; 0 for none. Sync: the test sets it, the acting thread takes it.
static TARGET: AtomicU32 = AtomicU32::new(0);
/// The thread to which it happens. Sync: set before.
static ACTOR: AtomicI32 = AtomicI32::new(0);
/// What happens. Sync: set before.
static ACTION: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());

fn hook(p: Point) {
    if TARGET.load(Ordering::Relaxed) == p as u32
        && thread::tid() == ACTOR.load(Ordering::Relaxed)
        && TARGET.swap(0, Ordering::Relaxed) != 0
    {
        // SAFETY: only `at_every_point` stores here.
        unsafe { core::mem::transmute::<*mut (), fn()>(ACTION.load(Ordering::Relaxed))() };
    }
}

/// A thread's objects, each with a pattern of its own.
struct Objects {
    table: Words,
    random: Random,
    next: u64,
}

const KEPT: usize = 600;

impl Objects {
    fn new() -> Self {
        Self { table: Words::roots(KEPT), random: Random::new(5), next: 1 }
    }

    fn check(&self, i: usize) -> *mut u8 {
        let at = ptr::with_exposed_provenance_mut::<u8>(self.table.get(i));
        if !at.is_null() {
            assert_eq!(object::base(at.addr()), Some(at.addr()), "object {i}");
            // SAFETY: kept by the table. The first word is the number of the pattern.
            unsafe { pattern::check(at, 8, object::size(at.addr()), at.cast::<u64>().read() & !(1 << 63)) };
        }
        at
    }

    fn check_all(&self) {
        for i in 0..KEPT {
            self.check(i);
        }
    }

    fn allocate(&mut self, bytes: usize) {
        let kind = [kind::NORMAL, kind::POINTER_FREE][self.random.below(2)];
        // SAFETY: on this stack until it is in the table.
        let at = unsafe { allocate(kind, bytes) };
        assert!(!at.is_null());
        self.next += 1;
        // SAFETY: a fresh object.
        unsafe {
            assert!(kind != kind::NORMAL || pattern::first_set(at, object::size(at.addr())).is_none());
            at.cast::<u64>().write(self.next | 1 << 63);
            pattern::fill(at, 8, object::size(at.addr()), self.next);
        }
        let i = self.random.below(KEPT);
        let old = self.check(i);
        self.table.set(i, at.expose_provenance());
        if !old.is_null() && self.random.below(3) == 0 {
            // SAFETY: nothing refers to it any more.
            unsafe { free(old) };
        }
    }

    /// What passes every point, over and over: refills from swept and fresh blocks, frees, large objects.
    fn work(&mut self) {
        for _ in 0..300 {
            let bytes = [24, 24, 100, 700, 3000, 9000][self.random.below(6)];
            self.allocate(bytes);
        }
        for _ in 0..4 {
            let bytes = 40_000 + self.random.below(400_000);
            self.allocate(bytes);
        }
        if self.random.below(4) == 0 {
            self.table.clear();
        }
        self.check_all();
    }

    /// Allocates until no block has a free run, and then until the pool has no block: then the heap looks through the
    /// blocks that a cycle left empty.
    fn exhaust(&mut self) {
        for _ in 0..3000 {
            if TARGET.load(Ordering::Relaxed) == 0 {
                return;
            }
            let bytes = [12_000, 12_000, 40_000][self.random.below(3)];
            // SAFETY: never used.
            assert!(!unsafe { allocate(kind::POINTER_FREE, bytes) }.is_null());
        }
    }
}

/// Lets `action` happen at each point, several times.
fn at_every_point(action: fn(), times: usize) {
    init(&Options { initial_heap: larder_units::Bytes::mib(256), ..Options::default() });
    verifier::watch(Rules::EXACT);
    stop::start_collector();
    ACTOR.store(thread::tid(), Ordering::Relaxed);
    ACTION.store(action as *mut (), Ordering::Relaxed);
    at_points(Some(hook));
    let mut objects = Objects::new();
    // Buffers of threads have no shelves.
    let shelves = |p: &Point| matches!(p, Point::ShelfTaken | Point::RunsShelved);
    // Where blocks have owners, the collector takes the whole census, and the actor never collects.
    let owned = sharing() != Sharing::AllShared;
    let is_passed = |p: &Point| !(shelves(p) && stats::by_thread() || owned && *p == Point::CensusCandidate);
    for p in POINTS.into_iter().filter(is_passed) {
        for time in 0..times {
            TARGET.store(p as u32, Ordering::Relaxed);
            let mut rounds = 0;
            while TARGET.load(Ordering::Relaxed) != 0 {
                objects.work();
                // The actor never collects by itself: the one who is asked at a point could not then.
                if rounds % 2 == 0 {
                    let due = TARGET.swap(0, Ordering::Relaxed);
                    stop::stop_here();
                    stop::settle();
                    TARGET.store(due, Ordering::Relaxed);
                }
                if matches!(p, Point::BeforeBlocks | Point::BlocksTaken | Point::CensusCandidate) {
                    objects.exhaust();
                }
                rounds += 1;
                assert!(rounds < 400, "{p:?} was not passed, time {time}");
            }
            stop::settle();
            objects.check_all();
        }
    }
    let before = verifier::cycles();
    stop::stop_here();
    assert!(verifier::cycles() > before);
    objects.check_all();
}

#[test]
fn a_stop_at_every_point_loses_nothing() {
    in_child("a_stop_at_every_point_loses_nothing", &[], || {
        at_every_point(stop::stop_here, 8);
        assert!(stop::cycles_made() > 8 * POINTS.len() as u64);
    });
}

#[test]
fn a_stop_at_every_point_loses_nothing_without_sequences() {
    in_child("a_stop_at_every_point_loses_nothing_without_sequences", &[WITHOUT_SEQUENCES], || {
        at_every_point(stop::stop_here, 8);
        assert!(stats::by_thread());
    });
}

/// The handler's objects are checked by the handlers that come after.
fn handle() {
    static INSTALLED: AtomicBool = AtomicBool::new(false);
    if !INSTALLED.swap(true, Ordering::Relaxed) {
        // The table of the handler's roots needs a lock that the interrupted code does not hold at any point.
        handler::install(libc::SIGUSR1);
    }
    for _ in 0..3 {
        handler::raise(libc::SIGUSR1);
    }
}

/// A handler and a stop at the same point: what the handler took is adopted by the cycle.
fn handle_and_stop() {
    handle();
    stop::stop_here();
}

#[test]
fn a_handler_may_use_the_heap_at_every_point() {
    in_child("a_handler_may_use_the_heap_at_every_point", &[], || {
        at_every_point(handle, 6);
        handler::check();
        let points = POINTS.len() - usize::from(sharing() != Sharing::AllShared);
        assert!(handler::handled() >= 18 * points as u64);
    });
}

#[test]
fn a_handler_and_a_stop_at_every_point_lose_nothing() {
    in_child("a_handler_and_a_stop_at_every_point_lose_nothing", &[], || {
        at_every_point(handle_and_stop, 6);
        handler::check();
    });
}

/// A handler that collects on a thread which forks, or stops the world for a client, does not wait at the gate that its own
/// thread keeps closed.
#[test]
fn a_handler_may_collect_while_its_thread_keeps_collectors_out() {
    static RAN: AtomicU32 = AtomicU32::new(0);
    extern "C" fn collect(_: i32) {
        cycle::collect();
        RAN.fetch_add(1, Ordering::Relaxed);
    }
    fn raise() {
        // SAFETY: no preconditions; the handler is installed.
        assert_eq!(unsafe { libc::raise(libc::SIGUSR1) }, 0);
    }
    fn fork() {
        // SAFETY: the child ends at once.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::_exit(0);
            }
            let mut status = 0;
            assert_eq!((libc::waitpid(child, &mut status, 0), status), (child, 0));
        }
    }
    fn stop_and_start() {
        threads::stop_world();
        threads::start_world();
    }
    fn suspend_nobody() {
        assert!(!threads::suspend(0));
    }
    in_child("a_handler_may_collect_while_its_thread_keeps_collectors_out", &[], || {
        init(&Options::default());
        let handler = collect as extern "C" fn(i32);
        // SAFETY: the handler uses the heap as handlers may.
        assert_ne!(unsafe { libc::signal(libc::SIGUSR1, handler as usize) }, libc::SIG_ERR);
        ACTOR.store(thread::tid(), Ordering::Relaxed);
        ACTION.store(raise as *mut (), Ordering::Relaxed);
        at_points(Some(hook));
        let mut times = 0;
        for act in [fork as fn(), stop_and_start, suspend_nobody] {
            for p in [Point::GateClosed, Point::GateOpens] {
                TARGET.store(p as u32, Ordering::Relaxed);
                act();
                times += 1;
                assert_eq!((TARGET.load(Ordering::Relaxed), RAN.load(Ordering::Relaxed)), (0, times), "{p:?}");
            }
        }
        assert!(cycle::collect());
    });
}

/// A thread that is suspended sleeps neither with the lock under which helpers are created, nor with the loader's list: the next cycle would wait
/// for it. (Once it did, and a program whose thread collected by itself stood still after GC_suspend_thread.)
#[test]
fn a_suspended_thread_does_not_keep_cycles_from_beginning() {
    /// Where the two threads are: one holds what a cycle takes, the other is about to suspend it. Sync: each writes its own.
    static HOLDS: AtomicBool = AtomicBool::new(false);
    static ASKS: AtomicBool = AtomicBool::new(false);
    /// The suspended thread is to end.
    static ENDS: AtomicBool = AtomicBool::new(false);
    fn hold() {
        HOLDS.store(true, Ordering::Release);
        crowd::wait_until(|| ASKS.load(Ordering::Acquire));
        // A signal that could come here does. Where other processes want the CPUs as well a yield takes as long as one of their turns, and who suspends does
        // not wait for ever for a thread that holds the list.
        let begun = Instant::now();
        for _ in 0..2000 {
            if begun.elapsed() > Duration::from_millis(20) {
                break;
            }
            std::thread::yield_now();
        }
        HOLDS.store(false, Ordering::Release);
    }
    fn meet(p: Point) {
        if thread::tid() != ACTOR.load(Ordering::Relaxed) {
            ASKS.fetch_or(p == Point::GateClosed, Ordering::Release);
        } else if TARGET.load(Ordering::Relaxed) == p as u32 && TARGET.swap(0, Ordering::Relaxed) != 0 {
            hold();
        }
    }
    in_child("a_suspended_thread_does_not_keep_cycles_from_beginning", &[], || {
        init(&Options::default());
        at_points(Some(meet));
        for round in 0..40 {
            for flag in [&HOLDS, &ASKS, &ENDS] {
                flag.store(false, Ordering::Relaxed);
            }
            TARGET.store(if round % 2 == 0 { Point::PrepareLocked as u32 } else { 0 }, Ordering::Relaxed);
            let suspended = crowd::spawn(move || {
                ACTOR.store(thread::tid(), Ordering::Relaxed);
                if round % 2 == 1 {
                    loader::with_objects_held(hold);
                }
                while !ENDS.load(Ordering::Relaxed) {
                    cycle::collect();
                }
            });
            crowd::wait_until(|| HOLDS.load(Ordering::Acquire));
            assert!(threads::suspend(suspended.id()));
            assert!(!HOLDS.load(Ordering::Acquire), "it was suspended with a lock (round {round})");
            assert!(cycle::collect());
            ENDS.store(true, Ordering::Relaxed);
            assert!(threads::resume(suspended.id()));
            suspended.join();
        }
    });
}

/// A thread that keeps the loader's list, in a callback of its own, is suspended all the same in the end.
#[test]
fn a_thread_that_keeps_the_loaders_list_is_suspended_with_it() {
    static HOLDS: AtomicBool = AtomicBool::new(false);
    static ENDS: AtomicBool = AtomicBool::new(false);
    in_child("a_thread_that_keeps_the_loaders_list_is_suspended_with_it", &[], || {
        init(&Options::default());
        let suspended = crowd::spawn(|| {
            loader::with_objects_held(|| {
                HOLDS.store(true, Ordering::Release);
                crowd::wait_until(|| ENDS.load(Ordering::Acquire));
            });
        });
        crowd::wait_until(|| HOLDS.load(Ordering::Acquire));
        assert!(threads::suspend(suspended.id()));
        assert!(threads::is_suspended(suspended.id()), "it was said to be, and runs");
        ENDS.store(true, Ordering::Release);
        assert!(threads::resume(suspended.id()));
        suspended.join();
    });
}

/// Objects that handlers take within slow paths share blocks: a block for each would take longer than until the next signal. A cycle
/// returns what is left of the last one.
#[test]
fn objects_of_handlers_within_slow_paths_share_blocks() {
    const TAKEN: usize = 301;
    /// Of this size nothing else is allocated.
    const BYTES: usize = 5000;
    static TABLE: OnceLock<Words> = OnceLock::new();
    const KINDS: [usize; 2] = [kind::NORMAL, kind::POINTER_FREE];
    /// Objects in the table. Sync: one thread and its handlers.
    static FILLED: AtomicUsize = AtomicUsize::new(0);

    fn take(kind: usize) {
        // SAFETY: in the table at once.
        let at = unsafe { allocate(kind, BYTES) };
        assert!(!at.is_null());
        let (i, size) = (FILLED.fetch_add(1, Ordering::Relaxed), object::size(at.addr()));
        // SAFETY: a fresh object.
        unsafe {
            assert!(kind != kind::NORMAL || pattern::first_set(at, size).is_none());
            pattern::fill(at, 0, size, i as u64);
        }
        TABLE.get().expect("it is there before").set(i, at.expose_provenance());
    }
    fn take_many() {
        for _ in 0..TAKEN {
            KINDS.into_iter().for_each(take);
        }
    }
    /// Blocks with cells of this size of a kind, their cells, and those of them that are taken.
    fn blocks(kind: usize) -> [usize; 3] {
        let mut sums = [0; 3];
        stats::for_each_block(&mut |b| {
            if b.kind == kind && b.size == object::size_for(BYTES) {
                sums = [sums[0] + 1, sums[1] + b.cells, sums[2] + b.live];
            }
        });
        sums
    }
    fn check() {
        for i in 0..FILLED.load(Ordering::Relaxed) {
            let at = ptr::with_exposed_provenance_mut::<u8>(TABLE.get().expect("it is there").get(i));
            assert_eq!(object::base(at.addr()), Some(at.addr()), "object {i}");
            // SAFETY: kept by the table.
            unsafe { pattern::check(at, 0, object::size(at.addr()), i as u64) };
        }
    }
    in_child("objects_of_handlers_within_slow_paths_share_blocks", &[], || {
        init(&Options::default());
        verifier::watch(Rules::EXACT);
        TABLE.get_or_init(|| Words::roots(1 << 12));
        ACTOR.store(thread::tid(), Ordering::Relaxed);
        ACTION.store(take_many as *mut (), Ordering::Relaxed);
        at_points(Some(hook));
        let mut objects = Objects::new();
        for (round, p) in [Point::BlocksTaken, Point::FreeLocked, Point::BlocksTaken].into_iter().enumerate() {
            let before = KINDS.map(blocks);
            TARGET.store(p as u32, Ordering::Relaxed);
            while TARGET.load(Ordering::Relaxed) != 0 {
                objects.work();
            }
            for (kind, [blocks_before, ..]) in KINDS.into_iter().zip(before) {
                let [all, cells, _] = blocks(kind);
                assert_eq!(all - blocks_before, TAKEN.div_ceil(cells / all), "blocks of kind {kind}, round {round}");
            }
            // Also while a handler's block is in use.
            check();
            assert!(cycle::collect());
            check();
            for (kind, [.., taken_before]) in KINDS.into_iter().zip(before) {
                let [.., taken] = blocks(kind);
                assert_eq!(taken - taken_before, TAKEN, "cells of kind {kind}, round {round}");
            }
        }
    });
}

/// What a handler took in the middle of a slow path is in no list before the next cycle.
#[test]
fn what_a_handler_took_can_be_freed_before_the_next_cycle() {
    in_child("what_a_handler_took_can_be_freed_before_the_next_cycle", &[], || {
        init(&Options::default());
        verifier::watch(Rules::EXACT);
        handler::install(libc::SIGUSR1);
        ACTOR.store(thread::tid(), Ordering::Relaxed);
        ACTION.store(handle as *mut (), Ordering::Relaxed);
        at_points(Some(hook));
        let mut objects = Objects::new();
        for round in 0..40 {
            TARGET.store(POINTS[round % 2 * 8] as u32, Ordering::Relaxed);
            while TARGET.load(Ordering::Relaxed) != 0 {
                objects.work();
            }
            handler::free_all();
            objects.work();
            assert!(round % 3 != 0 || cycle::collect());
        }
        assert!(cycle::collect());
    });
}

#[test]
fn a_handler_may_use_the_heap_at_every_point_without_sequences() {
    in_child("a_handler_may_use_the_heap_at_every_point_without_sequences", &[WITHOUT_SEQUENCES], || {
        at_every_point(handle_and_stop, 6);
        assert!(stats::by_thread());
        handler::check();
    });
}

/// Eight threads (or so) that work on the heap and are interrupted by handlers which do as well.
fn storm(plan: &Plan, handlers: u64) {
    fuzz::prepare(plan);
    handler::install(libc::SIGALRM);
    let mut seed = plan.seed;
    while handler::handled() < handlers {
        fuzz::work(&Plan { seed, around: [handler::storm_begins, handler::storm_ends], ..plan.clone() });
        seed += 1;
    }
    handler::check();
    assert!(cycle::collect());
}

#[test]
fn handlers_may_use_the_heap_at_any_moment() {
    in_child("handlers_may_use_the_heap_at_any_moment", &[], || {
        storm(&Plan { collect_every: Some(40), ..Plan::new(8, 1, 400) }, 1500);
    });
}

#[test]
fn handlers_may_use_the_heap_at_any_moment_without_sequences() {
    in_child("handlers_may_use_the_heap_at_any_moment_without_sequences", &[WITHOUT_SEQUENCES], || {
        storm(&Plan { collect_every: Some(60), ..Plan::new(8, 2, 300) }, 1000);
        assert!(stats::by_thread());
    });
}

/// A handler that interrupts a refill takes a block that no list knows. Another thread's census must not take the block
/// for an empty one while the handler still writes its record.
#[test]
fn a_block_in_the_making_is_not_reclaimed() {
    /// Requests to the thread that looks for blocks, and answers. Sync: one asks, one answers.
    static WANTED: AtomicUsize = AtomicUsize::new(0);
    static DONE: AtomicUsize = AtomicUsize::new(0);
    /// The instruction of the nested allocation at which the other thread runs. Sync: as `TARGET`.
    static PLACE: AtomicUsize = AtomicUsize::new(0);
    static HITS: AtomicUsize = AtomicUsize::new(0);

    fn census_elsewhere() {
        let wanted = WANTED.fetch_add(1, Ordering::AcqRel) + 1;
        crowd::wait_until(|| DONE.load(Ordering::Acquire) >= wanted);
    }
    fn allocate_inside() {
        let place = PLACE.load(Ordering::Relaxed);
        let call = || {
            // Of this size nothing else is allocated, so there is no buffer.
            // SAFETY: looked at at once.
            unsafe { allocate(kind::NORMAL, 5000) }
        };
        let (at, trapped) = trap::with_breakpoints(&[place], census_elsewhere, call);
        HITS.fetch_add(trapped.hits, Ordering::Relaxed);
        assert_eq!(object::base(at.addr()), Some(at.addr()), "the block was taken away at {place:#x}");
        // SAFETY: a fresh object.
        unsafe { pattern::fill(at, 0, 24, 9) };
    }
    in_child("a_block_in_the_making_is_not_reclaimed", &[], || {
        trap::install();
        init(&Options::default());
        verifier::watch(Rules::EXACT);
        // A cycle would wait for the interrupted refill, and this test makes the refill wait.
        cycle::disable();
        let long = Words::roots(1 << 12);
        let _ = crowd::spawn(move || {
            loop {
                crowd::wait_until(|| WANTED.load(Ordering::Acquire) > DONE.load(Ordering::Relaxed));
                // Longer than any free run: the census looks at every block before the heap grows. It is kept, or the next
                // one would take its place.
                // SAFETY: in a root at once.
                let at = unsafe { allocate(kind::POINTER_FREE, 3 << 20) };
                assert!(!at.is_null());
                long.set(DONE.load(Ordering::Relaxed), at.expose_provenance());
                DONE.fetch_add(1, Ordering::Release);
            }
        });
        ACTOR.store(thread::tid(), Ordering::Relaxed);
        ACTION.store(allocate_inside as *mut (), Ordering::Relaxed);
        at_points(Some(hook));
        let mut objects = Objects::new();
        let nested = trap::function_named("larder_fixed", "12nested_fresh").expect("the function has a symbol");
        for i in trap::instructions_of(nested) {
            PLACE.store(i.ip() as usize, Ordering::Relaxed);
            TARGET.store(Point::BlocksTaken as u32, Ordering::Relaxed);
            // Each cycle has a census begin at the first block again.
            cycle::enable();
            assert!(cycle::collect());
            cycle::disable();
            while TARGET.load(Ordering::Relaxed) != 0 {
                objects.work();
            }
        }
        cycle::enable();
        assert!(HITS.load(Ordering::Relaxed) > 30);
        assert!(cycle::collect());
        objects.check_all();
    });
}
