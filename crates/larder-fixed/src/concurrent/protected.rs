//! Blocks whose pages may be protected: a bit each, so that nobody asks the kernel about the others, nor takes from them what they do not have.
//!
//! A bit is set after the pages of its block were protected, and cleared when all of them were made writable. A block without its bit may still be
//! protected, if a thread made it writable while it was being protected: then its first writes cost a fault, and nothing else. Without a bit it counts as written.

use core::sync::atomic::{AtomicU64, Ordering};

use larder_blocks::space::BLOCK_SHIFT;
use larder_units::{BLOCK, PAGE};

/// Blocks that have a bit: 64 GiB. What lies beyond counts as protected as far as it is to be made writable, and as written.
const BITS: usize = 1 << 22;
const IN_A_WORD: usize = u64::BITS as usize;
/// Sync: claims; where one is missed that costs time.
static PROTECTED: [AtomicU64; BITS / IN_A_WORD] = [const { AtomicU64::new(0) }; BITS / IN_A_WORD];

/// Unprotected blocks beside one another that are worth a system call less, and an interruption of the other CPUs.
const LEAST_LEFT_OUT: usize = 16;

/// Calls `f` for the words in which the bits of `[low, high)` are, bytes from the heap's beginning that end with blocks, and which bits these are.
fn for_each_word(low: usize, high: usize, mut f: impl FnMut(&AtomicU64, u64)) {
    let (mut block, end) = (low >> BLOCK_SHIFT, (high >> BLOCK_SHIFT).min(BITS));
    while block < end {
        let n = (IN_A_WORD - block % IN_A_WORD).min(end - block);
        f(&PROTECTED[block / IN_A_WORD], (u64::MAX >> (IN_A_WORD - n)) << (block % IN_A_WORD));
        block += n;
    }
}

/// Pages of `[low, high)` were protected.
pub(super) fn set(low: usize, high: usize) {
    // Relaxed: who misses it has faults.
    for_each_word(low, high, |word, bits| _ = word.fetch_or(bits, Ordering::Relaxed));
}

/// Pages of `[low, high)` were made writable.
pub(super) fn clear(low: usize, high: usize) {
    for_each_word(low, high, |word, bits| {
        if word.load(Ordering::Relaxed) & bits != 0 {
            word.fetch_and(!bits, Ordering::Relaxed);
        }
    });
}

/// Whether a block may be protected, which is the caller's to make writable: nobody else is told so.
pub(super) fn take(block: usize) -> bool {
    let Some(word) = PROTECTED.get(block / IN_A_WORD) else { return false };
    let bit = 1 << (block % IN_A_WORD);
    word.load(Ordering::Relaxed) & bit != 0 && word.fetch_and(!bit, Ordering::Relaxed) & bit != 0
}

/// How many pages of `[0, high)` may be protected.
pub(super) fn pages(high: usize) -> usize {
    let mut blocks = 0;
    for_each_word(0, high, |word, bits| blocks += (word.load(Ordering::Relaxed) & bits).count_ones() as usize);
    blocks * (BLOCK.0 / PAGE.0)
}

