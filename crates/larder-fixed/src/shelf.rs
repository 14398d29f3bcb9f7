//! Runs that wait near the buffer that will want them.
//!
//! Among survivors free runs are short. A refill that has the lock of its class therefore takes several, about as much as
//! one long run would be, and puts those that it does not install on the shelf of its index, class and kind. The next
//! refills there need neither the class's lock nor a sweep.
//!
//! A shelf is guarded by a lock that nobody waits for: whoever does not get it goes to the class. It is taken by registered
//! threads in a slow path only, so nobody holds one in a stopped world, and a signal handler that interrupts a slow path
//! does not come here. Every stop empties the shelves.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use larder_blocks::class;
use larder_sys::hint;
use larder_sys::memory::{self, ReserveError};
use larder_units::Bytes;

use crate::heap::HEAP;
use crate::kind;

/// Runs on a shelf.
const ROOM: usize = 15;

/// Bytes of a run that are asked for before it is wanted.
const EXPECTED: usize = 1024;

#[repr(C, align(128))]
struct Shelf {
    /// 1 while somebody uses the shelf. Label `shelf.lock`.
    taken: AtomicU32,
    used: UnsafeCell<u32>,
    runs: UnsafeCell<[[usize; 2]; ROOM]>,
}

// SAFETY: the cells are used by whoever has set `taken`, or in a stopped world.
unsafe impl Sync for Shelf {}

/// Address of the shelves: for each index one for each kind and class. 0 where buffers belong to threads.
///
/// Sync: written once, at initialisation.
static SHELVES: AtomicUsize = AtomicUsize::new(0);

/// Of each kind, by a bit for each class: whether some index' shelf was ever used, for forks; and one above the largest index whose was, for stops as well.
///
/// Sync: only ever grow, before who uses a shelf takes it; read in a stopped world, and in a child of fork, which has one thread.
static USED: [AtomicU64; kind::MAX] = [const { AtomicU64::new(0) }; kind::MAX];
static INDICES: AtomicUsize = AtomicUsize::new(0);

/// Of each kind, by a bit for each class: whether some index' shelf may hold something. A stop looks at those only.
///
/// Sync: set by who holds the shelf, before the stop; the collector reads and clears in a stopped world.
static STOCKED: [AtomicU64; kind::MAX] = [const { AtomicU64::new(0) }; kind::MAX];
const _: () = assert!(class::COUNT <= u64::BITS as usize);

/// Reserves the shelves; what is not used costs no memory.
pub(crate) fn set_up() -> Result<(), ReserveError> {
    let n = HEAP.labs.indices() * kind::MAX * class::COUNT;
    if n > 0 {
        let at = memory::map_lazy(Bytes(n * size_of::<Shelf>()))?;
        SHELVES.store(at.as_ptr().expose_provenance(), Ordering::Relaxed);
    }
    Ok(())
}

fn shelf(index: usize, kind: usize, class: usize) -> Option<&'static Shelf> {
    let first = SHELVES.load(Ordering::Relaxed);
    let at = first + ((index * kind::MAX + kind) * class::COUNT + class) * size_of::<Shelf>();
    // SAFETY: `set_up` mapped a zeroed shelf there, and it is never unmapped.
    (first != 0).then(|| unsafe { &*core::ptr::with_exposed_provenance::<Shelf>(at) })
}

/// A shelf in use by the calling thread.
pub(crate) struct Held {
    shelf: &'static Shelf,
    kind: usize,
    class: usize,
}

/// The shelf of the current index, unless somebody else has it. The caller defers stops and is registered.
pub(crate) fn current(kind: usize, class: usize) -> Option<Held> {
    let index = HEAP.labs.current_index()?;
    let shelf = shelf(index, kind, class)?;
    // Where they are set already, their lines are not written.
    if USED[kind].load(Ordering::Relaxed) & 1 << class == 0 {
        USED[kind].fetch_or(1 << class, Ordering::Relaxed);
    }
    if INDICES.load(Ordering::Relaxed) <= index {
        INDICES.fetch_max(index + 1, Ordering::Relaxed);
    }
    // ORDER shelf.lock: Acquire, with the store in `Drop`.
    // Not `then_some`: a `Held` that is made and dropped would give away what somebody else holds.
    (shelf.taken.swap(1, Ordering::Acquire) == 0).then(|| Held { shelf, kind, class })
}

impl Held {
    /// Takes a run off.
    pub fn pop(&mut self) -> Option<[usize; 2]> {
        // SAFETY: `taken` is this thread's.
        unsafe {
            let used = &mut *self.shelf.used.get();
            if *used == 0 {
                return None;
            }
            *used -= 1;
            let runs = &*self.shelf.runs.get();
            if *used > 0 {
                expect(runs[*used as usize - 1]);
            }
            Some(runs[*used as usize])
        }
    }

    /// Puts a run on; false where there is no room.
    pub fn push(&mut self, run: [usize; 2]) -> bool {
        // SAFETY: `taken` is this thread's.
        unsafe {
            let used = &mut *self.shelf.used.get();
            if *used as usize == ROOM {
                return false;
            }
            (*self.shelf.runs.get())[*used as usize] = run;
            *used += 1;
        }
        // Relaxed: the stop orders it. Where the bit is set already, the line is not written.
        let bit = 1 << self.class;
        if STOCKED[self.kind].load(Ordering::Relaxed) & bit == 0 {
            STOCKED[self.kind].fetch_or(bit, Ordering::Relaxed);
        }
        true
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // ORDER shelf.lock: Release, with the swap in `current`.
        self.shelf.taken.store(0, Ordering::Release);
    }
}

/// Asks for the beginning of the run that is taken off next: it will be cleared and used.
pub(crate) fn expect(run: [usize; 2]) {
    for line in (run[0]..run[1].min(run[0] + EXPECTED)).step_by(64) {
        hint::prefetch_to_write(line);
    }
}

/// Calls `f` for the shelves that were ever used of the classes whose bits are set, by kind. World stopped, or in a child of fork.
fn for_each(bits: impl Fn(usize) -> u64, mut f: impl FnMut(&'static Shelf)) {
    let indices = INDICES.load(Ordering::Relaxed);
    for kind in 0..kind::MAX {
        let mut rest = bits(kind);
        while rest != 0 {
            let class = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            (0..indices).filter_map(|index| shelf(index, kind, class)).for_each(&mut f);
        }
    }
}

/// Empties every shelf.
///
/// # Safety
/// The world is stopped.
pub(crate) unsafe fn empty_in_stopped_world(mut f: impl FnMut([usize; 2])) {
    let stocked = |kind: usize| STOCKED[kind].swap(0, Ordering::Relaxed);
    for_each(stocked, |shelf| {
        // SAFETY: nobody holds a shelf in a stopped world.
        unsafe {
            let used = &mut *shelf.used.get();
            for run in &(&*shelf.runs.get())[..*used as usize] {
                f(*run);
            }
            *used = 0;
        }
    });
}

/// In a fork child: threads that held a shelf are gone. What they were moving is found by the next sweep.
///
/// # Safety
/// The caller is the only thread of the process.
pub(crate) unsafe fn reset_after_fork() {
    let used = |kind: usize| USED[kind].load(Ordering::Relaxed);
    for_each(used, |shelf| {
        // Pages that are only read are not copied.
        if shelf.taken.load(Ordering::Relaxed) != 0 {
            shelf.taken.store(0, Ordering::Relaxed);
        }
    });
}

/// Most runs that one refill takes for itself and a shelf.
pub(crate) const MOST_RUNS: usize = ROOM + 1;
