//! `cargo bench -p larder-experiments --bench marks`: what a mark costs as a byte and as a bit. `SIZES=1,100,1000` names the heaps, in MiB.
//!
//! Objects of 32 bytes are visited once each, in one of three orders: the mark is tested and set, and the object's first word read, both
//! asked for 16 visits ahead, as the marker does. A byte holds the epoch: a plain load and store, and nothing is cleared. A bit needs a
//! locked instruction, because its neighbours in the word are other markers' objects; the test comes first, so that an object that
//! is marked costs none (the thesis's test-and-compare&swap, 3.4); clearing the bits counts. A plain bit is for one marker alone.

use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::Instant;

use larder_sync::random::Random;
use larder_sys::hint::prefetch;

/// Bytes in an object, and words.
const OBJECT: usize = 32;
const WORDS: usize = OBJECT / 8;
/// Visits ahead of which memory is asked for: the marker's queue.
const AHEAD: usize = 16;
/// Objects among which the order `near` is none.
const NEIGHBOURS: usize = 4096;
/// Rounds, of which the fastest counts.
const ROUNDS: u8 = 7;
const BITS: usize = usize::BITS as usize;

struct Heap {
    objects: Vec<[usize; WORDS]>,
    bytes: Vec<AtomicU8>,
    bits: Vec<AtomicUsize>,
}

/// How an object is marked.
#[derive(Clone, Copy)]
enum Form {
    Byte,
    PlainBit,
    LockedOr,
    CompareAndSwap,
}

const FORMS: [(Form, &str); 4] = [
    (Form::Byte, "byte"),
    (Form::LockedOr, "bit, `lock or`"),
    (Form::CompareAndSwap, "bit, compare-and-swap"),
    (Form::PlainBit, "bit, plain"),
];

/// Marks an object; whether it was not marked before.
trait Mark {
    fn mark(heap: &Heap, object: usize, epoch: u8) -> bool;
    fn place(heap: &Heap, object: usize) -> *const u8;
}

struct Byte;
struct Bit<const FORM: usize>;

impl Mark for Byte {
    #[inline(always)]
    fn mark(heap: &Heap, object: usize, epoch: u8) -> bool {
        let mark = &heap.bytes[object];
        let is_new = mark.load(Ordering::Relaxed) != epoch;
        if is_new {
            mark.store(epoch, Ordering::Relaxed);
        }
        is_new
    }

    #[inline(always)]
    fn place(heap: &Heap, object: usize) -> *const u8 {
        (&raw const heap.bytes[object]).cast()
    }
}

impl<const FORM: usize> Mark for Bit<FORM> {
    #[inline(always)]
    fn mark(heap: &Heap, object: usize, _epoch: u8) -> bool {
        let (word, bit) = (&heap.bits[object / BITS], 1 << (object % BITS));
        let mut old = word.load(Ordering::Relaxed);
        if old & bit != 0 {
            return false;
        }
        if FORM == Form::PlainBit as usize {
            word.store(old | bit, Ordering::Relaxed);
            return true;
        }
        if FORM == Form::LockedOr as usize {
            return word.fetch_or(bit, Ordering::Relaxed) & bit == 0;
        }
        loop {
            match word.compare_exchange_weak(old, old | bit, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) if now & bit != 0 => return false,
                Err(now) => old = now,
            }
        }
    }

    #[inline(always)]
    fn place(heap: &Heap, object: usize) -> *const u8 {
        (&raw const heap.bits[object / BITS]).cast()
    }
}

/// Visits each object of a share once; returns how many it marked.
fn visit<M: Mark>(heap: &Heap, order: &[u32], epoch: u8) -> usize {
    let (mut marked, mut sum) = (0, 0usize);
    for (at, &object) in order.iter().enumerate() {
        let next = order[(at + AHEAD).min(order.len() - 1)] as usize;
        prefetch(M::place(heap, next).addr());
        prefetch((&raw const heap.objects[next]).addr());
        marked += usize::from(M::mark(heap, object as usize, epoch));
        sum = sum.wrapping_add(heap.objects[object as usize][0]);
    }
    black_box(sum);
    marked
}

