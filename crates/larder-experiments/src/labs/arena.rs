//! Threads that allocate in bursts from one set of buffers over a bump region, with collections that stop them between bursts.
//!
//! A collection here takes the buffers back and makes the whole region free: nothing is copied. So its time is what buffers
//! cost a collection, and the number of collections is what the waste of buffers makes of it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Mutex, OnceLock};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use larder_lab::counters::Description;
use larder_lab::{Buffers, BumpSpace, Config, Lab, LevelStatistics, Ready, Statistics};
use larder_sys::memory;
use larder_units::Bytes;
use serde_json::{Value, json};

/// One thread.
#[derive(Default)]
pub struct Member {
    lab: Lab,
    /// In a burst. Sync: see `enter`.
    runs: AtomicBool,
    objects: AtomicU64,
}

/// The region, its buffers and the threads.
pub struct Arena {
    buffers: Buffers<BumpSpace>,
    memory: (usize, usize),
    members: Vec<Member>,
    stop: AtomicBool,
    collecting: Mutex<()>,
    collections: AtomicU64,
    stopped_ns: AtomicU64,
    pub over: AtomicBool,
    pub ready: Ready,
}

/// What a run did.
pub struct Outcome {
    pub objects: u64,
    pub elapsed: Duration,
    /// Processor time that the process got meanwhile: the machine may be shared.
    pub cpu: Duration,
    pub collections: u64,
    pub stopped_ns: u64,
    pub buffers: Statistics,
    pub levels: Vec<LevelStatistics>,
}

/// How long a run lasts.
#[derive(Clone, Copy)]
pub struct Window {
    /// So long.
    pub time: Duration,
    /// And until there were so many collections, but not longer than [`Window::MOST_TIMES`] the time.
    pub collections: u64,
}

impl Window {
    /// See `collections`: a machine that does not get there at all must not be waited for.
    const MOST_TIMES: u32 = 60;

    /// So long, whatever happens.
    pub const fn of(time: Duration) -> Self {
        Self { time, collections: 0 }
    }
}

impl Arena {
    /// A region of so many bytes for so many threads.
    pub fn new(config: Config, bytes: usize, threads: usize) -> Result<Self, String> {
        let start = memory::map_lazy(Bytes(bytes))
            .map_err(|error| {
                format!("no memory for a region of {bytes} bytes (errno {}): use smaller sizes", error.errno)
            })?
            .as_ptr()
            .expose_provenance();
        for page in (start..start + bytes).step_by(4096) {
            // SAFETY: a page of the mapping. The first touch is not what is measured.
            unsafe { core::ptr::with_exposed_provenance_mut::<u8>(page).write_volatile(0) };
        }
        // SAFETY: a mapping of this size, which lives as long as the arena.
        let buffers = Buffers::new(unsafe { BumpSpace::new(start, start + bytes, true) }, config);
        let ready = buffers.set_up().map_err(|error| error.to_string())?;
        Ok(Self {
            buffers,
            memory: (start, bytes),
            members: (0..threads).map(|_| Member::default()).collect(),
            stop: AtomicBool::new(false),
            collecting: Mutex::new(()),
            collections: AtomicU64::new(0),
            stopped_ns: AtomicU64::new(0),
            over: AtomicBool::new(false),
            ready,
        })
    }

    pub fn members(&self) -> usize {
        self.members.len()
    }

    fn enter(&self, me: &Member) {
        loop {
            me.runs.store(true, Ordering::Relaxed);
            // Between this store and the load, as the collector's between its store and its loads: one of them sees the other.
            fence(Ordering::SeqCst);
            if !self.stop.load(Ordering::Acquire) {
                return;
            }
            me.runs.store(false, Ordering::Release);
            // Until the collection is over.
            drop(self.collecting.lock());
        }
    }

    fn leave(&self, me: &Member) {
        me.runs.store(false, Ordering::Release);
    }

    /// Allocates `objects` of sizes that `size` gives, and writes their first words. Stops come before and after, and where the
    /// region is exhausted.
    pub fn burst(&self, number: usize, objects: u64, mut size: impl FnMut() -> usize) {
        let me = &self.members[number];
        self.enter(me);
        for _ in 0..objects {
            let bytes = size();
            // SAFETY: set up; sizes are multiples of 8; nobody stops a thread that is in a burst.
            let mut at = unsafe { self.buffers.allocate(&me.lab, bytes) };
            while at == 0 {
                let before = self.collections.load(Ordering::Relaxed);
                self.leave(me);
                self.collect(before);
                self.enter(me);
                // SAFETY: as above.
                at = unsafe { self.buffers.allocate(&me.lab, bytes) };
            }
            // SAFETY: the object is this thread's, and has a word.
            unsafe { core::ptr::with_exposed_provenance_mut::<u64>(at).write(bytes as u64) };
        }
        me.objects.fetch_add(objects, Ordering::Relaxed);
        self.leave(me);
    }

