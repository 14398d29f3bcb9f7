//! Children that share their parent's memory.
//!
//! A child of clone that shares the memory and gets no thread-local storage of its own runs with its parent's thread pointer: it finds the parent's
//! record, and its calls would publish its stack there. So the record is marked as lent ([`larder_threads::interposed::lend`]). With CLONE_VFORK that
//! lasts until the parent goes on, which sleeps in a blocking region meanwhile. Without it nobody says when the child ends.
//! A child of vfork, which is one more of these, becomes a copy.

use core::arch::naked_asm;
use core::ffi::c_int;

use crate::calls::blocked;
use crate::runtime::{Next, keeping_arguments, larder_preload_5, look_up, table};

/// What makes a child have its parent's thread pointer: the first without the second.
const SHARES: c_int = libc::CLONE_VM;
/// See `SHARES`.
const OWN_STORAGE: c_int = libc::CLONE_SETTLS;
/// Where these are, the seventh argument counts.
const SEVENTH: c_int = libc::CLONE_CHILD_SETTID | libc::CLONE_CHILD_CLEARTID;

static CLONE: Next = Next::new(c"clone", None);
static VFORK: Next = Next::new(c"vfork", None);

/// The C library's functions.
pub const ALL: &[&Next] = &[&CLONE, &VFORK];

/// `vfork` as `fork`, where there is a runtime.
///
/// A child of vfork runs on its parent's memory and thread-local storage, but the kernel does not keep its restartable
/// sequences: its index is its parent's, which another thread may be using at the same moment, and nothing aborts what
/// it interrupts. An allocation there could be handed out twice. POSIX allows such a child nothing but exec and `_exit`;
/// programs that do more are safe with a copy of their own.
///
/// Without a runtime it is the C library's: some programs have the child tell its parent why exec failed, in memory. It returns twice, and is
/// jumped to, so that nothing of ours is on the stack.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn vfork() -> c_int {
    naked_asm!(
        "mov rax, [rip + {anchor}@GOTPCREL]",
        "cmp qword ptr [rax], 0",
        "jne {as_fork}",
        "mov rax, [rip + {vfork}]",
        "test rax, rax",
        "jz 2f",
        "jmp rax",
        // Not looked up yet.
        "2:",
        "lea rdi, [rip + {vfork}]",
        "sub rsp, 8",
        "call {look_up}",
        "add rsp, 8",
        "jmp rax",
        anchor = sym larder_preload_5,
        as_fork = sym as_fork,
        vfork = sym VFORK,
        look_up = sym look_up,
    )
}

/// The same under its other name.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn __vfork() -> c_int {
    naked_asm!("jmp {}", sym vfork)
}

extern "C" fn as_fork() -> c_int {
    // SAFETY: fork has no preconditions.
    unsafe { libc::fork() }
}

/// What the trampoline calls for a child that the parent waits for: the address has the place of a [`Next`]'s.
static WAITED_FOR: unsafe extern "C" fn() = clone_and_take_back;

extern "C" fn lend() {
    if let Some(table) = table() {
        (table.lend)();
    }
}

extern "C" fn take_back() {
    if let Some(table) = table() {
        (table.take_back)();
    }
}

/// `clone`, whose flags are its third argument. Where the parent does not wait, the C library's function is jumped to: its seventh argument
/// stays where it is.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn clone() {
    naked_asm!(
        ".cfi_startproc",
        "mov rax, [rip + {clone}]",
        "test rax, rax",
        "jz 4f",
        "5:",
        "test edx, {shares}",
        "jz 3f",
        "test edx, {own_storage}",
        "jnz 3f",
        "test edx, {seventh}",
        "jnz 2f",
        "test edx, {waits}",
        "jz 2f",
        "lea r11, [rip + {waited_for}]",
        "jmp {blocked}",
        "2:",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        keeping_arguments!("call {lend}"),
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "3:",
        "mov rax, [rip + {clone}]",
        "jmp rax",
        // Not looked up yet.
        "4:",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        keeping_arguments!("lea rdi, [rip + {clone}]\n call {look_up}"),
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "jmp 5b",
        ".cfi_endproc",
        shares = const SHARES,
        own_storage = const OWN_STORAGE,
        seventh = const SEVENTH,
        waits = const libc::CLONE_VFORK,
        waited_for = sym WAITED_FOR,
        blocked = sym blocked,
        lend = sym lend,
        clone = sym CLONE,
        look_up = sym look_up,
    )
}

/// The same under its other name.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn __clone() {
    naked_asm!("jmp {}", sym clone)
}

/// Lends the record, clones, and takes it back when the child is gone.
#[unsafe(naked)]
unsafe extern "C" fn clone_and_take_back() {
    naked_asm!(
        ".cfi_startproc",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        keeping_arguments!("call {lend}"),
        "mov rax, [rip + {clone}]",
        "call rax",
        "mov [rsp], rax",
        "call {take_back}",
        "mov rax, [rsp]",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "ret",
        ".cfi_endproc",
        lend = sym lend,
        clone = sym CLONE,
        take_back = sym take_back,
    )
}
