//! The three sequences that are used most, once more for inlining: the same text without call and return.
//!
//! They are what [`Counter`](crate::structures::Counter) and [`FreeList`](crate::structures::FreeList) run; elsewhere a call
//! costs less than the code that it saves. Their restarts are counted with those of the functions.

use core::arch::asm;

use super::frame::Frame;
use super::table::{Id, RESTARTS};

/// What follows the commit and what surrounds the sequence; `refused` sets the result.
macro_rules! inlined {
    ($id:ident; [$($range:expr,)*]; done $done:literal; refused $refused:literal; $($operand:tt)*) => {
        asm!(
            "2:",
            "lea rax, [rip + 77f]",
            "mov r10, qword ptr [rdi]",
            "mov qword ptr fs:[r10], rax",
            "3:",
            $($range,)*
            "4:",
            $done,
            "8:",
            ".pushsection __rseq_failure, \"ax\"",
            ".byte 0x0f, 0xb9, 0x3d",
            ".long 0x53053053",
            "5:",
            "lock inc qword ptr [rip + {restarts} + 8 * {id}]",
            "jmp 2b",
            "6:",
            $refused,
            "9:",
            "jmp 8b",
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
            restarts = sym RESTARTS,
            id = const Id::$id as usize,
            out("r10") _,
            options(nostack),
            $($operand)*
        )
    };
}

/// As [`word::add`](super::word::add).
///
/// # Safety
/// As there.
#[inline(always)]
pub unsafe fn add(frame: &Frame, offset: usize, value: u64) -> u32 {
    let status: u32;
    // SAFETY: the sequence writes `rseq_cs` of this thread's own area and the word that the caller vouches for.
    unsafe {
        inlined!(
            add;
            [area!(), "add qword ptr [r10 + rsi], rdx",];
            done "xor eax, eax";
            refused "mov eax, 1";
            in("rdi") frame,
            in("rsi") offset,
            in("rdx") value,
            out("eax") status,
        );
    }
    status
}

/// As [`list::list_pop`](super::list::list_pop).
///
/// # Safety
/// As there.
#[inline(always)]
pub unsafe fn list_pop(frame: &Frame, offset: usize) -> usize {
    let node: usize;
    // SAFETY: as in `add`; the first node is readable by what the caller vouches for.
    unsafe {
        inlined!(
            list_pop;
            [
                area!(),
                "mov rax, qword ptr [r10 + rsi]",
                "test rax, rax",
                "jz 9f",
                "mov rcx, qword ptr [rax]",
                "mov qword ptr [r10 + rsi], rcx",
            ];
            done "";
            refused "mov rax, -1";
            in("rdi") frame,
            in("rsi") offset,
            out("rcx") _,
            out("rax") node,
        );
    }
    node
}

/// As [`list::list_push`](super::list::list_push).
///
/// # Safety
/// As there.
#[inline(always)]
pub unsafe fn list_push(frame: &Frame, offset: usize, first: usize, last: usize) -> u32 {
    let status: u32;
    // SAFETY: as in `add`; the chain is the caller's.
    unsafe {
        inlined!(
            list_push;
            [
                area!(),
                "mov rax, qword ptr [r10 + rsi]",
                "mov qword ptr [rcx], rax",
                "mov qword ptr [r10 + rsi], rdx",
            ];
            done "xor eax, eax";
            refused "mov eax, 1";
            in("rdi") frame,
            in("rsi") offset,
            in("rdx") first,
            in("rcx") last,
            out("eax") status,
        );
    }
    status
}
