//! `csBegin` and its kin.

use core::ffi::{c_int, c_void};

use larder_percpu::{Statistics, paper};

use crate::handles::taken_over;

/// Sets the domain up when the library is loaded, so that a signal handler can be the first to use it.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = {
    extern "C" fn set_up() {
        // Where there is no address space, the first use says so.
        let _ = paper::DOMAIN.set_up();
    }
    set_up
};

#[unsafe(no_mangle)]
extern "C" fn csBegin() -> c_int {
    paper::begin() as c_int
}

#[unsafe(no_mangle)]
extern "C" fn csValid() -> c_int {
    paper::valid().into()
}

#[unsafe(no_mangle)]
extern "C" fn csEnd() {
    paper::end();
}

#[unsafe(no_mangle)]
extern "C" fn csInvalidate() {
    paper::invalidate();
}

#[unsafe(no_mangle)]
extern "C" fn csReopen() -> c_int {
    (!paper::reopen()).into()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn csST32C(at: *mut c_void, value: i32) -> c_int {
    // SAFETY: the header asks the caller for a writable, aligned place that only transactions write.
    unsafe { paper::store_32(at.cast(), value as u32) as c_int }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn csCAS32C(new: i32, old: i32, at: *mut c_void) -> c_int {
    // SAFETY: as in `csST32C`.
    unsafe { paper::compare_32(at.cast(), old as u32, new as u32) as c_int }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn csST64C(at: *mut c_void, value: i64) -> c_int {
    // SAFETY: as in `csST32C`.
    unsafe { paper::store_64(at.cast(), value as u64) as c_int }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn csCAS64C(new: i64, old: i64, at: *mut c_void) -> c_int {
    // SAFETY: as in `csST32C`.
    unsafe { paper::compare_64(at.cast(), old as u64, new as u64) as c_int }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn csCAS128C(new: *const [u64; 2], old: *const [u64; 2], at: *mut c_void) -> c_int {
    // SAFETY: as in `csST32C`; the header asks for two readable words each, and for 16-byte alignment.
    unsafe { paper::compare_pair(at.cast(), old.read(), new.read()) as c_int }
}

#[unsafe(no_mangle)]
extern "C" fn csTakeOver(index: c_int, f: extern "C" fn(*mut c_void), argument: *mut c_void) -> c_int {
    match usize::try_from(index) {
        Ok(index) if index < paper::indices() => taken_over(paper::take_over(index, || f(argument))),
        _ => libc::EINVAL,
    }
}

#[unsafe(no_mangle)]
extern "C" fn csIndices() -> c_int {
    paper::indices() as c_int
}

#[unsafe(no_mangle)]
extern "C" fn csMode() -> c_int {
    crate::handles::mode(&paper::DOMAIN)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn csStatistics(into: *mut Statistics) {
    // SAFETY: the header asks for a writable structure.
    unsafe { into.write(Statistics::of(&paper::DOMAIN)) };
}
