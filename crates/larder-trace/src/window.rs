//! Which of up to 64 words may be addresses of the heap: the inner loop of conservative scanning.
//!
//! Most words of most objects are no addresses, and objects differ in size. So the question is asked of many words at
//! once, without a branch for each: a mispredicted branch costs as much as a cache line. Words behind the last are
//! masked, not read. The best form for the processor is chosen when the first marker begins; all give the same answer.

use core::sync::atomic::{AtomicU8, Ordering};

use crate::cells::{Cells, Located, TOGETHER};
use crate::volley::{Records, Special, Volley};

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

    /// A range, ready for what looks at few words.
    type Ready: Copy;

    /// Makes it ready.
    ///
    /// # Safety
    /// The processor has what the form asks for.
    unsafe fn ready(range: Range) -> Self::Ready;

    /// A bit for each of the first `n` words (1 to [`WIDTH`]) at `at`: whether it is inside the range.
    ///
    /// # Safety
    /// The `n` words are readable, and the processor has what the form asks for.
    unsafe fn look(at: *const usize, n: usize, range: Range) -> u64;

    /// Writes those of the first `n` words (0 to `MOST`, which is 4, 8 or [`NARROW`]) at `at` that are inside the range to `out`, the last one
    /// first, and returns how many they are. No branch depends on the words, nor on their number. The range does not contain 0.
    ///
    /// # Safety
    /// As for `look`; `out` has room for `MOST` words, all of which may be overwritten.
    unsafe fn collect<const MOST: usize>(at: *const usize, n: usize, ready: Self::Ready, out: *mut usize) -> usize;

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
    unsafe fn locate(words: &mut [usize; TOGETHER], cells: &Cells, all: bool, located: &mut Located) -> Option<usize> {
        located.find(words, cells, all)
    }

    /// Finds out where the objects are that the `n` words (1 to [`LANES`](crate::volley::LANES)) at `at` lead to, each in the lane of its
    /// number. `all` as in [`Located::find`]. The lanes among `others` are left to the caller, and nothing was asked for yet.
    ///
    /// # Safety
    /// The words are readable and inside the heap's range, the records are the heap's, and the processor has what the form asks for.
    #[inline(always)]
    unsafe fn aim(_at: *const usize, _n: usize, _records: Records, _all: bool, _volley: &mut Volley) -> Special {
        unreachable!("this form does not aim")
    }

    /// [`Look::collect`] for several objects, in their order; returns how many addresses they have together.
    ///
    /// # Safety
    /// As there, for each; `out` has room for [`NARROW`] words for each.
    #[inline(always)]
    unsafe fn collect_each(starts: &[usize; TOGETHER], n: usize, range: Range, out: *mut usize) -> usize {
        // SAFETY: the caller's promise.
        unsafe {
            let ready = Self::ready(range);
            let mut found = 0;
            for start in starts {
                found += Self::collect_narrow(core::ptr::with_exposed_provenance(*start), n, ready, out.add(found));
            }
            found
        }
    }
}

/// Any processor.
pub struct Portable;

impl Look for Portable {
    type Ready = Range;

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
pub use x86::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use core::arch::x86_64::*;
    use core::hint::select_unpredictable;

    use larder_units::BLOCK;

    use super::{Look, NARROW, Range, WIDTH};
    use crate::cells::{Cells, ENOUGH, Located, NEWEST, TOGETHER};
    use crate::volley::{Most, NO_RECORD, NOWHERE, Record, Records, Special, Volley};

    /// Words in a register of AVX2.
    const LANES: usize = 4;

    /// How the words that are wanted come together: for each set of the four, a bit each, which halves of words to take one after the other.
    type Orders = [[u32; 8]; 16];

    /// Of the four words those in the set, in their order or, `backwards`, the last one first.
    const fn orders(backwards: bool) -> Orders {
        let mut all = [[0; 8]; 16];
        let mut set = 0;
        while set < 16 {
            let (mut i, mut n) = (0, 0);
            while i < LANES {
                let lane = if backwards { LANES - 1 - i } else { i };
                if set >> lane & 1 != 0 {
                    all[set][2 * n] = 2 * lane as u32;
                    all[set][2 * n + 1] = 2 * lane as u32 + 1;
                    n += 1;
                }
                i += 1;
            }
            set += 1;
        }
        all
    }

    static FORWARDS: Orders = orders(false);
    static BACKWARDS: Orders = orders(true);

