//! The paper's interface: one open transaction for each thread, without handles (VEE'05, figure 3).
//!
//! The domain is one for the whole process and has no content of its own: a program keeps its tables by the number that
//! [`begin`] returns. What is open is kept in the thread's block. A nested [`begin`] (in a called function, or a signal
//! handler) replaces it, and [`end`] leaves nothing open; so after both the outer transaction is invalid, never silently
//! valid. A handler that begins must end, or invalidate, before it returns.
//!
//! | step | a handler that comes after it |
//! |---|---|
//! | token is set to 0 | leaves 0 |
//! | begin on the domain | same index: our token is stale; another index: what follows |
//! | the index is stored | may replace it and leave token 0; then our token is stored beside its index, so the index is read again |
//! | the token is stored | leaves 0: invalid |

use core::sync::atomic::{Ordering, compiler_fence};

use larder_sys::tls;

use crate::areas::{By, Core, Options, Ticket};
use crate::locked::Busy;
use crate::sequence::transaction::INTERFERED;

/// The one domain of this interface, by CPU as in the paper.
pub static DOMAIN: Core = Core::new(0, Options::new(By::Cpu));

fn open() -> Ticket {
    tls::with(|t| {
        // The index first: a handler that comes after has set the token to 0 when it is read.
        let packed = t.open_index.get();
        compiler_fence(Ordering::SeqCst);
        Ticket::from_parts(t.open_token.get(), packed)
    })
}

fn close() {
    tls::with(|t| t.open_token.set(0));
    compiler_fence(Ordering::SeqCst);
}

/// Begins a transaction and returns its index, below [`indices`].
pub fn begin() -> usize {
    let outer = open();
    if outer.token != 0 {
        // Relaxed: a counter, as the others here.
        DOMAIN.header(outer.index as usize).abandoned.fetch_add(1, Ordering::Relaxed);
    }
    loop {
        close();
        let ticket = DOMAIN.begin();
        let (token, packed) = ticket.parts();
        let kept = tls::with(|t| {
            t.open_index.set(packed);
            compiler_fence(Ordering::SeqCst);
            t.open_token.set(token);
            compiler_fence(Ordering::SeqCst);
            t.open_index.get() == packed
        });
        if kept {
            return ticket.index as usize;
        }
    }
}

/// Whether the thread's transaction holds: see [`Transaction::valid`](crate::Transaction::valid).
pub fn valid() -> bool {
    DOMAIN.holds(open())
}

/// Ends it normally.
pub fn end() {
    close();
}

/// Gives it up.
pub fn invalidate() {
    let ticket = open();
    close();
    // Also sets the domain up, should nothing ever have begun.
    let header = DOMAIN.header((ticket.index as usize).min(indices() - 1));
    if ticket.token != 0 {
        header.abandoned.fetch_add(1, Ordering::Relaxed);
    }
    header.invalid.fetch_add(1, Ordering::Relaxed);
}

/// Begins anew; true when the index is the one of the last transaction.
pub fn reopen() -> bool {
    let before = tls::with(|t| t.open_index.get());
    begin();
    let now = open();
    DOMAIN.header(now.index as usize).reopened.fetch_add(1, Ordering::Relaxed);
    before == now.parts().1
}

/// Commits by `store`, which gets the ticket: 0, `INTERFERED` or `MISMATCH`. What was interfered with is closed.
fn commit(store: impl FnOnce(Ticket) -> u32) -> u32 {
    let ticket = open();
    if ticket.token == 0 {
        return INTERFERED;
    }
    let status = store(ticket);
    if status == INTERFERED {
        failed(ticket);
    }
    status
}

#[cold]
fn failed(ticket: Ticket) {
    close();
    DOMAIN.header(ticket.index as usize).failed.fetch_add(1, Ordering::Relaxed);
}

/// Stores 32 bits: 0, or `INTERFERED`.
///
/// # Safety
/// As for [`Core::store_32`].
pub unsafe fn store_32(at: *mut u32, value: u32) -> u32 {
    // SAFETY: the caller's promise.
    commit(|ticket| unsafe { DOMAIN.store_32(ticket, at, value) })
}

/// Stores 64 bits: 0, or `INTERFERED`.
///
/// # Safety
/// As for [`Core::store_32`].
pub unsafe fn store_64(at: *mut u64, value: u64) -> u32 {
    // SAFETY: the caller's promise.
    commit(|ticket| unsafe { DOMAIN.store_64(ticket, at, value) })
}

/// Stores 32 bits where there are `old`: 0, `INTERFERED` or `MISMATCH`.
///
/// # Safety
/// As for [`Core::store_32`].
pub unsafe fn compare_32(at: *mut u32, old: u32, new: u32) -> u32 {
    // SAFETY: the caller's promise.
    commit(|ticket| unsafe { DOMAIN.compare_32(ticket, at, old, new) })
}

/// Stores 64 bits where there are `old`: 0, `INTERFERED` or `MISMATCH`.
///
/// # Safety
/// As for [`Core::store_32`].
pub unsafe fn compare_64(at: *mut u64, old: u64, new: u64) -> u32 {
    // SAFETY: the caller's promise.
    commit(|ticket| unsafe { DOMAIN.compare_64(ticket, at, old, new) })
}

/// Stores a pair where there is `old`: 0, `INTERFERED` or `MISMATCH`.
///
/// # Safety
/// As for [`Core::compare_pair`].
pub unsafe fn compare_pair(at: *mut u64, old: [u64; 2], new: [u64; 2]) -> u32 {
    // SAFETY: the caller's promise.
    commit(|ticket| unsafe { DOMAIN.compare_pair(ticket, at, old, new) })
}

/// Makes an index the caller's alone while `f` runs, and with it what the program keeps by that index: see
/// [`Core::take_over`]. The way out for a body that fails again and again.
pub fn take_over<R>(index: usize, f: impl FnOnce() -> R) -> Result<R, Busy> {
    DOMAIN.take_over(index, |_| f())
}

/// How many different numbers [`begin`] may return.
pub fn indices() -> usize {
    DOMAIN.areas()
}
