//! `cargo bench -p larder-percpu`: the tables of docs/performance.md.
//!
//! Every operation and its alternative run in the same process, one after the other, round by round; what is printed is the
//! CPU time of one operation, in nanoseconds: the median of the rounds, and the lowest and highest. CPU time, because with
//! more threads than CPUs the time on the clock counts the waiting. Ratios are of two rows of one round. `ROUNDS=n` changes the
//! number of rounds. A second table has the ratios of those windows in which the processor was all this program's, as far as a piece of
//! work tells that has to be done as fast before and after: of many threads there may be none.
//!
//! The rows in C are there when `cargo build --release -p larder-cs` was run before, and there is a C compiler.

use std::arch::{asm, global_asm, naked_asm};
use std::cell::Cell;
use std::ffi::{CStr, CString};
use std::hint::black_box;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Barrier, OnceLock};
use std::thread;
use std::time::Instant;

use larder_percpu::areas::Core;
use larder_percpu::sequence::{self, Frame, list, region, table, word};
use larder_percpu::structures::{BoundedStack, Counter, FreeList, Link};
use larder_percpu::study::Study;
use larder_percpu::{By, Domain, Ground, Guarded64, GuardedPair, Options};

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

/// What a call costs that does nothing: less no call can.
#[unsafe(naked)]
extern "C" fn nothing(_: usize) -> usize {
    naked_asm!("ret")
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
static PAIRS: Domain<GuardedPair> = Domain::new(By::ConcurrencyId);
static SHARED: AtomicU64 = AtomicU64::new(0);

/// What one thread does so many times.
type Body = fn(usize);

fn each(n: usize, mut f: impl FnMut()) {
    for _ in 0..n {
        f();
    }
}

/// The function, as a pointer of which the compiler knows nothing. Rows that say "call" all call so, as programs call what is in
/// a shared library; otherwise it would be the compiler's choice, which calls those of another crate through a register and those of
/// this one directly.
fn by_pointer<F>(function: F) -> F {
    black_box(function)
}

/// The word, as one of which the compiler knows nothing. It stays in a register, as a program's would; `black_box` stores it and
/// reads it again, which is free beside what waits for memory or a call and not beside what keeps the processor busy.
#[inline(always)]
fn opaque(mut word: usize) -> usize {
    // SAFETY: no instruction.
    unsafe { asm!("/* {} */", inout(reg) word, options(nomem, nostack, preserves_flags)) };
    word
}

/// A line of the thread's own.
#[repr(align(128))]
struct Line(AtomicU64);

const NOTHING: &str = "a function of one ret, call";
const TLS_BUMP: &str = "bump, thread-local, call";
const BUMP: &str = "bump, sequence, call";
const BUMP_INLINED: &str = "bump, sequence of the fixed heap, inlined";
const TLS_BUMP_INLINED: &str = "bump, thread-local, inlined";
const XADD: &str = "lock xadd on a line of its own, call";
const XADD_INLINED: &str = "lock xadd on a line of its own, inlined";
const TLS_LIST: &str = "pop and push, thread-local list, calls";
const LIST_CALLED: &str = "pop and push, sequences, calls";
const LIST_INLINED: &str = "pop and push, sequences, inlined";
const TLS_COUNT: &str = "count, thread-local, call";
const COUNT_INLINED: &str = "count, sequence, by concurrency id, inlined";
const COUNT_CALLED: &str = "count, sequence, by concurrency id, call";
const TRANSACTION: &str = "transaction: begin, store 64, end, inlined";
const C_INLINED: &str = "transaction in C, handle, inlined";
const C_CALLED: &str = "transaction in C, handle, calls";
const C_PAPER: &str = "transaction in C, the paper's form, calls";
const C_ADD: &str = "count in C, inlined";

/// What is asked for: two rows, and at most how many times the second the first may take.
const RATIOS: &[(&str, &str, &str)] = &[
    (BUMP, TLS_BUMP, "1.5"),
    (BUMP, XADD, "0.4"),
    (NOTHING, XADD, "-"),
    (TLS_BUMP, XADD, "-"),
    (BUMP_INLINED, TLS_BUMP_INLINED, "-"),
    (BUMP_INLINED, XADD_INLINED, "-"),
    (LIST_CALLED, TLS_LIST, "1.5"),
    (LIST_INLINED, TLS_LIST, "1.5"),
    (COUNT_CALLED, TLS_COUNT, "1.3"),
    (COUNT_INLINED, TLS_COUNT, "1.3"),
    (TRANSACTION, XADD, "1"),
    (C_INLINED, XADD, "1"),
    (C_INLINED, C_CALLED, "-"),
];

const ROWS: &[(&str, Body)] = &[
    (NOTHING, |n| {
        let call = by_pointer(nothing as extern "C" fn(usize) -> usize);
        each(n, || _ = opaque(call(opaque(16))));
    }),
    (TLS_BUMP, |n| {
        tls_set(16, usize::MAX / 2);
        let call = by_pointer(tls_bump as extern "C" fn(usize) -> usize);
        each(n, || _ = opaque(call(opaque(16))));
    }),
    (BUMP, |n| {
        let call = by_pointer(region::bump as unsafe extern "C" fn(*const Frame, usize, usize) -> usize);
        // SAFETY: `main` has set the domain up, and there are sequences.
        each(n, || _ = opaque(unsafe { call(REGION.frame(), 64, opaque(16)) }));
    }),
    (TLS_BUMP_INLINED, |n| {
        each(n, || {
            INLINE.with(|pair| {
                let [frontier, limit] = pair.get();
                let next = frontier + opaque(16);
                if next <= limit {
                    pair.set([next, limit]);
                }
                opaque(frontier);
            });
        });
    }),
    (BUMP_INLINED, |n| {
        let slot = SLOTS.load(Ordering::Relaxed) as usize;
        // SAFETY: `main` has set the ground and the slots up.
        each(n, || _ = opaque(unsafe { sequence::bump(&GROUND, slot, opaque(16)) }));
    }),
    (XADD, |n| {
        let line = Line(AtomicU64::new(0));
        let call = by_pointer(locked_add as extern "C" fn(&AtomicU64) -> u64);
        let counter = black_box(&line.0);
        each(n, || _ = opaque(call(counter) as usize));
    }),
    (XADD_INLINED, |n| {
        let line = Line(AtomicU64::new(0));
        let counter = black_box(&line.0);
        each(n, || _ = opaque(counter.fetch_add(opaque(1) as u64, Ordering::Relaxed) as usize));
    }),
    (TLS_LIST, |n| {
        let nodes: Vec<[usize; 8]> = vec![[0; 8]; 4];
        nodes.iter().for_each(|node| tls_push(node.as_ptr().expose_provenance()));
        let pop = by_pointer(tls_pop as extern "C" fn() -> usize);
        let push = by_pointer(tls_push as extern "C" fn(usize));
        each(n, || push(opaque(pop())));
        while tls_pop() != 0 {}
    }),
    (LIST_CALLED, |n| {
        with_nodes(|| {
            let frame = LIST.domain().core().frame();
            let pop = by_pointer(list::list_pop as unsafe extern "C" fn(*const Frame, usize) -> usize);
            let push = by_pointer(list::list_push as unsafe extern "C" fn(*const Frame, usize, usize, usize) -> u32);
            each(n, || {
                // SAFETY: `main` has set the domain up, and there are sequences; a node is pushed by its only holder.
                unsafe {
                    let node = pop(frame, 64);
                    if node != 0 && node != region::REFUSED {
                        push(frame, 64, opaque(node), node);
                    }
                }
            });
        });
    }),
    (LIST_INLINED, |n| {
        with_nodes(|| {
            each(n, || {
                if let Some(node) = LIST.pop() {
                    // SAFETY: nodes live for ever and are pushed by their only holder.
                    unsafe { LIST.push(black_box(node)) };
                }
            });
        });
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
    (TLS_COUNT, |n| {
        let call = by_pointer(tls_add as extern "C" fn(u64));
        each(n, || call(opaque(1) as u64));
    }),
    (COUNT_INLINED, |n| each(n, || COUNTER.add(opaque(1) as u64))),
    ("count, sequence, by CPU, inlined", |n| each(n, || BY_CPU.add(opaque(1) as u64))),
    (COUNT_CALLED, |n| {
        let call = by_pointer(word::add as unsafe extern "C" fn(*const Frame, usize, u64) -> u32);
        // SAFETY: `main` has set the domain up, and there are sequences.
        each(n, || _ = unsafe { call(COUNTER.domain().core().frame(), 64, opaque(1) as u64) });
    }),
    (TRANSACTION, |n| {
        each(n, || {
            let t = DOMAIN.begin();
            let _ = t.store(t.area(), t.load() + 1);
            t.end();
        });
    }),
    ("transaction: begin, store a pair, end, inlined", |n| {
        each(n, || {
            let t = PAIRS.begin();
            let [a, b] = t.load();
            let _ = t.compare_store(t.area(), [a, b], [a + 1, b + 1]);
            t.end();
        });
    }),
    (C_INLINED, |n| in_c(0, n)),
    (C_CALLED, |n| in_c(1, n)),
    (C_PAPER, |n| in_c(2, n)),
    (C_ADD, |n| in_c(3, n)),
    ("study: begin, store 64, end, call", |n| {
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

/// Runs `f` with four nodes in the list of whatever index.
fn with_nodes(f: impl FnOnce()) {
    // They are leaked: the list keeps them.
    let nodes = (0..4).map(|_| Link::new()).collect::<Vec<_>>().leak();
    // SAFETY: nodes live for ever and are pushed by their only holder.
    nodes.iter().for_each(|node| unsafe { LIST.push(NonNull::from(node)) });
    f();
    (0..4).for_each(|_| _ = LIST.pop());
}

/// The functions of `c/rows.c`, in the order of the rows.
static IN_C: OnceLock<Option<[extern "C" fn(usize); 4]>> = OnceLock::new();

fn in_c(row: usize, n: usize) {
    if let Some(Some(rows)) = IN_C.get() {
        rows[row](n);
    }
}

/// Compiles the rows in C beside the built library, and loads them.
fn load_c() -> Result<[extern "C" fn(usize); 4], String> {
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    let release = program.ancestors().nth(2).unwrap_or(Path::new("."));
    let library = release.join("liblarder_cs.so");
    if !library.exists() {
        return Err(format!("{} is missing: cargo build --release -p larder-cs", library.display()));
    }
    let (here, rows) = (Path::new(env!("CARGO_MANIFEST_DIR")), release.join("larder_percpu_rows.so"));
    let status = Command::new("cc")
        .args(["-O2", "-shared", "-fPIC", "-I"])
        .arg(here.join("../../include"))
        .arg(here.join("benches/c/rows.c"))
        .arg("-o")
        .arg(&rows)
        .arg(&library)
        .arg(format!("-Wl,-rpath,{}", release.display()))
        .status();
    if !status.is_ok_and(|status| status.success()) {
        return Err("cc did not compile benches/c/rows.c".into());
    }
    let path = CString::new(rows.as_os_str().as_bytes()).map_err(|e| e.to_string())?;
    let find = |name: &CStr| {
        // SAFETY: the library was just made, and its functions have the types of this file.
        unsafe {
            let opened = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_NODELETE);
            if opened.is_null() {
                return Err(CStr::from_ptr(libc::dlerror()).to_string_lossy().into_owned());
            }
            let at = libc::dlsym(opened, name.as_ptr());
            if at.is_null() { Err(format!("{name:?} is missing")) } else { Ok(at) }
        }
    };
    // SAFETY: as above.
    let set_up = unsafe { std::mem::transmute::<*mut libc::c_void, extern "C" fn() -> i32>(find(c"rows_set_up")?) };
    if set_up() != 0 {
        return Err("csxCreate failed".into());
    }
    let row = |name| -> Result<extern "C" fn(usize), String> {
        // SAFETY: as above.
        find(name).map(|at| unsafe { std::mem::transmute::<*mut libc::c_void, extern "C" fn(usize)>(at) })
    };
    Ok([row(c"row_inlined")?, row(c"row_called")?, row(c"row_paper")?, row(c"row_add")?])
}

thread_local! {
    static STUDY: Option<Study> = Study::new().ok();
}

fn cpu_time_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the time is valid for the call.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// What a window of one row found.
#[derive(Clone, Copy)]
struct Window {
    /// CPU nanoseconds of one operation.
    time: f64,
    /// CPU nanoseconds that a fixed piece of work took before and after, the mean of all threads.
    pace: f64,
}

/// CPU nanoseconds of a piece of work that keeps a processor as busy as it can be: additions that do not depend on each other.
///
/// On a virtual machine a CPU may share its core with somebody else's; where that one is busy, what is bound by how many instructions
/// a core takes in needs up to twice the time, and what waits needs no more. Steal does not count it.
fn pace() -> u64 {
    let before = cpu_time_ns();
    // SAFETY: registers alone.
    unsafe {
        asm!(
            "2:",
            ".rept 8",
            "add {a}, 1", "add {b}, 1", "add {c}, 1", "add {d}, 1", "add {e}, 1", "add {f}, 1",
            ".endr",
            "sub {n}, 1",
            "jnz 2b",
            a = out(reg) _, b = out(reg) _, c = out(reg) _, d = out(reg) _, e = out(reg) _, f = out(reg) _,
            n = inout(reg) 2500usize => _,
            options(nomem, nostack),
        );
    }
    cpu_time_ns() - before
}

/// One window of one row, with so many threads.
fn measure(threads: usize, operations: usize, body: Body) -> Window {
    let spent = AtomicU64::new(0);
    let paces = AtomicU64::new(0);
    let start = Barrier::new(threads);
    thread::scope(|scope| {
        for _ in 0..threads {
            let (start, spent, paces) = (&start, &spent, &paces);
            let work = move || {
                // What is touched or tried for the first time does not count.
                body(16);
                start.wait();
                let pace_before = pace();
                let before = cpu_time_ns();
                body(operations);
                spent.fetch_add(cpu_time_ns() - before, Ordering::Relaxed);
                paces.fetch_add(pace_before.max(pace()), Ordering::Relaxed);
            };
            thread::Builder::new().stack_size(64 * 1024).spawn_scoped(scope, work).expect("a thread");
        }
    });
    Window {
        time: spent.load(Ordering::Relaxed) as f64 / (threads * operations) as f64,
        pace: paces.load(Ordering::Relaxed) as f64 / threads as f64,
    }
}

/// A region that no round exhausts, for every index.
fn set_up() {
    let counters = [COUNTER.domain().core(), BY_CPU.domain().core()];
    let others = [&REGION, LIST.domain().core(), STACK.domain().core(), DOMAIN.core(), PAIRS.core()];
    for core in counters.into_iter().chain(others) {
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
    let in_c = IN_C.get_or_init(|| load_c().map_err(|why| eprintln!("no rows in C: {why}")).ok());
    let rows: Vec<_> = ROWS.iter().filter(|row| in_c.is_some() || !row.0.contains(" in C")).collect();
    // Threads, operations of each, and how often in a round. A machine's speed changes within milliseconds, so the rows that are
    // compared follow one another quickly.
    let columns = [(1, 400_000, 5), (2, 400_000, 5), (64, 20_000, 3), (1000, 6_000, 1)];
    let mut times = vec![vec![vec![]; columns.len()]; rows.len()];
    let mut contended: [Vec<f64>; CONTENDED.len()] = Default::default();
    let mut windows = 0;
    for round in 0..rounds {
        for (c, &(threads, operations, times_each)) in columns.iter().enumerate() {
            for _ in 0..times_each {
                for (r, (_, body)) in rows.iter().enumerate() {
                    times[r][c].push(measure(threads, operations, *body));
                }
            }
        }
        // A window in which one of the two threads did not run does not count, so there are some to spare.
        for _ in 0..SPARE {
            windows += 1;
            let window: Vec<_> = CONTENDED.iter().map_while(|(_, body)| measure_together(*body)).collect();
            if window.len() == CONTENDED.len() {
                contended.iter_mut().zip(window).for_each(|(all, time)| all.push(time));
            }
            if contended[0].len() > round {
                break;
            }
        }
    }
    println!("| CPU ns per operation | 1 thread | 2 | 64 | 1000 |\n|---|---|---|---|---|");
    for ((name, _), row) in rows.iter().zip(&times) {
        let cells: Vec<_> =
            row.iter().map(|cell| spread(&cell.iter().map(|window| window.time).collect::<Vec<_>>())).collect();
        println!("| {name} | {} |", cells.join(" | "));
    }
    let calm: Vec<_> = (0..columns.len()).map(|c| calm_pace(times.iter().map(|row| &row[c]))).collect();
    let longest = [("of all windows", vec![f64::INFINITY; columns.len()]), ("of calm windows", calm)];
    for (which, longest) in longest {
        println!("\n| ratio, {which} | wanted, at most | 1 thread | 2 | 64 | 1000 |\n|---|---|---|---|---|---|");
        for (one, other, wanted) in RATIOS {
            let find = |name: &str| rows.iter().position(|row| row.0 == name);
            let (Some(one_row), Some(other_row)) = (find(one), find(other)) else { continue };
            let cell = |c: usize| spread(&window_ratios(&times[one_row][c], &times[other_row][c], longest[c]));
            let cells: Vec<_> = (0..columns.len()).map(cell).collect();
            println!("| {one} / {other} | {wanted} | {} |", cells.join(" | "));
        }
    }
    println!("\n| two threads that run on two CPUs, {} of {windows} windows | CPU ns |\n|---|---|", contended[0].len());
    for ((name, _), all) in CONTENDED.iter().zip(&contended) {
        println!("| {name} | {} |", spread(all));
    }
    for (name, all) in CONTENDED.iter().map(|row| row.0).zip(&contended).skip(1) {
        println!(
            "| one shared atomic / {name} (wanted: 5 for the counters) | {} |",
            spread(&ratios(&contended[0], all))
        );
    }
    println!("\n{}", DOMAIN.statistics());
    let restarts: Vec<_> = table::restarts().filter(|(_, n)| *n > 0).collect();
    println!("restarts: {restarts:?}");
    failures();
}

/// How many windows are tried for one of each round.
const SPARE: usize = 20;

/// What two threads do that run at the same time: first the counter that they share.
const CONTENDED: [(&str, Body); 4] = [
    ("one shared atomic", |n| each(n, || _ = opaque(SHARED.fetch_add(opaque(1) as u64, Ordering::Relaxed) as usize))),
    ("counter, by concurrency id", |n| each(n, || COUNTER.add(opaque(1) as u64))),
    ("counter, by CPU", |n| each(n, || BY_CPU.add(opaque(1) as u64))),
    ("thread-local counter, call", |n| {
        let call = by_pointer(tls_add as extern "C" fn(u64));
        each(n, || call(opaque(1) as u64));
    }),
];

/// The CPU time of one operation of two threads, each on a CPU of its own, that begin together; none unless both had their
/// CPU nearly all the time, or where there are no two CPUs.
fn measure_together(body: Body) -> Option<f64> {
    const OPERATIONS: usize = 400_000;
    const LEAST_SHARE: f64 = 0.95;
    let cpus = allowed_cpus();
    let [first, second, ..] = cpus[..] else { return None };
    let arrived = AtomicU64::new(0);
    let work = |cpu: usize| {
        pin(cpu);
        body(16);
        let (all_before, arriving) = (cpu_time_ns(), Instant::now());
        // Both spin, so both run when the second arrives.
        arrived.fetch_add(1, Ordering::Relaxed);
        while arrived.load(Ordering::Relaxed) < 2 {
            std::hint::spin_loop();
        }
        // Not counted: what happens until the other is there as well.
        body(OPERATIONS / 8);
        let before = cpu_time_ns();
        body(OPERATIONS);
        let spent = cpu_time_ns() - before;
        // The other is not left alone before it has finished.
        arrived.fetch_add(1, Ordering::Relaxed);
        while arrived.load(Ordering::Relaxed) < 4 {
            body(100);
        }
        // Of all the time since it arrived: then both ran while the other measured.
        let share = (cpu_time_ns() - all_before) as f64 / arriving.elapsed().as_nanos() as f64;
        (spent as f64 / OPERATIONS as f64, share)
    };
    let both = thread::scope(|scope| {
        let other = scope.spawn(|| work(second));
        let mine = scope.spawn(|| work(first));
        [mine.join().expect("it does not panic"), other.join().expect("it does not panic")]
    });
    both.iter().all(|(_, share)| *share >= LEAST_SHARE).then(|| (both[0].0 + both[1].0) / 2.0)
}

fn allowed_cpus() -> Vec<usize> {
    // SAFETY: the set is plain data, and the kernel fills it in.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, size_of_val(&set), &mut set);
        (0..libc::CPU_SETSIZE as usize).filter(|&cpu| libc::CPU_ISSET(cpu, &set)).collect()
    }
}

fn pin(cpu: usize) {
    // SAFETY: as above.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &set);
    }
}

fn ratios(one: &[f64], other: &[f64]) -> Vec<f64> {
    one.iter().zip(other).map(|(a, b)| a / b).collect()
}

/// The longest [`pace`] of calm windows, of all rows with the same number of threads: a tenth more than the shortest.
fn calm_pace<'w>(windows: impl Iterator<Item = &'w Vec<Window>>) -> f64 {
    1.1 * windows.flatten().map(|window| window.pace).fold(f64::INFINITY, f64::min)
}

/// The ratios of two rows, of windows whose [`pace`] was no longer than this.
fn window_ratios(one: &[Window], other: &[Window], longest: f64) -> Vec<f64> {
    let pairs = one.iter().zip(other).filter(|(a, b)| a.pace.max(b.pace) <= longest);
    pairs.map(|(a, b)| a.time / b.time).collect()
}

/// Median, lowest and highest.
fn spread(all: &[f64]) -> String {
    let mut all = all.to_vec();
    all.sort_unstable_by(f64::total_cmp);
    match all[..] {
        [] => "-".into(),
        [lowest, .., highest] => format!("{:.2} ({lowest:.2}-{highest:.2})", all[all.len() / 2]),
        [only] => format!("{only:.2}"),
    }
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
