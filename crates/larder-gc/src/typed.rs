//! Objects with a description of where their pointers are: `gc_typed.h`.
//!
//! A description that fits in 62 words is an exact bitmap; a longer one is the length up to its last pointer, which
//! is conservative. libgc is exact there at the price of a table that only grows; nothing but the chance of keeping
//! garbage differs.

use core::ffi::c_void;

use larder_fixed::{kind, object};

use crate::alloc::{allocate_or_exhausted, out_of_memory_slow};
use crate::object::extra_byte;

const WORD: usize = size_of::<usize>();
const WORD_BITS: usize = usize::BITS as usize;
/// `GC_DS_BITMAP`: the low two bits say so, the others are the bitmap, the first word in the highest.
const BITMAP: usize = 1;
const TAGS: usize = 3;
/// The words that a bitmap describes.
const BITMAP_WORDS: usize = WORD_BITS - 2;

/// Makes a descriptor for objects whose word `i` may be a pointer where bit `i` is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GC_make_descriptor(bitmap: *const usize, bits: usize) -> usize {
    // SAFETY: the caller's bitmap has `bits` bits.
    let bit = |i: usize| unsafe { *bitmap.add(i / WORD_BITS) } >> (i % WORD_BITS) & 1 != 0;
    let Some(last) = (0..bits).rev().find(|&i| bit(i)) else {
        // A length of nothing: no pointers.
        return 0;
    };
    if last >= BITMAP_WORDS || (0..last).all(bit) {
        return (last + 1) * WORD;
    }
    (0..=last).filter(|&i| bit(i)).fold(BITMAP, |descriptor, i| descriptor | 1 << (WORD_BITS - 1 - i))
}

/// Allocates a zeroed object that is scanned by its descriptor, which is kept in the last word of its cell.
#[unsafe(no_mangle)]
pub extern "C" fn GC_malloc_explicitly_typed(bytes: usize, descriptor: usize) -> *mut c_void {
    // The descriptor's word takes the place of the extra byte.
    let object = allocate_or_exhausted(kind::TYPED, bytes.saturating_add(WORD - extra_byte()));
    if let Some(base) = object::base(object.addr()) {
        // SAFETY: the cell's last word, which the request above had room for. Until this store it is zero: no
        // pointers, and none are stored in the object yet.
        unsafe { *object.byte_add(object::size(base) - WORD).cast::<usize>() = descriptor };
    }
    object
}

/// As [`GC_malloc_explicitly_typed`]; the client's promise to keep a pointer near the start is not needed.
#[unsafe(no_mangle)]
pub extern "C" fn GC_malloc_explicitly_typed_ignore_off_page(bytes: usize, descriptor: usize) -> *mut c_void {
    GC_malloc_explicitly_typed(bytes, descriptor)
}

/// Allocates a zeroed array of elements that have the same descriptor. An array that a bitmap can describe is exact,
/// another one is scanned conservatively.
#[unsafe(no_mangle)]
pub extern "C" fn GC_calloc_explicitly_typed(count: usize, bytes: usize, descriptor: usize) -> *mut c_void {
    let Some(total) = count.checked_mul(bytes) else { return out_of_memory_slow(usize::MAX) };
    match array_descriptor(count, bytes, descriptor) {
        Some(descriptor) => GC_malloc_explicitly_typed(total, descriptor),
        None => allocate_or_exhausted(kind::NORMAL, total),
    }
}

/// The descriptor of `count` elements in a row, where a simple one exists.
fn array_descriptor(count: usize, bytes: usize, descriptor: usize) -> Option<usize> {
    if count == 1 || descriptor == 0 {
        return Some(descriptor);
    }
    let words = bytes / WORD;
    let is_whole = bytes.is_multiple_of(WORD);
    if !is_whole || descriptor & TAGS != BITMAP || count.checked_mul(words)? > BITMAP_WORDS {
        return None;
    }
    let element = descriptor & !TAGS;
    Some((0..count).fold(BITMAP, |all, i| all | element >> (i * words) & !TAGS))
}
