//! Models of the stop protocol (`stop.blocked`, `stop.ack`, `stop.last` and what hangs on them): when `stop_world`
//! returns, no registered thread runs until the resume, and then every thread goes on.
//!
//! Each thread has a cell, which it touches wherever a mutator may run; a collector touches all cells while the world is
//! stopped. loom reports two accesses that nothing orders ("Causality violation"), and a thread that sleeps for ever
//! ("deadlock"). A mutator's handler may run between any two of its steps.
#![cfg(loom)]

use std::sync::Arc;

use larder_sync::lock::Lock;
use larder_sync::loom::cell::UnsafeCell;
use larder_sync::loom::{self, thread};
use larder_sync::parker::Event;
use larder_sync::{signals, step};
use larder_threads::{REGISTRY, blocking, defer, interposed, stop, suspend};

/// Explores every interleaving of `model` with at most `preemptions` preemptions.
fn explore(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(preemptions);
    builder.max_branches = 20_000;
    builder.check(model);
}

/// What a mutator may do, besides running.
#[derive(Clone, Copy)]
enum Act {
    /// Touches its cell.
    Run,
    /// Sleeps in the kernel, unknown to the runtime, until all cycles are over.
    Sleep,
    /// Leaves the heap alone for a while.
    Block,
    /// As above, and uses the heap in between.
    BlockAndBeActive,
    /// Sleeps in a call that is interposed.
    Call,
    /// As above; a handler of the client interrupts the call.
    CallAndHandle,
    /// As above; the handler leaves by `longjmp`.
    CallAndJump,
    /// A handler of the client comes when the thread is `Running` again and has not looked for a stop yet.
    HandleAtTheEnd,
    /// Sleeps in a call, with the stop signal masked, until all cycles are over.
    CallWhileMasked,
    /// The same, for no time: a collector may count on it that it answers where the call ends.
    ShortCallWhileMasked,
    /// Touches its cell in a slow path, with the lock of a class.
    Defer,
    /// Takes the registry's lock.
    LookAtTheList,
}

struct Heap {
    /// One for each thread.
    cells: [UnsafeCell<u32>; 3],
    /// The loader's list, for which collectors wait with the stop signal open.
    loader: Lock,
    /// A lock of the heap, which slow paths take and the collector takes in the stopped world.
    class: Lock,
    /// Happens when a thread has registered.
    registered: Event,
    /// Happens when all cycles are over.
    over: Event,
}

// SAFETY: loom checks the accesses to the cells; that is what the models are for.
unsafe impl Sync for Heap {}
// SAFETY: as above.
unsafe impl Send for Heap {}

impl Heap {
    fn new() -> Arc<Self> {
        let cells = std::array::from_fn(|_| UnsafeCell::new(0));
        Arc::new(Self { cells, loader: Lock::new(), class: Lock::new(), registered: Event::new(), over: Event::new() })
    }

    /// What thread `me` does as a mutator.
    fn run(&self, me: usize) {
        signals::look();
        // SAFETY: `me` names this thread, and collectors keep away while it runs.
        self.cells[me].with_mut(|cell| unsafe { *cell += 1 });
    }

    fn act(&self, me: usize, act: Act) {
        match act {
            Act::Run => self.run(me),
            Act::Sleep => self.over.wait(0),
            Act::Block => blocking::region(|| ()),
            Act::BlockAndBeActive => blocking::region(|| blocking::active_region(|| self.run(me))),
            Act::Call => interposed::call(|| ()),
            Act::CallAndHandle => interposed::call(|| interposed::handler(|| self.run(me))),
            Act::CallAndJump => {
                assert_ne!(interposed::enter(1), 0);
                interposed::handler_begins(0, 0, 0);
                self.run(me);
            }
            Act::HandleAtTheEnd => {
                interposed::call_interrupted_at_its_end(|| self.run(me));
            }
            Act::CallWhileMasked => {
                signals::mask(true);
                interposed::call(|| self.over.wait(0));
                signals::mask(false);
            }
            Act::ShortCallWhileMasked => {
                signals::mask(true);
                interposed::call(|| ());
                signals::mask(false);
            }
            Act::Defer => {
                let _deferral = defer::enter();
                let _class = self.class.lock();
                self.run(me);
            }
            Act::LookAtTheList => REGISTRY.lock().for_each(|_| ()),
        }
    }

