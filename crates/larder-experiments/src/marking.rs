//! Marking alone: structures that stay, collected by every version of the collector in turn, in one process.
//!
//! All versions mark the very same objects, round after round, so that what else the machine does falls on all of them.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use larder_fixed::ablation::{self, Ablation};
use larder_fixed::options::Options;
use larder_fixed::{allocate, cycle, hooks, init, kind, pacing, stats};
use larder_units::Bytes;

/// The structures.
pub const SHAPES: [&str; 6] = ["tree", "scattered", "list", "arrays", "array", "particles"];
/// What is left out, one version after the other.
pub const VERSIONS: [&str; 7] = ["", "balance", "slo", "nsb", "prefetch", "deque", "slo,nsb,bmb"];

/// One version's marking of one structure.
#[derive(Clone, Debug)]
pub struct Marked {
    /// One of [`SHAPES`].
    pub shape: &'static str,
    /// One of [`VERSIONS`].
    pub without: &'static str,
    /// How many markers.
    pub markers: usize,
    /// Objects that were marked.
    pub objects: usize,
    /// Their bytes.
    pub bytes: usize,
    /// Seconds, in the median of the rounds.
    pub seconds: f64,
}

/// Words that are roots, which keep the structures.
static ROOT: [AtomicUsize; 1] = [const { AtomicUsize::new(0) }; 1];
/// Nanoseconds since the process began at which marking began, and how long it took.
static MARK: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

fn now_ns() -> u64 {
    static BEGUN: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    BEGUN.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

unsafe extern "C" fn on_event(event: c_int) {
    if event == hooks::Event::MarkStart as c_int {
        MARK[0].store(now_ns(), Ordering::Relaxed);
    } else if event == hooks::Event::MarkEnd as c_int {
        MARK[1].store(now_ns() - MARK[0].load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// Bytes that a node takes.
const NODE: usize = 32;

fn made(kind: usize, bytes: usize) -> *mut usize {
    // SAFETY: this thread is registered; what is made is put into the structure, which is a root, before the next cycle.
    let at = unsafe { allocate(kind, bytes) }.cast::<usize>();
    assert!(!at.is_null(), "no memory for the structure");
    at
}

fn link(from: *mut usize, word: usize, to: *mut usize) {
    // SAFETY: a word of an object of ours.
    unsafe { from.add(word).write(to.expose_provenance()) };
}

fn tree(nodes: &mut dyn FnMut() -> *mut usize, n: usize) -> *mut usize {
    if n == 0 {
        return ptr::null_mut();
    }
    let node = nodes();
    let left = tree(nodes, (n - 1) / 2);
    link(node, 0, left);
    let right = tree(nodes, n - 1 - (n - 1) / 2);
    link(node, 1, right);
    node
}

fn list(nodes: usize, mut fill: impl FnMut(*mut usize), bytes: usize) -> *mut usize {
    let mut head = ptr::null_mut();
    for _ in 0..nodes {
        let node = made(kind::NORMAL, bytes);
        link(node, 0, head);
        fill(node);
        head = node;
    }
    head
}

fn array(n: usize, bytes: usize) -> *mut usize {
    let array = made(kind::NORMAL, n * 8);
    for i in 0..n {
        link(array, i, made(kind::NORMAL, bytes));
    }
    array
}

fn build(shape: &str, bytes: usize) -> *mut usize {
    // An address one past the end counts, so that a request of a byte less takes the cell.
    const ELEMENTS: usize = 511;
    match shape {
        "tree" => tree(&mut || made(kind::NORMAL, NODE - 1), bytes / NODE),
        "scattered" => {
            let n = bytes / NODE;
            let mut nodes: Vec<*mut usize> = (0..n).map(|_| made(kind::NORMAL, NODE - 1)).collect();
            let mut state = 0x2545_F491_4F6C_DD1D_u64;
            for i in (1..n).rev() {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                nodes.swap(i, (state >> 33) as usize % (i + 1));
            }
            tree(&mut || nodes.pop().expect("as many as were made"), n)
        }
        "list" => list(bytes / NODE, |_| {}, NODE - 1),
        "arrays" => {
            let elements = |node: *mut usize| (1..=ELEMENTS).for_each(|i| link(node, i, made(kind::POINTER_FREE, 8)));
            list(bytes / (8 * (ELEMENTS + 1) + 16 * ELEMENTS), elements, 8 * (ELEMENTS + 1))
        }
        "array" => array(bytes / (8 + 16), 8),
        "particles" => array(bytes / (8 + 112), 111),
        _ => unreachable!("shapes are named in SHAPES"),
    }
}

/// Builds each structure of about `mib` MiB, and has each version mark it `rounds` times with one and with two markers.
pub fn measure(mib: usize, rounds: usize) -> Vec<Marked> {
    init(&Options { initial_heap: Bytes::mib(1 << 20), ..Options::default() });
    hooks::EVENT.set(Some(on_event));
    let mut all = Vec::new();
    for shape in SHAPES {
        cycle::disable();
        ROOT[0].store(build(shape, mib << 20).expose_provenance(), Ordering::Relaxed);
        cycle::enable();
        let versions: Vec<(&'static str, usize)> =
            [1, 2].into_iter().flat_map(|markers| VERSIONS.map(|without| (without, markers))).collect();
        let mut times: Vec<Vec<u64>> = vec![Vec::new(); versions.len()];
        let mut live = 0;
        for _ in 0..rounds {
            for ((without, markers), times) in versions.iter().zip(&mut times) {
                // Every version has exactly so many markers.
                let left_out = format!("{without},markers");
                ablation::set(Ablation::parse(&left_out).expect("names of optimizations"));
                pacing::set_markers(*markers);
                assert!(cycle::collect(), "nothing forbids a cycle here");
                times.push(MARK[1].load(Ordering::Relaxed));
                let found = stats::snapshot().live;
                // Two markers may both count an object that they reach at once.
                assert!(
                    live == 0 || found.abs_diff(live) < live / 100,
                    "{shape} without {without}: {found} bytes, not {live}"
                );
                live = found;
            }
        }
        let objects = objects_of(shape, mib << 20);
        for ((without, markers), mut times) in versions.into_iter().zip(times) {
            times.sort_unstable();
            let seconds = times[times.len() / 2] as f64 / 1e9;
            all.push(Marked { shape, without, markers, objects, bytes: live, seconds });
        }
        ROOT[0].store(0, Ordering::Relaxed);
        assert!(cycle::collect_and_unmap());
    }
    hooks::EVENT.set(None);
    all
}

/// How many objects `build` makes.
fn objects_of(shape: &str, bytes: usize) -> usize {
    match shape {
        "tree" | "scattered" | "list" => bytes / NODE,
        "arrays" => bytes / (8 * 512 + 16 * 511) * 512,
        "array" => bytes / 24 + 1,
        _ => bytes / 120 + 1,
    }
}
