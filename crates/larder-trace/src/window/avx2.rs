//! Four words in an instruction.

use core::arch::x86_64::*;
use core::hint::select_unpredictable;

use larder_units::BLOCK;

use super::{Look, NARROW, Range};
use crate::cells::{Cells, ENOUGH, Located, NEWEST, TOGETHER};
use crate::objects::Inner;
use crate::volley::{Asked, Most, NO_RECORD, NOWHERE, Record, Records, Special, Volley};

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
    /// An address that is not wanted, or none.
    but: __m256i,
}

impl Inside {
    #[inline(always)]
    unsafe fn of(range: Range) -> Self {
        // SAFETY: the caller has AVX2.
        unsafe {
            Self {
                base: _mm256_set1_epi64x((range.base as i64).wrapping_add(i64::MIN)),
                span: _mm256_set1_epi64x((range.span as i64).wrapping_add(i64::MIN)),
                but: _mm256_setzero_si256(),
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

    /// Writes those of the words that are inside and wanted to `out`, in this order, and something behind them; returns how many they are.
    #[inline(always)]
    unsafe fn compress(self, words: __m256i, orders: &Orders, out: *mut usize) -> usize {
        // SAFETY: the caller has AVX2, and there is room for four words.
        unsafe {
            let wanted = _mm256_andnot_si256(_mm256_cmpeq_epi64(words, self.but), self.are(words));
            let bits = bits_of(wanted);
            _mm256_storeu_si256(out.cast(), permuted(words, orders, bits));
            bits.count_ones() as usize
        }
    }
}

/// The lowest bit of each lane: whether a word counts that points so far into an object. What lies beyond 64 bytes does not.
#[inline(always)]
unsafe fn are_near(displacements: __m256i, inner: Inner) -> __m256i {
    // SAFETY: the caller has AVX2.
    unsafe { _mm256_srlv_epi64(_mm256_set1_epi64x(inner.near.cast_signed()), displacements) }
}

/// The same, in all bits of the lane.
#[inline(always)]
unsafe fn count(displacements: __m256i, inner: Inner) -> __m256i {
    // SAFETY: the caller has AVX2.
    unsafe {
        let one = _mm256_set1_epi64x(1);
        _mm256_cmpeq_epi64(_mm256_and_si256(are_near(displacements, inner), one), one)
    }
}

/// Bytes in a cache line, which holds eight words.
const LINE: i64 = 64;

/// The columns of the records of four words' blocks, and what they say of the words.
struct Columns {
    words: __m256i,
    /// The blocks' states, in the lowest bytes, and the bytes in a cell above.
    state_and_cell: __m256i,
    /// The latter alone.
    cells: __m256i,
    /// What is to be scanned in each object.
    descriptors: __m256i,
    /// The numbers of the cells that the words point into.
    numbers: __m256i,
    /// Numbers from here on are no cells'.
    counts: __m256i,
    /// Addresses of the cells' mark bytes.
    marks: __m256i,
    /// Where the cells begin.
    starts: __m256i,
}

impl Columns {
    /// Of the words in the set of `lanes`. Where all four are to lead to first blocks of runs, later blocks' records are taken as they are.
    ///
    /// # Safety
    /// The processor has AVX2; every word in the set has a record.
    #[inline(always)]
    unsafe fn of<const WHOLE: bool>(words: __m256i, lanes: __m256i, records: Records) -> Self {
        /// A block's number from an offset, as the offset of its record.
        const SHIFT: i32 = (BLOCK.0.trailing_zeros() - Record::BYTES.trailing_zeros()) as i32;
        // SAFETY: the caller's promise; a lane without a word reads the record of no block.
        unsafe {
            let offsets = _mm256_sub_epi64(words, _mm256_set1_epi64x(records.base as i64));
            let places =
                _mm256_and_si256(_mm256_srli_epi64::<SHIFT>(offsets), _mm256_set1_epi64x(!(Record::BYTES as i64 - 1)));
            let table = _mm256_set1_epi64x(records.table as i64);
            let places = _mm256_add_epi64(places, table);
            let no_record = _mm256_set1_epi64x((&raw const NO_RECORD).addr() as i64);
            let places = if WHOLE { places } else { _mm256_blendv_epi8(no_record, places, lanes) };
            let (low, high) = (_mm256_castsi256_si128(places), _mm256_extracti128_si256::<1>(places));
            let mut of = [
                _mm_cvtsi128_si64(low),
                _mm_extract_epi64::<1>(low),
                _mm_cvtsi128_si64(high),
                _mm_extract_epi64::<1>(high),
            ];
            let mut within = _mm256_and_si256(offsets, _mm256_set1_epi64x(BLOCK.0 as i64 - 1));
            if !WHOLE {
                of = of.map(|record| records.head_of(record as usize) as i64);
                let places = _mm256_sub_epi64(_mm256_loadu_si256(of.as_ptr().cast()), table);
                within = _mm256_sub_epi64(offsets, _mm256_slli_epi64::<SHIFT>(places));
            }
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
            let granules = _mm256_srli_epi64::<4>(within);
            let numbers = _mm256_srli_epi64::<31>(_mm256_mul_epu32(granules, reciprocal_and_count));
            let cells = _mm256_srli_epi64::<32>(state_and_cell);
            let from = _mm256_mul_epu32(numbers, cells);
            Self {
                words,
                state_and_cell,
                cells,
                descriptors,
                numbers,
                counts: _mm256_srli_epi64::<32>(reciprocal_and_count),
                marks: _mm256_add_epi64(marks, numbers),
                starts: _mm256_add_epi64(_mm256_sub_epi64(words, within), from),
            }
        }
    }

    /// How far into the cells the words point.
    #[inline(always)]
    unsafe fn displacements(&self) -> __m256i {
        // SAFETY: the caller has AVX2.
        unsafe { _mm256_sub_epi64(self.words, self.starts) }
    }

    /// Puts the lanes into the volley, from `lane` on. `good` says which lead to objects. Says in which of these something is scanned.
    #[inline(always)]
    unsafe fn put(
        &self,
        volley: &mut Volley,
        asked: &mut Asked,
        lane: usize,
        good: __m256i,
        marks: __m256i,
    ) -> __m256i {
        // SAFETY: the caller has AVX2; the arrays are as long as two registers, and aligned.
        unsafe {
            let is_leaf = _mm256_cmpeq_epi64(self.descriptors, _mm256_setzero_si256());
            let is_scanned = _mm256_andnot_si256(is_leaf, good);
            let put = |to: &mut [usize; TOGETHER], value| _mm256_store_si256(to.as_mut_ptr().add(lane).cast(), value);
            put(&mut volley.marks, marks);
            put(&mut volley.starts, self.starts);
            put(&mut volley.descriptors, self.descriptors);
            put(&mut volley.bytes, self.cells);
            put(&mut asked.first, _mm256_blendv_epi8(marks, self.words, is_scanned));
            is_scanned
        }
    }

    /// What else to ask for where some objects that are scanned may be longer than a line; which may be, and which longer than two.
    #[inline(always)]
    unsafe fn put_beyond(&self, asked: &mut Asked, lane: usize, is_scanned: __m256i) -> (u32, u32) {
        // SAFETY: as in `put`.
        unsafe {
            let is_above =
                |bytes| _mm256_and_si256(is_scanned, _mm256_cmpgt_epi64(self.cells, _mm256_set1_epi64x(bytes)));
            let is_long = is_above(LINE);
            let first = _mm256_load_si256(asked.first.as_ptr().add(lane).cast());
            let last = _mm256_add_epi64(self.cells, _mm256_set1_epi64x(-1));
            for (beyond, further) in asked.beyond.iter_mut().zip([_mm256_set1_epi64x(LINE), last]) {
                let at = _mm256_add_epi64(first, _mm256_and_si256(is_long, further));
                _mm256_store_si256(beyond.as_mut_ptr().add(lane).cast(), at);
            }
            (bits_of(is_long), bits_of(is_above(2 * LINE)))
        }
    }

    /// Which objects have more than four words to be scanned.
    #[inline(always)]
    unsafe fn are_wider(&self) -> __m256i {
        // SAFETY: the caller has AVX2.
        unsafe { _mm256_cmpgt_epi64(self.descriptors, _mm256_set1_epi64x(LINE / 2)) }
    }
}

/// [`Look::aim`] for eight words that all lead to objects in first blocks of runs of cells; what is in the volley means nothing where it turns
/// out that they do not, and the result is `None`.
#[inline(always)]
unsafe fn aim_whole(
    at: *const usize,
    records: Records,
    inner: Inner,
    volley: &mut Volley,
    asked: &mut Asked,
) -> Option<Special> {
    // SAFETY: the caller has AVX2; every word has a record.
    unsafe {
        // One after the other: the columns of both do not fit into the registers. And what is asked of both is asked once: comparisons of
        // lanes that become one bit in the end are taken apart again by the compiler.
        let lanes = _mm256_set1_epi64x(-1);
        let low = Columns::of::<true>(_mm256_loadu_si256(at.cast()), lanes, records);
        let low_scanned = low.put(volley, asked, 0, lanes, low.marks);
        let high = Columns::of::<true>(_mm256_loadu_si256(at.add(LANES).cast()), lanes, records);
        let high_scanned = high.put(volley, asked, LANES, lanes, high.marks);
        let small = _mm256_set1_epi64x(i64::from(Record::CELLS_STATE));
        let difference = |columns: &Columns| _mm256_xor_si256(columns.state_and_cell, small);
        let other_states = _mm256_or_si256(difference(&low), difference(&high));
        let below_counts = |columns: &Columns| _mm256_sub_epi64(columns.numbers, columns.counts);
        if _mm256_testz_si256(other_states, _mm256_set1_epi64x(0xFF)) == 0
            || bits_of(_mm256_and_si256(below_counts(&low), below_counts(&high))) != 0xF
        {
            return None;
        }
        if !inner.all {
            let one = _mm256_set1_epi64x(1);
            let count = _mm256_and_si256(are_near(low.displacements(), inner), are_near(high.displacements(), inner));
            if _mm256_testc_si256(count, one) == 0 {
                return None;
            }
        }
        let differ = |low, high| {
            let first = _mm256_broadcastq_epi64(_mm256_castsi256_si128(low));
            _mm256_or_si256(_mm256_xor_si256(low, first), _mm256_xor_si256(high, first))
        };
        let differ = _mm256_or_si256(differ(low.descriptors, high.descriptors), differ(low.cells, high.cells));
        // A cell of 64 bytes and less has no higher bit in what is one less.
        let one_less = |columns: &Columns| _mm256_add_epi64(columns.cells, _mm256_set1_epi64x(-1));
        let may_be_long = _mm256_or_si256(one_less(&low), one_less(&high));
        let (mut long, mut longer) = (0, 0);
        if _mm256_testz_si256(may_be_long, _mm256_set1_epi64x(-LINE)) == 0 {
            let low = low.put_beyond(asked, 0, low_scanned);
            let high = high.put_beyond(asked, LANES, high_scanned);
            (long, longer) = (low.0 | high.0 << LANES, low.1 | high.1 << LANES);
        }
        // What is scanned of an object is no longer than its cell.
        volley.alike = _mm256_testz_si256(differ, differ) != 0;
        volley.most = Most::Narrow;
        if !volley.alike && long == 0 {
            let wider = _mm256_or_si256(low.are_wider(), high.are_wider());
            volley.most = if _mm256_testz_si256(wider, wider) == 0 { Most::Eight } else { Most::Four };
        }
        Some(Special { others: 0, long: long as u8, longer: longer as u8 })
    }
}

/// Four lanes of [`Look::aim`], from `lane` on, for the first `n` words (0 to 4) at `at`; the lanes in the result count from there.
#[inline(always)]
unsafe fn aim_half(
    at: *const usize,
    n: usize,
    records: Records,
    inner: Inner,
    volley: &mut Volley,
    asked: &mut Asked,
    lane: usize,
) -> (Special, Most) {
    // SAFETY: the caller has AVX2; every word has a record, and masked lanes are not read.
    unsafe {
        let lanes = first_lanes(n);
        let words = _mm256_maskload_epi64(at.cast(), lanes);
        let columns = Columns::of::<false>(words, lanes, records);
        let states = _mm256_and_si256(columns.state_and_cell, _mm256_set1_epi64x(0xFF));
        let is_small = _mm256_cmpeq_epi64(states, _mm256_set1_epi64x(i64::from(Record::CELLS_STATE)));
        let is_cell = _mm256_cmpgt_epi64(columns.counts, columns.numbers);
        let counts = if inner.all { is_cell } else { count(columns.displacements(), inner) };
        let keeps = _mm256_and_si256(is_cell, counts);
        let good = _mm256_and_si256(is_small, keeps);
        let nowhere = _mm256_set1_epi64x((&raw const NOWHERE).addr() as i64);
        let marks = _mm256_blendv_epi8(nowhere, columns.marks, good);
        let is_scanned = columns.put(volley, asked, lane, good, marks);
        // What points behind the last cell of a run of cells is no object's.
        let is_known = _mm256_or_si256(good, _mm256_andnot_si256(is_cell, is_small));
        let others = bits_of(_mm256_andnot_si256(is_known, lanes)) as u8;
        let (long, longer) = columns.put_beyond(asked, lane, is_scanned);
        let most = if long != 0 {
            Most::Narrow
        } else if bits_of(_mm256_and_si256(is_scanned, columns.are_wider())) != 0 {
            Most::Eight
        } else {
            Most::Four
        };
        (Special { others, long: long as u8, longer: longer as u8 }, most)
    }
}

/// [`Look::aim`] for any words: for fewer than eight, and once more for eight of which one turned out to lead elsewhere.
///
/// # Safety
/// As there.
#[cold]
#[inline(never)]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
unsafe fn aim_any(
    at: *const usize,
    n: usize,
    records: Records,
    inner: Inner,
    volley: &mut Volley,
    asked: &mut Asked,
) -> Special {
    // SAFETY: the caller's promise; the columns are as long as two registers, and aligned.
    unsafe {
        volley.alike = false;
        let (low, low_most) = aim_half(at, n.min(LANES), records, inner, volley, asked, 0);
        if n <= LANES {
            let nowhere = _mm256_set1_epi64x((&raw const NOWHERE).addr() as i64);
            for column in [&mut volley.marks, &mut asked.first].into_iter().chain(&mut asked.beyond) {
                _mm256_store_si256(column.as_mut_ptr().add(LANES).cast(), nowhere);
            }
            volley.most = low_most;
            return low;
        }
        let (high, high_most) = aim_half(at.add(LANES), n - LANES, records, inner, volley, asked, LANES);
        volley.most = low_most.max(high_most);
        Special {
            others: low.others | high.others << LANES,
            long: low.long | high.long << LANES,
            longer: low.longer | high.longer << LANES,
        }
    }
}

/// 4 words in an instruction. Needs AVX2.
pub struct Avx2;

impl Look for Avx2 {
    const AIMS_FAR: bool = true;
    const TELLS_ALIKE: bool = true;

    type Ready = Inside;
    /// The mask of the last chunk.
    type Length = __m256i;

    #[inline(always)]
    unsafe fn length<const MOST: usize>(n: usize) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe { lanes_of(n, MOST - LANES) }
    }

    #[inline(always)]
    unsafe fn collect_alike<const MOST: usize>(
        at: *const usize,
        last: __m256i,
        inside: Inside,
        out: *mut usize,
    ) -> usize {
        // SAFETY: as in `collect`; the chunks before the last are whole.
        unsafe {
            let words = _mm256_maskload_epi64(at.add(MOST - LANES).cast(), last);
            let mut found = inside.compress(words, &BACKWARDS, out);
            for chunk in (0..MOST - LANES).step_by(LANES).rev() {
                found += inside.compress(_mm256_loadu_si256(at.add(chunk).cast()), &BACKWARDS, out.add(found));
            }
            found
        }
    }

    #[inline(always)]
    unsafe fn ready(range: Range) -> Inside {
        // SAFETY: the caller has AVX2.
        unsafe { Inside::of(range) }
    }

    #[inline(always)]
    unsafe fn without(ready: Inside, address: usize) -> Inside {
        // SAFETY: the caller has AVX2.
        Inside { but: unsafe { _mm256_set1_epi64x(address as i64) }, ..ready }
    }

    #[inline(always)]
    unsafe fn look(at: *const usize, n: usize, range: Range) -> u64 {
        // SAFETY: the caller has AVX2; masked lanes are not read.
        unsafe {
            let inside = Inside::of(range);
            let bits = |words| u64::from(inside.bits(words));
            if n == LANES {
                return bits(_mm256_loadu_si256(at.cast()));
            }
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
    unsafe fn aim(
        at: *const usize,
        n: usize,
        records: Records,
        inner: Inner,
        volley: &mut Volley,
        asked: &mut Asked,
    ) -> Special {
        // SAFETY: the caller has AVX2, and vouches for the words and the records.
        unsafe {
            if n == TOGETHER
                && let Some(special) = aim_whole(at, records, inner, volley, asked)
            {
                return special;
            }
            aim_any(at, n, records, inner, volley, asked)
        }
    }

    #[inline(always)]
    unsafe fn locate(
        words: &mut [usize; TOGETHER],
        cells: &Cells,
        inner: Inner,
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
                let counts =
                    if inner.all { _mm256_set1_epi64x(-1) } else { count(_mm256_sub_epi64(within, offsets), inner) };
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
