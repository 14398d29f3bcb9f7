//! Flipping between threads and processors (VEE'05, section 5.2), by what is wasted and by how many threads there are.

mod world;

use std::thread;

use larder_lab::{AllocationFunction, Config, Lowest, Processors, SPECIALISED, Way};
use larder_policy::labs::{Side, Sizes};
use larder_units::Bytes;
use world::{Place, World, pin, small};

const SIZE: usize = 64 << 10;

fn flipping(processors: Processors) -> Config {
    Config::new(Lowest::Flip(processors), Sizes::fixed(Bytes(SIZE)))
}

/// False where processors cannot have buffers.
fn can_flip(world: &World) -> bool {
    let can = world.buffers.processors() != 0;
    if !can {
        println!("skipped: no restartable sequences here");
    }
    can
}

/// Both thresholds, with what is left in real buffers.
#[test]
fn flips_when_more_is_unused_than_the_other_side_could_waste() {
    let cpus = larder_sys::cpus::allowed();
    let world = World::new(flipping(Processors::Cpus), 16 << 20, cpus + 2);
    if !can_flip(&world) {
        return;
    }
    let allocate = |members: usize| {
        world.members[..members].iter().for_each(|member| assert!(world.allocate(member, 24)));
    };
    assert_eq!(world.buffers.side(), Side::Threads, "it begins with threads");
    allocate(cpus);
    let retired = world.collect(0);
    assert_eq!((retired.flipped, retired.allocating_threads), (None, cpus), "as many buffers as CPUs are not too many");
    allocate(cpus + 1);
    assert_eq!(world.collect(0).flipped, Some(Side::Processors));
    assert_eq!(world.buffers.way(), Way::Processor);

    // As many threads allocate: processors waste less.
    allocate(cpus + 2);
    assert_eq!(world.collect(0).flipped, None);
    // One thread, which leaves a buffer behind on each CPU that it was on: on one CPU no more than threads would waste.
    let goes_back = cpus > 1;
    for cpu in 0..cpus {
        pin(cpu);
        allocate(1);
    }
    let retired = world.collect(0);
    assert_eq!(retired.allocating_threads, 1);
    assert_eq!((retired.flipped, retired.partly_used), (goes_back.then_some(Side::Threads), cpus));
    let flips = [Side::Processors, Side::Threads];
    assert_eq!(*world.space().flips.lock().unwrap(), flips[..1 + usize::from(goes_back)], "the host was told");
    let did = world.buffers.statistics();
    assert_eq!((did.flips_to_processors, did.flips_to_threads), (1, u64::from(goes_back)));
    assert_eq!((did.collections_by_threads, did.collections_by_processors), (2, 2));
}

/// By the number of threads that are known, whatever they leave unused.
#[test]
fn flips_where_threads_become_many_or_few() {
    let cpus = larder_sys::cpus::allowed_to_process();
    let config = Config::new(Lowest::FewThreads(Processors::ConcurrencyIds), Sizes::fixed(Bytes(4 << 10)));
    for (room, few) in [(Bytes(0), 4 * cpus), (Bytes(16 * (4 << 10) * (4 * cpus + 3)), 4 * cpus + 3)] {
        for (threads, many) in [(few, false), (few + 1, true)] {
            let world = World::new(Config { room, ..config }, 16 << 20, threads);
            if !can_flip(&world) {
                return;
            }
            let way = world.buffers.way();
            assert!(way.is_by_thread());
            world.members.iter().for_each(|member| assert!(world.allocate(member, 24)));
            assert_eq!(world.buffers.is_due_to_flip(|| threads), many, "{threads} threads, {few} are few");
            assert_eq!(world.collect(0).flipped, many.then_some(Side::Processors));
            world.members.iter().for_each(|member| assert!(world.allocate(member, 24)));
            assert!(!world.buffers.is_due_to_flip(|| threads));
            assert_eq!(world.collect(0).flipped, None, "they are as many as before");
            assert_eq!(*world.space().flips.lock().unwrap(), if many { vec![Side::Processors] } else { vec![] });
        }
    }
}

