//! A region of memory for each index, from which pieces are taken in order.

use crate::areas::{By, Options};
use crate::domain::Domain;
use crate::locked::Busy;
use crate::word::OpenPair;

/// Addresses from `frontier` to `limit`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Region {
    /// The first address.
    pub frontier: usize,
    /// One past the last.
    pub limit: usize,
}

impl Region {
    /// Bytes in it.
    pub const fn bytes(self) -> usize {
        self.limit.saturating_sub(self.frontier)
    }

    const fn from_words(words: [u64; 2]) -> Self {
        Self { frontier: words[0] as usize, limit: words[1] as usize }
    }

    const fn to_words(self) -> [u64; 2] {
        [self.frontier as u64, self.limit as u64]
    }
}

/// What no address and no size exceeds, so that no sum of two wraps around and seems to fit.
pub(super) const MOST: usize = isize::MAX as usize;

/// A region for each index: the allocation buffer of VEE'05 without what decides about its size.
///
/// A region that is exhausted is replaced by [`install`](Self::install). It looks at frontier and limit at once, so of
/// several threads that refill one index, one succeeds and the others keep what they brought.
pub struct BumpRegion {
    domain: Domain<OpenPair>,
}

impl BumpRegion {
    /// Without any region.
    pub const fn new(by: By) -> Self {
        Self { domain: Domain::new(by) }
    }

    /// Without any region, with options.
    pub const fn with(options: Options) -> Self {
        Self { domain: Domain::with(options) }
    }

    /// Takes `bytes` from the current index's region; `None` when it has too little left.
    #[inline(always)]
    pub fn take(&self, bytes: usize) -> Option<usize> {
        if bytes > MOST {
            return None;
        }
        // SAFETY: the area is the pair.
        let at = unsafe { self.domain.core().bump(0, bytes) };
        (at != 0).then_some(at)
    }

    /// As [`take`](Self::take), and stores `header` to the first word of what it takes: no moment in which the piece is
    /// taken and has no header, so a walk over the region always finds its way.
    ///
    /// # Safety
    /// The installed regions are writable memory, at multiples of 8, and `bytes` is at least 8.
    #[inline(always)]
    pub unsafe fn take_with_header(&self, bytes: usize, header: u64) -> Option<usize> {
        if bytes > MOST {
            return None;
        }
        // SAFETY: the area is the pair; the caller vouches for the memory.
        let at = unsafe { self.domain.core().bump_header(0, bytes, header) };
        (at != 0).then_some(at)
    }

    /// Makes `region` the current index's, if that has less than `bytes` left: returns what was left of the old one.
    ///
    /// Otherwise (somebody else was faster, or the thread moved) the region comes back, to be tried again or kept aside.
    ///
    /// Panics where the region ends in the upper half of the address space, which is the kernel's.
    pub fn install(&self, region: Region, bytes: usize) -> Result<Region, Region> {
        assert!(region.limit <= MOST, "a region up to {:#x}: no memory of a process lies there", region.limit);
        let core = self.domain.core();
        // Without an index of the kernel's, the calling thread's operations go to a shard.
        let Some(index) = core.current_index() else { return self.install_in_shard(region, bytes) };
        let seen = self.domain.area(index).load();
        if Region::from_words(seen).bytes() >= bytes {
            return Err(region);
        }
        // SAFETY: the area is the pair.
        match unsafe { core.compare_store_pair(0, seen, region.to_words()) } {
            0 => Ok(Region::from_words(seen)),
            // An index that is closed sends its threads to the shard.
            _ if self.domain.core().header(index).closed.load(core::sync::atomic::Ordering::Relaxed) != 0 => {
                self.install_in_shard(region, bytes)
            }
            _ => Err(region),
        }
    }

    /// Tries the shards: only the pair of the one that the operation comes to can agree.
    fn install_in_shard(&self, region: Region, bytes: usize) -> Result<Region, Region> {
        let first = self.domain.core().sequence_areas();
        for index in first..self.domain.areas() {
            let seen = self.domain.area(index).load();
            if Region::from_words(seen).bytes() < bytes
                // SAFETY: the area is the pair.
                && unsafe { self.domain.core().compare_store_pair(0, seen, region.to_words()) } == 0
            {
                return Ok(Region::from_words(seen));
            }
        }
        Err(region)
    }

    /// Takes away what an index has left, also one that other threads use now.
    pub fn retire(&self, index: usize) -> Result<Region, Busy> {
        self.domain.take_over(index, |pair| {
            let rest = Region::from_words(pair.load());
            pair.store(&**pair, [0, 0]);
            rest
        })
    }

    /// As [`retire`](Self::retire); sets a header that an aborted [`take_with_header`](Self::take_with_header) left at the
    /// frontier to zero again, so that what is returned is as zero as what was installed.
    ///
    /// # Safety
    /// As for [`take_with_header`](Self::take_with_header).
    pub unsafe fn retire_with_headers(&self, index: usize) -> Result<Region, Busy> {
        self.domain.take_over(index, |pair| {
            let rest = Region::from_words(pair.load());
            pair.store(&**pair, [0, 0]);
            if rest.bytes() >= size_of::<u64>() {
                // SAFETY: the memory above the frontier is the region's, writable by the caller's promise, and nobody's
                // since the take-over.
                unsafe { core::ptr::with_exposed_provenance_mut::<u64>(rest.frontier).write(0) };
            }
            rest
        })
    }

    /// The domain below.
    pub fn domain(&self) -> &Domain<OpenPair> {
        &self.domain
    }
}
