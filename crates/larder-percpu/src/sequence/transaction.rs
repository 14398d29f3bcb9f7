//! Begin, and the commits of a transaction.
//!
//! Begin is itself a sequence: it reads the index and stores a new token to that index's own word. As a plain store it
//! would not do: a thread that moves between reading the index and storing could read data that a commit still under way on
//! the old CPU is about to change, and then overwrite its token with one that is valid there.
//!
//! A commit tests index, closed word and token, in this order (see `holds` in the shared text), and then stores. It leaves the
//! token alone, so the transaction stays open.

use super::frame::Frame;

/// What [`begin`] found.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begun {
    /// The transaction's token; 0 when it was refused.
    pub token: u64,
    /// The index that it began on.
    pub index: u64,
}

/// The transaction does not hold any more: somebody began on its index, or the thread is elsewhere, or the index is closed.
pub const INTERFERED: u32 = 1;
/// The word that a compare form looked at was another one.
pub const MISMATCH: u32 = 2;

/// What [`commit_pair`] works on.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PairRequest {
    /// What the two words must be.
    pub old: [u64; 2],
    /// What they become.
    pub new: [u64; 2],
    /// Their address, a multiple of 16.
    pub address: *mut u64,
    /// The transaction's index.
    pub index: u64,
    /// Its token.
    pub token: u64,
}

sequence! {
    /// Begins a transaction on the current index.
    ///
    /// # Safety
    /// The frame is set up and has indices.
    pub fn begin(frame: *const Frame) -> Begun;
    before {}
    range {
        registered!(),
        "mov r10, qword ptr [rdi + 8]",
        "mov edx, dword ptr fs:[r10]",
        "cmp edx, dword ptr [rdi + 32]",
        "jae 6f",
        "mov r10, qword ptr [rdi + 24]",
        "imul r10, rdx",
        "add r10, qword ptr [rdi + 16]",
        "cmp qword ptr [r10 + 8], 0",
        "jne 6f",
        delay!(1),
        "mov rax, qword ptr [r10]",
        "inc rax",
        delay!(2),
        "mov qword ptr [r10], rax",
    }
    after { "ret", }
    refused { "xor eax, eax", "ret", }
}

sequence! {
    /// Stores 32 bits at `address` if the transaction holds: 0, or [`INTERFERED`].
    ///
    /// # Safety
    /// As for [`begin`]; `address` is writable and aligned, and the index's own while transactions run.
    pub fn commit_store_32(frame: *const Frame, index: u64, token: u64, address: *mut u32, value: u32) -> u32;
    before {}
    range { holds!(), delay!(1), "mov dword ptr [rcx], r8d", }
    after { "xor eax, eax", "ret", }
    refused { "mov eax, 1", "ret", }
}

sequence! {
    /// Stores 64 bits at `address` if the transaction holds: 0, or [`INTERFERED`].
    ///
    /// # Safety
    /// As for [`commit_store_32`].
    pub fn commit_store_64(frame: *const Frame, index: u64, token: u64, address: *mut u64, value: u64) -> u32;
    before {}
    range { holds!(), delay!(1), "mov qword ptr [rcx], r8", }
    after { "xor eax, eax", "ret", }
    refused { "mov eax, 1", "ret", }
}

sequence! {
    /// As [`commit_store_32`] if the word is `old`: 0, [`INTERFERED`] or [`MISMATCH`].
    ///
    /// # Safety
    /// As for [`commit_store_32`].
    pub fn commit_compare_32(frame: *const Frame, index: u64, token: u64, address: *mut u32, old: u32, new: u32) -> u32;
    before {}
    range {
        holds!(),
        delay!(1),
        "cmp dword ptr [rcx], r8d",
        "jne 9f",
        delay!(2),
        "mov dword ptr [rcx], r9d",
    }
    after { "xor eax, eax", "ret", }
    refused { "mov eax, 1", "ret", "9:", "mov eax, 2", "ret", }
}

sequence! {
    /// As [`commit_store_64`] if the word is `old`: 0, [`INTERFERED`] or [`MISMATCH`].
    ///
    /// # Safety
    /// As for [`commit_store_32`].
    pub fn commit_compare_64(frame: *const Frame, index: u64, token: u64, address: *mut u64, old: u64, new: u64) -> u32;
    before {}
    range {
        holds!(),
        delay!(1),
        "cmp qword ptr [rcx], r8",
        "jne 9f",
        delay!(2),
        "mov qword ptr [rcx], r9",
    }
    after { "xor eax, eax", "ret", }
    refused { "mov eax, 1", "ret", "9:", "mov eax, 2", "ret", }
}

sequence! {
    /// Stores two words if they are the old ones and the transaction holds: 0, [`INTERFERED`] or [`MISMATCH`].
    ///
    /// The commit is one `cmpxchg16b` without a lock prefix: a single instruction is not interrupted half-way, and nobody
    /// else writes there while the transaction holds. (The paper stored a pair of 32-bit words by one 64-bit store.)
    ///
    /// # Safety
    /// As for [`commit_store_32`]; the address is a multiple of 16.
    pub fn commit_pair(frame: *const Frame, request: *const PairRequest) -> u32;
    before { "mov r8, rbx", }
    range {
        registered!(),
        "mov r10, qword ptr [rdi + 8]",
        "mov r10d, dword ptr fs:[r10]",
        "cmp r10, qword ptr [rsi + 40]",
        "jne 6f",
        "imul r10, qword ptr [rdi + 24]",
        "add r10, qword ptr [rdi + 16]",
        "cmp qword ptr [r10 + 8], 0",
        "jne 6f",
        "mov rax, qword ptr [rsi + 48]",
        "cmp qword ptr [r10], rax",
        "jne 6f",
        "mov r10, qword ptr [rsi + 32]",
        "mov rax, qword ptr [rsi]",
        "mov rdx, qword ptr [rsi + 8]",
        "mov rbx, qword ptr [rsi + 16]",
        "mov rcx, qword ptr [rsi + 24]",
        delay!(1),
        "cmpxchg16b xmmword ptr [r10]",
    }
    after { "mov rbx, r8", "mov eax, 0", "setne al", "add eax, eax", "ret", }
    refused { "mov rbx, r8", "mov eax, 1", "ret", }
}
