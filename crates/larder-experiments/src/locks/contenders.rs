//! Locks, as the studies use them: a section runs under each.

use std::cell::RefCell;

use larder_sync::clh::{ClhLock, Place};
use larder_sync::lock::Lock;

/// A lock without data.
pub trait Bare: Sync {
    fn fresh() -> Self;
    /// Runs the section under the lock; `thread` numbers the calling thread from 0.
    fn with(&self, thread: u32, section: impl FnOnce());
}

impl Bare for std::sync::Mutex<()> {
    fn fresh() -> Self {
        Self::new(())
    }
    #[inline]
    fn with(&self, _thread: u32, section: impl FnOnce()) {
        let _guard = self.lock();
        section();
    }
}

impl<R: lock_api::RawMutex + Send + Sync> Bare for lock_api::Mutex<R, ()> {
    fn fresh() -> Self {
        Self::new(())
    }
    #[inline]
    fn with(&self, _thread: u32, section: impl FnOnce()) {
        let _guard = self.lock();
        section();
    }
}

/// The four bytes that the runtime itself uses.
impl Bare for Lock {
    fn fresh() -> Self {
        Self::new()
    }
    #[inline]
    fn with(&self, _thread: u32, section: impl FnOnce()) {
        let _guard = self.lock();
        section();
    }
}

impl Bare for ClhLock {
    fn fresh() -> Self {
        Self::new()
    }
    #[inline]
    fn with(&self, _thread: u32, section: impl FnOnce()) {
        thread_local! {
            static PLACE: RefCell<Place> = RefCell::new(Place::new());
        }
        PLACE.with_borrow_mut(|place| {
            let _guard = self.lock(place);
            section();
        });
    }
}
