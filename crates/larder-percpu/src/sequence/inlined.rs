//! The sequences that are used most, once more for inlining: the same steps without call and return.
//!
//! They are what [`Counter`](crate::structures::Counter), [`FreeList`](crate::structures::FreeList) and
//! [`Transaction`](crate::Transaction) run. Their restarts are counted with those of the functions.
//!
//! A call costs more than its two instructions: what the caller has in registers goes to the registers of arguments, results
//! come back in two, and a status is made to be tested. Here the compiler chooses the registers, a refusal is a jump to the
//! caller's slow path, a commit gets from its begin what does not change meanwhile, and where the areas lie is a shift, because
//! the type of their content is known.

use core::arch::asm;
use core::sync::atomic::Ordering;

use super::frame::{Frame, HEADER, stride};
use super::level::NUMBER_SHIFT;
use super::table::{Id, RESTARTS};

/// A sequence: arms by way of `{arm}`, the offset of `rseq_cs`, with `{t}`, which its range may use.
///
/// `by` names both registers where they are chosen by hand, `once` is text before it that is not run again after an abort, `then`
/// what follows the commit, and `aside` text that is not on the fast path; label 6 may be there.
macro_rules! inlined {
    ($id:ident; [$($range:expr,)*]; aside [$($aside:expr,)*]; $($operand:tt)*) => {
        inlined!($id; by "{arm}", "{t}"; once []; [$($range,)*]; then []; aside [$($aside,)*]; $($operand)*)
    };
    (
        $id:ident;
        by $arm:literal, $t:literal;
        once [$($once:expr,)*];
        [$($range:expr,)*];
        then [$($then:expr,)*];
        aside [$($aside:expr,)*];
        $($operand:tt)*
    ) => {
        asm!(
            $($once,)*
            "2:",
            concat!("lea ", $t, ", [rip + 77f]"),
            concat!("mov qword ptr fs:[", $arm, "], ", $t),
            "3:",
            $($range,)*
            "4:",
            $($then,)*
            ".pushsection __rseq_failure, \"ax\"",
            ".byte 0x0f, 0xb9, 0x3d",
            ".long 0x53053053",
            "5:",
            "lock inc qword ptr [rip + {restarts} + 8 * {id}]",
            "jmp 2b",
            $($aside,)*
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
            restarts = sym RESTARTS,
            id = const Id::$id as usize,
            options(nostack),
            $($operand)*
        )
    };
}

/// As `registered` in the shared text.
macro_rules! registered_or {
    ($refused:literal) => {
        concat!("cmp dword ptr fs:[{arm} - 4], 0x7fffffff\nja ", $refused)
    };
}

/// As `area` in the shared text: `{t}` is the area's address. With `shared` as `shared_area` there: by the map, and `{next}` is lost.
macro_rules! area_or {
    ($refused:literal) => {
        area_or!($refused, "")
    };
    ($refused:literal, shared) => {
        area_or!($refused, "\nmov {next}, qword ptr [{frame} + 40]\nmov {t:e}, dword ptr [{next} + {t} * 4]")
    };
    ($refused:literal, $map:literal) => {
        concat!(
            registered_or!($refused),
            "\nmov {t:e}, dword ptr fs:[{at}]\n",
            "cmp {t:e}, dword ptr [{frame} + 32]\n",
            "jae ",
            $refused,
            $map,
            "\nshl {t}, {shift}\n",
            "add {t}, qword ptr [{frame} + 16]\n",
            "cmp qword ptr [{t} + 8], 0\n",
            "jne ",
            $refused
        )
    };
}

/// As `place` in the shared text: `{t}` is the address of what lies at the offset.
macro_rules! place_or {
    ($refused:literal $(, $by:tt)?) => {
        concat!(area_or!($refused $(, $by)?), "\nadd {t}, {offset}")
    };
}

/// As [`word::add`](super::word::add); false where it was refused.
///
/// # Safety
/// As there; the areas' content is a `T`, and `rseq_cs` is the frame's.
#[inline(always)]
pub unsafe fn add<T>(frame: &Frame, rseq_cs: isize, offset: usize, value: u64) -> bool {
    // SAFETY: the sequence writes `rseq_cs` of this thread's own area and the word that the caller vouches for.
    unsafe {
        inlined!(
            add;
            [place_or!("{refused}"), "add qword ptr [{t}], {value}",];
            aside [];
            t = out(reg) _,
            arm = in(reg) rseq_cs,
            at = in(reg) frame.index.load(Ordering::Relaxed),
            frame = in(reg) frame,
            shift = const stride(size_of::<T>()).trailing_zeros(),
            offset = in(reg) offset,
            value = in(reg) value,
            refused = label { return false },
        );
    }
    true
}

