//! Numbered points of the slow paths, at which tests stop the world, deliver signals, or look at the heap.
//!
//! With the feature `inject` each point calls the hook that a test set; without it a point is nothing.

/// Points in the order in which a refill, a free and a large allocation pass them, and those of a fork and of a cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Point {
    /// In a refill, before the class is locked.
    RefillEntered = 1,
    /// The class is locked, nothing is claimed yet.
    RefillLocked = 2,
    /// In the sweep, between two blocks of a list.
    SweepNextBlock = 3,
    /// A run was found; its cells are not claimed yet.
    RunFound = 4,
    /// The list has no run; the class is not locked; before blocks are taken.
    BeforeBlocks = 5,
    /// Blocks were taken, nobody else knows of them.
    BlocksTaken = 6,
    /// The run is claimed, the class unlocked, the run not cleared.
    RunClaimed = 7,
    /// The run is cleared and not installed.
    RunCleared = 8,
    /// The run is installed or put aside.
    RunInstalled = 9,
    /// In an explicit free, before the class is locked.
    FreeEntered = 10,
    /// The class is locked, the cell still allocated.
    FreeLocked = 11,
    /// The cell is free.
    FreeDone = 12,
    /// A large object has its blocks, but is not published.
    LargeTaken = 13,
    /// It is cleared, the list is locked.
    LargeLocked = 14,
    /// In the census, before a block that looks empty is locked.
    CensusCandidate = 15,
    /// A run was taken off a shelf.
    ShelfTaken = 16,
    /// Further runs are on the shelf; the run that the refill wants is neither cleared nor installed.
    RunsShelved = 17,
    /// An object's mark was read, and not yet compared with the epochs.
    MarkRead = 18,
    /// In a free that takes no lock: it has counted, and the cell is still allocated.
    FreeAlone = 19,
    /// The gate that keeps collectors out is closed, by a fork or by whoever stops the world for a client.
    GateClosed = 20,
    /// It is about to open again.
    GateOpens = 21,
    /// This thread alone may create threads of the runtime.
    PrepareLocked = 22,
    /// A cycle beside the program has traced what there was, and is about to look at roots again; it holds nothing.
    BeforeSecondLook = 23,
    /// The second look has begun: objects are born marked, and static data and stacks were not looked at again yet. The loader's list is held.
    InSecondLook = 24,
    /// A round of cleaning has copied a page, and nobody has looked at the copy yet.
    PageCopied = 25,
    /// A page is about to be compared with its copy.
    BeforeComparing = 26,
    /// A refill is about to have the pages of its block made writable, which a cycle watches.
    BeforeMadeWritable = 27,
    /// A round of cleaning has told written pages from others, and they are pushed.
    Cleaned = 28,
}

/// The points of refills, frees and large allocations, for tests that visit each.
pub const POINTS: [Point; 19] = [
    Point::RefillEntered,
    Point::RefillLocked,
    Point::SweepNextBlock,
    Point::RunFound,
    Point::BeforeBlocks,
    Point::BlocksTaken,
    Point::RunClaimed,
    Point::RunCleared,
    Point::RunInstalled,
    Point::FreeEntered,
    Point::FreeLocked,
    Point::FreeDone,
    Point::LargeTaken,
    Point::LargeLocked,
    Point::CensusCandidate,
    Point::ShelfTaken,
    Point::RunsShelved,
    Point::MarkRead,
    Point::FreeAlone,
];

/// What a test wants to happen at points.
pub type PointFn = fn(Point);

#[cfg(feature = "inject")]
mod hook {
    use core::sync::atomic::{AtomicPtr, Ordering};

    /// Sync: set by tests before their threads start.
    static HOOK: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

    /// Calls `f` at every point that any thread passes.
    pub fn at_points(f: Option<super::PointFn>) {
        HOOK.store(f.map_or(core::ptr::null_mut(), |f| f as *mut ()), Ordering::Release);
    }

    pub(crate) fn point(p: super::Point) {
        let f = HOOK.load(Ordering::Acquire);
        if !f.is_null() {
            // SAFETY: only `at_points` stores here.
            unsafe { core::mem::transmute::<*mut (), super::PointFn>(f)(p) };
        }
    }
}

#[cfg(feature = "inject")]
pub use hook::at_points;
#[cfg(feature = "inject")]
pub(crate) use hook::point;

/// Nothing, without the feature.
#[cfg(not(feature = "inject"))]
#[inline(always)]
pub(crate) fn point(_: Point) {}
