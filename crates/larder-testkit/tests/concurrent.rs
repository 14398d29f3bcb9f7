//! Cycles that mark beside the program. Each test says how, so `LARDER_TEST_WATCH` changes nothing here.

use core::ops::Range;
use core::ptr;
use core::sync::atomic::{AtomicBool, Ordering};

use larder_fixed::concurrent::{Births, Way};
use larder_fixed::inject::{Point, at_points};
use larder_fixed::options::Options;
use larder_fixed::{allocate, concurrent, cycle, free, init, kind, object, settings, stats};
use larder_sys::pagemap::Pagemap;
use larder_sys::watch::Kind;
use larder_testkit::beside::{offered, one_cycle};
use larder_testkit::fuzz::{Plan, run};
use larder_testkit::mutator::{check, life, object_of};
use larder_testkit::table::Words;
use larder_testkit::verifier::{self, Rules};
use larder_testkit::{Random, WITHOUT_SEQUENCES, crowd, for_each_seed, in_child};
use larder_threads::blocking::region;
use larder_trace::crew::CREW;
use larder_units::Nanos;

const UFFD: Way = Way::Watch(Kind::Uffd);

/// One process after another, each with a seed of its own.
fn fuzz(name: &str, kind: Kind, environment: &[(&str, &str)], plan: impl Fn(u64) -> Plan) {
    if !offered(kind) {
        return;
    }
    for_each_seed(name, environment, |seed| {
        run(&Plan { beside: Some(kind), until: || concurrent::completed()[0] > 2, ..plan(seed) });
        let [completed, _] = concurrent::completed();
        eprintln!("{completed} of {} cycles marked beside the program", cycle::number());
    });
}

#[test]
fn one_thread_uffd() {
    fuzz("one_thread_uffd", Kind::Uffd, &[], |seed| Plan { collect_every: Some(10), ..Plan::new(1, seed, 6000) });
}

#[test]
fn eight_threads_uffd() {
    fuzz("eight_threads_uffd", Kind::Uffd, &[], |seed| Plan { collect_every: Some(15), ..Plan::new(8, seed, 800) });
}

#[test]
fn eight_threads_without_sequences_uffd() {
    fuzz("eight_threads_without_sequences_uffd", Kind::Uffd, &[WITHOUT_SEQUENCES], |seed| Plan {
        collect_every: Some(15),
        ..Plan::new(8, seed, 800)
    });
}

/// A marker thread and a helper.
#[test]
fn four_threads_two_markers_beside_uffd() {
    fuzz("four_threads_two_markers_beside_uffd", Kind::Uffd, &[], |seed| Plan {
        collect_every: Some(15),
        markers_beside: Some(2),
        ..Plan::new(4, seed, 1500)
    });
}

#[test]
fn four_threads_four_markers_beside_uffd() {
    fuzz("four_threads_four_markers_beside_uffd", Kind::Uffd, &[], |seed| Plan {
        collect_every: Some(15),
        markers_beside: Some(4),
        ..Plan::new(4, seed, 1500)
    });
}

/// What dies while a cycle marks is kept until the next one.
#[test]
fn eight_threads_born_marked_uffd() {
    fuzz("eight_threads_born_marked_uffd", Kind::Uffd, &[], |seed| {
        concurrent::set_births(Births::Marked);
        Plan { collect_every: Some(15), ..Plan::new(8, seed, 800) }
    });
}

/// As in the thesis.
#[test]
fn eight_threads_born_unmarked_uffd() {
    fuzz("eight_threads_born_unmarked_uffd", Kind::Uffd, &[], |seed| {
        concurrent::set_births(Births::Unmarked);
        Plan { collect_every: Some(15), ..Plan::new(8, seed, 800) }
    });
}

/// What was written is left to the final stop.
#[test]
fn eight_threads_without_cleaning_uffd() {
    fuzz("eight_threads_without_cleaning_uffd", Kind::Uffd, &[("LARDER_ABLATE", "clean")], |seed| Plan {
        collect_every: Some(15),
        ..Plan::new(8, seed, 800)
    });
}

/// The first stop looks at no stack: each thread stands still once more for a look at its own; and all are looked at twice.
#[test]
fn eight_threads_looked_at_one_at_a_time_uffd() {
    fuzz("eight_threads_looked_at_one_at_a_time_uffd", Kind::Uffd, &[], |seed| {
        concurrent::set_pause_goal(Nanos(1));
        Plan { collect_every: Some(15), ..Plan::new(8, seed, 800) }
    });
}

#[test]
fn eight_threads_without_sequences_looked_at_one_at_a_time_mprotect() {
    let name = "eight_threads_without_sequences_looked_at_one_at_a_time_mprotect";
    fuzz(name, Kind::Mprotect, &[WITHOUT_SEQUENCES], |seed| {
        concurrent::set_pause_goal(Nanos(1));
        Plan { collect_every: Some(15), ..Plan::new(8, seed, 800) }
    });
}

