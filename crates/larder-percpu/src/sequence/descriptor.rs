//! What the kernel reads about a sequence, and where all of them are found.

/// One sequence's descriptor, as the kernel reads it.
#[repr(C, align(32))]
pub struct Descriptor {
    version: u32,
    flags: u32,
    /// First instruction of the sequence.
    pub start: usize,
    /// Length in bytes, the commit included.
    pub length: usize,
    /// Where an aborted sequence goes on.
    pub abort: usize,
}

/// Every sequence in this object, in no order: for tests, linters and debuggers.
///
/// The kernel does not need the list, and no code refers to it, so the linker would leave it out: its section is marked to be
/// retained (`R`).
pub fn descriptors() -> &'static [&'static Descriptor] {
    // The section exists, if empty, also in a program without any sequence.
    // SAFETY: no instruction.
    unsafe {
        core::arch::asm!(
            ".pushsection __rseq_cs_ptr_array, \"awR\"",
            ".popsection",
            options(nomem, nostack, preserves_flags)
        );
    }
    unsafe extern "C" {
        #[link_name = "__start___rseq_cs_ptr_array"]
        static START: [&'static Descriptor; 0];
        #[link_name = "__stop___rseq_cs_ptr_array"]
        static STOP: [&'static Descriptor; 0];
    }
    // SAFETY: the linker puts the two symbols around the section, which holds only pointers to descriptors.
    unsafe {
        let (start, stop) = ((&raw const START).cast::<&Descriptor>(), (&raw const STOP).cast::<&Descriptor>());
        core::slice::from_raw_parts(start, stop.offset_from(start) as usize)
    }
}
