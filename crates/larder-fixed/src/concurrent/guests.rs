//! Threads that help to mark, since they allocate faster than a cycle marks beside them.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use larder_policy::concurrent as policy;
use larder_sync::lock::Lock;
use larder_sync::parker::Event as Bell;
use larder_sys::vector::Vector;
use larder_threads::defer;
use larder_trace::crew::{CREW, GUESTS};
use larder_trace::marker::Tally;
use larder_trace::{Entry, Marker};
use larder_units::Bytes;

use super::{PHASES, TO_MARK, way};
use crate::epochs::{Cycle, Epochs};
use crate::heap::HEAP;
use crate::view::View;

/// Who helps the marker thread, and what they bring back.
pub(super) struct Guests {
    /// The marker thread marks, and takes what is brought back.
    pub(super) open: bool,
    /// Who is inside, by number.
    pub(super) inside: [bool; GUESTS],
    /// Entries that guests had not come to.
    pub(super) left: Vector<Entry>,
    pub(super) aside: Vector<Entry>,
    pub(super) tally: Tally,
    pub(super) overflowed: bool,
    pub(super) helps: u32,
    /// Bytes that they marked.
    pub(super) helped: usize,
}

struct GuardedGuests(UnsafeCell<Guests>);
// SAFETY: used under `HELPING` only.
unsafe impl Sync for GuardedGuests {}

/// Guards the guests. Nothing is locked under it; who holds it defers stops, or is a thread of the runtime.
static HELPING: Lock = Lock::new();
static GUESTS_STATE: GuardedGuests = GuardedGuests(UnsafeCell::new(Guests {
    open: false,
    inside: [false; GUESTS],
    left: Vector::new(),
    aside: Vector::new(),
    tally: Tally::NONE,
    overflowed: false,
    helps: 0,
    helped: 0,
}));
/// The barrier marked an object that nobody will scan by itself. Sync: anyone sets; read in the final stop.
pub(super) static HANDED_OVER_NESTED: AtomicBool = AtomicBool::new(false);
/// Happens when a guest has left. Sync: its own.
pub(super) static LEFT: Bell = Bell::new();
/// Bytes allocated since the last cycle from which on threads that allocate help. Sync: a statistic that decides when.
pub(super) static HELP_FROM: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Takes an object over that the barrier has marked, in a cycle. By a thread that defers stops; `nested` where it did so before,
/// and may have interrupted its own use of the guests' lock.
pub(crate) fn hand_over(bytes: usize, entry: Option<Entry>, nested: bool) {
    if nested {
        // It is found by a walk over everything that is marked.
        HANDED_OVER_NESTED.store(true, Ordering::Relaxed);
        return;
    }
    with_guests(|guests| {
        guests.tally.bytes += bytes;
        guests.tally.objects += 1;
        guests.overflowed |= entry.is_some_and(|entry| guests.left.push(entry).is_err());
    });
}

pub(super) fn with_guests<R>(f: impl FnOnce(&mut Guests) -> R) -> R {
    let _guard = HELPING.lock();
    // SAFETY: the lock is held.
    f(unsafe { &mut *GUESTS_STATE.0.get() })
}

/// Marks a part of what the marker thread has to do, on a thread that allocates: as much as its allocation asks for. The world
/// does not stop meanwhile; what is left is brought back.
pub(super) fn help(coming: usize) {
    /// What a refill takes, roughly.
    const REFILL: usize = 16 << 10;
    let _deferral = defer::enter();
    let Some(number) = with_guests(|guests| {
        let free = guests.inside.iter().position(|inside| !inside).filter(|_| guests.open)?;
        guests.inside[free] = true;
        guests.helps += 1;
        // What others brought back need not wait for the marker thread to have a CPU.
        // SAFETY: the number is this thread's until it leaves, and the marker thread was created after `prepare_beside`.
        let own = unsafe { CREW.guest(free) };
        for _ in 0..AT_ONCE {
            let Some(entry) = guests.left.pop() else { break };
            own.stack.push(entry);
        }
        Some(free)
    }) else {
        // There is nothing to be marked yet, or enough help.
        way::give_if_it_stands();
        return;
    };
    let from = HELP_FROM.load(Ordering::Relaxed);
    let quota = policy::help(
        Bytes(coming.max(REFILL)),
        Bytes(TO_MARK[usize::from(Epochs::now().cycle == Cycle::Young)].load(Ordering::Relaxed)),
        Bytes(HEAP.budget.load(Ordering::Relaxed).saturating_sub(from)),
    );
    let mut aside = Vector::new();
    // SAFETY: the number is this thread's until it leaves, and the marker thread was created after `prepare_beside`.
    let own = unsafe { CREW.guest(number) };
    let mut marker = Marker::new(View::new(Epochs::now()), own);
    marker.put_aside(&mut aside);
    while marker.tally.bytes < quota.0 && !PHASES.hurries() {
        if marker.is_idle() && !CREW.steal_beside(&mut marker) && !CREW.take_ripe_grey(&mut marker) {
            break;
        }
        let mut batches = BATCHES;
        marker.drain_until(
            |_| {},
            || {
                batches -= 1;
                batches == 0
            },
        );
    }
    let tally = marker.tally;
    let mut lost = marker.take_overflow();
    // SAFETY: as above; the marker is not used any more.
    let own = unsafe { CREW.guest(number) };
    with_guests(|guests| {
        while let Some(entry) = own.stack.pop() {
            lost |= guests.left.push(entry).is_err();
        }
        while let Some(entry) = aside.pop() {
            lost |= guests.aside.push(entry).is_err();
        }
        // The next guest of this number may come when the lock is free.
        own.stack.trim();
        guests.overflowed |= lost;
        guests.tally += tally;
        guests.helped += tally.bytes;
        guests.inside[number] = false;
    });
    aside.clear();
    LEFT.bump_and_wake(1);
    if tally.bytes < quota.0 {
        // Whoever has the entries has no CPU, maybe.
        way::give_now_and_then();
    }
}

/// Entries that a guest takes of what others have brought back.
const AT_ONCE: usize = 32;
/// Batches of entries that a guest scans before it looks whether that was enough.
const BATCHES: u32 = 64;

/// In a child of fork: nobody helps.
///
/// # Safety
/// The calling thread is the only one of the process.
pub(super) unsafe fn reset_after_fork() {
    // SAFETY: the caller's promise. What the parent's threads may have been changing is forgotten, not dropped.
    unsafe {
        LEFT.reset_after_fork();
        HELPING.reset_after_fork();
        let guests = &mut *GUESTS_STATE.0.get();
        (guests.open, guests.inside) = (false, [false; GUESTS]);
        core::ptr::write(&raw mut guests.left, Vector::new());
        core::ptr::write(&raw mut guests.aside, Vector::new());
    }
}
