//! Debug allocation: objects that know where they were made and notice when their edges are written over.
//!
//! | bytes of a cell | content |
//! |---|---|
//! | 0 to 31 | the header: file, line, size, and a word that depends on these three and the address |
//! | from 32 | the user's part, of the size that was asked for |
//! | up to the next word boundary, and the word there | guard: a pattern, then a word that depends on the address |
//! | the last word, where it is another one | the same word again |
//!
//! The layout and the messages are libgc's, but for two things: the guard begins with the byte behind the user's part,
//! where libgc's begins with the next word; and pointer-free objects have a kind of their own, so that a header that was
//! left in a cell by a dead object is never taken for that of a plain object that got the cell uncleared.
//!
//! Objects are checked when they are freed, and all of them in each cycle ([`crate::errors`]).
//!
//! **Freeing** an object that is collected leaves it where it is: its header says that it was freed, its content is written over, and a
//! cycle takes it once nobody refers to it. So whoever frees it a second time, by a pointer that a cycle sees, meets that header, and
//! never the object of another owner who has got the cell meanwhile. In the leak-finding mode objects are freed at once, as libgc
//! does it, but where the program delays that; uncollectable objects, which no cycle would take, always.

use core::ffi::{c_char, c_int, c_void};
use core::ptr;

use larder_fixed::finalization::{FinalizerFn, Order};
use larder_fixed::object::{self, Found};
use larder_fixed::{barrier, kind, lock, roots};

use crate::alloc::{GC_free, GC_malloc, allocate_or_told};
use crate::callbacks::abort;
use crate::data::{GC_debug_header_size, GC_find_leak, Int, Word};
use crate::finalize::{OldFinalizer, register};
use crate::kinds::{allocate_any, known};
use crate::object::extra_byte;
use crate::pointer_check::{GC_is_valid_displacement, GC_is_visible};
use crate::print::Text;
use crate::realloc::GC_realloc;
use crate::{error_line, errors};

const WORD: usize = size_of::<usize>();
/// Bytes before the user's part.
pub const HEADER: usize = size_of::<Header>();

/// Header words of live, of freed, and of guarded memory; each is combined with the address of the cell.
const LIVE: usize = 0x1a9d_e51f_b10c_4ed5;
const FREED: usize = 0x1a9d_e5f7_eed0_b1ec;
const GUARD: usize = 0x6a9d_ed9e_0fce_11e5;
/// What fills the bytes between the user's part and the guard word.
const PAD: u8 = 0xa5;
/// What fills the user's part of an object that was freed and is left to a cycle.
const DEAD: u8 = 0xdb;

/// Whether a debug function has allocated yet.
static STARTED: Int = Int::new(0);
/// The kind of pointer-free debug objects.
static POINTER_FREE: Int = Int::new(kind::POINTER_FREE as c_int);
/// Whether [`GC_debug_free`] in the leak-finding mode keeps the object, to see whether it is still written to.
static DELAY_FREE: Int = Int::new(0);
/// Bytes of objects that were freed since the last cycle and are left to the next one.
static HELD: Word = Word::new(0);

/// What a program says about the place of a call.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub file: *const c_char,
    pub line: c_int,
}

/// The words before the user's part.
#[repr(C)]
struct Header {
    file: *const c_char,
    line: usize,
    size: usize,
    check: usize,
}

const _: () = assert!(HEADER == 32);

impl Header {
    /// The check word that goes with the other three in this cell: a change of any of them shows, and so does a header that
    /// was left by an object in a cell of another size.
    fn sum(&self, cell: &Debugged, state: usize) -> usize {
        let own = self.file.addr().rotate_left(13) ^ self.line.rotate_left(29) ^ self.size.rotate_left(43);
        cell.base ^ cell.cell.rotate_left(51) ^ state ^ own
    }

    fn is(&self, cell: &Debugged, state: usize) -> bool {
        self.check == self.sum(cell, state)
    }
}

/// Whether any debug object was made, so that cycles look for damage.
pub fn is_started() -> bool {
    STARTED.is_set()
}

/// Delays the freeing of debug objects in the leak-finding mode.
pub fn delay_free() {
    DELAY_FREE.set(1);
}

/// Bytes of objects that were freed since the last cycle and take memory until the next one.
pub fn held() -> usize {
    HELD.get()
}

/// A cycle takes what was freed.
pub fn forget_held() {
    HELD.set(0);
}

