//! What the storms work on: one of every structure, used by threads and by their signal handlers, and accounts that must
//! agree in the end.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::thread;

use larder_percpu::structures::{BoundedStack, Counter, FreeList, Link, Region};
use larder_percpu::{Area, By, Domain, Guarded64, GuardedPair, Options, structures::BumpRegion};

#[repr(C)]
pub struct Node {
    link: Link,
    holders: AtomicUsize,
}

/// A pair that every transaction changes together, and a word that follows it in a chain.
#[repr(C)]
pub struct Words {
    count: Guarded64,
    follows: Guarded64,
    pair: GuardedPair,
}

// SAFETY: words; zero is a beginning.
unsafe impl Area for Words {}

pub struct World {
    nodes: Vec<Node>,
    list: FreeList,
    stack: BoundedStack<Node, 32>,
    counter: Counter,
    domain: Domain<Words>,
    region: BumpRegion,
    counted: AtomicU64,
    transacted: AtomicU64,
    pieces: AtomicU64,
    next_region: AtomicUsize,
    pub handled: AtomicUsize,
}

/// The world that handlers use. Sync: set before signals are sent; the world lives for ever.
static WORLD: AtomicPtr<World> = AtomicPtr::new(std::ptr::null_mut());

const PIECES: usize = 64;

impl World {
    pub fn new(options: Options) -> &'static World {
        let world: &'static World = Box::leak(Box::new(World {
            nodes: (0..200).map(|_| Node { link: Link::new(), holders: AtomicUsize::new(0) }).collect(),
            list: FreeList::with(options),
            stack: BoundedStack::with(options),
            counter: Counter::with(options),
            domain: Domain::with(options),
            region: BumpRegion::with(options),
            counted: AtomicU64::new(0),
            transacted: AtomicU64::new(0),
            pieces: AtomicU64::new(0),
            next_region: AtomicUsize::new(1),
            handled: AtomicUsize::new(0),
        }));
        for node in &world.nodes {
            // SAFETY: the world is never dropped; each node is pushed by its only holder, here and below.
            unsafe { world.list.push(NonNull::from(node).cast()) };
        }
        world.stack.domain().set_up().unwrap();
        world.counter.domain().set_up().unwrap();
        world.domain.set_up().unwrap();
        world.region.domain().set_up().unwrap();
        WORLD.store(std::ptr::from_ref(world).cast_mut(), Ordering::Release);
        world
    }

    fn hold(&self, node: NonNull<Node>) {
        // SAFETY: nodes live for ever.
        assert_eq!(unsafe { node.as_ref() }.holders.fetch_add(1, Ordering::AcqRel), 0, "a node is held twice");
    }

    fn release(&self, node: NonNull<Node>) {
        // SAFETY: as above.
        unsafe { node.as_ref() }.holders.fetch_sub(1, Ordering::AcqRel);
    }

    /// One of each operation; `between` runs wherever nothing is under way.
    pub fn work(&self, between: &dyn Fn()) {
        if let Some(node) = self.list.pop() {
            let node = node.cast::<Node>();
            self.hold(node);
            between();
            self.release(node);
            // Every other node goes through the stack.
            if (node.as_ptr().addr() / size_of::<Node>()).is_multiple_of(2) || self.stack.push(node).is_err() {
                // SAFETY: held by this thread alone.
                unsafe { self.list.push(node.cast()) };
            }
        }
        between();
        let mut taken = [None; 3];
        let n = self.stack.pop_many(&mut taken);
        for node in taken[..n].iter().flatten() {
            self.hold(*node);
            self.release(*node);
            // SAFETY: held by this thread alone.
            unsafe { self.list.push(node.cast()) };
        }
        self.counter.add(1);
        self.counted.fetch_add(1, Ordering::Relaxed);
        between();
        self.domain.run(
            |t| {
                let seen = (t.count.load(), t.pair.load());
                between();
                t.store(&t.count, seen.0 + 1)?;
                self.transacted.fetch_add(1, Ordering::Relaxed);
                // The rest of the chain may be lost to interference, which the count is not.
                let _ = t.store(&t.follows, seen.0 + 1);
                let _ = t.compare_store(&t.pair, seen.1, seen.1.map(|w| w + 1));
                Ok(())
            },
            |area| {
                area.store(&area.count, area.count.load() + 1);
                self.transacted.fetch_add(1, Ordering::Relaxed);
            },
        );
        match self.region.take(1) {
            Some(_) => _ = self.pieces.fetch_add(1, Ordering::Relaxed),
            None => {
                let frontier = self.next_region.fetch_add(1, Ordering::Relaxed) * PIECES;
                let kept = match self.region.install(Region { frontier, limit: frontier + PIECES }, 1) {
                    Ok(rest) | Err(rest) => rest,
                };
                self.pieces.fetch_add(kept.bytes() as u64, Ordering::Relaxed);
            }
        }
    }

    /// Takes over a few indices, and puts everything back.
    pub fn take_over(&self) {
        for index in 0..self.list.domain().areas() {
            for node in self.list.take(index).unwrap() {
                // SAFETY: the chain is this thread's.
                unsafe { self.list.push(node) };
            }
        }
        let got = self.counter.take_all().unwrap();
        self.counter.add(got);
        for index in 0..self.region.domain().areas() {
            let rest = self.region.retire(index).unwrap();
            self.pieces.fetch_add(rest.bytes() as u64, Ordering::Relaxed);
        }
    }

    /// Everything is in exactly one place.
    pub fn settle(&self) {
        let mut found = vec![];
        self.list.take_all(|node| found.push(node.cast::<Node>())).unwrap();
        self.stack.take_all(|node| found.push(node)).unwrap();
        found.sort_unstable();
        let mut all: Vec<_> = self.nodes.iter().map(NonNull::from).collect();
        all.sort_unstable();
        assert_eq!(found, all, "each node is in one place");
        assert_eq!(self.counter.sum(), self.counted.load(Ordering::Relaxed));
        let count: u64 = self.domain.iter().map(|a| a.count.load()).sum();
        assert_eq!(count, self.transacted.load(Ordering::Relaxed), "{}", self.domain.statistics());
        for area in self.domain.iter() {
            let [a, b] = area.pair.load();
            assert!(a == b && a <= area.count.load() && area.follows.load() <= area.count.load());
        }
        for index in 0..self.region.domain().areas() {
            let rest = self.region.retire(index).unwrap();
            self.pieces.fetch_add(rest.bytes() as u64, Ordering::Relaxed);
        }
        let regions = self.next_region.load(Ordering::Relaxed) - 1;
        assert_eq!(self.pieces.load(Ordering::Relaxed), (regions * PIECES) as u64);
    }

    #[allow(dead_code)] // Of the two tests that share this file, one asks.
    pub fn mode(&self) -> larder_percpu::Mode {
        self.domain.mode()
    }
}