    fn register(&self) {
        assert!(REGISTRY.register_current(1).is_ok_and(|new| new));
        self.registered.bump_and_wake_all();
    }

    /// Waits until so many threads have registered.
    fn await_threads(&self, threads: u32) {
        loop {
            let seen = self.registered.current();
            if seen >= threads {
                return;
            }
            self.registered.wait(seen);
        }
    }

    /// The life of thread `me`: it registers, acts, and unregisters.
    fn live(&self, me: usize, acts: &[Act]) {
        self.register();
        self.run(me);
        for act in acts {
            self.act(me, *act);
            self.run(me);
        }
        assert!(REGISTRY.unregister_current(0));
    }

    /// A cycle, as `larder-fixed` makes it. Returns how often mutators had run.
    fn collect(&self) -> u32 {
        let loader = self.loader.lock();
        let mask = signals::mask(true);
        let guard = REGISTRY.lock_to_stop();
        guard.stop_world();
        let class = self.class.lock();
        let before = self.mark();
        drop(class);
        assert_eq!(self.mark(), before, "a mutator ran in a stopped world");
        guard.resume_world();
        drop(guard);
        stop::wake_resumed(1);
        signals::mask(mask);
        drop(loader);
        before
    }

    fn mark(&self) -> u32 {
        // SAFETY: the world is stopped.
        self.cells.iter().map(|cell| cell.with_mut(|cell| unsafe { *cell })).sum()
    }
}

/// Runs a model whose collectors look for threads that sleep instead of answering.
fn looking(model: impl FnOnce()) {
    stop::LOOKS.set(true);
    model();
    stop::LOOKS.set(false);
}

impl Act {
    /// Whether the act touches the thread's cell.
    fn runs(&self) -> bool {
        matches!(
            self,
            Act::Run | Act::BlockAndBeActive | Act::CallAndHandle | Act::CallAndJump | Act::HandleAtTheEnd | Act::Defer
        )
    }
}

/// A collector, which is not a mutator, and threads that do what `acts` says; `stops` cycles.
fn world(preemptions: usize, stops: usize, acts: &'static [&'static [Act]]) {
    world_after(0, preemptions, stops, acts);
}

/// As above; the first cycle begins when `registered` threads have registered.
fn world_after(registered: u32, preemptions: usize, stops: usize, acts: &'static [&'static [Act]]) {
    explore(preemptions, move || {
        let heap = Heap::new();
        let threads: Vec<_> = acts
            .iter()
            .enumerate()
            .map(|(me, acts)| {
                let heap = heap.clone();
                thread::spawn(move || heap.live(me, acts))
            })
            .collect();
        heap.await_threads(registered);
        for _ in 0..stops {
            heap.collect();
        }
        heap.over.bump_and_wake_all();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(REGISTRY.count(), 0);
        let runs = |acts: &&[Act]| 1 + acts.len() + acts.iter().filter(|act| act.runs()).count();
        assert_eq!(heap.collect() as usize, acts.iter().map(runs).sum(), "a mutator did not go on");
    });
}

/// A thread that does what `acts` says, and somebody who looks at its stack twice, and waits for it without end.
fn looked_at(preemptions: usize, acts: &'static [Act]) {
    looked_at_for(preemptions, u64::MAX, acts);
}

/// As above, for so long.
fn looked_at_for(preemptions: usize, patience_ns: u64, acts: &'static [Act]) {
    explore(preemptions, move || {
        let heap = Heap::new();
        let mutator = {
            let heap = heap.clone();
            thread::spawn(move || heap.live(0, acts))
        };
        heap.await_threads(1);
        for _ in 0..2 {
            let round = REGISTRY.begin_looks();
            let mut looks = 0;
            let looked = REGISTRY.look_at_each(
                round,
                patience_ns,
                || false,
                |thread| {
                    // SAFETY: the thread stands still.
                    heap.cells[0].with_mut(|cell| unsafe { *cell += 0 });
                    assert!(!thread.was_looked_at(round));
                    looks += 1;
                },
            );
            assert_eq!(looks, looked.held + looked.asked);
            assert!(
                patience_ns < u64::MAX || looks == 1 || looked.missed == 0,
                "the thread was not looked at: {looked:?}"
            );
        }
        heap.over.bump_and_wake_all();
        mutator.join().unwrap();
        let runs = 1 + acts.len() + acts.iter().filter(|act| act.runs()).count();
        assert_eq!(heap.collect() as usize, runs, "the mutator did not go on");
    });
}

