//! A world to storm in: threads that allocate, a space that remembers what comes back, and stops by signal at any
//! instruction that is not deferred.

#![allow(dead_code, reason = "each test file is a crate of its own and uses what it needs")]

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::thread;

use larder_lab::{
    AllocationFunction, Buffers, BumpSpace, Chunk, ChunkSource, Config, Lab, Point, Request, Retired, SPECIALISED,
    Site, Way, Why,
};
use larder_policy::labs::Side;
use larder_units::Bytes;

/// A space of its own memory that remembers what was given back since its last reset.
pub struct Space {
    space: BumpSpace,
    memory: (usize, usize),
    rests: Mutex<Vec<(usize, usize)>>,
    pub flips: Mutex<Vec<Side>>,
    /// Called once inside the next `obtain`, before it obtains: a collection, say.
    pub inside: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Space {
    pub fn new(bytes: usize) -> Self {
        let memory = larder_sys::memory::map_lazy(Bytes(bytes)).unwrap().as_ptr().expose_provenance();
        // SAFETY: a mapping of that size, unmapped when the space is dropped.
        let space = unsafe { BumpSpace::new(memory, memory + bytes, true) };
        Self {
            space,
            memory: (memory, bytes),
            rests: Mutex::new(Vec::new()),
            flips: Mutex::new(Vec::new()),
            inside: Mutex::new(None),
        }
    }

    pub fn used(&self) -> Bytes {
        self.space.used()
    }

    /// The rests since the last reset.
    pub fn rests(&self) -> Vec<(usize, usize)> {
        self.rests.lock().unwrap().clone()
    }

    /// # Safety
    /// As for [`BumpSpace::reset`].
    pub unsafe fn reset(&self) {
        self.rests.lock().unwrap().clear();
        // SAFETY: the caller's promise.
        unsafe { self.space.reset() };
    }

    /// Checks that objects and rests lie in the used part without overlapping; returns the bytes of the holes between them.
    pub fn holes(&self, objects: impl Iterator<Item = (usize, usize)>) -> usize {
        let mut all: Vec<_> = objects.chain(self.rests()).collect();
        all.sort_unstable();
        let mut at = self.memory.0;
        let mut holes = 0;
        for (start, end) in all {
            assert!(start >= at, "{start:#x}..{end:#x} overlaps what ends at {at:#x}");
            holes += start - at;
            at = end;
        }
        let top = self.memory.0 + self.used().0;
        assert!(at <= top, "something lies behind the used part");
        holes + (top - at)
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`.
        unsafe {
            larder_sys::memory::unmap(core::ptr::with_exposed_provenance_mut(self.memory.0), Bytes(self.memory.1));
        }
    }
}

// SAFETY: it passes on what `BumpSpace` gives.
unsafe impl ChunkSource for Space {
    fn obtain(&self, request: Request) -> Option<Chunk> {
        let inside = self.inside.lock().unwrap().take();
        if let Some(inside) = inside {
            inside();
        }
        self.space.obtain(request)
    }

    fn prepare(&self, chunk: Chunk) {
        self.space.prepare(chunk);
    }

    unsafe fn give_back(&self, rest: Chunk, why: Why) {
        let before = self.space.used();
        // SAFETY: the caller's promise.
        unsafe { self.space.give_back(rest, Why::Stop) };
        assert!(before <= self.space.used(), "the frontier went back although nothing asked for it: {why:?}");
        self.rests.lock().unwrap().push((rest.start, rest.end));
    }

    fn epoch(&self) -> u64 {
        self.space.epoch()
    }

    fn left(&self) -> Bytes {
        self.space.left()
    }

    fn flipped(&self, to: Side) {
        self.flips.lock().unwrap().push(to);
    }

    fn at(&self, point: Point) {
        // Not in the hook itself.
        let hook = HOOK.take();
        if let Some(mut hook) = hook {
            hook(point);
            let replaced = HOOK.replace(Some(hook));
            if replaced.is_some() {
                HOOK.set(replaced);
            }
        }
    }
}

type Hook = Box<dyn FnMut(Point)>;

thread_local! {
    /// What the calling thread does at the points that it passes.
    static HOOK: RefCell<Option<Hook>> = const { RefCell::new(None) };
    /// How deep the thread defers stops.
    static DEFERS: Cell<u32> = const { Cell::new(0) };
    static PENDING: Cell<bool> = const { Cell::new(false) };
}

/// The number of the stop while one is wanted, 0 while the world runs.
static STOP: AtomicU32 = AtomicU32::new(0);
static PARKED: AtomicUsize = AtomicUsize::new(0);

fn park() {
    let stop = STOP.load(Ordering::Acquire);
    if stop == 0 {
        return;
    }
    PARKED.fetch_add(1, Ordering::AcqRel);
    wait_while(&STOP, stop);
}

/// Sleeps while the word is `value`; signals are taken meanwhile.
fn wait_while(word: &AtomicU32, value: u32) {
    while word.load(Ordering::Acquire) == value {
        // SAFETY: a futex of this process.
        unsafe {
            libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG, value, 0);
        }
    }
}

/// Stores another value, and wakes all.
fn end_wait(word: &AtomicU32, value: u32) {
    word.store(value, Ordering::Release);
    // SAFETY: as above.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, i32::MAX);
    }
}

extern "C" fn stop_handler(_: i32) {
    if DEFERS.get() != 0 {
        PENDING.set(true);
    } else {
        park();
    }
}

/// Sets what the calling thread does at each point from here on. The closure must outlive its use.
pub fn at_points<'a>(hook: impl FnMut(Point) + 'a) -> impl Drop + 'a {
    struct Unset<'a>(std::marker::PhantomData<&'a ()>);
    impl Drop for Unset<'_> {
        fn drop(&mut self) {
            HOOK.set(None);
        }
    }
    let hook: Box<dyn FnMut(Point) + 'a> = Box::new(hook);
    // SAFETY: `Unset` takes it away before `'a` ends, on the same thread.
    HOOK.set(Some(unsafe { std::mem::transmute::<Box<dyn FnMut(Point) + 'a>, Box<dyn FnMut(Point) + 'static>>(hook) }));
    Unset(std::marker::PhantomData)
}

/// The CPUs that the process may use, as the first world found them, before any thread was put on one.
static USABLE: OnceLock<Vec<usize>> = OnceLock::new();

fn usable() -> &'static [usize] {
    USABLE.get_or_init(|| {
        // SAFETY: a set on the stack.
        unsafe {
            let mut set: libc::cpu_set_t = core::mem::zeroed();
            assert_eq!(libc::sched_getaffinity(0, size_of_val(&set), &mut set), 0);
            (0..libc::CPU_SETSIZE as usize).filter(|&cpu| libc::CPU_ISSET(cpu, &set)).collect()
        }
    })
}

/// Puts the calling thread on one CPU: the `nth` of those that the process may use, counted around.
pub fn pin(nth: usize) {
    let cpu = usable()[nth % usable().len()];
    // SAFETY: a set on the stack.
    unsafe {
        let mut set: libc::cpu_set_t = core::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        assert_eq!(libc::sched_setaffinity(0, size_of_val(&set), &set), 0);
    }
}

/// Runs `f` without being stopped in it.
pub fn deferred<R>(f: impl FnOnce() -> R) -> R {
    DEFERS.set(DEFERS.get() + 1);
    let result = f();
    if DEFERS.get() == 1 {
        // A signal from here on parks in the handler; the flag says whether one came before.
        DEFERS.set(0);
        if PENDING.replace(false) {
            park();
        }
    } else {
        DEFERS.set(DEFERS.get() - 1);
    }
    result
}

/// What one thread of the world has.
pub struct Member {
    pub lab: Lab,
    tid: AtomicI32,
    /// Objects of the present epoch. Written by the thread while it defers.
    pub objects: Mutex<Vec<(usize, usize)>>,
    /// Functions of the set that was in use when the world was made.
    functions: Vec<AllocationFunction<Place>>,
    pub allocated: AtomicU64,
}

/// What a member's allocation functions are called with. It lies on its stack while they run.
pub struct Place {
    buffers: *const Buffers<Space>,
    lab: *const Lab,
}

// SAFETY: as for `Buffers::allocate`, whose promises the callers of the functions make.
unsafe impl Site for Place {
    unsafe fn take(&self, way: Way, bytes: usize) -> usize {
        // SAFETY: as above; the world outlives the call.
        unsafe { (*self.buffers).take_in(way, &*self.lab, bytes) }
    }

