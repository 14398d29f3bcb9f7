//! Which of up to 64 words may be addresses of the heap: the inner loop of conservative scanning.
//!
//! Most words of most objects are no addresses, and objects differ in size. So the question is asked of many words at
//! once, without a branch for each: a mispredicted branch costs as much as a cache line. Words behind the last are
//! masked, not read. The best form for the processor is chosen when the first marker begins; all give the same answer.

use core::sync::atomic::{AtomicU8, Ordering};

use crate::cells::{Cells, Located, TOGETHER};
use crate::objects::Inner;
use crate::volley::{Asked, Records, Special, Volley};

/// Words in a window.
pub const WIDTH: usize = 64;
/// Words of a small object.
pub const NARROW: usize = 16;

/// An address range of the heap: `word - base < span`.
#[derive(Clone, Copy, Debug)]
pub struct Range {
    /// First address.
    pub base: usize,
    /// Bytes from there.
    pub span: usize,
}

impl Range {
    /// Whether the word is inside.
    #[inline(always)]
    pub fn contains(self, word: usize) -> bool {
        word.wrapping_sub(self.base) < self.span
    }
}

/// One way to look at words.
pub trait Look {
    /// Whether what lies in no order is looked up in volleys, too, as long as little of it is marked already. Measured for AVX2 alone.
    const AIMS_FAR: bool = false;

    /// Whether [`Look::aim`] says when all objects of a volley are alike.
    const TELLS_ALIKE: bool = false;

    /// A range, ready for what looks at few words.
    type Ready: Copy;
    /// A number of words, ready for several objects that have as many.
    type Length: Copy;

    /// Makes it ready.
    ///
    /// # Safety
    /// The processor has what the form asks for.
    unsafe fn ready(range: Range) -> Self::Ready;