/// Sleepers are held, and wake all the time; threads with long stacks are asked, and begin and end meanwhile. What only their stacks
/// keep is there in the end.
#[test]
fn stacks_that_are_looked_at_one_at_a_time_keep_what_they_hold() {
    const FRAMES: usize = 40;
    /// Frames of about 4 KiB, each with the only pointer to an object.
    #[inline(never)]
    fn deep(id: u64, left: usize, f: &dyn Fn()) {
        let mut frame = [0usize; 512];
        frame[left % 512] = object_of(id + left as u64, 64).expose_provenance();
        core::hint::black_box(&mut frame);
        if left > 0 {
            deep(id, left - 1, f);
        } else {
            f();
        }
        let kept = core::hint::black_box(&frame)[left % 512];
        check(core::ptr::with_exposed_provenance(kept), 64, id + left as u64);
    }
    if !offered(Kind::Uffd) {
        return;
    }
    in_child("stacks_that_are_looked_at_one_at_a_time_keep_what_they_hold", &[], || {
        init(&Options { free_space_divisor: 30, ..Options::default() });
        verifier::watch_alone(Rules::WITH_FINALIZERS);
        assert_eq!(concurrent::turn_on(Some(UFFD)), Ok(UFFD));
        // 100 kB of stacks in the first stop: the long ones are looked at one at a time.
        concurrent::set_pause_goal(Nanos(100_000));
        let is_over = || concurrent::completed()[0] >= 20;
        crowd::all(24, move |thread| {
            let id = thread as u64 * 1_000_000;
            let mut round = 0;
            while !is_over() {
                round += 1;
                let id = id + round * 1000;
                match thread {
                    // Collects.
                    0 => {
                        concurrent::ask();
                        _ = concurrent::finish_if_ready();
                        life(id);
                    }
                    1..4 => deep(id, FRAMES, &|| (0..50).for_each(|i| _ = object_of(i, 100))),
                    _ => deep(id, 4, &|| region(|| larder_sys::thread::sleep(Nanos(200_000 * thread as u64)))),
                }
            }
        });
    });
}

#[test]
fn four_threads_mprotect() {
    fuzz("four_threads_mprotect", Kind::Mprotect, &[], |seed| Plan {
        collect_every: Some(15),
        ..Plan::new(4, seed, 3000)
    });
}

#[test]
fn four_threads_soft_dirty() {
    fuzz("four_threads_soft_dirty", Kind::SoftDirty, &[], |seed| Plan {
        collect_every: Some(15),
        ..Plan::new(4, seed, 800)
    });
}

/// Threads allocate as fast as they can while much is alive: they help to mark, or overtake the cycle. Either way the
/// verifier finds every cycle right.
#[test]
fn threads_that_outrun_a_cycle_help_it_or_end_it() {
    if !offered(Kind::Uffd) {
        return;
    }
    in_child("threads_that_outrun_a_cycle_help_it_or_end_it", &[], || {
        init(&Options { free_space_divisor: 30, ..Options::default() });
        verifier::watch_alone(Rules::WITH_FINALIZERS);
        assert_eq!(concurrent::turn_on(Some(UFFD)), Ok(UFFD));
        // A list in pieces that are linked from both ends, so that there is work to be shared.
        let roots = Words::roots(256);
        for i in 0..60_000u64 {
            let at = object_of(i, 64);
            let slot = i as usize % roots.count();
            // SAFETY: the first word of the object, whose pattern nobody looks at.
            unsafe { at.cast::<usize>().write(roots.get(slot)) };
            roots.set(slot, at.expose_provenance());
        }
        crowd::all(4, |thread| {
            let mut round = 0;
            while concurrent::completed()[0] < 5 {
                for _ in 0..2000 {
                    core::hint::black_box(object_of(round, 48));
                }
                life(thread as u64 * 1000 + round);
                round += 1;
            }
        });
        let length: usize = (0..roots.count())
            .map(|slot| {
                let mut at = roots.get(slot);
                let mut length = 0;
                while at != 0 {
                    length += 1;
                    // SAFETY: objects of the list begin with the next one's address.
                    at = unsafe { core::ptr::with_exposed_provenance::<usize>(at).read() };
                }
                length
            })
            .sum();
        assert_eq!(length, 60_000);
        let [completed, overtaken] = concurrent::completed();
        eprintln!("{completed} of {} cycles marked beside the program, {overtaken} were overtaken", cycle::number());
        assert!(completed >= 5);
    });
}

