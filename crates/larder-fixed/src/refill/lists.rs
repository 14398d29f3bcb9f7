//! The lists of blocks, by class and kind, of each owner or part; their locks; and the way through a list from one free run to the next.

use core::cell::UnsafeCell;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};

use larder_blocks::block::{Block, NONE};
use larder_blocks::class::{CLASSES, COUNT};
use larder_blocks::owners;
use larder_policy::backing;
use larder_sync::lock::{Lock, LockGuard};
use larder_sys::hint;
use larder_sys::memory::{self, ReserveError};
use larder_threads::REGISTRY;
use larder_units::{Blocks, Bytes};

use super::marks::{find, free_among};
use crate::heap::HEAP;
use crate::inject::{Point, point};
use crate::{kind, sharing};

/// Longest run, in bytes, that one refill takes: it is cleared at once, and should stay in a first-level cache until it
/// is used.
pub(super) const LONGEST_RUN: usize = 16 * 1024;
/// The most cells of each class in such a run.
const LONGEST: [u16; COUNT] = {
    let mut cells = [1; COUNT];
    let mut class = 0;
    while class < COUNT {
        let most = LONGEST_RUN / CLASSES[class].cell as usize;
        if most > 1 {
            cells[class] = most as u16;
        }
        class += 1;
    }
    cells
};
/// Runs that a list keeps aside because their buffer was filled by somebody else meanwhile.
const SIDELINE: usize = 4;
/// `previous` of a block that was taken in a signal handler and is in no list yet.
pub(crate) const ORPHAN: u32 = NONE - 1;
/// `swept` of a block that was swept and is to be swept again; above all epochs. The epoch in which that was so is in `again`.
pub(super) const AGAIN: u8 = 254;
/// `previous` of the first block of a list.
const FIRST: u32 = NONE;

/// The blocks of one class and kind.
pub(super) struct List {
    /// The list was used: zeroed memory holds no list.
    ready: bool,
    /// The epoch for which the fields below are right.
    epoch: u8,
    sidelined: u8,
    /// Blocks of the heap that are in the list.
    blocks: u32,
    head: u32,
    /// The next block to look at.
    cursor: u32,
    /// The block that is being swept, and its next cell to look at.
    current: u32,
    position: u32,
    /// Of that cell and those behind it: how many were looked at, and by a bit for each whether it was free. Under the lock cells of the block
    /// that are ahead of the sweep change in one way only: they are freed.
    seen: u32,
    free: u64,
    /// Swept blocks in which cells were freed explicitly, to be swept again; linked through `size`. The first to come is the first to go: while
    /// it waits more is freed in it, and one sweep finds that together.
    again: u32,
    last_again: u32,
    /// Ready runs without a buffer.
    sideline: [[usize; 2]; SIDELINE],
}

/// The lists of one owner and class.
struct Central(UnsafeCell<[List; kind::MAX]>);

// SAFETY: the lists are used under the lock of the owner and class only.
unsafe impl Sync for Central {}

/// The first owner's lists, and in the setting all-shared the first part.
static CENTRALS: [Central; COUNT] = [const { Central(UnsafeCell::new([const { List::UNUSED }; kind::MAX])) }; COUNT];
/// Address of the other owners' and parts' lists, zeroed until they are used; 0 where there are none.
///
/// Sync: written once, at initialisation.
static OTHERS: AtomicUsize = AtomicUsize::new(0);
/// In how many parts the lists are that belong to everybody. An index has a part in which it looks first, so that CPUs that allocate side by
/// side write to different locks, lists and records; where nothing is left in its own it goes on with free blocks that have memory behind them,
/// and with the others before the heap grows.
///
/// Sync: written once, at initialisation.
static PARTS: AtomicUsize = AtomicUsize::new(1);

/// How many owners have locks of their own; others share one with whoever has the same remainder. The most parts, too.
const STRIPES: usize = 8;

/// The locks of an owner, on lines of their own.
#[repr(align(128))]
struct Stripe([Lock; COUNT]);

/// Guard the lists of owners and classes, and the list fields of their blocks. Rank: after the registry, before the pool.
static LOCKS: [Stripe; STRIPES] = [const { Stripe([const { Lock::new() }; COUNT]) }; STRIPES];

fn lock_of(owner: usize, class: usize) -> &'static Lock {
    &LOCKS[owner % STRIPES].0[class]
}

