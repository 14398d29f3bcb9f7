//! One-shot sequences on words: add, exchange, compare and store.
//!
//! `offset` is the word's place in the area. They return 0 when they committed, [`REFUSED`] when the index cannot be used
//! by sequences now, or [`MISMATCH`].

use super::frame::Frame;
pub use super::transaction::MISMATCH;

/// The index is closed, or out of range.
pub const REFUSED: u32 = 1;

/// What [`exchange`] did.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchanged {
    /// What the word was.
    pub old: u64,
    /// 0 or [`REFUSED`].
    pub status: u64,
}

sequence! {
    /// Adds to a word. The commit is one `add` to memory: a single instruction, so it needs no lock.
    ///
    /// # Safety
    /// The frame is set up and has indices; the word lies in the area.
    pub fn add(frame: *const Frame, offset: usize, value: u64) -> u32;
    before {}
    range { place!(), delay!(1), "add qword ptr [r10], rdx", }
    after { "xor eax, eax", "ret", }
    refused { "mov eax, 1", "ret", }
}

sequence! {
    /// Stores to a word and returns what it was.
    ///
    /// # Safety
    /// As for [`add`].
    pub fn exchange(frame: *const Frame, offset: usize, new: u64) -> Exchanged;
    before {}
    range {
        place!(),
        delay!(1),
        "mov rax, qword ptr [r10]",
        delay!(2),
        "mov qword ptr [r10], rdx",
    }
    after { "xor edx, edx", "ret", }
    refused { "mov edx, 1", "ret", }
}

sequence! {
    /// Stores `new` to a word that is `old`.
    ///
    /// # Safety
    /// As for [`add`].
    pub fn compare_store(frame: *const Frame, offset: usize, old: u64, new: u64) -> u32;
    before {}
    range {
        place!(),
        delay!(1),
        "cmp qword ptr [r10], rdx",
        "jne 9f",
        delay!(2),
        "mov qword ptr [r10], rcx",
    }
    after { "xor eax, eax", "ret", }
    refused { "mov eax, 1", "ret", "9:", "mov eax, 2", "ret", }
}

sequence! {
    /// Stores `new` to a word that is `old`, if another word is `also`.
    ///
    /// # Safety
    /// As for [`add`], for both words.
    pub fn compare_two_store(
        frame: *const Frame,
        offset: usize,
        old: u64,
        new: u64,
        other: usize,
        also: u64,
    ) -> u32;
    before {}
    range {
        area!(),
        delay!(1),
        "cmp qword ptr [r10 + r8], r9",
        "jne 9f",
        "add r10, rsi",
        "cmp qword ptr [r10], rdx",
        "jne 9f",
        delay!(2),
        "mov qword ptr [r10], rcx",
    }
    after { "xor eax, eax", "ret", }
    refused { "mov eax, 1", "ret", "9:", "mov eax, 2", "ret", }
}

sequence! {
    /// Stores two words, `words[2..]`, if they are `words[..2]`. The commit is one `cmpxchg16b` without a lock prefix.
    ///
    /// # Safety
    /// As for [`add`]; the offset is a multiple of 16, and `words` has four readable words.
    pub fn compare_store_pair(frame: *const Frame, offset: usize, words: *const [u64; 4]) -> u32;
    before { "mov r8, rbx", "mov r9, rdx", }
    range {
        place!(),
        "mov rax, qword ptr [r9]",
        "mov rdx, qword ptr [r9 + 8]",
        "mov rbx, qword ptr [r9 + 16]",
        "mov rcx, qword ptr [r9 + 24]",
        delay!(1),
        "cmpxchg16b xmmword ptr [r10]",
    }
    after { "mov rbx, r8", "mov eax, 0", "setne al", "add eax, eax", "ret", }
    refused { "mov rbx, r8", "mov eax, 1", "ret", }
}
