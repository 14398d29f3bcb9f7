//! The hierarchy (HAB) on simulated topologies and on the real one: falling over, foreign allocations, sizes, forks.

mod world;

use std::cell::Cell;
use std::num::NonZeroU16;
use std::thread;

use larder_lab::{
    Buffers, BumpSpace, Chunk, ChunkSource, Config, Lab, LevelStatistics, Lowest, Point, Request, Selection, Why,
};
use larder_percpu::Level;
use larder_policy::labs::Sizes;
use larder_units::Bytes;
use world::{World, at_points, pin};

const KIB: fn(usize) -> Sizes = |n| Sizes::fixed(Bytes(n << 10));

thread_local! {
    static CPU: Cell<usize> = const { Cell::new(0) };
}

fn here() -> usize {
    CPU.get()
}

/// So many CPUs, of which this thread says itself on which it is.
fn simulated(cpus: u32) -> Selection {
    Selection::Simulated { cpus, here }
}

fn groups(size: u16) -> Level {
    Level::Groups(NonZeroU16::new(size).unwrap())
}

fn level(world: &World, k: usize) -> LevelStatistics {
    world.buffers.level_statistics(k).unwrap()
}

/// Four packages of ten cores of two threads, as in the paper: what each CPU takes comes from the buffer of its package.
#[test]
fn each_cpu_takes_from_the_buffer_of_its_package() {
    let config = Config { selection: simulated(80), ..Config::new(Lowest::Threads, KIB(4)).under(groups(20), KIB(64)) };
    let world = World::new(config, 4 << 20, 80);
    let mut first = Vec::new();
    for cpu in 0..80 {
        CPU.set(cpu);
        assert!(world.allocate(&world.members[cpu], 24));
        first.push(world.members[cpu].objects.lock().unwrap()[0].0);
    }
    // A package's buffer of 64 KiB serves 16 of its 20 threads, the rest take from its second one.
    for package in 0..4 {
        let places = &first[package * 20..package * 20 + 20];
        assert!(places[..16].windows(2).all(|two| two[1] - two[0] == 4096), "{places:x?}");
        assert!(places[16..].windows(2).all(|two| two[1] - two[0] == 4096), "{places:x?}");
    }
    let did = level(&world, 0);
    assert_eq!((did.taken, did.refills, did.taken_bytes, did.refill_bytes), (80, 8, 80 * 4096, 8 * 65536));
    assert_eq!((did.migrated, did.fallen_over, did.tail_bytes, did.passed_on), (0, 0, 0, 0));
    world.collect(0);
    let did = level(&world, 0);
    assert_eq!((did.partly_used, did.partly_used_bytes), (4, 4 * 12 * 4096));
}

/// While one thread refills its package's buffer, others fall over to the next package's: foreign, and counted.
#[test]
fn a_refill_in_progress_sends_others_on() {
    let config = Config { selection: simulated(8), ..Config::new(Lowest::Threads, KIB(4)).under(groups(4), KIB(16)) };
    let world = World::new(config, 1 << 20, 3);
    let mut turn = 0;
    let hook = at_points(|point| {
        // In the refill of package 0's buffer, a thread of the same package comes, then one of the other.
        if point == Point::TailGivenBack && turn == 0 {
            turn = 1;
            CPU.set(2);
            assert!(world.allocate(&world.members[1], 24));
            CPU.set(5);
            assert!(world.allocate(&world.members[2], 24));
            CPU.set(1);
        }
    });
    CPU.set(1);
    assert!(world.allocate(&world.members[0], 24));
    drop(hook);
    let did = level(&world, 0);
    assert_eq!((did.taken, did.fallen_over, did.refills, did.beaten), (3, 1, 2, 0));
    let at = |member: usize| world.members[member].objects.lock().unwrap()[0].0;
    // The foreign allocation filled package 1's buffer, and its own thread took the next piece of it.
    assert_eq!(at(2) - at(1), 4096);
    world.collect(0);
}

