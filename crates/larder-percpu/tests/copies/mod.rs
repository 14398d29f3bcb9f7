//! One copy of each inlined sequence, in a function of its own: with the arguments of the sequence that it is a copy of, so
//! that the same scripts run both.

// SAFETY, of all blocks that say nothing else: most tests only decode these functions; those that call them keep their rules.
#![allow(clippy::undocumented_unsafe_blocks, dead_code)]

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use larder_percpu::Ground;
use larder_percpu::sequence::frame::HEADER;
use larder_percpu::sequence::inlined::{self, Hold, NotStored};
use larder_percpu::sequence::transaction::{Begun, INTERFERED, MISMATCH, PairRequest};
use larder_percpu::sequence::{self, Frame};

/// Bytes of an area in the scripts.
pub const STRIDE: u64 = 0x100;
type Content = [u8; STRIDE as usize - HEADER];

unsafe extern "C" fn add(frame: &Frame, offset: usize, value: u64) -> u32 {
    u32::from(!unsafe { inlined::add::<Content>(frame, frame.rseq_cs.load(Relaxed), offset, value) })
}

unsafe extern "C" fn list_pop(frame: &Frame, offset: usize) -> usize {
    unsafe { inlined::list_pop::<Content>(frame, frame.rseq_cs.load(Relaxed), offset) }
}

unsafe extern "C" fn list_push(frame: &Frame, offset: usize, first: usize, last: usize) -> u32 {
    u32::from(!unsafe { inlined::list_push::<Content>(frame, frame.rseq_cs.load(Relaxed), offset, first, last) })
}

unsafe extern "C" fn level_bump_guessed(frame: &Frame, offset: usize, bytes: usize, guess: *mut usize) -> usize {
    unsafe { inlined::level_bump_guessed::<Content>(frame, frame.rseq_cs.load(Relaxed), offset, bytes, guess) }
}

unsafe extern "C" fn begin(frame: &Frame) -> Begun {
    let hold = unsafe { inlined::begin::<Content>(frame, frame.rseq_cs.load(Relaxed)) };
    Begun { token: hold.token, index: hold.index }
}

/// Begin as `larder_cs_inline.h` writes it: by a multiplication, because C does not know the content's type.
#[unsafe(naked)]
pub unsafe extern "C" fn begin_in_c(frame: &Frame) -> Begun {
    core::arch::naked_asm!(
        "mov r10, qword ptr [rdi]",
        "mov r11, qword ptr [rdi + 8]",
        "2:",
        "lea rcx, [rip + 77f]",
        "mov qword ptr fs:[r10], rcx",
        "3:",
        "cmp dword ptr fs:[r10 - 4], 0x7fffffff",
        "ja 6f",
        "mov edx, dword ptr fs:[r11]",
        "cmp edx, dword ptr [rdi + 32]",
        "jae 6f",
        "mov rcx, qword ptr [rdi + 24]",
        "imul rcx, rdx",
        "add rcx, qword ptr [rdi + 16]",
        "cmp qword ptr [rcx + 8], 0",
        "jne 6f",
        "mov rax, qword ptr [rcx]",
        "inc rax",
        "mov qword ptr [rcx], rax",
        "4:",
        "ret",
        ".pushsection __rseq_failure, \"ax\"",
        ".byte 0x0f, 0xb9, 0x3d",
        ".long 0x53053053",
        "5:",
        "jmp 2b",
        "6:",
        "xor eax, eax",
        "ret",
        ".popsection",
        ".pushsection __rseq_cs, \"aw\"",
        ".balign 32",
        "77:",
        ".long 0, 0",
        ".quad 3b, 4b - 3b, 5b",
        ".popsection",
        ".pushsection __rseq_cs_ptr_array, \"awR\"",
        ".quad 77b",
        ".popsection",
    )
}

/// What a commit would have from its begin.
#[inline(always)]
pub fn hold(frame: &Frame, index: u64, token: u64) -> Hold {
    let offset = (index as usize).wrapping_mul(frame.stride.load(Relaxed));
    let area = frame.base.load(Relaxed).wrapping_add(offset);
    let (rseq_cs, index_word) = (frame.rseq_cs.load(Relaxed), frame.index.load(Relaxed));
    Hold { token, index, content: area.wrapping_add(HEADER), rseq_cs, index_word }
}

