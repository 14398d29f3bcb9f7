//! Objects with a description of where their pointers are: `gc_typed.h`.
//!
//! | description | descriptor |
//! |---|---|
//! | no pointers | a length of 0 |
//! | nothing but pointers up to the last one | a length |
//! | up to 62 words | a bitmap |
//! | longer, or an array whose bitmap would be longer | the mark procedure below, whose environment is the address of a [`Layout`] |
//!
//! Layouts are never freed: a program makes one for each of its types. Where there is no memory for one, the object is
//! scanned conservatively up to its last pointer, which may keep garbage and never frees what is alive.

use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::ptr::{self, with_exposed_provenance};
use core::sync::atomic::{AtomicUsize, Ordering};

use larder_fixed::kind::Entry;
use larder_fixed::{kind, lock, object, roots};
use larder_sys::arena::Arena;
use larder_units::Bytes;

use crate::alloc::{allocate_or_exhausted, out_of_memory_slow};
use crate::object::extra_byte;

const WORD: usize = size_of::<usize>();
const WORD_BITS: usize = usize::BITS as usize;
/// `GC_DS_LENGTH`: nothing in the low two bits; the rest is a length in bytes.
const LENGTH: usize = 0;
/// `GC_DS_BITMAP`: the low two bits say so, the others are the bitmap, the first word in the highest.
const BITMAP: usize = 1;
/// `GC_DS_PROC`.
const PROC: usize = 2;
const TAGS: usize = 3;
/// The words that a bitmap describes.
const BITMAP_WORDS: usize = WORD_BITS - 2;

/// What the mark procedure knows about an object: a bitmap, and whether it repeats up to the object's end.
#[repr(C, align(16))]
struct Layout {
    next: *const Layout,
    /// The descriptor that an array's elements have, to find the layout again; 0 where it is not one of an array.
    element: usize,
    /// Words of an element, or of the whole.
    words: usize,
    repeats: bool,
    // The bitmap follows, a bit for each word.
}

impl Layout {
    fn bitmap(&self, word: usize) -> *mut usize {
        // SAFETY: a layout is followed by its bitmap.
        unsafe { ptr::from_ref(self).add(1).cast::<usize>().cast_mut().add(word) }
    }

    /// Whether word `i` of an element may be a pointer.
    fn bit(&self, i: usize) -> bool {
        // SAFETY: the bitmap has a bit for each word.
        unsafe { self.bitmap(i / WORD_BITS).read() >> (i % WORD_BITS) & 1 != 0 }
    }
}

struct Layouts {
    arena: Arena,
    arrays: *const Layout,
}

struct Guarded(UnsafeCell<Layouts>);
// SAFETY: used under the allocation lock.
unsafe impl Sync for Guarded {}

static LAYOUTS: Guarded = Guarded(UnsafeCell::new(Layouts { arena: Arena::new(), arrays: ptr::null() }));
/// The number of the mark procedure, 0 until it is registered. Sync: written under the allocation lock, once.
static PROCEDURE: AtomicUsize = AtomicUsize::new(0);

/// The mark procedure's number.
fn procedure() -> Option<usize> {
    // Relaxed: a number that stands for itself; the procedure was registered before anyone can use it.
    if PROCEDURE.load(Ordering::Relaxed) == 0 {
        // Two threads may come here together; then one of the numbers is never used.
        PROCEDURE.store(kind::new_proc(mark)?, Ordering::Relaxed);
    }
    Some(PROCEDURE.load(Ordering::Relaxed))
}

/// Marks what an object with a layout refers to.
unsafe extern "C" fn mark(start: *mut usize, stack: *mut Entry, limit: *mut Entry, environment: usize) -> *mut Entry {
    // SAFETY: descriptors with this procedure's number are made below, with a layout's address.
    let layout = unsafe { &*with_exposed_provenance::<Layout>(environment) };
    // The cell's last word is the descriptor.
    let words = object::size(start.addr()) / WORD - 1;
    let elements = if layout.repeats { words / layout.words } else { 1 };
    let mut top = stack;
    for element in 0..elements {
        for i in (0..layout.words).filter(|&i| layout.bit(i)) {
            let place = start.wrapping_add(element * layout.words + i);
            // SAFETY: a word of the object; the stack is the marker's.
            unsafe { top = roots::mark_and_push(place.read(), top, limit, place) };
        }
    }
    top
}

