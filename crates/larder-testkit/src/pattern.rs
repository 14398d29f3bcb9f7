//! Bytes that only one object can hold: filled in when an object is made, looked at when it should still be there.
//!
//! Every full word of a pattern has its highest bit set, and so has the last byte of what is shorter: no word of it looks like an address,
//! nor does an end of six bytes with two zeroes behind it.

/// The word number `i` of the pattern `id`.
fn word(id: u64, i: usize) -> u64 {
    let mut x = id.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (i as u64).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    x ^= x >> 32;
    x.wrapping_mul(0xD6E8_FEB8_6659_FD93) | 1 << 63
}

/// The first `n` bytes, fewer than eight, of the word number `i` as an end.
fn tail(id: u64, i: usize, n: usize) -> [u8; 8] {
    let mut bytes = word(id, i).to_le_bytes();
    if n > 0 {
        bytes[n - 1] |= 0x80;
    }
    bytes
}

/// Writes the pattern `id` over `[at + from, at + to)`. `from` is a multiple of eight.
///
/// # Safety
/// The range is the caller's to write, and `at` is aligned to eight bytes.
pub unsafe fn fill(at: *mut u8, from: usize, to: usize, id: u64) {
    let words = to / 8;
    for i in from / 8..words {
        // SAFETY: inside the range.
        unsafe { at.cast::<u64>().add(i).write(word(id, i)) };
    }
    let tail = tail(id, words, to % 8);
    for (i, byte) in tail.iter().enumerate().take(to % 8) {
        // SAFETY: inside the range.
        unsafe { at.add(words * 8 + i).write(*byte) };
    }
}

/// The first place in `[from, to)` where the pattern `id` is not intact.
///
/// # Safety
/// The range can be read, and `at` is aligned to eight bytes.
pub unsafe fn broken_at(at: *const u8, from: usize, to: usize, id: u64) -> Option<usize> {
    let words = to / 8;
    for i in from / 8..words {
        // SAFETY: inside the range.
        if unsafe { at.cast::<u64>().add(i).read() } != word(id, i) {
            return Some(i * 8);
        }
    }
    let tail = tail(id, words, to % 8);
    // SAFETY: inside the range.
    (0..to % 8).find(|&i| unsafe { at.add(words * 8 + i).read() } != tail[i]).map(|i| words * 8 + i)
}

/// Stops the process when the pattern is not intact. Safe in signal handlers.
///
/// # Safety
/// As for [`broken_at`].
pub unsafe fn check(at: *const u8, from: usize, to: usize, id: u64) {
    // SAFETY: the caller's promise.
    if let Some(place) = unsafe { broken_at(at, from, to, id) } {
        larder_sys::die!("object {at:p} of {to} bytes, pattern {id:#x}: changed at byte {place}");
    }
}

/// The first byte of `[at, at + bytes)` that is not zero.
///
/// # Safety
/// The range can be read, and `at` is aligned to eight bytes.
pub unsafe fn first_set(at: *const u8, bytes: usize) -> Option<usize> {
    // SAFETY: inside the range.
    let word = (0..bytes / 8).find(|&i| unsafe { at.cast::<u64>().add(i).read() } != 0);
    // SAFETY: inside the range.
    word.map(|i| i * 8).or_else(|| (bytes & !7..bytes).find(|&i| unsafe { at.add(i).read() } != 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_changed_byte_is_found_and_no_word_looks_like_an_address() {
        let mut room = [0u64; 9];
        let at = room.as_mut_ptr().cast::<u8>();
        // SAFETY: all of it is this test's own array.
        unsafe {
            fill(at, 8, 69, 7);
            assert_eq!(broken_at(at, 8, 69, 7), None);
            assert!(broken_at(at, 8, 69, 8).is_some());
            for i in 8..69 {
                *at.add(i) ^= 1;
                assert!(broken_at(at, 8, 69, 7).is_some_and(|b| b == i || b == i & !7));
                *at.add(i) ^= 1;
            }
            assert_eq!((*at, first_set(at, 8), first_set(at, 16)), (0, None, Some(8)));
        }
        assert!(room[1..8].iter().all(|w| w >> 63 == 1));
        for id in 0..1000 {
            let mut room = [0u64; 2];
            // SAFETY: as above.
            unsafe { fill(room.as_mut_ptr().cast(), 0, 14, id) };
            assert!(room[1] >> 47 == 1, "{:#x} may be an address", room[1]);
        }
    }
}