/// The public number of a kind: pointer-free debug objects count as pointer-free.
pub fn public_kind(kind: usize) -> usize {
    if kind == POINTER_FREE.get() as usize { kind::POINTER_FREE } else { kind }
}

/// Prepares for the first debug object.
#[cold]
fn start() {
    crate::init::GC_init();
    roots::register_displacement(HEADER);
    if STARTED.set_if_zero() {
        // Without a kind to spare, the plain one must do. Cleared: a cycle may come between an allocation and its header, and the guard
        // of a dead object, in a block that had other cells meanwhile, must not look like that of a damaged one.
        if let Some(kind) = kind::new_kind(0, false, true) {
            POINTER_FREE.set(kind as c_int);
        }
        errors::watch();
    }
}

/// A debug object, in a cell that is allocated.
#[derive(Clone, Copy)]
pub struct Debugged {
    base: usize,
    cell: usize,
    kind: usize,
}

/// What is known about a debug object, copied out of it.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// The user's pointer.
    pub user: usize,
    pub file: *const c_char,
    pub line: usize,
    pub size: usize,
}

impl Debugged {
    /// The cell as a debug object, if it looks like one: by its header, or, where that was written over, by the last word.
    pub fn of(found: &Found) -> Option<Self> {
        let this = Self::in_cell(found);
        // Plain pointer-free cells are not cleared, and may have been debug objects in a block of another kind.
        let has_kind_of_its_own = POINTER_FREE.get() as usize != kind::POINTER_FREE;
        if found.size < HEADER + WORD || (found.kind == kind::POINTER_FREE && has_kind_of_its_own) {
            return None;
        }
        let ours = this.header().is(&this, LIVE) || this.is_freed();
        (ours || this.word(found.size - WORD) == GUARD ^ found.base).then_some(this)
    }

    /// The cell as that of a debug object, whatever it looks like.
    fn in_cell(found: &Found) -> Self {
        Self { base: found.base, cell: found.size, kind: found.kind }
    }

    fn at<T>(&self, offset: usize) -> *mut T {
        ptr::with_exposed_provenance_mut(self.base + offset)
    }

    fn header(&self) -> &Header {
        // SAFETY: the cell is allocated and large enough.
        unsafe { &*self.at(0) }
    }

    fn word(&self, offset: usize) -> usize {
        // SAFETY: the cell is allocated, and the offset is one of its words.
        unsafe { self.at::<usize>(offset).read() }
    }

    /// Writes header and guards. The cell is the caller's, and has room for `size` bytes and the guard.
    fn make(&self, size: usize, place: Place) {
        let mut header = Header { file: place.file, line: place.line as usize, size, check: 0 };
        header.check = header.sum(self, LIVE);
        let guard = (HEADER + size).next_multiple_of(WORD);
        // SAFETY: the caller's promise.
        unsafe {
            self.at::<Header>(0).write(header);
            self.at::<u8>(HEADER + size).write_bytes(PAD, guard - HEADER - size);
            self.at::<usize>(guard).write(GUARD ^ self.base);
            self.at::<usize>(self.cell - WORD).write(GUARD ^ self.base);
        }
    }

    /// Takes header and guards away: until it is freed it is an object like any other.
    fn unmake(&self) {
        // SAFETY: the cell is allocated, and its owner gives it up.
        unsafe {
            (*self.at::<Header>(0)).check = 0;
            self.at::<usize>(self.cell - WORD).write(0);
        }
    }

    /// Marks the object as freed, and writes over what it held. False where it is marked so already.
    fn hold(&self) -> bool {
        if self.is_freed() {
            return false;
        }
        let mut header = Header { check: 0, ..*self.header() };
        let most = self.cell - HEADER - WORD;
        if !self.header().is(self, LIVE) || header.size > most {
            // It was written over.
            header = Header { file: ptr::null(), line: 0, size: most, check: 0 };
        }
        header.check = header.sum(self, FREED);
        // SAFETY: the cell is allocated, and its owner gives it up.
        unsafe {
            if self.is_filled() {
                self.at::<u8>(HEADER).write_bytes(DEAD, header.size);
            }
            self.at::<Header>(0).write(header);
        }
        true
    }

    /// Whether the content is written over when the object is freed: not where a mark procedure or a description in the object reads it.
    fn is_filled(&self) -> bool {
        public_kind(self.kind) < kind::ELEMENTARY
    }