    unsafe fn missed(&self, way: Way, bytes: usize) -> usize {
        // SAFETY: as above.
        unsafe {
            (*self.buffers).note_miss(way);
            (*self.buffers).allocate_slow(&*self.lab, bytes)
        }
    }
}

/// A set of buffers with threads that use it.
pub struct World {
    pub buffers: Buffers<Space>,
    pub members: Vec<Member>,
    over: AtomicU32,
}

impl World {
    pub fn new(config: Config, bytes: usize, threads: usize) -> Self {
        usable();
        let buffers = Buffers::new(Space::new(bytes), config);
        buffers.set_up().unwrap();
        let member = || Member {
            lab: Lab::new(),
            tid: AtomicI32::new(0),
            objects: Mutex::new(Vec::new()),
            functions: (1..=SPECIALISED).filter_map(|words| AllocationFunction::new(buffers.way(), words)).collect(),
            allocated: AtomicU64::new(0),
        };
        let members = (0..threads).map(|_| member()).collect();
        Self { buffers, members, over: AtomicU32::new(0) }
    }

    /// What this member's allocation functions are called with.
    pub fn place(&self, me: &Member) -> Place {
        Place { buffers: &self.buffers, lab: &me.lab }
    }

    pub fn space(&self) -> &Space {
        self.buffers.source()
    }

