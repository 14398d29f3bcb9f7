//! Thread-specific data (`pthread_setspecific`): where the C library keeps a thread's values.
//!
//! Programs keep objects there, and on libgc they stay: it scans the end of a thread's stack, where the first 32
//! values lie. Here all are found ([`crate::control_block`] says where).

use core::sync::atomic::{AtomicUsize, Ordering};

use crate::control_block::described;
use crate::hint;

/// Bytes of a key's entry: a sequence number and the value.
const ENTRY: usize = 16;
/// Keys of a block, as glibc has had it since it has threads.
const KEYS: usize = 32;
/// Bytes of a cache line.
const LINE: usize = 64;
/// A description that says more than this is of something else.
const MOST_BLOCKS: usize = 1024;

/// Where a thread's table of blocks lies from its control block; 0 where that is not known.
///
/// Sync: `find` writes, before there are other threads.
static OFFSET: AtomicUsize = AtomicUsize::new(0);
/// Entries of that table. Sync: as `OFFSET`.
static BLOCKS: AtomicUsize = AtomicUsize::new(0);

/// Asks the C library where the data lie. Looks a symbol up, so it is for initialisation only.
pub fn find() {
    if let Some(table) = described(c"_thread_db_pthread_specific")
        && (1..=MOST_BLOCKS).contains(&(table.bytes / size_of::<usize>()))
    {
        BLOCKS.store(table.bytes / size_of::<usize>(), Ordering::Relaxed);
        OFFSET.store(table.offset, Ordering::Relaxed);
    }
}

/// Calls `f(low, high)` for each block of values that the thread has.
///
/// # Safety
/// The thread whose control block is at `thread_pointer` is the calling one, or is stopped.
pub unsafe fn for_each_block(thread_pointer: *const u8, mut f: impl FnMut(usize, usize)) {
    let offset = OFFSET.load(Ordering::Relaxed);
    if offset == 0 {
        return;
    }
    let table = thread_pointer.wrapping_add(offset).cast::<usize>();
    for i in 0..BLOCKS.load(Ordering::Relaxed) {
        // SAFETY: the table has so many words, each null or a block's address.
        let block = unsafe { table.add(i).read() };
        if block != 0 {
            f(block, block + KEYS * ENTRY);
        }
    }
}

/// Asks the memory for the table of the thread whose control block is at `thread_pointer`, which most often lies where nobody has looked for long.
pub fn prefetch_blocks(thread_pointer: *const u8) {
    let offset = OFFSET.load(Ordering::Relaxed);
    let bytes = BLOCKS.load(Ordering::Relaxed) * size_of::<usize>();
    let table = thread_pointer.addr().wrapping_add(offset);
    (table & !(LINE - 1)..table + bytes).step_by(LINE).for_each(hint::prefetch);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_the_first_and_of_later_keys_are_found() {
        find();
        assert!(OFFSET.load(Ordering::Relaxed) != 0, "this C library describes its threads otherwise");
        let mut keys = [0; 40];
        for (i, key) in keys.iter_mut().enumerate() {
            // SAFETY: keys of this test, deleted below.
            unsafe {
                assert_eq!(libc::pthread_key_create(key, None), 0);
                libc::pthread_setspecific(*key, core::ptr::without_provenance(0x5ec0_0000 + i));
            }
        }
        let mut found = 0;
        // SAFETY: the calling thread's own.
        unsafe {
            for_each_block(crate::thread::thread_pointer(), |low, high| {
                for at in (low..high).step_by(8) {
                    let word = core::ptr::with_exposed_provenance::<usize>(at).read();
                    found += usize::from((0x5ec0_0000..0x5ec0_0000 + keys.len()).contains(&word));
                }
            });
        }
        keys.iter().for_each(|key| {
            // SAFETY: made above.
            unsafe { libc::pthread_key_delete(*key) };
        });
        assert_eq!(found, keys.len());
    }
}
