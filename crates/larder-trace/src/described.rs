//! Objects that are no plain ranges of words: the words that a bitmap names, also one that is found through the object.

use crate::descriptor::{self, Entry};
use crate::hot::{PIECE, collect_best};
use crate::window::Range;

/// Of an entry with a tag, what is words: how many were collected. `None` where something else is asked for, or more than a piece.
///
/// # Safety
/// As for [`collect_best`]; the entry is an object's, of whose kind the descriptor is.
#[inline(never)]
pub unsafe fn collect(entry: Entry, range: Range, out: *mut usize) -> Option<u32> {
    let mut described = entry.descriptor;
    if described & descriptor::TAG == descriptor::PER_OBJECT {
        // SAFETY: the caller's promise.
        described = unsafe { descriptor::resolve(entry.start, described) };
    }
    match described & descriptor::TAG {
        // SAFETY: the bitmap describes words of the object.
        descriptor::BITMAP => Some(unsafe { collect_bitmap(entry.first(), described & !descriptor::TAG, range, out) }),
        descriptor::LENGTH if described <= PIECE => {
            // SAFETY: the object has so many words.
            let collected = unsafe { collect_best(entry.first(), described / size_of::<usize>(), range, out) };
            Some(collected as u32)
        }
        // One that names itself again would never end.
        descriptor::PER_OBJECT => Some(0),
        _ => None,
    }
}

/// The addresses among the words for which a bitmap has a bit, the highest for the first.
///
/// # Safety
/// As for [`collect_best`].
unsafe fn collect_bitmap(at: *const usize, mut bits: usize, range: Range, out: *mut usize) -> u32 {
    let mut n = 0;
    while bits != 0 {
        let place = bits.leading_zeros() as usize;
        bits ^= (1 << (usize::BITS - 1)) >> place;
        // SAFETY: the caller's promise. No branch depends on what the word is.
        unsafe {
            let word = at.add(place).read();
            out.add(n).write(word);
            n += usize::from(range.contains(word));
        }
    }
    n as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn described_objects_give_the_addresses_that_their_descriptors_name() {
        const WORDS: usize = 64;
        let range = Range { base: 0x10_0000, span: 0x1000 };
        let address = |i: usize| range.base + 16 * i;
        let words: Vec<usize> = (0..WORDS).map(|i| if i % 5 == 4 { 7 } else { address(i) }).collect();
        // The last word of an object is its own descriptor.
        let collected = |bytes: usize, own: usize, descriptor: usize| {
            let mut object = words[..bytes / 8].to_vec();
            *object.last_mut().unwrap() = own;
            let entry = Entry { start: object.as_mut_ptr().cast(), descriptor };
            let mut out = vec![0; PIECE / 8];
            // SAFETY: the bitmap, or the length, is one of the object's words, and there is room for a piece.
            let n = unsafe { collect(entry, range, out.as_mut_ptr()) };
            n.map(|n| out[..n as usize].to_vec())
        };
        let own = |bytes: usize| (bytes - 8) | descriptor::PER_OBJECT;
        // The first, third, fifth, which is no address, and sixth word.
        let bits = (0b10_1011 << (usize::BITS - 6)) | descriptor::BITMAP;
        let named = Some([0, 2, 5].map(address).to_vec());
        assert_eq!(collected(8 * WORDS, 0, bits), named);
        assert_eq!(collected(64, bits, own(64)), named);
        assert_eq!(collected(64, 32, own(64)), Some((0..4).map(address).collect()), "a length");
        assert_eq!(collected(64, 0, own(64)), Some(Vec::new()), "it is not made yet");
        assert_eq!(collected(64, own(64), own(64)), Some(Vec::new()), "it names itself");
        assert_eq!(collected(64, 3 << 2 | descriptor::PROC, own(64)), None);
        assert_eq!(collected(64, PIECE + 8, own(64)), None, "it is long");
    }
}