/// Cells that wait on a shelf are claimed, and hold what was in their memory before. A word that looks like the address of one must not
/// have that taken for an object with a descriptor.
#[test]
fn what_waits_on_a_shelf_is_not_scanned() {
    if !offered(Kind::Uffd) {
        return;
    }
    in_child("what_waits_on_a_shelf_is_not_scanned", &[], || {
        /// As a descriptor: so many bytes, which no memory has.
        const LONG: usize = 0x0123_4567_89ab_cd00;
        const CELLS: usize = 40;
        init(&Options::default());
        verifier::watch_alone(Rules::WITH_FINALIZERS);
        assert_eq!(concurrent::turn_on(Some(UFFD)), Ok(UFFD));
        for size in [1000, 2600, 5000, 9000].repeat(3) {
            let memory = Words::hidden(2);
            crowd::all(1, move |_| {
                let (mut low, mut high) = (usize::MAX, 0);
                for _ in 0..2000 {
                    // SAFETY: a fresh object, dropped at once.
                    unsafe {
                        let object = allocate(kind::POINTER_FREE, 4000).cast::<usize>();
                        (0..500).for_each(|word| object.add(word).write(LONG));
                        (low, high) = (low.min(object.addr()), high.max(object.addr()));
                    }
                }
                memory.set(0, low);
                memory.set(1, high);
            });
            assert!(cycle::collect());
            let roots = Words::roots(CELLS);
            crowd::all(1, move |_| {
                // What the pool still has is used up first.
                let first = (0..10_000).map(|_| {
                    // SAFETY: nothing is written to it.
                    unsafe { allocate(kind::TYPED, size) }.addr()
                });
                let used = |at: &usize| (memory.get(0)..memory.get(1)).contains(at);
                let first = first.filter(used).nth(CELLS).expect("memory is used again");
                let cell = object::size(first);
                (0..CELLS).for_each(|i| roots.set(i, first + i * cell));
            });
            let done = concurrent::completed()[0];
            concurrent::ask();
            crowd::wait_until(|| concurrent::finish_if_ready() || concurrent::completed()[0] > done);
            (0..CELLS).for_each(|i| roots.set(i, 0));
        }
    });
}

/// Cells that wait on a shelf may be born marked, and lie on pages that are scanned once more. What dead objects have left there keeps nothing: in a queue
/// it would keep everything that left the queue later.
#[test]
fn what_dead_objects_left_on_a_shelf_keeps_nothing() {
    if !offered(Kind::Uffd) {
        return;
    }
    in_child("what_dead_objects_left_on_a_shelf_keeps_nothing", &[], || {
        const SIZES: [usize; 6] = [48, 64, 80, 112, 160, 240];
        const ROUNDS: usize = 20;
        init(&Options::default());
        verifier::watch_alone(Rules::WITH_FINALIZERS);
        concurrent::set_births(Births::Marked);
        assert_eq!(concurrent::turn_on(Some(UFFD)), Ok(UFFD));
        chain_of(100_000);
        let mut kept_by_words = 0;
        for _ in 0..ROUNDS {
            let (hidden, alive) = (Words::hidden(SIZES.len() * 600), Words::roots(SIZES.len() * 600));
            let neighbours = Words::roots(SIZES.len() * 600);
            crowd::all(1, move |_| {
                for i in 0..hidden.count() {
                    let object = object_of(i as u64, 400).expose_provenance();
                    alive.set(i, object);
                    hidden.set(i, !object);
                    let of = object_of(i as u64, SIZES[i / 600]).cast::<usize>();
                    // Every fourth lives, so that runs are short.
                    if i.is_multiple_of(4) {
                        neighbours.set(i, of.expose_provenance());
                    } else {
                        // SAFETY: words of a fresh object.
                        (0..4).for_each(|word| unsafe { of.add(word).write(object) });
                    }
                }
            });
            assert!(cycle::collect());
            (0..alive.count()).for_each(|i| alive.set(i, 0));
            concurrent::ask();
            crowd::wait_until(concurrent::is_under_way);
            crowd::all(1, move |_| {
                for i in 0..SIZES.len() * 200 {
                    core::hint::black_box(object_of(i as u64, SIZES[i / 200]));
                }
            });
            crowd::wait_until(|| !concurrent::finish_if_ready() && !concurrent::is_under_way());
            kept_by_words += (0..hidden.count()).filter(|&i| object::base(!hidden.get(i)).is_some()).count();
            (0..neighbours.count()).for_each(|i| neighbours.set(i, 0));
        }
        // A few are on stacks.
        assert!(kept_by_words < 4 * ROUNDS, "{kept_by_words}");
    });
}

/// What is freed explicitly brings cycles that mark beside the program no sooner than such that stop it.
#[test]
fn what_is_freed_brings_no_cycles() {
    if !offered(Kind::Uffd) {
        return;
    }
    in_child("what_is_freed_brings_no_cycles", &[], || {
        init(&Options::default());
        verifier::watch_alone(Rules::WITH_FINALIZERS);
        // No cycle is short enough for one stop.
        concurrent::set_pause_goal(Nanos(1));
        assert_eq!(concurrent::turn_on(Some(UFFD)), Ok(UFFD));
        let mut random = Random::new(1);
        let mut held = [ptr::null_mut::<u8>(); 1000];
        let roots = Words::roots(held.len());
        // 300 MB, small and large.
        let mut allocated = 0;
        while allocated < 300 << 20 {
            let at = random.below(held.len());
            if !held[at].is_null() {
                // SAFETY: nobody else has it.
                unsafe { free(held[at]) };
            }
            let size = if random.below(50) == 0 { 40_000 } else { 16 + random.below(500) };
            held[at] = object_of(at as u64, size);
            roots.set(at, held[at].expose_provenance());
            allocated += size;
        }
        // At most an eighth of it counts, and a cycle begins after three tenths of a budget, which is 5.75 MiB at least.
        assert!((1..30).contains(&cycle::number()), "{} cycles", cycle::number());
        (0..held.len()).for_each(|at| roots.set(at, 0));
    });
}