    /// Collects, unless somebody has done so since `before` collections.
    fn collect(&self, before: u64) {
        let _held = self.collecting.lock().expect("no thread panics with it");
        if self.collections.load(Ordering::Relaxed) != before {
            return;
        }
        self.stop.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        for member in &self.members {
            while member.runs.load(Ordering::Acquire) {
                thread::yield_now();
            }
        }
        let stopped = Instant::now();
        // SAFETY: nobody is in a burst, and objects are used in bursts only.
        unsafe {
            self.buffers.retire_all(|each| self.members.iter().for_each(|member| each(&member.lab)), None);
            self.buffers.source().reset();
        }
        self.collections.fetch_add(1, Ordering::Relaxed);
        self.stopped_ns.fetch_add(stopped.elapsed().as_nanos() as u64, Ordering::Relaxed);
        self.stop.store(false, Ordering::Release);
    }

    /// Runs `body` in every thread until `window` is over; `body` looks at [`over`](Self::over) between bursts, and may park:
    /// it is unparked in the end. It gets its number and all threads.
    pub fn run(&self, window: Window, body: impl Fn(usize, &[Thread]) + Sync) -> Outcome {
        let all: OnceLock<Vec<Thread>> = OnceLock::new();
        let (elapsed, cpu) = thread::scope(|scope| {
            let (all, body) = (&all, &body);
            let spawn = |number| {
                let run = move || {
                    while all.get().is_none() {
                        thread::park();
                    }
                    body(number, all.get().expect("seen above"));
                };
                let spawned = thread::Builder::new().stack_size(64 << 10).spawn_scoped(scope, run);
                spawned.expect("the machine has room for a thousand threads").thread().clone()
            };
            let threads: Vec<_> = (0..self.members.len()).map(spawn).collect();
            let (begun, cpu) = (Instant::now(), processor_time());
            let threads = all.get_or_init(|| threads);
            threads.iter().for_each(Thread::unpark);
            thread::sleep(window.time);
            let most = window.time * Window::MOST_TIMES;
            while self.collections.load(Ordering::Relaxed) < window.collections && begun.elapsed() < most {
                thread::sleep(window.time / 20);
            }
            self.over.store(true, Ordering::Release);
            let spent = (begun.elapsed(), processor_time() - cpu);
            threads.iter().for_each(Thread::unpark);
            spent
        });
        Outcome {
            objects: self.members.iter().map(|member| member.objects.load(Ordering::Relaxed)).sum(),
            elapsed,
            cpu,
            collections: self.collections.load(Ordering::Relaxed),
            stopped_ns: self.stopped_ns.load(Ordering::Relaxed),
            buffers: self.buffers.statistics(),
            levels: (0..).map_while(|k| self.buffers.level_statistics(k)).collect(),
        }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`; no thread runs any more.
        unsafe { memory::unmap(core::ptr::with_exposed_provenance_mut(self.memory.0), Bytes(self.memory.1)) };
    }
}

impl Outcome {
    /// Objects per second of processor time.
    pub fn rate(&self) -> f64 {
        self.objects as f64 / self.cpu.as_secs_f64().max(1e-9)
    }

    /// So many for each GiB of objects.
    pub fn per_gib(&self, count: u64, bytes_per_object: f64) -> f64 {
        count as f64 * (1u64 << 30) as f64 / (self.objects as f64 * bytes_per_object).max(1.0)
    }

    /// All that the buffers counted, by name.
    pub fn counters(&self) -> Value {
        let named = |names: &[Description], values: &[u64]| {
            let pairs = names.iter().zip(values).map(|(name, value)| (name.name.to_owned(), json!(value)));
            Value::Object(pairs.collect())
        };
        let mut all = named(Statistics::DESCRIPTIONS, &self.buffers.values());
        all["collections"] = json!(self.collections);
        all["stopped_ns"] = json!(self.stopped_ns);
        all["levels"] = self.levels.iter().map(|level| named(LevelStatistics::DESCRIPTIONS, &level.values())).collect();
        all
    }
}

/// What the process has used of processors.
fn processor_time() -> Duration {
    // SAFETY: the structure is the kernel's to fill.
    unsafe {
        let mut usage: libc::rusage = core::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        let of = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
        of(usage.ru_utime) + of(usage.ru_stime)
    }
}
