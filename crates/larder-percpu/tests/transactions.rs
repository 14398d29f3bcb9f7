//! What transactions promise: exact interference, chains, reopening, take-over, counts. In every mode of the machine.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::Duration;

use larder_percpu::{
    Area, By, Domain, Guarded32, Guarded64, GuardedPair, Interfered, Mode, NotStored, Open64, OpenPair, Options,
};

#[repr(C)]
struct Words {
    small: Guarded32,
    first: Guarded64,
    second: Guarded64,
    pair: GuardedPair,
    open: Open64,
    open_pair: OpenPair,
}

// SAFETY: words; zero is a beginning.
unsafe impl Area for Words {}

/// Each way of working that this machine has, and locks.
fn every_way<T: Area>(test: impl Fn(&Domain<T>)) {
    for (by, sequences) in [(By::ConcurrencyId, true), (By::Cpu, true), (By::Cpu, false)] {
        let domain = Domain::with(Options { sequences, ..Options::new(by) });
        domain.set_up().unwrap();
        if !sequences {
            assert!(matches!(domain.mode(), Mode::Locks(_)));
        }
        test(&domain);
    }
}

/// Runs `f` on one CPU, so that the index does not change by a move.
fn pinned<R: Send>(cpu: usize, f: impl FnOnce() -> R + Send) -> R {
    thread::scope(|scope| {
        scope
            .spawn(move || {
                assert!(pin(cpu));
                f()
            })
            .join()
            .unwrap()
    })
}

fn pin(cpu: usize) -> bool {
    // SAFETY: the set is plain data.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &set) == 0
    }
}

/// The first CPU that this process may use.
fn some_cpu() -> usize {
    // SAFETY: the set is plain data.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        assert_eq!(libc::sched_getaffinity(0, size_of_val(&set), &mut set), 0);
        (0..libc::CPU_SETSIZE as usize).find(|&cpu| libc::CPU_ISSET(cpu, &set)).unwrap()
    }
}

/// As `every_way`, on a domain by CPU or by locks, with the thread on one CPU: whatever fails, fails by interference.
fn every_way_on_one_cpu<T: Area>(test: impl Fn(&Domain<T>) + Send + Sync) {
    let cpu = some_cpu();
    for sequences in [true, false] {
        let domain = Domain::with(Options { sequences, ..Options::new(By::Cpu) });
        domain.set_up().unwrap();
        pinned(cpu, || test(&domain));
    }
}

#[test]
fn a_chain_of_commits_stays_open() {
    every_way_on_one_cpu(|d: &Domain<Words>| {
        let t = d.begin();
        assert!(t.valid());
        t.store(&t.small, 5).unwrap();
        t.store(&t.first, 6).unwrap();
        t.compare_store(&t.second, 0, 7).unwrap();
        t.store(&t.pair, [8, 9]).unwrap();
        t.compare_store(&t.pair, [8, 9], [10, 11]).unwrap();
        t.compare_store(&t.open, 0, 12).unwrap();
        t.compare_store(&t.open_pair, [0, 0], [13, 14]).unwrap();
        assert_eq!((t.small.load(), t.first.load(), t.second.load()), (5, 6, 7));
        assert_eq!((t.pair.load(), t.open.load(), t.open_pair.load()), ([10, 11], 12, [13, 14]));
        t.end();
        let s = d.statistics();
        assert_eq!((s.begun, s.succeeded, s.failed), (1, 1, 0));
    });
}

