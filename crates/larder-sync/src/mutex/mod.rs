#![doc = include_str!("README.md")]

mod raw;
pub use raw::RawMutex;

#[cfg(feature = "std")]
mod condvar;
#[cfg(feature = "std")]
pub use condvar::Condvar;

/// A mutex that spins, then parks, and restricts how many threads circulate over it. See the [module](self).
#[cfg(feature = "std")]
pub type Mutex<T> = lock_api::Mutex<RawMutex, T>;
/// Proof that the current thread holds a [`Mutex`].
#[cfg(feature = "std")]
pub type MutexGuard<'a, T> = lock_api::MutexGuard<'a, RawMutex, T>;