/// As [`list::list_pop`](super::list::list_pop).
///
/// # Safety
/// As for [`add`].
#[inline(always)]
pub unsafe fn list_pop<T>(frame: &Frame, rseq_cs: isize, offset: usize) -> usize {
    let node: usize;
    // SAFETY: as in `add`; the first node is readable by what the caller vouches for.
    unsafe {
        inlined!(
            list_pop;
            [
                place_or!("6f"),
                "mov {node}, qword ptr [{t}]",
                "test {node}, {node}",
                "jz 4f",
                "mov {next}, qword ptr [{node}]",
                "mov qword ptr [{t}], {next}",
            ];
            aside ["6:", "mov {node}, -1", "jmp 4b",];
            t = out(reg) _,
            next = out(reg) _,
            node = out(reg) node,
            arm = in(reg) rseq_cs,
            at = in(reg) frame.index.load(Ordering::Relaxed),
            frame = in(reg) frame,
            shift = const stride(size_of::<T>()).trailing_zeros(),
            offset = in(reg) offset,
        );
    }
    node
}

/// As [`list::list_push`](super::list::list_push); false where it was refused.
///
/// # Safety
/// As for [`add`].
#[inline(always)]
pub unsafe fn list_push<T>(frame: &Frame, rseq_cs: isize, offset: usize, first: usize, last: usize) -> bool {
    // SAFETY: as in `add`; the chain is the caller's.
    unsafe {
        inlined!(
            list_push;
            [
                place_or!("{refused}"),
                "mov {next}, qword ptr [{t}]",
                "mov qword ptr [{last}], {next}",
                "mov qword ptr [{t}], {first}",
            ];
            aside [];
            t = out(reg) _,
            next = out(reg) _,
            arm = in(reg) rseq_cs,
            at = in(reg) frame.index.load(Ordering::Relaxed),
            frame = in(reg) frame,
            shift = const stride(size_of::<T>()).trailing_zeros(),
            offset = in(reg) offset,
            first = in(reg) first,
            last = in(reg) last,
            refused = label { return false },
        );
    }
    true
}

/// As [`level::level_bump_guessed`](super::level::level_bump_guessed); 0 where it was refused, too.
///
/// # Safety
/// As there; the areas' content is a `T`, and `rseq_cs` is the frame's.
#[inline(always)]
pub unsafe fn level_bump_guessed<T>(
    frame: &Frame,
    rseq_cs: isize,
    offset: usize,
    bytes: usize,
    guess: *mut usize,
) -> usize {
    let from: usize;
    // SAFETY: the sequence writes `rseq_cs` of this thread's own area, the frontier, and the guess, which the caller vouches for.
    unsafe {
        inlined!(
            level_bump_guessed;
            by "{arm}", "{t}";
            once [];
            [
                place_or!("7f", shared),
                // What was taken is known without the word that the commit brings.
                "mov rax, qword ptr [{guess}]",
                "mov {from}, rax",
                "lea {next}, [rax + {bytes}]",
                "cmp {next}, qword ptr [{t} + 8]",
                "ja 6f",
                "lock cmpxchg qword ptr [{t}], {next}",
            ];
            then ["jne 6f", "mov qword ptr [{guess}], {next}", "8:",];
            // The guess was wrong, or there is too little by it: what is there is the next guess, if it is another one. Who took meanwhile has the
            // line, and for a moment keeps it: with both trying at once every other attempt fails, and each moves the line.
            aside [
                "6:",
                "pause",
                "pause",
                "pause",
                "mov {next}, qword ptr [{t}]",
                "mov qword ptr [{guess}], {next}",
                "cmp {next}, {from}",
                "jne 2b",
                "7:",
                "xor {from:e}, {from:e}",
                "jmp 8b",
            ];
            t = out(reg) _,
            next = out(reg) _,
            from = out(reg) from,
            out("rax") _,
            arm = in(reg) rseq_cs,
            at = in(reg) frame.index.load(Ordering::Relaxed),
            frame = in(reg) frame,
            shift = const stride(size_of::<T>()).trailing_zeros(),
            offset = in(reg) offset,
            bytes = in(reg) bytes,
            guess = in(reg) guess,
        );
    }
    from & ((1 << NUMBER_SHIFT) - 1)
}