#[test]
fn a_mismatch_is_not_interference() {
    every_way_on_one_cpu(|d: &Domain<Words>| {
        let t = d.begin();
        assert_eq!(t.compare_store(&t.small, 1, 2), Err(NotStored::Mismatch));
        assert_eq!(t.compare_store(&t.first, 1, 2), Err(NotStored::Mismatch));
        assert_eq!(t.compare_store(&t.pair, [0, 1], [2, 2]), Err(NotStored::Mismatch));
        assert_eq!(t.compare_store(&t.pair, [1, 0], [2, 2]), Err(NotStored::Mismatch));
        assert!(t.valid());
        t.compare_store(&t.first, 0, 2).unwrap();
        // A second one begins on the same index.
        d.begin().end();
        assert!(!t.valid());
        assert_eq!(t.compare_store(&t.second, 0, 2), Err(NotStored::Interfered));
        assert_eq!(t.compare_store(&t.second, 1, 2), Err(NotStored::Interfered));
        assert_eq!(t.store(&t.second, 2), Err(Interfered));
        assert_eq!(t.second.load(), 0);
        t.end();
        let s = d.statistics();
        assert_eq!((s.begun, s.succeeded, s.failed, s.abandoned), (2, 1, 1, 0));
    });
}

#[test]
fn an_inner_transaction_on_another_domain_does_not_interfere() {
    every_way_on_one_cpu(|d: &Domain<Words>| {
        let other: Domain<Words> = Domain::with(Options { sequences: false, ..Options::new(By::Cpu) });
        let same_sort: Domain<Words> = Domain::new(By::Cpu);
        let t = d.begin();
        for inner in [&other, &same_sort] {
            let u = inner.begin();
            u.store(&u.first, 3).unwrap();
            u.end();
        }
        t.store(&t.first, 4).unwrap();
        t.end();
    });
}

#[test]
fn reopening_says_whether_the_place_is_the_same() {
    every_way_on_one_cpu(|d: &Domain<Words>| {
        let mut t = d.begin();
        d.begin().end();
        assert!(t.store(&t.first, 1).is_err());
        assert!(t.reopen());
        t.store(&t.first, 1).unwrap();
        t.end();
        let mut t = d.begin();
        d.begin().end();
        assert!(t.store(&t.first, 2).is_err());
        assert!(t.reopen());
        t.invalidate();
        drop(d.begin());
        let s = d.statistics();
        // Begun: first, inner, reopened; second, inner, reopened; dropped.
        assert_eq!((s.begun, s.failed, s.reopened, s.invalid, s.abandoned), (7, 2, 2, 1, 2));
        assert_eq!(s.succeeded, 3);
    });
}

#[test]
fn sleeping_in_a_system_call_is_harmless_without_interference() {
    every_way_on_one_cpu(|d: &Domain<Words>| {
        let t = d.begin();
        thread::sleep(Duration::from_millis(2));
        t.store(&t.first, 1).unwrap();
        t.end();
    });
}

#[test]
fn a_transaction_that_slept_while_another_ran_fails() {
    every_way_on_one_cpu(|d: &Domain<Words>| {
        let cpu = some_cpu();
        let t = d.begin();
        t.store(&t.first, 1).unwrap();
        // The other thread runs on the same CPU, so this one sleeps meanwhile.
        thread::scope(|scope| {
            scope.spawn(move || {
                assert!(pin(cpu));
                let u = d.begin();
                u.store(&u.first, u.first.load() + 1).unwrap();
                u.end();
            });
        });
        assert_eq!(t.store(&t.first, 5), Err(Interfered));
        assert_eq!(t.first.load(), 2);
    });
}

#[test]
fn a_thread_that_moved_and_came_back_goes_on() {
    let d: Domain<Words> = Domain::new(By::Cpu);
    d.set_up().unwrap();
    if d.mode() != Mode::Cpus {
        return eprintln!("no sequences here: nothing moves");
    }
    let cpus: Vec<usize> = (0..64).filter(|&cpu| pinned(some_cpu(), || pin(cpu))).collect();
    let [a, b, ..] = cpus[..] else { return eprintln!("one CPU: nothing moves") };
    pinned(a, || {
        let t = d.begin();
        assert!(pin(b));
        // Elsewhere it does not hold.
        assert!(!t.valid());
        assert!(pin(a));
        assert!(t.valid());
        t.store(&t.first, 1).unwrap();
        // While it was away, somebody began where it had been.
        assert!(pin(b));
        thread::scope(|scope| {
            scope.spawn(|| {
                assert!(pin(a));
                d.begin().end();
            });
        });
        assert!(pin(a));
        assert_eq!(t.store(&t.first, 2), Err(Interfered));
        // A commit on the wrong CPU fails, though nobody interfered.
        let t = d.begin();
        assert!(pin(b));
        assert_eq!(t.store(&t.first, 3), Err(Interfered));
    });
}

