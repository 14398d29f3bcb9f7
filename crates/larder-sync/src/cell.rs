//! A cell whose accesses a model watches: two that nothing orders end it.

#[cfg(loom)]
pub(crate) use crate::loom::cell::UnsafeCell;

/// As `core`'s, with loom's interface.
#[cfg(not(loom))]
pub(crate) struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(core::cell::UnsafeCell::new(value))
    }

    /// Gives the pointer to `access`, which has the cell for itself.
    #[inline]
    pub(crate) fn with_mut<R>(&self, access: impl FnOnce(*mut T) -> R) -> R {
        access(self.0.get())
    }
}
