//! What an entry asks for that is not a short range of words: long ranges, bitmaps, clients' mark procedures, descriptors that name others.

use core::sync::atomic::{AtomicPtr, Ordering};

use larder_policy::ablation::Optimization;
use larder_sys::hint::prefetch;

use super::{Announce, Marker};
use crate::descriptor::{self, Entry, MAX_PROCS, MarkProc};
use crate::hot::{BATCH, PIECE, STEPS, collect_best};
use crate::objects::{Interior, Objects};

/// Client mark procedures, by number.
///
/// Sync: each is set once, under the allocation lock, before objects that name it exist.
static PROCS: [AtomicPtr<()>; MAX_PROCS] = [const { AtomicPtr::new(core::ptr::null_mut()) }; MAX_PROCS];

/// Registers a mark procedure under a number.
pub fn set_proc(number: usize, f: MarkProc) {
    PROCS[number].store(f as *mut (), Ordering::Release);
}

fn proc(number: usize) -> Option<MarkProc> {
    let p = PROCS[number].load(Ordering::Acquire);
    // SAFETY: only `set_proc` stores here, and it stores a `MarkProc`.
    (!p.is_null()).then(|| unsafe { core::mem::transmute::<*mut (), MarkProc>(p) })
}

impl<H: Objects> Marker<'_, H> {
    /// Does what an entry asks for that is not a short range of words.
    ///
    /// # Safety
    /// `out` has room for the words of a piece.
    #[inline(never)]
    pub(super) unsafe fn prepare<const QUEUED: bool>(&mut self, entry: Entry, out: *mut usize, announce: Announce<'_>) {
        match entry.descriptor & descriptor::TAG {
            // SAFETY: the caller's promise.
            descriptor::LENGTH if self.ablation.leaves_out(Optimization::Slo) => unsafe {
                self.scan_whole::<QUEUED>(entry, out, announce);
            },
            descriptor::LENGTH => {
                let tag = entry.descriptor & descriptor::STACK;
                let mut length = entry.descriptor & !7;
                while length > PIECE {
                    let lower = (length / 2) & !7;
                    self.tally.long += if length - lower <= PIECE { length - lower } else { 0 };
                    // SAFETY: inside the entry's range.
                    let upper = unsafe { entry.start.add(lower) };
                    self.own.stack.push(Entry { start: upper, descriptor: (length - lower) | tag });
                    length = lower;
                }
                self.own.stack.push(Entry { descriptor: length | tag, ..entry });
            }
            descriptor::BITMAP => unreachable!("bitmaps are scanned where they are found"),
            descriptor::PROC => {
                if !self.is_put_aside(entry) {
                    self.call_procs(entry);
                }
            }
            _ => {
                if entry.descriptor.cast_signed() < self.resolves_from() && self.is_put_aside(entry) {
                    return;
                }
                // SAFETY: only objects get here, and their kind says where the descriptor is.
                let resolved = unsafe { descriptor::resolve(entry.start, entry.descriptor) };
                // A descriptor that again names itself would never end.
                if resolved & descriptor::TAG != descriptor::PER_OBJECT && resolved != 0 {
                    self.own.stack.push(Entry { descriptor: resolved, ..entry });
                }
            }
        }
    }

    /// Scans a long range to its end (no SLO): nobody else gets a part of it, only of what is found in it.
    ///
    /// # Safety
    /// As for `prepare`.
    unsafe fn scan_whole<const QUEUED: bool>(&mut self, entry: Entry, out: *mut usize, announce: Announce<'_>) {
        let interior =
            if entry.descriptor & descriptor::STACK != 0 { Interior::Always } else { Interior::AsConfigured };
        let range = self.heap.range();
        let mut at = entry.start.cast::<usize>().cast_const();
        let mut left = (entry.descriptor & !7) / size_of::<usize>();
        self.tally.long += left * size_of::<usize>();
        while left > 0 {
            let n = left.min(PIECE / size_of::<usize>());
            // SAFETY: inside the entry's range, as in `drain_with`, and the caller's promise.
            let found = unsafe { collect_best(at, n, range, out) };
            let mut hot = self.lift();
            for i in 0..found {
                // SAFETY: written above.
                let word = unsafe { out.add(i).read() };
                if let Some(place) = self.heap.find(word, interior) {
                    hot.found::<QUEUED>(&mut self.queue, place, word);
                }
            }
            self.lower(hot);
            if self.public.is_some_and(|shared| self.own.stack.len() > shared.form.share_above()) {
                self.share(announce, self.own.stack.len() / 2);
            }
            // SAFETY: at most one past the end.
            at = unsafe { at.add(n) };
            left -= n;
        }
    }

    /// Calls an entry's mark procedure, and those of the newest entries as long as these have one: as many at a time as a batch has, so that what they scan is
    /// asked for before the first of them waits for it. The newest last, so that what is in it comes first.
    fn call_procs(&mut self, newest: Entry) {
        let (mut batch, mut n) = ([newest; BATCH], 1);
        for _ in 0..STEPS / BATCH {
            while n < BATCH
                && let Some(&next) = self.own.stack.cursor().nth_newest(0)
                && next.descriptor & descriptor::TAG == descriptor::PROC
            {
                batch[n] = next;
                n += 1;
                self.own.stack.pop();
            }
            if n > 1 {
                batch[..n].iter().for_each(|entry| prefetch(entry.start.addr()));
            }
            batch[..n].iter().rev().for_each(|&entry| self.call_proc(entry));
            n = 0;
        }
        self.heap.procs_returned();
    }

    fn call_proc(&mut self, entry: Entry) {
        let number = (entry.descriptor >> 2) & (MAX_PROCS - 1);
        let environment = entry.descriptor >> 8;
        let Some(f) = proc(number) else { return };
        let room = self.own.proc_room;
        // What does not fit is dropped by `mark_and_push`, which remembers it as an overflow.
        // SAFETY: `proc_room` holds so many entries; the procedure pushes above the pointer that it gets, as gc_mark.h says.
        unsafe {
            let top = f(entry.start.cast(), room.wrapping_sub(1), room.add(self.own.proc_entries), environment);
            let pushed = top.wrapping_add(1).offset_from(room).max(0) as usize;
            for i in 0..pushed {
                self.own.stack.push(room.add(i).read());
            }
        }
    }
}
