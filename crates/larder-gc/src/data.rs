//! The 35 variables that libgc exports, with its types, sizes and first values.
//!
//! Clients read and write them with plain loads and stores, some before `GC_init`, some after: Neko sets
//! `GC_all_interior_pointers` and `GC_no_dls`, ECL replaces `GC_push_other_roots`, Crystal stores into
//! `GC_stackbottom` on every switch of fibers. So each is read when it is used, and never copied at start only:
//! [`crate::init::sync_variables`] hands the present values to the heap before each decision to collect.
//!
//! A program may hold the variable itself (the linker copies it into the program); every access here goes through the
//! symbol, as the loader resolved it.
//!
//! The wrappers are the C types to the last byte, which is why they are made from the core library's atomics.

use core::cell::UnsafeCell;
use core::ffi::{c_char, c_int, c_void};
use core::marker::PhantomData;
use core::mem::transmute_copy;
use core::ptr;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicUsize, Ordering};

use crate::callbacks::{self, AbortFn, FinalizerNotifier, HeapResizeFn, OomFn, PushOtherRootsFn};
use crate::pointer_check::{self, PointerPrinter, SameObjectPrinter};

/// A C `int` that clients read and write.
#[repr(transparent)]
pub struct Int(AtomicI32);

impl Int {
    pub const fn new(value: c_int) -> Self {
        Self(AtomicI32::new(value))
    }

    pub fn get(&self) -> c_int {
        // Relaxed: clients store with plain instructions, so there is no release to pair with; the number stands for
        // itself.
        self.0.load(Ordering::Relaxed)
    }

    pub fn is_set(&self) -> bool {
        self.get() != 0
    }

    pub fn set(&self, value: c_int) {
        // ORDER gc.once: Release, with the exchange in `set_if_zero`; for all other variables it is more than needed.
        self.0.store(value, Ordering::Release);
    }

    /// Sets the variable to 1 if it is 0, and returns whether it was. Whoever gets true is the only one.
    pub fn set_if_zero(&self) -> bool {
        // ORDER gc.once: acquire and release, with itself and with the store of 0 by whoever got true: what that thread did
        // before it is seen. Weaker, a second thread could see the first one's work half done.
        self.0.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Adds and returns the new value.
    pub fn add(&self, change: c_int) -> c_int {
        // Relaxed: a counter; the heap is told under the allocation lock.
        self.0.fetch_add(change, Ordering::Relaxed).wrapping_add(change)
    }
}

/// A `GC_word` that clients read and write.
#[repr(transparent)]
pub struct Word(AtomicUsize);

impl Word {
    pub const fn new(value: usize) -> Self {
        Self(AtomicUsize::new(value))
    }

    pub fn get(&self) -> usize {
        // Relaxed: as in `Int::get`.
        self.0.load(Ordering::Relaxed)
    }

    pub fn set(&self, value: usize) {
        // Relaxed: as in `Int::get`.
        self.0.store(value, Ordering::Relaxed);
    }
}

impl Word {
    /// Adds, or with a complement subtracts, as C does.
    pub fn add(&self, change: usize) {
        // Relaxed: a counter.
        self.0.fetch_add(change, Ordering::Relaxed);
    }
}

/// A variable that holds a function of type `F`, or null.
#[repr(transparent)]
pub struct Function<F> {
    address: AtomicPtr<c_void>,
    signature: PhantomData<fn() -> F>,
}

impl<F: Copy> Function<F> {
    const IS_A_POINTER: () = assert!(size_of::<F>() == size_of::<*mut c_void>());

    pub const fn none() -> Self {
        Self { address: AtomicPtr::new(ptr::null_mut()), signature: PhantomData }
    }

    pub const fn new(first: F) -> Self {
        let () = Self::IS_A_POINTER;
        // SAFETY: `F` is a function pointer: one address, which is not null.
        Self { address: AtomicPtr::new(unsafe { transmute_copy(&first) }), signature: PhantomData }
    }

    pub fn get(&self) -> Option<F> {
        // Relaxed: the address of code, which is there before anyone can name it.
        let address = self.address.load(Ordering::Relaxed);
        // SAFETY: whoever stores here, this crate or a client, stores null or a function of this type.
        (!address.is_null()).then(|| unsafe { transmute_copy(&address) })
    }

