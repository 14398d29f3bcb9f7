//! Address space: reserve, commit, give back.

use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicBool, Ordering};

use larder_units::{Bytes, PAGE};

/// The kernel refused memory or address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReserveError {
    /// What was asked for.
    pub wanted: Bytes,
    /// The `errno` of the refusing call.
    pub errno: i32,
}

/// The calling thread's `errno`.
pub fn errno() -> i32 {
    // SAFETY: __errno_location returns a valid pointer in every thread.
    unsafe { *libc::__errno_location() }
}

/// Saves `errno` and puts it back when dropped: handlers and allocators must not change it.
pub struct KeepErrno(i32);

impl KeepErrno {
    /// Remembers the present value.
    pub fn new() -> Self {
        Self(errno())
    }
}

impl Default for KeepErrno {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for KeepErrno {
    fn drop(&mut self) {
        // SAFETY: as in `errno`.
        unsafe { *libc::__errno_location() = self.0 }
    }
}

fn map(size: Bytes, protection: i32, flags: i32) -> Result<NonNull<u8>, ReserveError> {
    // SAFETY: an anonymous mapping at an address of the kernel's choice touches no existing memory.
    let at = unsafe { libc::mmap(ptr::null_mut(), size.0, protection, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        return Err(ReserveError { wanted: size, errno: errno() });
    }
    NonNull::new(at.cast()).ok_or(ReserveError { wanted: size, errno: libc::ENOMEM })
}

/// Reserves inaccessible address space, aligned to `align` (a power of two).
pub fn reserve(size: Bytes, align: Bytes) -> Result<NonNull<u8>, ReserveError> {
    let padded = Bytes(size.0 + align.0);
    let raw = map(padded, libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE)?;
    let start = raw.as_ptr();
    let aligned = start.map_addr(|a| a.next_multiple_of(align.0));
    let head = aligned.addr() - start.addr();
    let tail = padded.0 - head - size.0;
    // SAFETY: both trimmed ranges lie inside the mapping just made and are unused.
    unsafe {
        if head > 0 {
            libc::munmap(start.cast(), head);
        }
        if tail > 0 {
            libc::munmap(aligned.add(size.0).cast(), tail);
        }
    }
    Ok(NonNull::new(aligned).expect("an aligned address inside a mapping is not null"))
}

/// What may be done with memory that is mapped at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Nothing until it is committed.
    Reserved,
    /// Reading and writing; it costs nothing until it is touched.
    Lazy,
}

/// Maps a page-aligned range where nothing is mapped: at that address or not at all.
pub fn map_at(address: usize, size: Bytes, access: Access) -> Result<(), ReserveError> {
    let protection = match access {
        Access::Reserved => libc::PROT_NONE,
        Access::Lazy => libc::PROT_READ | libc::PROT_WRITE,
    };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: the mapping replaces none.
    let at = unsafe { libc::mmap(ptr::without_provenance_mut(address), size.0, protection, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        return Err(ReserveError { wanted: size, errno: errno() });
    }
    if at.expose_provenance() != address {
        // Before Linux 4.17 the address is a mere hint.
        // SAFETY: the mapping was just made and nobody knows of it.
        unsafe { unmap(at.cast(), size) };
        return Err(ReserveError { wanted: size, errno: libc::EEXIST });
    }
    Ok(())
}

/// Maps zeroed memory that costs nothing until it is touched.
pub fn map_lazy(size: Bytes) -> Result<NonNull<u8>, ReserveError> {
    map(size, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE)
}

/// Whether code may run in memory that is committed from now on. Sync: set before the first commit; a setting.
static EXECUTABLE: AtomicBool = AtomicBool::new(false);

/// Chooses whether code may run in memory that [`commit`] makes accessible from now on.
pub fn commit_executable(on: bool) {
    EXECUTABLE.store(on, Ordering::Relaxed);
}

/// What committed memory is allowed beside reading and writing.
pub(crate) fn code_protection() -> i32 {
    if EXECUTABLE.load(Ordering::Relaxed) { libc::PROT_EXEC } else { 0 }
}

/// A page that reads as zero in every child of fork, however it was made. `None` before Linux 4.14.
pub fn map_wiped_on_fork() -> Option<NonNull<u8>> {
    let page = map_lazy(PAGE).ok()?;
    // SAFETY: the mapping was just made and nobody uses it.
    if unsafe { libc::madvise(page.as_ptr().cast(), PAGE.0, libc::MADV_WIPEONFORK) } != 0 {
        // SAFETY: as above.
        unsafe { unmap(page.as_ptr(), PAGE) };
        return None;
    }
    Some(page)
}

/// Makes a part of a reservation readable and writable; its content is zero where it was not committed before.
///
/// # Safety
/// The page-aligned range lies in a reservation that the caller owns.
pub unsafe fn commit(at: *mut u8, size: Bytes) -> Result<(), ReserveError> {
    // SAFETY: the caller owns the range.
    let r = unsafe { libc::mprotect(at.cast(), size.0, libc::PROT_READ | libc::PROT_WRITE | code_protection()) };
    if r == 0 { Ok(()) } else { Err(ReserveError { wanted: size, errno: errno() }) }
}

/// Gives the pages of a committed range back to the kernel; they read as zero afterwards.
///
/// # Safety
/// The page-aligned range belongs to the caller, and nobody needs its content.
pub unsafe fn discard(at: *mut u8, size: Bytes) {
    debug_assert!(at.addr().is_multiple_of(PAGE.0) && size.0.is_multiple_of(PAGE.0));
    // SAFETY: the caller owns the range and gives up its content.
    let r = unsafe { libc::madvise(at.cast(), size.0, libc::MADV_DONTNEED) };
    if r != 0 {
        // A locked range cannot be discarded (mlockall); the promise of zeroes still has to hold.
        // SAFETY: as above.
        unsafe { ptr::write_bytes(at, 0, size.0) };
    }
}

/// As [`discard`], for pages whose content nobody will look at: those that the kernel does not take, since they are locked, stay as they are.
///
/// # Safety
/// As there.
pub unsafe fn give_back(at: *mut u8, size: Bytes) {
    debug_assert!(at.addr().is_multiple_of(PAGE.0) && size.0.is_multiple_of(PAGE.0));
    // SAFETY: the caller owns the range and gives up its content.
    unsafe { libc::madvise(at.cast(), size.0, libc::MADV_DONTNEED) };
}

/// Gives memory to a range that others may be using already: its content does not change, and who touches it later need
/// not wait for the kernel. Where the kernel does not know how (before Linux 5.14) or has none, that may not be so: says whether it is.
///
/// # Safety
/// The page-aligned range is readable and writable, and stays mapped meanwhile.
pub unsafe fn back(at: *mut u8, size: Bytes) -> bool {
    debug_assert!(at.addr().is_multiple_of(PAGE.0) && size.0.is_multiple_of(PAGE.0));
    // SAFETY: the caller's promise; the content stays as it is.
    unsafe { libc::madvise(at.cast(), size.0, libc::MADV_POPULATE_WRITE) == 0 }
}

/// Writes to each page of a range that others may be using, and changes nothing.
///
/// # Safety
/// As for [`back`].
pub unsafe fn write_to_each_page(at: *mut u8, size: Bytes) {
    for page in (0..size.0).step_by(PAGE.0) {
        // One read-modify-write, which loses nothing that others write. As Rust has it, a compiler may leave out the write, since it changes nothing.
        // SAFETY: the caller's promise.
        unsafe {
            core::arch::asm!("lock or qword ptr [{at}], 0", at = in(reg) at.wrapping_add(page), options(nostack));
        }
    }
}

/// Whether every page of a page-aligned range of up to 64 pages has memory. For tests.
#[cfg(test)]
fn is_backed(at: *mut u8, size: Bytes) -> bool {
    let mut pages = [0u8; 64];
    // SAFETY: a byte for each page; a range that is not mapped is an error.
    let r = unsafe { libc::mincore(at.cast(), size.0, pages.as_mut_ptr().cast()) };
    r == 0 && pages[..size.0 / PAGE.0].iter().all(|page| page & 1 != 0)
}

/// Unmaps a range.
///
/// # Safety
/// The range is a whole mapping of the caller's, and nothing points into it any more.
pub unsafe fn unmap(at: *mut u8, size: Bytes) {
    // SAFETY: the caller owns the mapping.
    unsafe { libc::munmap(at.cast(), size.0) };
}

/// The address-space limit (`ulimit -v`), if there is one.
pub fn address_space_limit() -> Option<Bytes> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid for the call.
    let r = unsafe { libc::getrlimit(libc::RLIMIT_AS, &mut limit) };
    (r == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(Bytes(limit.rlim_cur as usize))
}

/// Whether the kernel counts writable memory when it is mapped, not when it is touched: overcommit is off, the data segment is
/// limited (`ulimit -d`), or the program has locked what it will map (`mlockall`), so that it is there at once.
pub fn is_counted_untouched() -> bool {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid for the call.
    let r = unsafe { libc::getrlimit(libc::RLIMIT_DATA, &mut limit) };
    let mut buffer = [0; 16];
    let mode = crate::env::read_file(c"/proc/sys/vm/overcommit_memory", &mut buffer);
    (r == 0 && limit.rlim_cur != libc::RLIM_INFINITY)
        || mode.is_some_and(|mode| mode.starts_with(b"2"))
        || is_there_at_once()
}

/// Whether memory is there when it is mapped, before anybody has touched it.
fn is_there_at_once() -> bool {
    let Ok(page) = map_lazy(PAGE) else { return false };
    let mut there = 0;
    // SAFETY: the mapping was just made, nobody knows of it, and it is one page, which takes one byte of the answer.
    let r = unsafe { libc::mincore(page.as_ptr().cast(), PAGE.0, &raw mut there) };
    // SAFETY: as above.
    unsafe { unmap(page.as_ptr(), PAGE) };
    r == 0 && there & 1 == 1
}

/// Physical memory of the machine.
pub fn physical_memory() -> Bytes {
    // SAFETY: sysconf has no preconditions.
    let pages = unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) };
    Bytes(pages.max(0) as usize * PAGE.0)
}

