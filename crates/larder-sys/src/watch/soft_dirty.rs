//! The soft-dirty bit: the kernel sets it in a page's table entry at the first write after all bits were cleared, for the
//! whole process at once, by writing 4 to `/proc/self/clear_refs`.
//!
//! Kernels without `CONFIG_MEM_SOFT_DIRTY` accept the write and never set the bit; so [`super::Kind::is_offered`] tries.
//! They are read by `PAGEMAP_SCAN`, or where the kernel is too old for that, from `pagemap`, eight bytes for each page.

use super::WatchError;
use crate::pagemap::{Pagemap, SOFT_DIRTY};

/// What `clear_refs` takes to clear the soft-dirty bits.
const CLEAR_SOFT_DIRTY: &[u8] = b"4";

/// The two files.
pub struct SoftDirty {
    clear: i32,
    pagemap: Pagemap,
}

impl SoftDirty {
    pub fn attach() -> Result<Self, WatchError> {
        let pagemap = Pagemap::open()?;
        // SAFETY: a C string; the descriptor is closed when this is dropped.
        let clear = unsafe { libc::open(c"/proc/self/clear_refs".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC) };
        if clear < 0 {
            return Err(WatchError::of("open(/proc/self/clear_refs)"));
        }
        Ok(Self { clear, pagemap })
    }

    pub fn begin(&self) -> Result<(), WatchError> {
        // SAFETY: the bytes are as long as said.
        let n = unsafe { libc::write(self.clear, CLEAR_SOFT_DIRTY.as_ptr().cast(), CLEAR_SOFT_DIRTY.len()) };
        if n == 1 { Ok(()) } else { Err(WatchError::of("write(/proc/self/clear_refs)")) }
    }

    pub fn fetch(&self, low: usize, high: usize, f: &mut dyn FnMut(usize, usize)) -> Result<(), WatchError> {
        self.pagemap.scan(low, high, SOFT_DIRTY, false, f).or_else(|_| self.pagemap.read_soft_dirty(low, high, f))
    }
}

impl Drop for SoftDirty {
    fn drop(&mut self) {
        // SAFETY: the descriptor is this value's own.
        unsafe { libc::close(self.clear) };
    }
}
