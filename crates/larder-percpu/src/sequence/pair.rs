//! The allocation sequences of the fixed heap: bump a pair (frontier, limit), and replace a pair.
//!
//! Each index owns a slab of [`SLAB`] bytes; a slot is a 16-byte pair of words at the same offset in each slab.
//!
//! | word | content | written by |
//! |---|---|---|
//! | 0 | frontier: next free address | `bump` (commit), `replace` |
//! | 1 | limit: one past the last address; 0 when closed | `replace`, and by the collector, which closes with a plain store |
//!
//! Both sequences follow the kernel's rules: no call, no stack, no system call; one committing store, last; the
//! signature just before the abort handler; the index is read inside; the handler starts over and so arms again.
//! The collector closes a slot by storing 0 to its limit and then aborts every running sequence (membarrier): a
//! sequence that began before cannot commit after, and one that begins later sees the closed limit.

use core::arch::asm;
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::ground::Ground;

/// log2 of [`SLAB`].
pub const SLAB_SHIFT: u32 = 14;
/// Bytes between the slabs of two indices.
pub const SLAB: usize = 1 << SLAB_SHIFT;

/// The frontier and the limit of one buffer.
///
/// Sync: `bump` and `replace` on the owning index; the collector in a stopped world, after it closed the slot and
/// aborted all sequences.
#[repr(C, align(16))]
pub struct Slot {
    /// The next free address.
    pub frontier: AtomicUsize,
    /// One past the last free address; 0 when the slot is closed or was never filled.
    pub limit: AtomicUsize,
}

const _: () = assert!(size_of::<Slot>() == 16);

/// One compare-and-swap of a pair, with or without a lock prefix: 1 when it was done.
macro_rules! swap_pair {
    ($instruction:literal, $slot:expr, $old:expr, $new:expr) => {{
        let done: u8;
        let (slot, old, new): (&Slot, [usize; 2], [usize; 2]) = ($slot, $old, $new);
        // SAFETY: one instruction on two atomics, aligned because slots are; rbx, which the compiler keeps for itself, is
        // put back.
        unsafe {
            asm!(
                "xchg rbx, rsi",
                concat!($instruction, " xmmword ptr [rdi]"),
                "sete r8b",
                "xchg rbx, rsi",
                in("rdi") slot,
                inout("rsi") new[0] => _,
                in("rcx") new[1],
                inout("rax") old[0] => _,
                inout("rdx") old[1] => _,
                out("r8b") done,
                options(nostack),
            );
        }
        done != 0
    }};
}

impl Slot {
    /// An empty slot, closed.
    pub const fn new() -> Self {
        Self { frontier: AtomicUsize::new(0), limit: AtomicUsize::new(0) }
    }

    /// Both words, one after the other: they may not belong together. The compare forms look at both at once.
    #[inline(always)]
    pub fn load(&self) -> [usize; 2] {
        // Relaxed: whoever acts on it compares both words in the instruction that acts.
        [self.frontier.load(Ordering::Relaxed), self.limit.load(Ordering::Relaxed)]
    }

    /// Replaces the pair if it is `old`, among any threads: one `lock cmpxchg16b`, which is a full fence.
    #[inline]
    pub fn compare_exchange(&self, old: [usize; 2], new: [usize; 2]) -> bool {
        swap_pair!("lock cmpxchg16b", self, old, new)
    }

    /// As [`Slot::compare_exchange`] where only the calling thread, its handlers, and whoever stopped it use the slot: one
    /// instruction without a lock.
    #[inline]
    pub fn compare_exchange_own(&self, old: [usize; 2], new: [usize; 2]) -> bool {
        swap_pair!("cmpxchg16b", self, old, new)
    }
}

impl Default for Slot {
    fn default() -> Self {
        Self::new()
    }
}

/// Takes `bytes` from the current index's buffer: returns the old frontier, or 0 when the rest is too small, the slot
/// is closed, or sequences are not available.
///
/// `slot` is the address of the slot in the slab of index 0. The object's base is in a register when the commit
/// makes it the caller's, so a conservative scan of a thread stopped right after finds it.
///
/// # Safety
/// `ground` is set up and has indices: without that, the arming store would hit the thread control block. `slot` is the
/// address of a slot in the first of as many consecutive slabs as there are indices.
#[inline(always)]
pub unsafe fn bump(ground: &Ground, slot: usize, bytes: usize) -> usize {
    let result: usize;
    // SAFETY: the sequence writes `rseq_cs` of this thread's own area, and one word of the slot that the caller vouches
    // for; the kernel guarantees that nobody else ran on this index between the index's reading and the commit.
    unsafe {
        asm!(
            "2:",
            "lea {t}, [rip + 77f]",
            "mov qword ptr fs:[{arm}], {t}",
            "3:",
            "mov {t:e}, dword ptr fs:[{index}]",
            "cmp {t:e}, {indices:e}",
            "jae 6f",
            "shl {t}, {shift}",
            "mov {result}, qword ptr [{slot} + {t}]",
            "lea {next}, [{result} + {bytes}]",
            "cmp {next}, qword ptr [{slot} + {t} + 8]",
            "ja 6f",
            "mov qword ptr [{slot} + {t}], {next}",
            "4:",
            ".pushsection __rseq_failure, \"ax\"",
            ".byte 0x0f, 0xb9, 0x3d",
            ".long 0x53053053",
            "5:",
            "jmp 2b",
            "6:",
            "xor {result:e}, {result:e}",
            "jmp 4b",
            ".popsection",
            ".pushsection __rseq_cs, \"aw\"",
            ".balign 32",
            "77:",
            ".long 0, 0",
            ".quad 3b, 4b - 3b, 5b",
            ".popsection",
            ".pushsection __rseq_cs_ptr_array, \"aw\"",
            ".quad 77b",
            ".popsection",
            t = out(reg) _,
            next = out(reg) _,
            result = out(reg) result,
            slot = in(reg) slot,
            bytes = in(reg) bytes,
            arm = in(reg) ground.sequence_word.load(Ordering::Relaxed),
            index = in(reg) ground.index_word.load(Ordering::Relaxed),
            indices = in(reg) ground.indices.load(Ordering::Relaxed),
            shift = const SLAB_SHIFT,
            options(nostack),
        );
    }
    result
}

