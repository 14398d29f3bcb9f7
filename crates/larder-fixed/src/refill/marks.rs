//! Mark bytes of blocks, sixteen at once.
//!
//! Under the class's lock bytes change in one way only: a free that needs no lock clears one. Then a look reads the old value or
//! the new, both of which are right: the cell is found now or by a later sweep.

use core::arch::asm;
use core::arch::x86_64::{
    __m128i, _mm_cmpeq_epi8, _mm_cvtsi128_si64, _mm_movemask_epi8, _mm_or_si128, _mm_sad_epu8, _mm_set1_epi8,
    _mm_setzero_si128, _mm_sub_epi8, _mm_unpackhi_epi64,
};
use core::sync::atomic::{AtomicU8, Ordering};

use crate::epochs::{Epochs, GREY};

/// Mark bytes in a vector.
const WIDTH: usize = 16;

/// Some epochs.
struct Wanted<const N: usize> {
    epochs: [u8; N],
    /// Each in all bytes of a vector.
    vectors: [__m128i; N],
}

/// The epochs of what is allocated.
fn allocated(epochs: Epochs) -> Wanted<4> {
    Wanted::of([epochs.young, epochs.old, epochs.new, GREY])
}

impl<const N: usize> Wanted<N> {
    fn of(epochs: [u8; N]) -> Self {
        // SAFETY: SSE2 belongs to the architecture, here and below.
        Self { epochs, vectors: epochs.map(|epoch| unsafe { _mm_set1_epi8(epoch.cast_signed()) }) }
    }

    fn contains(&self, mark: &AtomicU8) -> bool {
        self.epochs.contains(&mark.load(Ordering::Relaxed))
    }

    /// 255 for each of the bytes that is one of the epochs, and 0 for each other.
    fn among(&self, marks: &[AtomicU8; WIDTH]) -> __m128i {
        let bytes: __m128i;
        // SAFETY: the bytes are the slice's. One load, which Rust has no name for: others store single bytes meanwhile, and it need not be
        // aligned.
        unsafe {
            asm!("movdqu {bytes}, xmmword ptr [{p}]", bytes = out(xmm_reg) bytes, p = in(reg) marks.as_ptr(), options(nostack, readonly, preserves_flags));
        }
        // SAFETY: as in `of`.
        let found = self.vectors.map(|epoch| unsafe { _mm_cmpeq_epi8(bytes, epoch) });
        // SAFETY: as in `of`.
        found.into_iter().reduce(|a, b| unsafe { _mm_or_si128(a, b) }).unwrap_or(bytes)
    }

    /// By a bit for each of the bytes, from the lowest on: whether it is one of the epochs.
    #[inline]
    fn bits(&self, marks: &[AtomicU8; WIDTH]) -> u16 {
        // SAFETY: as in `of`.
        unsafe { _mm_movemask_epi8(self.among(marks)) as u16 }
    }

    /// The first byte from `from` on that is one of them, or with `wanted` false is none.
    fn find(&self, marks: &[AtomicU8], from: usize, wanted: bool) -> usize {
        let (vectors, rest) = marks[from..].as_chunks::<WIDTH>();
        for (i, vector) in vectors.iter().enumerate() {
            let found = self.bits(vector);
            let found = if wanted { found } else { !found };
            if found != 0 {
                return from + i * WIDTH + found.trailing_zeros() as usize;
            }
        }
        let found = rest.iter().position(|mark| self.contains(mark) == wanted);
        found.map_or(marks.len(), |i| marks.len() - rest.len() + i)
    }
}

/// Writes all of the mark bytes. Whoever reads one meanwhile finds the old value or the new.
pub(super) fn fill(marks: &[AtomicU8], mark: u8) {
    let (words, rest) = marks.as_chunks::<8>();
    for word in words {
        // SAFETY: eight bytes of the slice. One store, which Rust has no name for: others read single bytes meanwhile.
        unsafe {
            asm!(
                "mov qword ptr [{p}], {bytes}",
                bytes = in(reg) u64::from_ne_bytes([mark; 8]),
                p = in(reg) word.as_ptr(),
                options(nostack, preserves_flags),
            );
        }
    }
    rest.iter().for_each(|m| m.store(mark, Ordering::Relaxed));
}

