//! The paper's other mechanism, as a study: the kernel's clearing of `rseq_cs` as the flag of interference.
//!
//! VEE'05, section 2, keeps the flag in a register that a kernel driver changes when a thread begins to run. On Linux
//! `rseq_cs` looks like that register: the kernel sets it to 0 when it preempts a thread, or delivers a signal to it, outside
//! of the range that the descriptor names. So [`Study::begin`] arms with the descriptor of the *commit*, the body runs outside
//! of its range, and the commit finds the field as it was, or has been interrupted.
//!
//! It is smaller than a transaction: one 64-bit store or compare, no chain, and [`Attempt::end`] clears the field. And it is
//! weaker, which is why nothing here is built on it:
//!
//! - Every preemption fails it, interference or not (the paper's stated drawback).
//! - The kernel promises to clear the field on preemption and signals, not in a system call that blocks. Until 6.18 it does;
//!   from 6.19 on it looks at the field only after interrupts, so another thread may run on the CPU unnoticed.
//!   [`Study::new`] tries, and refuses such a kernel.
//! - A handler or a called function that arms the same descriptor and leaves it armed makes the outer attempt look whole.
//! - The field belongs to the process's every user of rseq: a sequence of anybody's in the body ends the attempt.

use core::marker::PhantomData;
use core::sync::atomic::{AtomicIsize, Ordering};

use larder_sys::rseq_area::{self, CPU_ID, RSEQ_CS};
use larder_sys::thread;

use crate::sequence::Descriptor;

/// Why there is no study on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// There are no restartable sequences, for this reason.
    NoSequences(&'static str),
    /// A system call that slept did not clear the field: Linux 6.19 and later.
    NotClearedBySleep,
    /// A signal that was delivered did not clear the field.
    NotClearedBySignal,
}

impl core::fmt::Display for Refused {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::NoSequences(why) => write!(f, "there are no restartable sequences: {why}"),
            Self::NotClearedBySleep => f.write_str(
                "this kernel does not clear rseq_cs in a system call that sleeps (6.19 and later do not): use transactions",
            ),
            Self::NotClearedBySignal => {
                f.write_str("this kernel does not clear rseq_cs when it delivers a signal: use transactions")
            }
        }
    }
}

impl core::error::Error for Refused {}

/// Where a thread's `rseq_cs` and `cpu_id` are.
#[repr(C)]
pub struct Study {
    rseq_cs: AtomicIsize,
    cpu_id: AtomicIsize,
}

/// One attempt: from begin to the only commit.
pub struct Attempt<'s> {
    study: &'s Study,
    cpu: u32,
    /// The field is the thread's.
    thread: PhantomData<*mut ()>,
}

/// What the descriptor's flag says when the commit is not made: interfered, or another word.
pub use crate::sequence::transaction::{INTERFERED, MISMATCH};

/// The commit: its range is what [`Study::begin`] arms with. It does not arm, and an abort is a failure.
///
/// # Safety
/// The study's offsets are this thread's; `address` is writable and aligned.
#[unsafe(naked)]
unsafe extern "C" fn study_commit(
    study: *const Study,
    cpu: u64,
    address: *mut u64,
    old: u64,
    new: u64,
    is_compared: u64,
) -> u32 {
    core::arch::naked_asm!(
        "lea rax, [rip + 77f]",
        "mov r10, qword ptr [rdi]",
        "mov r11, qword ptr [rdi + 8]",
        "3:",
        "cmp qword ptr fs:[r10], rax",
        "jne 6f",
        "cmp dword ptr fs:[r11], esi",
        "jne 6f",
        "test r9d, r9d",
        "jz 2f",
        "cmp qword ptr [rdx], rcx",
        "jne 9f",
        "2:",
        "mov qword ptr [rdx], r8",
        "4:",
        "xor eax, eax",
        "ret",
        ".pushsection __rseq_failure, \"ax\"",
        ".byte 0x0f, 0xb9, 0x3d",
        ".long 0x53053053",
        "5:",
        "6:",
        "mov eax, 1",
        "ret",
        "9:",
        "mov eax, 2",
        "ret",
        ".popsection",
        // In a section of its own, because it breaks a rule that linters know: its abort handler does not arm again.
        ".pushsection .data.rel.ro.larder_study, \"aw\"",
        ".balign 32",
        "77:",
        ".long 0, 0",
        ".quad 3b, 4b - 3b, 5b",
        ".popsection",
    )
}

