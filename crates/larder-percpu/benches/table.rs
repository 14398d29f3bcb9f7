//! `cargo bench -p larder-percpu`: the table of docs/performance.md.
//!
//! Every operation and its alternative run in the same process, one after the other, round by round; what is printed is the
//! CPU time of one operation, in nanoseconds: the median of the rounds, and the lowest and highest. CPU time, because with
//! more threads than CPUs the time on the clock counts the waiting. `ROUNDS=n` changes the number of rounds.

use std::arch::{global_asm, naked_asm};
use std::cell::Cell;
use std::hint::black_box;
use std::ptr::NonNull;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use larder_percpu::areas::Core;
use larder_percpu::sequence::{self, region, table, word};
use larder_percpu::structures::{BoundedStack, Counter, FreeList, Link};
use larder_percpu::study::Study;
use larder_percpu::{By, Domain, Ground, Guarded64, Options};

// The alternatives: the same on memory of the thread's own, in initial-exec storage, as calls.
global_asm!(".pushsection .tbss,\"awT\",@nobits", ".balign 64", "larder_bench_tls:", ".zero 64", ".popsection",);

/// Frontier at 0, limit at 8.
#[unsafe(naked)]
extern "C" fn tls_bump(bytes: usize) -> usize {
    naked_asm!(
        "mov rcx, qword ptr [rip + larder_bench_tls@GOTTPOFF]",
        "mov rax, qword ptr fs:[rcx]",
        "add rdi, rax",
        "cmp rdi, qword ptr fs:[rcx + 8]",
        "ja 2f",
        "mov qword ptr fs:[rcx], rdi",
        "ret",
        "2:",
        "xor eax, eax",
        "ret",
    )
}

/// The list's head at 16.
#[unsafe(naked)]
extern "C" fn tls_pop() -> usize {
    naked_asm!(
        "mov rcx, qword ptr [rip + larder_bench_tls@GOTTPOFF]",
        "mov rax, qword ptr fs:[rcx + 16]",
        "test rax, rax",
        "jz 2f",
        "mov rdx, qword ptr [rax]",
        "mov qword ptr fs:[rcx + 16], rdx",
        "2:",
        "ret",
    )
}

#[unsafe(naked)]
extern "C" fn tls_push(node: usize) {
    naked_asm!(
        "mov rcx, qword ptr [rip + larder_bench_tls@GOTTPOFF]",
        "mov rax, qword ptr fs:[rcx + 16]",
        "mov qword ptr [rdi], rax",
        "mov qword ptr fs:[rcx + 16], rdi",
        "ret",
    )
}

/// The counter at 24.
#[unsafe(naked)]
extern "C" fn tls_add(n: u64) {
    naked_asm!("mov rcx, qword ptr [rip + larder_bench_tls@GOTTPOFF]", "add qword ptr fs:[rcx + 24], rdi", "ret",)
}

#[unsafe(naked)]
extern "C" fn tls_set(frontier: usize, limit: usize) {
    naked_asm!(
        "mov rcx, qword ptr [rip + larder_bench_tls@GOTTPOFF]",
        "mov qword ptr fs:[rcx], rdi",
        "mov qword ptr fs:[rcx + 8], rsi",
        "ret",
    )
}

#[inline(never)]
extern "C" fn locked_add(word: &AtomicU64) -> u64 {
    word.fetch_add(1, Ordering::Relaxed)
}

thread_local! {
    static INLINE: Cell<[usize; 2]> = const { Cell::new([16, usize::MAX / 2]) };
}

static REGION: Core = Core::new(16, Options::new(By::ConcurrencyId));
static GROUND: Ground = Ground::new();
static SLOTS: AtomicU64 = AtomicU64::new(0);
static COUNTER: Counter = Counter::new(By::ConcurrencyId);
static BY_CPU: Counter = Counter::new(By::Cpu);
static LIST: FreeList = FreeList::new(By::ConcurrencyId);
static STACK: BoundedStack<u64, 64> = BoundedStack::new(By::ConcurrencyId);
static DOMAIN: Domain<Guarded64> = Domain::new(By::ConcurrencyId);
static SHARED: AtomicU64 = AtomicU64::new(0);

