//! Eight words in an instruction.

use core::arch::x86_64::*;
use core::hint::select_unpredictable;

use larder_units::BLOCK;

use super::{Look, Range, WIDTH};
use crate::cells::{Cells, ENOUGH, Located, NEWEST, TOGETHER};
use crate::objects::Inner;
use crate::volley::{Asked, Most, NO_RECORD, NOWHERE, Record, Records, Special, Volley};

/// Whether words count that point so far into an object. What lies beyond 64 bytes does not.
#[inline(always)]
unsafe fn count(displacements: __m512i, inner: Inner) -> u8 {
    // SAFETY: the caller has AVX-512.
    unsafe {
        let near = _mm512_srlv_epi64(_mm512_set1_epi64(inner.near.cast_signed()), displacements);
        _mm512_test_epi64_mask(near, _mm512_set1_epi64(1))
    }
}

/// 8 words in an instruction, and no branch beyond the second. Needs AVX-512 F.
pub struct Avx512;

impl Look for Avx512 {
    /// Base and span.
    type Ready = [__m512i; 2];
    /// One instruction makes a mask of it: nothing is gained where objects have as many words.
    type Length = usize;

    #[inline(always)]
    unsafe fn length<const MOST: usize>(n: usize) -> usize {
        n
    }

    #[inline(always)]
    unsafe fn collect_alike<const MOST: usize>(
        at: *const usize,
        n: usize,
        ready: [__m512i; 2],
        out: *mut usize,
    ) -> usize {
        // SAFETY: the caller's promise.
        unsafe { Self::collect::<MOST>(at, n, ready, out) }
    }

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
    unsafe fn aim(
        at: *const usize,
        n: usize,
        records: Records,
        inner: Inner,
        volley: &mut Volley,
        asked: &mut Asked,
    ) -> Special {
        /// Bytes in a cache line, which holds eight words.
        const LINE: i64 = 64;
        /// The offset of a block's record, as that of the block.
        const SHIFT: u32 = BLOCK.0.trailing_zeros() - Record::BYTES.trailing_zeros();
        // SAFETY: the caller has AVX-512; every word has a record, and a lane without one reads that of no block; the arrays are as
        // long as the register, and aligned.
        unsafe {
            let lanes = _bzhi_u32(0xFF, n as u32) as u8;
            let words = _mm512_maskz_loadu_epi64(lanes, at.cast());
            let offsets = _mm512_sub_epi64(words, _mm512_set1_epi64(records.base as i64));
            let numbers = _mm512_srli_epi64::<{ BLOCK.0.trailing_zeros() }>(offsets);
            let places = _mm512_slli_epi64::<{ Record::BYTES.trailing_zeros() }>(numbers);
            let no_record = _mm512_set1_epi64((&raw const NO_RECORD).addr() as i64);
            let table = _mm512_set1_epi64(records.table as i64);
            let places = _mm512_mask_add_epi64(no_record, lanes, places, table);
            let mut of = [0usize; TOGETHER];
            _mm512_storeu_si512(of.as_mut_ptr().cast(), places);
            // 16 bytes of the records of every other lane, side by side. The processor reads 16 aligned bytes at once, as all do that
            // have AVX: who changes a record meanwhile shows all of them, or none.
            let four = |of: &[usize; TOGETHER], lane: usize, byte: usize| {
                let load = |lane: usize| _mm_load_si128(core::ptr::with_exposed_provenance(of[lane] + byte));
                let rows = _mm512_castsi128_si512(load(lane));
                let rows = _mm512_inserti32x4::<1>(rows, load(lane + 2));
                let rows = _mm512_inserti32x4::<2>(rows, load(lane + 4));
                _mm512_inserti32x4::<3>(rows, load(lane + 6))
            };
            let (mut even, mut odd) = (four(&of, 0, Record::STATE), four(&of, 1, Record::STATE));
            let is_in = |state: u8, state_and_cell| {
                let states = _mm512_and_si512(state_and_cell, _mm512_set1_epi64(0xFF));
                _mm512_cmpeq_epi64_mask(states, _mm512_set1_epi64(i64::from(state)))
            };
            let mut within = _mm512_and_si512(offsets, _mm512_set1_epi64(BLOCK.0 as i64 - 1));
            if is_in(Record::TAIL_STATE, _mm512_unpacklo_epi64(even, odd)) != 0 {
                of = of.map(|record| records.head_of(record));
                let places = _mm512_sub_epi64(_mm512_loadu_si512(of.as_ptr().cast()), table);
                within = _mm512_sub_epi64(offsets, _mm512_slli_epi64::<SHIFT>(places));
                (even, odd) = (four(&of, 0, Record::STATE), four(&of, 1, Record::STATE));
            }
            let state_and_cell = _mm512_unpacklo_epi64(even, odd);
            let reciprocal_and_count = _mm512_unpackhi_epi64(even, odd);
            // ORDER block.publish: Acquire, between the states above and the rest of the records below, with the store in `set_state`.
            core::sync::atomic::fence(core::sync::atomic::Ordering::Acquire);
            let (even, odd) = (four(&of, 0, Record::DESCRIPTOR), four(&of, 1, Record::DESCRIPTOR));
            let descriptors = _mm512_unpacklo_epi64(even, odd);
            let marks = _mm512_unpackhi_epi64(even, odd);
            let numbers = _mm512_srli_epi64(_mm512_mul_epu32(_mm512_srli_epi64(within, 4), reciprocal_and_count), 31);
            let counts = _mm512_srli_epi64(reciprocal_and_count, 32);
            let cells = _mm512_srli_epi64(state_and_cell, 32);
            let from = _mm512_mul_epu32(numbers, cells);
            let is_cell = _mm512_cmplt_epu64_mask(numbers, counts);
            let is_small = is_in(Record::CELLS_STATE, state_and_cell);
            let keeps = if inner.all { u8::MAX } else { count(_mm512_sub_epi64(within, from), inner) };
            let good = is_small & is_cell & keeps;
            let starts = _mm512_add_epi64(_mm512_sub_epi64(words, within), from);
            let nowhere = _mm512_set1_epi64((&raw const NOWHERE).addr() as i64);
            let marks = _mm512_mask_add_epi64(nowhere, good, marks, numbers);
            let is_scanned = _mm512_mask_test_epi64_mask(good, descriptors, descriptors);
            let line = _mm512_set1_epi64(LINE);
            let is_long = _mm512_mask_cmpgt_epu64_mask(is_scanned, cells, line);
            let longer = _mm512_mask_cmpgt_epu64_mask(is_scanned, cells, _mm512_set1_epi64(2 * LINE));
            _mm512_store_si512(volley.marks.as_mut_ptr().cast(), marks);
            _mm512_store_si512(volley.starts.as_mut_ptr().cast(), starts);
            _mm512_store_si512(volley.descriptors.as_mut_ptr().cast(), descriptors);
            _mm512_store_si512(volley.bytes.as_mut_ptr().cast(), cells);
            let first = _mm512_mask_mov_epi64(marks, is_scanned, words);
            _mm512_store_si512(asked.first.as_mut_ptr().cast(), first);
            let last = _mm512_sub_epi64(cells, _mm512_set1_epi64(1));
            for (beyond, further) in asked.beyond.iter_mut().zip([line, last]) {
                let at = _mm512_mask_add_epi64(first, is_long, first, further);
                _mm512_store_si512(beyond.as_mut_ptr().cast(), at);
            }
            let others = lanes & !(good | is_small & (!is_cell));
            // What is scanned of an object is no longer than its cell. Four words take one register as eight do.
            volley.most = if is_long != 0 { Most::Narrow } else { Most::Eight };
            Special { others, long: is_long, longer }
        }
    }

    #[inline(always)]
    unsafe fn locate(
        words: &mut [usize; TOGETHER],
        cells: &Cells,
        inner: Inner,
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
            let counts = if inner.all { u8::MAX } else { count(_mm512_sub_epi64(within, offsets), inner) };
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