/// The address of the descriptor that `study_commit` compares with: what its first instruction loads.
fn descriptor() -> *const Descriptor {
    let code = study_commit as *const () as *const u8;
    // SAFETY: the function begins with `lea rax, [rip + displacement]`, seven bytes long.
    unsafe {
        debug_assert_eq!(core::slice::from_raw_parts(code, 3), [0x48, 0x8d, 0x05]);
        let displacement = code.add(3).cast::<i32>().read_unaligned();
        code.offset(7 + displacement as isize).cast()
    }
}

impl Study {
    /// Finds out whether this kernel clears the field when it must.
    ///
    /// The calling thread sleeps for some microseconds and sends itself SIGURG, which is ignored unless the program handles
    /// it; a handler is put back.
    pub fn new() -> Result<Self, Refused> {
        let area = rseq_area::find().map_err(Refused::NoSequences)?;
        let study =
            Self { rseq_cs: AtomicIsize::new(area.offset + RSEQ_CS), cpu_id: AtomicIsize::new(area.offset + CPU_ID) };
        const TRIES: u32 = 20;
        for _ in 0..TRIES {
            let attempt = study.begin();
            let a_moment = libc::timespec { tv_sec: 0, tv_nsec: 50_000 };
            // SAFETY: the time is valid for the call.
            unsafe { libc::nanosleep(&a_moment, core::ptr::null_mut()) };
            if attempt.valid() {
                return Err(Refused::NotClearedBySleep);
            }
        }
        if !study.is_cleared_by_signals() {
            return Err(Refused::NotClearedBySignal);
        }
        Ok(study)
    }

    fn is_cleared_by_signals(&self) -> bool {
        extern "C" fn nothing(_: i32) {}
        // SAFETY: the records are initialised; the old action is put back.
        unsafe {
            let (mut ours, mut old): (libc::sigaction, libc::sigaction) = (core::mem::zeroed(), core::mem::zeroed());
            ours.sa_sigaction = nothing as *const () as usize;
            if libc::sigaction(libc::SIGURG, &ours, &mut old) != 0 {
                return false;
            }
            let attempt = self.begin();
            libc::raise(libc::SIGURG);
            let cleared = !attempt.valid();
            libc::sigaction(libc::SIGURG, &old, core::ptr::null_mut());
            cleared
        }
    }

    fn field(&self) -> *mut usize {
        thread::thread_pointer().wrapping_offset(self.rseq_cs.load(Ordering::Relaxed)).cast()
    }

    /// Begins an attempt: arms, then reads the CPU.
    #[inline]
    pub fn begin(&self) -> Attempt<'_> {
        let (field, cpu_id) =
            (self.field(), thread::thread_pointer().wrapping_offset(self.cpu_id.load(Ordering::Relaxed)));
        // SAFETY: this thread's own area. The order matters: a move after the CPU was read clears what was armed before.
        let cpu = unsafe {
            field.write_volatile(descriptor().expose_provenance());
            cpu_id.cast::<u32>().read_volatile()
        };
        Attempt { study: self, cpu, thread: PhantomData }
    }
}

impl Attempt<'_> {
    /// The CPU that the attempt belongs to.
    pub fn cpu(&self) -> usize {
        self.cpu as usize
    }

    /// Whether the thread ran without interruption since.
    #[inline]
    pub fn valid(&self) -> bool {
        // SAFETY: this thread's own area.
        unsafe { self.study.field().read_volatile() == descriptor().addr() }
    }

    /// Stores 64 bits if nothing came between: 0, or [`INTERFERED`]. Ends the attempt.
    ///
    /// # Safety
    /// The place is writable and aligned, and belongs to the attempt's CPU.
    #[inline]
    pub unsafe fn store(self, address: *mut u64, value: u64) -> u32 {
        // SAFETY: the offsets are this thread's; the caller vouches for the place.
        unsafe { study_commit(self.study, self.cpu.into(), address, 0, value, 0) }
    }

    /// As [`store`](Self::store) where there is `old`: 0, [`INTERFERED`] or [`MISMATCH`]. Ends the attempt.
    ///
    /// # Safety
    /// As for [`store`](Self::store).
    #[inline]
    pub unsafe fn compare_store(self, address: *mut u64, old: u64, new: u64) -> u32 {
        // SAFETY: as in `store`.
        unsafe { study_commit(self.study, self.cpu.into(), address, old, new, 1) }
    }

    /// Ends it without a commit.
    pub fn end(self) {}
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        // SAFETY: this thread's own area. Cleared, so that an outer attempt never looks whole after an inner one.
        unsafe { self.study.field().write_volatile(0) };
    }
}