/// What [`begin`] found, and what its commits need not find again.
#[derive(Clone, Copy, Debug)]
pub struct Hold {
    /// The transaction's token; 0 holds nowhere.
    pub token: u64,
    /// The index that it began on.
    pub index: u64,
    /// The content of that index's area.
    pub content: *mut u8,
    /// Offset of `rseq_cs` from the thread pointer; [`Hold::LOCKED`] where the transaction was begun under a lock.
    pub rseq_cs: isize,
    /// Offset of the index word from the thread pointer.
    pub index_word: isize,
}

impl Hold {
    /// What no offset of `rseq_cs` is: the thread control block begins there.
    pub const LOCKED: isize = 0;

    /// Whether it was begun under a lock. Then no sequence may commit it: where there are none, arming one would hit the
    /// thread control block.
    #[inline(always)]
    pub fn is_locked(self) -> bool {
        self.rseq_cs == Self::LOCKED
    }
}

/// As [`transaction::begin`](super::transaction::begin); the token is 0 where it was refused.
///
/// # Safety
/// As for [`add`].
#[inline(always)]
pub unsafe fn begin<T>(frame: &Frame, rseq_cs: isize) -> Hold {
    let (token, index, area): (u64, u64, *mut u8);
    let index_word = frame.index.load(Ordering::Relaxed);
    // SAFETY: the sequence writes `rseq_cs` of this thread's own area, and the token of its index.
    unsafe {
        inlined!(
            begin;
            [
                registered_or!("6f"),
                "mov {index:e}, dword ptr fs:[{at}]",
                "cmp {index:e}, dword ptr [{frame} + 32]",
                "jae 6f",
                "mov {t:e}, {index:e}",
                "shl {t}, {shift}",
                "add {t}, qword ptr [{frame} + 16]",
                "cmp qword ptr [{t} + 8], 0",
                "jne 6f",
                "mov {token}, qword ptr [{t}]",
                "inc {token}",
                "mov qword ptr [{t}], {token}",
            ];
            aside ["6:", "xor {token:e}, {token:e}", "jmp 4b",];
            t = out(reg) area,
            index = out(reg) index,
            token = out(reg) token,
            arm = in(reg) rseq_cs,
            at = in(reg) index_word,
            frame = in(reg) frame,
            shift = const stride(size_of::<T>()).trailing_zeros(),
        );
    }
    Hold { token, index, content: area.wrapping_add(HEADER), rseq_cs, index_word }
}

/// As `holds` in the shared text, with the area known.
macro_rules! holds_or {
    ($refused:literal) => {
        concat!(
            registered_or!($refused),
            "\ncmp dword ptr fs:[{at}], {index:e}\n",
            "jne ",
            $refused,
            "\ncmp qword ptr [{content} - {header} + 8], 0\n",
            "jne ",
            $refused,
            "\ncmp qword ptr [{content} - {header}], {token}\n",
            "jne ",
            $refused
        )
    };
}

/// A commit: `store` is what it stores, after `compare`.
macro_rules! commit {
    ($id:ident, $hold:ident; [$($compare:expr,)*] $store:literal; $($operand:tt)*) => {
        inlined!(
            $id;
            [holds_or!("{refused}"), $($compare,)* $store,];
            aside [];
            t = out(reg) _,
            arm = in(reg) $hold.rseq_cs,
            at = in(reg) $hold.index_word,
            index = in(reg) $hold.index,
            content = in(reg) $hold.content,
            header = const HEADER,
            token = in(reg) $hold.token,
            $($operand)*
        )
    };
}

/// How a commit ended that stored nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotStored {
    /// The transaction does not hold any more.
    Interfered,
    /// The word that a compare form looked at was another one.
    Mismatch,
}

/// As [`transaction::commit_store_32`](super::transaction::commit_store_32); false where there was interference.
///
/// # Safety
/// As there; the hold is from [`begin`], and not locked.
#[inline(always)]
pub unsafe fn commit_store_32(hold: Hold, address: *mut u32, value: u32) -> bool {
    // SAFETY: the sequence writes `rseq_cs` of this thread's own area, and what the caller vouches for.
    unsafe {
        commit!(
            commit_store_32, hold; [] "mov dword ptr [{address}], {value:e}";
            address = in(reg) address,
            value = in(reg) value,
            refused = label { return false },
        );
    }
    true
}

