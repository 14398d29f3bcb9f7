//! Bumping: take the next bytes of the index's region, a pair (frontier, limit) of words.

use super::frame::Frame;

/// What sequences that return an address or 0 return when the index cannot be used by sequences now.
pub const REFUSED: usize = usize::MAX;

sequence! {
    /// Takes `bytes` from the region at `offset`: the old frontier, 0 when too little is left, or [`REFUSED`].
    ///
    /// # Safety
    /// The frame is set up and has indices; the pair lies in the area, and its frontier and `bytes` make no more than
    /// `usize::MAX`.
    pub fn bump(frame: *const Frame, offset: usize, bytes: usize) -> usize;
    before {}
    range {
        place!(),
        delay!(1),
        "mov rax, qword ptr [r10]",
        "lea rcx, [rax + rdx]",
        "cmp rcx, qword ptr [r10 + 8]",
        "ja 9f",
        delay!(2),
        "mov qword ptr [r10], rcx",
    }
    after { "ret", }
    refused { "mov rax, -1", "ret", "9:", "xor eax, eax", "ret", }
}

sequence! {
    /// As [`bump`], and stores `header` to the first word of what it takes.
    ///
    /// The header is stored before the commit, to memory above the frontier, which nobody reads. One that an aborted
    /// bump left behind is overwritten by the next, or set to zero again when the region is retired.
    ///
    /// # Safety
    /// As for [`bump`]; the region's memory is writable, and `bytes` is at least 8.
    pub fn bump_header(frame: *const Frame, offset: usize, bytes: usize, header: u64) -> usize;
    before {}
    range {
        place!(),
        delay!(1),
        "mov rax, qword ptr [r10]",
        "lea r8, [rax + rdx]",
        "cmp r8, qword ptr [r10 + 8]",
        "ja 9f",
        "mov qword ptr [rax], rcx",
        delay!(2),
        "mov qword ptr [r10], r8",
    }
    after { "ret", }
    refused { "mov rax, -1", "ret", "9:", "xor eax, eax", "ret", }
}