/// First cell from `from` on that is not (or, with `live`, is) taken. Under the lock of a class the epochs do not change; without it the
/// answer is a hint.
pub(super) fn find(marks: &[AtomicU8], from: usize, live: bool) -> usize {
    allocated(Epochs::now()).find(marks, from, live)
}

/// Of the cells from `from` on, at most 64: by a bit for each, from the lowest on, whether it is free, and how many there are. The caller as for [`find`].
pub(super) fn free_among(marks: &[AtomicU8], from: usize) -> (u64, u32) {
    among(marks, from, Epochs::now())
}

fn among(marks: &[AtomicU8], from: usize, epochs: Epochs) -> (u64, u32) {
    let allocated = allocated(epochs);
    let ahead = &marks[from..marks.len().min(from + 64)];
    let (vectors, rest) = ahead.as_chunks::<WIDTH>();
    let mut free = 0;
    for (i, vector) in vectors.iter().enumerate() {
        free |= u64::from(!allocated.bits(vector)) << (i * WIDTH);
    }
    if !rest.is_empty() {
        let at = vectors.len() * WIDTH;
        free |= match marks[..from + ahead.len()].last_chunk::<WIDTH>() {
            // With some before them they are a vector, too.
            Some(vector) => u64::from(!allocated.bits(vector) >> (WIDTH - rest.len())) << at,
            None => {
                rest.iter().enumerate().fold(0, |free, (i, m)| free | u64::from(!allocated.contains(m)) << (at + i))
            }
        };
    }
    (free, ahead.len() as u32)
}

/// First cell from `from` on whose byte is (or, with `is` false, is not) that one. A hint: others change them meanwhile.
pub(crate) fn find_byte(marks: &[AtomicU8], from: usize, byte: u8, is: bool) -> usize {
    Wanted::of([byte]).find(marks, from, is)
}

/// Marks, in a cycle that has these epochs, what is allocated and not marked, and calls `f(from, to)` for each run of such cells. World stopped, by the collector.
pub(crate) fn mark_all(marks: &[AtomicU8], epochs: Epochs, mut f: impl FnMut(usize, usize)) {
    let unmarked = Wanted::of([epochs.old, epochs.young]);
    let mut from = unmarked.find(marks, 0, true);
    while from < marks.len() {
        let to = unmarked.find(marks, from, false);
        fill(&marks[from..to], epochs.new);
        f(from, to);
        from = unmarked.find(marks, to, true);
    }
}

/// Cells that are taken. The caller as for [`find`].
pub(super) fn count_taken(marks: &[AtomicU8]) -> usize {
    count(marks, Epochs::now())
}