    /// The same, but one address is left out, in place of the one that was left out before, where the form does that at no cost. No [`Look::look`] does.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    unsafe fn without(ready: Self::Ready, _address: usize) -> Self::Ready {
        ready
    }

    /// A bit for each of the first `n` words (1 to [`WIDTH`]) at `at`: whether it is inside the range.
    ///
    /// # Safety
    /// The `n` words are readable, and the processor has what the form asks for.
    unsafe fn look(at: *const usize, n: usize, range: Range) -> u64;

    /// Writes those of the first `n` words (0 to `MOST`, which is 4, 8, 12 or [`NARROW`]) at `at` that are inside the range to `out`, the last one
    /// first, and returns how many they are. No branch depends on the words, nor on their number; of [`NARROW`] one
    /// may ask whether any is inside. The range does not contain 0.
    ///
    /// # Safety
    /// As for `look`; `out` has room for `MOST` words, 8 at least, all of which may be overwritten.
    unsafe fn collect<const MOST: usize>(at: *const usize, n: usize, ready: Self::Ready, out: *mut usize) -> usize;

    /// Makes a number of words ready.
    ///
    /// # Safety
    /// The processor has what the form asks for; `n` is at most `MOST`, and more than `MOST` less 4.
    unsafe fn length<const MOST: usize>(n: usize) -> Self::Length;

    /// [`Look::collect`] for a length that was made ready for the same `MOST`.
    ///
    /// # Safety
    /// As there.
    unsafe fn collect_alike<const MOST: usize>(
        at: *const usize,
        length: Self::Length,
        ready: Self::Ready,
        out: *mut usize,
    ) -> usize;

    /// As [`Look::collect`], of up to [`NARROW`] words, for which there is room.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    unsafe fn collect_narrow(at: *const usize, n: usize, ready: Self::Ready, out: *mut usize) -> usize {
        // SAFETY: the caller's promise.
        unsafe {
            match n {
                0..=4 => Self::collect::<4>(at, n, ready, out),
                5..=8 => Self::collect::<8>(at, n, ready, out),
                _ => Self::collect::<NARROW>(at, n, ready, out),
            }
        }
    }

    /// As [`Look::collect`], of any number of words, the first one first.
    ///
    /// # Safety
    /// As for `look`; `out` has room for `left` words.
    #[inline(always)]
    unsafe fn collect_many(mut at: *const usize, mut left: usize, range: Range, out: *mut usize) -> usize {
        let mut found = 0;
        while left > 0 {
            let n = left.min(WIDTH);
            // SAFETY: the caller's promise.
            unsafe {
                let mut inside = Self::look(at, n, range);
                while inside != 0 {
                    let word = at.add(inside.trailing_zeros() as usize).read();
                    out.add(found).write(word);
                    inside &= inside - 1;
                    // The program may have changed it, in a cycle beside it.
                    found += usize::from(range.contains(word));
                }
                at = at.add(n);
            }
            left -= n;
        }
        found
    }

    /// [`Located::find`].
    ///
    /// # Safety
    /// The processor has what the form asks for.
    #[inline(always)]
    unsafe fn locate(
        words: &mut [usize; TOGETHER],
        cells: &Cells,
        inner: Inner,
        located: &mut Located,
    ) -> Option<usize> {
        located.find(words, cells, inner)
    }

    /// Finds out where the objects are that the `n` words (1 to [`LANES`](crate::volley::LANES)) at `at` lead to, each in the lane of its
    /// number. `inner` as in [`Located::find`]. The lanes among `others` are left to the caller, with the volley's
    /// width; `asked` has what to ask for, and nothing of it was asked for yet.
    ///
    /// # Safety
    /// The words are readable and inside the heap's range, the records are the heap's, and the processor has what the form asks for.
    #[inline(always)]
    unsafe fn aim(
        _at: *const usize,
        _n: usize,
        _records: Records,
        _inner: Inner,
        _volley: &mut Volley,
        _asked: &mut Asked,
    ) -> Special {
        unreachable!("this form does not aim")
    }

    /// [`Look::collect`] for several objects of 1 to 8 words, in their order; returns how many addresses they have together.
    ///
    /// # Safety
    /// As there, for each; `out` has room for 8 words for each.
    #[inline(always)]
    unsafe fn collect_each(starts: &[usize; TOGETHER], n: usize, ready: Self::Ready, out: *mut usize) -> usize {
        // SAFETY: the caller's promise.
        unsafe {
            if n <= 4 {
                Self::collect_each_of::<4>(starts, n, ready, out)
            } else {
                Self::collect_each_of::<8>(starts, n, ready, out)
            }
        }
    }

    /// The same for lengths as for [`Look::length`].
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    unsafe fn collect_each_of<const MOST: usize>(
        starts: &[usize; TOGETHER],
        n: usize,
        ready: Self::Ready,
        out: *mut usize,
    ) -> usize {
        // SAFETY: the caller's promise.
        unsafe {
            let length = Self::length::<MOST>(n);
            let mut found = 0;
            for start in starts {
                let start = core::ptr::with_exposed_provenance(*start);
                found += Self::collect_alike::<MOST>(start, length, ready, out.add(found));
            }
            found
        }
    }
}

/// Any processor.
pub struct Portable;

impl Look for Portable {
    type Ready = Range;
    type Length = usize;

    #[inline(always)]
    unsafe fn length<const MOST: usize>(n: usize) -> usize {
        n
    }

    #[inline(always)]
    unsafe fn collect_alike<const MOST: usize>(at: *const usize, n: usize, range: Range, out: *mut usize) -> usize {
        // SAFETY: the caller's promise.
        unsafe { Self::collect::<MOST>(at, n, range, out) }
    }

    #[inline(always)]
    unsafe fn ready(range: Range) -> Range {
        range
    }

    #[inline(always)]
    unsafe fn collect<const MOST: usize>(at: *const usize, n: usize, range: Range, out: *mut usize) -> usize {
        let mut found = 0;
        for i in (0..n).rev() {
            // SAFETY: the caller's promise; `found` is less than `n`.
            unsafe {
                let word = at.add(i).read();
                out.add(found).write(word);
                found += usize::from(range.contains(word));
            }
        }
        found
    }

