//! The lock of an index: for take-over, and for everything where the kernel has no sequences.
//!
//! Without sequences it covers the begin store, or the check and store of a commit, or one one-shot operation; never a
//! transaction's body. It records its owner, so that a signal handler can tell that it interrupted the holder. Two rules keep
//! it from waiting for itself:
//!
//! - A thread that holds no lock may wait: the holder goes on, because what interrupts the holder never waits for it.
//! - Code of a thread that holds one already (a handler that interrupted it, or the body of a take-over) uses an index kept
//!   for this, with all signals masked. So whoever holds that index is not interrupted, and everybody gets it in turn.
//!
//! A child of fork has one thread, and the locks that others held are free in it: the owner's word has the process id.

use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use larder_sys::signal::Mask;
use larder_sys::{memory, thread, tls};

use crate::sequence::Header;

/// The process id in an owner's word begins here; below is the address of the thread's block, which has 64 bytes.
const PID_SHIFT: u32 = 41;
const BLOCK_SHIFT: u32 = 6;

/// A page that is zero in a new process; it caches the process id. Sync: written once by `set_up`; null where the kernel
/// has no such pages.
static PID_PAGE: AtomicPtr<AtomicU32> = AtomicPtr::new(core::ptr::null_mut());

/// Makes the process id cheap to read. Calling it again changes nothing.
pub(crate) fn set_up() {
    if PID_PAGE.load(Ordering::Relaxed).is_null()
        && let Some(page) = memory::map_wiped_on_fork()
    {
        // ORDER locked.page: Release, with the load in `pid`. Of two threads that come here at once, one page is lost.
        PID_PAGE.store(page.as_ptr().cast(), Ordering::Release);
    }
}

fn pid() -> u64 {
    // ORDER locked.page: Acquire, with the store in `set_up`.
    let page = PID_PAGE.load(Ordering::Acquire);
    if page.is_null() {
        return thread::pid() as u64;
    }
    // SAFETY: the page is never unmapped.
    let cached = unsafe { &*page };
    match cached.load(Ordering::Relaxed) {
        0 => {
            let pid = thread::pid() as u32;
            // Relaxed: everybody in this process stores the same.
            cached.store(pid, Ordering::Relaxed);
            u64::from(pid)
        }
        pid => u64::from(pid),
    }
}

/// The calling thread's word.
fn me() -> u64 {
    pid() << PID_SHIFT | (tls::block().addr() as u64) >> BLOCK_SHIFT
}

/// Whether the calling thread holds a lock: it is a handler that interrupted a holder, or inside a take-over.
pub(crate) fn is_inside() -> bool {
    tls::with(|t| t.locks_held.get()) != 0
}

/// Whether the owner belongs to another process, that is to the parent of this one: its thread does not exist here.
pub(crate) fn is_left_behind(owner: u64) -> bool {
    owner != 0 && owner >> PID_SHIFT != pid()
}

/// The index is locked, and the calling thread may not wait for it: it holds a lock itself, perhaps this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy;

impl core::fmt::Display for Busy {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("the index is locked, and the calling thread holds a lock already, so it may not wait: use another")
    }
}

impl core::error::Error for Busy {}

/// A held lock; dropping it releases it.
pub(crate) struct Held<'c> {
    header: &'c Header,
    mask: Option<Mask>,
}

/// What [`try_once`] found.
enum Tried {
    Held,
    Here,
    Elsewhere,
}

fn try_once(header: &Header, me: u64) -> Tried {
    // ORDER locked.hold: Acquire, with the store in `drop`: what the last holder wrote is seen.
    match header.owner.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed) {
        Ok(_) => Tried::Held,
        Err(owner) if owner == me => Tried::Here,
        // Its thread is not in this process; fork copied what it had written.
        Err(owner) if owner >> PID_SHIFT != me >> PID_SHIFT => {
            match header.owner.compare_exchange(owner, me, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => Tried::Held,
                Err(_) => Tried::Elsewhere,
            }
        }
        Err(_) => Tried::Elsewhere,
    }
}

impl<'c> Held<'c> {
    /// Waits for the lock, unless the calling thread has it. With `masked`, no signal but a fault's arrives until it is
    /// released.
    pub(crate) fn wait(header: &'c Header, masked: bool) -> Result<Self, Busy> {
        let mut turns = 0u32;
        loop {
            match Self::try_hold(header, masked)? {
                Some(held) => return Ok(held),
                None => {
                    turns += 1;
                    if turns.is_multiple_of(64) { thread::yield_now() } else { core::hint::spin_loop() }
                }
            }
        }
    }

    /// Takes the lock if nobody else has it.
    pub(crate) fn try_hold(header: &'c Header, masked: bool) -> Result<Option<Self>, Busy> {
        let mask = masked.then(|| Mask::all_but_faults().set());
        // Before the lock is taken, so that no handler finds it held and the count at zero.
        tls::with(|t| t.locks_held.set(t.locks_held.get() + 1));
        core::sync::atomic::compiler_fence(Ordering::SeqCst);
        let tried = try_once(header, me());
        if let Tried::Held = tried {
            return Ok(Some(Self { header, mask }));
        }
        leave(mask);
        if let Tried::Here = tried { Err(Busy) } else { Ok(None) }
    }
}

fn leave(mask: Option<Mask>) {
    core::sync::atomic::compiler_fence(Ordering::SeqCst);
    tls::with(|t| t.locks_held.set(t.locks_held.get() - 1));
    if let Some(mask) = mask {
        mask.set();
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // ORDER locked.hold: Release, with the exchange in `try_once`.
        self.header.owner.store(0, Ordering::Release);
        leave(self.mask);
    }
}