    pub fn set(&self, function: Option<F>) {
        // SAFETY: as in `new`.
        let address = function.map_or(ptr::null_mut(), |function| unsafe { transmute_copy(&function) });
        // Relaxed: as in `get`.
        self.address.store(address, Ordering::Relaxed);
    }
}

/// An address in this library that clients may read. They find empty lists there.
#[repr(transparent)]
pub struct Place(*const u8);

// SAFETY: an address that never changes; what lies there is only ever zero.
unsafe impl Sync for Place {}

/// Memory that clients of libgc's internals may look at; Larder keeps nothing in it.
#[repr(C, align(32))]
pub struct Arrays(UnsafeCell<[u8; ARRAYS_BYTES]>);

/// The size of libgc's structure.
const ARRAYS_BYTES: usize = 182_768;

// SAFETY: this library only ever takes its address.
unsafe impl Sync for Arrays {}

/// How clients look for interior pointers: 1 until someone says otherwise.
#[unsafe(no_mangle)]
pub static GC_all_interior_pointers: Int = Int::new(1);
/// Whether a cycle comes before the heap grows.
#[unsafe(no_mangle)]
pub static GC_dont_expand: Int = Int::new(0);
/// How often collecting has been disabled; nothing is collected while it is not 0.
#[unsafe(no_mangle)]
pub static GC_dont_gc: Int = Int::new(0);
/// Accepted; Larder never collects while it is initialised.
#[unsafe(no_mangle)]
pub static GC_dont_precollect: Int = Int::new(0);
/// Whether finalizers wait for `GC_invoke_finalizers`.
#[unsafe(no_mangle)]
pub static GC_finalize_on_demand: Int = Int::new(0);
/// Whether objects that become unreachable without having been freed are reported.
#[unsafe(no_mangle)]
pub static GC_find_leak: Int = Int::new(0);
/// Young cycles between two full ones, where somebody has set it and cycles mark beside the program.
#[unsafe(no_mangle)]
pub static GC_full_freq: Int = Int::new(19);
/// The kind of `GC_debug_gcj_malloc`, 0 until `GC_init_gcj_malloc`.
#[unsafe(no_mangle)]
pub static GC_gcj_debug_kind: Int = Int::new(0);
/// The kind of `GC_gcj_malloc`, 0 until `GC_init_gcj_malloc`.
#[unsafe(no_mangle)]
pub static GC_gcj_kind: Int = Int::new(0);
/// Whether an object of `GC_register_finalizer_unreachable` waits while a queued object without order reaches it. What
/// queued objects refer to is kept either way.
#[unsafe(no_mangle)]
pub static GC_java_finalization: Int = Int::new(1);
/// Whether the data of loaded libraries is not searched for roots.
#[unsafe(no_mangle)]
pub static GC_no_dls: Int = Int::new(0);
/// The number of markers but one.
#[unsafe(no_mangle)]
pub static GC_parallel: Int = Int::new(0);
/// Whether no cycle comes before the heap, as large as it is, is used up.
#[unsafe(no_mangle)]
pub static GC_use_entire_heap: Int = Int::new(0);

/// The bytes that debug allocation puts before an object.
#[unsafe(no_mangle)]
pub static GC_debug_header_size: usize = crate::debug::HEADER;
/// The divisor of libgc's rule for when to collect.
#[unsafe(no_mangle)]
pub static GC_free_space_divisor: Word = Word::new(3);
/// The number of cycles so far.
#[unsafe(no_mangle)]
pub static GC_gc_no: Word = Word::new(0);
/// Accepted; a full heap is collected before memory is reported as exhausted.
#[unsafe(no_mangle)]
pub static GC_max_retries: Word = Word::new(0);
/// Bytes in uncollectable objects, and what the client adds.
#[unsafe(no_mangle)]
pub static GC_non_gc_bytes: Word = Word::new(0);
/// Milliseconds that a pause of cycles beside the program should last at most; libgc's `GC_TIME_UNLIMITED` for the usual one.
#[unsafe(no_mangle)]
pub static GC_time_limit: Word = Word::new(999_999);
/// No address below this one is in the heap.
#[unsafe(no_mangle)]
pub static GC_least_plausible_heap_addr: Word = Word::new(usize::MAX);
/// No address above this one is in the heap.
#[unsafe(no_mangle)]
pub static GC_greatest_plausible_heap_addr: Word = Word::new(0);

/// Where the main thread's stack begins. The heap reads it at each cycle.
#[unsafe(no_mangle)]
pub static GC_stackbottom: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());

/// Called when finalizers wait and [`GC_finalize_on_demand`] is set.
#[unsafe(no_mangle)]
pub static GC_finalizer_notifier: Function<FinalizerNotifier> = Function::none();
/// Called before the process is stopped.
#[unsafe(no_mangle)]
pub static GC_on_abort: Function<AbortFn> = Function::new(callbacks::print_and_return);
/// Called when the heap has grown by another step; never when it shrinks.
#[unsafe(no_mangle)]
pub static GC_on_heap_resize: Function<HeapResizeFn> = Function::none();
/// Called when there is no memory; its result is returned to the caller.
#[unsafe(no_mangle)]
pub static GC_oom_fn: Function<OomFn> = Function::new(callbacks::return_null);
/// Called in each cycle to find roots that only the client knows.
#[unsafe(no_mangle)]
pub static GC_push_other_roots: Function<PushOtherRootsFn> = Function::new(callbacks::push_nothing);
/// Called by `GC_is_valid_displacement` when it is not.
#[unsafe(no_mangle)]
pub static GC_is_valid_displacement_print_proc: Function<PointerPrinter> =
    Function::new(pointer_check::invalid_displacement);
/// Called by `GC_is_visible` when it is not.
#[unsafe(no_mangle)]
pub static GC_is_visible_print_proc: Function<PointerPrinter> = Function::new(pointer_check::not_visible);
/// Called by `GC_same_obj` when they are not.
#[unsafe(no_mangle)]
pub static GC_same_obj_print_proc: Function<SameObjectPrinter> = Function::new(pointer_check::not_the_same);

/// Zeroes.
#[unsafe(no_mangle)]
pub static GC_arrays: Arrays = Arrays(UnsafeCell::new([0; ARRAYS_BYTES]));
/// Empty lists.
#[unsafe(no_mangle)]
pub static GC_aobjfreelist_ptr: Place = Place((&raw const GC_arrays).cast());
/// Empty lists.
#[unsafe(no_mangle)]
pub static GC_auobjfreelist_ptr: Place = Place((&raw const GC_arrays).cast());
/// Empty lists.
#[unsafe(no_mangle)]
pub static GC_objfreelist_ptr: Place = Place((&raw const GC_arrays).cast());
/// Empty lists.
#[unsafe(no_mangle)]
pub static GC_uobjfreelist_ptr: Place = Place((&raw const GC_arrays).cast());

/// The first bytes of [`GC_arrays`], as an array of empty lists for whoever asks for one.
pub fn empty_lists() -> *mut *mut c_void {
    (&raw const GC_arrays).cast_mut().cast()
}

/// A message for [`GC_on_abort`].
pub type Message = *const c_char;
