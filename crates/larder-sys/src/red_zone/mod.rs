//! Whether a thread that sleeps in a system call has anything in its red zone.
//!
//! The red zone, the 128 bytes below the stack pointer, belongs to a function that calls no other. So a thread that a signal finds anywhere may have
//! addresses there that are nowhere else. But most threads sleep, at a system call of the C library, where these bytes are what their last calls
//! left behind, and addresses among that keep whole structures which are garbage.
//!
//! What the code does from the call on decides it. It is followed along every branch until it calls another function or returns: from then
//! on nothing from before can be in the red zone any more. If no instruction on these ways names a place below the stack pointer of the
//! call, and neither a register nor the frame's words hold an address of such a place, then neither the code nor the kernel has a use for
//! what is there. Where an instruction is not known, or the ways are too many, the answer is that it may. Those of vector registers are not known, so
//! the vector registers are unused as well then: a function may change them all, so no caller has anything in them.

mod decode;

use core::ops::Range;
use core::ptr;
use core::sync::atomic::{AtomicUsize, Ordering};

#[cfg(target_env = "gnu")]
use crate::loader;
use decode::{Flow, decode};
use larder_units::PAGE;

/// How many bytes below the stack pointer are a function's own.
const BYTES: usize = 128;

/// Bytes of the frame above the stack pointer in which addresses of the red zone are looked for.
const FRAME: usize = 256;

/// The machine's instruction for a system call.
const SYSCALL: [u8; 2] = [0x0f, 0x05];

/// Places where branches meet that are followed, and instructions.
const PLACES: usize = 32;
const STEPS: usize = 400;

/// The code of the C library, from its first byte on, and its end; nothing until it was looked for.
///
/// Sync: written once by [`find_c_library`], before the first handler that asks; `Relaxed`.
static C_LIBRARY: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// What was found out about calls: the address behind the instruction, shifted by one, and whether the red zone is unused from there on.
///
/// Sync: each word is complete in itself, and the code never changes; `Relaxed`.
static KNOWN: [AtomicUsize; 64] = [const { AtomicUsize::new(0) }; 64];

/// Looks for the C library among the mapped objects. A program that contains it has none that is known here; nor is another one than glibc.
pub fn find_c_library() {
    #[cfg(target_env = "gnu")]
    {
        let inside = libc::gnu_get_libc_version as *const () as usize;
        let mut is_program = true;
        loader::for_each_object(|object| {
            let found = !is_program && object.contains(inside);
            is_program = false;
            if found {
                let code = object.code_range(inside).into_iter().flatten();
                code.zip(&C_LIBRARY).for_each(|(end, word)| word.store(end, Ordering::Relaxed));
            }
            !found
        });
    }
}

/// The stack of a thread that sleeps, as a handler finds it.
#[derive(Clone, Copy, Debug)]
pub struct Asleep {
    /// Its stack pointer. Nothing below is in use, but for the next.
    pub stack_pointer: usize,
    /// Where the kernel saved its general registers: from the first of these addresses up to the second. What the others hold is not used
    /// either.
    pub registers: [usize; 2],
}