/// Words of a node of [`forest`].
const CHILDREN: usize = 4;

/// Trees of `CHILDREN` children to a node, `levels` deep, one in each word.
fn forest(roots: &Words, levels: u32) {
    fn tree(levels: u32) -> usize {
        let at = object_of(u64::from(levels), CHILDREN * size_of::<usize>()).cast::<usize>();
        for child in 0..CHILDREN {
            let word = if levels > 1 { tree(levels - 1) } else { 0 };
            // SAFETY: a word of the object, which is kept by this stack.
            unsafe { at.add(child).write(word) };
        }
        at.expose_provenance()
    }
    for root in 0..roots.count() {
        roots.set(root, tree(levels));
    }
}

/// How many nodes the trees have.
fn nodes(roots: &Words) -> usize {
    fn count(at: usize) -> usize {
        if at == 0 {
            return 0;
        }
        // SAFETY: a node of a tree.
        let child = |i| unsafe { core::ptr::with_exposed_provenance::<usize>(at).add(i).read() };
        1 + (0..CHILDREN).map(|i| count(child(i))).sum::<usize>()
    }
    (0..roots.count()).map(|root| count(roots.get(root))).sum()
}

/// Several markers mark what one would have: with helpers that take part, and when the cycle is ended in the middle.
#[test]
fn markers_beside_share_the_work_and_leave_nothing_when_they_are_interrupted() {
    if !offered(Kind::Uffd) {
        return;
    }
    for markers in [2, 4] {
        let name = "markers_beside_share_the_work_and_leave_nothing_when_they_are_interrupted";
        const MARKERS: &str = "LARDER_TEST_MARKERS";
        if let Ok(wanted) = std::env::var(MARKERS) {
            return in_child(name, &[], || {
                init(&Options::default());
                verifier::watch_alone(Rules::WITH_FINALIZERS);
                concurrent::set_markers(wanted.parse().unwrap());
                assert_eq!(concurrent::turn_on(Some(UFFD)), Ok(UFFD));
                let roots = Words::roots(16);
                forest(&roots, 7);
                let before = nodes(&roots);
                // Helpers come when the kernel has a CPU for them; the child's deadline is the limit.
                while concurrent::marked_by_helpers() == 0 {
                    one_cycle();
                }
                // Ended at once, or after a while.
                for round in 0..20 {
                    concurrent::ask();
                    crowd::wait_until(concurrent::is_under_way);
                    for i in 0..round * 20 {
                        core::hint::black_box(object_of(i, 64));
                    }
                    assert!(cycle::collect());
                }
                assert_eq!(nodes(&roots), before);
            });
        }
        in_child(name, &[(MARKERS, &markers.to_string())], || unreachable!("the child has a number"));
    }
}

/// Objects that each hold the only reference to a leaf, in one of their words by their number.
#[derive(Clone, Copy)]
struct Holders(Words);

impl Holders {
    const BYTES: usize = 64;

    /// So many, which are roots.
    fn new(n: usize) -> Self {
        let holders = Self(Words::roots(n));
        for i in 0..n {
            // SAFETY: fresh objects, of which the one is in the table and the other in it at once.
            unsafe {
                let holder = allocate(kind::NORMAL, Self::BYTES);
                holders.0.set(i, holder.expose_provenance());
                let leaf = allocate(kind::POINTER_FREE, 2 * size_of::<usize>()).cast::<usize>();
                leaf.write(i);
                leaf.add(1).write(!i);
                holders.place(i).write(leaf.expose_provenance());
            }
        }
        holders
    }

    /// Where the reference is.
    fn place(self, i: usize) -> *mut usize {
        ptr::with_exposed_provenance_mut(self.0.get(i) + i % 8 * size_of::<usize>())
    }

    /// Has `threads` threads exchange leaves, and replace holders, while `cycles` cycles mark beside them. The process has no others.
    fn exchange_during(self, threads: usize, cycles: usize) {
        static ENDS: AtomicBool = AtomicBool::new(false);
        ENDS.store(false, Ordering::Relaxed);
        let exchange = move |thread: usize| {
            let mut random = Random::new(thread as u64 + 1);
            let mut any = || random.below(self.0.count() / threads) * threads + thread;
            while !ENDS.load(Ordering::Relaxed) {
                let (one, other) = (any(), any());
                // SAFETY: words of objects that are in the table, written by this thread alone; and a fresh one, in the table at once.
                unsafe {
                    let leaf = self.place(one).read();
                    self.place(one).write(self.place(other).read());
                    self.place(other).write(leaf);
                    if other % 16 < 2 {
                        let holder = allocate(kind::NORMAL, Self::BYTES);
                        holder.cast::<usize>().add(other % 8).write(self.place(other).replace(0));
                        self.0.set(other, holder.expose_provenance());
                    }
                }
            }
        };
        let writers: Vec<_> = (0..threads).map(|thread| crowd::spawn(move || exchange(thread))).collect();
        for _ in 0..cycles {
            one_cycle();
        }
        ENDS.store(true, Ordering::Relaxed);
        writers.into_iter().for_each(|writer| _ = writer.join());
    }