/// The objects in no order among so many neighbours.
fn mixed(n: usize, among: usize) -> Vec<u32> {
    let mut order: Vec<u32> = (0..n as u32).collect();
    let mut random = Random::from_seed(1);
    for part in order.chunks_mut(among) {
        for i in (1..part.len()).rev() {
            part.swap(i, random.below(i as u64 + 1) as usize);
        }
    }
    order
}

/// Nanoseconds for an object, of the fastest round, with so many threads at once; each has its part of the order.
fn measure(heap: &Heap, order: &[u32], threads: usize, form: Form) -> f64 {
    let visit = match form {
        Form::Byte => visit::<Byte>,
        Form::PlainBit => visit::<Bit<{ Form::PlainBit as usize }>>,
        Form::LockedOr => visit::<Bit<{ Form::LockedOr as usize }>>,
        Form::CompareAndSwap => visit::<Bit<{ Form::CompareAndSwap as usize }>>,
    };
    heap.bytes.iter().for_each(|mark| mark.store(0, Ordering::Relaxed));
    let share = order.len().div_ceil(threads);
    let bit_share = heap.bits.len().div_ceil(threads);
    let barrier = Barrier::new(threads);
    let (barrier, clears) = (&barrier, !matches!(form, Form::Byte));
    let mut best = f64::INFINITY;
    for epoch in 1..=ROUNDS {
        let run = move |order: &[u32], bits: &[AtomicUsize]| {
            barrier.wait();
            let begun = Instant::now();
            if clears {
                bits.iter().for_each(|word| word.store(0, Ordering::Relaxed));
            }
            barrier.wait();
            let marked = visit(heap, order, epoch);
            (begun.elapsed().as_secs_f64(), marked)
        };
        let results: Vec<(f64, usize)> = std::thread::scope(|scope| {
            let parts = order.chunks(share).zip(heap.bits.chunks(bit_share));
            let handles: Vec<_> = parts.map(|(order, bits)| scope.spawn(move || run(order, bits))).collect();
            handles.into_iter().map(|handle| handle.join().expect("a thread that marks")).collect()
        });
        assert_eq!(results.iter().map(|&(_, marked)| marked).sum::<usize>(), order.len(), "each object is marked once");
        best = best.min(results.iter().map(|&(seconds, _)| seconds).fold(0.0, f64::max));
    }
    best * 1e9 / order.len() as f64
}

fn main() {
    let sizes = std::env::var("SIZES").unwrap_or_else(|_| "1,100".to_owned());
    let header: Vec<&str> = FORMS.iter().map(|&(_, name)| name).collect();
    println!("ns for an object\n\n| MiB | order | markers | {} |", header.join(" | "));
    println!("|---|---|---|{}", "---|".repeat(FORMS.len()));
    for size in sizes.split(',') {
        let n = match size.trim().parse::<usize>().map(|mib| (mib << 20) / OBJECT) {
            Ok(n) if n > NEIGHBOURS && n <= u32::MAX as usize => n,
            _ => {
                eprintln!("SIZES is '{sizes}': set it to numbers of MiB with commas between, from 1 to 100000");
                std::process::exit(2);
            }
        };
        let heap = Heap {
            objects: (0..n).map(|i| [i; WORDS]).collect(),
            bytes: (0..n).map(|_| AtomicU8::new(0)).collect(),
            bits: (0..n.div_ceil(BITS)).map(|_| AtomicUsize::new(0)).collect(),
        };
        for (name, among) in [("in order", 1), ("near", NEIGHBOURS), ("none", n)] {
            let order = mixed(n, among);
            for threads in [1, 2] {
                let row: Vec<String> = FORMS
                    .iter()
                    .map(|&(form, _)| match (form, threads) {
                        // Two that store whole words would lose each other's bits.
                        (Form::PlainBit, 2) => "-".to_owned(),
                        _ => format!("{:.2}", measure(&heap, &order, threads, form)),
                    })
                    .collect();
                println!("| {size} | {name} | {threads} | {} |", row.join(" | "));
            }
        }
    }
}
