//! `cargo bench -p larder-moving`: how fast the moving heap collects, in bytes of live objects for a second of the
//! collection.
//!
//! A tree of objects hangs from one root. Each object is put into a random free slot of those before it, so that
//! neighbours in the tree are anywhere in memory; what a collection has copied lies in an order of the collector's making.
//! So each tree is copied twice: first as it was made, then as it was copied.
//!
//! | setting | meaning |
//! |---|---|
//! | `SIZES=8,32` | MiB of live objects |
//! | `SHAPES=small,256` | objects: `small` has 24 to 64 bytes, `256` has that |
//! | `COLLECTORS=1,2` | collectors, the collecting thread included |
//! | `WHAT=copy,promote,compact` | what is measured |
//! | `ROUNDS=5` | trees; the fastest and the median are shown |
//!
//! Time is the collector's own account of its phases, in a stopped world, on the clock. Beside it stands the CPU time, the
//! stop included, of the thread that had most and of all: where the machine is not shared, the former is the time on the
//! clock.

use larder_moving::{Collection, Config, Heap, Host, Mutator, RootVisitor, Visitor};
use larder_units::Bytes;
use std::cell::UnsafeCell;
use std::collections::BTreeMap;

/// A header (size above bit 32, number of references below it, shifted left by one), references, and bytes.
struct Trees {
    root: UnsafeCell<usize>,
}

// SAFETY: `root` is used by the one mutator, and by collectors while it is stopped.
unsafe impl Sync for Trees {}

// SAFETY: sizes and slots follow from the header.
unsafe impl Host for Trees {
    unsafe fn size(&self, _: *mut u8, word: usize) -> usize {
        word >> 32
    }

    #[inline]
    unsafe fn scan<V: Visitor>(&self, object: *mut u8, visitor: &mut V) {
        let first = object.cast::<usize>();
        // SAFETY: an object begins with its header.
        let count = unsafe { *first } as u32 >> 1;
        for i in 0..count as usize {
            visitor.slot(first.wrapping_add(1 + i));
        }
    }

    fn roots<V: RootVisitor>(&self, visitor: &mut V) {
        visitor.slot(self.root.get());
    }
}

struct Random(u64);

impl Random {
    /// A number below `n`.
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 as u32 as u64 * n as u64) >> 32) as usize
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Shape {
    Small,
    Long,
}

impl Shape {
    /// Bytes and references of the next object.
    fn next(self, random: &mut Random) -> (usize, usize) {
        match self {
            Self::Small => (24 + 8 * random.below(6), 2),
            Self::Long => (256, 4),
        }
    }
}

/// Makes a tree of about so many bytes, calling `allocate` for each object; returns how many bytes and objects it has.
fn plant(
    vm: &Mutator<'_, Trees>,
    shape: Shape,
    bytes: usize,
    random: &mut Random,
    mut allocate: impl FnMut(usize) -> *mut u8,
) -> (usize, usize) {
    let mut open = vec![vm.heap().host().root.get()];
    let (mut made, mut objects) = (0, 0);
    while made < bytes {
        let (size, references) = shape.next(random);
        let object = allocate(size).cast::<usize>();
        let at = random.below(open.len());
        // SAFETY: a fresh object, which nothing moves before the tree is whole; the slot is the root or such an object's.
        unsafe {
            object.write(size << 32 | references << 1);
            let slot = open[at];
            if slot == vm.heap().host().root.get() { slot.write(object.addr()) } else { vm.store(slot, object.addr()) }
        }
        open[at] = object.wrapping_add(1);
        open.extend((1..references).map(|i| object.wrapping_add(1 + i)));
        made += size.next_multiple_of(16);
        objects += 1;
    }
    (made, objects)
}

/// What one collection took.
#[derive(Clone, Copy)]
struct Took {
    ns: u64,
    /// CPU time of the busiest thread, and of all.
    cpu_ns: [u64; 2],
    bytes: u64,
    objects: u64,
}

/// CPU time of each thread of the process, by its number.
fn cpu_ns() -> BTreeMap<i32, u64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid place for the time.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    let own = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
    // SAFETY: no arguments.
    let me = unsafe { libc::gettid() };
    // The kernel brings the account of a thread up to date when it stops running: exact for those that sleep now.
    let others = std::fs::read_dir("/proc/self/task").into_iter().flatten().filter_map(|task| {
        let path = task.ok()?.path();
        let number = path.file_name()?.to_str()?.parse().ok()?;
        let ns = std::fs::read_to_string(path.join("schedstat")).ok()?;
        Some((number, ns.split(' ').next()?.parse().ok()?))
    });
    let mut all: BTreeMap<i32, u64> = others.collect();
    all.insert(me, own);
    all
}

fn collect(vm: &Mutator<'_, Trees>, kind: Collection) -> Took {
    let (before, cpu) = (vm.heap().stats(), cpu_ns());
    vm.collect(kind);
    let after = vm.heap().stats();
    let now = cpu_ns();
    let spent = || now.iter().map(|(thread, ns)| ns - cpu.get(thread).unwrap_or(&0));
    let cpu_ns = [spent().max().unwrap_or(0), spent().sum()];
    match kind {
        Collection::Young => Took {
            ns: after.copying_ns - before.copying_ns,
            cpu_ns,
            bytes: after.copied_bytes + after.promoted_bytes - before.copied_bytes - before.promoted_bytes,
            objects: after.moved_objects - before.moved_objects,
        },
        Collection::Full => Took {
            ns: after.compacting_ns - before.compacting_ns,
            cpu_ns,
            bytes: after.marked_bytes - before.marked_bytes,
            objects: 0,
        },
    }
}