/// As [`transaction::commit_store_64`](super::transaction::commit_store_64); false where there was interference.
///
/// # Safety
/// As for [`commit_store_32`].
#[inline(always)]
pub unsafe fn commit_store_64(hold: Hold, address: *mut u64, value: u64) -> bool {
    // SAFETY: as in `commit_store_32`.
    unsafe {
        commit!(
            commit_store_64, hold; [] "mov qword ptr [{address}], {value}";
            address = in(reg) address,
            value = in(reg) value,
            refused = label { return false },
        );
    }
    true
}

/// As [`transaction::commit_compare_32`](super::transaction::commit_compare_32).
///
/// # Safety
/// As for [`commit_store_32`].
#[inline(always)]
pub unsafe fn commit_compare_32(hold: Hold, address: *mut u32, old: u32, new: u32) -> Result<(), NotStored> {
    // SAFETY: as in `commit_store_32`.
    unsafe {
        commit!(
            commit_compare_32, hold;
            ["cmp dword ptr [{address}], {old:e}", "jne {mismatch}",]
            "mov dword ptr [{address}], {new:e}";
            address = in(reg) address,
            old = in(reg) old,
            new = in(reg) new,
            refused = label { return Err(NotStored::Interfered) },
            mismatch = label { return Err(NotStored::Mismatch) },
        );
    }
    Ok(())
}

/// As [`transaction::commit_compare_64`](super::transaction::commit_compare_64).
///
/// # Safety
/// As for [`commit_store_32`].
#[inline(always)]
pub unsafe fn commit_compare_64(hold: Hold, address: *mut u64, old: u64, new: u64) -> Result<(), NotStored> {
    // SAFETY: as in `commit_store_32`.
    unsafe {
        commit!(
            commit_compare_64, hold;
            ["cmp qword ptr [{address}], {old}", "jne {mismatch}",]
            "mov qword ptr [{address}], {new}";
            address = in(reg) address,
            old = in(reg) old,
            new = in(reg) new,
            refused = label { return Err(NotStored::Interfered) },
            mismatch = label { return Err(NotStored::Mismatch) },
        );
    }
    Ok(())
}

/// As [`transaction::commit_pair`](super::transaction::commit_pair).
///
/// `rbx` is the compiler's and the commit's: what the compiler has there is exchanged in before the sequence is armed, and out
/// again behind it, on each way. So every operand has a register of its own choice, and the compiler gives `rbx` to none.
///
/// # Safety
/// As for [`commit_store_32`]; the address is a multiple of 16.
#[inline(always)]
pub unsafe fn commit_pair(hold: Hold, address: *mut u64, old: [u64; 2], new: [u64; 2]) -> Result<(), NotStored> {
    // SAFETY: as in `commit_store_32`; `rbx` is put back before anything else runs.
    unsafe {
        inlined!(
            commit_pair;
            by "r11", "r13";
            once ["xchg rbx, rsi",];
            [
                "cmp dword ptr fs:[r11 - 4], 0x7fffffff",
                "ja 6f",
                "cmp dword ptr fs:[r10], r9d",
                "jne 6f",
                "cmp qword ptr [rdi - {header} + 8], 0",
                "jne 6f",
                "cmp qword ptr [rdi - {header}], r8",
                "jne 6f",
                "cmpxchg16b xmmword ptr [r12]",
            ];
            then ["xchg rbx, rsi", "jne {mismatch}",];
            aside ["6:", "xchg rbx, rsi", "jmp {refused}",];
            out("r13") _,
            in("r11") hold.rseq_cs,
            in("r10") hold.index_word,
            in("r9") hold.index,
            in("rdi") hold.content,
            in("r8") hold.token,
            in("r12") address,
            inout("rax") old[0] => _,
            inout("rdx") old[1] => _,
            inout("rsi") new[0] => _,
            in("rcx") new[1],
            header = const HEADER,
            refused = label { return Err(NotStored::Interfered) },
            mismatch = label { return Err(NotStored::Mismatch) },
        );
    }
    Ok(())
}