    /// Every leaf is there, once.
    fn check(self) {
        let mut seen = vec![false; self.0.count()];
        for i in 0..seen.len() {
            // SAFETY: objects that the table leads to.
            let [id, check] = unsafe { ptr::with_exposed_provenance::<[usize; 2]>(self.place(i).read()).read() };
            assert!(id == !check && !core::mem::replace(&mut seen[id], true), "leaf {id:#x} of {i}");
        }
    }
}

/// The final stop's markers share what was written: of a heap of several parts, whose threads move the only references to what is on one page to
/// another all the time.
#[test]
fn what_moves_between_written_pages_is_found_by_whichever_marker_looks() {
    if !offered(Kind::Uffd) {
        return;
    }
    in_child("what_moves_between_written_pages_is_found_by_whichever_marker_looks", &[], || {
        init(&Options::default());
        verifier::watch_alone(Rules::WITH_FINALIZERS);
        let holders = Holders::new(400_000);
        let heap = stats::snapshot().heap;
        assert!(heap > 24 << 20, "{heap} bytes are one part");
        assert_eq!(concurrent::turn_on(Some(UFFD)), Ok(UFFD));
        holders.exchange_during(4, 6);
        assert!(cycle::collect());
        holders.check();
    });
}

/// A child of a fork in the middle of a cycle, when that has seen which blocks have no pointers: in the child, they have some later.
#[test]
fn a_child_looks_where_its_parents_cycle_saw_no_pointers() {
    static WAITS: AtomicBool = AtomicBool::new(false);
    static GOES_ON: AtomicBool = AtomicBool::new(false);
    const LEAVES: usize = 300_000;
    fn hook(point: Point) {
        if point == Point::Cleaned && !GOES_ON.load(Ordering::Acquire) {
            WAITS.store(true, Ordering::Release);
            crowd::wait_until(|| GOES_ON.load(Ordering::Acquire));
        }
    }
    if !offered(Kind::Uffd) {
        return;
    }
    in_child("a_child_looks_where_its_parents_cycle_saw_no_pointers", &[], || {
        init(&Options::default());
        verifier::watch_alone(Rules::WITH_FINALIZERS);
        let leaves = Words::roots(LEAVES);
        for i in 0..LEAVES {
            // SAFETY: in the table at once.
            leaves.set(i, unsafe { allocate(kind::POINTER_FREE, Holders::BYTES) }.expose_provenance());
        }
        assert_eq!(concurrent::turn_on(Some(UFFD)), Ok(UFFD));
        at_points(Some(hook));
        concurrent::ask();
        crowd::wait_until(|| WAITS.load(Ordering::Acquire));
        let before = stats::snapshot().heap;
        // SAFETY: the child uses only what the heap allows it, and leaves without running the parent's exit handlers.
        unsafe {
            let child = libc::fork();
            assert!(child >= 0);
            GOES_ON.store(true, Ordering::Release);
            if child == 0 {
                libc::alarm(900);
                leaves.clear();
                assert!(cycle::collect());
                let holders = Holders::new(LEAVES / 2);
                let heap = stats::snapshot().heap;
                assert!(heap < before * 5 / 4, "{heap} of {before} bytes: most blocks were not used again");
                holders.exchange_during(2, 4);
                assert!(cycle::collect());
                holders.check();
                libc::_exit(17);
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 17, "the child ended with {status:#x}");
        }
        leaves.clear();
        assert!(cycle::collect());
    });
}

/// A cycle is asked for, rests while cycles are disabled, and is finished by an explicit collection.
#[test]
fn a_cycle_rests_while_cycles_are_disabled() {
    if !offered(Kind::Uffd) {
        return;
    }
    in_child("a_cycle_rests_while_cycles_are_disabled", &[], || {
        init(&Options::default());
        verifier::watch_alone(Rules::WITH_FINALIZERS);
        assert_eq!(concurrent::turn_on(Some(UFFD)), Ok(UFFD));
        let kept = object_of(1, 100);
        concurrent::ask();
        crowd::wait_until(concurrent::is_under_way);
        cycle::disable();
        assert!(!cycle::collect());
        for _ in 0..20_000 {
            core::hint::black_box(object_of(2, 400));
        }
        assert_eq!((cycle::number(), concurrent::is_under_way()), (0, true));
        cycle::enable();
        // What was under way, and one that finds all that is dead now.
        assert!(cycle::collect());
        assert_eq!((cycle::number(), concurrent::completed()[0], concurrent::is_under_way()), (2, 1, false));
        check(kept, 100, 1);
    });
}

/// An object that is larger than the budget begins a cycle, and neither waits for it nor ends it.
#[test]
fn a_large_object_overtakes_no_cycle() {
    if !offered(Kind::Uffd) {
        return;
    }
    in_child("a_large_object_overtakes_no_cycle", &[], || {
        init(&Options::default());
        verifier::watch_alone(Rules::WITH_FINALIZERS);
        assert_eq!(concurrent::turn_on(Some(UFFD)), Ok(UFFD));
        let kept = object_of(1, 100);
        let large = object_of(2, 64 << 20);
        // What the object itself needs, and some small ones behind it.
        (0..1000).for_each(|i| _ = core::hint::black_box(object_of(i, 400)));
        crowd::wait_until(|| !concurrent::finish_if_ready() && concurrent::completed()[0] > 0);
        assert_eq!((cycle::number(), concurrent::completed()), (1, [1, 0]));
        check(kept, 100, 1);
        check(large, 64 << 20, 2);
    });
}