/// A thread that does what `acts` says, and somebody who suspends it and resumes it, twice.
fn suspended(preemptions: usize, acts: &'static [Act]) {
    explore(preemptions, move || {
        let heap = Heap::new();
        let mutator = {
            let heap = heap.clone();
            thread::spawn(move || heap.live(0, acts))
        };
        heap.await_threads(1);
        // SAFETY: no preconditions. loom's threads are one of the kernel's, and there is one record.
        let whom = unsafe { libc::pthread_self() } as usize;
        for _ in 0..2 {
            if suspend::suspend(whom) {
                // SAFETY: the thread stands still, or is in a blocking region.
                heap.cells[0].with_mut(|cell| unsafe { *cell += 0 });
                assert!(suspend::resume(whom));
                suspend::wake_others();
            }
        }
        heap.over.bump_and_wake_all();
        mutator.join().unwrap();
        let runs = 1 + acts.len() + acts.iter().filter(|act| act.runs()).count();
        assert_eq!(heap.collect() as usize, runs, "the mutator did not go on");
    });
}

#[test]
fn a_thread_that_runs_is_suspended() {
    suspended(2, &[Act::Run]);
}

#[test]
fn a_thread_that_blocks_is_suspended() {
    suspended(2, &[Act::Block]);
}

#[test]
fn a_thread_in_a_call_is_suspended() {
    suspended(2, &[Act::Call]);
}

#[test]
fn a_thread_in_a_handler_is_suspended() {
    suspended(1, &[Act::CallAndHandle]);
}

#[test]
fn a_thread_that_masked_the_signal_in_a_call_is_suspended() {
    suspended(2, &[Act::CallWhileMasked]);
}

#[test]
fn a_thread_that_defers_is_suspended() {
    suspended(2, &[Act::Defer]);
}

#[test]
fn a_thread_that_runs_is_looked_at() {
    looked_at(2, &[Act::Run]);
}

#[test]
fn a_thread_that_is_not_waited_for_is_looked_at_or_not() {
    looked_at_for(2, 0, &[Act::Run]);
}

#[test]
fn a_sleeper_that_is_not_known_to_sleep_is_looked_at() {
    looked_at(1, &[Act::Sleep]);
}

#[test]
fn a_thread_that_blocks_is_looked_at() {
    looked_at(2, &[Act::Block]);
}

#[test]
fn a_thread_in_a_call_is_looked_at() {
    looked_at(2, &[Act::Call]);
}

#[test]
fn a_thread_in_a_handler_is_looked_at() {
    looked_at(1, &[Act::CallAndHandle]);
}

#[test]
fn a_thread_that_masked_the_signal_in_a_call_is_looked_at() {
    looked_at(1, &[Act::CallWhileMasked]);
}

#[test]
fn a_thread_that_defers_is_looked_at() {
    looked_at(2, &[Act::Defer]);
}

#[test]
fn a_thread_that_starts_runs_and_exits() {
    world(4, 1, &[&[]]);
}

#[test]
fn a_thread_is_stopped_twice() {
    world(3, 2, &[&[Act::Run]]);
}

#[test]
fn two_threads_start_run_and_exit() {
    world(2, 1, &[&[], &[]]);
}

#[test]
fn two_threads_are_stopped() {
    world_after(2, 2, 1, &[&[], &[]]);
}

#[test]
fn two_threads_are_stopped_twice() {
    world_after(2, 2, 2, &[&[], &[]]);
}

#[test]
fn two_sleepers_are_stopped_twice() {
    world_after(2, 1, 2, &[&[Act::Sleep], &[Act::Sleep]]);
}

