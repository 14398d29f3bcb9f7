//! The text that all sequences share, as macros, so that each rule of the kernel's is kept in one place.
//!
//! A sequence is a function of the C calling convention. Its first argument, in `rdi`, is the [`Frame`](super::Frame).
//! No argument register is changed, so an aborted sequence starts over with what it was called with. `rax` and `r10` are
//! used by the shared text, `r11` by injected delays.
//!
//! | label | place |
//! |---|---|
//! | `2` | arms: stores the descriptor's address to `rseq_cs` |
//! | `3` | first instruction of the range |
//! | `4` | first instruction behind the commit |
//! | `5` | abort handler: counts the restart and goes to `2` |
//! | `6` | refused: the index is out of range or closed, or the transaction does not hold |
//! | `9` | refused for the sequence's own reason: empty, full, mismatch |

/// A delay loop at a numbered point of the range; only with the feature `inject`. Flags and `r11` are lost.
#[cfg(feature = "inject")]
macro_rules! delay {
    ($point:literal) => {
        concat!("mov r11d, dword ptr [rip + {delays} + 4 * ", $point, "]\n", "7:\n", "sub r11d, 1\n", "jns 7b")
    };
}

/// No delay.
#[cfg(not(feature = "inject"))]
macro_rules! delay {
    ($point:literal) => {
        ""
    };
}

/// Tests that the kernel keeps the thread's area: `cpu_id`, four bytes below `rseq_cs`, is negative where it does not. `r10`
/// still is the offset of `rseq_cs`.
///
/// The index alone does not tell: a concurrency id is 0 in a thread whose registration was refused (a sandbox that was
/// entered later) or undone, and nothing would abort its sequences.
macro_rules! registered {
    () => {
        "cmp dword ptr fs:[r10 - 4], 0x7fffffff\nja 6f\n"
    };
}

/// Reads the index, finds its area and tests that it is open: `r10` is the area's address.
macro_rules! area {
    () => {
        concat!(
            registered!(),
            "mov r10, qword ptr [rdi + 8]\n",
            "mov r10d, dword ptr fs:[r10]\n",
            "cmp r10d, dword ptr [rdi + 32]\n",
            "jae 6f\n",
            "imul r10, qword ptr [rdi + 24]\n",
            "add r10, qword ptr [rdi + 16]\n",
            "cmp qword ptr [r10 + 8], 0\n",
            "jne 6f"
        )
    };
}

/// As `area`, and `r10` is the address of what lies at the offset in `rsi`.
///
/// A sequence reads a word that the one before has just stored. Intel's cores since Golden Cove forward such a word at once
/// only to an address without an index register; with one it takes as long as on older cores, half the time of a bump.
macro_rules! place {
    () => {
        concat!(area!(), "\nadd r10, rsi")
    };
}

/// As `area`, where CPUs share areas: the map from CPU to area is looked up. `rax` is lost.
macro_rules! shared_area {
    () => {
        concat!(
            registered!(),
            "mov r10, qword ptr [rdi + 8]\n",
            "mov r10d, dword ptr fs:[r10]\n",
            "cmp r10d, dword ptr [rdi + 32]\n",
            "jae 6f\n",
            "mov rax, qword ptr [rdi + 40]\n",
            "mov r10d, dword ptr [rax + r10 * 4]\n",
            "imul r10, qword ptr [rdi + 24]\n",
            "add r10, qword ptr [rdi + 16]\n",
            "cmp qword ptr [r10 + 8], 0\n",
            "jne 6f"
        )
    };
}

/// Tests that the thread runs on the transaction's index (`esi`), that the index is open, and that nobody began there since
/// (`rdx` is the token).
///
/// The closed word comes before the token. A take-over that closes after it was read aborts the sequence; one that had opened
/// again before has replaced the token. The other way round, all of a take-over from the replacement of the token to the
/// opening would fit between the two.
macro_rules! holds {
    () => {
        concat!(
            registered!(),
            "mov r10, qword ptr [rdi + 8]\n",
            "mov r10d, dword ptr fs:[r10]\n",
            "cmp r10d, esi\n",
            "jne 6f\n",
            "imul r10, qword ptr [rdi + 24]\n",
            "add r10, qword ptr [rdi + 16]\n",
            "cmp qword ptr [r10 + 8], 0\n",
            "jne 6f\n",
            "cmp qword ptr [r10], rdx\n",
            "jne 6f"
        )
    };
}

/// Defines a sequence: `before` runs once, `range` is restarted, `after` follows the commit and returns, `refused` is what
/// labels 6 and 9 do.
#[cfg(not(feature = "inject"))]
macro_rules! sequence {
    ($($definition:tt)*) => { sequence_with! { [] $($definition)* } };
}

/// The same with delays.
#[cfg(feature = "inject")]
macro_rules! sequence {
    ($($definition:tt)*) => { sequence_with! { [delays = sym $crate::sequence::table::DELAYS] $($definition)* } };
}

/// What `sequence` expands to; the operands in brackets are those of `delay`.
macro_rules! sequence_with {
    (
        [$($operand:ident = $kind:ident $path:path)?]
        $(#[$meta:meta])*
        pub fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $result:ty;
        before { $($before:literal,)* }
        range { $($range:expr,)* }
        after { $($after:literal,)* }
        refused { $($refused:literal,)* }
    ) => {
        $(#[$meta])*
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            core::arch::naked_asm!(
                $($before,)*
                "2:",
                "lea rax, [rip + 77f]",
                "mov r10, qword ptr [rdi]",
                "mov qword ptr fs:[r10], rax",
                "3:",
                delay!(0),
                $($range,)*
                "4:",
                $($after,)*
                ".pushsection __rseq_failure, \"ax\"",
                // The signature, dressed as an instruction (ud1) for disassemblers.
                ".byte 0x0f, 0xb9, 0x3d",
                ".long 0x53053053",
                "5:",
                "lock inc qword ptr [rip + {restarts} + 8 * {id}]",
                "jmp 2b",
                "6:",
                $($refused,)*
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
                restarts = sym $crate::sequence::table::RESTARTS,
                id = const $crate::sequence::table::Id::$name as usize,
                $($operand = $kind $path,)?
            )
        }
    };
}