    /// Whether the object was freed, and is left to a cycle.
    pub fn is_freed(&self) -> bool {
        self.header().is(self, FREED)
    }

    /// The first place that was written over.
    pub fn smashed(&self) -> Option<usize> {
        let header = self.header();
        if !header.is(self, LIVE) && !self.is_freed() {
            return Some(self.base + HEADER - WORD);
        }
        if header.size > self.cell - HEADER - WORD {
            return Some(self.base + HEADER - 2 * WORD);
        }
        let end = HEADER + header.size;
        let guard = end.next_multiple_of(WORD);
        // SAFETY: bytes of the cell.
        let byte = |offset: usize| unsafe { self.at::<u8>(offset).read() };
        if self.is_freed()
            && self.is_filled()
            && let Some(offset) = (HEADER..end).find(|&offset| byte(offset) != DEAD)
        {
            return Some(self.base + offset);
        }
        (end..guard)
            .find(|&offset| byte(offset) != PAD)
            .or_else(|| [guard, self.cell - WORD].into_iter().find(|&offset| self.word(offset) != GUARD ^ self.base))
            .map(|offset| self.base + offset)
    }

    /// What the header says; with an unusable header, what the cell says.
    pub fn facts(&self) -> Facts {
        let header = self.header();
        let user = self.base + HEADER;
        let known = header.is(self, LIVE) || self.is_freed();
        if known && header.size <= self.cell - HEADER - WORD {
            return Facts { user, file: header.file, line: header.line, size: header.size };
        }
        Facts { user, file: ptr::null(), line: 0, size: self.cell - HEADER - WORD }
    }
}

/// Prints `what`, a place, and the object that it is in or near.
pub fn print_smashed(what: &str, place: usize, facts: &Facts) {
    let Facts { user, file, line, size } = *facts;
    if file.is_null() {
        error_line!("{what} {place:#x} in or near object at {user:#x}(<smashed>, appr. sz= {size})");
    } else {
        error_line!("{what} {place:#x} in or near object at {user:#x} ({}:{line}, sz= {size})", Text(file));
    }
}

/// Allocates a debug object of a kind.
fn allocate(kind: usize, bytes: usize, place: Place, function: &str) -> *mut c_void {
    allocate_or_tell(kind, bytes, place, function).0
}

/// As [`allocate`], and whether the object is new: what an out-of-memory function returns is the client's. Of uncollectable kinds nobody asks.
fn allocate_or_tell(kind: usize, bytes: usize, place: Place, function: &str) -> (*mut c_void, bool) {
    if !is_started() {
        start();
    }
    let kind = if kind == kind::POINTER_FREE { POINTER_FREE.get() as usize } else { kind };
    // The extra byte that the heap adds is the first of the guard.
    let wanted = bytes.checked_next_multiple_of(WORD).and_then(|bytes| bytes.checked_add(HEADER + WORD - extra_byte()));
    let wanted_or_most = wanted.unwrap_or(usize::MAX);
    let (cell, is_new) = if kind::uncollectable(kind) {
        (allocate_any(kind, wanted_or_most), true)
    } else {
        allocate_or_told(kind, wanted_or_most)
    };
    let file = Text(if place.file.is_null() { c"unknown".as_ptr() } else { place.file });
    if cell.is_null() {
        error_line!("{function}({bytes}) returning NULL ({file}:{})", place.line);
        return (cell, false);
    }
    // An out-of-memory function may have returned whatever it had.
    match object::cell(cell.addr()) {
        Some(found) if found.base == cell.addr() && found.size >= wanted_or_most => {
            // Under the lock that the collector holds: a cycle must not meet a header without its guards.
            lock::with(|| Debugged::in_cell(&found).make(bytes, Place { file: file.0, ..place }));
            (cell.wrapping_byte_add(HEADER), is_new)
        }
        _ => (cell, false),
    }
}

/// The bytes before the user's part of an object.
#[unsafe(no_mangle)]
pub extern "C" fn GC_get_debug_header_size() -> usize {
    GC_debug_header_size
}

macro_rules! debug_malloc {
    ($($name:ident => $kind:expr,)*) => {
        $(
            /// Allocates as the function without `debug` in its name does, with a header and guards.
            #[unsafe(no_mangle)]
            pub extern "C" fn $name(bytes: usize, file: *const c_char, line: c_int) -> *mut c_void {
                allocate($kind, bytes, Place { file, line }, stringify!($name))
            }
        )*
    };
}

