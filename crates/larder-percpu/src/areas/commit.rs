//! Begin and the commits: a sequence, and where it refuses, a lock.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::one_shot::compare_store_pair_locked;
use super::{Core, LOCKED, Ticket};
use crate::locked::{self, Held};
use crate::sequence::Header;
use crate::sequence::inlined::{self, Hold, NotStored};
use crate::sequence::transaction::{self as commit, MISMATCH, PairRequest};

impl Core {
    /// Begins a transaction. Not on levels: a token says nothing about another CPU of the area.
    #[inline(always)]
    pub fn begin(&self) -> Ticket {
        if self.has_sequences() {
            // SAFETY: the frame is set up and has indices.
            let begun = unsafe { commit::begin(&self.frame) };
            if begun.token != 0 {
                return Ticket { token: begun.token, index: begun.index as u32, locked: 0 };
            }
        }
        self.begin_slow()
    }

    /// As [`Core::begin`], with the sequence inlined: for code that commits by what it gets.
    ///
    /// # Safety
    /// The areas' content is a `T`.
    #[inline(always)]
    pub unsafe fn begin_inlined<T>(&self) -> Hold {
        debug_assert!(size_of::<T>() == self.content);
        if let Some(rseq_cs) = self.armable() {
            // SAFETY: the frame can be armed; the caller vouches for the type.
            let hold = unsafe { inlined::begin::<T>(&self.frame, rseq_cs) };
            if hold.token != 0 {
                return hold;
            }
        }
        // Made here of two words, so that a hold has no place in memory that the fast path would have to write.
        let ticket = self.begin_slow();
        let frame = &self.frame;
        Hold {
            token: ticket.token,
            index: ticket.index.into(),
            content: self.content(ticket.index as usize),
            rseq_cs: if ticket.locked == 0 { frame.rseq_cs.load(Ordering::Relaxed) } else { Hold::LOCKED },
            index_word: frame.index.load(Ordering::Relaxed),
        }
    }

    #[cold]
    fn begin_slow(&self) -> Ticket {
        if self.prepare() {
            // SAFETY: `prepare` says that there are sequences.
            let begun = unsafe { commit::begin(&self.frame) };
            if begun.token != 0 {
                return Ticket { token: begun.token, index: begun.index as u32, locked: 0 };
            }
        }
        self.with_shard(|index, area| {
            // SAFETY: the shard's header; its lock is held.
            let token = unsafe { &(*area.cast::<Header>()).token };
            let new = token.load(Ordering::Relaxed) + 1;
            token.store(new, Ordering::Relaxed);
            Ticket { token: new, index: index as u32, locked: LOCKED }
        })
    }

    /// Whether nobody has begun on the ticket's index since, the thread is there, and it is open. A hint: the commit decides.
    #[inline]
    pub fn holds(&self, ticket: Ticket) -> bool {
        if ticket.token == 0 {
            return false;
        }
        let header = self.header(ticket.index as usize);
        header.closed.load(Ordering::Relaxed) == 0
            && header.token.load(Ordering::Relaxed) == ticket.token
            && (ticket.locked != 0 || self.current_index() == Some(ticket.index as usize))
    }

    /// Runs a commit under the lock of the ticket's shard.
    #[cold]
    fn commit_slow(&self, ticket: Ticket, commit: impl FnOnce() -> u32) -> u32 {
        if ticket.locked == 0 {
            return commit::INTERFERED;
        }
        self.by_lock.fetch_add(1, Ordering::Relaxed);
        let index = ticket.index as usize;
        let is_spare = index + 1 == self.areas();
        let header = self.header(index);
        // Code that interrupted a holder may wait only for the spare shard.
        let held = if is_spare || !locked::is_inside() {
            Held::wait(header, is_spare).ok()
        } else {
            Held::try_hold(header, false).ok().flatten()
        };
        let Some(_held) = held else { return commit::INTERFERED };
        if header.token.load(Ordering::Relaxed) != ticket.token {
            return commit::INTERFERED;
        }
        commit()
    }

    /// Stores 32 bits: 0, or `INTERFERED`.
    ///
    /// # Safety
    /// `at` is writable and aligned; while transactions run, only they and compare forms on this index write there.
    #[inline(always)]
    pub unsafe fn store_32(&self, ticket: Ticket, at: *mut u32, value: u32) -> u32 {
        if self.has_sequences() {
            // SAFETY: the frame is set up; the caller vouches for the place.
            let status =
                unsafe { commit::commit_store_32(&self.frame, ticket.packed().into(), ticket.token, at, value) };
            if status == 0 {
                return 0;
            }
        }
        // SAFETY: as above; the lock is held.
        self.commit_slow(ticket, || unsafe {
            AtomicU32::from_ptr(at).store(value, Ordering::Relaxed);
            0
        })
    }