/// Where what is made while a cycle marks is born marked, it is kept by it, and found by the next one.
#[test]
fn floating_garbage_lives_for_one_cycle() {
    if !offered(Kind::Uffd) {
        return;
    }
    in_child("floating_garbage_lives_for_one_cycle", &[], || {
        init(&Options::default());
        concurrent::set_births(Births::Marked);
        verifier::watch_alone(Rules::WITH_FINALIZERS);
        assert_eq!(concurrent::turn_on(Some(UFFD)), Ok(UFFD));
        let hidden = Words::hidden(1000);
        concurrent::ask();
        crowd::wait_until(concurrent::is_under_way);
        for i in 0..hidden.count() {
            hidden.set(i, !object_of(i as u64, 64).expose_provenance());
        }
        crowd::wait_until(|| !concurrent::finish_if_ready() && !concurrent::is_under_way());
        let alive = || (0..hidden.count()).filter(|&i| object::base(!hidden.get(i)).is_some()).count();
        // Some come from a buffer that was filled before: these are born unmarked.
        assert!(alive() > hidden.count() / 2, "{} of {}", alive(), hidden.count());
        assert!(cycle::collect());
        assert!(alive() < 20, "{} of {}", alive(), hidden.count());
    });
}

/// What is made while a cycle traces, and dies, is found by that cycle; what lives is kept, whatever leads to it.
fn what_is_made_and_dies(name: &str, make: fn(usize) -> *mut u8) {
    if !offered(Kind::Uffd) {
        return;
    }
    in_child(name, &[], || {
        init(&Options::default());
        verifier::watch_alone(Rules::WITH_FINALIZERS);
        assert_eq!(concurrent::turn_on(Some(UFFD)), Ok(UFFD));
        // Long to trace, so that it is being traced until all the others were made.
        chain_of(400_000);
        // A thread that loses its CPU makes some when all is traced: these are born marked.
        let found_all = (0..50).any(|_| {
            let (hidden, kept) = (Words::hidden(1000), Words::roots(1000));
            concurrent::ask();
            crowd::wait_until(concurrent::is_under_way);
            for i in 0..hidden.count() {
                hidden.set(i, !make(i).expose_provenance());
                kept.set(i, object_of(i as u64, 80).expose_provenance());
            }
            crowd::wait_until(|| !concurrent::finish_if_ready() && !concurrent::is_under_way());
            (0..kept.count()).for_each(|i| check(core::ptr::with_exposed_provenance(kept.get(i)), 80, i as u64));
            (0..hidden.count()).filter(|&i| object::base(!hidden.get(i)).is_some()).count() < 20
        });
        assert!(found_all);
    });
}

#[test]
fn what_is_made_and_dies_while_a_cycle_traces_is_found_by_it() {
    what_is_made_and_dies("what_is_made_and_dies_while_a_cycle_traces_is_found_by_it", |i| object_of(i as u64, 64));
}

/// Although a marker that comes upon such an object too early must not take what its memory held before for its descriptor.
#[test]
fn what_names_its_own_descriptor_and_dies_while_a_cycle_traces_is_found_by_it() {
    let typed = |_| {
        // SAFETY: a fresh object, whose last word says that the first is an address; it is none.
        unsafe {
            let object = allocate(kind::TYPED, 56);
            object.add(object::size(object.addr()) - 8).cast::<usize>().write(1 << 63 | 1);
            object
        }
    };
    what_is_made_and_dies("what_names_its_own_descriptor_and_dies_while_a_cycle_traces_is_found_by_it", typed);
}

/// A list in a root: long to trace.
fn chain_of(objects: u64) {
    let chain = Words::roots(1);
    for i in 0..objects {
        let next = object_of(i, 32).cast::<usize>();
        // SAFETY: a word of a fresh object.
        unsafe { next.write(chain.get(0)) };
        chain.set(0, next.expose_provenance());
    }
}

/// What a cycle counts as alive is what is there after it, whichever objects were born marked: those in blocks in which something was freed explicitly, and others late in a cycle.
fn what_is_counted(name: &str, births: Births, of: usize, frees: bool) {
    const BYTES: usize = 4000;
    if !offered(Kind::Uffd) {
        return;
    }
    in_child(name, &[], || {
        init(&Options::default());
        verifier::watch_alone(Rules::WITH_FINALIZERS);
        concurrent::set_births(births);
        assert_eq!(concurrent::turn_on(Some(UFFD)), Ok(UFFD));
        // All zero: what names its own descriptor names none.
        // SAFETY: in a root, or free at once.
        let make = || unsafe { allocate(of, BYTES) };
        let kept = Words::roots(3000);
        chain_of(100_000);
        let (mut rounds, mut most_made) = (0, 0);
        // On a busy machine a cycle may be over before anything was made.
        while rounds < 20 || most_made < 100 {
            rounds += 1;
            if frees {
                // SAFETY: nobody has them.
                (0..2000).map(|_| make()).for_each(|object| unsafe { free(object) });
            }
            concurrent::ask();
            crowd::wait_until(concurrent::is_under_way);
            let mut made = 0;
            for i in 0..kept.count() {
                made += usize::from(concurrent::is_under_way());
                kept.set(i, make().expose_provenance());
            }
            most_made = most_made.max(made);
            crowd::wait_until(|| !concurrent::finish_if_ready() && !concurrent::is_under_way());
            let figures = stats::snapshot();
            let there: usize = object::bytes_in_use().iter().sum();
            // Buffers are counted with what was handed out since.
            let counted = figures.live + figures.bytes_since_cycle;
            assert!(counted.abs_diff(there) < 500_000, "{counted} counted, {there} there");
        }
    });
}

