//! What the two sequences promise, with far more threads than processors, signals, migrations, and a closer: no cell is
//! handed out twice, and none is lost.
//!
//! Cells are only numbers here, so that each can be counted.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::thread;

use larder_percpu::Ground;
use larder_percpu::sequence::{Near, SLAB, Slot, bump, bump_near, bump_own, replace, replace_own};
use larder_sys::{cpus, membarrier, memory};
use larder_units::Bytes;

const CELL: usize = 16;
/// Cells of a run.
const RUN: usize = 40;
/// Cells that a test can use.
const CELLS: usize = 1 << 22;

/// One slot for each index, and the accounts of every cell.
struct Buffers {
    ground: Ground,
    slot: usize,
    /// How often each cell was handed out or given back. Sync: counters.
    seen: Vec<AtomicU8>,
    next_run: AtomicUsize,
}

impl Buffers {
    /// `None` where there are no sequences.
    fn new() -> Option<Self> {
        let ground = Ground::new();
        let possible = cpus::possible();
        ground.set_up(possible);
        if ground.indices() == 0 {
            eprintln!("no sequences here: nothing to test");
            return None;
        }
        let slabs = memory::map_lazy(Bytes(possible * SLAB)).unwrap().as_ptr().expose_provenance();
        let seen = (0..CELLS).map(|_| AtomicU8::new(0)).collect();
        // Run 0 is left out: address 0 means nothing.
        Some(Self { ground, slot: slabs + 5 * size_of::<Slot>(), seen, next_run: AtomicUsize::new(1) })
    }

    fn slot_of(&self, index: usize) -> &Slot {
        // SAFETY: as many slabs as indices are mapped, for ever.
        unsafe { &*std::ptr::with_exposed_provenance(self.slot + index * SLAB) }
    }

    fn pair(&self, index: usize) -> [usize; 2] {
        let slot = self.slot_of(index);
        [slot.frontier.load(Ordering::Relaxed), slot.limit.load(Ordering::Relaxed)]
    }

    fn fresh_run(&self) -> [usize; 2] {
        let n = self.next_run.fetch_add(1, Ordering::Relaxed);
        assert!((n + 1) * RUN <= CELLS, "the test has used all cells");
        [n * RUN * CELL, (n + 1) * RUN * CELL]
    }

    fn take(&self) -> usize {
        thread_local!(static NEAR: Cell<bool> = const { Cell::new(false) });
        // In turn, so that both meet on each index.
        NEAR.set(!NEAR.get());
        // SAFETY: the ground is set up, and the slot is in its slabs.
        if NEAR.get() { self.take_near(CELL) } else { unsafe { bump(&self.ground, self.slot, CELL) } }
    }

    /// As the sequence that goes by addresses.
    fn take_near(&self, bytes: usize) -> usize {
        let near = Near::closed();
        // SAFETY: the ground is set up, the slot is in its slabs, and the test's threads are registered by glibc.
        unsafe {
            near.open(&self.ground, larder_sys::thread::thread_pointer(), self.slot);
            bump_near(&near, bytes)
        }
    }

    /// Takes a cell and notes it; fills the buffer where it was empty.
    fn use_one(&self) {
        loop {
            let cell = self.take();
            if cell != 0 {
                return self.note([cell, cell + CELL]);
            }
            let Some(index) = self.ground.current_index() else { continue };
            let seen = self.pair(index);
            let run = self.fresh_run();
            // SAFETY: as in `take`. Whichever index it reaches, the pair that was there is ours now, if it agreed.
            if unsafe { replace(&self.ground, self.slot, seen, run) } {
                self.note(seen);
            } else {
                self.note(run);
            }
        }
    }

    /// Counts the cells of a range, which may be empty.
    fn note(&self, range: [usize; 2]) {
        for cell in (range[0]..range[1]).step_by(CELL) {
            let before = self.seen[cell / CELL].fetch_add(1, Ordering::Relaxed);
            assert_eq!(before, 0, "cell {} was there twice", cell / CELL);
        }
    }

    /// Every cell of every run is accounted for, once.
    fn settle(&self) {
        for index in 0..self.ground.indices() as usize {
            self.note(self.pair(index));
        }
        let used = self.next_run.load(Ordering::Relaxed) * RUN;
        for cell in RUN..used {
            assert_eq!(self.seen[cell].load(Ordering::Relaxed), 1, "cell {cell} of {used} is lost");
        }
    }
}

/// Runs `body` in many threads at once.
fn crowd(n: usize, body: impl Fn(usize) + Sync) {
    thread::scope(|scope| {
        for i in 0..n {
            let body = &body;
            scope.spawn(move || body(i));
        }
    });
}