/// Where every buffer is being refilled, the request goes on to the heap.
#[test]
fn with_every_buffer_marked_the_heap_serves() {
    let config = Config { selection: simulated(4), ..Config::new(Lowest::Threads, KIB(4)).under(groups(4), KIB(16)) };
    let world = World::new(config, 1 << 20, 2);
    let mut turn = 0;
    let hook = at_points(|point| {
        if point == Point::Marked && turn == 0 {
            turn = 1;
            assert!(world.allocate(&world.members[1], 24));
        }
    });
    CPU.set(0);
    assert!(world.allocate(&world.members[0], 24));
    drop(hook);
    let did = level(&world, 0);
    assert_eq!((did.taken, did.passed_on, did.fallen_over), (1, 1, 0));
    world.collect(0);
}

/// Selection and allocation are two steps: who moves in between makes a foreign allocation, which the counter sees.
#[test]
fn migration_between_selection_and_allocation_is_foreign() {
    let config = Config { selection: simulated(8), ..Config::new(Lowest::Threads, KIB(4)).under(groups(4), KIB(64)) };
    let world = World::new(config, 1 << 20, 1);
    let mut turn = 0;
    let hook = at_points(|point| {
        if point == Point::Chosen {
            turn += 1;
            // To the other package at every second choice, to another CPU of the same at the others.
            CPU.set(if turn % 2 == 0 { (CPU.get() + 4) % 8 } else { CPU.get() ^ 1 });
        }
    });
    (0..40).for_each(|_| assert!(world.allocate(&world.members[0], 512) && world.allocate(&world.members[0], 3576)));
    drop(hook);
    let did = level(&world, 0);
    assert_eq!(did.migrated, turn / 2, "of {turn} choices");
    world.collect(0);
}

/// By the sequence no allocation is foreign through migration: who moves takes from where it is then.
#[test]
fn by_sequence_nothing_is_foreign_through_migration() {
    let cpus = larder_sys::cpus::allowed().min(2);
    let config = Config::new(Lowest::Threads, KIB(4)).under(groups(1), KIB(16));
    let world = World::new(config, 1 << 20, 1);
    for point in [Point::Chosen, Point::Marked, Point::LevelObtained] {
        let mut turn = 0;
        let hook = at_points(|at| {
            if at == point {
                turn += 1;
                pin(turn % cpus);
            }
        });
        for _ in 0..40 {
            assert!(world.allocate(&world.members[0], 512) && world.allocate(&world.members[0], 3576));
        }
        drop(hook);
    }
    let did = level(&world, 0);
    assert!(did.taken > 60, "{did:?}");
    assert_eq!((did.migrated, did.fallen_over, did.passed_on), (0, 0, 0), "{did:?}");
    world.collect(0);
}

/// A buffer larger than the level's comes from above: "TLABs larger than PLAB size are directly allocated from the heap".
#[test]
fn what_is_larger_than_a_level_comes_from_above() {
    let lowest = Sizes { initial: Bytes(4 << 10), most: Bytes(64 << 10), ..Sizes::adaptive() };
    let config = Config::new(Lowest::Threads, lowest).under(groups(2), KIB(16)).under(groups(8), KIB(256));
    let config = Config { selection: simulated(8), ..config };
    let world = World::new(config, 8 << 20, 1);
    CPU.set(3);
    (0..100_000).for_each(|_| assert!(world.allocate(&world.members[0], 24)));
    let (low, high) = (level(&world, 0), level(&world, 1));
    assert!(low.oversized > 5 && low.taken > 2, "{low:?}");
    assert_eq!(high.taken, low.refills + low.oversized);
    assert_eq!(high.oversized, 0);
    world.collect(0);
}