debug_malloc! {
    GC_debug_malloc => kind::NORMAL,
    GC_debug_malloc_atomic => kind::POINTER_FREE,
    GC_debug_malloc_uncollectable => kind::UNCOLLECTABLE,
    GC_debug_malloc_atomic_uncollectable => kind::POINTER_FREE_UNCOLLECTABLE,
    GC_debug_malloc_stubborn => kind::NORMAL,
    GC_debug_malloc_ignore_off_page => kind::NORMAL,
    GC_debug_malloc_atomic_ignore_off_page => kind::POINTER_FREE,
}

/// Allocates an object of the kind of another one.
#[unsafe(no_mangle)]
pub extern "C" fn GC_debug_generic_or_special_malloc(
    bytes: usize,
    kind: c_int,
    file: *const c_char,
    line: c_int,
) -> *mut c_void {
    allocate(known(kind), bytes, Place { file, line }, "GC_debug_generic_or_special_malloc")
}

/// Allocates a gcj object with a header: the kind's mark procedure finds the user's part behind it.
///
/// # Safety
/// `structure` is what the kind's mark procedure expects.
pub unsafe fn gcj_malloc(kind: usize, bytes: usize, structure: *mut c_void, place: Place) -> *mut c_void {
    let (object, is_new) = allocate_or_tell(kind, bytes.max(WORD), place, "GC_debug_gcj_malloc");
    if is_new {
        // SAFETY: the first word of the new object's user part.
        unsafe { *object.cast::<*mut c_void>() = structure };
    }
    object
}

/// Where a call comes from that does not say it.
const UNKNOWN: Place = Place { file: c"unknown".as_ptr(), line: 0 };

/// Stands in for `malloc`.
#[unsafe(no_mangle)]
pub extern "C" fn GC_debug_malloc_replacement(bytes: usize) -> *mut c_void {
    allocate(kind::NORMAL, bytes, UNKNOWN, "GC_debug_malloc")
}

/// Stands in for `realloc`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GC_debug_realloc_replacement(object: *mut c_void, bytes: usize) -> *mut c_void {
    // SAFETY: passed on as they came.
    unsafe { GC_debug_realloc(object, bytes, UNKNOWN.file, UNKNOWN.line) }
}

/// What allocates a kind, as the message says where memory is out: libgc's `GC_debug_realloc` calls it.
fn function_for(kind: usize) -> &'static str {
    match kind {
        kind::POINTER_FREE => "GC_debug_malloc_atomic",
        kind::UNCOLLECTABLE => "GC_debug_malloc_uncollectable",
        kind::POINTER_FREE_UNCOLLECTABLE => "GC_debug_malloc_atomic_uncollectable",
        _ => "GC_debug_malloc",
    }
}

/// Changes an object's size: always moves it, so that stale pointers show.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GC_debug_realloc(
    old: *mut c_void,
    bytes: usize,
    file: *const c_char,
    line: c_int,
) -> *mut c_void {
    let place = Place { file, line };
    if old.is_null() {
        return allocate(kind::NORMAL, bytes, place, function_for(kind::NORMAL));
    }
    if bytes == 0 {
        // SAFETY: the caller gives the object up.
        unsafe { GC_debug_free(old) };
        return ptr::null_mut();
    }
    let Some(found) = object::cell(old.addr()).filter(|found| found.is_live) else {
        error_line!("Invalid pointer passed to realloc(): {old:p}");
        abort(c"Invalid pointer passed to realloc()")
    };
    let Some(debugged) = Debugged::of(&found) else {
        error_line!("GC_debug_realloc called on pointer {old:p} w/o debugging info");
        // SAFETY: passed on as they came.
        return unsafe { GC_realloc(old, bytes) };
    };
    let kind = public_kind(found.kind);
    let new = allocate(kind, bytes, place, function_for(kind));
    if !new.is_null() {
        // SAFETY: both have that many bytes, and the old object is the caller's to give up.
        unsafe {
            ptr::copy_nonoverlapping(old.cast::<u8>(), new.cast(), bytes.min(debugged.facts().size));
            GC_debug_free(old);
        }
    }
    new
}

