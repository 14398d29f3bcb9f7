//! The allocation sequences of the heaps: bump a pair (frontier, limit), and replace a pair.
//!
//! Each index owns a slab of [`SLAB`] bytes; a slot is a 16-byte pair of words at the same offset in each slab.
//!
//! | word | content | written by |
//! |---|---|---|
//! | 0 | frontier: next free address | `bump`, `bump_of_thread`, `bump_near` (commit), `replace` |
//! | 1 | limit: one past the last address; 0 when closed | `replace`, and by the collector, which closes with a plain store |
//!
//! All sequences follow the kernel's rules: no call, no stack, no system call; one committing store, last; the
//! signature just before the abort handler; the index is read inside; the handler starts over and so arms again.
//! The collector closes a slot by storing 0 to its limit and then aborts every running sequence (membarrier): a
//! sequence that began before cannot commit after, and one that begins later sees the closed limit.

use core::arch::asm;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::ground::Ground;

/// log2 of [`SLAB`].
pub const SLAB_SHIFT: u32 = 14;
/// Bytes between the slabs of two indices.
pub const SLAB: usize = 1 << SLAB_SHIFT;

/// The frontier and the limit of one buffer.
///
/// Sync: `bump`, `bump_of_thread`, `bump_near` and `replace` on the owning index; the collector in a stopped world, after it closed the slot and
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

/// The descriptor of a sequence between the labels 3 and 4, with the abort handler 5, under the label 77.
macro_rules! descriptor {
    () => {
        concat!(
            ".pushsection __rseq_cs, \"aw\"\n",
            ".balign 32\n",
            "77:\n",
            ".long 0, 0\n",
            ".quad 3b, 4b - 3b, 5b\n",
            ".popsection\n",
            ".pushsection __rseq_cs_ptr_array, \"awR\"\n",
            ".quad 77b\n",
            ".popsection",
        )
    };
}

/// What follows the commit of a bump: the abort handler, which starts over at 2, and at 6 the way out where there is too little.
macro_rules! after_bump {
    () => {
        concat!(
            "4:\n",
            ".pushsection __rseq_failure, \"ax\"\n",
            ".byte 0x0f, 0xb9, 0x3d\n",
            ".long 0x53053053\n",
            "5:\n",
            "jmp 2b\n",
            "6:\n",
            "xor {result:e}, {result:e}\n",
            "jmp 4b\n",
            ".popsection",
        )
    };
}

/// Takes `bytes` from the current index's buffer: returns the old frontier, or 0 when the rest is too small, the slot
/// is closed, or the kernel keeps no area for the thread.
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
            // As `registered` in the shared text.
            "cmp dword ptr fs:[{arm} - 4], 0x7fffffff",
            "ja 6f",
            "mov {t:e}, dword ptr fs:[{index}]",
            "cmp {t:e}, {indices:e}",
            "jae 6f",
            "shl {t}, {shift}",
            // No index register below: see `place` in the shared text.
            "add {t}, {slot}",
            "mov {result}, qword ptr [{t}]",
            "lea {next}, [{result} + {bytes}]",
            "cmp {next}, qword ptr [{t} + 8]",
            "ja 6f",
            "mov qword ptr [{t}], {next}",
            after_bump!(),
            descriptor!(),
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

/// As [`bump`] on a ground with one index, which every thread has: `slot` is the calling thread's own.
///
/// Nothing is looked up, so a loop has the slot's address in one register all the time. Golden Cove then knows the last allocation's
/// frontier before it is stored; where it has to compute the address, the load waits for the store, which takes longer than all else.
///
/// # Safety
/// As for [`bump`]; the ground has one index.
#[inline(always)]
pub unsafe fn bump_of_thread(ground: &Ground, slot: usize, bytes: usize) -> usize {
    let result: usize;
    // SAFETY: as in `bump`. Only this thread and its handlers, which abort it, use the slot.
    unsafe {
        asm!(
            "2:",
            "lea {t}, [rip + 77f]",
            "mov qword ptr fs:[{arm}], {t}",
            "3:",
            "cmp dword ptr fs:[{arm} - 4], 0x7fffffff",
            "ja 6f",
            "mov {result}, qword ptr [{slot}]",
            "lea {t}, [{result} + {bytes}]",
            "cmp {t}, qword ptr [{slot} + 8]",
            "ja 6f",
            "mov qword ptr [{slot}], {t}",
            after_bump!(),
            descriptor!(),
            t = out(reg) _,
            result = out(reg) result,
            slot = in(reg) slot,
            bytes = in(reg) bytes,
            arm = in(reg) ground.sequence_word.load(Ordering::Relaxed),
            options(nostack),
        );
    }
    result
}