#[test]
fn what_is_born_late_in_a_cycle_is_counted() {
    what_is_counted("what_is_born_late_in_a_cycle_is_counted", Births::Late, kind::NORMAL, false);
}

#[test]
fn what_is_born_marked_is_counted() {
    what_is_counted("what_is_born_marked_is_counted", Births::Marked, kind::NORMAL, false);
}

#[test]
fn what_names_its_own_descriptor_is_counted() {
    what_is_counted("what_names_its_own_descriptor_is_counted", Births::Late, kind::TYPED, false);
}

#[test]
fn what_is_born_where_something_was_freed_is_counted() {
    what_is_counted("what_is_born_where_something_was_freed_is_counted", Births::Late, kind::NORMAL, true);
}

/// Who collects in a walk over the loader's list has that list, which the marker thread wants to look at roots once more.
#[test]
fn who_walks_over_the_loaders_list_collects_while_a_cycle_traces() {
    unsafe extern "C" fn collect(_: *mut libc::dl_phdr_info, _: usize, _: *mut core::ffi::c_void) -> i32 {
        // By the end of this the marker thread has traced everything, most often, and waits for the list.
        (0..2000).for_each(|i| _ = core::hint::black_box(object_of(i, 64)));
        assert!(cycle::collect());
        1
    }
    if !offered(Kind::Uffd) {
        return;
    }
    in_child("who_walks_over_the_loaders_list_collects_while_a_cycle_traces", &[], || {
        init(&Options::default());
        verifier::watch_alone(Rules::WITH_FINALIZERS);
        concurrent::set_pause_goal(Nanos(1));
        assert_eq!(concurrent::turn_on(Some(UFFD)), Ok(UFFD));
        let kept = Words::roots(2000);
        (0..kept.count()).for_each(|i| kept.set(i, object_of(i as u64, 80).expose_provenance()));
        for _ in 0..300 {
            concurrent::ask();
            crowd::wait_until(|| concurrent::is_under_way() || !concurrent::finish_if_ready());
            // SAFETY: the function matches, and keeps nothing of its arguments.
            assert_eq!(unsafe { libc::dl_iterate_phdr(Some(collect), core::ptr::null_mut()) }, 1);
        }
        (0..kept.count()).for_each(|i| check(core::ptr::with_exposed_provenance(kept.get(i)), 80, i as u64));
    });
}

/// Minor page faults of the calling thread.
fn faults() -> i64 {
    // SAFETY: a plain structure that the call fills.
    unsafe {
        let mut usage: libc::rusage = core::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, &mut usage), 0);
        usage.ru_minflt
    }
}

/// What a cycle found dead is written next, and costs no fault for each of its pages, although all were watched and the marker thread may not
/// have had a CPU since.
#[test]
fn memory_that_has_died_is_written_without_faults() {
    if !offered(Kind::Uffd) {
        return;
    }
    in_child("memory_that_has_died_is_written_without_faults", &[], || {
        const OBJECTS: u64 = 40_000;
        const SIZE: usize = 400;
        const PAGES: i64 = (OBJECTS as usize * SIZE / 4096) as i64;
        init(&Options::default());
        verifier::watch_alone(Rules::WITH_FINALIZERS);
        settings::set_keep_memory(true);
        assert_eq!(concurrent::turn_on(Some(UFFD)), Ok(UFFD));
        let kept = object_of(7, SIZE);
        let mut least = i64::MAX;
        for round in 0..6 {
            cycle::disable();
            let before = faults();
            for i in 0..OBJECTS {
                core::hint::black_box(object_of(i, SIZE));
            }
            // The first time, memory is touched first. Where the marker thread lost its CPU inside of the system call, there are faults.
            if round > 0 {
                least = least.min(faults() - before);
            }
            cycle::enable();
            one_cycle();
            check(kept, SIZE, 7);
        }
        assert!(least < PAGES / 60, "{least} faults at least on {PAGES} pages");
    });
}