    #[inline(always)]
    unsafe fn look(at: *const usize, n: usize, range: Range) -> u64 {
        const CHUNK: usize = 8;
        // SAFETY: the caller's promise.
        let words = unsafe { core::slice::from_raw_parts(at, n) };
        let (chunks, rest) = words.as_chunks::<CHUNK>();
        let bits = |words: &[usize]| {
            words.iter().enumerate().fold(0u64, |bits, (i, &word)| bits | u64::from(range.contains(word)) << i)
        };
        let mut all = 0;
        for (i, chunk) in chunks.iter().enumerate() {
            // Most words are zero.
            if chunk.iter().fold(0, |or, word| or | word) != 0 {
                all |= bits(chunk) << (i * CHUNK);
            }
        }
        if rest.is_empty() { all } else { all | bits(rest) << (chunks.len() * CHUNK) }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
pub use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub use avx512::Avx512;

/// The forms that there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Form {
    /// [`Portable`].
    Portable = 1,
    /// [`Avx2`].
    Avx2 = 2,
    /// [`Avx2`], and words are looked up eight at a time: [`crate::volley`].
    Avx2Volleys = 3,
    /// [`Avx512`].
    Avx512 = 4,
    /// [`Avx512`], in volleys.
    Avx512Volleys = 5,
}

impl Form {
    const ALL: [Self; 5] = [Self::Portable, Self::Avx2, Self::Avx2Volleys, Self::Avx512, Self::Avx512Volleys];
}

/// What the processor said, or less. Sync: a memory of a constant; 0 before the first question.
static BEST: AtomicU8 = AtomicU8::new(0);

/// Allows no better form than this. Before the first marker begins.
pub fn limit(to: Form) {
    BEST.store(detect().min(to) as u8, Ordering::Relaxed);
}

/// The best form that has been measured to pay. Volleys of AVX-512 do on Intel's cores since Golden Cove; those of AVX2 on AMD's family 25, of which
/// Zen 3 has nothing wider, and on its family 26, where AVX-512 takes a sixth longer in volleys and twice as long without.
pub fn usual() -> Form {
    if larder_sys::cpus::is_intel() { Form::Avx512Volleys } else { Form::Avx2Volleys }
}

/// The best form for this processor and kernel that is allowed.
pub fn best() -> Form {
    let known = BEST.load(Ordering::Relaxed);
    if let Some(form) = Form::ALL.into_iter().find(|&form| form as u8 == known) {
        return form;
    }
    let form = detect().min(usual());
    BEST.store(form as u8, Ordering::Relaxed);
    form
}

/// The last form that the processor has, whether or not it pays: tests try all.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn detect() -> Form {
    Form::Portable
}

