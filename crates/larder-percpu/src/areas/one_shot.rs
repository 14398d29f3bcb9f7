//! One-shot operations: a sequence, and where it refuses, a lock. Offsets are counted from the beginning of the content.

use core::sync::atomic::{AtomicU64, Ordering};

use super::Core;
use crate::sequence::frame::HEADER;
use crate::sequence::list::{list_pop, list_push};
use crate::sequence::region::{self, REFUSED};
use crate::sequence::stack::{self, Batch};
use crate::sequence::transaction::MISMATCH;
use crate::sequence::word::{self, Exchanged};
use crate::sequence::{inlined, level};

impl Core {
    /// Adds to a word.
    ///
    /// # Safety
    /// The word lies in the content.
    #[inline(always)]
    pub unsafe fn add(&self, offset: usize, value: u64) {
        // SAFETY: the frame is set up; the caller vouches for the word.
        if !(self.has_sequences() && unsafe { word::add(&self.frame, HEADER + offset, value) } == 0) {
            // SAFETY: as above.
            unsafe { self.add_slow(offset, value) }
        }
    }

    /// As [`Core::add`], with the sequence inlined.
    ///
    /// # Safety
    /// As for [`Core::add`]; the areas' content is a `T`.
    #[inline(always)]
    pub unsafe fn add_inlined<T>(&self, offset: usize, value: u64) {
        if let Some(rseq_cs) = self.armable()
            // SAFETY: as in `add`.
            && unsafe { inlined::add::<T>(&self.frame, rseq_cs, HEADER + offset, value) }
        {
            return;
        }
        // SAFETY: as in `add`.
        unsafe { self.add_slow(offset, value) }
    }

    /// As [`Core::list_pop`], with the sequence inlined.
    ///
    /// # Safety
    /// As for [`Core::list_pop`]; the areas' content is a `T`.
    #[inline(always)]
    pub unsafe fn list_pop_inlined<T>(&self, offset: usize) -> usize {
        if let Some(rseq_cs) = self.armable() {
            // SAFETY: as in `list_pop`.
            let node = unsafe { inlined::list_pop::<T>(&self.frame, rseq_cs, HEADER + offset) };
            if node != REFUSED {
                return node;
            }
        }
        // SAFETY: the caller's promise.
        unsafe { self.list_pop_again(offset) }
    }

    #[cold]
    unsafe fn list_pop_again(&self, offset: usize) -> usize {
        // SAFETY: as for `list_pop`.
        unsafe { self.list_pop(offset) }
    }

    /// As [`Core::list_push`], with the sequence inlined.
    ///
    /// # Safety
    /// As for [`Core::list_push`]; the areas' content is a `T`.
    #[inline(always)]
    pub unsafe fn list_push_inlined<T>(&self, offset: usize, first: usize, last: usize) {
        if let Some(rseq_cs) = self.armable()
            // SAFETY: as in `list_push`.
            && unsafe { inlined::list_push::<T>(&self.frame, rseq_cs, HEADER + offset, first, last) }
        {
            return;
        }
        // SAFETY: the caller's promise.
        unsafe { self.list_push_again(offset, first, last) }
    }

    #[cold]
    unsafe fn list_push_again(&self, offset: usize, first: usize, last: usize) {
        // SAFETY: as for `list_push`.
        unsafe { self.list_push(offset, first, last) };
    }

    /// [`level::level_bump_guessed`], inlined: the address, or 0 where there is too little, the sequence is refused, or there is none.
    ///
    /// # Safety
    /// As for the sequence; the areas' content is a `T`, and CPUs share them.
    #[inline(always)]
    pub unsafe fn level_bump_inlined<T>(&self, offset: usize, bytes: usize, guess: *mut usize) -> usize {
        self.armable().map_or(0, |rseq_cs| {
            // SAFETY: the frame is set up where there is something to arm; the caller vouches for the rest.
            unsafe { inlined::level_bump_guessed::<T>(&self.frame, rseq_cs, HEADER + offset, bytes, guess) }
        })
    }

