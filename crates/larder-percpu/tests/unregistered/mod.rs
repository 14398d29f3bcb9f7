//! Takes a thread's registration away: what a sandbox leaves behind that refuses it, or a library that undoes it.

use larder_sys::rseq_area;

/// Ends the calling thread's registration. Its `cpu_id` is negative then, and its concurrency id is 0. False where there are no
/// sequences.
pub fn unregister() -> bool {
    const SIGNATURE: u32 = 0x5305_3053;
    let Ok(area) = rseq_area::find() else { return false };
    let at = larder_sys::thread::thread_pointer().wrapping_offset(area.offset);
    [32, 64].into_iter().any(|length| {
        // SAFETY: the registered area of this thread.
        unsafe { libc::syscall(libc::SYS_rseq, at, length, 1, SIGNATURE) == 0 }
    })
}
