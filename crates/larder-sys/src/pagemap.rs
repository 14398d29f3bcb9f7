//! `PAGEMAP_SCAN` (Linux 6.7): asks the page tables, and protects what it tells in the same step.

use larder_units::PAGE;

use crate::memory::errno;
use crate::watch::WatchError;

/// `struct pm_scan_arg` of linux/fs.h.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Argument {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `struct page_region` of linux/fs.h.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

/// _IOWR('f', 16, struct pm_scan_arg)
const SCAN: libc::c_ulong = 0xc060_6610;
/// Protect what matches.
const WP_MATCHING: u64 = 1;
/// Fail unless the range is registered for asynchronous write protection.
const CHECK_WPASYNC: u64 = 2;

/// In a mapping that is registered for asynchronous write protection.
const WATCHED: u64 = 1 << 0;
/// Written since it was protected.
pub(crate) const WRITTEN: u64 = 1 << 1;
/// In memory.
pub(crate) const PRESENT: u64 = 1 << 3;
/// Swapped out.
const SWAPPED: u64 = 1 << 4;
/// The kernel's page of zeros: nobody wrote there, but somebody read.
const ZEROS: u64 = 1 << 5;
/// The soft-dirty bit is set.
pub(crate) const SOFT_DIRTY: u64 = 1 << 7;

/// Regions that one call returns: 6 KiB of stack.
const REGIONS: usize = 256;
/// Entries that one read returns: 4 KiB of stack.
const ENTRIES: usize = 512;

/// `/proc/thread-self/pagemap`, open. Once the main thread has ended, `/proc/self` knows no memory.
pub struct Pagemap(i32);