/// Calls `f` for parts of `[low, high)`, which end with blocks, one after the other: whether they may be protected. Few blocks that are not count as those around them.
pub(super) fn for_each_part<E>(
    low: usize,
    high: usize,
    mut f: impl FnMut(bool, usize, usize) -> Result<(), E>,
) -> Result<(), E> {
    let (first, end) = (low >> BLOCK_SHIFT, high >> BLOCK_SHIFT);
    let address = |block: usize| block << BLOCK_SHIFT;
    // Where the part begins of which nothing was said yet; and where it ends, if it is protected.
    let (mut begin, mut until) = (first, first);
    let mut block = first;
    while block < end {
        let Some(word) = PROTECTED.get(block / IN_A_WORD) else {
            break;
        };
        let bits = word.load(Ordering::Relaxed) >> (block % IN_A_WORD);
        if bits == 0 {
            block = (block / IN_A_WORD + 1) * IN_A_WORD;
            continue;
        }
        block += bits.trailing_zeros() as usize;
        let n = (!(bits >> bits.trailing_zeros())).trailing_zeros() as usize;
        if block >= end {
            break;
        }
        if block >= until + LEAST_LEFT_OUT || until == begin {
            if begin < until {
                f(true, address(begin), address(until))?;
            }
            if until < block {
                f(false, address(until), address(block))?;
            }
            begin = block;
        }
        block = (block + n).min(end);
        until = block;
    }
    if begin < until {
        f(true, address(begin), address(until))?;
    }
    if until < end { f(false, address(until), address(end)) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_those_that_were_set_and_gaps_between_them() {
        let at = |block: usize| block * BLOCK.0;
        let parts = |low, high| {
            let mut parts = Vec::new();
            for_each_part(at(low), at(high), |is, low, high| {
                parts.push((is, low / BLOCK.0, high / BLOCK.0));
                Ok::<(), ()>(())
            })
            .unwrap();
            parts
        };
        assert_eq!(parts(0, 100), [(false, 0, 100)]);
        set(at(3), at(70));
        set(at(72), at(80));
        set(at(90), at(91));
        assert_eq!(parts(0, 100), [(false, 0, 3), (true, 3, 80), (false, 80, 90), (true, 90, 91), (false, 91, 100)]);
        assert_eq!(parts(10, 90), [(true, 10, 80), (false, 80, 90)]);
        assert_eq!(parts(64, 66), [(true, 64, 66)]);
        assert_eq!(pages(at(100)), (67 + 8 + 1) * 4);
        assert!(take(5) && !take(5) && take(90) && !take(90) && !take(BITS));
        clear(at(60), at(128));
        assert_eq!(parts(0, 128), [(false, 0, 3), (true, 3, 60), (false, 60, 128)]);
        // Beyond what has bits nothing is protected, by all that is known.
        assert_eq!(parts(BITS - 1, BITS + 5), [(false, BITS - 1, BITS + 5)]);
        set(at(BITS - 1), at(BITS + 5));
        assert_eq!(parts(BITS - 1, BITS + 5), [(true, BITS - 1, BITS), (false, BITS, BITS + 5)]);
        clear(0, at(128));
        clear(at(BITS - 1), at(BITS));
        assert!(parts(0, 128) == [(false, 0, 128)] && !take(BITS - 1));
    }

    #[test]
    fn parts_are_right_whatever_is_set() {
        // Above the blocks of the other test.
        const FIRST: usize = 1000;
        let mut seed = 7u64;
        for _ in 0..2000 {
            let mut random = |n: usize| {
                seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (seed >> 33) as usize % n
            };
            let mut is_set = [false; 300];
            for _ in 0..random(20) {
                let (low, n) = (random(300), random(40));
                let high = (low + n).min(300);
                is_set[low..high].fill(true);
                set((FIRST + low) * BLOCK.0, (FIRST + high) * BLOCK.0);
            }
            let (low, high) = (random(150), 150 + random(150));
            let mut at = low;
            for_each_part((FIRST + low) * BLOCK.0, (FIRST + high) * BLOCK.0, |protected, from, to| {
                let [from, to] = [from, to].map(|at| at / BLOCK.0 - FIRST);
                assert!(from == at && from < to);
                let part = &is_set[from..to];
                // Gaps are short inside, and both ends are set.
                let gap = part.split(|&set| set).map(<[bool]>::len).max().unwrap();
                let ends = part[0] && part[part.len() - 1];
                assert!(if protected { ends && gap < LEAST_LEFT_OUT } else { gap == part.len() }, "{part:?}");
                at = to;
                Ok::<(), ()>(())
            })
            .unwrap();
            assert_eq!(at, high);
            clear(FIRST * BLOCK.0, (FIRST + 300) * BLOCK.0);
        }
    }
}