/// Frees an object, and says where its edges were written over, or that it was freed before. What is collected is left to the next cycle
/// that finds it without a reference.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GC_debug_free(object: *mut c_void) {
    if object.is_null() {
        return;
    }
    let Some(found) = object::cell(object.addr()) else {
        if object::is_in_reach(object.addr()) {
            // Where a large object was.
            let facts = Facts { user: object.addr(), file: ptr::null(), line: 0, size: 0 };
            print_smashed("GC_debug_free: found previously deallocated (?) object at", object.addr(), &facts);
            return;
        }
        error_line!("Invalid pointer passed to free(): {object:p}");
        abort(c"Invalid pointer passed to free()")
    };
    // Whoever frees such an address means a debug object, even if nothing of its edges is left.
    let is_meant = object.addr() == found.base + HEADER && found.size >= HEADER + WORD;
    let debugged = Debugged::of(&found).or(is_meant.then(|| Debugged::in_cell(&found)));
    let is_second = || {
        let facts = Facts { user: object.addr(), file: ptr::null(), line: 0, size: found.size.saturating_sub(HEADER) };
        print_smashed("GC_debug_free: found previously deallocated (?) object at", found.base, &facts);
    };
    if !found.is_live || debugged.is_some_and(|debugged| debugged.is_freed()) {
        return is_second();
    }
    let (is_collected, finds_leaks) = (!kind::uncollectable(found.kind), GC_find_leak.is_set());
    let holds = match debugged.filter(|_| object.addr() == found.base + HEADER) {
        None => {
            error_line!("GC_debug_free called on pointer {object:p} w/o debugging info");
            is_collected && !finds_leaks
        }
        Some(debugged) => {
            if let Some(place) = debugged.smashed() {
                print_smashed("GC_debug_free: found smashed location at", place, &debugged.facts());
            }
            let holds = is_collected && (!finds_leaks || DELAY_FREE.is_set());
            // The lock as in `allocate`.
            if holds {
                barrier::vanishes(found.base, found.base + found.size);
                // Of two threads that free it at the same time, one is the second.
                if !lock::with(|| debugged.hold()) {
                    return is_second();
                }
            } else {
                lock::with(|| debugged.unmake());
            }
            holds
        }
    };
    if holds {
        return HELD.add(found.size);
    }
    // SAFETY: the base of an allocated object that the caller gives up.
    unsafe { GC_free(object.with_addr(found.base)) }
}

/// Copies `length` bytes and a zero into a pointer-free debug object.
///
/// # Safety
/// `text` is readable for `length` bytes.
unsafe fn copy(text: *const c_char, length: usize, place: Place) -> *mut c_char {
    let copy = allocate(kind::POINTER_FREE, length.saturating_add(1), place, "GC_debug_strdup").cast::<c_char>();
    // SAFETY: the caller's promise, and the new object has room for one byte more; the address of this thread's errno.
    unsafe {
        if copy.is_null() {
            *libc::__errno_location() = libc::ENOMEM;
        } else {
            ptr::copy_nonoverlapping(text, copy, length);
            *copy.add(length) = 0;
        }
    }
    copy
}

/// Copies a string. Null gives null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GC_debug_strdup(text: *const c_char, file: *const c_char, line: c_int) -> *mut c_char {
    if text.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: the caller passes a C string, which is readable for its length.
    unsafe { copy(text, libc::strlen(text), Place { file, line }) }
}

/// Copies the beginning of a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GC_debug_strndup(
    text: *const c_char,
    most: usize,
    file: *const c_char,
    line: c_int,
) -> *mut c_char {
    // SAFETY: the caller passes text that is readable up to its end or for `most` bytes.
    unsafe { copy(text, libc::strnlen(text, most), Place { file, line }) }
}

/// Makes a pointer that many bytes into an object count, with a header before it and without.
#[unsafe(no_mangle)]
pub extern "C" fn GC_debug_register_displacement(bytes: usize) {
    roots::register_displacement(bytes);
    roots::register_displacement(bytes + HEADER);
}

/// Stores a pointer, after checking that the place is visible to the collector and the pointer valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GC_debug_ptr_store_and_dirty(into: *mut c_void, value: *const c_void) {
    let into = GC_is_visible(into).cast::<*mut c_void>();
    let value = GC_is_valid_displacement(value.cast_mut());
    // SAFETY: the caller's place.
    unsafe { barrier::store(into.cast(), value.expose_provenance()) };
}

/// Exists for old clients.
#[unsafe(no_mangle)]
pub extern "C" fn GC_debug_change_stubborn(_object: *const c_void) {}