    /// Allocates, writes and notes one object; false when the space is exhausted. `lost` objects (whose thread was stopped
    /// before it had noted them) are holes.
    pub fn allocate(&self, me: &Member, bytes: usize) -> bool {
        let epoch = self.space().epoch();
        // Every second object by a function that may be of the wrong set by now; its slow path is deferred as a whole.
        let by_function = me.functions.get(bytes / 8 - 1).filter(|_| bytes.is_multiple_of(16));
        // SAFETY: set up; the sizes are multiples of 8; the slow path is deferred.
        let at = unsafe {
            match by_function {
                Some(function) => {
                    // The function's slow path is within it, so all of it is deferred.
                    deferred(|| function.allocate(&self.place(me)))
                }
                None => match self.buffers.take(&me.lab, bytes) {
                    0 => deferred(|| self.buffers.allocate_slow(&me.lab, bytes)),
                    at => at,
                },
            }
        };
        if at == 0 {
            return false;
        }
        deferred(|| {
            if self.space().epoch() == epoch {
                assert!(
                    words(at, bytes).iter().all(|word| word.load(Ordering::Relaxed) == 0),
                    "an object is not cleared"
                );
                fill(at, bytes);
                me.objects.lock().unwrap().push((at, at + bytes));
            }
        });
        me.allocated.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Stops every member that runs, calls `f`, and lets them go on.
    pub fn stopped<R>(&self, f: impl FnOnce() -> R) -> R {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let running: Vec<_> =
            self.members.iter().map(|member| member.tid.load(Ordering::Acquire)).filter(|&tid| tid != 0).collect();
        PARKED.store(0, Ordering::Release);
        STOP.store(NUMBER.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Release);
        let mut sent = 0;
        for &tid in &running {
            sent += usize::from(larder_sys::signal::send(tid, libc::SIGUSR2).is_ok());
        }
        while PARKED.load(Ordering::Acquire) < sent {
            thread::yield_now();
        }
        let result = f();
        end_wait(&STOP, 0);
        result
    }

    /// Retires all buffers, checks every byte, and begins a new epoch. The world is stopped, or this is the only thread.
    /// `most_holes` is what may be neither object nor rest.
    pub fn collect(&self, most_holes: usize) -> Retired {
        self.collect_with(most_holes, None)
    }

    /// The same, with the host's number of allocating threads.
    pub fn collect_with(&self, most_holes: usize, allocating_threads: Option<usize>) -> Retired {
        let each = |each: &mut dyn FnMut(&Lab)| self.members.iter().for_each(|member| each(&member.lab));
        // SAFETY: the world is stopped.
        let retired = unsafe { self.buffers.retire_all(each, allocating_threads) };
        let objects: Vec<_> = self.members.iter().flat_map(|member| member.objects.lock().unwrap().clone()).collect();
        for &(start, end) in &objects {
            check(start, end - start);
        }
        let holes = self.space().holes(objects.into_iter());
        assert!(holes <= most_holes, "{holes} bytes are neither in an object nor given back");
        for member in &self.members {
            member.objects.lock().unwrap().clear();
        }
        // SAFETY: the world is stopped, the buffers are retired, and nobody knows an object any more.
        unsafe { self.space().reset() };
        retired
    }

    /// Runs every member with `objects` allocations or more of sizes that `size` gives, while this thread stops the world
    /// `stops` times or more and collects.
    pub fn storm(&self, objects: u64, stops: usize, size: impl Fn(&mut u64) -> usize + Sync, largest: usize) {
        self.storm_with(objects, stops, size, largest, None, || true);
    }

    /// The same, with what stops are told about allocating threads; and it stops until `seen` as well.
    pub fn storm_with(
        &self,
        objects: u64,
        stops: usize,
        size: impl Fn(&mut u64) -> usize + Sync,
        largest: usize,
        allocating_threads: Option<usize>,
        seen: impl Fn() -> bool,
    ) {
        install();
        let _bomb = Bomb;
        let _watch = Watch::begin();
        let left = AtomicUsize::new(self.members.len());
        let enough = AtomicBool::new(stops == 0 && seen());
        thread::scope(|scope| {
            for (number, me) in self.members.iter().enumerate() {
                let (size, left, enough) = (&size, &left, &enough);
                let body = move || {
                    me.tid.store(larder_sys::thread::tid(), Ordering::Release);
                    let _bomb = Bomb;
                    let mut random = (number as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
                    let mut done = 0;
                    while done < objects || !enough.load(Ordering::Relaxed) {
                        if self.allocate(me, size(&mut random)) {
                            done += 1;
                        } else {
                            thread::yield_now();
                        }
                    }
                    left.fetch_sub(1, Ordering::AcqRel);
                    // A stop may have counted this thread: it stays to answer.
                    wait_while(&self.over, 0);
                    me.tid.store(0, Ordering::Release);
                };
                thread::Builder::new().stack_size(64 << 10).spawn_scoped(scope, body).unwrap();
            }
            let allocated = || self.members.iter().map(|member| member.allocated.load(Ordering::Relaxed)).sum::<u64>();
            let (mut made, mut before) = (0, 0);
            while left.load(Ordering::Acquire) != 0 {
                // After those that are wanted in any case, only where something was allocated: to stop threads that still wait for a CPU
                // since the last stop shows nothing, and takes long.
                let shows_something = made < stops || allocated() != before;
                let is_due = !enough.load(Ordering::Relaxed) && shows_something || self.space().left().0 < largest * 4;
                if is_due && self.members.iter().all(|member| member.tid.load(Ordering::Acquire) != 0) {
                    self.stopped(|| self.collect_with(self.members.len() * largest, allocating_threads));
                    made += 1;
                    before = allocated();
                    enough.fetch_or(made >= stops && seen(), Ordering::Relaxed);
                }
                thread::yield_now();
            }
            end_wait(&self.over, 1);
        });
        self.collect(self.members.len() * largest);
    }
}

/// Ends the process when its thread panics: the others would wait for it.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        if thread::panicking() {
            std::process::abort();
        }
    }
}