pub(super) fn parts() -> usize {
    PARTS.load(Ordering::Relaxed)
}

/// The part of everybody's lists of a class in which the calling thread looks first.
pub(super) fn home(class: usize) -> usize {
    let parts = backing::parts_in_use(parts(), Blocks(CLASSES[class].blocks as usize), HEAP.size());
    let index = || HEAP.labs.current_index().or_else(|| REGISTRY.current().map(|thread| thread.number()));
    if parts == 1 { 0 } else { index().unwrap_or(0) % parts }
}

/// The locks that are in use.
fn locks() -> impl Iterator<Item = &'static Lock> {
    LOCKS[..if sharing::is_used() { STRIPES } else { parts() }].iter().flat_map(|stripe| &stripe.0)
}

fn central(owner: usize, class: usize) -> &'static Central {
    if owner == 0 {
        return &CENTRALS[class];
    }
    let at = OTHERS.load(Ordering::Relaxed) + ((owner - 1) * COUNT + class) * size_of::<Central>();
    // SAFETY: `map_lists` mapped as many, and there are owners only after it. Zeroes are lists that are not ready.
    unsafe { &*ptr::with_exposed_provenance::<Central>(at) }
}

/// Maps all lists but the first; what is not used costs no memory.
fn map_lists(number: usize) -> Result<(), ReserveError> {
    let at = memory::map_lazy(Bytes((number - 1) * COUNT * size_of::<Central>()))?;
    OTHERS.store(at.as_ptr().expose_provenance(), Ordering::Relaxed);
    Ok(())
}

/// Maps the lists of all owners.
pub(crate) fn map_owners_lists() -> Result<(), ReserveError> {
    map_lists(owners::MOST)
}

/// Maps everybody's lists, in as many parts as there are CPUs and locks.
pub(crate) fn map_parts(cpus: usize) -> Result<(), ReserveError> {
    let parts = cpus.clamp(1, STRIPES);
    if parts > 1 {
        map_lists(parts)?;
    }
    PARTS.store(parts, Ordering::Relaxed);
    Ok(())
}

/// Every owner, or part, and class whose lists may hold something.
fn centrals() -> impl Iterator<Item = &'static Central> {
    let owners = if sharing::is_used() { HEAP.owners.figures().owners.max(1) } else { parts() };
    (0..owners).flat_map(|owner| (0..COUNT).map(move |class| central(owner, class)))
}

/// An owner's class, locked.
pub(super) struct Locked {
    pub(super) owner: usize,
    class: usize,
    guard: LockGuard<'static>,
}

impl Locked {
    pub(super) fn new(owner: usize, class: usize) -> Self {
        Self { owner, class, guard: lock_of(owner, class).lock() }
    }

    /// The lists of this part, or of the next one that nobody has: who has them may have lost its CPU. Waits for this part's where somebody
    /// has each.
    pub(super) fn near(part: usize, class: usize, parts: usize) -> Self {
        let of = |part: usize| lock_of(part, class).try_lock().map(|guard| Self { owner: part, class, guard });
        (part..parts).chain(0..part).find_map(of).unwrap_or_else(|| Self::new(part, class))
    }

    pub(super) fn list(&mut self, kind: usize) -> &mut List {
        let _ = &self.guard;
        // SAFETY: the guard holds the lock, and the borrow of `self` makes this the only reference.
        unsafe { &mut (*central(self.owner, self.class).0.get())[kind] }.made_ready()
    }
}

pub(super) fn block(index: u32) -> &'static Block {
    // SAFETY: indices in lists are below the frontier.
    unsafe { HEAP.space.block(index as usize) }
}

/// Two block indices in one word.
fn pair(low: u32, high: u32) -> usize {
    low as usize | (high as usize) << 32
}

impl List {
    /// All zeroes, which take no place in the library's file and no memory.
    const UNUSED: Self = Self { ready: false, head: 0, cursor: 0, current: 0, again: 0, last_again: 0, ..Self::EMPTY };
    const EMPTY: Self = Self {
        ready: true,
        epoch: 0,
        sidelined: 0,
        blocks: 0,
        head: NONE,
        cursor: NONE,
        current: NONE,
        position: 0,
        seen: 0,
        free: 0,
        again: NONE,
        last_again: NONE,
        sideline: [[0; 2]; SIDELINE],
    };

