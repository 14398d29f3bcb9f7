//! The runtime's own thread-local storage: 64 bytes, initial-exec, declared in assembly.
//!
//! `thread_local!` in a shared object may call malloc on first touch (`__tls_get_addr`), in a process whose malloc may
//! be held by a stopped thread. Initial-exec storage is part of every thread's static TLS block, so touching it is one
//! `fs:`-relative access, also in a library that was opened with dlopen. All else hangs off it.

use core::arch::{asm, global_asm};
use core::cell::Cell;

global_asm!(
    ".pushsection .tbss,\"awT\",@nobits",
    ".balign 64",
    ".hidden larder_tls",
    ".globl larder_tls",
    ".type larder_tls,@object",
    ".size larder_tls,64",
    "larder_tls:",
    ".zero 64",
    ".popsection",
);

/// What the runtime keeps for each thread. All zero in a thread that the runtime has not met.
///
/// Sync: the owner thread and its own signal handlers only; each field is read and written whole, so a handler
/// sees either the old or the new value. (The collector reads a stopped thread through its record, not through this.)
#[repr(C, align(64))]
pub struct ThreadBlock {
    /// The thread's record in the registry, or null.
    pub record: Cell<*mut u8>,
    /// How deep the thread is in slow paths: while it is not zero the thread defers stops and does not collect.
    pub slow_depth: Cell<u32>,
    /// A stop arrived while `slow_depth` was not zero.
    pub stop_pending: Cell<u32>,
    /// The thread's buffers where sequences are not available, or null.
    pub buffers: Cell<*mut u8>,
    /// The kernel's thread id as it was when the thread was registered: differs in a child of vfork.
    pub tid: Cell<i32>,
    /// How many locks of critical sections the thread holds: what a handler that interrupted it must not wait for.
    pub locks_held: Cell<u32>,
    /// The token of the transaction that is open by the interface without handles (`csBegin`); 0 for none.
    pub open_token: Cell<u64>,
    /// The index of that transaction.
    pub open_index: Cell<u32>,
    /// Never written: the index of a sequence on a buffer that belongs to the thread itself.
    pub zero: Cell<u32>,
    /// Bytes that the thread freed explicitly and has not told anybody of yet. Each time they do not fit any more it tells of 64 KiB.
    pub freed: Cell<u16>,
    /// Objects that client mark procedures have marked on this thread and that are not counted yet.
    pub proc_objects: Cell<u16>,
    /// Words that these keep.
    pub proc_words: Cell<u32>,
    /// The last fault that came too late to be noticed as a write, see `watch::mprotect`; 0 for none.
    pub late_fault: Cell<usize>,
}

const _: () = assert!(size_of::<ThreadBlock>() == 64);

/// The calling thread's block.
#[inline(always)]
pub fn block() -> *const ThreadBlock {
    let at: *const ThreadBlock;
    // SAFETY: the offset is fixed by the loader before any code runs; `fs:0` is the thread pointer. Neither is ever written while code
    // of the thread runs, so to the program these are no reads of memory, and one of two in a function may be left out.
    unsafe {
        asm!(
            "mov {at}, qword ptr [rip + larder_tls@GOTTPOFF]",
            "add {at}, qword ptr fs:[0]",
            at = out(reg) at,
            options(nostack, pure, nomem),
        );
    }
    at
}

/// Offset of [`ThreadBlock::zero`] from the thread pointer, the same in every thread.
pub fn offset_of_zero() -> isize {
    let at = block().wrapping_byte_add(core::mem::offset_of!(ThreadBlock, zero));
    at.addr().wrapping_sub(crate::thread::thread_pointer().addr()) as isize
}

/// The calling thread's block as a reference.
#[inline(always)]
pub fn with<R>(f: impl FnOnce(&ThreadBlock) -> R) -> R {
    // SAFETY: the block lives as long as the thread, and only this thread (and handlers on it) uses it.
    f(unsafe { &*block() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_zero_is_at_its_offset_in_every_thread() {
        let here = offset_of_zero();
        let read = move || {
            let at = crate::thread::thread_pointer().wrapping_offset(here).cast::<u32>();
            // SAFETY: the word of this thread's block.
            (offset_of_zero() == here, unsafe { at.read() }, at.addr() - block().addr())
        };
        let place = core::mem::offset_of!(ThreadBlock, zero);
        assert_eq!(read(), (true, 0, place));
        assert_eq!(std::thread::spawn(read).join().unwrap(), (true, 0, place));
    }

    #[test]
    fn every_thread_has_a_zeroed_block_of_its_own() {
        with(|t| t.slow_depth.set(3));
        let here = block().addr();
        std::thread::spawn(move || {
            assert_ne!(block().addr(), here);
            assert_eq!(with(|t| t.slow_depth.get()), 0);
        })
        .join()
        .unwrap();
        assert_eq!(with(|t| t.slow_depth.get()), 3);
        assert_eq!(here % 64, 0);
        with(|t| t.slow_depth.set(0));
    }
}
