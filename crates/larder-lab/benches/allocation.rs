//! `cargo bench -p larder-lab`: what an allocation costs, by whom the buffers belong to.
//!
//! Threads allocate objects of 32 bytes, inlined, from buffers of 64 KiB over a region that is made free again between windows;
//! nothing is written to the objects, and the region is not cleared. Beside it stands `lock xadd` on a line of the thread's own, and on
//! one that all threads use: the least that a shared level could cost, and what it costs to share. Contenders run in turn, round by round;
//! what is printed is CPU time, in nanoseconds: median, lowest and highest. `ROUNDS=n` changes the number of rounds.

use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use larder_lab::{Buffers, BumpSpace, Config, Lab, Lowest, Processors, Way};
use larder_percpu::Level;
use larder_policy::labs::Sizes;
use larder_sys::memory;
use larder_units::Bytes;

/// Objects that a thread allocates in a window.
const OBJECTS: usize = 2_000_000;
const OBJECT: usize = 32;
const BUFFER: Bytes = Bytes(64 << 10);

#[repr(align(128))]
#[derive(Default)]
struct Line(AtomicUsize);

/// What is measured.
enum Contender {
    Buffers(Box<Buffers<BumpSpace>>, Way),
    OwnLine,
    SharedLine,
}

fn buffers(config: Config, threads: usize) -> Contender {
    let bytes = threads * OBJECTS * OBJECT + (64 << 20);
    let start = memory::map_lazy(Bytes(bytes)).expect("there is address space").as_ptr().expose_provenance();
    // SAFETY: a mapping that stays for as long as the process.
    let buffers = Box::new(Buffers::new(unsafe { BumpSpace::new(start, start + bytes, false) }, config));
    let ready = buffers.set_up().expect("the buffers can be set up");
    if let Some(why) = ready.instead {
        println!("by threads instead: {why}");
    }
    Contender::Buffers(buffers, ready.way)
}

/// What the calling thread has used of processors.
fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure is the kernel's to fill.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Nanoseconds of CPU time for an allocation.
fn window(contender: &Contender, threads: usize) -> f64 {
    let (begin, shared) = (Barrier::new(threads), Line::default());
    let labs: Vec<Lab> = (0..threads).map(|_| Lab::new()).collect();
    let spent: Duration = thread::scope(|scope| {
        let workers: Vec<_> = labs
            .iter()
            .map(|mine| {
                let (begin, shared) = (&begin, &shared);
                scope.spawn(move || {
                    let own = Line::default();
                    begin.wait();
                    let from = thread_time();
                    match contender {
                        Contender::Buffers(buffers, way) => allocate(buffers, *way, mine),
                        Contender::OwnLine => add(&own),
                        Contender::SharedLine => add(shared),
                    }
                    thread_time() - from
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().expect("it does not panic")).sum()
    });
    if let Contender::Buffers(buffers, _) = contender {
        // SAFETY: all threads have ended, and nothing of the region is used any more.
        unsafe {
            buffers.retire_all(|each| labs.iter().for_each(each), None);
            buffers.source().reset();
        }
    }
    spent.as_nanos() as f64 / (threads * OBJECTS) as f64
}

/// The way is looked at once, as a class's function or a compiler does.
fn allocate(buffers: &Buffers<BumpSpace>, way: Way, mine: &Lab) {
    macro_rules! by {
        ($way:expr) => {
            for _ in 0..OBJECTS {
                // SAFETY: set up, with this way; the lab is this thread's; nobody stops it.
                let at = unsafe {
                    match buffers.take_in($way, mine, OBJECT) {
                        0 => buffers.allocate_slow(mine, OBJECT),
                        at => at,
                    }
                };
                assert_ne!(black_box(at), 0, "the region has room for all");
            }
        };
    }
    match way {
        Way::Thread => by!(Way::Thread),
        Way::Processor => by!(Way::Processor),
        Way::Shared => by!(Way::Shared),
        Way::ThreadAlone => by!(Way::ThreadAlone),
    }
}

fn add(line: &Line) {
    for _ in 0..OBJECTS {
        black_box(line.0.fetch_add(OBJECT, Ordering::Relaxed));
    }
}

fn main() {
    let rounds: usize = std::env::var("ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(15);
    let own = |lowest| Config::new(lowest, Sizes::fixed(BUFFER));
    let level = |level| own(Lowest::Nobody).under(level, Sizes::fixed(Bytes(1 << 20)));
    let configs = [
        ("threads'", own(Lowest::Threads)),
        ("threads', without sequences", Config { sequences: false, ..own(Lowest::Threads) }),
        ("concurrency ids'", own(Lowest::Processors(Processors::ConcurrencyIds))),
        ("CPUs'", own(Lowest::Processors(Processors::Cpus))),
        ("cores', shared level", level(Level::Core)),
        ("the package's, shared level", level(Level::Package)),
        ("the process's, shared level", level(Level::Process)),
    ];
    for threads in [1, 2] {
        let mut all =
            vec![("lock xadd, a line of its own", Contender::OwnLine), ("lock xadd, one line", Contender::SharedLine)];
        all.extend(configs.iter().map(|&(name, config)| (name, buffers(config, threads))));
        let mut times: Vec<Vec<f64>> = all.iter().map(|_| Vec::new()).collect();
        for _ in 0..rounds {
            for ((_, contender), times) in all.iter().zip(&mut times) {
                times.push(window(contender, threads));
            }
        }
        println!(
            "{threads} thread{}: ns of CPU time for an allocation, median (lowest-highest); of lock xadd on its own line, on one line",
            if threads == 1 { "" } else { "s" }
        );
        let median = |values: &mut Vec<f64>| {
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        let ratio = |at: usize, to: usize| median(&mut times[at].iter().zip(&times[to]).map(|(a, b)| a / b).collect());
        for (at, (name, _)) in all.iter().enumerate() {
            let mut sorted = times[at].clone();
            let middle = median(&mut sorted);
            let (least, most) = (sorted[0], sorted[sorted.len() - 1]);
            println!("  {name:30} {middle:6.2} ({least:.2}-{most:.2})  {:.2}  {:.2}", ratio(at, 0), ratio(at, 1));
        }
    }
}
