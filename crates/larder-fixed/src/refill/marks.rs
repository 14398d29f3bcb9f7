//! Mark bytes of blocks, many at once.

use core::arch::asm;
use core::sync::atomic::{AtomicU8, Ordering};

use crate::epochs::Epochs;

/// Eight mark bytes of a block at once; reading eight atomic bytes one by one would cost several times as much.
///
/// Under the class's lock bytes change in one way only: a free that needs no lock clears one. Then this reads the old value or
/// the new, both of which are right: the cell is found now or by a later sweep.
fn bytes_of(marks: &[AtomicU8], at: usize) -> u64 {
    let p = marks[at..at + 8].as_ptr();
    let bytes;
    // SAFETY: eight bytes of the slice. One load, which Rust has no name for: others store single bytes meanwhile, and it need not be
    // aligned.
    unsafe {
        asm!("mov {bytes}, qword ptr [{p}]", bytes = out(reg) bytes, p = in(reg) p, options(nostack, readonly, preserves_flags));
    }
    bytes
}

/// Writes all of the mark bytes, eight at once.
///
/// Whoever reads one meanwhile finds the old value or the new, as if they were written one by one.
pub(super) fn fill(marks: &[AtomicU8], mark: u8) {
    let (words, rest) = marks.as_chunks::<8>();
    for word in words {
        // SAFETY: eight bytes of the slice. One store, as in `bytes_of`.
        unsafe {
            asm!("mov qword ptr [{p}], {bytes}", bytes = in(reg) LOW * u64::from(mark), p = in(reg) word.as_ptr(), options(nostack, preserves_flags));
        }
    }
    rest.iter().for_each(|m| m.store(mark, Ordering::Relaxed));
}

const LOW: u64 = 0x0101_0101_0101_0101;

/// Whether a byte is 0.
fn has_zero(bytes: u64) -> bool {
    bytes.wrapping_sub(LOW) & !bytes & LOW << 7 != 0
}

/// First cell from `from` on that is not (or, with `live`, is) taken. Under the lock of a class the epochs do not change; without it the
/// answer is a hint.
pub(super) fn find(marks: &[AtomicU8], from: usize, live: bool) -> usize {
    let epochs = Epochs::now();
    let mut at = from;
    let [young, old, new] = [epochs.young, epochs.old, epochs.new].map(|epoch| LOW * u64::from(epoch));
    while at < marks.len() {
        if at + 8 <= marks.len() {
            let bytes = bytes_of(marks, at);
            let passes = if live {
                !(has_zero(bytes ^ young) || has_zero(bytes ^ old) || has_zero(bytes ^ new))
            } else {
                bytes == young || bytes == old
            };
            if passes {
                at += 8;
                continue;
            }
        }
        if epochs.is_allocated(marks[at].load(Ordering::Relaxed)) == live {
            return at;
        }
        at += 1;
    }
    marks.len()
}

/// Cells whose byte is the epoch.
fn count(marks: &[AtomicU8], epoch: u8) -> usize {
    let same = LOW * u64::from(epoch);
    let whole = marks.len() / 8 * 8;
    let words = (0..whole).step_by(8).map(|at| {
        let x = bytes_of(marks, at) ^ same;
        // The highest bit of a byte says whether any of its bits is set; no carry leaves a byte.
        let other = ((x & !(LOW << 7)) + (LOW * 0x7F)) | x;
        8 - (other & LOW << 7).count_ones() as usize
    });
    words.sum::<usize>() + marks[whole..].iter().filter(|m| m.load(Ordering::Relaxed) == epoch).count()
}

/// Cells that are taken. The caller as for [`find`].
pub(super) fn count_taken(marks: &[AtomicU8]) -> usize {
    let Epochs { old, young, new, .. } = Epochs::now();
    let apart = |mark: u8, others: &[u8]| if others.contains(&mark) { 0 } else { count(marks, mark) };
    count(marks, young) + apart(old, &[young]) + apart(new, &[young, old])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_of_an_epoch_are_counted_wherever_they_lie() {
        for n in [0, 1, 7, 8, 9, 64, 1023] {
            for (epoch, other) in [(1, 0), (1, 129), (253, 125), (128, 0), (127, 255)] {
                let marks: Vec<AtomicU8> =
                    (0..n).map(|i| AtomicU8::new(if i % 3 == 0 { epoch } else { other })).collect();
                assert_eq!(count(&marks, epoch), (n as usize).div_ceil(3), "{n} cells, {epoch} and {other}");
            }
        }
    }
}