    #[cold]
    unsafe fn add_slow(&self, offset: usize, value: u64) {
        // SAFETY: as for `add`.
        if self.prepare() && unsafe { word::add(&self.frame, HEADER + offset, value) } == 0 {
            return;
        }
        self.with_shard(|_, area| {
            // SAFETY: the caller vouches for the word; the lock is held.
            let word = unsafe { word_at(area, offset) };
            word.store(word.load(Ordering::Relaxed).wrapping_add(value), Ordering::Relaxed);
        });
    }

    /// Stores to a word and returns what it was.
    ///
    /// # Safety
    /// As for [`Core::add`].
    #[inline(always)]
    pub unsafe fn exchange(&self, offset: usize, new: u64) -> u64 {
        if self.has_sequences() {
            // SAFETY: as for `add`.
            let Exchanged { old, status } = unsafe { word::exchange(&self.frame, HEADER + offset, new) };
            if status == 0 {
                return old;
            }
        }
        // SAFETY: the caller's promise.
        unsafe { self.exchange_slow(offset, new) }
    }

    #[cold]
    unsafe fn exchange_slow(&self, offset: usize, new: u64) -> u64 {
        if self.prepare() {
            // SAFETY: as for `add`.
            let Exchanged { old, status } = unsafe { word::exchange(&self.frame, HEADER + offset, new) };
            if status == 0 {
                return old;
            }
        }
        self.with_shard(|_, area| {
            // SAFETY: as in `add_slow`.
            let word = unsafe { word_at(area, offset) };
            let old = word.load(Ordering::Relaxed);
            word.store(new, Ordering::Relaxed);
            old
        })
    }

    /// Runs a sequence that returns a status; where it is refused, tries again after `prepare`, and then `locked` with the
    /// shard's area.
    #[inline(always)]
    fn status(&self, sequence: impl Fn() -> u32, locked: impl FnOnce(*mut u8) -> u32) -> u32 {
        if self.has_sequences() {
            let status = sequence();
            if status != word::REFUSED {
                return status;
            }
        }
        self.status_slow(sequence, locked)
    }

    #[cold]
    fn status_slow(&self, sequence: impl Fn() -> u32, locked: impl FnOnce(*mut u8) -> u32) -> u32 {
        if self.prepare() {
            let status = sequence();
            if status != word::REFUSED {
                return status;
            }
        }
        self.with_shard(|_, area| locked(area))
    }

    /// As `status`, for sequences that return a word.
    #[inline(always)]
    fn word(&self, sequence: impl Fn() -> usize, locked: impl FnOnce(*mut u8) -> usize) -> usize {
        if self.has_sequences() {
            let word = sequence();
            if word != REFUSED {
                return word;
            }
        }
        self.word_slow(sequence, locked)
    }

    #[cold]
    fn word_slow(&self, sequence: impl Fn() -> usize, locked: impl FnOnce(*mut u8) -> usize) -> usize {
        if self.prepare() {
            let word = sequence();
            if word != REFUSED {
                return word;
            }
        }
        self.with_shard(|_, area| locked(area))
    }

    /// Stores to a word that is `old`: 0 or `MISMATCH`.
    ///
    /// # Safety
    /// As for [`Core::add`].
    #[inline(always)]
    pub unsafe fn compare_store(&self, offset: usize, old: u64, new: u64) -> u32 {
        self.status(
            // SAFETY: as for `add`.
            || unsafe { word::compare_store(&self.frame, HEADER + offset, old, new) },
            // SAFETY: as in `add_slow`.
            |area| compare_store_locked(unsafe { word_at(area, offset) }, old, new),
        )
    }

    /// Stores to a word that is `old`, if another word is `also`: 0 or `MISMATCH`.
    ///
    /// # Safety
    /// As for [`Core::add`], for both words.
    #[inline(always)]
    pub unsafe fn compare_two_store(&self, offset: usize, old: u64, new: u64, other: usize, also: u64) -> u32 {
        self.status(
            // SAFETY: as for `add`.
            || unsafe { word::compare_two_store(&self.frame, HEADER + offset, old, new, HEADER + other, also) },
            |area| {
                // SAFETY: as in `add_slow`.
                let (word, second) = unsafe { (word_at(area, offset), word_at(area, other)) };
                if second.load(Ordering::Relaxed) != also {
                    return MISMATCH;
                }
                compare_store_locked(word, old, new)
            },
        )
    }