fn count(marks: &[AtomicU8], epochs: Epochs) -> usize {
    let allocated = allocated(epochs);
    let (vectors, rest) = marks.as_chunks::<WIDTH>();
    // A byte counts to 255.
    let whole = vectors.chunks(255).map(|vectors| {
        // SAFETY: as in `Wanted::of`.
        unsafe {
            // To take 255 away is to add one.
            let counts = vectors.iter().fold(_mm_setzero_si128(), |n, v| _mm_sub_epi8(n, allocated.among(v)));
            let halves = _mm_sad_epu8(counts, _mm_setzero_si128());
            (_mm_cvtsi128_si64(halves) + _mm_cvtsi128_si64(_mm_unpackhi_epi64(halves, halves))) as usize
        }
    });
    whole.sum::<usize>() + rest.iter().filter(|mark| allocated.contains(mark)).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::epochs::Cycle;

    const LENGTHS: [usize; 9] = [0, 1, 7, 15, 16, 17, 64, 1023, 9000];

    fn marks(n: usize, mark: impl Fn(usize) -> u8) -> Vec<AtomicU8> {
        (0..n).map(|i| AtomicU8::new(mark(i))).collect()
    }

    #[test]
    fn cells_of_an_epoch_are_counted_wherever_they_lie() {
        for n in LENGTHS {
            for (old, young, new, other) in [(1, 1, 1, 0), (1, 2, 3, 129), (253, 253, 252, 125), (128, 127, 128, 255)] {
                let epochs = Epochs { old, young, new, cycle: Cycle::None };
                let mixed = marks(n, |i| [old, other, young, other, new, other, other][i % 7]);
                let taken = (0..n).filter(|i| matches!(i % 7, 0 | 2 | 4)).count();
                assert_eq!(count(&mixed, epochs), taken, "{n} cells, {epochs:?} and {other}");
                assert_eq!(count(&marks(n, |_| young), epochs), n);
                assert_eq!(count(&marks(n, |_| other), epochs), 0);
            }
        }
    }

    #[test]
    fn free_cells_ahead_are_told_wherever_they_lie() {
        let epochs = Epochs { old: 3, young: 4, new: 5, cycle: Cycle::None };
        for n in LENGTHS {
            let mixed = marks(n, |i| [3, 0, 4, 5, GREY, 2, 0, 0, 3][i * i % 9]);
            for from in (0..=n).step_by(if n < 100 { 1 } else { 13 }) {
                let (free, seen) = among(&mixed, from, epochs);
                assert_eq!(seen as usize, (n - from).min(64));
                for i in 0..64 {
                    let expected = i < seen as usize && !epochs.is_allocated(mixed[from + i].load(Ordering::Relaxed));
                    assert_eq!(free >> i & 1 == 1, expected, "{n} cells, {i} behind {from}");
                }
            }
        }
    }

    /// The epochs of a heap that has not run a cycle are all 1.
    #[test]
    fn the_first_taken_and_the_first_free_cell_are_found_wherever_they_lie() {
        for n in LENGTHS {
            for only in (0..n).step_by(if n < 100 { 1 } else { 37 }) {
                for from in [0, only / 2, only, only + 1] {
                    let expected = if from <= only { only } else { n };
                    assert_eq!(
                        find(&marks(n, |i| u8::from(i == only)), from, true),
                        expected,
                        "{n}, {only} from {from}"
                    );
                    assert_eq!(
                        find(&marks(n, |i| u8::from(i != only)), from, false),
                        expected,
                        "{n}, {only} from {from}"
                    );
                }
            }
            for mark in [0, 1] {
                assert_eq!(find(&marks(n, |_| mark), 0, mark == 0), n);
            }
        }
    }

    #[test]
    fn what_is_allocated_and_not_marked_is_marked_run_by_run() {
        for epochs in [
            Epochs { old: 3, young: 4, new: 5, cycle: Cycle::Full },
            Epochs { old: 3, young: 3, new: 5, cycle: Cycle::Full },
        ] {
            for n in LENGTHS {
                let byte = |i: usize| [3, 3, 4, 0, 5, 4, GREY, 2, 3][i * i % 9];
                let (mixed, mut met) = (marks(n, byte), vec![false; n]);
                let mut last = None;
                mark_all(&mixed, epochs, |from, to| {
                    assert!(from < to && last.is_none_or(|last| last < from), "runs are apart");
                    (last, _) = (Some(to), met[from..to].fill(true));
                });
                for i in 0..n {
                    let is_unmarked = epochs.is_unmarked(byte(i));
                    assert_eq!(met[i], is_unmarked);
                    assert_eq!(mixed[i].load(Ordering::Relaxed), if is_unmarked { epochs.new } else { byte(i) });
                }
            }
        }
    }

    #[test]
    fn one_byte_is_found_among_others_and_what_is_not_it() {
        for n in LENGTHS {
            for byte in [0, 7, 127, 128, 255] {
                let others = marks(n, |i| if i % 3 == 0 { byte ^ 1 } else { byte ^ 128 });
                assert_eq!((find_byte(&others, 0, byte, true), find_byte(&others, 0, byte, false)), (n, 0));
                for only in (0..n).step_by(if n < 100 { 1 } else { 37 }) {
                    others[only].store(byte, Ordering::Relaxed);
                    assert_eq!(find_byte(&others, 0, byte, true), only);
                    assert_eq!(find_byte(&others, only, byte, false), only + 1);
                    assert_eq!(find_byte(&others, only + 1, byte, true), n);
                    others[only].store(byte ^ 1, Ordering::Relaxed);
                }
            }
        }
    }

    #[test]
    fn all_bytes_are_written_and_no_others() {
        for n in LENGTHS {
            let bytes = marks(n + 2, |_| 9);
            fill(&bytes[1..=n], 200);
            let written = bytes.iter().map(|m| m.load(Ordering::Relaxed)).enumerate();
            assert!(written.into_iter().all(|(i, m)| m == if i == 0 || i == n + 1 { 9 } else { 200 }), "{n}");
        }
    }
}