#[test]
fn three_sleepers_are_stopped() {
    world_after(3, 1, 1, &[&[Act::Sleep], &[Act::Sleep], &[Act::Sleep]]);
}

#[test]
fn a_thread_blocks() {
    world(4, 1, &[&[Act::Block]]);
}

#[test]
fn a_thread_blocks_during_two_stops() {
    world(3, 2, &[&[Act::Block]]);
}

#[test]
fn a_blocked_thread_is_active_in_between() {
    world(3, 1, &[&[Act::BlockAndBeActive]]);
}

#[test]
fn a_thread_sleeps_in_a_call() {
    world(4, 1, &[&[Act::Call]]);
}

#[test]
fn a_thread_sleeps_in_a_call_during_two_stops() {
    world(3, 2, &[&[Act::Call]]);
}

#[test]
fn a_handler_interrupts_a_call() {
    world(3, 1, &[&[Act::CallAndHandle]]);
}

#[test]
fn a_handler_interrupts_a_call_during_two_stops() {
    world(2, 2, &[&[Act::CallAndHandle]]);
}

#[test]
fn a_handler_jumps_out_of_a_call() {
    world(3, 1, &[&[Act::CallAndJump]]);
}

#[test]
fn a_handler_interrupts_the_end_of_a_call() {
    world(3, 1, &[&[Act::HandleAtTheEnd]]);
}

#[test]
fn a_thread_that_masked_the_signal_ends_a_call() {
    world(3, 1, &[&[Act::ShortCallWhileMasked]]);
}

#[test]
fn a_thread_that_masked_the_signal_sleeps_in_a_call() {
    looking(|| world(2, 1, &[&[Act::CallWhileMasked]]));
}

#[test]
fn a_thread_defers() {
    world(4, 1, &[&[Act::Defer]]);
}

/// A thread in a slow path; a handler of the client comes at any moment, the cycle too.
fn a_thread_defers_and_handles() {
    explore(2, || {
        let heap = Heap::new();
        let mutator = {
            let heap = heap.clone();
            thread::spawn(move || {
                assert!(REGISTRY.register_current(1).is_ok_and(|new| new));
                let target = signals::handle_clients(|| interposed::handler(signals::look));
                let sender = thread::spawn(move || signals::send_clients(&target));
                heap.registered.bump_and_wake_all();
                heap.act(0, Act::Defer);
                sender.join().unwrap();
                heap.run(0);
                assert!(REGISTRY.unregister_current(0));
            })
        };
        heap.await_threads(1);
        heap.collect();
        mutator.join().unwrap();
        assert_eq!(heap.collect(), 2, "the mutator did not go on");
    });
}

#[test]
fn a_handler_interrupts_the_end_of_a_slow_path() {
    a_thread_defers_and_handles();
}

#[test]
fn a_thread_defers_during_two_stops() {
    world(3, 2, &[&[Act::Defer]]);
}

#[test]
fn a_thread_takes_the_lock_of_the_registry() {
    world(3, 1, &[&[Act::LookAtTheList]]);
}

#[test]
fn one_thread_blocks_and_one_defers() {
    world(2, 1, &[&[Act::Block], &[Act::Defer]]);
}

/// A thread that was created by another one: it has a record before it runs.
#[test]
fn a_thread_begins_with_a_record_that_was_prepared() {
    explore(3, || {
        let heap = Heap::new();
        let record = REGISTRY.prepare(1, 2, false).expect("memory");
        let thread = {
            let heap = heap.clone();
            thread::spawn(move || {
                assert_eq!(REGISTRY.begin_current(record, 1), (1, 2));
                heap.run(0);
                assert!(REGISTRY.unregister_current(3));
            })
        };
        heap.collect();
        thread.join().unwrap();
        assert_eq!(record.roots(), [0, 3]);
        assert_eq!(heap.collect(), 1);
    });
}