impl Pagemap {
    /// Opens it. A child of fork must not go on with its parent's, which shows the parent's memory.
    pub fn open() -> Result<Self, WatchError> {
        // SAFETY: a C string; the descriptor is closed when this is dropped.
        let fd = unsafe { libc::open(c"/proc/thread-self/pagemap".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
        if fd < 0 { Err(WatchError::of("open(/proc/thread-self/pagemap)")) } else { Ok(Self(fd)) }
    }

    /// Calls `f(from, to)` for each run of pages of that category; with `protect` they are write-protected first, in the
    /// step in which they were looked at.
    pub(crate) fn scan(
        &self,
        low: usize,
        high: usize,
        category: u64,
        protect: bool,
        f: &mut dyn FnMut(usize, usize),
    ) -> Result<(), WatchError> {
        let wanted = Argument {
            flags: if category == WRITTEN { CHECK_WPASYNC } else { 0 } | if protect { WP_MATCHING } else { 0 },
            category_mask: category,
            return_mask: category,
            ..Argument::default()
        };
        self.each(low, high, wanted, f)
    }

    /// Write-protects what of `[low, high)`, which is registered for asynchronous write protection, is in memory or swapped out. The rest
    /// counts as written once it is touched.
    pub(crate) fn protect(&self, low: usize, high: usize) -> Result<(), WatchError> {
        // Nobody is told which they were.
        let wanted = Argument { flags: CHECK_WPASYNC | WP_MATCHING, category_mask: WRITTEN, ..Argument::default() };
        self.each_in(&mut [], low, high, wanted, &mut |_| {})
    }

    /// Calls `f(from, to)`, in the order of addresses, for each run of pages between `low` and `high` that were written, or of which nobody knows,
    /// since they are not registered for asynchronous write protection. The kernel passes over the latter, mapping by mapping, and that costs little.
    #[inline(never)]
    pub(crate) fn scan_registered(
        &self,
        low: usize,
        high: usize,
        f: &mut dyn FnMut(usize, usize),
    ) -> Result<(), WatchError> {
        let wanted = Argument { category_mask: WATCHED, return_mask: WATCHED | WRITTEN, ..Argument::default() };
        // Beyond all that the kernel has told of.
        let mut known = low;
        self.each_in(&mut [Region::default(); REGIONS], low, high, wanted, &mut |region| {
            let (from, to) = (region.start as usize, region.end as usize);
            if known < from {
                f(known, from);
            }
            if region.categories & WRITTEN != 0 {
                f(from, to);
            }
            known = to;
        })?;
        if known < high {
            f(known, high);
        }
        Ok(())
    }

    /// Calls `f(from, to)`, page-aligned, in the order of addresses, for each run of pages of private memory that may hold something
    /// else than what they held when they were mapped: those that are in memory or swapped out, but for the kernel's page of zeros.
    /// Does not touch any. What follows the last run is not known after an error.
    ///
    /// Memory that is not here yet but does not read as it was mapped is not told: shared memory that another process writes to, and
    /// pages that a `userfaultfd` brings when they are first read.
    pub fn for_each_filled(&self, low: usize, high: usize, f: &mut dyn FnMut(usize, usize)) -> Result<(), WatchError> {
        let wanted = Argument {
            category_inverted: ZEROS,
            category_mask: ZEROS,
            category_anyof_mask: PRESENT | SWAPPED,
            ..Argument::default()
        };
        self.each(low / PAGE.0 * PAGE.0, high.next_multiple_of(PAGE.0), wanted, f)
    }

    // Its room of 6 KiB is to be in no frame of those that call others, of which each may be on a small stack.
    #[inline(never)]
    fn each(
        &self,
        low: usize,
        high: usize,
        wanted: Argument,
        f: &mut dyn FnMut(usize, usize),
    ) -> Result<(), WatchError> {
        let f = &mut |region: &Region| f(region.start as usize, region.end as usize);
        self.each_in(&mut [Region::default(); REGIONS], low, high, wanted, f)
    }

    /// As `each`, with room for the regions that one call returns.
    fn each_in(
        &self,
        regions: &mut [Region],
        low: usize,
        high: usize,
        wanted: Argument,
        f: &mut dyn FnMut(&Region),
    ) -> Result<(), WatchError> {
        let mut from = low;
        while from < high {
            let mut argument = Argument {
                size: size_of::<Argument>() as u64,
                start: from as u64,
                end: high as u64,
                vec: if regions.is_empty() { 0 } else { regions.as_mut_ptr().expose_provenance() as u64 },
                vec_len: regions.len() as u64,
                ..wanted
            };
            // SAFETY: the argument is the structure of the request, and names an array of as many regions.
            let n = unsafe { libc::ioctl(self.0, SCAN as _, &raw mut argument) };
            if n < 0 {
                if errno() == libc::EINTR {
                    continue;
                }
                return Err(WatchError::of("ioctl(PAGEMAP_SCAN)"));
            }
            regions[..n as usize].iter().for_each(&mut *f);
            from = argument.walk_end as usize;
        }
        Ok(())
    }

    /// As [`Pagemap::scan`] for the soft-dirty bit, by reading an entry for each page.
    #[inline(never)]
    pub(crate) fn read_soft_dirty(
        &self,
        low: usize,
        high: usize,
        f: &mut dyn FnMut(usize, usize),
    ) -> Result<(), WatchError> {
        /// Of an entry: the soft-dirty bit.
        const BIT: u64 = 1 << 55;
        let mut entries = [0u64; ENTRIES];
        let mut at = low;
        while at < high {
            let wanted = ((high - at) / PAGE.0).min(ENTRIES);
            let offset = (at / PAGE.0 * size_of::<u64>()) as libc::off_t;
            // SAFETY: the buffer has room for as many entries.
            let n = unsafe { libc::pread(self.0, entries.as_mut_ptr().cast(), wanted * size_of::<u64>(), offset) };
            if n != (wanted * size_of::<u64>()) as isize {
                return Err(WatchError::of("read(/proc/thread-self/pagemap)"));
            }
            for (i, _) in entries[..wanted].iter().enumerate().filter(|(_, entry)| *entry & BIT != 0) {
                f(at + i * PAGE.0, at + (i + 1) * PAGE.0);
            }
            at += wanted * PAGE.0;
        }
        Ok(())
    }
}

impl Drop for Pagemap {
    fn drop(&mut self) {
        // SAFETY: the descriptor is this value's own.
        unsafe { libc::close(self.0) };
    }
}