/// What [`bump_near`] reads: where one thread's rseq area and the slabs are, by address, kept in that thread's own record.
/// [`bump`] reads the same from the process's [`Ground`], as offsets, and checks the index, which is right in every thread that is
/// registered.
///
/// Sync: set by the thread, or for it while it stands still between two sequences.
#[repr(C)]
pub struct Near {
    /// Address of the thread's `rseq_cs`.
    rseq_cs: AtomicUsize,
    /// Address of its index word.
    index: AtomicUsize,
    /// Address of the slot in the slab of index 0.
    slot: AtomicUsize,
}

/// What is written and read where a thread has no slabs to go to: `rseq_cs`, which nobody reads, an index, and a slot that is never
/// open. Sync: the first is written by anybody's sequence; the others are constant.
static NOWHERE: (AtomicU64, AtomicU32, Slot) = (AtomicU64::new(0), AtomicU32::new(0), Slot::new());

impl Near {
    /// One with which every sequence finds a closed slot. It belongs to no thread.
    pub fn closed() -> Self {
        let near = Self { rseq_cs: AtomicUsize::new(0), index: AtomicUsize::new(0), slot: AtomicUsize::new(0) };
        near.close();
        near
    }

    /// Every sequence finds a closed slot from here on.
    pub fn close(&self) {
        let address = |of: *const ()| of.expose_provenance();
        self.rseq_cs.store(address(NOWHERE.0.as_ptr().cast()), Ordering::Relaxed);
        self.index.store(address(NOWHERE.1.as_ptr().cast()), Ordering::Relaxed);
        self.slot.store(address((&raw const NOWHERE.2).cast()), Ordering::Relaxed);
    }

    /// Sequences use the slabs from `slot` on. `thread_pointer` is that of the thread whose record this is in.
    ///
    /// # Safety
    /// The ground is set up, with at most as many indices as there are slabs. The thread is registered, as
    /// [`is_registered_here`](larder_sys::rseq_area::is_registered_here) says, and this is used by no other thread.
    pub unsafe fn open(&self, ground: &Ground, thread_pointer: *mut u8, slot: usize) {
        let (rseq_cs, index) = ground.offsets();
        let base = thread_pointer.expose_provenance();
        self.rseq_cs.store(base.wrapping_add_signed(rseq_cs), Ordering::Relaxed);
        self.index.store(base.wrapping_add_signed(index), Ordering::Relaxed);
        self.slot.store(slot, Ordering::Relaxed);
    }
}

/// As [`bump`], by the calling thread's [`Near`]: all that it reads beside the slot is in one line, which is the thread's.
///
/// # Safety
/// `near` is the calling thread's, or closed.
#[inline(always)]
pub unsafe fn bump_near(near: &Near, bytes: usize) -> usize {
    let result: usize;
    // SAFETY: as in `bump`; `Near::open` was promised what its addresses are.
    unsafe {
        asm!(
            "2:",
            "lea {t}, [rip + 77f]",
            "mov {next}, qword ptr [{near}]",
            "mov qword ptr [{next}], {t}",
            "mov {next}, qword ptr [{near} + 8]",
            "3:",
            "mov {t:e}, dword ptr [{next}]",
            "shl {t}, {shift}",
            "add {t}, qword ptr [{near} + 16]",
            "mov {result}, qword ptr [{t}]",
            "lea {next}, [{result} + {bytes}]",
            "cmp {next}, qword ptr [{t} + 8]",
            "ja 6f",
            "mov qword ptr [{t}], {next}",
            after_bump!(),
            descriptor!(),
            near = in(reg) near,
            bytes = in(reg) bytes,
            t = out(reg) _,
            next = out(reg) _,
            result = out(reg) result,
            shift = const SLAB_SHIFT,
            options(nostack),
        );
    }
    result
}

/// Replaces the current index's pair with `new` if it is `expected`; true when it did. Never where the kernel keeps no area
/// for the thread.
///
/// The commit is one `cmpxchg16b` without a lock prefix: a single instruction cannot be interrupted half-way, and no
/// other CPU uses this index meanwhile (the paper needed a 32-bit address space to store both words at once).
///
/// # Safety
/// As for [`bump`].
pub unsafe fn replace(ground: &Ground, slot: usize, expected: [usize; 2], new: [usize; 2]) -> bool {
    let done: u8;
    // SAFETY: as in `bump`; every operand has a register of its own choice, because rbx, which the compiler may give to any
    // other, is exchanged in and out again outside the sequence.
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
            "cmp dword ptr fs:[r8 - 4], 0x7fffffff",
            "ja 6f",
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
            descriptor!(),
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