/// Where the thread stands that a handler has interrupted, if that is at a system call of the C library (the instruction itself, which the
/// kernel will execute again, or the one behind it) that has no use for what is in the red zone.
///
/// # Safety
/// `context` is what the kernel gave to a handler that is running, on the stack that it has interrupted.
pub unsafe fn asleep(context: *const libc::c_void) -> Option<Asleep> {
    // SAFETY: the caller's promise.
    let registers = unsafe { &(*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let at = registers[libc::REG_RIP as usize] as usize;
    let [low, high] = C_LIBRARY.each_ref().map(|end| end.load(Ordering::Relaxed));
    if !(low + SYSCALL.len()..high.saturating_sub(SYSCALL.len())).contains(&at) {
        return None;
    }
    // SAFETY: executable segments of the C library are readable, and never unmapped or changed.
    let code = unsafe { core::slice::from_raw_parts(ptr::with_exposed_provenance::<u8>(low), high - low) };
    let offset = at - low;
    let behind = match code[offset - SYSCALL.len()..offset + SYSCALL.len()] {
        [_, _, first, second] if [first, second] == SYSCALL => offset + SYSCALL.len(),
        [first, second, ..] if [first, second] == SYSCALL => offset,
        _ => return None,
    };
    let stack_pointer = registers[libc::REG_RSP as usize] as usize;
    let red_zone = stack_pointer - BYTES..stack_pointer;
    let named = registers[..libc::REG_RSP as usize].iter().any(|&word| red_zone.contains(&(word as usize)));
    // SAFETY: the caller's promise: the kernel's frame lies below.
    if named || unsafe { frame_names(&red_zone) } || !is_unused_known(code, low, behind) {
        return None;
    }
    Some(Asleep { stack_pointer, registers: [registers.as_ptr().addr(), registers.as_ptr_range().end.addr()] })
}

/// Whether a word of the frame above the red zone is an address of the red zone.
///
/// # Safety
/// A stack's live part begins where the red zone ends.
unsafe fn frame_names(red_zone: &Range<usize>) -> bool {
    let low = red_zone.end.next_multiple_of(size_of::<usize>());
    // Not into another page, which need not be there.
    let high = (low + FRAME).min((low + 1).next_multiple_of(PAGE.0));
    (low..high).step_by(size_of::<usize>()).any(|at| {
        // SAFETY: the caller's promise, and the page of the stack pointer.
        let word = unsafe { ptr::with_exposed_provenance::<usize>(at).read_volatile() };
        red_zone.contains(&word)
    })
}

/// [`is_unused`], or what it said before. `code` lies at `low`.
fn is_unused_known(code: &[u8], low: usize, from: usize) -> bool {
    let key = (low + from) << 1;
    let slot = &KNOWN[(low + from) % KNOWN.len()];
    let known = slot.load(Ordering::Relaxed);
    if known & !1 == key {
        return known & 1 != 0;
    }
    let unused = is_unused(code, from);
    slot.store(key | usize::from(unused), Ordering::Relaxed);
    unused
}

/// Whether no way through `code` from the offset `from` on names a place below the stack pointer, as it is there, before it calls a function or
/// returns.
fn is_unused(code: &[u8], from: usize) -> bool {
    let mut places = Places { list: [(from, 0); PLACES], known: 1 };
    let (mut next, mut steps) = (0, STEPS);
    while next < places.known {
        let (mut at, mut height) = places.list[next];
        next += 1;
        loop {
            let Some(instruction) = code.get(at..).and_then(decode) else { return false };
            if steps == 0 || instruction.touches.is_some_and(|place| height + i64::from(place) < 0) {
                return false;
            }
            steps -= 1;
            height += i64::from(instruction.moves);
            at += instruction.length;
            match instruction.flow {
                Flow::Next => {}
                Flow::Branch(distance) => {
                    if !places.add(at, distance, height) {
                        return false;
                    }
                }
                Flow::Jump(distance) => {
                    if !places.add(at, distance, height) {
                        return false;
                    }
                    break;
                }
                Flow::Call | Flow::Away => break,
            }
        }
    }
    true
}

/// Where branches go: offsets in the code, and the stack pointer's there above that of the system call.
struct Places {
    list: [(usize, i64); PLACES],
    known: usize,
}

impl Places {
    /// Adds the place that lies `distance` behind `at`, unless it is there. False where there is no room, or where the stack pointer is another
    /// on another way.
    fn add(&mut self, at: usize, distance: i32, height: i64) -> bool {
        let Some(place) = at.checked_add_signed(distance as isize) else { return false };
        if let Some(&(_, known)) = self.list[..self.known].iter().find(|&&(other, _)| other == place) {
            return known == height;
        }
        let Some(entry) = self.list.get_mut(self.known) else { return false };
        *entry = (place, height);
        self.known += 1;
        true
    }
}

#[cfg(test)]
mod tests;