#[inline(always)]
fn status(stored: Result<(), NotStored>) -> u32 {
    match stored {
        Ok(()) => 0,
        Err(NotStored::Interfered) => INTERFERED,
        Err(NotStored::Mismatch) => MISMATCH,
    }
}

unsafe extern "C" fn commit_store_32(f: &Frame, index: u64, token: u64, at: *mut u32, value: u32) -> u32 {
    u32::from(!unsafe { inlined::commit_store_32(hold(f, index, token), at, value) })
}

unsafe extern "C" fn commit_store_64(f: &Frame, index: u64, token: u64, at: *mut u64, value: u64) -> u32 {
    u32::from(!unsafe { inlined::commit_store_64(hold(f, index, token), at, value) })
}

unsafe extern "C" fn compare_32(f: &Frame, index: u64, token: u64, at: *mut u32, old: u32, new: u32) -> u32 {
    status(unsafe { inlined::commit_compare_32(hold(f, index, token), at, old, new) })
}

unsafe extern "C" fn compare_64(f: &Frame, index: u64, token: u64, at: *mut u64, old: u64, new: u64) -> u32 {
    status(unsafe { inlined::commit_compare_64(hold(f, index, token), at, old, new) })
}

/// The request is a `PairRequest`, read one word at a time: the machine knows no vectors.
unsafe extern "C" fn pair(f: &Frame, request: &[AtomicU64; size_of::<PairRequest>() / 8]) -> u32 {
    let word = |n: usize| request[n].load(Relaxed);
    let (old, new) = ([word(0), word(1)], [word(2), word(3)]);
    let (index, token) = (word(5), word(6));
    let at = std::ptr::with_exposed_provenance_mut(word(4) as usize);
    status(unsafe { inlined::commit_pair(hold(f, index, token), at, old, new) })
}

unsafe extern "C" fn bump(ground: &Ground, slot: usize, bytes: usize) -> usize {
    unsafe { sequence::bump(ground, slot, bytes) }
}

unsafe extern "C" fn bump_of_thread(ground: &Ground, slot: usize, bytes: usize) -> usize {
    unsafe { sequence::bump_of_thread(ground, slot, bytes) }
}

unsafe extern "C" fn bump_near(near: &sequence::Near, bytes: usize) -> usize {
    unsafe { sequence::bump_near(near, bytes) }
}

/// As [`sequence::replace`], with six words for its arguments.
unsafe extern "C" fn replace(ground: &Ground, slot: usize, e0: usize, e1: usize, n0: usize, n1: usize) -> u32 {
    u32::from(unsafe { sequence::replace(ground, slot, [e0, e1], [n0, n1]) })
}

/// A function with a copy: the name of the sequence, and the address.
pub type Copied = (&'static str, fn() -> usize);

/// The copies of sequences that also are functions.
pub const OF_FUNCTIONS: [Copied; 10] = [
    ("begin", || begin as *const () as usize),
    ("commit_store_32", || commit_store_32 as *const () as usize),
    ("commit_store_64", || commit_store_64 as *const () as usize),
    ("commit_compare_32", || compare_32 as *const () as usize),
    ("commit_compare_64", || compare_64 as *const () as usize),
    ("commit_pair", || pair as *const () as usize),
    ("add", || add as *const () as usize),
    ("list_pop", || list_pop as *const () as usize),
    ("list_push", || list_push as *const () as usize),
    ("level_bump_guessed", || level_bump_guessed as *const () as usize),
];

/// What has another shape in C.
pub const IN_C: [Copied; 1] = [("begin in C", || begin_in_c as *const () as usize)];

/// The heaps'. What they do to the heap is tested by larder-testkit.
pub const OF_THE_HEAP: [Copied; 4] = [
    ("bump of the fixed heap", || bump as *const () as usize),
    ("bump of a thread", || bump_of_thread as *const () as usize),
    ("bump of the moving heap", || bump_near as *const () as usize),
    ("replace of the fixed heap", || sequence::replace as *const () as usize),
];

/// The same, with arguments as C passes them.
pub const OF_THE_HEAP_TO_CALL: [Copied; 3] = [
    ("bump of the fixed heap", || bump as *const () as usize),
    ("bump of a thread", || bump_of_thread as *const () as usize),
    ("replace of the fixed heap", || replace as *const () as usize),
];
