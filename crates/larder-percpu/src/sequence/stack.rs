//! A stack of words in the area: a count, then the words. Popping does not touch what the words point to.

use super::frame::Frame;
pub use super::region::REFUSED;

/// What the batch forms work on.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Batch {
    /// The stack's place in the area.
    pub offset: usize,
    /// The caller's words.
    pub words: *mut usize,
    /// How many of them.
    pub count: usize,
    /// How many words the stack holds at most.
    pub capacity: usize,
}

sequence! {
    /// Takes the last word: it, 0 when the stack is empty, or [`REFUSED`].
    ///
    /// # Safety
    /// The frame is set up and has indices; the stack lies in the area.
    pub fn stack_pop(frame: *const Frame, offset: usize) -> usize;
    before {}
    range {
        place!(),
        "mov rcx, qword ptr [r10]",
        "test rcx, rcx",
        "jz 9f",
        delay!(1),
        "mov rax, qword ptr [r10 + rcx * 8]",
        "dec rcx",
        delay!(2),
        "mov qword ptr [r10], rcx",
    }
    after { "ret", }
    refused { "mov rax, -1", "ret", "9:", "xor eax, eax", "ret", }
}

sequence! {
    /// Puts a word on the stack: 0, 1 when it was refused, 2 when the stack is full.
    ///
    /// The word is stored above the top before the commit; nobody reads there.
    ///
    /// # Safety
    /// As for [`stack_pop`]; the stack has room for `capacity` words.
    pub fn stack_push(frame: *const Frame, offset: usize, word: usize, capacity: usize) -> u32;
    before {}
    range {
        place!(),
        "mov rax, qword ptr [r10]",
        "cmp rax, rcx",
        "jae 9f",
        delay!(1),
        "mov qword ptr [r10 + rax * 8 + 8], rdx",
        "inc rax",
        delay!(2),
        "mov qword ptr [r10], rax",
    }
    after { "xor eax, eax", "ret", }
    refused { "mov eax, 1", "ret", "9:", "mov eax, 2", "ret", }
}

sequence! {
    /// Takes up to `count` words, last first: how many, or [`REFUSED`]. They are copied to the caller before the commit.
    ///
    /// # Safety
    /// As for [`stack_pop`]; `words` has room for `count`.
    pub fn stack_pop_many(frame: *const Frame, batch: *const Batch) -> usize;
    before {}
    range {
        area!(),
        "add r10, qword ptr [rsi]",
        "mov r8, qword ptr [rsi + 8]",
        "mov rcx, qword ptr [rsi + 16]",
        "mov rdx, qword ptr [r10]",
        "cmp rcx, rdx",
        "cmova rcx, rdx",
        delay!(1),
        "xor eax, eax",
        "8:",
        "cmp rax, rcx",
        "jae 8f",
        "mov r9, qword ptr [r10 + rdx * 8]",
        "mov qword ptr [r8 + rax * 8], r9",
        "dec rdx",
        "inc rax",
        "jmp 8b",
        "8:",
        delay!(2),
        "mov qword ptr [r10], rdx",
    }
    after { "ret", }
    refused { "mov rax, -1", "ret", }
}

sequence! {
    /// Puts as many of the words on the stack as there is room for, first first: how many, or [`REFUSED`].
    ///
    /// # Safety
    /// As for [`stack_push`]; `words` has `count` words.
    pub fn stack_push_many(frame: *const Frame, batch: *const Batch) -> usize;
    before {}
    range {
        area!(),
        "add r10, qword ptr [rsi]",
        "mov r8, qword ptr [rsi + 8]",
        "mov rcx, qword ptr [rsi + 24]",
        "mov rdx, qword ptr [r10]",
        "sub rcx, rdx",
        "cmp rcx, qword ptr [rsi + 16]",
        "cmova rcx, qword ptr [rsi + 16]",
        delay!(1),
        "xor eax, eax",
        "8:",
        "cmp rax, rcx",
        "jae 8f",
        "mov r9, qword ptr [r8 + rax * 8]",
        "mov qword ptr [r10 + rdx * 8 + 8], r9",
        "inc rdx",
        "inc rax",
        "jmp 8b",
        "8:",
        delay!(2),
        "mov qword ptr [r10], rdx",
    }
    after { "ret", }
    refused { "mov rax, -1", "ret", }
}
