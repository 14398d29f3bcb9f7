//! Tables of words in memory of their own: roots that both the heap and the verifier know, or words that nobody scans.

use core::sync::atomic::{AtomicUsize, Ordering};

use larder_sys::memory;
use larder_units::Bytes;

use crate::verifier;

/// Words in a mapping that is never unmapped.
#[derive(Clone, Copy)]
pub struct Words(&'static [AtomicUsize]);

impl Words {
    /// `n` zeroes that no collector looks at.
    pub fn hidden(n: usize) -> Self {
        let at = memory::map_lazy(Bytes(n * size_of::<usize>())).expect("memory for a table");
        // SAFETY: the mapping holds `n` words and lives as long as the process.
        Self(unsafe { core::slice::from_raw_parts(at.as_ptr().cast(), n) })
    }

    /// `n` zeroes whose values are roots.
    pub fn roots(n: usize) -> Self {
        let table = Self::hidden(n);
        verifier::add_roots(table.start(), table.start() + n * size_of::<usize>());
        table
    }

    /// The address of the first word.
    pub fn start(self) -> usize {
        self.0.as_ptr().expose_provenance()
    }

    /// The address of a word.
    pub fn address(self, i: usize) -> usize {
        (&raw const self.0[i]).expose_provenance()
    }

    /// How many there are.
    pub fn count(self) -> usize {
        self.0.len()
    }

    /// One of them.
    pub fn word(self, i: usize) -> &'static AtomicUsize {
        &self.0[i]
    }

    /// Writes one.
    pub fn set(self, i: usize, value: usize) {
        self.0[i].store(value, Ordering::Release);
    }

    /// Reads one.
    pub fn get(self, i: usize) -> usize {
        self.0[i].load(Ordering::Acquire)
    }

    /// Writes zero to all.
    pub fn clear(self) {
        for word in self.0 {
            word.store(0, Ordering::Release);
        }
    }
}
