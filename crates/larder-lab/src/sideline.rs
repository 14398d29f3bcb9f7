//! Chunks whose refill found its buffer changed: kept for the next comer (VEE'05, section 5.1).

use core::cell::UnsafeCell;

use larder_sync::lock::Lock;

use crate::source::Chunk;

/// How many are kept. The paper saw 2.6 in a whole run; as many refills as CPUs can be interfered with at once.
const PLACES: usize = 64;

struct Kept {
    chunks: [Chunk; PLACES],
    count: usize,
}

/// Chunks for the next comer.
pub(crate) struct Sideline {
    lock: Lock,
    /// Sync: `lock`.
    kept: UnsafeCell<Kept>,
}

// SAFETY: `kept` is used under the lock.
unsafe impl Sync for Sideline {}

impl Sideline {
    pub(crate) const fn new() -> Self {
        let kept = Kept { chunks: [Chunk { start: 0, end: 0, epoch: 0 }; PLACES], count: 0 };
        Self { lock: Lock::new(), kept: UnsafeCell::new(kept) }
    }

    /// Nobody waits: a handler may have interrupted the holder, and all that is lost is a chance.
    fn with<R>(&self, f: impl FnOnce(&mut Kept) -> Option<R>) -> Option<R> {
        let _held = self.lock.try_lock()?;
        // SAFETY: the lock is held.
        f(unsafe { &mut *self.kept.get() })
    }

    /// Keeps a chunk; gives it back when there is no place.
    pub(crate) fn put(&self, chunk: Chunk) -> Result<(), Chunk> {
        self.with(|kept| {
            *kept.chunks.get_mut(kept.count)? = chunk;
            kept.count += 1;
            Some(())
        })
        .ok_or(chunk)
    }

    /// A chunk of this epoch with at least `least` bytes, the newest first.
    pub(crate) fn take(&self, least: usize, epoch: u64) -> Option<Chunk> {
        self.with(|kept| {
            let fits = |chunk: &Chunk| chunk.epoch == epoch && chunk.bytes().0 >= least;
            let found = kept.chunks[..kept.count].iter().rposition(fits)?;
            kept.count -= 1;
            kept.chunks.swap(found, kept.count);
            Some(kept.chunks[kept.count])
        })
    }

    /// Takes one, of whatever length and epoch.
    pub(crate) fn drain(&self) -> Option<Chunk> {
        self.with(|kept| {
            kept.count = kept.count.checked_sub(1)?;
            Some(kept.chunks[kept.count])
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_fits_and_is_of_the_epoch_comes_back() {
        let sideline = Sideline::new();
        let chunk = |start, bytes, epoch| Chunk { start, end: start + bytes, epoch };
        for kept in [chunk(1000, 64, 1), chunk(2000, 16, 2), chunk(3000, 64, 2)] {
            sideline.put(kept).unwrap();
        }
        assert_eq!(sideline.take(32, 2), Some(chunk(3000, 64, 2)));
        assert_eq!(sideline.take(32, 2), None);
        assert_eq!(sideline.drain().and_then(|_| sideline.drain()).and_then(|_| sideline.drain()), None);
    }

    #[test]
    fn a_full_sideline_gives_back_what_it_cannot_keep() {
        let sideline = Sideline::new();
        let chunk = Chunk { start: 16, end: 32, epoch: 0 };
        (0..PLACES).for_each(|_| sideline.put(chunk).unwrap());
        assert_eq!(sideline.put(chunk), Err(chunk));
    }
}
