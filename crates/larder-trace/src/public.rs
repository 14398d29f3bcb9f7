//! The public part of a marker's work list: what others steal from.
//!
//! Two forms. The deque takes the oldest private entries, many at a time, and thieves take them without a lock, up to half of what
//! they see. The thesis's form (3.4.2) is the lower part of the marker's one stack, under a lock, below a watermark that the owner
//! moves to the centre; a thief takes one entry.

use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use larder_sync::worklist::{self, Deque, Watermark};
use larder_sys::memory::{self, ReserveError};
use larder_units::Bytes;

use crate::descriptor::Entry;
use crate::stack::Stack;

/// Entries in a deque.
const ENTRIES: usize = 1024;
/// Most entries that are given away at once.
const SHARE_MOST: usize = 256;
/// Most entries that are taken at once: a page's half stands for less work than it takes to steal it alone.
const AT_ONCE: usize = 32;
const _: () = assert!(size_of::<Entry>() == size_of::<worklist::Entry>());

/// Both forms, of which a round uses one.
pub struct Public {
    deque: Deque,
    watermark: Watermark,
    /// The owner's private stack, whose entries below the watermark are public.
    ///
    /// Sync: written before the marker runs.
    stack: AtomicPtr<Entry>,
}

/// A marker's public part, for the marker.
#[derive(Clone, Copy)]
pub struct Shared<'a> {
    pub(crate) part: &'a Public,
    pub(crate) form: Form,
    /// How many look for work: while nobody does, what was made public would only be taken back. Sync: a hint.
    pub(crate) hungry: &'a AtomicU32,
}

/// The form that a round uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Without locks.
    Deque,
    /// The thesis's.
    Watermark,
}

impl Form {
    /// A marker that has more private entries than this, and nothing public, makes some public.
    pub(crate) const fn share_above(self) -> usize {
        match self {
            Self::Deque => 16,
            // Whenever the public part is empty; a single entry cannot be shared.
            Self::Watermark => 1,
        }
    }
}

impl Public {
    pub(crate) const fn new() -> Self {
        Self { deque: Deque::new(), watermark: Watermark::new(), stack: AtomicPtr::new(core::ptr::null_mut()) }
    }

    /// Gives it memory, once. The marker does not run yet.
    pub(crate) fn set_up(&self, stack: &Stack) -> Result<(), ReserveError> {
        if !self.is_set_up() {
            let slots = memory::map_lazy(Bytes(ENTRIES * size_of::<Entry>()))?;
            // SAFETY: ENTRIES entries, a power of two, used by this deque alone.
            unsafe { self.deque.attach(slots.as_ptr().cast(), ENTRIES) };
            self.stack.store(stack.entries(), Ordering::Relaxed);
        }
        Ok(())
    }

    /// Whether it has its memory.
    pub(crate) fn is_set_up(&self) -> bool {
        !self.stack.load(Ordering::Relaxed).is_null()
    }

    /// Forgets what is public, in a child of fork.
    ///
    /// # Safety
    /// The calling thread is the only one of the process.
    pub(crate) unsafe fn reset_after_fork(&self) {
        // SAFETY: the caller's promise. The watermark is used in rounds of a stopped world only, and no fork happens in one.
        unsafe { self.deque.reset_after_fork() };
    }

    pub(crate) fn is_empty(&self, form: Form) -> bool {
        match form {
            Form::Deque => self.deque.is_empty(),
            Form::Watermark => self.watermark.is_empty(),
        }
    }

    /// Makes the owner's oldest entries public, up to `most`; returns how many. The watermark's form makes half of them public in any case.
    ///
    /// # Safety
    /// The caller is the owner, and the stack is its own.
    pub(crate) unsafe fn share(&self, form: Form, stack: &mut Stack, most: usize) -> usize {
        if form == Form::Watermark {
            // SAFETY: the caller's promise.
            unsafe { stack.share_below(&self.watermark) };
            return self.watermark.len();
        }
        let mut given = 0;
        let most = most.min(SHARE_MOST);
        while given < most {
            let Some(entry) = stack.pop_oldest() else { break };
            // SAFETY: the caller's promise.
            if unsafe { !self.give(entry) } {
                stack.push(entry);
                break;
            }
            given += 1;
        }
        stack.settle();
        given
    }

    /// Puts one entry into the deque; false where that is full.
    ///
    /// # Safety
    /// The caller is the owner, or the owner does not run.
    pub(crate) unsafe fn give(&self, entry: Entry) -> bool {
        // SAFETY: the caller's promise.
        unsafe { self.deque.push([entry.start.expose_provenance(), entry.descriptor]) }.is_ok()
    }

    /// Takes something public back onto the private stack, which is empty; false where there is nothing.
    ///
    /// # Safety
    /// The caller is the owner, and the stack is its own.
    pub(crate) unsafe fn take_back(&self, form: Form, stack: &mut Stack) -> bool {
        match form {
            Form::Deque => self.take(1, stack) > 0,
            // SAFETY: the caller's promise.
            Form::Watermark => unsafe { stack.share_below(&self.watermark) },
        }
    }

    /// Steals onto a stack; returns how many entries.
    pub(crate) fn steal(&self, form: Form, onto: &mut Stack) -> usize {
        if form == Form::Watermark {
            let entries = self.stack.load(Ordering::Relaxed);
            // SAFETY: a public entry of the victim's stack, read under the lock.
            let entry = self.watermark.steal(|i| unsafe { entries.add(i).read() });
            return usize::from(entry.inspect(|entry| onto.push(*entry)).is_some());
        }
        let wanted = self.deque.len().div_ceil(2);
        let mut got = 0;
        while got < wanted {
            match self.take(wanted - got, onto) {
                0 => break,
                n => got += n,
            }
        }
        got
    }

    /// Takes the oldest entries out of the deque, up to `most` and [`AT_ONCE`]; returns how many.
    fn take(&self, most: usize, onto: &mut Stack) -> usize {
        let mut entries = [[0; 2]; AT_ONCE];
        // SAFETY: nothing is popped from the deque, by its owner neither.
        let n = unsafe { self.deque.steal_many(&mut entries[..most.min(AT_ONCE)]) };
        entries[..n].iter().for_each(|&entry| onto.push(entry_of(entry)));
        n
    }
}

fn entry_of([start, descriptor]: worklist::Entry) -> Entry {
    Entry { start: core::ptr::with_exposed_provenance_mut(start), descriptor }
}