    /// Stores to a pair that is `old`: 0 or `MISMATCH`.
    ///
    /// # Safety
    /// As for [`Core::add`]; the offset is a multiple of 16.
    #[inline(always)]
    pub unsafe fn compare_store_pair(&self, offset: usize, old: [u64; 2], new: [u64; 2]) -> u32 {
        let words = [old[0], old[1], new[0], new[1]];
        self.status(
            // SAFETY: as for `add`.
            || unsafe { word::compare_store_pair(&self.frame, HEADER + offset, &words) },
            // SAFETY: as in `add_slow`.
            |area| unsafe { compare_store_pair_locked(area.add(HEADER + offset).cast(), old, new) },
        )
    }

    /// Takes `bytes` from the region (frontier, limit) at `offset`: its address, or 0.
    ///
    /// # Safety
    /// As for [`Core::add`], for both words; the frontier and `bytes` make no more than `usize::MAX`.
    #[inline(always)]
    pub unsafe fn bump(&self, offset: usize, bytes: usize) -> usize {
        self.word(
            // SAFETY: as for `add`.
            || unsafe { region::bump(&self.frame, HEADER + offset, bytes) },
            // SAFETY: as in `add_slow`.
            |area| unsafe { bump_locked(area, offset, bytes) },
        )
    }

    /// As [`Core::bump`], and stores `header` to the first word.
    ///
    /// # Safety
    /// As for [`Core::bump`]; the region's memory is writable, and `bytes` is at least 8.
    #[inline(always)]
    pub unsafe fn bump_header(&self, offset: usize, bytes: usize, header: u64) -> usize {
        self.word(
            // SAFETY: as for `add`.
            || unsafe { region::bump_header(&self.frame, HEADER + offset, bytes, header) },
            |area| {
                // SAFETY: as in `add_slow`.
                let at = unsafe { bump_locked(area, offset, bytes) };
                if at != 0 {
                    // SAFETY: the bytes are the caller's now; it vouches for the region's memory.
                    unsafe { AtomicU64::from_ptr(core::ptr::with_exposed_provenance_mut(at)) }
                        .store(header, Ordering::Relaxed);
                }
                at
            },
        )
    }

    /// Takes the first node of the list at `offset`, or 0.
    ///
    /// # Safety
    /// As for [`Core::add`]; what is in the list is readable until it is taken.
    #[inline(always)]
    pub unsafe fn list_pop(&self, offset: usize) -> usize {
        self.word(
            // SAFETY: as for `add`.
            || unsafe { list_pop(&self.frame, HEADER + offset) },
            |area| {
                // SAFETY: as in `add_slow`; the node is in the list, so its first word is readable.
                unsafe {
                    let head = word_at(area, offset);
                    let first = head.load(Ordering::Relaxed) as usize;
                    if first != 0 {
                        head.store(next_of(first).load(Ordering::Relaxed), Ordering::Relaxed);
                    }
                    first
                }
            },
        )
    }

    /// Puts a chain before the first node of the list at `offset`.
    ///
    /// # Safety
    /// As for [`Core::add`]; the chain from `first` to `last` is the caller's, and stays readable while it is in the list.
    #[inline(always)]
    pub unsafe fn list_push(&self, offset: usize, first: usize, last: usize) {
        self.status(
            // SAFETY: as for `add`.
            || unsafe { list_push(&self.frame, HEADER + offset, first, last) },
            |area| {
                // SAFETY: as in `add_slow`; the last node is the caller's.
                unsafe {
                    let head = word_at(area, offset);
                    next_of(last).store(head.load(Ordering::Relaxed), Ordering::Relaxed);
                    head.store(first as u64, Ordering::Relaxed);
                }
                0
            },
        );
    }

    /// Takes the last word of the stack at `offset`, or 0.
    ///
    /// # Safety
    /// As for [`Core::add`], for the count and the words.
    #[inline(always)]
    pub unsafe fn stack_pop(&self, offset: usize) -> usize {
        self.word(
            // SAFETY: as for `add`.
            || unsafe { stack::stack_pop(&self.frame, HEADER + offset) },
            |area| {
                let mut word = 0;
                // SAFETY: as in `add_slow`.
                let taken = unsafe { stack_pop_locked(area, offset, core::slice::from_mut(&mut word)) };
                if taken == 0 { 0 } else { word }
            },
        )
    }

