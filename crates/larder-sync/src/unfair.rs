//! loom's interface on shuttle, so that the shipped code runs under either.
//!
//! loom explores every interleaving, and every value that a weak ordering allows; shuttle picks interleavings at random, all
//! accesses in one order, and so reaches many threads and many rounds. Its PCT scheduler is unfair: it always runs the thread of
//! the highest priority that can run, and lowers a priority only now and then. A protocol that waits by looking again, without
//! giving way or going to sleep, does not end under it.

/// Looks that a thread makes while it waits.
pub mod hint {
    /// Gives way: under an unfair scheduler, a thread that only looks would look for ever.
    pub fn spin_loop() {
        shuttle::thread::yield_now();
    }
}

/// Threads.
pub mod thread {
    pub use shuttle::thread::{JoinHandle, current, spawn, yield_now};
}

/// What threads share.
pub mod sync {
    pub use shuttle::sync::{Condvar, Mutex};

    /// shuttle's atomics, with the one method that only loom has.
    pub mod atomic {
        pub use shuttle::sync::atomic::{AtomicBool, AtomicPtr, Ordering, fence};

        macro_rules! integer {
            ($($name:ident of $value:ty;)*) => { $(
                /// As shuttle's.
                #[derive(Debug)]
                pub struct $name(shuttle::sync::atomic::$name);

                impl $name {
                    /// An atomic with this value.
                    pub fn new(value: $value) -> Self {
                        Self(shuttle::sync::atomic::$name::new(value))
                    }

                    /// Reads the value without a chance for others to run.
                    ///
                    /// # Safety
                    /// Nobody writes it meanwhile.
                    pub unsafe fn unsync_load(&self) -> $value {
                        // SAFETY: the caller's promise.
                        unsafe { self.0.raw_load() }
                    }
                }

                impl core::ops::Deref for $name {
                    type Target = shuttle::sync::atomic::$name;
                    fn deref(&self) -> &Self::Target {
                        &self.0
                    }
                }
            )* };
        }
        integer! {
            AtomicI32 of i32;
            AtomicU32 of u32;
            AtomicU64 of u64;
            AtomicUsize of usize;
        }
    }
}

/// A cell that finds two who have it at once.
pub mod cell {
    use std::sync::atomic::{AtomicIsize, Ordering};

    /// As loom's: who has it to read and who has it to write must not meet.
    #[derive(Debug)]
    pub struct UnsafeCell<T> {
        value: core::cell::UnsafeCell<T>,
        /// How many read, or -1 for one that writes. Not shuttle's: to look at it is no step of the model.
        users: AtomicIsize,
    }

    impl<T> UnsafeCell<T> {
        /// A cell with this value.
        pub fn new(value: T) -> Self {
            Self { value: core::cell::UnsafeCell::new(value), users: AtomicIsize::new(0) }
        }

        /// Gives the pointer to `access`, which has the cell to read.
        pub fn with<R>(&self, access: impl FnOnce(*const T) -> R) -> R {
            let users = self.users.fetch_add(1, Ordering::Relaxed);
            assert!(users >= 0, "a cell is read while it is written");
            shuttle::thread::yield_now();
            let result = access(self.value.get());
            self.users.fetch_sub(1, Ordering::Relaxed);
            result
        }

        /// Gives the pointer to `access`, which has the cell for itself.
        pub fn with_mut<R>(&self, access: impl FnOnce(*mut T) -> R) -> R {
            let users = self.users.swap(-1, Ordering::Relaxed);
            assert!(users == 0, "a cell is written while others have it");
            shuttle::thread::yield_now();
            let result = access(self.value.get());
            self.users.store(0, Ordering::Relaxed);
            result
        }
    }
}

pub use shuttle::{lazy_static, thread_local};