#[test]
fn a_bump_takes_exactly_what_is_there() {
    let Some(b) = Buffers::new() else { return };
    // The thread may move between two steps, so every index has the same buffer and each step looks at the sum.
    let total = |b: &Buffers| (0..b.ground.indices() as usize).map(|i| b.pair(i)[0]).sum::<usize>();
    let fill = |pair: [usize; 2]| {
        for index in 0..b.ground.indices() as usize {
            b.slot_of(index).frontier.store(pair[0], Ordering::Relaxed);
            b.slot_of(index).limit.store(pair[1], Ordering::Relaxed);
        }
    };
    for (pair, bytes, result) in [
        ([160, 176], 16, 160),
        ([160, 176], 32, 0),
        ([160, 175], 16, 0),
        ([160, 160], 16, 0),
        ([160, 0], 16, 0),
        ([0, 0], 16, 0),
        ([1 << 40, (1 << 40) + 8192], 8192, 1 << 40),
    ] {
        fill(pair);
        let before = total(&b);
        // SAFETY: the ground is set up, and the slot is in its slabs.
        assert_eq!(unsafe { bump(&b.ground, b.slot, bytes) }, result, "{pair:?}, {bytes} bytes");
        assert_eq!(total(&b) - before, if result == 0 { 0 } else { bytes }, "{pair:?}, {bytes} bytes");
        fill(pair);
        assert_eq!(b.take_near(bytes), result, "{pair:?}, {bytes} bytes, by address");
        assert_eq!(total(&b) - before, if result == 0 { 0 } else { bytes }, "{pair:?}, {bytes} bytes, by address");
    }
}

#[test]
fn closed_addresses_lead_to_no_buffer() {
    let near = Near::closed();
    // SAFETY: closed.
    assert_eq!(unsafe { bump_near(&near, 8) }, 0);
}

#[test]
fn a_replace_compares_both_words() {
    let Some(b) = Buffers::new() else { return };
    for (expected, done) in [([7, 9], true), ([7, 8], false), ([6, 9], false), ([9, 7], false), ([0, 0], false)] {
        for index in 0..b.ground.indices() as usize {
            b.slot_of(index).frontier.store(7, Ordering::Relaxed);
            b.slot_of(index).limit.store(9, Ordering::Relaxed);
        }
        // SAFETY: the ground is set up, and the slot is in its slabs.
        assert_eq!(unsafe { replace(&b.ground, b.slot, expected, [1, 2]) }, done, "{expected:?}");
        let changed = (0..b.ground.indices() as usize).filter(|i| b.pair(*i) == [1, 2]).count();
        let same = (0..b.ground.indices() as usize).filter(|i| b.pair(*i) == [7, 9]).count();
        assert_eq!((changed, changed + same), (usize::from(done), b.ground.indices() as usize));
    }
}

#[test]
fn threads_far_beyond_the_processors_lose_no_cell() {
    let Some(b) = Buffers::new() else { return };
    crowd(64, |_| (0..4000).for_each(|_| b.use_one()));
    b.settle();
}

#[test]
fn a_thousand_threads_lose_no_cell() {
    let Some(b) = Buffers::new() else { return };
    crowd(1000, |_| (0..200).for_each(|_| b.use_one()));
    b.settle();
}

#[test]
fn threads_that_move_all_the_time_lose_no_cell() {
    let Some(b) = Buffers::new() else { return };
    let possible = cpus::possible();
    crowd(16, |i| {
        for step in 0..3000 {
            if step % 5 == 0 {
                // SAFETY: the set is plain data; a CPU that is not allowed is refused.
                unsafe {
                    let mut set: libc::cpu_set_t = std::mem::zeroed();
                    libc::CPU_SET((i + step / 5) % possible, &mut set);
                    libc::sched_setaffinity(0, size_of_val(&set), &set);
                }
            }
            b.use_one();
        }
    });
    b.settle();
}

