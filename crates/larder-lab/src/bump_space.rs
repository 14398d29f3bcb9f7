//! The simplest space: one range, a frontier that all advance by compare-and-swap.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use larder_units::Bytes;

use crate::source::{Chunk, ChunkSource, Request, Why};

/// The first word of a filled rest; the second, where there is one, is the rest's length in bytes.
pub const FILLER: u64 = 0x6669_6c6c_6564_2121;

/// A range of memory that is given out from its lower end. It never collects: [`BumpSpace::reset`] makes all of it free
/// again, in a stopped world.
pub struct BumpSpace {
    start: usize,
    end: usize,
    /// The next free address. Sync: `bump_space.top`.
    top: AtomicUsize,
    /// Sync: written in a stopped world.
    epoch: AtomicU64,
    /// Bytes that were filled since the last reset. Sync: a counter.
    filled: AtomicUsize,
    clears: bool,
}

impl BumpSpace {
    /// A space over `start..end`, which is word-aligned. With `clears` chunks are zeroed before objects are taken from them.
    ///
    /// # Safety
    /// The range is writable and belongs to the space as long as it is used.
    pub const unsafe fn new(start: usize, end: usize, clears: bool) -> Self {
        Self { start, end, top: AtomicUsize::new(start), epoch: AtomicU64::new(0), filled: AtomicUsize::new(0), clears }
    }

    /// What was obtained: from the beginning to here.
    pub fn used(&self) -> Bytes {
        Bytes(self.top.load(Ordering::Relaxed) - self.start)
    }

    /// Bytes that were filled since the last reset.
    pub fn filled(&self) -> Bytes {
        Bytes(self.filled.load(Ordering::Relaxed))
    }

    /// Makes everything free, in a new epoch.
    ///
    /// # Safety
    /// The world is stopped, all buffers were retired, and nobody uses an object of this space any more.
    pub unsafe fn reset(&self) {
        self.epoch.store(self.epoch.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        self.filled.store(0, Ordering::Relaxed);
        self.top.store(self.start, Ordering::Relaxed);
    }
}

// SAFETY: the compare-and-swap on `top` gives each byte to one caller in an epoch.
unsafe impl ChunkSource for BumpSpace {
    fn obtain(&self, request: Request) -> Option<Chunk> {
        let epoch = self.epoch();
        let mut top = self.top.load(Ordering::Relaxed);
        loop {
            let left = self.end - top;
            if left < request.least.0 {
                return None;
            }
            let end = top + left.min(request.most.0);
            // ORDER bump_space.top: Acquire, with the exchange in `give_back`: what the last owner of a rest wrote there is older.
            match self.top.compare_exchange_weak(top, end, Ordering::Acquire, Ordering::Relaxed) {
                Ok(start) => {
                    return Some(Chunk { start, end, epoch });
                }
                Err(now) => top = now,
            }
        }
    }

    fn prepare(&self, chunk: Chunk) {
        if self.clears {
            let at = core::ptr::with_exposed_provenance_mut::<u8>(chunk.start);
            // SAFETY: the chunk is the caller's.
            unsafe { core::ptr::write_bytes(at, 0, chunk.bytes().0) };
        }
    }

    unsafe fn give_back(&self, rest: Chunk, why: Why) {
        debug_assert_eq!(rest.epoch, self.epoch(), "a rest of memory that was collected");
        // ORDER bump_space.top: Release, with the exchange in `obtain`.
        let put_back = why == Why::Abandoned
            && self.top.compare_exchange(rest.end, rest.start, Ordering::Release, Ordering::Relaxed).is_ok();
        if put_back || rest.bytes().0 < size_of::<u64>() {
            return;
        }
        self.filled.fetch_add(rest.bytes().0, Ordering::Relaxed);
        let at = core::ptr::with_exposed_provenance_mut::<u64>(rest.start);
        // SAFETY: the rest is the caller's, and has a word, or two.
        unsafe {
            at.write(FILLER);
            if rest.bytes().0 >= 2 * size_of::<u64>() {
                at.add(1).write(rest.bytes().0 as u64);
            }
        }
    }

    fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Relaxed)
    }

    fn left(&self) -> Bytes {
        Bytes(self.end - self.top.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space(memory: &mut [u64]) -> BumpSpace {
        let range = memory.as_mut_ptr_range();
        // SAFETY: the memory outlives the space in each test.
        unsafe { BumpSpace::new(range.start.expose_provenance(), range.end.expose_provenance(), true) }
    }

    fn ask(least: usize, most: usize) -> Request {
        Request { least: Bytes(least), most: Bytes(most), may_collect: false }
    }

    #[test]
    fn the_last_chunk_is_shorter() {
        let mut memory = vec![7u64; 100];
        let space = space(&mut memory);
        let first = space.obtain(ask(8, 640)).unwrap();
        let second = space.obtain(ask(8, 640)).unwrap();
        assert_eq!((first.bytes(), second.bytes(), second.start), (Bytes(640), Bytes(160), first.end));
        assert_eq!((space.obtain(ask(8, 640)), space.left()), (None, Bytes(0)));
        space.prepare(second);
        assert!(memory[..80].iter().all(|&word| word == 7) && memory[80..].iter().all(|&word| word == 0));
    }

    #[test]
    fn the_rest_of_the_last_chunk_is_used_again_and_others_are_filled() {
        let mut memory = vec![0u64; 100];
        let space = space(&mut memory);
        let first = space.obtain(ask(80, 80)).unwrap().split(40).1;
        let second = space.obtain(ask(80, 80)).unwrap().split(40).1;
        // SAFETY: the rests are ours.
        unsafe {
            space.give_back(first, Why::Abandoned);
            space.give_back(second, Why::Abandoned);
        }
        assert_eq!((space.used(), space.filled()), (Bytes(120), Bytes(40)));
        assert_eq!(memory[5..7], [FILLER, 40]);
    }
}