    fn made_ready(&mut self) -> &mut Self {
        if !self.ready {
            *self = Self::EMPTY;
        }
        self
    }

    /// Has a swept block swept again.
    pub(super) fn sweep_again(&mut self, index: u32, epoch: u8) {
        let b = block(index);
        b.swept.set(AGAIN);
        b.again.set(epoch);
        b.size.set(pair(NONE, if self.again == NONE { NONE } else { self.last_again }));
        if self.again == NONE {
            self.again = index;
        } else {
            let before = block(self.last_again);
            before.size.set(pair(index, self.again_links(before).1));
        }
        self.last_again = index;
    }

    /// The next and previous block of one that is to be swept again.
    fn again_links(&self, b: &Block) -> (u32, u32) {
        (b.size.get() as u32, (b.size.get() >> 32) as u32)
    }

    /// Takes a block out of those to be swept again, if it is one of them: what an earlier epoch left does not count.
    fn forget_again(&mut self, index: u32) {
        let b = block(index);
        if b.swept.get() != AGAIN || b.again.get() != self.epoch {
            return;
        }
        let (next, previous) = self.again_links(b);
        if previous == NONE {
            self.again = next;
        } else {
            let before = block(previous);
            before.size.set(pair(next, self.again_links(before).1));
        }
        if next != NONE {
            let after = block(next);
            after.size.set(pair(self.again_links(after).0, previous));
        } else {
            self.last_again = previous;
        }
        b.swept.set(0);
    }

    /// Makes the list's fields right for the present epoch.
    pub(super) fn renew(&mut self, epoch: u8) {
        if self.epoch != epoch {
            self.epoch = epoch;
            self.cursor = self.head;
            self.current = NONE;
            self.again = NONE;
            // Sidelined runs were retired at the stop.
            self.sidelined = 0;
        }
    }

    /// A run that somebody had ready for a buffer which had one by then. It is cleared.
    pub(super) fn take_sidelined(&mut self) -> Option<[usize; 2]> {
        self.sidelined = self.sidelined.checked_sub(1)?;
        // Nothing stays behind: where the runtime is linked into the program, its data are roots.
        Some(core::mem::take(&mut self.sideline[self.sidelined as usize]))
    }

    /// Keeps such a run for the next comer, if there is room and it is of the present epoch.
    pub(super) fn put_aside(&mut self, run: [usize; 2], epoch: u8) -> bool {
        let fits = self.epoch == epoch && (self.sidelined as usize) < SIDELINE;
        if fits {
            self.sideline[self.sidelined as usize] = run;
            self.sidelined += 1;
            SIDELINED.store(true, Ordering::Relaxed);
        }
        fits
    }

    /// Puts a block that nobody else knows into the list, to be swept next.
    pub(super) fn begin(&mut self, index: u32) {
        self.link(index);
        self.sweep(index);
    }

    /// Has the cursor stand before the first cell of a block.
    fn sweep(&mut self, index: u32) {
        (self.current, self.position, self.seen) = (index, 0, 0);
    }

    /// The next free run of the class in this list's blocks, `(block, first cell, cells)`.
    pub(super) fn next_run(&mut self, epoch: u8, class: usize) -> Option<(&'static Block, usize, usize)> {
        let most = LONGEST[class] as usize;
        loop {
            if self.current == NONE && self.again != NONE {
                self.sweep(self.again);
                self.forget_again(self.current);
            }
            if self.current == NONE {
                if self.cursor == NONE {
                    return None;
                }
                let b = block(self.cursor);
                point(Point::SweepNextBlock);
                self.sweep(self.cursor);
                self.cursor = b.next.get();
                if self.cursor != NONE {
                    // It will be swept soon, after a few refills.
                    hint::prefetch(block(self.cursor).marks.get());
                }
                // What is to be swept again was swept, and its turn comes.
                if b.swept.get() == epoch {
                    self.current = NONE;
                    continue;
                }
            }
            let b = block(self.current);
            // SAFETY: blocks in lists are `Small`.
            let marks = unsafe { b.all_marks() };
            if let Some([from, to]) = self.next_in(marks, most) {
                return Some((b, from, to - from));
            }
            b.set_swept(epoch);
            self.current = NONE;
        }
    }

