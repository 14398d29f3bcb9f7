//! System calls that leave `errno` alone.

/// Makes a system call, returns its result or its error, and leaves `errno` as it was: a handler may wait in the middle
/// of code that is about to read it.
pub(crate) fn keep_errno(call: impl FnOnce() -> libc::c_long) -> Result<libc::c_long, i32> {
    // SAFETY: the location is valid in every thread, for its whole life.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above, and no other thread writes it.
    let before = unsafe { errno.read() };
    let result = call();
    if result >= 0 {
        return Ok(result);
    }
    // SAFETY: as above.
    let error = unsafe { errno.read() };
    // SAFETY: as above.
    unsafe { errno.write(before) };
    Err(error)
}