/// Creates a file (which must not exist: `EEXIST`) of `size` zero bytes and maps it to be shared with readers. Where that fails there is no file.
///
/// What nothing was written to takes no room yet: see [`has_room`].
pub fn create_shared_file(path: &core::ffi::CStr, size: Bytes) -> Result<NonNull<u8>, ReserveError> {
    let failed = || ReserveError { wanted: size, errno: errno() };
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid for the call.
    if unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) } == 0 && limit.rlim_cur < size.0 as libc::rlim_t {
        // The kernel would end the process by a signal (`ulimit -f`).
        return Err(ReserveError { wanted: size, errno: libc::EFBIG });
    }
    // SAFETY: `path` is a C string; the descriptor is closed again below.
    unsafe {
        let fd = libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC, 0o600);
        if fd < 0 {
            return Err(failed());
        }
        if libc::ftruncate(fd, size.0 as libc::off_t) != 0 {
            let e = failed();
            libc::close(fd);
            libc::unlink(path.as_ptr());
            return Err(e);
        }
        let at = libc::mmap(ptr::null_mut(), size.0, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, fd, 0);
        let e = failed();
        libc::close(fd);
        if at == libc::MAP_FAILED {
            libc::unlink(path.as_ptr());
            return Err(e);
        }
        NonNull::new(at.cast()).ok_or(e)
    }
}

