//! Sequences for areas that several CPUs share: a core with two hardware threads, a package, a node.
//!
//! The index is the CPU, a map gives its area, and the committing instruction is one `lock cmpxchg`, because another CPU of
//! the area may run at the same time. An abort still means that the thread may be elsewhere, so the area is looked up again.
//! Whoever loses against another CPU starts over too.

use super::frame::Frame;
pub use super::region::REFUSED;

sequence! {
    /// As [`region::bump`](super::region::bump). The whole pair is compared, so a region that was replaced by another one
    /// meanwhile is never mistaken for the one that was read.
    ///
    /// # Safety
    /// The frame is set up with a map and has indices; the pair lies in the area, at a multiple of 16.
    pub fn level_bump(frame: *const Frame, offset: usize, bytes: usize) -> usize;
    before { "mov r8, rbx", "mov r9, rdx", }
    range {
        shared_area!(),
        "add r10, rsi",
        delay!(1),
        "mov rax, qword ptr [r10]",
        "mov rdx, qword ptr [r10 + 8]",
        "lea rbx, [rax + r9]",
        "cmp rbx, rdx",
        "ja 9f",
        "mov rcx, rdx",
        "lock cmpxchg16b xmmword ptr [r10]",
    }
    after { "jne 2b", "mov rbx, r8", "ret", }
    refused { "mov rbx, r8", "mov rax, -1", "ret", "9:", "mov rbx, r8", "xor eax, eax", "ret", }
}

/// Where the number of a filling stands in both words of a pair: above every address. (`larder_sync::region::fillings` gives numbers out.)
pub const NUMBER_SHIFT: u32 = 48;

sequence! {
    /// As [`level_bump`], comparing the frontier alone: 8 bytes, which takes half as long as 16. The address comes without its
    /// number.
    ///
    /// From [`NUMBER_SHIFT`] on, both words of an open pair have a number that the pair had in no filling before, as long as a
    /// sequence that has read one can still commit. So a frontier that is what was read belongs to the filling that was read, and so
    /// does the limit, which was read in between, and which changes only with the frontier.
    ///
    /// # Safety
    /// As for [`level_bump`]; the pair is numbered.
    pub fn level_bump_numbered(frame: *const Frame, offset: usize, bytes: usize) -> usize;
    before {}
    range {
        shared_area!(),
        delay!(1),
        "mov rax, qword ptr [r10 + rsi]",
        "lea rcx, [rax + rdx]",
        // Not before the frontier: a limit of the filling before would say nothing.
        "cmp rcx, qword ptr [r10 + rsi + 8]",
        "ja 9f",
        "mov r8, rax",
        "shl r8, 16",
        "shr r8, 16",
        "lock cmpxchg qword ptr [r10 + rsi], rcx",
    }
    after { "jne 2b", "mov rax, r8", "ret", }
    refused { "mov rax, -1", "ret", "9:", "xor eax, eax", "ret", }
}

sequence! {
    /// As [`level_bump_numbered`], from a frontier that is guessed: a word of the caller's, in which the sequence leaves what the frontier
    /// was after its last commit.
    ///
    /// A load of what a locked instruction has just stored waits for that to end, and the next locked instruction for the load. Where nobody
    /// else has taken meanwhile, the guess is right, nothing is loaded, and one is the time of the other. Where it is wrong, the compare
    /// has brought the line and says what the frontier is, and the sequence starts over with that. Whatever the guess is, it does no harm:
    /// the commit compares it. So a handler may change it at any time, and it may be of another area, or of before a stop. The limit was
    /// read in the same run, before the commit (the models of `larder-sync`, `loom_guess`, have the other side, too): with a smaller number than the guess's it refuses, with a larger one the guess is of a
    /// filling that is over, and the compare fails.
    ///
    /// What is no guess is odd, or 0, which a refill that was given up leaves: see [`level_bump_numbered`] for what that takes.
    ///
    /// # Safety
    /// As for [`level_bump_numbered`]; `guess` is writable.
    pub fn level_bump_guessed(frame: *const Frame, offset: usize, bytes: usize, guess: *mut usize) -> usize;
    before {}
    range {
        shared_area!(),
        "add r10, rsi",
        delay!(1),
        "mov rax, qword ptr [rcx]",
        "lea r8, [rax + rdx]",
        "cmp r8, qword ptr [r10 + 8]",
        "ja 9f",
        "mov r9, rax",
        "lock cmpxchg qword ptr [r10], r8",
    }
    after {
        "jne 8f",
        "mov qword ptr [rcx], r8",
        "mov rax, r9",
        "shl rax, 16",
        "shr rax, 16",
        "ret",
        "8:",
        "mov qword ptr [rcx], rax",
        "jmp 2b",
    }
    refused {
        "mov rax, -1",
        "ret",
        // Too little by the guess: is it by what is there?
        "9:",
        "mov r8, qword ptr [r10]",
        "mov qword ptr [rcx], r8",
        "cmp r8, rax",
        "jne 2b",
        "xor eax, eax",
        "ret",
    }
}

sequence! {
    /// Adds to a word: 0, or 1 when it was refused.
    ///
    /// # Safety
    /// As for [`level_bump`].
    pub fn level_add(frame: *const Frame, offset: usize, value: u64) -> u32;
    before {}
    range {
        shared_area!(),
        "mov rax, qword ptr [r10 + rsi]",
        "lea rcx, [rax + rdx]",
        delay!(1),
        "lock cmpxchg qword ptr [r10 + rsi], rcx",
    }
    after { "jne 2b", "xor eax, eax", "ret", }
    refused { "mov eax, 1", "ret", }
}

sequence! {
    /// Stores `new` to a word that is `old`: 0, 1 when it was refused, 2 when the word is another one.
    ///
    /// # Safety
    /// As for [`level_bump`].
    pub fn level_compare_store(frame: *const Frame, offset: usize, old: u64, new: u64) -> u32;
    before {}
    range {
        shared_area!(),
        "mov rax, rdx",
        delay!(1),
        "lock cmpxchg qword ptr [r10 + rsi], rcx",
    }
    after { "mov eax, 0", "setne al", "add eax, eax", "ret", }
    refused { "mov eax, 1", "ret", }
}

sequence! {
    /// Stores two words, `words[2..]`, if they are `words[..2]`: 0, 1 when it was refused, 2 when they are others.
    ///
    /// # Safety
    /// As for [`level_bump`]; `words` has four readable words.
    pub fn level_compare_store_pair(frame: *const Frame, offset: usize, words: *const [u64; 4]) -> u32;
    before { "mov r8, rbx", "mov r9, rdx", }
    range {
        shared_area!(),
        "add r10, rsi",
        "mov rax, qword ptr [r9]",
        "mov rdx, qword ptr [r9 + 8]",
        "mov rbx, qword ptr [r9 + 16]",
        "mov rcx, qword ptr [r9 + 24]",
        delay!(1),
        "lock cmpxchg16b xmmword ptr [r10]",
    }
    after { "mov rbx, r8", "mov eax, 0", "setne al", "add eax, eax", "ret", }
    refused { "mov rbx, r8", "mov eax, 1", "ret", }
}