    /// The next free run of the block that is being swept, at most so many cells long.
    #[inline]
    fn next_in(&mut self, marks: &[AtomicU8], most: usize) -> Option<[usize; 2]> {
        while self.free == 0 || self.seen == 0 {
            self.position += self.seen;
            (self.free, self.seen) = free_among(marks, self.position as usize);
            if self.seen == 0 {
                return None;
            }
        }
        self.pass(self.free.trailing_zeros());
        let from = self.position as usize;
        let cells = self.free.trailing_ones().min(most as u32);
        if cells < self.seen {
            self.pass(cells);
        } else {
            let to = find(&marks[..marks.len().min(from + most)], from + cells as usize, true);
            (self.position, self.seen) = (to as u32, 0);
        }
        Some([from, self.position as usize])
    }

    /// Goes on by fewer cells than were looked at.
    #[inline]
    fn pass(&mut self, cells: u32) {
        self.position += cells;
        self.seen -= cells;
        self.free >>= cells;
    }

    /// How many blocks of the heap those of the list are.
    pub(super) fn blocks(&self) -> usize {
        self.blocks as usize
    }

    pub(super) fn link(&mut self, index: u32) {
        let b = block(index);
        self.blocks += b.blocks.get();
        b.previous.set(FIRST);
        b.next.set(self.head);
        if self.head != NONE {
            block(self.head).previous.set(index);
        }
        self.head = index;
    }

    pub(super) fn unlink(&mut self, index: u32) {
        self.forget_again(index);
        let b = block(index);
        self.blocks -= b.blocks.get();
        let (previous, next) = (b.previous.get(), b.next.get());
        if previous == FIRST {
            self.head = next;
        } else {
            block(previous).next.set(next);
        }
        if next != NONE {
            block(next).previous.set(previous);
        }
        if self.cursor == index {
            self.cursor = next;
        }
        if self.current == index {
            self.current = NONE;
        }
    }
}

/// Takes the locks of all classes: nobody, registered or not, is inside a refill then.
pub(crate) fn lock_all() {
    locks().for_each(Lock::lock_raw);
}

/// Gives them back.
///
/// # Safety
/// The caller took them with [`lock_all`].
pub(crate) unsafe fn unlock_all() {
    // SAFETY: the caller's promise.
    locks().for_each(|lock| unsafe { lock.unlock_raw() });
}

/// In a fork child: nobody holds them.
///
/// # Safety
/// The caller is the only thread of the process.
pub(super) unsafe fn reset_locks_after_fork() {
    // SAFETY: the caller's promise.
    locks().for_each(|lock| unsafe { lock.reset_after_fork() });
}

/// Whether a list may have sidelined runs: a stop looks through the lists only then. Sync: set under the lock of a class; the collector,
/// which has all of them, reads and clears.
static SIDELINED: AtomicBool = AtomicBool::new(false);

/// Calls `f` for every sidelined run, and forgets it.
///
/// # Safety
/// The world is stopped and the caller holds the locks of all classes.
pub(super) unsafe fn take_all_sidelined(epoch: u8, mut f: impl FnMut([usize; 2])) {
    if !SIDELINED.swap(false, Ordering::Relaxed) {
        return;
    }
    for central in centrals() {
        // SAFETY: the caller holds the lock.
        let lists = unsafe { &mut *central.0.get() };
        for list in lists[..kind::count()].iter_mut().filter(|list| list.ready && list.epoch == epoch) {
            while let Some(run) = list.take_sidelined() {
                f(run);
            }
        }
    }
}

/// Puts a block into a list of the first owner, or part.
///
/// # Safety
/// As for [`take_all_sidelined`].
pub(super) unsafe fn adopt(class: usize, kind: usize, index: u32) {
    // SAFETY: the caller holds the lock.
    unsafe { (&mut *CENTRALS[class].0.get())[kind].made_ready().link(index) };
}

/// Calls `f` for every block of a kind.
///
/// # Safety
/// As for [`take_all_sidelined`].
pub(crate) unsafe fn for_each_block(kind: usize, mut f: impl FnMut(&'static Block)) {
    for central in centrals() {
        // SAFETY: the caller holds the lock.
        let list = unsafe { &(&(*central.0.get()))[kind] };
        let mut at = if list.ready { list.head } else { NONE };
        while at != NONE {
            let b = block(at);
            at = b.next.get();
            f(b);
        }
    }
}
