//! `userfaultfd` with asynchronous write protection: the kernel notes a write to a protected page by taking the
//! protection away, and tells by `PAGEMAP_SCAN` which pages have lost it.
//!
//! No thread handles faults and no signal is sent. Faults in system calls are settled the same way, so the descriptor may be one
//! without privilege (`UFFD_USER_MODE_ONLY`): that restricts who is *told* of faults, and nobody is.
//!
//! The whole range is registered once, inaccessible parts included. Pages that have no memory when a watch begins are
//! marked as protected as well, so their first touch is noted; pages beyond what was protected count as written once they
//! were touched.

use super::WatchError;
use super::pagemap::{Pagemap, WRITTEN};

const USER_MODE_ONLY: i32 = 1;
const API: u64 = 0xaa;
/// _IOWR(0xaa, 0x3f, struct uffdio_api)
const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
/// _IOWR(0xaa, 0x00, struct uffdio_register)
const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
/// _IOWR(0xaa, 0x06, struct uffdio_writeprotect)
const UFFDIO_WRITEPROTECT: libc::c_ulong = 0xc018_aa06;
const REGISTER_MODE_WP: u64 = 1 << 1;
const WRITEPROTECT_MODE_WP: u64 = 1 << 0;
const FEATURE_WP_ASYNC: u64 = 1 << 15;

#[repr(C)]
struct ApiRequest {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct RegisterRequest {
    start: u64,
    length: u64,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct ProtectRequest {
    start: u64,
    length: u64,
    mode: u64,
}

/// The descriptor by which a range is registered; closing it ends that.
pub struct Uffd {
    descriptor: i32,
    pagemap: Pagemap,
}

impl Uffd {
    pub fn attach(low: usize, high: usize) -> Result<Self, WatchError> {
        let pagemap = Pagemap::open()?;
        // SAFETY: takes flags only.
        let descriptor = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | USER_MODE_ONLY) } as i32;
        if descriptor < 0 {
            return Err(WatchError::of("userfaultfd"));
        }
        // From here on dropping closes it.
        let uffd = Self { descriptor, pagemap };
        let mut api = ApiRequest { api: API, features: FEATURE_WP_ASYNC, ioctls: 0 };
        // SAFETY: the structure of the request.
        if unsafe { libc::ioctl(descriptor, UFFDIO_API as _, &raw mut api) } != 0 {
            return Err(WatchError::of("ioctl(UFFDIO_API, asynchronous write protection)"));
        }
        let mut range =
            RegisterRequest { start: low as u64, length: (high - low) as u64, mode: REGISTER_MODE_WP, ioctls: 0 };
        // SAFETY: the structure of the request; the range is the caller's.
        if unsafe { libc::ioctl(descriptor, UFFDIO_REGISTER as _, &raw mut range) } != 0 {
            return Err(WatchError::of("ioctl(UFFDIO_REGISTER)"));
        }
        Ok(uffd)
    }

    pub fn protect(&self, low: usize, high: usize, on: bool) -> Result<(), WatchError> {
        if low >= high {
            return Ok(());
        }
        let mode = if on { WRITEPROTECT_MODE_WP } else { 0 };
        let mut range = ProtectRequest { start: low as u64, length: (high - low) as u64, mode };
        loop {
            // SAFETY: the structure of the request; the range is registered.
            if unsafe { libc::ioctl(self.descriptor, UFFDIO_WRITEPROTECT as _, &raw mut range) } == 0 {
                return Ok(());
            }
            // The address space is being changed: once more.
            if !matches!(crate::memory::errno(), libc::EAGAIN | libc::EINTR) {
                return Err(WatchError::of("ioctl(UFFDIO_WRITEPROTECT)"));
            }
        }
    }

    pub fn fetch(
        &self,
        low: usize,
        high: usize,
        clean: bool,
        f: &mut dyn FnMut(usize, usize),
    ) -> Result<(), WatchError> {
        self.pagemap.scan(low, high, WRITTEN, clean, f)
    }
}

impl Drop for Uffd {
    fn drop(&mut self) {
        // SAFETY: the descriptor is this value's own.
        unsafe { libc::close(self.descriptor) };
    }
}