/// Replaces the current index's pair with `new` if it is `expected`; true when it did.
///
/// The commit is one `cmpxchg16b` without a lock prefix: a single instruction cannot be interrupted half-way, and no
/// other CPU uses this index meanwhile (the paper needed a 32-bit address space to store both words at once).
///
/// # Safety
/// As for [`bump`].
pub unsafe fn replace(ground: &Ground, slot: usize, expected: [usize; 2], new: [usize; 2]) -> bool {
    let done: u8;
    // SAFETY: as in `bump`; every operand has a register of its own
    // choice, because rbx, which the compiler may give to any other, is exchanged in and out again outside the sequence.
    // The pair is 16-byte aligned because slots are.
    unsafe {
        asm!(
            "xchg rbx, rsi",
            "mov r10, rax",
            "mov r11, rdx",
            "2:",
            "mov rax, r10",
            "mov rdx, r11",
            "lea rdi, [rip + 77f]",
            "mov qword ptr fs:[r8], rdi",
            "3:",
            "mov edi, dword ptr fs:[r9]",
            "cmp edi, r13d",
            "jae 6f",
            "shl rdi, {shift}",
            "add rdi, r12",
            "cmpxchg16b xmmword ptr [rdi]",
            "4:",
            "sete r14b",
            "9:",
            "xchg rbx, rsi",
            ".pushsection __rseq_failure, \"ax\"",
            ".byte 0x0f, 0xb9, 0x3d",
            ".long 0x53053053",
            "5:",
            "jmp 2b",
            "6:",
            "xor r14d, r14d",
            "jmp 9b",
            ".popsection",
            ".pushsection __rseq_cs, \"aw\"",
            ".balign 32",
            "77:",
            ".long 0, 0",
            ".quad 3b, 4b - 3b, 5b",
            ".popsection",
            ".pushsection __rseq_cs_ptr_array, \"aw\"",
            ".quad 77b",
            ".popsection",
            in("r12") slot,
            in("r13") ground.indices.load(Ordering::Relaxed),
            in("r8") ground.sequence_word.load(Ordering::Relaxed),
            in("r9") ground.index_word.load(Ordering::Relaxed),
            inout("rsi") new[0] => _,
            in("rcx") new[1],
            inout("rax") expected[0] => _,
            inout("rdx") expected[1] => _,
            out("r10") _,
            out("r11") _,
            out("rdi") _,
            out("r14b") done,
            shift = const SLAB_SHIFT,
            options(nostack),
        );
    }
    done != 0
}

/// Takes `bytes` from a buffer that belongs to the calling thread: the same as [`bump`] where sequences are not
/// available.
///
/// The commit is one `cmpxchg16b` on the whole pair: a signal handler that took a cell, filled the buffer again, or
/// stopped the thread so that the collector closed it, has changed the pair, and the reading starts over. (An addition to
/// the frontier alone, checked against the limit after, could pair an old frontier with a new limit.)
///
/// # Safety
/// `slot` is used by the calling thread and its signal handlers only, or by the collector while it is stopped.
#[inline(always)]
pub unsafe fn bump_own(slot: &Slot, bytes: usize) -> usize {
    loop {
        let seen = slot.load();
        let next = seen[0].wrapping_add(bytes);
        if next > seen[1] {
            return 0;
        }
        if slot.compare_exchange_own(seen, [next, seen[1]]) {
            return seen[0];
        }
    }
}

/// Fills a slot that belongs to the calling thread. A handler that comes between sees a closed slot.
pub fn replace_own(slot: &Slot, new: [usize; 2]) {
    slot.limit.store(0, Ordering::Relaxed);
    core::sync::atomic::compiler_fence(Ordering::SeqCst);
    slot.frontier.store(new[0], Ordering::Relaxed);
    core::sync::atomic::compiler_fence(Ordering::SeqCst);
    slot.limit.store(new[1], Ordering::Relaxed);
}
