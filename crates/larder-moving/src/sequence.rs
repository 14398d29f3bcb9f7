//! The allocation sequence and the write barrier as data, so that a compiler can inline them.
//!
//! All offsets are into [`Thread`], whose address compiled code has at hand.
//!
//! Allocation of `size` bytes, a multiple of 16, at least 16 and at most [`LARGEST_INLINED`]:
//!
//! ```text
//! object = thread[FRONTIER]
//! next   = object + size
//! if next > thread[LIMIT] goto slow      // Mutator::allocate: a safepoint
//! thread[FRONTIER] = next
//! // the object is zero; its header is written here
//! ```
//!
//! Barrier after a store to `slot`, where the heap's barrier is [`Barrier::ConditionalCards`](crate::Barrier):
//!
//! ```text
//! card = thread[CARD_BIAS] + (slot >> CARD_SHIFT)
//! if byte[card] != CARD_DIRTY { byte[card] = CARD_DIRTY }
//! ```
//!
//! Where the dword at BARRIER is not 0, the card is marked without looking (1), or the slot noted by
//! `Mutator::after_store` (2).
//!
//! Safepoint poll:
//!
//! ```text
//! if dword[thread + STATUS] != 0 goto slow   // Mutator::poll
//! ```

use core::mem::offset_of;

use larder_lab::{Owners, Shape};

use crate::thread::Thread;

/// Whom the buffer of this sequence belongs to: the thread. Where buffers belong to others, a thread's own is never open,
/// and the sequence goes to the slow path each time.
pub const OWNERS: Owners = Owners::Threads;
/// Offset of the next free address.
pub const FRONTIER: usize = offset_of!(Thread, lab);
/// Offset of the first address that is not the buffer's.
pub const LIMIT: usize = FRONTIER + 8;
/// Bytes of the heap's own before an object: it begins so far behind what was the frontier.
pub const HEADER: usize = 0;
/// Offset of the word, of 4 bytes, that is not 0 when the thread should poll.
pub const STATUS: usize = offset_of!(Thread, status);
/// Offset of the number, of 4 bytes, of the heap's barrier.
pub const BARRIER: usize = offset_of!(Thread, barrier);
/// Offset of the newest frame of the shadow stack.
pub const FRAMES: usize = offset_of!(Thread, frames);
/// Offset of what is added to a slot's address, shifted, to get its card's.
pub const CARD_BIAS: usize = offset_of!(Thread, card_bias);
/// Offset of the address of the heap's [`Shape`](larder_lab::Shape): the sequence for buffers of processors, whose indices are 0 while
/// processors have none. It changes at safepoints.
pub const SHAPE: usize = offset_of!(Thread, shape);
/// Offset of the three words by which [`bump_near`](larder_lab::bump_near) allocates from the buffers of processors.
pub const NEAR: usize = offset_of!(Thread, near);
/// By how many bits a slot's address is shifted.
pub const CARD_SHIFT: u32 = crate::space::CARD.trailing_zeros();
/// What a card holds after a store.
pub const CARD_DIRTY: u8 = 1;
/// Longer objects are allocated by [`Mutator::allocate`](crate::Mutator::allocate).
pub const LARGEST_INLINED: usize = crate::space::LARGEST_SMALL;

/// This sequence in the form of those by processor: offsets into the thread's record.
pub const SHAPE_OF_THREADS: Shape =
    Shape { frontier: FRONTIER, limit: LIMIT, header: HEADER as u32, ..Shape::without_index(OWNERS) };

// What `larder_vm.h` says.
const _: () = assert!(FRONTIER == 0 && LIMIT == 8 && STATUS == 64 && BARRIER == 68 && FRAMES == 72 && CARD_BIAS == 80);
const _: () = assert!(SHAPE == 88 && NEAR == 96);
// The shift is a constant there.
const _: () = assert!(larder_lab::Shape::NONE.shift == 14);