/// Another thread closes the buffers again and again, as the collector does, and takes what was not handed out.
#[test]
fn a_closer_and_many_takers_lose_no_cell() {
    let Some(b) = Buffers::new() else { return };
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                for index in 0..b.ground.indices() as usize {
                    let limit = b.slot_of(index).limit.load(Ordering::Relaxed);
                    if limit == 0 {
                        continue;
                    }
                    // Somebody may put a new run there meanwhile; then that one is closed too early, which this test,
                    // unlike the collector, cannot prevent. So the pair is only taken when it is still the one seen.
                    let frontier = b.slot_of(index).frontier.load(Ordering::Relaxed);
                    if frontier >= limit {
                        continue;
                    }
                    b.slot_of(index).limit.compare_exchange(limit, 0, Ordering::Relaxed, Ordering::Relaxed).ok();
                    assert!(membarrier::abort_sequences());
                    // No sequence that saw the old limit can commit now. A taker that finds the slot closed replaces it,
                    // and counts the pair (frontier, 0), which holds nothing: the rest is this thread's, unless the
                    // frontier has moved to another run.
                    let now = b.slot_of(index).frontier.load(Ordering::Relaxed);
                    if b.slot_of(index).limit.load(Ordering::Relaxed) == 0 && now >= frontier && now <= limit {
                        b.note([now, limit]);
                    }
                }
                thread::yield_now();
            }
        });
        thread::scope(|takers| {
            for _ in 0..16 {
                takers.spawn(|| {
                    for _ in 0..4000 {
                        let cell = b.take();
                        if cell != 0 {
                            b.note([cell, cell + CELL]);
                        } else {
                            thread::yield_now();
                        }
                    }
                });
            }
            // The only one that fills: so the closer never meets a run that it did not see.
            takers.spawn(|| {
                for _ in 0..3000 {
                    let Some(index) = b.ground.current_index() else { continue };
                    let seen = b.pair(index);
                    if seen[1] == 0 || seen[0] < seen[1] {
                        // Closed: its rest is the closer's. Not empty: it would be lost to its takers.
                        thread::yield_now();
                    }
                    if seen[1] != 0 && seen[0] >= seen[1] || seen == [0, 0] {
                        let run = b.fresh_run();
                        // SAFETY: the ground is set up, and the slot is in its slabs.
                        if !unsafe { replace(&b.ground, b.slot, seen, run) } {
                            b.note(run);
                        }
                    }
                }
            });
        });
        over.store(true, Ordering::Relaxed);
    });
    let handed = b.seen.iter().filter(|s| s.load(Ordering::Relaxed) == 1).count();
    assert!(handed > 0);
}

/// Signals whose handler takes cells, two thousand times a second.
#[test]
fn handlers_that_take_cells_lose_none() {
    static BUFFERS: AtomicUsize = AtomicUsize::new(0);
    static HANDLED: AtomicUsize = AtomicUsize::new(0);
    const SIGNALS: usize = 600;
    extern "C" fn on_signal(_: i32) {
        // SAFETY: set before the signals begin; the buffers are leaked.
        let b = unsafe { &*std::ptr::with_exposed_provenance::<Buffers>(BUFFERS.load(Ordering::Acquire)) };
        for _ in 0..10 {
            b.use_one();
        }
        HANDLED.fetch_add(1, Ordering::Relaxed);
    }
    let Some(b) = Buffers::new() else { return };
    let b: &'static Buffers = Box::leak(Box::new(b));
    BUFFERS.store(std::ptr::from_ref(b).expose_provenance(), Ordering::Release);
    // SAFETY: the records are initialised; the handler takes no lock and does not allocate.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_signal as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        assert_eq!(libc::sigaction(libc::SIGUSR2, &action, std::ptr::null_mut()), 0);
    }
    crowd(8, |_| {
        // SAFETY: the record is initialised; the timer is deleted below, on the same thread.
        let timer = unsafe {
            let mut event: libc::sigevent = std::mem::zeroed();
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = libc::SIGUSR2;
            event.sigev_notify_thread_id = larder_sys::thread::tid();
            let mut timer = std::mem::zeroed();
            assert_eq!(libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer), 0);
            let every = libc::timespec { tv_sec: 0, tv_nsec: 4_000_000 };
            let time = libc::itimerspec { it_interval: every, it_value: every };
            assert_eq!(libc::timer_settime(timer, 0, &time, std::ptr::null_mut()), 0);
            timer
        };
        while HANDLED.load(Ordering::Relaxed) < SIGNALS {
            // Signals come by the clock, and cells are used as fast as the machine can: what is left is for the handlers.
            if b.next_run.load(Ordering::Relaxed) < CELLS / RUN / 4 * 3 {
                b.use_one();
                (0..300).for_each(|_| std::hint::spin_loop());
            } else {
                thread::yield_now();
            }
        }
        // SAFETY: made above.
        assert_eq!(unsafe { libc::timer_delete(timer) }, 0);
    });
    b.settle();
}

#[test]
fn a_buffer_of_a_thread_is_filled_taken_and_closed() {
    let slot = Slot { frontier: AtomicUsize::new(0), limit: AtomicUsize::new(0) };
    // SAFETY: this thread's own slot.
    let take = || unsafe { bump_own(&slot, CELL) };
    assert_eq!(take(), 0);
    replace_own(&slot, [320, 352]);
    assert_eq!((take(), take(), take()), (320, 336, 0));
    replace_own(&slot, [640, 672]);
    slot.limit.store(0, Ordering::Relaxed);
    assert_eq!(take(), 0);
}