#[test]
fn a_handler_with_a_transaction_of_its_own_fails_the_outer_one() {
    static DOMAIN: AtomicUsize = AtomicUsize::new(0);
    static RAN: AtomicU32 = AtomicU32::new(0);
    extern "C" fn on_signal(_: i32) {
        // SAFETY: set below, and alive while signals are raised.
        let d = unsafe { &*std::ptr::with_exposed_provenance::<Domain<Words>>(DOMAIN.load(Ordering::Relaxed)) };
        let t = d.begin();
        t.store(&t.first, t.first.load() + 10).unwrap();
        t.end();
        RAN.fetch_add(1, Ordering::Relaxed);
    }
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    every_way_on_one_cpu(|d: &Domain<Words>| {
        let _guard = ONE_AT_A_TIME.lock().unwrap();
        DOMAIN.store(std::ptr::from_ref(d).expose_provenance(), Ordering::Relaxed);
        // SAFETY: the handler only uses a domain that is set up.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_signal as *const () as usize;
            assert_eq!(libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()), 0);
        }
        let before = RAN.load(Ordering::Relaxed);
        let t = d.begin();
        t.store(&t.first, 1).unwrap();
        // SAFETY: handled.
        unsafe { libc::raise(libc::SIGUSR1) };
        assert_eq!(RAN.load(Ordering::Relaxed), before + 1);
        assert_eq!(t.store(&t.first, 2), Err(Interfered));
        assert_eq!(t.first.load(), 11);
    });
}

#[test]
fn a_transaction_that_slept_through_a_take_over_fails() {
    every_way_on_one_cpu(|d: &Domain<Words>| {
        let t = d.begin();
        t.store(&t.first, 1).unwrap();
        let index = t.index();
        thread::scope(|scope| {
            scope.spawn(move || {
                d.take_over(index, |area| {
                    assert_eq!(area.first.load(), 1);
                    area.store(&area.first, 100);
                })
                .unwrap();
            });
        });
        assert!(!t.valid());
        assert_eq!(t.store(&t.first, 2), Err(Interfered));
        assert_eq!(t.compare_store(&t.first, 100, 2), Err(NotStored::Interfered));
        assert_eq!(t.first.load(), 100);
        // Afterwards the index is open again.
        let t = d.begin();
        assert_eq!(t.index(), index);
        t.store(&t.first, 101).unwrap();
        t.end();
        assert_eq!(d.statistics().taken_over, 1);
    });
}

#[test]
fn a_closed_index_sends_everybody_elsewhere() {
    every_way_on_one_cpu(|d: &Domain<Words>| {
        let t = d.begin();
        let index = t.index();
        t.end();
        d.take_over(index, |area| {
            // The thread that took it over is not excluded from the domain, only from the area.
            let u = d.begin();
            assert_ne!(u.index(), index);
            u.store(&u.first, 3).unwrap();
            u.end();
            d.add(|a| &a.open, 4);
            assert_eq!(area.open.load(), 0);
            // And it cannot wait for itself.
            assert_eq!(d.take_over(index, |_| ()), Err(larder_percpu::Busy));
        })
        .unwrap();
        assert_eq!(d.iter().map(|a| a.first.load()).sum::<u64>(), 3);
        assert_eq!(d.iter().map(|a| a.open.load()).sum::<u64>(), 4);
    });
}