/// As `GC_end_stubborn_change`; that it is an object is checked.
#[unsafe(no_mangle)]
pub extern "C" fn GC_debug_end_stubborn_change(object: *const c_void) {
    if object::base(object.addr()).is_none() {
        error_line!("GC_debug_end_stubborn_change: bad arg: {object:p}");
        abort(c"GC_debug_end_stubborn_change: bad arg");
    }
    barrier::written(object::base(object.addr()).unwrap_or(object.addr()));
}

/// A finalizer of a debug object: what the program registered, in an object of its own that is the data of [`run`].
#[repr(C)]
struct Closure {
    finalizer: FinalizerFn,
    data: *mut c_void,
}

/// Stands for a finalizer that a registration has left as it was.
unsafe extern "C" fn unchanged(_: *mut c_void, _: *mut c_void) {}

/// Calls the program's finalizer with the user's pointer.
unsafe extern "C" fn run(base: *mut c_void, closure: *mut c_void) {
    // SAFETY: registered below with a closure, which the registration keeps.
    unsafe {
        let closure = closure.cast::<Closure>().read();
        (closure.finalizer)(base.byte_add(HEADER), closure.data);
    }
}

/// As [`register`], for an object with a header.
///
/// # Safety
/// `old` and `old_data` are null or places for the results.
unsafe fn register_debugged(
    object: *mut c_void,
    finalizer: Option<FinalizerFn>,
    data: *mut c_void,
    old: OldFinalizer,
    old_data: *mut *mut c_void,
    (order, function): (Order, &str),
) {
    // SAFETY: the caller's promise.
    let store = |finalizer: Option<FinalizerFn>, data: *mut c_void| unsafe {
        if !old.is_null() {
            *old = finalizer;
        }
        if !old_data.is_null() {
            *old_data = data;
        }
    };
    let Some(base) = object::base(object.addr()) else {
        // What is not in the heap never dies.
        return store(None, ptr::null_mut());
    };
    if object.addr() - base != HEADER {
        error_line!("{function} called with non-base-pointer {object:p}");
    }
    let base = object.with_addr(base);
    let (wrapper, closure) = match finalizer {
        None => (None, ptr::null_mut()),
        Some(finalizer) => {
            let closure = GC_malloc(size_of::<Closure>());
            if closure.is_null() {
                return;
            }
            // SAFETY: a new object of that size.
            unsafe { closure.cast::<Closure>().write(Closure { finalizer, data }) };
            (Some(run as FinalizerFn), closure)
        }
    };
    // What is not changed was not registered.
    let (mut before, mut closure_before) = (Some(unchanged as FinalizerFn), ptr::null_mut());
    // SAFETY: two places of this frame, which also keeps the old closure.
    unsafe { register(base, wrapper, closure, &mut before, &mut closure_before, order) };
    match before {
        Some(f) if ptr::fn_addr_eq(f, run as FinalizerFn) => {
            // SAFETY: registered above with a closure.
            let closure = unsafe { closure_before.cast::<Closure>().read() };
            store(Some(closure.finalizer), closure.data);
        }
        Some(f) if ptr::fn_addr_eq(f, unchanged as FinalizerFn) => {}
        Some(_) => error_line!("Debuggable object at {object:p} had a non-debug finalizer"),
        None => store(None, ptr::null_mut()),
    }
}

macro_rules! debug_register {
    ($(#[$doc:meta])* $name:ident => $order:expr) => {
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            object: *mut c_void,
            finalizer: Option<FinalizerFn>,
            data: *mut c_void,
            old: OldFinalizer,
            old_data: *mut *mut c_void,
        ) {
            // SAFETY: null or the caller's places.
            unsafe { register_debugged(object, finalizer, data, old, old_data, ($order, stringify!($name))) }
        }
    };
}

debug_register! {
    /// As `GC_register_finalizer`, for an object with a header.
    GC_debug_register_finalizer => Order::Normal
}
debug_register! {
    /// As `GC_register_finalizer_ignore_self`, for an object with a header.
    GC_debug_register_finalizer_ignore_self => Order::IgnoreSelf
}
debug_register! {
    /// As `GC_register_finalizer_no_order`, for an object with a header.
    GC_debug_register_finalizer_no_order => Order::NoOrder
}
debug_register! {
    /// As `GC_register_finalizer_unreachable`, for an object with a header.
    GC_debug_register_finalizer_unreachable => Order::Unreachable
}
