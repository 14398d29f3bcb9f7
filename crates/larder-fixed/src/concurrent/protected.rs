//! Blocks whose pages may be protected: a bit each, so that nobody asks the kernel about the others, nor takes from them what they do not have. And
//! another for blocks in which nothing is looked for, whether written or not.
//!
//! A bit is set after the pages of its block were protected, and cleared when all of them were made writable. A block without its bit may still be
//! protected, if a thread made it writable while it was being protected: then its first writes cost a fault, and nothing else. Without a bit it counts as written.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use larder_blocks::space::BLOCK_SHIFT;
use larder_units::{BLOCK, PAGE};

/// Blocks that have a bit: 64 GiB. What lies beyond counts as written, and is made writable by faults alone.
const BITS: usize = 1 << 22;
const IN_A_WORD: usize = u64::BITS as usize;
/// Sync: claims; where one is missed that costs time.
static PROTECTED: [AtomicU64; BITS / IN_A_WORD] = [const { AtomicU64::new(0) }; BITS / IN_A_WORD];
/// Blocks that were seen to be without pointers by a cycle that marks: until it has ended they stay what they are. Sync: written by the marker thread.
static IGNORED: [AtomicU64; BITS / IN_A_WORD] = [const { AtomicU64::new(0) }; BITS / IN_A_WORD];
/// No word of `IGNORED` from this one on has bits. Sync: as `IGNORED`.
static IGNORED_WORDS: AtomicUsize = AtomicUsize::new(0);

/// Blocks beside one another that are left out of what is to be made writable: fewer are not worth a system call, which interrupts the other CPUs as well.
pub(super) const LEAST_LEFT_WRITABLE: usize = 16;
/// The same where the kernel is only asked: it looks at as many pages in the time that a call takes.
pub(super) const LEAST_NOT_ASKED_ABOUT: usize = 64;

/// Calls `f` for the words in which the bits of `[low, high)` are, bytes from the heap's beginning that end with blocks, and which bits these are.
fn for_each_word(low: usize, high: usize, mut f: impl FnMut(&AtomicU64, u64)) {
    let (mut block, end) = (low >> BLOCK_SHIFT, (high >> BLOCK_SHIFT).min(BITS));
    while block < end {
        let n = (IN_A_WORD - block % IN_A_WORD).min(end - block);
        f(&PROTECTED[block / IN_A_WORD], (u64::MAX >> (IN_A_WORD - n)) << (block % IN_A_WORD));
        block += n;
    }
}

/// The bits of the blocks from this one to the end of its word, the first one lowest; none beyond the last block that has one.
fn bits_from(of: &[AtomicU64], block: usize) -> u64 {
    of.get(block / IN_A_WORD).map_or(0, |word| word.load(Ordering::Relaxed) >> (block % IN_A_WORD))
}

/// Between cycles: what blocks are may change. Also in a child of fork, which may have been made in the middle of one.
pub(super) fn ignore_none() {
    let words = IGNORED_WORDS.load(Ordering::Relaxed);
    IGNORED[..words].iter().for_each(|word| word.store(0, Ordering::Relaxed));
    IGNORED_WORDS.store(0, Ordering::Relaxed);
}

/// A block in use has no pointers. While a cycle marks.
pub(super) fn ignore(block: usize) {
    let at = block / IN_A_WORD;
    if let Some(word) = IGNORED.get(at) {
        // First, so that a child of fork finds the bit.
        IGNORED_WORDS.fetch_max(at + 1, Ordering::Relaxed);
        word.store(word.load(Ordering::Relaxed) | 1 << (block % IN_A_WORD), Ordering::Relaxed);
    }
}

