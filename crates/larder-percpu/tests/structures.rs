//! The structures, in every mode of the machine: what goes in comes out, once; memory grows with what runs at once.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;

use larder_percpu::structures::{BoundedStack, BumpRegion, Counter, FreeList, Full, Link, Region, Shared};
use larder_percpu::{By, Level, Mode, OpenPair, Options};

fn ways() -> [Options; 3] {
    [Options::new(By::ConcurrencyId), Options::new(By::Cpu), Options { sequences: false, ..Options::new(By::Cpu) }]
}

fn crowd(n: usize, body: impl Fn(usize) + Sync) {
    thread::scope(|scope| {
        for i in 0..n {
            let body = &body;
            scope.spawn(move || body(i));
        }
    });
}

#[test]
fn a_counter_counts_everything_once() {
    for options in ways() {
        let counter = Counter::with(options);
        let taken = AtomicU64::new(0);
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    taken.fetch_add(counter.take_all().unwrap(), Ordering::Relaxed);
                }
            });
            crowd(8, |_| (0..20_000).for_each(|_| counter.add(3)));
            over.store(true, Ordering::Relaxed);
        });
        assert_eq!(taken.load(Ordering::Relaxed) + counter.sum(), 8 * 20_000 * 3, "{options:?}");
    }
}

#[repr(C)]
struct Node {
    link: Link,
    holders: AtomicUsize,
}

#[test]
fn a_free_list_gives_each_node_to_one() {
    for options in ways() {
        let list = FreeList::with(options);
        let nodes: Vec<Node> = (0..256).map(|_| Node { link: Link::new(), holders: AtomicUsize::new(0) }).collect();
        let all: Vec<NonNull<Link>> = nodes.iter().map(|n| NonNull::from(&n.link)).collect();
        // A chain: each node is pushed onto the one before.
        for node in &all {
            // SAFETY: here and below: nodes outlive the list, begin with their link, and are pushed by their only holder.
            unsafe { list.push(*node) };
        }
        let of = |link: NonNull<Link>| nodes.iter().find(|n| NonNull::from(&n.link) == link).unwrap();
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    // Another thread takes an index's list, and gives it back to its own.
                    for index in 0..list.domain().areas() {
                        for node in list.take(index).unwrap() {
                            assert_eq!(of(node).holders.fetch_add(1, Ordering::AcqRel), 0);
                            of(node).holders.fetch_sub(1, Ordering::AcqRel);
                            // SAFETY: as above.
                            unsafe { list.push(node) };
                        }
                    }
                }
            });
            crowd(12, |i| {
                for round in 0..3000 {
                    let mut held: Vec<_> = (0..i % 4 + 1).filter_map(|_| list.pop()).collect();
                    for node in &held {
                        assert_eq!(of(*node).holders.fetch_add(1, Ordering::AcqRel), 0);
                    }
                    if round % 64 == 0 {
                        thread::yield_now();
                    }
                    while let Some(node) = held.pop() {
                        of(node).holders.fetch_sub(1, Ordering::AcqRel);
                        // SAFETY: as above.
                        unsafe { list.push(node) };
                    }
                }
            });
            over.store(true, Ordering::Relaxed);
        });
        let mut found = vec![];
        assert_eq!(list.take_all(|node| found.push(node)).unwrap(), nodes.len());
        found.sort_unstable();
        let mut all = all.clone();
        all.sort_unstable();
        assert_eq!(found, all, "{options:?}");
        assert!(list.pop().is_none());
    }
}

#[test]
fn a_chain_goes_in_and_all_of_it_comes_out() {
    for options in ways() {
        let list = FreeList::with(options);
        let nodes: Vec<Link> = (0..5).map(|_| Link::new()).collect();
        // Build a chain in a list of its own.
        let builder = FreeList::with(Options { sequences: false, indices: 1, ..Options::new(By::Cpu) });
        for node in &nodes {
            // SAFETY: the nodes outlive both lists.
            unsafe { builder.push(NonNull::from(node)) };
        }
        let chain: Vec<_> = builder.pop_all().collect();
        assert_eq!(chain.len(), 5);
        for node in chain.iter().rev() {
            // SAFETY: as above.
            unsafe { builder.push(*node) };
        }
        let order: Vec<_> = builder.take(0).unwrap().collect();
        // SAFETY: the five nodes are linked in this order, and in no list any more.
        unsafe { list.push_chain(order[0], order[4]) };
        let mut found = vec![];
        list.take_all(|node| found.push(node)).unwrap();
        assert_eq!(found, order);
    }
}

