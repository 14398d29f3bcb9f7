#![doc = include_str!("README.md")]

mod raw;
pub use raw::RawMutex;

#[cfg(any(feature = "std", loom))]
mod condvar;
#[cfg(any(feature = "std", loom))]
pub use condvar::Condvar;

/// A mutex that spins, then parks, and restricts how many threads circulate over it. See the [module](self).
#[cfg(any(feature = "std", loom))]
pub type Mutex<T> = lock_api::Mutex<RawMutex, T>;
/// Proof that the current thread holds a [`Mutex`].
#[cfg(any(feature = "std", loom))]
pub type MutexGuard<'a, T> = lock_api::MutexGuard<'a, RawMutex, T>;
