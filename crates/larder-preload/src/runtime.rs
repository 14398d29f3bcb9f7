//! The way to the runtime, and to the C library's own functions.

use core::ffi::{CStr, c_int, c_long, c_void};
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use larder_threads::interposed::{Anchor, Table};

/// What the runtime looks for when it is initialised. The number is its version, and that of the table which the runtime puts there.
#[unsafe(no_mangle)]
pub static larder_preload_5: Anchor = Anchor { table: AtomicPtr::new(ptr::null_mut()), look_all_up };

/// The runtime's table, if there is a runtime.
pub fn table() -> Option<&'static Table> {
    // ORDER interposed.table: Acquire, with the store in `interposed::attach`.
    let table = larder_preload_5.table.load(Ordering::Acquire);
    // SAFETY: the anchor holds null or the address of a static of a library that is never unloaded.
    unsafe { table.as_ref() }
}

/// A function of the C library under an interposed name.
#[repr(C)]
pub struct Next {
    /// Its address, 0 until it is looked up. The first field: assembly reads it.
    ///
    /// Sync: every thread that stores here stores the same.
    address: AtomicUsize,
    name: &'static CStr,
    /// The version that programs of today ask for, where there are several.
    version: Option<&'static CStr>,
}

impl Next {
    /// The function `name`, of the `version` given or the C library's own choice.
    pub const fn new(name: &'static CStr, version: Option<&'static CStr>) -> Self {
        Self { address: AtomicUsize::new(0), name, version }
    }

    /// As [`new`](Self::new), for a name that ends with a zero.
    pub const fn of(name: &'static str, version: Option<&'static CStr>) -> Self {
        match CStr::from_bytes_with_nul(name.as_bytes()) {
            Ok(name) => Self::new(name, version),
            Err(_) => panic!("a name ends with its only zero"),
        }
    }

    /// Its address. A C library that has no such function gets one that fails with ENOSYS.
    #[inline]
    pub fn address(&self) -> usize {
        match self.address.load(Ordering::Relaxed) {
            0 => self.look_up(),
            known => known,
        }
    }

    /// Asks the loader. All are looked up when the runtime begins, or when this object is initialised; earlier calls come from initialisers of
    /// other libraries.
    #[cold]
    pub fn look_up(&self) -> usize {
        // SAFETY: the names are terminated.
        let (next, of_version) = unsafe {
            let next = libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr());
            let of_version = self.version.map(|it| libc::dlvsym(libc::RTLD_NEXT, self.name.as_ptr(), it.as_ptr()));
            (next, of_version.unwrap_or(next))
        };
        // C libraries before 2.36 give the oldest of several versions where none is named. But where one is named, the loader passes over objects
        // that have the function without versions, as sanitizers and what a program preloads itself have: those come before the C library.
        // Mostly both are one function, and nobody need ask where it is: for all names that took twice as long as the rest of a process's start.
        let is_passed_over = || of_version.is_null() || object_of(next) != object_of(of_version);
        let found = if next == of_version || is_passed_over() { next } else { of_version };
        let address = if found.is_null() { absent as *const () as usize } else { found.addr() };
        self.address.store(address, Ordering::Relaxed);
        address
    }
}

/// Where the object begins that the function is in.
fn object_of(function: *const c_void) -> *mut c_void {
    // SAFETY: dladdr takes any address and fills in a record, of which zeroes are a value.
    unsafe {
        let mut facts: libc::Dl_info = core::mem::zeroed();
        libc::dladdr(function, &mut facts);
        facts.dli_fbase
    }
}

/// [`Next::look_up`] for assembly.
pub extern "C" fn look_up(next: &Next) -> usize {
    next.look_up()
}

/// Instructions with which a stub calls a function of ours before it goes on to the C library's: around them the six argument registers are kept, on the
/// stack, which is aligned for calls before, and described to unwinders.
macro_rules! keeping_arguments {
    ($($instruction:tt)*) => {
        concat!(
            "push rdi\n .cfi_adjust_cfa_offset 8\n",
            "push rsi\n .cfi_adjust_cfa_offset 8\n",
            "push rdx\n .cfi_adjust_cfa_offset 8\n",
            "push rcx\n .cfi_adjust_cfa_offset 8\n",
            "push r8\n .cfi_adjust_cfa_offset 8\n",
            "push r9\n .cfi_adjust_cfa_offset 8\n",
            $($instruction)*,
            "\n",
            "pop r9\n .cfi_adjust_cfa_offset -8\n",
            "pop r8\n .cfi_adjust_cfa_offset -8\n",
            "pop rcx\n .cfi_adjust_cfa_offset -8\n",
            "pop rdx\n .cfi_adjust_cfa_offset -8\n",
            "pop rsi\n .cfi_adjust_cfa_offset -8\n",
            "pop rdi\n .cfi_adjust_cfa_offset -8",
        )
    };
}
pub(crate) use keeping_arguments;

/// Stands for a function that the C library does not have.
extern "C" fn absent() -> c_long {
    // SAFETY: the address of the calling thread's own variable.
    unsafe { *libc::__errno_location() = libc::ENOSYS };
    c_long::from(-1 as c_int)
}

/// Looks up what was not looked up yet, under the loader's lock. A thread that the collector has stopped may hold that one, so by then everything
/// is found.
extern "C" fn look_all_up() {
    let lists = [
        crate::calls::ALL,
        crate::calls::ALL_WITH_SET,
        crate::locks::ALL,
        crate::children::ALL,
        crate::handlers::ALL,
        crate::masks::ALL,
    ];
    lists.into_iter().flatten().for_each(|next| {
        next.address();
    });
}

#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = look_all_up;