/// Every way of working that there is here.
pub fn every_way() -> [Options; 3] {
    [Options::new(By::ConcurrencyId), Options::new(By::Cpu), Options { sequences: false, ..Options::new(By::Cpu) }]
}

extern "C" fn on_signal(_: i32) {
    // SAFETY: set before the handler is installed, and never dropped.
    let world = unsafe { &*WORLD.load(Ordering::Acquire) };
    world.work(&|| {});
    world.handled.fetch_add(1, Ordering::Relaxed);
}

/// Signals whose handler works on the world.
pub fn handle(signal: i32) {
    // SAFETY: the handler uses the world's structures and counters only, none of which it waits for.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_signal as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        assert_eq!(libc::sigaction(signal, &action, std::ptr::null_mut()), 0);
    }
}

/// Lets the calling thread run on one CPU only; false where that is not allowed.
pub fn pin(cpu: usize) -> bool {
    // SAFETY: the set is plain data.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &set) == 0
    }
}

/// Runs `body` in `n` threads.
pub fn crowd(n: usize, body: impl Fn(usize) + Sync) {
    thread::scope(|scope| {
        for i in 0..n {
            let body = &body;
            thread::Builder::new().stack_size(128 * 1024).spawn_scoped(scope, move || body(i)).unwrap();
        }
    });
}