/// The descriptor of a layout: an existing one for the same elements, or a new one with the given bits.
fn layout_descriptor(words: usize, element: usize, repeats: bool, bit: impl Fn(usize) -> bool) -> Option<usize> {
    let procedure = procedure()?;
    let layout = lock::with(|| {
        // SAFETY: the lock makes this the only reference.
        let layouts = unsafe { &mut *LAYOUTS.0.get() };
        let mut at = layouts.arrays;
        // SAFETY: layouts are never freed.
        while let Some(known) = unsafe { at.as_ref() }.filter(|_| repeats) {
            if known.element == element && known.words == words {
                return Some(at);
            }
            at = known.next;
        }
        let bytes = size_of::<Layout>() + words.div_ceil(WORD_BITS) * WORD;
        let new = layouts.arena.allocate(Bytes(bytes), Bytes(16)).ok()?.as_ptr().cast::<Layout>();
        // SAFETY: new memory of that size, zeroed.
        unsafe {
            new.write(Layout { next: layouts.arrays, element, words, repeats });
            for i in (0..words).filter(|&i| bit(i)) {
                *(*new).bitmap(i / WORD_BITS) |= 1 << (i % WORD_BITS);
            }
        }
        if repeats {
            layouts.arrays = new;
        }
        Some(new.cast_const())
    })?;
    Some(layout.expose_provenance() << 8 | procedure << 2 | PROC)
}

/// The layout that a descriptor names, if it is one of ours.
fn layout_of(descriptor: usize) -> Option<&'static Layout> {
    let ours = descriptor & 0xff == PROCEDURE.load(Ordering::Relaxed) << 2 | PROC && descriptor >> 8 != 0;
    // SAFETY: made above, and never freed.
    ours.then(|| unsafe { &*with_exposed_provenance::<Layout>(descriptor >> 8) })
}

/// Makes a descriptor for objects whose word `i` may be a pointer where bit `i` is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GC_make_descriptor(bitmap: *const usize, bits: usize) -> usize {
    crate::init::GC_init();
    // SAFETY: the caller's bitmap has `bits` bits.
    let bit = |i: usize| unsafe { *bitmap.add(i / WORD_BITS) } >> (i % WORD_BITS) & 1 != 0;
    let Some(last) = (0..bits).rev().find(|&i| bit(i)) else {
        // A length of nothing: no pointers.
        return LENGTH;
    };
    let conservative = (last + 1) * WORD;
    if (0..last).all(bit) {
        return conservative;
    }
    if last >= BITMAP_WORDS {
        return layout_descriptor(last + 1, 0, false, bit).unwrap_or(conservative);
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

/// Allocates a zeroed array of elements that have the same descriptor.
#[unsafe(no_mangle)]
pub extern "C" fn GC_calloc_explicitly_typed(count: usize, bytes: usize, descriptor: usize) -> *mut c_void {
    let Some(total) = count.checked_mul(bytes) else { return out_of_memory_slow(usize::MAX) };
    match array_descriptor(count, bytes, descriptor) {
        Some(descriptor) => GC_malloc_explicitly_typed(total, descriptor),
        None => allocate_or_exhausted(kind::NORMAL, total),
    }
}

/// The descriptor of `count` elements in a row. `None` where they can only be scanned conservatively: elements that are no
/// whole number of words, or that a procedure of the client's scans.
fn array_descriptor(count: usize, bytes: usize, descriptor: usize) -> Option<usize> {
    if count <= 1 || descriptor == LENGTH {
        return Some(descriptor);
    }
    let words = bytes / WORD;
    if !bytes.is_multiple_of(WORD) || words == 0 {
        return None;
    }
    match descriptor & TAGS {
        LENGTH if descriptor >= bytes => None,
        LENGTH => layout_descriptor(words, descriptor, true, |i| i < descriptor / WORD),
        BITMAP => {
            let element = descriptor & !TAGS;
            let bit = |i: usize| i < BITMAP_WORDS && element << i >> (WORD_BITS - 1) != 0;
            if count.checked_mul(words)? > BITMAP_WORDS {
                return layout_descriptor(words, descriptor, true, bit);
            }
            Some((0..count).fold(BITMAP, |all, i| all | element >> (i * words) & !TAGS))
        }
        _ => {
            let element = layout_of(descriptor)?;
            layout_descriptor(words, descriptor, true, |i| i < element.words && element.bit(i))
        }
    }
}