/// Calls `f` for the parts of `[low, high)` that are not ignored.
pub(super) fn for_each_not_ignored(low: usize, high: usize, mut f: impl FnMut(usize, usize)) {
    let (mut block, end) = (low >> BLOCK_SHIFT, high >> BLOCK_SHIFT);
    while block < end {
        let ignored = bits_from(&IGNORED, block);
        let to_next = IN_A_WORD - block % IN_A_WORD;
        let skipped = ((!ignored).trailing_zeros() as usize).min(to_next);
        let n = ((ignored >> (skipped % IN_A_WORD)).trailing_zeros() as usize).min(to_next - skipped);
        let (from, to) = ((block + skipped).min(end), (block + skipped + n).min(end));
        if from < to {
            f(from << BLOCK_SHIFT, to << BLOCK_SHIFT);
        }
        block = to.max(block + skipped);
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

/// Whether all pages of a block count as written, until it is asked again what was.
pub(crate) fn counts_as_written(block: usize) -> bool {
    bits_from(&PROTECTED, block) & 1 == 0
}

/// How many pages of `[0, high)` may be protected.
pub(super) fn pages(high: usize) -> usize {
    let mut blocks = 0;
    for_each_word(0, high, |word, bits| blocks += (word.load(Ordering::Relaxed) & bits).count_ones() as usize);
    blocks * (BLOCK.0 / PAGE.0)
}

/// Calls `f` for parts of `[low, high)`, which end with blocks, one after the other: whether they may be protected. Fewer than `least` blocks that are not count as those
/// around them.
pub(super) fn for_each_part<E>(
    [low, high]: [usize; 2],
    least: usize,
    mut f: impl FnMut(bool, usize, usize) -> Result<(), E>,
) -> Result<(), E> {
    let (first, end) = (low >> BLOCK_SHIFT, high >> BLOCK_SHIFT);
    let address = |block: usize| block << BLOCK_SHIFT;
    // Where the part begins of which nothing was said yet; and where it ends, if it is protected.
    let (mut begin, mut until) = (first, first);
    let mut block = first;
    while block < end {
        let bits = bits_from(&PROTECTED, block);
        if bits == 0 {
            block = (block / IN_A_WORD + 1) * IN_A_WORD;
            continue;
        }
        block += bits.trailing_zeros() as usize;
        let n = (!(bits >> bits.trailing_zeros())).trailing_zeros() as usize;
        if block >= end {
            break;
        }
        if block >= until + least || until == begin {
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
            for_each_part([at(low), at(high)], 4, |is, low, high| {
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
    fn what_is_ignored_is_left_out() {
        const FIRST: usize = 2000;
        let parts = |low: usize, high: usize| {
            let mut seen = vec![false; 300];
            for_each_not_ignored((FIRST + low) * BLOCK.0, (FIRST + high) * BLOCK.0, |from, to| {
                let [from, to] = [from, to].map(|at| at / BLOCK.0 - FIRST);
                assert!(from < to && !seen[from..to].contains(&true));
                seen[from..to].fill(true);
            });
            seen
        };
        let mut is_ignored = [false; 300];
        for block in [0, 1, 5, 47, 48, 49, 111, 112, 113, 250].into_iter().chain(120..230) {
            ignore(FIRST + block);
            is_ignored[block] = true;
        }
        for (low, high) in [(0, 300), (1, 112), (47, 50), (48, 49), (130, 200), (130, 240), (112, 113)] {
            for (block, seen) in parts(low, high).into_iter().enumerate() {
                assert_eq!(seen, (low..high).contains(&block) && !is_ignored[block], "{block} of {low}..{high}");
            }
        }
        ignore(BITS);
        // Whoever ends a cycle need not know how much of the heap it looked at: a child of fork does not.
        ignore_none();
        assert!(parts(0, 300).iter().all(|&seen| seen));
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
            let (mut at, least) = (low, 1 + random(20));
            for_each_part([low, high].map(|at| (FIRST + at) * BLOCK.0), least, |protected, from, to| {
                let [from, to] = [from, to].map(|at| at / BLOCK.0 - FIRST);
                assert!(from == at && from < to);
                let part = &is_set[from..to];
                // Gaps are short inside, and both ends are set.
                let gap = part.split(|&set| set).map(<[bool]>::len).max().unwrap();
                let ends = part[0] && part[part.len() - 1];
                assert!(if protected { ends && gap < least } else { gap == part.len() }, "{part:?}");
                at = to;
                Ok::<(), ()>(())
            })
            .unwrap();
            assert_eq!(at, high);
            clear(FIRST * BLOCK.0, (FIRST + 300) * BLOCK.0);
        }
    }
}