/// Four levels: threads, cores, packages, heap. Each asks only the one above it, in multiples of what it is asked for.
#[test]
fn four_levels_ask_one_another() {
    let config = Config::new(Lowest::Threads, KIB(4)).under(groups(2), KIB(30)).under(groups(8), KIB(500));
    let world = World::new(Config { selection: simulated(16), ..config }, 16 << 20, 16);
    for cpu in 0..16 {
        CPU.set(cpu);
        (0..3000).for_each(|_| assert!(world.allocate(&world.members[cpu], 24)));
    }
    let (cores, packages) = (level(&world, 0), level(&world, 1));
    assert_eq!(world.buffers.statistics().labs, cores.taken);
    assert_eq!(cores.refills, packages.taken);
    assert_eq!(cores.refill_bytes, cores.refills * (32 << 10), "30 KiB becomes a multiple of 4");
    assert_eq!(packages.refill_bytes, packages.refills * (512 << 10), "500 KiB becomes a multiple of 32");
    assert_eq!((cores.tail_bytes, packages.tail_bytes), (0, 0), "multiples leave no tail");
    assert_eq!(world.space().used().0 as u64, packages.refill_bytes);
    world.collect(0);
}

/// A level's rest that is too small for a request is given back: nobody can have taken it since.
#[test]
fn tails_are_given_back() {
    let config = Config::new(Lowest::Nobody, KIB(4)).under(groups(4), KIB(4));
    let world = World::new(Config { selection: simulated(4), ..config }, 1 << 20, 1);
    CPU.set(0);
    for n in 0..100 {
        assert!(world.allocate(&world.members[0], if n % 2 == 0 { 360 } else { 104 }));
    }
    let did = level(&world, 0);
    let rests: usize = world.space().rests().iter().map(|(start, end)| end - start).sum();
    assert!(did.tail_bytes > 0 && did.tail_bytes == rests as u64, "{did:?}");
    world.collect(0);
}

/// The child of a fork has no thread that would finish the refill which its parent's was in: the mark is reset.
#[test]
fn a_fork_resets_marks() {
    let config = Config { selection: simulated(4), ..Config::new(Lowest::Threads, KIB(4)).under(groups(4), KIB(16)) };
    let world = World::new(config, 1 << 20, 2);
    CPU.set(0);
    let mut status = 0;
    let mut turn = 0;
    let hook = at_points(|point| {
        if point != Point::LevelObtained || turn == 1 {
            return;
        }
        turn = 1;
        // Another thread forks, so that the one with the mark does not exist in the child.
        thread::scope(|scope| {
            scope.spawn(|| {
                // SAFETY: the child uses the buffers and ends, without malloc's locks held by anybody.
                unsafe {
                    let child = libc::fork();
                    if child == 0 {
                        world.buffers.after_fork_in_child();
                        let other = larder_lab::Lab::new();
                        let is_served = world.buffers.allocate(&other, 24) != 0;
                        let did = level(&world, 0);
                        libc::_exit(i32::from(is_served && did.taken == 1 && did.passed_on == 0) + 40);
                    }
                    assert_eq!(libc::waitpid(child, &mut status, 0), child);
                }
            });
        });
    });
    assert!(world.allocate(&world.members[0], 24));
    drop(hook);
    assert_eq!(libc::WEXITSTATUS(status), 41, "the child's allocation found the buffer free to refill");
    // The parent's own refill was not disturbed.
    assert_eq!((level(&world, 0).refills, level(&world, 0).unfinished), (1, 0));
    world.collect(0);
}

/// Levels of the machine this runs on, with whatever topology it has.
#[test]
fn the_machines_own_levels_serve() {
    for level in [Level::Core, Level::Cache, Level::Package, Level::Node, Level::Process] {
        let world = World::new(Config::new(Lowest::Threads, KIB(4)).under(level, KIB(64)), 1 << 20, 1);
        (0..5000).for_each(|_| assert!(world.allocate(&world.members[0], 24)));
        let did = world.buffers.level_statistics(0).unwrap();
        assert!(did.taken >= 29 && did.refills >= 2, "{level:?}: {did:?}");
        assert_eq!((did.passed_on, did.oversized), (0, 0), "{level:?}");
        world.collect(0);
    }
}