#[test]
fn a_stack_holds_so_many_and_gives_each_to_one() {
    for options in ways() {
        let stack: BoundedStack<u64, 16> = BoundedStack::with(options);
        // What is pointed to is never touched, so any address will do.
        let pointer = |n: usize| NonNull::new(std::ptr::without_provenance_mut::<u64>(n * 8)).unwrap();
        let next = AtomicUsize::new(1);
        let (put, got) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let seen: Vec<AtomicUsize> = (0..400_000).map(|_| AtomicUsize::new(0)).collect();
        let note = |p: NonNull<u64>| {
            got.fetch_add(1, Ordering::Relaxed);
            assert_eq!(seen[p.as_ptr().addr() / 8].fetch_add(1, Ordering::Relaxed), 0);
        };
        crowd(10, |i| {
            for _ in 0..2000 {
                if i % 2 == 0 {
                    let p = pointer(next.fetch_add(1, Ordering::Relaxed));
                    match stack.push(p) {
                        Ok(()) => _ = put.fetch_add(1, Ordering::Relaxed),
                        Err(Full) => {
                            if let Some(p) = stack.pop() {
                                note(p);
                            }
                        }
                    }
                } else {
                    let n = next.fetch_add(5, Ordering::Relaxed);
                    let batch: Vec<_> = (n..n + 5).map(pointer).collect();
                    put.fetch_add(stack.push_many(&batch), Ordering::Relaxed);
                    let mut into = [None; 7];
                    let taken = stack.pop_many(&mut into);
                    into[..taken].iter().for_each(|p| note(p.unwrap()));
                    assert!(into[taken..].iter().all(Option::is_none));
                }
            }
        });
        stack.take_all(note).unwrap();
        assert_eq!(put.load(Ordering::Relaxed), got.load(Ordering::Relaxed), "{options:?}");
        assert!(stack.pop().is_none());
    }
}

#[test]
fn a_region_hands_out_every_piece_once() {
    const PIECE: usize = 32;
    const PIECES: usize = 50;
    const THREADS: usize = 8;
    const ROUNDS: usize = 2000;
    // Each round may find its region retired, and ask for a fresh one.
    const REGIONS: usize = THREADS * ROUNDS;
    for options in ways() {
        let region = BumpRegion::with(options);
        let memory: Vec<AtomicU64> = (0..PIECE / 8 * PIECES * REGIONS).map(|_| AtomicU64::new(0)).collect();
        let base = memory.as_ptr().expose_provenance();
        let next = AtomicUsize::new(0);
        let handed: Vec<AtomicUsize> = (0..PIECES * REGIONS).map(|_| AtomicUsize::new(0)).collect();
        let note = |from: usize, to: usize| {
            for at in (from..to).step_by(PIECE) {
                assert_eq!(handed[(at - base) / PIECE].fetch_add(1, Ordering::Relaxed), 0);
            }
        };
        let fresh = || {
            let n = next.fetch_add(1, Ordering::Relaxed);
            assert!(n < REGIONS);
            let frontier = base + n * PIECE * PIECES;
            Region { frontier, limit: frontier + PIECE * PIECES }
        };
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    for index in 0..region.domain().areas() {
                        // SAFETY: the regions lie in `memory`.
                        let rest = unsafe { region.retire_with_headers(index) }.unwrap();
                        note(rest.frontier, rest.limit);
                        for at in (rest.frontier..rest.limit).step_by(8) {
                            assert_eq!(memory[(at - base) / 8].load(Ordering::Relaxed), 0, "what is left is zero");
                        }
                    }
                    thread::yield_now();
                }
            });
            crowd(THREADS, |i| {
                for _ in 0..ROUNDS {
                    // SAFETY: the regions lie in `memory`, which is writable through its atomics.
                    match unsafe { region.take_with_header(PIECE, i as u64 + 1) } {
                        Some(at) => {
                            assert_eq!(memory[(at - base) / 8].load(Ordering::Relaxed), i as u64 + 1);
                            note(at, at + PIECE);
                        }
                        None => match region.install(fresh(), PIECE) {
                            Ok(rest) => note(rest.frontier, rest.limit),
                            Err(kept) => note(kept.frontier, kept.limit),
                        },
                    }
                }
            });
            over.store(true, Ordering::Relaxed);
        });
        for index in 0..region.domain().areas() {
            let rest = region.retire(index).unwrap();
            note(rest.frontier, rest.limit);
        }
        let used = next.load(Ordering::Relaxed) * PIECES;
        assert!(handed[..used].iter().all(|n| n.load(Ordering::Relaxed) == 1), "{options:?}");
    }
}

/// The sum of a frontier and a huge size would wrap around and lie below the limit.
#[test]
fn a_size_beyond_all_memory_is_refused() {
    let memory = [const { AtomicU64::new(0) }; 4];
    let frontier = memory.as_ptr().expose_provenance();
    for options in ways() {
        let (region, shared): (BumpRegion, Shared<OpenPair>) =
            (BumpRegion::with(options), Shared::with(Level::Package, options.sequences));
        for bytes in [usize::MAX, usize::MAX - 15, isize::MAX as usize + 1, isize::MAX as usize, 33] {
            // Wherever the thread is when it takes, there is something.
            for index in 0..region.domain().areas() {
                let filled = [frontier as u64, frontier as u64 + 32];
                region.domain().take_over(index, |pair| pair.store(&**pair, filled)).unwrap();
            }
            for index in 0..shared.areas() {
                let filled = [frontier as u64, frontier as u64 + 32];
                shared.take_over(index, |pair| pair.store(&**pair, filled)).unwrap();
            }
            // SAFETY: the regions are `memory`.
            assert_eq!(unsafe { (region.take(bytes), region.take_with_header(bytes, 7)) }, (None, None));
            assert_eq!(shared.bump(|pair| pair, bytes), None);
            for index in 0..region.domain().areas() {
                assert_eq!(region.retire(index).unwrap().bytes(), 32, "{bytes} bytes, {options:?}");
            }
        }
        assert!(memory.iter().all(|word| word.load(Ordering::Relaxed) == 0));
    }
}

