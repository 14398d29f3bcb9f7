//! loom's atomics, with a look for a signal before each access.

pub use crate::loom::hint::spin_loop;
pub use crate::loom::sync::atomic::{Ordering, fence};
use crate::signals;

/// A point at which a handler may come between.
pub fn compiler_fence(_: Ordering) {
    signals::look();
}

/// What an access finds after the model has failed.
trait Nothing {
    fn nothing() -> Self;
}

fn nothing<T: Nothing>() -> T {
    T::nothing()
}

macro_rules! nothing {
    ($($type:ty),*) => { $(
        impl Nothing for $type {
            fn nothing() -> Self {
                Default::default()
            }
        }
    )* };
}
nothing!((), bool, i32, u32, u64, usize);

impl<T> Nothing for *mut T {
    fn nothing() -> Self {
        std::ptr::null_mut()
    }
}

impl<T: Nothing> Nothing for Result<T, T> {
    fn nothing() -> Self {
        Ok(T::nothing())
    }
}

macro_rules! methods {
    ($inner:ident, $value:ty: $($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        /// An atomic with this value.
        #[track_caller]
        pub fn new(value: $value) -> Self {
            Self(crate::loom::sync::atomic::$inner::new(value))
        }

        $(
            /// As `core`'s, after a look for a signal.
            #[track_caller]
            pub fn $name(&self, $($argument: $type),*) -> $result {
                if std::thread::panicking() {
                    // A guard that is dropped after the model has failed, when loom runs no thread any more.
                    return nothing();
                }
                signals::look();
                self.0.$name($($argument),*)
            }
        )*
    };
}

macro_rules! integer {
    ($($name:ident of $value:ty;)*) => { $(
        /// As `core`'s.
        #[derive(Debug)]
        pub struct $name(crate::loom::sync::atomic::$name);

        impl $name {
            methods! { $name, $value:
                load(order: Ordering) -> $value;
                store(value: $value, order: Ordering) -> ();
                swap(value: $value, order: Ordering) -> $value;
                compare_exchange(old: $value, new: $value, yes: Ordering, no: Ordering) -> Result<$value, $value>;
                compare_exchange_weak(old: $value, new: $value, yes: Ordering, no: Ordering) -> Result<$value, $value>;
                fetch_add(value: $value, order: Ordering) -> $value;
                fetch_sub(value: $value, order: Ordering) -> $value;
                fetch_or(value: $value, order: Ordering) -> $value;
                fetch_and(value: $value, order: Ordering) -> $value;
                fetch_max(value: $value, order: Ordering) -> $value;
            }

            /// Reads the value without an access that loom would take for one of the protocol.
            ///
            /// # Safety
            /// As for loom's.
            pub unsafe fn unsync_load(&self) -> $value {
                // SAFETY: the caller's promise.
                unsafe { self.0.unsync_load() }
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

impl AtomicU32 {
    /// Reads the value as the kernel does, which no signal interrupts.
    pub(crate) fn peek(&self, order: Ordering) -> u32 {
        self.0.load(order)
    }
}

/// As `core`'s.
#[derive(Debug)]
pub struct AtomicBool(crate::loom::sync::atomic::AtomicBool);

impl AtomicBool {
    methods! { AtomicBool, bool:
        load(order: Ordering) -> bool;
        store(value: bool, order: Ordering) -> ();
        swap(value: bool, order: Ordering) -> bool;
    }
}

/// As `core`'s.
#[derive(Debug)]
pub struct AtomicPtr<T>(crate::loom::sync::atomic::AtomicPtr<T>);

impl<T> AtomicPtr<T> {
    methods! { AtomicPtr, *mut T:
        load(order: Ordering) -> *mut T;
        store(value: *mut T, order: Ordering) -> ();
        swap(value: *mut T, order: Ordering) -> *mut T;
        compare_exchange(old: *mut T, new: *mut T, yes: Ordering, no: Ordering) -> Result<*mut T, *mut T>;
        compare_exchange_weak(old: *mut T, new: *mut T, yes: Ordering, no: Ordering) -> Result<*mut T, *mut T>;
    }
}