/// What one thread does so many times.
type Body = fn(usize);

fn each(n: usize, mut f: impl FnMut()) {
    for _ in 0..n {
        f();
    }
}

/// A line of the thread's own.
#[repr(align(128))]
struct Line(AtomicU64);

const ROWS: &[(&str, Body)] = &[
    ("bump, thread-local, call", |n| {
        tls_set(16, usize::MAX / 2);
        each(n, || _ = black_box(tls_bump(black_box(16))));
    }),
    ("bump, sequence, call", |n| {
        // SAFETY: `main` has set the domain up, and there are sequences.
        each(n, || _ = black_box(unsafe { region::bump(REGION.frame(), 64, black_box(16)) }));
    }),
    ("bump, thread-local, inlined", |n| {
        each(n, || {
            INLINE.with(|pair| {
                let [frontier, limit] = pair.get();
                let next = frontier + black_box(16);
                if next <= limit {
                    pair.set([next, limit]);
                }
                black_box(frontier);
            });
        });
    }),
    ("bump, sequence of the fixed heap, inlined", |n| {
        let slot = SLOTS.load(Ordering::Relaxed) as usize;
        // SAFETY: `main` has set the ground and the slots up.
        each(n, || _ = black_box(unsafe { sequence::bump(&GROUND, slot, black_box(16)) }));
    }),
    ("lock xadd on a line of its own, call", |n| {
        let line = Line(AtomicU64::new(0));
        each(n, || _ = black_box(locked_add(black_box(&line.0))));
    }),
    ("pop and push, thread-local list, calls", |n| {
        let nodes: Vec<[usize; 8]> = vec![[0; 8]; 4];
        nodes.iter().for_each(|node| tls_push(node.as_ptr().expose_provenance()));
        each(n, || tls_push(black_box(tls_pop())));
        while tls_pop() != 0 {}
    }),
    ("pop and push, sequences, inlined", |n| {
        let nodes: Vec<Link> = (0..4).map(|_| Link::new()).collect();
        // They are leaked: the list keeps them.
        let nodes = nodes.leak();
        // SAFETY: here and below: nodes live for ever and are pushed by their only holder.
        nodes.iter().for_each(|node| unsafe { LIST.push(NonNull::from(node)) });
        each(n, || {
            if let Some(node) = LIST.pop() {
                // SAFETY: as above.
                unsafe { LIST.push(black_box(node)) };
            }
        });
        (0..4).for_each(|_| _ = LIST.pop());
    }),
    ("pop and push, stack of pointers", |n| {
        let pointer = NonNull::from(Box::leak(Box::new(0u64)));
        let _ = STACK.push(pointer);
        each(n, || {
            if let Some(pointer) = STACK.pop() {
                let _ = STACK.push(black_box(pointer));
            }
        });
        let _ = STACK.pop();
    }),
    ("count, thread-local, call", |n| each(n, || tls_add(black_box(1)))),
    ("count, sequence, by concurrency id, inlined", |n| each(n, || COUNTER.add(black_box(1)))),
    ("count, sequence, by CPU, inlined", |n| each(n, || BY_CPU.add(black_box(1)))),
    ("count, sequence alone, call", |n| {
        // SAFETY: `main` has set the domain up, and there are sequences.
        each(n, || _ = unsafe { word::add(COUNTER.domain().core().frame(), 64, black_box(1)) });
    }),
    ("count, one shared atomic", |n| each(n, || _ = black_box(locked_add(black_box(&SHARED))))),
    ("transaction: begin, store 64, end", |n| {
        each(n, || {
            let t = DOMAIN.begin();
            let _ = t.store(t.area(), t.load() + 1);
            t.end();
        });
    }),
    ("study: begin, store 64, end", |n| {
        STUDY.with(|study| {
            let Some(study) = study else { return };
            let line = Line(AtomicU64::new(0));
            each(n, || {
                let attempt = study.begin();
                let next = line.0.load(Ordering::Relaxed) + 1;
                // SAFETY: the line is this thread's own.
                unsafe { attempt.store(line.0.as_ptr(), next) };
            });
        });
    }),
];