    /// Puts a word on the stack at `offset`; false when it is full.
    ///
    /// # Safety
    /// As for [`Core::stack_pop`]; the stack has room for `capacity` words.
    #[inline(always)]
    pub unsafe fn stack_push(&self, offset: usize, value: usize, capacity: usize) -> bool {
        self.status(
            // SAFETY: as for `add`.
            || unsafe { stack::stack_push(&self.frame, HEADER + offset, value, capacity) },
            |area| {
                // SAFETY: as in `add_slow`.
                let put = unsafe { stack_push_locked(area, offset, &[value], capacity) };
                if put == 1 { 0 } else { MISMATCH }
            },
        ) == 0
    }

    /// Takes up to as many words as `into` has, last first; says how many.
    ///
    /// # Safety
    /// As for [`Core::stack_pop`].
    pub unsafe fn stack_pop_many(&self, offset: usize, into: &mut [usize]) -> usize {
        let batch = Batch { offset: HEADER + offset, words: into.as_mut_ptr(), count: into.len(), capacity: 0 };
        self.word(
            // SAFETY: as for `add`; the words are the caller's.
            || unsafe { stack::stack_pop_many(&self.frame, &batch) },
            // SAFETY: as in `add_slow`; nobody else uses the words.
            |area| unsafe { stack_pop_locked(area, offset, core::slice::from_raw_parts_mut(batch.words, batch.count)) },
        )
    }

    /// Puts as many of the words on the stack as there is room for; says how many.
    ///
    /// # Safety
    /// As for [`Core::stack_push`].
    pub unsafe fn stack_push_many(&self, offset: usize, words: &[usize], capacity: usize) -> usize {
        let batch = Batch { offset: HEADER + offset, words: words.as_ptr().cast_mut(), count: words.len(), capacity };
        self.word(
            // SAFETY: as for `add`; the sequence only reads the words.
            || unsafe { stack::stack_push_many(&self.frame, &batch) },
            // SAFETY: as in `add_slow`.
            |area| unsafe { stack_push_locked(area, offset, words, capacity) },
        )
    }

    // Levels.

    /// As [`Core::bump`], on a level.
    ///
    /// # Safety
    /// As for [`Core::bump`]; the domain is by level, and the offset a multiple of 16.
    #[inline(always)]
    pub unsafe fn level_bump(&self, offset: usize, bytes: usize) -> usize {
        self.word(
            // SAFETY: as for `add`.
            || unsafe { level::level_bump(&self.frame, HEADER + offset, bytes) },
            // SAFETY: as in `add_slow`.
            |area| unsafe { bump_locked(area, offset, bytes) },
        )
    }

    /// As [`Core::add`], on a level.
    ///
    /// # Safety
    /// As for [`Core::add`]; the domain is by level.
    #[inline(always)]
    pub unsafe fn level_add(&self, offset: usize, value: u64) {
        self.status(
            // SAFETY: as for `add`.
            || unsafe { level::level_add(&self.frame, HEADER + offset, value) },
            |area| {
                // SAFETY: as in `add_slow`.
                let word = unsafe { word_at(area, offset) };
                word.store(word.load(Ordering::Relaxed).wrapping_add(value), Ordering::Relaxed);
                0
            },
        );
    }

    /// As [`Core::compare_store`], on a level.
    ///
    /// # Safety
    /// As for [`Core::level_add`].
    #[inline(always)]
    pub unsafe fn level_compare_store(&self, offset: usize, old: u64, new: u64) -> u32 {
        self.status(
            // SAFETY: as for `add`.
            || unsafe { level::level_compare_store(&self.frame, HEADER + offset, old, new) },
            // SAFETY: as in `add_slow`.
            |area| compare_store_locked(unsafe { word_at(area, offset) }, old, new),
        )
    }