/// Two mutators that both collect: each stops the other, or waits for it with the stop signal open.
fn two_collectors(preemptions: usize) {
    explore(preemptions, || {
        let heap = Heap::new();
        let threads: Vec<_> = (0..2)
            .map(|me| {
                let heap = heap.clone();
                thread::spawn(move || {
                    heap.register();
                    heap.run(me);
                    heap.collect();
                    heap.run(me);
                    assert!(REGISTRY.unregister_current(0));
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(heap.collect(), 4, "a mutator did not go on");
    });
}

#[test]
fn two_collectors_stop_one_another() {
    two_collectors(2);
}

/// A collector that is itself stopped between its resume and its wake, while one whom it stopped still sleeps.
fn a_collector_stopped_before_it_wakes() {
    explore(2, || {
        let heap = Heap::new();
        let sleeper = {
            let heap = heap.clone();
            thread::spawn(move || heap.live(0, &[]))
        };
        let collector = {
            let heap = heap.clone();
            thread::spawn(move || {
                heap.register();
                let guard = REGISTRY.lock();
                guard.stop_world();
                heap.mark();
                guard.resume_world();
                drop(guard);
                stop::wake_resumed(1);
                heap.run(1);
                assert!(REGISTRY.unregister_current(0));
            })
        };
        heap.await_threads(2);
        heap.collect();
        for thread in [sleeper, collector] {
            thread.join().unwrap();
        }
        assert_eq!(heap.collect(), 2, "a mutator did not go on");
    });
}

#[test]
fn a_collector_may_be_stopped_before_it_wakes() {
    a_collector_stopped_before_it_wakes();
}

/// Declares models that must fail in this way without one step of the protocol.
macro_rules! mutants {
    ($($test:ident: $step:literal, $expected:literal, $model:expr;)*) => { $(
        #[test]
        #[should_panic(expected = $expected)]
        fn $test() {
            step::without($step, || $model);
        }
    )* };
}

mutants! {
    a_blocked_thread_without_a_fence_runs_in_a_stop:
        "stop.blocked: the thread's fence", "Causality violation", world(3, 1, &[&[Act::Block]]);
    a_collector_without_a_fence_misses_a_blocked_thread:
        "stop.blocked: the collector's fence", "Causality violation", world(3, 1, &[&[Act::Block]]);
    a_blocked_thread_that_does_not_wait_runs_in_a_stop:
        "blocking: wait for the end of the stop", "Causality violation", world(3, 1, &[&[Act::Block]]);
    a_state_stored_relaxed_hides_what_came_before:
        "stop.blocked: Release", "Causality violation", world(3, 1, &[&[Act::Block]]);
    a_call_whose_end_has_no_light_half_lets_the_thread_run_in_a_stop:
        "stop.blocked: the thread's fence", "Causality violation", world(3, 1, &[&[Act::Call]]);
    a_stop_without_the_heavy_half_misses_a_call_that_ends:
        "stop.blocked: the collector's fence", "Causality violation", world(3, 1, &[&[Act::Call]]);
    a_call_whose_end_does_not_wait_lets_the_thread_run_in_a_stop:
        "interposed: wait at the end of a call", "Causality violation", world(3, 1, &[&[Act::Call]]);
    a_handler_that_does_not_wait_runs_in_a_stop:
        "interposed: wait before a handler", "Causality violation", world(3, 1, &[&[Act::CallAndHandle]]);
    a_masked_signal_at_the_end_of_a_call_is_waited_for:
        "blocking: open the stop signal", "deadlock", world(3, 1, &[&[Act::ShortCallWhileMasked]]);
    a_thread_that_sleeps_with_the_signal_masked_is_waited_for:
        "stop: answer for the blocked", "deadlock", world(2, 1, &[&[Act::CallWhileMasked]]);
    a_handler_at_the_end_of_a_call_that_does_not_wait_runs_in_a_stop:
        "interposed: wait before a handler", "Causality violation", world(3, 1, &[&[Act::HandleAtTheEnd]]);
    an_answer_without_release_hides_what_came_before:
        "stop.ack: Release", "Causality violation", world(3, 1, &[&[]]);
    an_answer_read_relaxed_hides_what_came_before:
        "stop.ack: Acquire", "Causality violation", world(3, 1, &[&[]]);
    a_resume_without_release_hides_the_cycle:
        "event.happen: Release", "Causality violation", world(3, 1, &[&[]]);
    a_last_answer_without_a_fence_is_waited_for:
        "stop.last: the thread's fence", "deadlock", world(3, 1, &[&[]]);
    a_collector_without_a_fence_misses_the_last_answer:
        "stop.last: the collector's fence", "deadlock", world(3, 1, &[&[]]);
    a_note_that_nobody_reads_is_waited_for:
        "defer: park at the end", "deadlock", world(3, 1, &[&[Act::Defer]]);
    a_handler_between_a_note_and_its_answer_waits_for_a_stop_that_waits_for_it:
        "defer: mask before the note is taken", "deadlock", a_thread_defers_and_handles();
    a_thread_that_parks_in_a_slow_path_keeps_a_lock:
        "stop: leave a note in a slow path", "deadlock", world(3, 1, &[&[Act::Defer]]);
    a_thread_that_defers_while_it_waits_is_waited_for:
        "defer: not while waiting", "deadlock", world(3, 1, &[&[Act::LookAtTheList]]);
    a_resume_that_wakes_nobody_leaves_all_asleep:
        "stop: wake the first", "deadlock", world(3, 1, &[&[]]);
    a_wake_that_is_not_passed_on_leaves_one_asleep:
        "stop: pass the wake on", "deadlock", world_after(2, 2, 1, &[&[], &[]]);
    a_wake_that_is_not_passed_on_leaves_two_of_three_asleep:
        "stop: pass the wake on", "deadlock", world_after(3, 1, 1, &[&[Act::Sleep], &[Act::Sleep], &[Act::Sleep]]);
    a_parked_thread_that_leaves_without_an_exchange_runs_in_a_stop:
        "stop.parked: leave by an exchange", "Causality violation", world(3, 2, &[&[]]);
    a_claim_read_relaxed_lets_a_thread_run_in_a_stop:
        "stop.parked: Acquire", "Causality violation", world(3, 2, &[&[]]);
    a_looker_without_the_heavy_half_looks_at_a_thread_whose_region_ends:
        "look.held: the looker's fence", "Causality violation", looked_at(2, &[Act::Block]);
    a_thread_without_the_light_half_runs_while_it_is_looked_at:
        "stop.blocked: the thread's fence", "Causality violation", looked_at(2, &[Act::Block]);
    a_thread_that_does_not_wait_for_a_look_runs_in_it:
        "blocking: wait for the end of the stop", "Causality violation", looked_at(2, &[Act::Block]);
    a_suspender_without_the_heavy_half_misses_a_thread_whose_region_ends:
        "suspend.blocked: the suspender's fence", "Causality violation", suspended(2, &[Act::ShortCallWhileMasked]);
    a_thread_without_the_light_half_runs_though_it_is_suspended:
        "stop.blocked: the thread's fence", "Causality violation", suspended(2, &[Act::ShortCallWhileMasked]);
    an_answer_to_a_looker_without_release_hides_what_came_before:
        "look.asleep: Release", "Causality violation", looked_at(2, &[Act::Run]);
    an_answer_to_a_looker_read_relaxed_hides_what_came_before:
        "look.asleep: Acquire", "Causality violation", looked_at(2, &[Act::Run]);
    a_look_that_ends_without_release_is_not_over:
        "look.over: Release", "Causality violation", looked_at(2, &[Act::Block]);
    a_look_whose_end_is_read_relaxed_is_not_over:
        "look.over: Acquire", "Causality violation", looked_at(2, &[Act::Block]);
}

/// Shows that the models see a thread that the registry does not know.
#[test]
#[should_panic(expected = "Causality violation")]
fn a_thread_that_runs_before_it_registers_is_noticed() {
    explore(2, || {
        let heap = Heap::new();
        let thread = {
            let heap = heap.clone();
            thread::spawn(move || {
                heap.run(0);
                heap.live(0, &[]);
            })
        };
        heap.collect();
        thread.join().unwrap();
    });
}

/// As above, at the other end of its life.
#[test]
#[should_panic(expected = "Causality violation")]
fn a_thread_that_runs_after_it_unregistered_is_noticed() {
    explore(2, || {
        let heap = Heap::new();
        let thread = {
            let heap = heap.clone();
            thread::spawn(move || {
                heap.live(0, &[]);
                heap.run(0);
            })
        };
        heap.collect();
        thread.join().unwrap();
    });
}