thread_local! {
    static STUDY: Option<Study> = Study::new().ok();
}

fn cpu_time_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the time is valid for the call.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// CPU nanoseconds of one operation, with so many threads.
fn measure(threads: usize, operations: usize, body: Body) -> f64 {
    let spent = AtomicU64::new(0);
    let start = Barrier::new(threads);
    thread::scope(|scope| {
        for _ in 0..threads {
            let (start, spent) = (&start, &spent);
            let work = move || {
                // What is touched or tried for the first time does not count.
                body(16);
                start.wait();
                let before = cpu_time_ns();
                body(operations);
                spent.fetch_add(cpu_time_ns() - before, Ordering::Relaxed);
            };
            thread::Builder::new().stack_size(64 * 1024).spawn_scoped(scope, work).expect("a thread");
        }
    });
    spent.load(Ordering::Relaxed) as f64 / (threads * operations) as f64
}

/// A region that no round exhausts, for every index.
fn set_up() {
    for core in [&REGION, COUNTER.domain().core(), LIST.domain().core(), STACK.domain().core(), DOMAIN.core()] {
        core.set_up().expect("address space");
    }
    for index in 0..REGION.areas() {
        let filled = REGION.take_over(index, |content| {
            // SAFETY: the area is this function's alone, and holds a pair.
            unsafe { content.cast::<[usize; 2]>().write([16, usize::MAX / 2]) };
        });
        filled.expect("nobody holds it");
    }
    let possible = larder_sys::cpus::possible();
    GROUND.set_up(possible);
    let slabs = larder_sys::memory::map_lazy(larder_units::Bytes(possible * sequence::SLAB)).expect("address space");
    for index in 0..possible {
        // SAFETY: the slab of each index begins with a slot.
        unsafe { slabs.as_ptr().add(index * sequence::SLAB).cast::<[usize; 2]>().write([16, usize::MAX / 2]) };
    }
    SLOTS.store(slabs.as_ptr().expose_provenance() as u64, Ordering::Relaxed);
}

fn main() {
    set_up();
    if REGION.sequence_areas() == 0 {
        eprintln!("there are no sequences here ({:?}), so there is nothing to compare", REGION.mode());
        return;
    }
    let rounds: usize = std::env::var("ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(9);
    // Threads, and operations of each.
    let columns = [(1, 1_000_000), (2, 1_000_000), (64, 40_000), (1000, 4_000)];
    let mut times = vec![vec![vec![]; columns.len()]; ROWS.len()];
    for _ in 0..rounds {
        for (c, &(threads, operations)) in columns.iter().enumerate() {
            for (r, (_, body)) in ROWS.iter().enumerate() {
                times[r][c].push(measure(threads, operations, *body));
            }
        }
    }
    println!("| CPU ns per operation | 1 thread | 2 | 64 | 1000 |\n|---|---|---|---|---|");
    for ((name, _), row) in ROWS.iter().zip(&mut times) {
        print!("| {name} |");
        for cell in row {
            cell.sort_unstable_by(f64::total_cmp);
            print!(" {:.2} ({:.2}-{:.2}) |", cell[cell.len() / 2], cell[0], cell[cell.len() - 1]);
        }
        println!();
    }
    println!("\n{}", DOMAIN.statistics());
    let restarts: Vec<_> = table::restarts().filter(|(_, n)| *n > 0).collect();
    println!("restarts: {restarts:?}");
    failures();
}

/// Transactions of a thousand threads without system calls: how many fail.
fn failures() {
    let before = DOMAIN.statistics();
    measure(1000, 40_000, |n| {
        each(n, || {
            let t = DOMAIN.begin();
            let _ = t.store(t.area(), t.load() + 1);
            t.end();
        });
    });
    let after = DOMAIN.statistics();
    let (begun, failed) = (after.begun - before.begun, after.failed - before.failed);
    println!(
        "1000 threads: {failed} of {begun} transactions failed, {:.2} in 100000",
        failed as f64 * 1e5 / begun as f64
    );
}