fn line(what: &str, shape: Shape, mib: usize, collectors: usize, took: &mut [Took]) {
    let rate = |took: &Took| took.bytes as f64 / took.ns as f64;
    took.sort_by(|a, b| rate(b).total_cmp(&rate(a)));
    let (best, median) = (took[0], took[took.len() / 2]);
    let cpu = |which: usize| took.iter().map(|t| t.bytes as f64 / t.cpu_ns[which] as f64).fold(0.0, f64::max);
    let mean = best.bytes.checked_div(best.objects).map_or_else(|| "-".to_owned(), |mean| mean.to_string());
    println!(
        "| {what} | {} | {mib} | {mean} | {collectors} | {:.2} | {:.2} | {:.2} | {:.2} |",
        if shape == Shape::Small { "24-64" } else { "256" },
        rate(&best),
        rate(&median),
        cpu(0),
        cpu(1),
    );
}

fn heap(young: usize, old: usize, tenure: u8, collectors: usize) -> larder_moving::Owned<Trees> {
    let config = Config {
        young: Bytes(young),
        most_young: Bytes(young),
        old: Bytes(old),
        tenure,
        collectors,
        ..Config::default()
    };
    Heap::create(config, Trees { root: UnsafeCell::new(0) }).unwrap_or_else(|e| {
        eprintln!("{e}");
        std::process::exit(2);
    })
}

fn copy(shape: Shape, mib: usize, collectors: usize, rounds: usize) {
    let bytes = mib << 20;
    // Survivors may take an eighth of it.
    let heap = heap(9 * bytes, 64 << 20, 6, collectors);
    let vm = heap.attach().unwrap();
    let mut random = Random(42);
    let mut took = [vec![], vec![], vec![]];
    for round in 0..rounds + 1 {
        plant(&vm, shape, bytes, &mut random, |size| vm.allocate(size).unwrap());
        let first = collect(&vm, Collection::Young);
        let second = collect(&vm, Collection::Young);
        if round == 0 {
            took[0].push(first);
        } else {
            took[1].push(first);
            took[2].push(second);
        }
        // SAFETY: the host's root is this thread's.
        unsafe { *heap.host().root.get() = 0 };
        vm.collect(Collection::Young);
    }
    for (what, took) in ["copy, fresh memory", "copy", "copy of a copy"].iter().zip(&mut took) {
        line(what, shape, mib, collectors, took);
    }
}

fn promote(shape: Shape, mib: usize, collectors: usize, rounds: usize) {
    let bytes = mib << 20;
    // So large that the old generation is never collected for having grown.
    let heap = heap(5 * bytes, (rounds + 1) * 8 * bytes, 1, collectors);
    let vm = heap.attach().unwrap();
    let mut random = Random(42);
    let mut took = vec![];
    for _ in 0..rounds {
        plant(&vm, shape, bytes, &mut random, |size| vm.allocate(size).unwrap());
        took.push(collect(&vm, Collection::Young));
        // SAFETY: the host's root is this thread's.
        unsafe { *heap.host().root.get() = 0 };
    }
    line("promote", shape, mib, collectors, &mut took);
}

fn compact(shape: Shape, mib: usize, collectors: usize, rounds: usize) {
    let bytes = mib << 20;
    let mut took = vec![];
    for round in 0..rounds {
        let heap = heap(1 << 20, 4 * bytes, 1, collectors);
        let vm = heap.attach().unwrap();
        let mut random = Random(42 + round as u64);
        let mut garbage = Random(7 + round as u64);
        // As much garbage between, in runs of some objects.
        plant(&vm, shape, bytes, &mut random, |size| {
            while garbage.below(2) == 0 {
                let dead = vm.allocate_old(size).unwrap().cast::<usize>();
                // SAFETY: a fresh object.
                unsafe { dead.write(size << 32) };
            }
            vm.allocate_old(size).unwrap()
        });
        // The stores above have marked all cards: scanning those is not what is measured.
        vm.collect(Collection::Young);
        took.push(collect(&vm, Collection::Full));
    }
    line("mark and compact", shape, mib, collectors, &mut took);
}

fn numbers(name: &str, default: &str) -> Vec<usize> {
    let text = std::env::var(name).unwrap_or_else(|_| default.to_owned());
    text.split(',')
        .map(|n| {
            n.trim().parse().ok().filter(|&n| n > 0).unwrap_or_else(|| {
                eprintln!("{name} is '{text}': set it to numbers above 0 with commas between");
                std::process::exit(2);
            })
        })
        .collect()
}

fn main() {
    let sizes = numbers("SIZES", "8,32");
    let crews = numbers("COLLECTORS", "1,2");
    let rounds = numbers("ROUNDS", "5")[0];
    let shapes = std::env::var("SHAPES").unwrap_or_else(|_| "small,256".to_owned());
    let what = std::env::var("WHAT").unwrap_or_else(|_| "copy,promote,compact".to_owned());
    println!(
        "| what | objects, bytes | live, MiB | mean size, bytes | collectors | best, GB/s | median, GB/s | GB a CPU second of \
         the busiest | of all |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for what in what.split(',') {
        let measure = match what {
            "copy" => copy,
            "promote" => promote,
            "compact" => compact,
            _ => {
                eprintln!("WHAT has '{what}': it is a list of copy, promote, compact");
                std::process::exit(2);
            }
        };
        for shape in shapes.split(',') {
            let shape = match shape {
                "small" => Shape::Small,
                "256" => Shape::Long,
                _ => {
                    eprintln!("SHAPES has '{shape}': it is a list of small, 256");
                    std::process::exit(2);
                }
            };
            for &mib in &sizes {
                for &collectors in &crews {
                    measure(shape, mib, collectors, rounds);
                }
            }
        }
    }
}