#[test]
fn no_increment_is_lost_whatever_the_number_of_threads() {
    every_way(|d: &Domain<Words>| {
        for threads in [2, 64, 1000] {
            let before: u64 = d.iter().map(|a| a.first.load()).sum();
            let rounds = 64_000 / threads;
            thread::scope(|scope| {
                for _ in 0..threads {
                    scope.spawn(|| {
                        for round in 0..rounds {
                            d.run(
                                |t| {
                                    let seen = t.first.load();
                                    if round % 97 == 0 {
                                        thread::yield_now();
                                    }
                                    t.store(&t.first, seen + 1)?;
                                    // A chain: the second word follows the first or stays one behind.
                                    let _ = t.store(&t.second, seen + 1);
                                    Ok(())
                                },
                                |area| area.store(&area.first, area.first.load() + 1),
                            );
                        }
                    });
                }
            });
            let after: u64 = d.iter().map(|a| a.first.load()).sum();
            assert_eq!(after - before, (threads * rounds) as u64, "{threads} threads, {:?}", d.mode());
            for area in d.iter() {
                assert!(area.second.load() <= area.first.load());
            }
        }
        let s = d.statistics();
        assert!(s.succeeded >= 3 * 63_000, "{s}");
    });
}

#[test]
fn a_body_that_always_fails_gets_the_area_for_itself() {
    every_way(|d: &Domain<Words>| {
        let tries = AtomicU32::new(0);
        let got = d.run(
            |_| {
                tries.fetch_add(1, Ordering::Relaxed);
                Err::<u64, _>(Interfered)
            },
            |area| {
                area.store(&area.first, 9);
                area.first.load()
            },
        );
        assert_eq!((got, tries.load(Ordering::Relaxed)), (9, larder_percpu::domain::TRIES));
    });
}

#[test]
fn takers_and_transactions_share_the_work() {
    every_way(|d: &Domain<Words>| {
        let over = AtomicBool::new(false);
        let taken = AtomicUsize::new(0);
        let start = Barrier::new(7);
        thread::scope(|scope| {
            scope.spawn(|| {
                start.wait();
                // The workers may be done before this thread has a CPU.
                while !over.load(Ordering::Relaxed) || d.statistics().taken_over <= 10 {
                    for index in 0..d.areas() {
                        let n = d
                            .take_over(index, |area| {
                                let n = area.first.load();
                                area.store(&area.first, 0);
                                n
                            })
                            .unwrap();
                        taken.fetch_add(n as usize, Ordering::Relaxed);
                    }
                }
            });
            let workers: Vec<_> = (0..6)
                .map(|_| {
                    scope.spawn(|| {
                        start.wait();
                        for _ in 0..3000 {
                            d.run(
                                |t| t.store(&t.first, t.first.load() + 1),
                                |area| area.store(&area.first, area.first.load() + 1),
                            );
                        }
                    })
                })
                .collect();
            for worker in workers {
                worker.join().unwrap();
            }
            over.store(true, Ordering::Relaxed);
        });
        let left: u64 = d.iter().map(|a| a.first.load()).sum();
        assert_eq!(taken.load(Ordering::Relaxed) as u64 + left, 18_000, "{:?}", d.mode());
        assert!(d.statistics().taken_over > 10);
    });
}

#[test]
fn threads_beyond_the_indices_use_the_shard() {
    // Room for no CPU but the first: on a machine with more, threads elsewhere have no index of their own.
    let d: Domain<Words> = Domain::with(Options { indices: 1, ..Options::new(By::Cpu) });
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..2000 {
                    d.run(
                        |t| t.store(&t.first, t.first.load() + 1),
                        |area| area.store(&area.first, area.first.load() + 1),
                    );
                    d.add(|a| &a.open, 1);
                }
            });
        }
    });
    assert_eq!(d.iter().map(|a| a.first.load()).sum::<u64>(), 16_000);
    assert_eq!(d.iter().map(|a| a.open.load()).sum::<u64>(), 16_000);
}