/// The last form that the processor has, whether or not it pays: tests try all.
#[cfg(target_arch = "x86_64")]
pub(crate) fn detect() -> Form {
    let simd = larder_sys::cpus::simd();
    if simd.avx512f && simd.bmi2 {
        Form::Avx512Volleys
    } else if simd.avx2 && simd.bmi2 {
        Form::Avx2Volleys
    } else {
        Form::Portable
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agree<L: Look>() {
        let base = 0x7000_0000_0000;
        let range = Range { base, span: 0x10_0000 };
        let special = [0, 1, base - 1, base, base + 1, base + range.span - 1, base + range.span, usize::MAX, 1 << 63];
        let mut seed = 1u64;
        for n in 1..=WIDTH {
            for _ in 0..200 {
                // The words end where the memory ends: nothing behind them may be read.
                let words: Vec<usize> = (0..n)
                    .map(|_| {
                        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                        special[(seed >> 33) as usize % special.len()]
                    })
                    .collect();
                let expected =
                    words.iter().enumerate().fold(0u64, |bits, (i, &w)| bits | u64::from(range.contains(w)) << i);
                // SAFETY: the words are the vector's.
                assert_eq!(unsafe { L::look(words.as_ptr(), n, range) }, expected, "{n} words {words:x?}");
                // What lies behind the room for `n` words is somebody else's.
                let mut out = vec![7; n + NARROW];
                // SAFETY: likewise; there is room for as many.
                let found = unsafe { L::collect_many(words.as_ptr(), n, range, out.as_mut_ptr()) };
                let inside: Vec<usize> = words.iter().copied().filter(|&w| range.contains(w)).collect();
                assert_eq!(out[..found], inside, "{words:x?}");
                assert_eq!(out[n..], [7; NARROW], "{words:x?}");
                // At every place in a line.
                for few in (0..n).map(|skip| &words[skip..n.min(skip + NARROW)]) {
                    let inside: Vec<usize> = few.iter().rev().copied().filter(|&w| range.contains(w)).collect();
                    let mut out = [0; NARROW];
                    // SAFETY: likewise; there is room for as many.
                    let found =
                        unsafe { L::collect_narrow(few.as_ptr(), few.len(), L::ready(range), out.as_mut_ptr()) };
                    assert_eq!(out[..found], inside, "{few:x?}");
                    // SAFETY: likewise.
                    let found =
                        unsafe { L::collect::<NARROW>(few.as_ptr(), few.len(), L::ready(range), out.as_mut_ptr()) };
                    assert_eq!(out[..found], inside, "{few:x?}");
                    // SAFETY: likewise; of the length there are so many chunks.
                    let found = unsafe {
                        match few.len() {
                            1..=4 => alike::<L, 4>(few, range, &mut out),
                            5..=8 => alike::<L, 8>(few, range, &mut out),
                            9..=12 => alike::<L, 12>(few, range, &mut out),
                            _ => alike::<L, NARROW>(few, range, &mut out),
                        }
                    };
                    assert_eq!(out[..found], inside, "{few:x?}");
                }
            }
        }
    }

    /// # Safety
    /// The processor has what the form asks for; there are at most `MOST` words, and more than `MOST` less 4.
    unsafe fn alike<L: Look, const MOST: usize>(words: &[usize], range: Range, out: &mut [usize; NARROW]) -> usize {
        // SAFETY: the caller's promise; there is room for all.
        unsafe {
            let length = L::length::<MOST>(words.len());
            L::collect_alike::<MOST>(words.as_ptr(), length, L::ready(range), out.as_mut_ptr())
        }
    }

    #[test]
    fn all_forms_agree_with_one_comparison_at_a_time() {
        agree::<Portable>();
        #[cfg(target_arch = "x86_64")]
        {
            if detect() >= Form::Avx2 {
                agree::<Avx2>();
            }
            if detect() >= Form::Avx512 {
                agree::<Avx512>();
            }
        }
    }

    #[test]
    fn nothing_behind_the_last_word_is_read() {
        // SAFETY: two pages, the second taken away again.
        unsafe {
            let page = 4096;
            let at = larder_sys::memory::map_lazy(larder_units::Bytes(2 * page)).unwrap().as_ptr();
            larder_sys::memory::unmap(at.add(page), larder_units::Bytes(page));
            let range = Range { base: 1, span: 10 };
            for n in 1..=WIDTH {
                let first = at.add(page).cast::<usize>().sub(n);
                first.write(5);
                let mut forms: Vec<u64> = vec![Portable::look(first, n, range)];
                #[cfg(target_arch = "x86_64")]
                {
                    if detect() >= Form::Avx2 {
                        forms.push(Avx2::look(first, n, range));
                    }
                    if detect() >= Form::Avx512 {
                        forms.push(Avx512::look(first, n, range));
                    }
                }
                assert!(forms.iter().all(|&f| f == 1), "{n} words: {forms:x?}");
                if n <= NARROW {
                    let mut out = [0; NARROW];
                    let found = Portable::collect_narrow(first, n, Portable::ready(range), out.as_mut_ptr());
                    assert_eq!(found, 1);
                    #[cfg(target_arch = "x86_64")]
                    {
                        if detect() >= Form::Avx2 {
                            let ready = Avx2::ready(range);
                            assert_eq!(Avx2::collect_narrow(first, n, ready, out.as_mut_ptr()), 1);
                            assert_eq!(Avx2::collect::<NARROW>(first, n, ready, out.as_mut_ptr()), 1);
                        }
                        if detect() >= Form::Avx512 {
                            let ready = Avx512::ready(range);
                            assert_eq!(Avx512::collect::<NARROW>(first, n, ready, out.as_mut_ptr()), 1);
                        }
                    }
                }
                first.write(0);
            }
            larder_sys::memory::unmap(at, larder_units::Bytes(page));
        }
    }
}