/// A middle level's sizes follow the same policies.
#[test]
fn levels_adapt_their_sizes() {
    let grows = Sizes { initial: Bytes(16 << 10), least: Bytes(16 << 10), most: Bytes(1 << 20), ..Sizes::adaptive() };
    let config = Config::new(Lowest::Threads, KIB(4)).under(groups(4), grows);
    let world = World::new(Config { selection: simulated(4), ..config }, 16 << 20, 1);
    CPU.set(0);
    (0..100_000).for_each(|_| assert!(world.allocate(&world.members[0], 24)));
    let did = level(&world, 0);
    assert!(did.refill_bytes / did.refills > 64 << 10, "{did:?}");
    world.collect(0);
    let before = level(&world, 0);
    (0..100).for_each(|_| assert!(world.allocate(&world.members[0], 24)));
    let after = level(&world, 0).since(&before);
    assert!(after.refills == 1 && after.refill_bytes <= 512 << 10, "halved: {after:?}");
}

/// A space that hands out whole kibibytes.
struct Coarse(BumpSpace);

// SAFETY: as the space in it.
unsafe impl ChunkSource for Coarse {
    fn obtain(&self, request: Request) -> Option<Chunk> {
        let whole = |bytes: Bytes| Bytes(bytes.0.next_multiple_of(1024));
        self.0.obtain(Request { least: whole(request.least), most: whole(request.most), ..request })
    }

    unsafe fn give_back(&self, rest: Chunk, why: Why) {
        // SAFETY: the caller's promise.
        unsafe { self.0.give_back(rest, why) };
    }

    fn epoch(&self) -> u64 {
        self.0.epoch()
    }

    fn left(&self) -> Bytes {
        self.0.left()
    }
}

/// A buffer's fillings are numbered, so that a sequence compares 8 bytes; there are as many numbers until the next stop as 16 bits
/// have. Objects that pass it by lie side by side all the same.
#[test]
fn a_buffer_without_numbers_is_passed_over_until_the_next_stop() {
    const BUFFER: usize = 1024;
    const OBJECT: usize = 128;
    const FILLINGS: usize = u16::MAX as usize;
    let start = larder_sys::memory::map_lazy(Bytes(2 * FILLINGS * BUFFER)).unwrap().as_ptr().expose_provenance();
    // SAFETY: a mapping that stays.
    let space = Coarse(unsafe { BumpSpace::new(start, start + 2 * FILLINGS * BUFFER, false) });
    let config = Config::new(Lowest::Nobody, KIB(1)).under(Level::Process, Sizes::fixed(Bytes(BUFFER)));
    let buffers = Buffers::new(space, config);
    buffers.set_up().unwrap();
    let mine = Lab::new();
    let mut last = 0;
    let mut take = |n: usize| {
        for _ in 0..n {
            // SAFETY: set up; nobody stops this thread.
            let at = unsafe { buffers.allocate(&mine, OBJECT) };
            assert!(at > last, "{at:#x} after {last:#x}");
            last = at;
        }
    };
    take(FILLINGS * (BUFFER / OBJECT));
    let did = || buffers.level_statistics(0).unwrap();
    assert_eq!((did().refills, did().passed_on), (FILLINGS as u64, 0));
    take(10);
    assert_eq!((did().refills, did().passed_on), (FILLINGS as u64, 10));
    assert_eq!(buffers.source().0.used(), Bytes((FILLINGS + 2) * BUFFER));
    // SAFETY: the only thread, and it stands still. What the space had stays used.
    unsafe { buffers.retire_all(|each| each(&mine), None) };
    take(BUFFER / OBJECT);
    assert_eq!((did().refills, did().passed_on), (FILLINGS as u64 + 1, 10));
}