    /// The mask of the first `n` lanes, 0 to 4.
    #[inline(always)]
    unsafe fn first_lanes(n: usize) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe { lanes_of(n, 0) }
    }

    /// Of `n` words, 0 to [`NARROW`], the mask of those that are among the four from `chunk` on.
    #[inline(always)]
    unsafe fn lanes_of(n: usize, chunk: usize) -> __m256i {
        static MASKS: [i64; 2 * NARROW] = {
            let mut masks = [0; 2 * NARROW];
            let mut i = 0;
            while i < NARROW {
                masks[i] = -1;
                i += 1;
            }
            masks
        };
        debug_assert!(n <= NARROW && chunk + LANES <= NARROW);
        // SAFETY: the caller has AVX2; inside the array.
        unsafe { _mm256_loadu_si256(MASKS.as_ptr().add(NARROW + chunk - n).cast()) }
    }

    /// Of the first `n` words at `at` those among the four from `chunk` on; zero, which is no address, for the others, which are not read.
    #[inline(always)]
    unsafe fn chunk_of(at: *const usize, n: usize, chunk: usize) -> __m256i {
        // The processor asks for the memory of masked lanes, too.
        let from = select_unpredictable(chunk < n, at.wrapping_add(chunk), at);
        // SAFETY: the caller has AVX2, and vouches for the words.
        unsafe { _mm256_maskload_epi64(from.cast(), lanes_of(n, chunk)) }
    }

    /// [`NARROW`] words. (Not an array: its `map` takes a closure, and one that is not inlined has no vector instructions.)
    #[derive(Clone, Copy)]
    struct Quad(__m256i, __m256i, __m256i, __m256i);

    const _: () = assert!(NARROW == 4 * LANES);

    impl Quad {
        /// As [`chunk_of`], all four.
        #[inline(always)]
        unsafe fn of_first(at: *const usize, n: usize) -> Self {
            // SAFETY: the caller's promise.
            unsafe {
                Self(chunk_of(at, n, 0), chunk_of(at, n, LANES), chunk_of(at, n, 2 * LANES), chunk_of(at, n, 3 * LANES))
            }
        }

        #[inline(always)]
        unsafe fn at(at: *const usize) -> Self {
            // SAFETY: the caller has AVX2, and vouches for the words.
            unsafe {
                Self(
                    _mm256_loadu_si256(at.cast()),
                    _mm256_loadu_si256(at.add(LANES).cast()),
                    _mm256_loadu_si256(at.add(2 * LANES).cast()),
                    _mm256_loadu_si256(at.add(3 * LANES).cast()),
                )
            }
        }
    }

    /// The uppermost bit of each lane.
    #[inline(always)]
    unsafe fn bits_of(lanes: __m256i) -> u32 {
        // SAFETY: the caller has AVX2.
        unsafe { _mm256_movemask_pd(_mm256_castsi256_pd(lanes)) as u32 }
    }

    /// The words of the set `bits`, one behind the other, and then some others.
    #[inline(always)]
    unsafe fn permuted(words: __m256i, orders: &Orders, bits: u32) -> __m256i {
        // SAFETY: the caller has AVX2; there is an order for each set of four.
        unsafe {
            let order = _mm256_loadu_si256(orders.as_ptr().add(bits as usize).cast());
            _mm256_permutevar8x32_epi32(words, order)
        }
    }

    /// A range of the heap, in registers. There is only a signed comparison: both sides are moved by half of the range of values.
    #[derive(Clone, Copy)]
    pub struct Inside {
        base: __m256i,
        span: __m256i,
    }

    impl Inside {
        #[inline(always)]
        unsafe fn of(range: Range) -> Self {
            // SAFETY: the caller has AVX2.
            unsafe {
                Self {
                    base: _mm256_set1_epi64x((range.base as i64).wrapping_add(i64::MIN)),
                    span: _mm256_set1_epi64x((range.span as i64).wrapping_add(i64::MIN)),
                }
            }
        }

        /// Which of the words are inside: all bits of their lanes.
        #[inline(always)]
        unsafe fn are(self, words: __m256i) -> __m256i {
            // SAFETY: the caller has AVX2.
            unsafe { _mm256_cmpgt_epi64(self.span, _mm256_sub_epi64(words, self.base)) }
        }

        /// Whether any of them is.
        #[inline(always)]
        unsafe fn any(self, words: Quad) -> bool {
            // SAFETY: the caller has AVX2.
            unsafe {
                let low = _mm256_or_si256(self.are(words.0), self.are(words.1));
                let high = _mm256_or_si256(self.are(words.2), self.are(words.3));
                let any = _mm256_or_si256(low, high);
                _mm256_testz_si256(any, any) == 0
            }
        }

        /// Which are, a bit for each.
        #[inline(always)]
        unsafe fn bits(self, words: __m256i) -> u32 {
            // SAFETY: the caller has AVX2.
            unsafe { bits_of(self.are(words)) }
        }

        /// Writes those of the words that are inside to `out`, in this order, and something behind them; returns how many they are.
        #[inline(always)]
        unsafe fn compress(self, words: __m256i, orders: &Orders, out: *mut usize) -> usize {
            // SAFETY: the caller has AVX2, and there is room for four words.
            unsafe {
                let bits = self.bits(words);
                _mm256_storeu_si256(out.cast(), permuted(words, orders, bits));
                bits.count_ones() as usize
            }
        }
    }

    /// Four lanes of [`Look::aim`], from `lane` on; the lanes in the result count from there.
    #[inline(always)]
    unsafe fn aim_half(
        at: *const usize,
        n: usize,
        records: Records,
        all: bool,
        volley: &mut Volley,
        lane: usize,
    ) -> Special {
        /// Bytes in a cache line, which holds eight words.
        const LINE: i64 = 64;
        /// A block's number from an offset, as the offset of its record.
        const SHIFT: i32 = (BLOCK.0.trailing_zeros() - Record::BYTES.trailing_zeros()) as i32;
        // SAFETY: the caller has AVX2; every word has a record, and a lane without one reads that of no block; the arrays are as long as
        // two registers, and aligned.
        unsafe {
            let lanes = first_lanes(n);
            let words = _mm256_maskload_epi64(at.cast(), lanes);
            let offsets = _mm256_sub_epi64(words, _mm256_set1_epi64x(records.base as i64));
            let places =
                _mm256_and_si256(_mm256_srli_epi64::<SHIFT>(offsets), _mm256_set1_epi64x(!(Record::BYTES as i64 - 1)));
            let places = _mm256_add_epi64(places, _mm256_set1_epi64x(records.table as i64));
            let no_record = _mm256_set1_epi64x((&raw const NO_RECORD).addr() as i64);
            let places = _mm256_blendv_epi8(no_record, places, lanes);
            let (low, high) = (_mm256_castsi256_si128(places), _mm256_extracti128_si256::<1>(places));
            let of = [
                _mm_cvtsi128_si64(low),
                _mm_extract_epi64::<1>(low),
                _mm_cvtsi128_si64(high),
                _mm_extract_epi64::<1>(high),
            ];
            // 16 bytes of the records of every other lane, side by side. The processor reads 16 aligned bytes at once, as all do that have
            // AVX: who changes a record meanwhile shows all of them, or none.
            let two = |lane: usize, byte: usize| {
                let load = |lane: usize| _mm_load_si128(core::ptr::with_exposed_provenance(of[lane] as usize + byte));
                _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(load(lane)), load(lane + 2))
            };
            let (even, odd) = (two(0, Record::STATE), two(1, Record::STATE));
            let state_and_cell = _mm256_unpacklo_epi64(even, odd);
            let reciprocal_and_count = _mm256_unpackhi_epi64(even, odd);
            // ORDER block.publish: Acquire, between the states above and the rest of the records below, with the store in `set_state`.
            core::sync::atomic::fence(core::sync::atomic::Ordering::Acquire);
            let (even, odd) = (two(0, Record::DESCRIPTOR), two(1, Record::DESCRIPTOR));
            let descriptors = _mm256_unpacklo_epi64(even, odd);
            let marks = _mm256_unpackhi_epi64(even, odd);
            let within = _mm256_and_si256(offsets, _mm256_set1_epi64x(BLOCK.0 as i64 - 1));
            let numbers =
                _mm256_srli_epi64::<31>(_mm256_mul_epu32(_mm256_srli_epi64::<4>(within), reciprocal_and_count));
            let counts = _mm256_srli_epi64::<32>(reciprocal_and_count);
            let cells = _mm256_srli_epi64::<32>(state_and_cell);
            let from = _mm256_mul_epu32(numbers, cells);
            let is_cell = _mm256_cmpgt_epi64(counts, numbers);
            let state = _mm256_and_si256(state_and_cell, _mm256_set1_epi64x(0xFF));
            let is_small = _mm256_cmpeq_epi64(state, _mm256_set1_epi64x(i64::from(Record::CELLS_STATE)));
            let keeps = if all { is_cell } else { _mm256_and_si256(is_cell, _mm256_cmpeq_epi64(within, from)) };
            let good = _mm256_and_si256(is_small, keeps);
            let starts = _mm256_add_epi64(_mm256_sub_epi64(words, within), from);
            let nowhere = _mm256_set1_epi64x((&raw const NOWHERE).addr() as i64);
            let marks = _mm256_blendv_epi8(nowhere, _mm256_add_epi64(marks, numbers), good);
            let is_leaf = _mm256_cmpeq_epi64(descriptors, _mm256_setzero_si256());
            let is_scanned = _mm256_andnot_si256(is_leaf, good);
            let is_long = _mm256_and_si256(is_scanned, _mm256_cmpgt_epi64(cells, _mm256_set1_epi64x(LINE)));
            // What points behind the last cell of a run of cells is no object's.
            let is_known = _mm256_or_si256(good, _mm256_andnot_si256(is_cell, is_small));
            let asked = _mm256_blendv_epi8(marks, words, is_scanned);
            let put = |to: &mut [usize; TOGETHER], value| _mm256_store_si256(to.as_mut_ptr().add(lane).cast(), value);
            put(&mut volley.marks, marks);
            put(&mut volley.starts, starts);
            put(&mut volley.descriptors, descriptors);
            put(&mut volley.bytes, cells);
            put(&mut volley.asked, asked);
            let (others, long) = (bits_of(_mm256_andnot_si256(is_known, lanes)) as u8, bits_of(is_long) as u8);
            let is_wider = _mm256_cmpgt_epi64(descriptors, _mm256_set1_epi64x(LINE / 2));
            // What is scanned of an object is no longer than its cell.
            let most = if long != 0 {
                Most::Narrow
            } else if bits_of(_mm256_and_si256(is_scanned, is_wider)) != 0 {
                Most::Eight
            } else {
                Most::Four
            };
            Special { others, long, most }
        }
    }

    /// 4 words in an instruction. Needs AVX2.
    pub struct Avx2;

    impl Look for Avx2 {
        const AIMS_FAR: bool = true;

        type Ready = Inside;

        #[inline(always)]
        unsafe fn ready(range: Range) -> Inside {
            // SAFETY: the caller has AVX2.
            unsafe { Inside::of(range) }
        }

        #[inline(always)]
        unsafe fn look(at: *const usize, n: usize, range: Range) -> u64 {
            // SAFETY: the caller has AVX2; masked lanes are not read.
            unsafe {
                let inside = Inside::of(range);
                let bits = |words| u64::from(inside.bits(words));
                let (mut all, mut i) = (0, 0);
                while i + LANES <= n {
                    all |= bits(_mm256_loadu_si256(at.add(i).cast())) << i;
                    i += LANES;
                }
                if i < n {
                    // A masked word reads as zero, which is no address.
                    all |= bits(_mm256_maskload_epi64(at.add(i).cast(), first_lanes(n - i))) << i;
                }
                all
            }
        }

        #[inline(always)]
        unsafe fn collect<const MOST: usize>(at: *const usize, n: usize, inside: Inside, out: *mut usize) -> usize {
            // SAFETY: the caller has AVX2. As many words as were looked at are in front of `out + found`, at most.
            unsafe {
                let mut found = 0;
                if MOST == NARROW {
                    let words = Quad::of_first(at, n);
                    if !inside.any(words) {
                        return 0;
                    }
                    found += inside.compress(words.3, &BACKWARDS, out);
                    found += inside.compress(words.2, &BACKWARDS, out.add(found));
                    found += inside.compress(words.1, &BACKWARDS, out.add(found));
                    return found + inside.compress(words.0, &BACKWARDS, out.add(found));
                }
                for chunk in (0..MOST).step_by(LANES).rev() {
                    found += inside.compress(chunk_of(at, n, chunk), &BACKWARDS, out.add(found));
                }
                found
            }
        }

        #[inline(always)]
        unsafe fn collect_many(at: *const usize, left: usize, range: Range, out: *mut usize) -> usize {
            // SAFETY: the caller has AVX2; masked lanes are neither read nor written. As many words as are behind `found` in `out` are left
            // to be looked at, so there is room for a whole register but at the end.
            unsafe {
                let inside = Inside::of(range);
                let (whole, rest) = (left & !(LANES - 1), left % LANES);
                let mut found = 0;
                // Long objects are arrays of addresses, or hold hardly any.
                let mut i = 0;
                while i + NARROW <= whole {
                    let words = Quad::at(at.add(i));
                    if inside.any(words) {
                        found += inside.compress(words.0, &FORWARDS, out.add(found));
                        found += inside.compress(words.1, &FORWARDS, out.add(found));
                        found += inside.compress(words.2, &FORWARDS, out.add(found));
                        found += inside.compress(words.3, &FORWARDS, out.add(found));
                    }
                    i += NARROW;
                }
                while i < whole {
                    let words = _mm256_loadu_si256(at.add(i).cast());
                    found += inside.compress(words, &FORWARDS, out.add(found));
                    i += LANES;
                }
                if rest > 0 {
                    let words = _mm256_maskload_epi64(at.add(whole).cast(), first_lanes(rest));
                    // A masked store takes longer than three others on AMD's processors.
                    let mut bits = inside.bits(words);
                    let mut all = [0; LANES];
                    _mm256_storeu_si256(all.as_mut_ptr().cast(), words);
                    while bits != 0 {
                        out.add(found).write(all[bits.trailing_zeros() as usize]);
                        found += 1;
                        bits &= bits - 1;
                    }
                }
                found
            }
        }

        #[inline(always)]
        unsafe fn aim(at: *const usize, n: usize, records: Records, all: bool, volley: &mut Volley) -> Special {
            // SAFETY: the caller has AVX2, and vouches for the words and the records.
            unsafe {
                let low = aim_half(at, n.min(LANES), records, all, volley, 0);
                if n <= LANES {
                    let nowhere = _mm256_set1_epi64x((&raw const NOWHERE).addr() as i64);
                    _mm256_store_si256(volley.marks.as_mut_ptr().add(LANES).cast(), nowhere);
                    _mm256_store_si256(volley.asked.as_mut_ptr().add(LANES).cast(), nowhere);
                    return low;
                }
                let high = aim_half(at.add(LANES), n - LANES, records, all, volley, LANES);
                Special {
                    others: low.others | high.others << LANES,
                    long: low.long | high.long << LANES,
                    most: low.most.max(high.most),
                }
            }
        }

        #[inline(always)]
        unsafe fn locate(
            words: &mut [usize; TOGETHER],
            cells: &Cells,
            all: bool,
            located: &mut Located,
        ) -> Option<usize> {
            // SAFETY: the caller has AVX2; the arrays are as long as two registers.
            unsafe {
                let (mut here, mut valid) = (0u8, 0u8);
                for half in [0, LANES] {
                    let old = _mm256_loadu_si256(words.as_ptr().add(half).cast());
                    let first = _mm256_set1_epi64x(cells.first as i64);
                    let within = _mm256_sub_epi64(old, first);
                    let reciprocal = _mm256_set1_epi64x(i64::from(cells.reciprocal));
                    let numbers = _mm256_srli_epi64::<31>(_mm256_mul_epu32(_mm256_srli_epi64::<4>(within), reciprocal));
                    let offsets = _mm256_mul_epu32(numbers, _mm256_set1_epi64x(cells.bytes as i64));
                    let starts = _mm256_add_epi64(offsets, first);
                    // What lies before the block is a negative number, or a very large one: both are outside.
                    let block = _mm256_set1_epi64x(!(BLOCK.0 as i64 - 1));
                    let is_here = _mm256_cmpeq_epi64(_mm256_and_si256(within, block), _mm256_setzero_si256());
                    let is_cell = _mm256_cmpgt_epi64(_mm256_set1_epi64x(cells.count as i64), numbers);
                    let counts = if all { _mm256_set1_epi64x(-1) } else { _mm256_cmpeq_epi64(within, offsets) };
                    let is_object = _mm256_and_si256(is_cell, counts);
                    // A word behind the last cell is no object's: it is not left over.
                    let is_none = _mm256_andnot_si256(is_cell, is_here);
                    let is_valid = _mm256_and_si256(is_here, is_object);
                    valid |= (bits_of(is_valid) as u8) << half;
                    here |= (bits_of(_mm256_or_si256(is_valid, is_none)) as u8) << half;
                    _mm256_storeu_si256(located.numbers.as_mut_ptr().add(half).cast(), numbers);
                    _mm256_storeu_si256(located.starts.as_mut_ptr().add(half).cast(), starts);
                }
                if valid == u8::MAX {
                    return Some(0);
                }
                if valid.count_ones() < ENOUGH || valid >> NEWEST == 0 {
                    return None;
                }
                Some(located.keep_valid(words, here, valid))
            }
        }
    }

    /// 8 words in an instruction, and no branch beyond the second. Needs AVX-512 F.
    pub struct Avx512;

    impl Look for Avx512 {
        /// Base and span.
        type Ready = [__m512i; 2];

        #[inline(always)]
        unsafe fn ready(range: Range) -> [__m512i; 2] {
            // SAFETY: the caller has AVX-512.
            unsafe { [_mm512_set1_epi64(range.base as i64), _mm512_set1_epi64(range.span as i64)] }
        }

        #[inline(always)]
        unsafe fn look(at: *const usize, n: usize, range: Range) -> u64 {
            const LANES: usize = 8;
            // SAFETY: the caller has AVX-512; masked lanes are not read.
            unsafe {
                let base = _mm512_set1_epi64(range.base as i64);
                let span = _mm512_set1_epi64(range.span as i64);
                let bits = |i: usize, wanted: u8| {
                    // The processor asks for the memory of masked lanes, too.
                    let from = select_unpredictable(wanted == 0, at, at.wrapping_add(i));
                    let words = _mm512_maskz_loadu_epi64(wanted, from.cast());
                    u64::from(_mm512_mask_cmplt_epu64_mask(wanted, _mm512_sub_epi64(words, base), span)) << i
                };
                let wanted = u64::MAX >> (WIDTH - n);
                if n <= LANES {
                    return bits(0, wanted as u8);
                }
                let mut all = 0;
                for i in 0..4 {
                    all |= bits(i * LANES, (wanted >> (i * LANES)) as u8);
                }
                if n > 4 * LANES {
                    for i in 4..8 {
                        all |= bits(i * LANES, (wanted >> (i * LANES)) as u8);
                    }
                }
                all
            }
        }

        #[inline(always)]
        unsafe fn collect<const MOST: usize>(
            at: *const usize,
            n: usize,
            ready @ [base, span]: [__m512i; 2],
            out: *mut usize,
        ) -> usize {
            const LANES: usize = 8;
            if MOST > LANES {
                // SAFETY: the caller's promise, for both halves.
                unsafe {
                    let high = n.saturating_sub(LANES);
                    let found = Self::collect::<LANES>(at.wrapping_add(LANES), high, ready, out);
                    return found + Self::collect::<LANES>(at, n - high, ready, out.add(found));
                }
            }
            // SAFETY: the caller has AVX-512; masked lanes are not read; `out` has room for the whole register. The compressing
            // store would write no more than was found, but takes a hundred cycles on some processors.
            unsafe {
                let wanted = _bzhi_u32(0xFF, n as u32) as u8;
                // Masked lanes are not read, but the processor waits for the line that they are in: of an object that lies in one line,
                // that line is taken.
                let lane = at.addr() / size_of::<usize>() % LANES;
                let fits = lane + n <= LANES;
                let from = select_unpredictable(fits, at.wrapping_sub(lane), at);
                let wanted = select_unpredictable(fits, wanted << lane, wanted);
                let backwards = _mm512_setr_epi64(7, 6, 5, 4, 3, 2, 1, 0);
                // A masked word reads as zero, which is no address.
                let words = _mm512_permutexvar_epi64(backwards, _mm512_maskz_loadu_epi64(wanted, from.cast()));
                let inside = _mm512_cmplt_epu64_mask(_mm512_sub_epi64(words, base), span);
                _mm512_storeu_si512(out.cast(), _mm512_maskz_compress_epi64(inside, words));
                inside.count_ones() as usize
            }
        }

        #[inline(always)]
        unsafe fn collect_many(at: *const usize, left: usize, range: Range, out: *mut usize) -> usize {
            const LANES: usize = 8;
            // SAFETY: the caller has AVX-512; masked lanes are neither read nor written. As many words as are behind `found` in `out` are
            // left to be looked at, so there is room for a whole register but at the end.
            unsafe {
                let base = _mm512_set1_epi64(range.base as i64);
                let span = _mm512_set1_epi64(range.span as i64);
                let inside = |words: __m512i| _mm512_cmplt_epu64_mask(_mm512_sub_epi64(words, base), span);
                let (whole, rest) = (left & !(LANES - 1), left % LANES);
                let mut found = 0;
                for i in (0..whole).step_by(LANES) {
                    let words = _mm512_loadu_epi64(at.add(i).cast());
                    let inside = inside(words);
                    _mm512_storeu_si512(out.add(found).cast(), _mm512_maskz_compress_epi64(inside, words));
                    found += inside.count_ones() as usize;
                }
                if rest > 0 {
                    let lanes = |n: u32| _bzhi_u32(0xFF, n) as u8;
                    let words = _mm512_maskz_loadu_epi64(lanes(rest as u32), at.add(whole).cast());
                    // A masked word reads as zero, which is no address.
                    let inside = inside(words);
                    let kept = lanes(inside.count_ones());
                    _mm512_mask_storeu_epi64(out.add(found).cast(), kept, _mm512_maskz_compress_epi64(inside, words));
                    found += inside.count_ones() as usize;
                }
                found
            }
        }

        #[inline(always)]
        unsafe fn aim(at: *const usize, n: usize, records: Records, all: bool, volley: &mut Volley) -> Special {
            /// Bytes in a cache line, which holds eight words.
            const LINE: i64 = 64;
            // SAFETY: the caller has AVX-512; every word has a record, and a lane without one reads that of no block; the arrays are as
            // long as the register, and aligned.
            unsafe {
                let lanes = _bzhi_u32(0xFF, n as u32) as u8;
                let words = _mm512_maskz_loadu_epi64(lanes, at.cast());
                let offsets = _mm512_sub_epi64(words, _mm512_set1_epi64(records.base as i64));
                let numbers = _mm512_srli_epi64::<{ BLOCK.0.trailing_zeros() }>(offsets);
                let places = _mm512_slli_epi64::<{ Record::BYTES.trailing_zeros() }>(numbers);
                let no_record = _mm512_set1_epi64((&raw const NO_RECORD).addr() as i64);
                let places = _mm512_mask_add_epi64(no_record, lanes, places, _mm512_set1_epi64(records.table as i64));
                let mut of = [0usize; TOGETHER];
                _mm512_storeu_si512(of.as_mut_ptr().cast(), places);
                // 16 bytes of the records of every other lane, side by side. The processor reads 16 aligned bytes at once, as all do that
                // have AVX: who changes a record meanwhile shows all of them, or none.
                let four = |lane: usize, byte: usize| {
                    let load = |lane: usize| _mm_load_si128(core::ptr::with_exposed_provenance(of[lane] + byte));
                    let rows = _mm512_castsi128_si512(load(lane));
                    let rows = _mm512_inserti32x4::<1>(rows, load(lane + 2));
                    let rows = _mm512_inserti32x4::<2>(rows, load(lane + 4));
                    _mm512_inserti32x4::<3>(rows, load(lane + 6))
                };
                let (even, odd) = (four(0, Record::STATE), four(1, Record::STATE));
                let state_and_cell = _mm512_unpacklo_epi64(even, odd);
                let reciprocal_and_count = _mm512_unpackhi_epi64(even, odd);
                // ORDER block.publish: Acquire, between the states above and the rest of the records below, with the store in `set_state`.
                core::sync::atomic::fence(core::sync::atomic::Ordering::Acquire);
                let (even, odd) = (four(0, Record::DESCRIPTOR), four(1, Record::DESCRIPTOR));
                let descriptors = _mm512_unpacklo_epi64(even, odd);
                let marks = _mm512_unpackhi_epi64(even, odd);
                let within = _mm512_and_si512(offsets, _mm512_set1_epi64(BLOCK.0 as i64 - 1));
                let numbers =
                    _mm512_srli_epi64(_mm512_mul_epu32(_mm512_srli_epi64(within, 4), reciprocal_and_count), 31);
                let counts = _mm512_srli_epi64(reciprocal_and_count, 32);
                let cells = _mm512_srli_epi64(state_and_cell, 32);
                let from = _mm512_mul_epu32(numbers, cells);
                let is_cell = _mm512_cmplt_epu64_mask(numbers, counts);
                let state = _mm512_and_si512(state_and_cell, _mm512_set1_epi64(0xFF));
                let is_small = _mm512_cmpeq_epi64_mask(state, _mm512_set1_epi64(i64::from(Record::CELLS_STATE)));
                let keeps = if all { u8::MAX } else { _mm512_cmpeq_epi64_mask(within, from) };
                let good = is_small & is_cell & keeps;
                let starts = _mm512_add_epi64(_mm512_sub_epi64(words, within), from);
                let nowhere = _mm512_set1_epi64((&raw const NOWHERE).addr() as i64);
                let marks = _mm512_mask_add_epi64(nowhere, good, marks, numbers);
                let is_scanned = _mm512_mask_test_epi64_mask(good, descriptors, descriptors);
                let is_long = _mm512_mask_cmpgt_epu64_mask(is_scanned, cells, _mm512_set1_epi64(LINE));
                _mm512_store_si512(volley.marks.as_mut_ptr().cast(), marks);
                _mm512_store_si512(volley.starts.as_mut_ptr().cast(), starts);
                _mm512_store_si512(volley.descriptors.as_mut_ptr().cast(), descriptors);
                _mm512_store_si512(volley.bytes.as_mut_ptr().cast(), cells);
                let asked = _mm512_mask_mov_epi64(marks, is_scanned, words);
                _mm512_store_si512(volley.asked.as_mut_ptr().cast(), asked);
                let others = lanes & !(good | is_small & (!is_cell));
                // What is scanned of an object is no longer than its cell. Four words take one register as eight do.
                let most = if is_long != 0 { Most::Narrow } else { Most::Eight };
                Special { others, long: is_long, most }
            }
        }

        #[inline(always)]
        unsafe fn locate(
            words: &mut [usize; TOGETHER],
            cells: &Cells,
            all: bool,
            located: &mut Located,
        ) -> Option<usize> {
            // SAFETY: the caller has AVX-512; the arrays are as long as the register.
            unsafe {
                let at = words.as_mut_ptr().cast();
                let old = _mm512_loadu_si512(at);
                let first = _mm512_set1_epi64(cells.first as i64);
                let within = _mm512_sub_epi64(old, first);
                let product =
                    _mm512_mul_epu32(_mm512_srli_epi64(within, 4), _mm512_set1_epi64(i64::from(cells.reciprocal)));
                let numbers = _mm512_srli_epi64(product, 31);
                let offsets = _mm512_mul_epu32(numbers, _mm512_set1_epi64(cells.bytes as i64));
                let starts = _mm512_add_epi64(offsets, first);
                let here = _mm512_cmplt_epu64_mask(within, _mm512_set1_epi64(BLOCK.0 as i64));
                let cell = _mm512_cmplt_epu64_mask(numbers, _mm512_set1_epi64(cells.count as i64));
                let counts = if all { u8::MAX } else { _mm512_cmpeq_epi64_mask(within, offsets) };
                let valid = here & cell & counts;
                let mut keep = |numbers, starts| {
                    _mm512_storeu_si512(located.numbers.as_mut_ptr().cast(), numbers);
                    _mm512_storeu_si512(located.starts.as_mut_ptr().cast(), starts);
                };
                if valid == u8::MAX {
                    keep(numbers, starts);
                    return Some(0);
                }
                if valid.count_ones() < ENOUGH || valid >> NEWEST == 0 {
                    return None;
                }
                let left = !(here & (counts | !cell));
                _mm512_storeu_si512(at, _mm512_maskz_compress_epi64(left, old));
                let newest = _mm512_set1_epi64(NEWEST as i64);
                let known = |of| _mm512_mask_mov_epi64(_mm512_permutexvar_epi64(newest, of), valid, of);
                keep(known(numbers), known(starts));
                Some(left.count_ones() as usize)
            }
        }
    }
}

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