/// By concurrency id, one thread wastes one buffer wherever it runs, so nothing calls for a flip back.
#[test]
fn one_thread_on_many_cpus_wastes_one_buffer_by_id() {
    let config = Config::new(Lowest::Processors(Processors::ConcurrencyIds), Sizes::fixed(Bytes(SIZE)));
    let world = World::new(config, 16 << 20, 1);
    let ready = world.buffers.shape().is_some() && world.buffers.way() == Way::Processor;
    if !ready || larder_sys::rseq_area::find().map(|area| area.index) != Ok(larder_sys::rseq_area::Index::MmCid) {
        println!("skipped: no concurrency ids here (kernel 6.3 and later have them)");
        return;
    }
    // In a process of its own, whose only thread has id 0: other tests' threads would share the ids.
    // SAFETY: the child allocates from the world, compares, and ends.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            for turn in 0..8 {
                pin(turn % larder_sys::cpus::possible().min(2));
                if world.buffers.allocate(&world.members[0].lab, 24) == 0 {
                    libc::_exit(1);
                }
            }
            let each = |each: &mut dyn FnMut(&larder_lab::Lab)| each(&world.members[0].lab);
            libc::_exit(40 + world.buffers.retire_all(each, None).partly_used as i32);
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        assert_eq!(libc::WEXITSTATUS(status), 41, "one buffer");
    }
}

/// A function of the old set finds an empty buffer, and its slow path goes the right way; after the update it is the other.
#[test]
fn functions_of_the_old_set_are_redirected() {
    let world = World::new(flipping(Processors::Cpus), 16 << 20, 64);
    if !can_flip(&world) {
        return;
    }
    let old: Vec<_> = (1..=SPECIALISED).map(|n| AllocationFunction::new(world.buffers.way(), n).unwrap()).collect();
    assert!(AllocationFunction::<Place>::new(world.buffers.way(), 0).is_none());
    assert!(AllocationFunction::<Place>::new(world.buffers.way(), SPECIALISED + 1).is_none());
    world.members.iter().for_each(|member| assert!(world.allocate(member, 24)));
    assert_eq!(world.collect(0).flipped, Some(Side::Processors));
    let (mine, place) = (&world.members[0].lab, world.place(&world.members[0]));
    // SAFETY: set up, one thread, nobody stops it.
    let allocate = |f: &AllocationFunction<_>| unsafe { f.allocate(&place) };
    for (n, function) in old.iter().enumerate() {
        assert_ne!(allocate(function), 0);
        assert_eq!(world.buffers.statistics().redirected, n as u64 + 1);
        assert_eq!(mine.rest(), Bytes(0), "nothing goes to the thread's buffer any more");
    }
    old.iter().for_each(|function| function.update(world.buffers.way()));
    let mut last = 0;
    for function in &old {
        let at = allocate(function);
        assert!(at != 0 && at != last);
        last = at;
    }
    assert_eq!(world.buffers.statistics().redirected, SPECIALISED as u64, "none since the update");
}

/// Every stop that finds anything unused flips, while 64 threads allocate, half of the objects by functions of the set that was in use in the beginning.
#[test]
fn flips_during_allocation_lose_nothing() {
    let world = World::new(flipping(Processors::ConcurrencyIds), 32 << 20, 64);
    if !can_flip(&world) {
        return;
    }
    // With no thread allocating, both thresholds are zero.
    // A stop that comes before any thread had a CPU finds nothing unused, so it goes on until there were flips each way.
    world.storm_with(2000, 12, small, 256, Some(0), || {
        let did = world.buffers.statistics();
        did.flips_to_processors >= 2 && did.flips_to_threads >= 2 && did.redirected > 0
    });
}

/// 64 threads that allocate a little between stops: it flips once and stays.
#[test]
fn many_threads_flip_once() {
    let world = World::new(flipping(Processors::Cpus), 16 << 20, 64);
    if !can_flip(&world) {
        return;
    }
    for _ in 0..5 {
        thread::scope(|scope| {
            for member in &world.members {
                let world = &world;
                scope.spawn(move || (0..100).for_each(|_| assert!(world.allocate(member, 24))));
            }
        });
        world.collect(0);
    }
    let did = world.buffers.statistics();
    assert_eq!((did.collections_by_threads, did.collections_by_processors, did.flips_to_threads), (1, 4, 0), "{did:?}");
}