#[test]
fn levels_are_shared_and_lose_nothing() {
    for (level, sequences) in
        [(Level::Core, true), (Level::Package, true), (Level::Node, true), (Level::Package, false)]
    {
        let shared: Shared<OpenPair> = Shared::with(level, sequences);
        let counts: Shared<larder_percpu::Open64> = Shared::with(level, sequences);
        let (next, got) = (AtomicU64::new(1), AtomicUsize::new(0));
        let seen: Vec<AtomicUsize> = (0..300_000).map(|_| AtomicUsize::new(0)).collect();
        let note = |from: u64, to: u64| {
            for n in from..to {
                got.fetch_add(1, Ordering::Relaxed);
                assert_eq!(seen[n as usize].fetch_add(1, Ordering::Relaxed), 0, "{n}");
            }
        };
        crowd(8, |_| {
            for _ in 0..3000 {
                counts.add(|word| word, 1);
                match shared.bump(|pair| pair, 1) {
                    Some(n) => note(n as u64, n as u64 + 1),
                    None => {
                        let n = next.fetch_add(10, Ordering::Relaxed);
                        // Whatever area it comes to, the pair that was there is this thread's now, if it agreed.
                        let seen = shared.current().unwrap_or(shared.area(0)).load();
                        if seen[0] >= seen[1] && shared.compare_store_pair(|pair| pair, seen, [n, n + 10]) {
                            note(seen[0], seen[1]);
                        } else {
                            note(n, n + 10);
                        }
                    }
                }
            }
        });
        for index in 0..shared.areas() {
            shared.take_over(index, |pair| note(pair.load()[0], pair.load()[1])).unwrap();
        }
        assert_eq!(counts.iter().map(|word| word.load()).sum::<u64>(), 24_000, "{level:?}");
        let used = next.load(Ordering::Relaxed) - 1;
        assert_eq!(got.load(Ordering::Relaxed) as u64, used, "{level:?}, {:?}", shared.mode());
    }
}

/// Bytes of the areas that have memory behind them.
fn resident(counter: &Counter) -> usize {
    let core = counter.domain().core();
    let start = core.content(0).addr() & !4095;
    let length = core.content(counter.domain().areas() - 1).addr() + 64 - start;
    let mut pages = vec![0u8; length.div_ceil(4096)];
    // SAFETY: the range is mapped by the domain; the vector has a byte for each page.
    let r = unsafe { libc::mincore(std::ptr::with_exposed_provenance_mut(start), length, pages.as_mut_ptr()) };
    assert_eq!(r, 0);
    pages.iter().filter(|p| **p & 1 != 0).count() * 4096
}

/// As on a machine with 4096 possible CPUs: what one thread, or a thousand, touch is what runs at once.
#[test]
fn memory_grows_with_what_runs_at_once() {
    // A huge page would give memory to what nobody touched, where the kernel makes one of this and of neighbouring mappings.
    // SAFETY: of this process alone.
    unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) };
    let cpus = larder_sys::cpus::allowed();
    for threads in [1, 1000] {
        let counter = Counter::with(Options { indices: 4096, ..Options::new(By::ConcurrencyId) });
        if counter.domain().mode() != Mode::ConcurrencyIds {
            return eprintln!("no concurrency ids here: areas belong to CPUs");
        }
        crowd(threads, |_| (0..100).for_each(|_| counter.add(1)));
        assert_eq!(counter.sum(), threads as u64 * 100);
        let used = counter.domain().iter().filter(|word| word.load() != 0).count();
        // The harness runs other tests meanwhile, whose threads have ids of their own.
        assert!(used <= cpus.max(1) + 2, "{threads} threads used {used} areas on {cpus} CPUs");
        // Reading maps the zero page, which `mincore` counts as well; so a counter that was not summed up is looked at.
        let unread = Counter::with(Options { indices: 4096, ..Options::new(By::ConcurrencyId) });
        crowd(threads, |_| (0..100).for_each(|_| unread.add(1)));
        let bytes = resident(&unread);
        eprintln!("{threads} threads: {used} areas, {bytes} bytes of {}", 4096 * 128);
        assert!(bytes <= 2 * 4096 + cpus * 128, "{threads} threads made {bytes} bytes resident");
    }
}