    /// Stores 64 bits: 0, or `INTERFERED`.
    ///
    /// # Safety
    /// As for [`Core::store_32`].
    #[inline(always)]
    pub unsafe fn store_64(&self, ticket: Ticket, at: *mut u64, value: u64) -> u32 {
        if self.has_sequences() {
            // SAFETY: the frame is set up; the caller vouches for the place.
            let status =
                unsafe { commit::commit_store_64(&self.frame, ticket.packed().into(), ticket.token, at, value) };
            if status == 0 {
                return 0;
            }
        }
        // SAFETY: as above; the lock is held.
        self.commit_slow(ticket, || unsafe {
            AtomicU64::from_ptr(at).store(value, Ordering::Relaxed);
            0
        })
    }

    /// Stores 32 bits where there are `old`: 0, `INTERFERED` or `MISMATCH`.
    ///
    /// # Safety
    /// As for [`Core::store_32`].
    #[inline(always)]
    pub unsafe fn compare_32(&self, ticket: Ticket, at: *mut u32, old: u32, new: u32) -> u32 {
        if self.has_sequences() {
            // SAFETY: the frame is set up; the caller vouches for the place.
            let status =
                unsafe { commit::commit_compare_32(&self.frame, ticket.packed().into(), ticket.token, at, old, new) };
            if status != commit::INTERFERED {
                return status;
            }
        }
        self.commit_slow(ticket, || {
            // SAFETY: as above; the lock is held.
            let word = unsafe { AtomicU32::from_ptr(at) };
            if word.load(Ordering::Relaxed) != old {
                return MISMATCH;
            }
            word.store(new, Ordering::Relaxed);
            0
        })
    }

    /// Stores 64 bits where there are `old`: 0, `INTERFERED` or `MISMATCH`.
    ///
    /// # Safety
    /// As for [`Core::store_32`].
    #[inline(always)]
    pub unsafe fn compare_64(&self, ticket: Ticket, at: *mut u64, old: u64, new: u64) -> u32 {
        if self.has_sequences() {
            // SAFETY: the frame is set up; the caller vouches for the place.
            let status =
                unsafe { commit::commit_compare_64(&self.frame, ticket.packed().into(), ticket.token, at, old, new) };
            if status != commit::INTERFERED {
                return status;
            }
        }
        self.commit_slow(ticket, || {
            // SAFETY: as above; the lock is held.
            let word = unsafe { AtomicU64::from_ptr(at) };
            if word.load(Ordering::Relaxed) != old {
                return MISMATCH;
            }
            word.store(new, Ordering::Relaxed);
            0
        })
    }

    /// Stores a pair where there is `old`: 0, `INTERFERED` or `MISMATCH`.
    ///
    /// # Safety
    /// As for [`Core::store_32`]; the address is a multiple of 16.
    #[inline(always)]
    pub unsafe fn compare_pair(&self, ticket: Ticket, at: *mut u64, old: [u64; 2], new: [u64; 2]) -> u32 {
        if self.has_sequences() {
            let request = PairRequest { old, new, address: at, index: ticket.packed().into(), token: ticket.token };
            // SAFETY: the frame is set up; the caller vouches for the place.
            let status = unsafe { commit::commit_pair(&self.frame, &request) };
            if status != commit::INTERFERED {
                return status;
            }
        }
        // SAFETY: as above; the lock is held.
        self.commit_slow(ticket, || unsafe { compare_store_pair_locked(at, old, new) })
    }

    // The same with inlined sequences. A hold that was begun by a sequence is committed by sequences only.

    /// As [`Core::store_32`].
    ///
    /// # Safety
    /// As there; the hold is from [`Core::begin_inlined`] of this domain.
    #[inline(always)]
    pub unsafe fn store_32_inlined(&self, hold: Hold, at: *mut u32, value: u32) -> bool {
        if hold.is_locked() {
            // SAFETY: the caller's promise.
            return unsafe { self.store_32_locked(Ticket::of(hold), at, value) };
        }
        // SAFETY: the caller's promise; a sequence has begun it, so there are sequences.
        unsafe { inlined::commit_store_32(hold, at, value) }
    }