/// Ends the process if a storm does not end. Long, because a thousand threads take their time on a loaded machine.
struct Watch;

impl Watch {
    fn begin() -> Self {
        // SAFETY: no handler.
        unsafe { libc::alarm(900) };
        Self
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // SAFETY: ends the watch of this storm.
        unsafe { libc::alarm(0) };
    }
}

fn install() {
    type Action = extern "C" fn(i32);
    let handler: Action = stop_handler;
    // SAFETY: the handler is async-signal-safe: it touches atomics, constant thread-locals and a futex.
    unsafe {
        let mut action: libc::sigaction = core::mem::zeroed();
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_RESTART;
        libc::sigfillset(&mut action.sa_mask);
        assert_eq!(libc::sigaction(libc::SIGUSR2, &action, core::ptr::null_mut()), 0);
    }
}

fn words<'a>(at: usize, bytes: usize) -> &'a [AtomicU64] {
    // SAFETY: an object that the test owns; the memory stays mapped.
    unsafe { core::slice::from_raw_parts(core::ptr::with_exposed_provenance(at), bytes / 8) }
}

/// Every word of an object says where it is and how long the object is.
pub fn fill(at: usize, bytes: usize) {
    for (n, word) in words(at, bytes).iter().enumerate() {
        word.store((at + n * 8) as u64 ^ (bytes as u64) << 48, Ordering::Relaxed);
    }
}

pub fn check(at: usize, bytes: usize) {
    for (n, word) in words(at, bytes).iter().enumerate() {
        let expected = (at + n * 8) as u64 ^ (bytes as u64) << 48;
        assert_eq!(word.load(Ordering::Relaxed), expected, "word {n} of the object at {at:#x} was overwritten");
    }
}

/// The next of a sequence of random numbers.
pub fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Mostly small sizes: 8 to 256 bytes.
pub fn small(state: &mut u64) -> usize {
    8 * (1 + random(state) as usize % 32)
}
