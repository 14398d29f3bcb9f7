//! Fields of a thread's control block that the C library keeps to itself.
//!
//! glibc describes its structures to debuggers in a few words of data, one description for each field. They are read
//! here, so that nothing depends on one version's layout.

use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::thread::{thread_pointer, tid};

/// A field: where it lies, and how large it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Bytes from the structure's beginning.
    pub offset: usize,
    /// Its size in bytes; of an array, all of it.
    pub bytes: usize,
}

/// Where the process has a symbol; null where it has none. Waits for the loader's lock.
pub(crate) fn symbol(name: &CStr) -> *mut c_void {
    // SAFETY: a name that ends.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
}

/// What the C library says of a field. Looks a symbol up, so it is for initialisation only.
pub fn described(name: &CStr) -> Option<Field> {
    // SAFETY: the symbol, where it exists, is glibc's description of a field: bits, count, offset.
    let [bits, count, offset] = unsafe { symbol(name).cast::<[u32; 3]>().as_ref().copied()? };
    // Some versions describe an array as a whole, others one of its elements and how many there are.
    Some(Field { offset: offset as usize, bytes: bits as usize / 8 * count as usize })
}

/// Where a thread's number lies from its control block; 0 where that is not known.
///
/// Sync: [`find`] writes, before there are other threads.
static NUMBER: AtomicUsize = AtomicUsize::new(0);

/// Asks the C library where the number lies. For initialisation.
pub fn find() {
    if let Some(field) = described(c"_thread_db_pthread_tid")
        && field.bytes == size_of::<i32>()
    {
        NUMBER.store(field.offset, Ordering::Relaxed);
    }
}

/// Gives the calling thread's control block the thread's number, if it has none.
///
/// A thread that the C library did not make (by `clone`) may have a control block from the loader, in which the number is 0.
/// The C library's recursive locks tell owners apart by it, and 0 means nobody: such a thread walks through a free lock without
/// taking it, the one that guards the loader's list among them. Returns whether the block had one, so that the C library
/// knows the thread.
pub fn give_number() -> bool {
    let offset = NUMBER.load(Ordering::Relaxed);
    if offset != 0 {
        // SAFETY: the calling thread's own block, which the C library reads in this thread and in those that know its handle.
        let number = unsafe { core::sync::atomic::AtomicI32::from_ptr(thread_pointer().add(offset).cast()) };
        if number.load(Ordering::Relaxed) == 0 {
            number.store(tid(), Ordering::Relaxed);
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number() -> i32 {
        // SAFETY: the calling thread's own.
        unsafe { thread_pointer().add(NUMBER.load(Ordering::Relaxed)).cast::<i32>().read() }
    }

    #[test]
    fn a_block_without_a_number_gets_one_and_others_keep_theirs() {
        find();
        assert_ne!(NUMBER.load(Ordering::Relaxed), 0, "this C library describes its threads otherwise");
        assert_eq!(number(), tid());
        assert!(give_number());
        assert_eq!(number(), tid());
        // SAFETY: as in `number`; this thread takes no recursive lock meanwhile.
        unsafe { thread_pointer().add(NUMBER.load(Ordering::Relaxed)).cast::<i32>().write(0) };
        assert!(!give_number());
        assert_eq!(number(), tid());
    }
}
