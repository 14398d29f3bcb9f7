//! What elision asks of transactions, and the backends that need no processor for it.

use core::sync::atomic::{AtomicU32, Ordering};

/// Why a transaction came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abort {
    /// The lock was held.
    Held,
    /// Another thread touched the same data, or something passed; the same may succeed now.
    Conflict,
    /// The section does what transactions cannot, or touches too much.
    Hopeless,
}

/// A way to run a section as a transaction.
pub trait Backend {
    /// Whether an attempt may ever succeed; if not, none is made, and elision leaves no code behind.
    const POSSIBLE: bool;

    /// Runs `section` as a transaction if `free` says so inside of it. On failure nothing has happened.
    ///
    /// # Errors
    /// [`Abort`].
    fn attempt<R>(&self, free: impl FnOnce() -> bool, section: impl FnOnce() -> R) -> Result<R, Abort>;
}

/// No transactions: every section takes the lock.
#[derive(Clone, Copy, Debug, Default)]
pub struct Never;

impl Backend for Never {
    const POSSIBLE: bool = false;

    fn attempt<R>(&self, _free: impl FnOnce() -> bool, _section: impl FnOnce() -> R) -> Result<R, Abort> {
        Err(Abort::Hopeless)
    }
}

/// Transactions that fail when a test wants it, and isolate nothing.
#[derive(Debug)]
pub struct Mock {
    /// Attempts that are still to fail. Sync: a count, Relaxed.
    failures: AtomicU32,
    with: Abort,
}

impl Mock {
    /// The first `failures` attempts fail with `with`, before their section begins; the others succeed unless the lock is
    /// held.
    ///
    /// # Safety
    /// Sections that are run with it bear to overlap: nothing keeps one apart from another, nor from one that holds the lock.
    pub const unsafe fn failing(failures: u32, with: Abort) -> Self {
        Self { failures: AtomicU32::new(failures), with }
    }
}

impl Backend for Mock {
    const POSSIBLE: bool = true;

    fn attempt<R>(&self, free: impl FnOnce() -> bool, section: impl FnOnce() -> R) -> Result<R, Abort> {
        // ORDER elision.count: Relaxed, both; a count.
        let fails =
            self.failures.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok();
        if fails {
            return Err(self.with);
        }
        if !free() {
            return Err(Abort::Held);
        }
        Ok(section())
    }
}