/// Pages that the program does not write to while a cycle marks stay watched until the next one, or until they are written; those of a large object
/// without pointers never are.
#[test]
fn what_is_hardly_written_stays_watched_between_cycles() {
    if !offered(Kind::Uffd) {
        return;
    }
    in_child("what_is_hardly_written_stays_watched_between_cycles", &[], || {
        const OBJECTS: usize = 2000;
        const SIZE: usize = 4000;
        const NUMBERS: usize = 1 << 23;
        init(&Options::default());
        verifier::watch_alone(Rules::WITH_FINALIZERS);
        assert_eq!(concurrent::turn_on(Some(UFFD)), Ok(UFFD));
        let roots = Words::roots(OBJECTS);
        let numbers = Words::roots(1);
        let write_numbers = || {
            let before = faults();
            for i in (0..NUMBERS).step_by(4096) {
                // SAFETY: a byte of the object that the root keeps.
                unsafe { core::ptr::with_exposed_provenance_mut::<u8>(numbers.get(0) + i).write_volatile(i as u8) };
            }
            faults() - before
        };
        // No cycle is under way when the first one begins below: it would find these pages written.
        cycle::disable();
        // SAFETY: in a root at once.
        numbers.set(0, unsafe { allocate(kind::POINTER_FREE, NUMBERS) }.expose_provenance());
        write_numbers();
        (0..OBJECTS).for_each(|i| roots.set(i, object_of(i as u64, SIZE).expose_provenance()));
        cycle::enable();
        // Writes what is there anyway; of each object, which has a page or more, the first word.
        let write_all = || {
            for i in 0..OBJECTS {
                let word = core::ptr::with_exposed_provenance_mut::<usize>(roots.get(i));
                // SAFETY: an object that a root keeps.
                unsafe { word.write_volatile(word.read_volatile()) };
            }
        };
        let write_and_count = || {
            let before = faults();
            write_all();
            faults() - before
        };
        for _ in 0..3 {
            one_cycle();
            assert!(write_and_count() > OBJECTS as i64 / 2, "pages were not watched between cycles");
            assert!(write_and_count() < OBJECTS as i64 / 20, "a page is watched that was written");
            assert!(write_numbers() < (NUMBERS / 4096 / 20) as i64, "pages without pointers were watched");
        }
        (0..OBJECTS).for_each(|i| check(core::ptr::with_exposed_provenance_mut(roots.get(i)), SIZE, i as u64));
    });
}

/// What a cycle has pushed on the marker thread's stack and popped again takes no memory in the next one.
#[test]
fn a_cycle_leaves_no_memory_of_a_deep_stack_behind() {
    /// More than the entries that are kept: what a table of roots refers to is on the stack at once.
    const OBJECTS: usize = 200_000;
    if !offered(Kind::Uffd) {
        return;
    }
    in_child("a_cycle_leaves_no_memory_of_a_deep_stack_behind", &[], || {
        init(&Options::default());
        verifier::watch_alone(Rules::WITH_FINALIZERS);
        concurrent::set_markers(1);
        assert_eq!(concurrent::turn_on(Some(UFFD)), Ok(UFFD));
        let roots = Words::roots(OBJECTS);
        (0..OBJECTS).for_each(|i| roots.set(i, object_of(0, 16).expose_provenance()));
        one_cycle();
        // SAFETY: the marker thread exists, and where its stack lies does not change.
        let [kept, beyond] = unsafe { CREW.beside() }.stack.places();
        roots.clear();
        // One that may have begun before, and one that gives back what that had.
        one_cycle();
        one_cycle();
        let memory = |range: &Range<usize>| {
            let mut bytes = 0;
            let pagemap = Pagemap::open().expect("the watch asks it");
            pagemap
                .for_each_filled(range.start, range.end, &mut |from, to| bytes += to - from)
                .expect("as for the watch");
            bytes
        };
        assert_eq!(memory(&beyond), 0);
        assert_eq!(memory(&kept), kept.len(), "the stack was not as deep as it was to be");
    });
}

/// So many written pages are left to the final stop that a small stack is full before roots come. What is dropped then is found by nobody else.
#[test]
fn written_pages_leave_room_for_roots() {
    const OBJECTS: usize = 1000;
    const BYTES: usize = 5000;
    const MPROTECT: Way = Way::Watch(Kind::Mprotect);
    in_child("written_pages_leave_room_for_roots", &[], || {
        CREW.bound_stacks(64);
        init(&Options::default());
        verifier::watch(Rules::WITH_FINALIZERS);
        assert_eq!(concurrent::turn_on(Some(MPROTECT)), Ok(MPROTECT));
        let (roots, last) = (Words::roots(OBJECTS), Words::roots(1));
        (0..OBJECTS).for_each(|i| roots.set(i, object_of(i as u64, BYTES).expose_provenance()));
        for round in 0..20 {
            concurrent::ask();
            crowd::wait_until(|| concurrent::is_under_way() || !concurrent::finish_if_ready());
            for i in 0..OBJECTS {
                let object = core::ptr::with_exposed_provenance_mut::<usize>(roots.get(i));
                // SAFETY: a word that the object's pattern does not reach.
                unsafe { object.add(BYTES / 8).write(round) };
            }
            last.set(0, object_of(round as u64, BYTES).expose_provenance());
            crowd::wait_until(|| !concurrent::finish_if_ready() && !concurrent::is_under_way());
            check(core::ptr::with_exposed_provenance(last.get(0)), BYTES, round as u64);
        }
        assert!(concurrent::completed()[0] > 5, "{:?}", concurrent::completed());
    });
}