    /// As [`Core::store_64`].
    ///
    /// # Safety
    /// As for [`Core::store_32_inlined`].
    #[inline(always)]
    pub unsafe fn store_64_inlined(&self, hold: Hold, at: *mut u64, value: u64) -> bool {
        if hold.is_locked() {
            // SAFETY: the caller's promise.
            return unsafe { self.store_64_locked(Ticket::of(hold), at, value) };
        }
        // SAFETY: as in `store_32_inlined`.
        unsafe { inlined::commit_store_64(hold, at, value) }
    }

    /// As [`Core::compare_32`].
    ///
    /// # Safety
    /// As for [`Core::store_32_inlined`].
    #[inline(always)]
    pub unsafe fn compare_32_inlined(&self, hold: Hold, at: *mut u32, old: u32, new: u32) -> Result<(), NotStored> {
        if hold.is_locked() {
            // SAFETY: the caller's promise.
            return unsafe { self.compare_32_locked(Ticket::of(hold), at, old, new) };
        }
        // SAFETY: as in `store_32_inlined`.
        unsafe { inlined::commit_compare_32(hold, at, old, new) }
    }

    /// As [`Core::compare_64`].
    ///
    /// # Safety
    /// As for [`Core::store_32_inlined`].
    #[inline(always)]
    pub unsafe fn compare_64_inlined(&self, hold: Hold, at: *mut u64, old: u64, new: u64) -> Result<(), NotStored> {
        if hold.is_locked() {
            // SAFETY: the caller's promise.
            return unsafe { self.compare_64_locked(Ticket::of(hold), at, old, new) };
        }
        // SAFETY: as in `store_32_inlined`.
        unsafe { inlined::commit_compare_64(hold, at, old, new) }
    }

    /// As [`Core::compare_pair`].
    ///
    /// # Safety
    /// As for [`Core::store_32_inlined`]; the address is a multiple of 16.
    #[inline(always)]
    pub unsafe fn compare_pair_inlined(
        &self,
        hold: Hold,
        at: *mut u64,
        old: [u64; 2],
        new: [u64; 2],
    ) -> Result<(), NotStored> {
        if hold.is_locked() {
            // SAFETY: the caller's promise.
            return unsafe { self.compare_pair_locked(Ticket::of(hold), at, old[0], old[1], new[0], new[1]) };
        }
        // SAFETY: as in `store_32_inlined`.
        unsafe { inlined::commit_pair(hold, at, old, new) }
    }

    #[cold]
    unsafe fn store_32_locked(&self, ticket: Ticket, at: *mut u32, value: u32) -> bool {
        // SAFETY: as for `store_32_inlined`.
        unsafe { self.store_32(ticket, at, value) == 0 }
    }

    #[cold]
    unsafe fn store_64_locked(&self, ticket: Ticket, at: *mut u64, value: u64) -> bool {
        // SAFETY: as for `store_64_inlined`.
        unsafe { self.store_64(ticket, at, value) == 0 }
    }

    #[cold]
    unsafe fn compare_32_locked(&self, ticket: Ticket, at: *mut u32, old: u32, new: u32) -> Result<(), NotStored> {
        // SAFETY: as for `compare_32_inlined`.
        stored(unsafe { self.compare_32(ticket, at, old, new) })
    }

    #[cold]
    unsafe fn compare_64_locked(&self, ticket: Ticket, at: *mut u64, old: u64, new: u64) -> Result<(), NotStored> {
        // SAFETY: as for `compare_64_inlined`.
        stored(unsafe { self.compare_64(ticket, at, old, new) })
    }

    /// The words one by one: as arrays they would have addresses, and the fast path would have to write them there.
    #[cold]
    unsafe fn compare_pair_locked(
        &self,
        ticket: Ticket,
        at: *mut u64,
        old: u64,
        old_second: u64,
        new: u64,
        new_second: u64,
    ) -> Result<(), NotStored> {
        // SAFETY: as for `compare_pair_inlined`.
        stored(unsafe { self.compare_pair(ticket, at, [old, old_second], [new, new_second]) })
    }
}

/// What a commit's status says.
fn stored(status: u32) -> Result<(), NotStored> {
    match status {
        0 => Ok(()),
        MISMATCH => Err(NotStored::Mismatch),
        _ => Err(NotStored::Interfered),
    }
}