/// The best form that has been measured to pay. Volleys of AVX-512 do on Intel's cores since Golden Cove; on others that have it nobody has looked.
/// Those of AVX2 do on AMD's family 25, which has nothing wider.
pub fn usual() -> Form {
    if larder_sys::cpus::is_intel() { Form::Avx512Volleys } else { Form::Avx512 }
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

#[cfg(not(target_arch = "x86_64"))]
fn detect() -> Form {
    Form::Portable
}

#[cfg(target_arch = "x86_64")]
fn detect() -> Form {
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
                }
            }
        }
    }

    #[test]
    fn all_forms_agree_with_one_comparison_at_a_time() {
        agree::<Portable>();
        #[cfg(target_arch = "x86_64")]
        {
            if best() as u8 >= Form::Avx2 as u8 {
                agree::<Avx2>();
            }
            if best() >= Form::Avx512 {
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
                    if best() as u8 >= Form::Avx2 as u8 {
                        forms.push(Avx2::look(first, n, range));
                    }
                    if best() >= Form::Avx512 {
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
                        if best() as u8 >= Form::Avx2 as u8 {
                            let ready = Avx2::ready(range);
                            assert_eq!(Avx2::collect_narrow(first, n, ready, out.as_mut_ptr()), 1);
                            assert_eq!(Avx2::collect::<NARROW>(first, n, ready, out.as_mut_ptr()), 1);
                        }
                        if best() >= Form::Avx512 {
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