/// Whether the pages of a file that is mapped at `at` have room on its file system, and keep it: a write where there is none ends the process by a
/// signal. Kernels before Linux 5.14 do not tell, and are believed to have it.
///
/// # Safety
/// `at` is the beginning of a page, and `size` bytes from there are mapped, writable, by a mapping that the caller owns.
pub unsafe fn has_room(at: *mut u8, size: Bytes) -> bool {
    // SAFETY: as the caller promises; the call changes no byte.
    let r = unsafe { libc::madvise(at.cast(), size.0, libc::MADV_POPULATE_WRITE) };
    r == 0 || matches!(errno(), libc::EINVAL | libc::ENOSYS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_written_to_and_keep_what_they_hold() {
        let size = Bytes(4 * PAGE.0);
        let at = map_lazy(size).unwrap().as_ptr();
        // SAFETY: the mapping is this test's own.
        unsafe {
            at.write(7);
            write_to_each_page(at, size);
            assert!(is_backed(at, size) && at.read() == 7 && at.add(PAGE.0).read() == 0);
            assert!(back(at, size));
            unmap(at, size);
        }
    }

    #[test]
    fn a_committed_reservation_is_aligned_zero_and_forgets_on_discard() {
        let align = Bytes::mib(2);
        let at = reserve(Bytes::mib(8), align).unwrap().as_ptr();
        assert_eq!(at.addr() % align.0, 0);
        // SAFETY: the reservation is this test's own.
        unsafe {
            commit(at, Bytes(8192)).unwrap();
            assert_eq!(*at.add(8191), 0);
            *at.add(4096) = 7;
            discard(at, Bytes(8192));
            assert_eq!(*at.add(4096), 0);
            unmap(at, Bytes::mib(8));
        }
    }

    #[test]
    fn a_range_that_was_backed_keeps_its_content() {
        let size = Bytes(16 * PAGE.0);
        let at = map_lazy(size).unwrap().as_ptr();
        // SAFETY: the mapping is this test's own.
        unsafe {
            // A huge page would give memory to all of it, where the kernel makes one of it and of neighbouring mappings.
            libc::madvise(at.cast(), size.0, libc::MADV_NOHUGEPAGE);
            at.add(5000).write(9);
            assert!(!is_backed(at, size));
            back(at, size);
            assert!(is_backed(at, size));
            assert_eq!((at.read(), at.add(5000).read()), (0, 9));
            unmap(at, size);
        }
    }

    #[test]
    fn a_wiped_page_is_zero_in_a_child_only() {
        let Some(page) = map_wiped_on_fork() else { return };
        // SAFETY: the page is this test's own; the child only reads and ends.
        unsafe {
            page.as_ptr().write(5);
            let child = libc::fork();
            if child == 0 {
                libc::_exit(i32::from(page.as_ptr().read()));
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            assert_eq!((libc::WEXITSTATUS(status), page.as_ptr().read()), (0, 5));
        }
    }

    #[test]
    fn what_is_mapped_at_an_address_replaces_nothing() {
        let both = reserve(Bytes(2 * PAGE.0), PAGE).unwrap().as_ptr();
        // SAFETY: the second page of this test's own reservation.
        unsafe { unmap(both.add(PAGE.0), PAGE) };
        assert_eq!(map_at(both.addr(), PAGE, Access::Lazy).unwrap_err().errno, libc::EEXIST);
        // Another test may have mapped something there meanwhile.
        if map_at(both.addr() + PAGE.0, PAGE, Access::Lazy).is_ok() {
            // SAFETY: the page is this test's own.
            unsafe {
                both.add(PAGE.0).write(3);
                assert_eq!(both.add(PAGE.0).read(), 3);
                unmap(both.add(PAGE.0), PAGE);
            }
        }
        // SAFETY: as above.
        unsafe { unmap(both, PAGE) };
    }

    #[test]
    fn an_impossible_reservation_says_what_it_wanted() {
        let wanted = Bytes(1 << 60);
        assert_eq!(reserve(wanted, PAGE).unwrap_err().wanted.0, wanted.0 + PAGE.0);
    }
}
