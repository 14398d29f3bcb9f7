//! An intrusive list: the head is a word of the area, each node's first word is the next node's address, 0 ends it.

use super::frame::Frame;
pub use super::region::REFUSED;

sequence! {
    /// Takes the first node: its address, 0 when the list is empty, or [`REFUSED`].
    ///
    /// The node's first word is read before the commit. Nobody else can take the node meanwhile: another CPU has another
    /// list, and whoever takes this one over closes it first. So there is no ABA, and nodes may be unmapped once they are
    /// taken.
    ///
    /// # Safety
    /// The frame is set up and has indices; the head lies in the area, and what is in the list is readable.
    pub fn list_pop(frame: *const Frame, offset: usize) -> usize;
    before {}
    range {
        place!(),
        delay!(1),
        "mov rax, qword ptr [r10]",
        "test rax, rax",
        "jz 9f",
        "mov rcx, qword ptr [rax]",
        delay!(2),
        "mov qword ptr [r10], rcx",
    }
    after { "ret", }
    refused { "mov rax, -1", "9:", "ret", }
}

sequence! {
    /// Puts a chain of nodes, of which `first` and `last` are the ends, before the first: 0, or 1 when it was refused.
    ///
    /// The last node's first word is stored before the commit: the chain is the caller's until then.
    ///
    /// # Safety
    /// The frame is set up and has indices; the head lies in the area; the chain is the caller's alone.
    pub fn list_push(frame: *const Frame, offset: usize, first: usize, last: usize) -> u32;
    before {}
    range {
        place!(),
        delay!(1),
        "mov rax, qword ptr [r10]",
        "mov qword ptr [rcx], rax",
        delay!(2),
        "mov qword ptr [r10], rdx",
    }
    after { "xor eax, eax", "ret", }
    refused { "mov eax, 1", "ret", }
}
