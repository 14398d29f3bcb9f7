//! `libgccpp.so.1`: a C++ program that is linked to it has all its `new` from the collector, as uncollectable objects, and
//! `delete` frees them. The names that exist are those of Debian's library.
//!
//! It holds no state and reaches the collector by the names of `libgc.so.1`, which it asks the loader for when it was
//! linked by `cargo xtask stage`.
//!
//! An exception must pass through these functions, and Rust does not let one out of a build whose panics abort. So they
//! are a few instructions each, with the unwinder's descriptions. What they need of C++ the shared object looks up weakly: a program without
//! the C++ runtime can load it, and is stopped where it would have thrown. The archive asks for it.

#![no_std]

use core::arch::naked_asm;

#[cfg(not(feature = "archive"))]
larder_sys::freestanding!(unwinds);

/// Says why the process ends.
#[cfg(not(feature = "archive"))]
extern "C" fn no_runtime() -> ! {
    larder_sys::die!("no memory for operator new, and no C++ runtime to throw std::bad_alloc: link with libstdc++")
}

/// The archive is the object of this file alone, and never comes here: it was linked with the C++ runtime.
#[cfg(feature = "archive")]
#[unsafe(naked)]
extern "C" fn no_runtime() -> ! {
    naked_asm!("ud2")
}

/// How names of the C++ runtime are bound. Of a static library, and of a shared one that is linked as needed, a weak name brings nothing.
#[cfg(not(feature = "archive"))]
macro_rules! of_cpp {
    ($name:literal) => {
        concat!(".weak ", $name)
    };
}
#[cfg(feature = "archive")]
macro_rules! of_cpp {
    ($name:literal) => {
        concat!(".globl ", $name)
    };
}

macro_rules! operator_new {
    ($(#[$doc:meta])* $symbol:literal => $name:ident) => {
        $(#[$doc])*
        #[unsafe(export_name = $symbol)]
        #[unsafe(naked)]
        pub extern "C" fn $name() {
            naked_asm!(
                ".cfi_startproc",
                "sub rsp, 8",
                ".cfi_adjust_cfa_offset 8",
                "call GC_malloc_uncollectable@PLT",
                "test rax, rax",
                "je 2f",
                "add rsp, 8",
                ".cfi_adjust_cfa_offset -8",
                "ret",
                "2:",
                ".cfi_adjust_cfa_offset 8",
                "call {throw}",
                "ud2",
                ".cfi_endproc",
                throw = sym throw_bad_alloc,
            )
        }
    };
}

operator_new! {
    /// `operator new(size_t)`
    "_Znwm" => new_object
}
operator_new! {
    /// `operator new[](size_t)`
    "_Znam" => new_array
}

macro_rules! operator_delete {
    ($(#[$doc:meta])* $symbol:literal => $name:ident) => {
        $(#[$doc])*
        #[unsafe(export_name = $symbol)]
        #[unsafe(naked)]
        pub extern "C" fn $name() {
            // The object is in the first register already.
            naked_asm!(".cfi_startproc", "jmp GC_free@PLT", ".cfi_endproc")
        }
    };
}

operator_delete! {
    /// `operator delete(void *)`
    "_ZdlPv" => delete_object
}
operator_delete! {
    /// `operator delete(void *, size_t)`
    "_ZdlPvm" => delete_object_of_size
}
operator_delete! {
    /// `operator delete[](void *)`
    "_ZdaPv" => delete_array
}
operator_delete! {
    /// `operator delete[](void *, size_t)`
    "_ZdaPvm" => delete_array_of_size
}

/// `GC_throw_bad_alloc()`: throws `std::bad_alloc`.
///
/// The exception object is one pointer, to the class's table of virtual functions behind its two words of header.
#[unsafe(export_name = "_Z18GC_throw_bad_allocv")]
#[unsafe(naked)]
pub extern "C" fn throw_bad_alloc() {
    naked_asm!(
        of_cpp!("__cxa_allocate_exception"),
        of_cpp!("__cxa_throw"),
        of_cpp!("_ZTVSt9bad_alloc"),
        of_cpp!("_ZTISt9bad_alloc"),
        of_cpp!("_ZNSt9bad_allocD1Ev"),
        ".cfi_startproc",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "mov rax, [rip + __cxa_throw@GOTPCREL]",
        "test rax, rax",
        "je 2f",
        "mov edi, 8",
        "call [rip + __cxa_allocate_exception@GOTPCREL]",
        "mov rcx, [rip + _ZTVSt9bad_alloc@GOTPCREL]",
        "add rcx, 16",
        "mov [rax], rcx",
        "mov rdi, rax",
        "mov rsi, [rip + _ZTISt9bad_alloc@GOTPCREL]",
        "mov rdx, [rip + _ZNSt9bad_allocD1Ev@GOTPCREL]",
        "call [rip + __cxa_throw@GOTPCREL]",
        "ud2",
        "2:",
        "call {no_runtime}",
        "ud2",
        ".cfi_endproc",
        no_runtime = sym no_runtime,
    )
}