    /// As [`Core::compare_store_pair`], on a level.
    ///
    /// # Safety
    /// As for [`Core::level_add`]; the offset is a multiple of 16.
    #[inline(always)]
    pub unsafe fn level_compare_store_pair(&self, offset: usize, old: [u64; 2], new: [u64; 2]) -> u32 {
        let words = [old[0], old[1], new[0], new[1]];
        self.status(
            // SAFETY: as for `add`.
            || unsafe { level::level_compare_store_pair(&self.frame, HEADER + offset, &words) },
            // SAFETY: as in `add_slow`.
            |area| unsafe { compare_store_pair_locked(area.add(HEADER + offset).cast(), old, new) },
        )
    }
}

/// # Safety
/// The word lies in the area's content.
unsafe fn word_at<'a>(area: *mut u8, offset: usize) -> &'a AtomicU64 {
    // SAFETY: the caller's promise; areas are mapped as long as the domain lives.
    unsafe { AtomicU64::from_ptr(area.add(HEADER + offset).cast()) }
}

/// # Safety
/// A node of a list, or the caller's own.
unsafe fn next_of<'a>(node: usize) -> &'a AtomicU64 {
    // SAFETY: a node's first word is the next one's address.
    unsafe { AtomicU64::from_ptr(core::ptr::with_exposed_provenance_mut(node)) }
}

fn compare_store_locked(word: &AtomicU64, old: u64, new: u64) -> u32 {
    if word.load(Ordering::Relaxed) != old {
        return MISMATCH;
    }
    word.store(new, Ordering::Relaxed);
    0
}

/// Both words by one instruction: a fork may copy the memory while another thread is in here.
///
/// # Safety
/// The pair is writable, at a multiple of 16, and the lock that guards it is held.
pub(super) unsafe fn compare_store_pair_locked(at: *mut u64, old: [u64; 2], new: [u64; 2]) -> u32 {
    let done: u8;
    // SAFETY: the caller's promise; rbx, which the compiler keeps for itself, is put back.
    unsafe {
        core::arch::asm!(
            "xchg rbx, rsi",
            "cmpxchg16b xmmword ptr [rdi]",
            "sete r8b",
            "xchg rbx, rsi",
            in("rdi") at,
            inout("rsi") new[0] => _,
            in("rcx") new[1],
            inout("rax") old[0] => _,
            inout("rdx") old[1] => _,
            out("r8b") done,
            options(nostack),
        );
    }
    if done != 0 { 0 } else { MISMATCH }
}

/// # Safety
/// As for [`Core::bump`]; the shard's lock is held.
unsafe fn bump_locked(area: *mut u8, offset: usize, bytes: usize) -> usize {
    // SAFETY: the caller's promise.
    let (frontier, limit) = unsafe { (word_at(area, offset), word_at(area, offset + 8)) };
    let at = frontier.load(Ordering::Relaxed) as usize;
    let next = at.wrapping_add(bytes);
    if next > limit.load(Ordering::Relaxed) as usize {
        return 0;
    }
    frontier.store(next as u64, Ordering::Relaxed);
    at
}

/// # Safety
/// As for [`Core::stack_pop`]; the shard's lock is held.
unsafe fn stack_pop_locked(area: *mut u8, offset: usize, into: &mut [usize]) -> usize {
    // SAFETY: the caller's promise.
    let count = unsafe { word_at(area, offset) };
    let mut left = count.load(Ordering::Relaxed) as usize;
    let taken = left.min(into.len());
    for word in &mut into[..taken] {
        // SAFETY: word `left` of the stack, counted from one.
        *word = unsafe { word_at(area, offset + left * 8) }.load(Ordering::Relaxed) as usize;
        left -= 1;
    }
    count.store(left as u64, Ordering::Relaxed);
    taken
}

/// # Safety
/// As for [`Core::stack_push`]; the shard's lock is held.
unsafe fn stack_push_locked(area: *mut u8, offset: usize, words: &[usize], capacity: usize) -> usize {
    // SAFETY: the caller's promise.
    let count = unsafe { word_at(area, offset) };
    let mut used = count.load(Ordering::Relaxed) as usize;
    let put = capacity.saturating_sub(used).min(words.len());
    for word in &words[..put] {
        used += 1;
        // SAFETY: as in `stack_pop_locked`; there is room.
        unsafe { word_at(area, offset + used * 8) }.store(*word as u64, Ordering::Relaxed);
    }
    count.store(used as u64, Ordering::Relaxed);
    put
}
