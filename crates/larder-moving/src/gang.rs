//! The collectors of a heap: the thread that collects and its helpers, who sleep between collections.
//!
//! The rules are those of the marking crew of `larder-trace`: nobody waits for a helper that the kernel has not scheduled;
//! it counts as idle, and the gate keeps it out of a phase that is over. Unlike there, a heap has a gang of its own, and
//! runs several phases in a collection: those that trace, with work lists and termination, and those that take numbered
//! pieces from a counter.

use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::ops::Range;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use larder_sync::gate::Gate;
use larder_sync::lock::Lock;
use larder_sync::parker::Event;
use larder_sync::spin::Patience;
use larder_sync::termination::Termination;
use larder_sync::worklist::{Deque, Entry, Steal};
use larder_sys::apart::{self, Apart};
use larder_sys::memory::{self, ReserveError};
use larder_sys::signal::Mask;
use larder_units::{Bytes, Nanos};

/// The most collectors that a heap has. More share one memory bus (untried here).
pub(crate) const MOST: usize = 16;
/// Entries in the public part of a work list.
const PUBLIC: usize = 1024;
/// How long an idle collector looks at every work list before it sleeps: in a stopped world nobody else has work for its CPU.
const PATIENCE: Nanos = Nanos(50_000);
/// How long a helper that was called waits for a phase before it sleeps.
const CALLED: Nanos = Nanos(300_000);
/// Stack of a helper: the host's scan functions run on it.
const HELPER_STACK: usize = 256 << 10;

/// Bytes that a helper gives memory to in one go: some 0.1 ms, for which a phase may have to do without it.
const BACKED_AT_ONCE: usize = 256 << 10;

/// Memory of all public parts.
const SLOTS: Bytes = Bytes(MOST * PUBLIC * size_of::<Entry>());

/// A phase: what every collector of it runs, with its number.
type Phase<'a> = &'a (dyn Fn(usize) + Sync);

pub(crate) struct Gang {
    deques: [Deque; MOST],
    termination: Termination,
    /// Helpers, by their numbers. Sync: its own.
    aparts: [Apart; MOST],
    /// Rings for every phase; helpers sleep on it.
    bell: Event,
    /// A phase is about to begin, and helpers need not sleep. Sync: a hint; the collecting thread writes.
    called: AtomicBool,
    /// Open during a phase; helpers that take part, or look whether they do, are inside. Sync: its own.
    gate: Gate,
    /// Collectors of the present phase. Sync: written while the gate is closed.
    collectors: AtomicUsize,
    /// The present phase; it ends before the gate is closed again. Sync: as `collectors`.
    phase: UnsafeCell<Option<Phase<'static>>>,
    /// Helper threads that exist. Sync: set before the heap is used.
    helpers: AtomicUsize,
    threads: UnsafeCell<[libc::pthread_t; MOST]>,
    /// Helpers that a child of fork has yet to make. Sync: the collection lock.
    lost: AtomicUsize,
    /// What is left of the pages that a helper gives memory to between phases.
    ///
    /// Sync: `backing`.
    unbacked: UnsafeCell<Range<usize>>,
    backing: Lock,
    /// The memory of the public parts.
    slots: *mut Entry,
    /// Sync: `gate.open`: helpers look at it inside.
    over: AtomicBool,
}

// SAFETY: `phase` is written while the gate is closed and read inside it; `threads` belongs to who starts and ends the
// gang; `unbacked` is used under its lock.
unsafe impl Sync for Gang {}
// SAFETY: as above.
unsafe impl Send for Gang {}

impl Gang {
    pub fn new() -> Result<Self, ReserveError> {
        let slots = memory::map_lazy(SLOTS)?.as_ptr().cast::<Entry>();
        let gang = Self {
            slots,
            deques: [const { Deque::new() }; MOST],
            termination: Termination::new(),
            aparts: [const { Apart::new() }; MOST],
            bell: Event::new(),
            called: AtomicBool::new(false),
            gate: Gate::new_closed(),
            collectors: AtomicUsize::new(1),
            phase: UnsafeCell::new(None),
            helpers: AtomicUsize::new(0),
            threads: UnsafeCell::new([0; MOST]),
            lost: AtomicUsize::new(0),
            unbacked: UnsafeCell::new(0..0),
            backing: Lock::new(),
            over: AtomicBool::new(false),
        };
        for (i, deque) in gang.deques.iter().enumerate() {
            // SAFETY: PUBLIC entries for each, a power of two, used by this deque alone; nobody else has the gang yet.
            unsafe { deque.attach(slots.add(i * PUBLIC), PUBLIC) };
        }
        Ok(gang)
    }

    /// Starts `helpers` helpers, as many as the kernel lets; the gang does not move from now on until [`Gang::end`].
    pub fn start(&self, helpers: usize) {
        // Helpers never run a handler of the program's.
        let mask = Mask::all_but_faults().set();
        for me in 1..=helpers.min(MOST - 1) {
            if !self.start_helper(me) {
                break;
            }
            self.helpers.store(me, Ordering::Relaxed);
        }
        mask.set();
    }

    /// In a child of fork: makes the helpers anew that the parent had, if that was not done. Not in a pause.
    pub fn start_again(&self) {
        let lost = self.lost.load(Ordering::Relaxed);
        if lost != 0 {
            self.lost.store(0, Ordering::Relaxed);
            self.start(lost);
        }
    }

    /// In a child of fork: the helpers are gone.
    ///
    /// # Safety
    /// The calling thread is the only one of the process, and no phase was on when it forked.
    pub unsafe fn reset_after_fork(&self) {
        // Of a child that forks before it has collected, all are still to be made.
        self.lost.fetch_add(self.helpers.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe {
            self.aparts.iter().for_each(Apart::forget);
            self.bell.reset_after_fork();
            self.called.store(false, Ordering::Relaxed);
            self.gate.reset_after_fork(true);
            self.backing.reset_after_fork();
            *self.unbacked.get() = 0..0;
        }
    }

    fn start_helper(&self, me: usize) -> bool {
        // SAFETY: attributes are initialised and destroyed here; the routine and its argument match, and the gang outlives
        // the thread, which `end` joins.
        unsafe {
            let mut attributes: libc::pthread_attr_t = core::mem::zeroed();
            libc::pthread_attr_init(&mut attributes);
            libc::pthread_attr_setstacksize(&mut attributes, HELPER_STACK);
            let thread = &mut (*self.threads.get())[me];
            let r = libc::pthread_create(thread, &attributes, helper_main, (&raw const *self).cast_mut().cast());
            libc::pthread_attr_destroy(&mut attributes);
            r == 0
        }
    }

    /// Ends the helpers and waits for them.
    pub fn end(&self) {
        // Relaxed: the gate publishes it.
        self.over.store(true, Ordering::Relaxed);
        self.gate.open();
        self.bell.bump_and_wake_all();
        for me in 1..=self.helpers.swap(0, Ordering::Relaxed) {
            // SAFETY: the thread was created and is joined once.
            unsafe { libc::pthread_join((*self.threads.get())[me], ptr::null_mut()) };
        }
        self.gate.close();
    }

    /// Has a helper give memory to a range of whole pages, beside the program, instead of what it was told before. Nothing
    /// happens without helpers: the one collector would only do before what it does later.
    ///
    /// The range stays mapped until [`Gang::end`].
    pub fn back_soon(&self, range: Range<usize>) {
        let empty = range.is_empty();
        {
            let _guard = self.backing.lock();
            // SAFETY: the lock is held.
            unsafe { *self.unbacked.get() = range };
        }
        if !empty && self.helpers.load(Ordering::Relaxed) > 0 {
            self.bell.bump_and_wake(1);
        }
    }

    /// Gives memory to what is left of the range, until the bell rings again.
    fn back(&self, seen: u32) {
        while self.bell.current() == seen {
            let piece = {
                let _guard = self.backing.lock();
                // SAFETY: the lock is held.
                let left = unsafe { &mut *self.unbacked.get() };
                let start = left.start;
                left.start = left.end.min(start + BACKED_AT_ONCE);
                start..left.start
            };
            if piece.is_empty() {
                return;
            }
            // SAFETY: who asked for it promised that it stays mapped; it is memory of a heap, readable and writable.
            unsafe { memory::back(ptr::with_exposed_provenance_mut(piece.start), Bytes(piece.end - piece.start)) };
        }
    }

    /// How many collectors there can be.
    pub fn most(&self) -> usize {
        self.helpers.load(Ordering::Relaxed) + 1
    }

    /// Wakes the helpers for phases with so many collectors that begin within a fraction of a millisecond, until [`Gang::dismiss`]: to get them
    /// their CPUs takes as long as to find the roots. World stopped.
    pub fn call(&self, collectors: usize) {
        let collectors = collectors.min(self.most());
        if collectors > 1 {
            self.called.store(true, Ordering::Relaxed);
            apart::keep_off_this_cpu(&self.aparts[1..collectors]);
            self.bell.bump_and_wake(collectors as u32 - 1);
        }
    }

    /// No phase follows: the program wants its CPUs back.
    pub fn dismiss(&self) {
        self.called.store(false, Ordering::Relaxed);
    }

    /// Waits, awake, for the phase that helpers were called for.
    fn await_phase(&self, seen: u32) {
        let mut patience = Patience::for_nanos(CALLED.0);
        let is_awaited = || self.called.load(Ordering::Relaxed) && self.bell.current() == seen;
        while is_awaited() && patience.spin() {}
    }

    /// Runs `phase` on up to `collectors` collectors, the caller being number 0; returns when all who began have ended.
    /// Others may begin late or never: the phase takes what it does from something shared.
    pub fn run(&self, collectors: usize, phase: Phase<'_>) {
        let collectors = collectors.clamp(1, self.most());
        // Relaxed: the gate publishes it.
        self.collectors.store(collectors, Ordering::Relaxed);
        if collectors > 1 {
            // SAFETY: the gate is closed, so nobody reads it; and it is closed again before `phase` ends.
            unsafe { *self.phase.get() = Some(core::mem::transmute::<Phase<'_>, Phase<'static>>(phase)) };
            self.gate.open();
            self.bell.bump_and_wake_all();
        }
        phase(0);
        if collectors > 1 {
            self.gate.close();
        }
    }

    /// Runs `piece` for each number below `pieces`, each once, on up to `collectors` collectors, in order of their claims.
    pub fn run_pieces(&self, collectors: usize, pieces: usize, piece: &(dyn Fn(usize, usize) + Sync)) {
        let next = AtomicUsize::new(0);
        self.run(collectors.min(pieces), &|me| {
            loop {
                // Relaxed: a number is a claim; the gate orders the rest.
                let mine = next.fetch_add(1, Ordering::Relaxed);
                if mine >= pieces {
                    return;
                }
                piece(me, mine);
            }
        });
    }

    /// Runs a phase that traces: `step` calls [`Tracing::work`] once.
    pub fn trace(&self, collectors: usize, step: &(dyn Fn(usize, Tracing<'_>) + Sync)) {
        let collectors = collectors.clamp(1, self.most());
        self.termination.begin(collectors);
        for helper in 1..collectors {
            // On behalf of a thread that has not begun.
            self.termination.become_idle(helper);
        }
        self.run(collectors, &|me| step(me, Tracing { gang: self, me, collectors }));
    }

    fn helper(&self) {
        let mut me = None;
        loop {
            // A phase that is rung in after this is not slept through.
            let seen = self.bell.current();
            if let Some(_inside) = self.gate.try_enter() {
                if self.over.load(Ordering::Relaxed) {
                    return;
                }
                let me = *me.get_or_insert_with(|| {
                    let number = self.number_of_this_thread();
                    self.aparts[number].begin();
                    number
                });
                if me < self.collectors.load(Ordering::Relaxed) {
                    // SAFETY: inside the gate; written before it was opened.
                    if let Some(phase) = unsafe { *self.phase.get() } {
                        phase(me);
                    }
                }
            }
            self.await_phase(seen);
            self.back(seen);
            self.bell.wait(seen);
        }
    }

    fn number_of_this_thread(&self) -> usize {
        // SAFETY: the handles were written before the first phase was opened.
        let (threads, own) = unsafe { (&*self.threads.get(), libc::pthread_self()) };
        (1..MOST).find(|&i| threads[i] == own).expect("a helper is in the list of helpers")
    }
}

impl Drop for Gang {
    fn drop(&mut self) {
        self.end();
        // SAFETY: the mapping is this gang's own, and nobody is left who steals.
        unsafe { memory::unmap(self.slots.cast(), SLOTS) };
    }
}

extern "C" fn helper_main(gang: *mut c_void) -> *mut c_void {
    // SAFETY: the name is a C string of fewer than 16 bytes.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"larder-collect".as_ptr()) };
    // SAFETY: the gang outlives its helpers.
    unsafe { &*gang.cast::<Gang>() }.helper();
    ptr::null_mut()
}

/// One collector's part in a tracing phase.
#[derive(Clone, Copy)]
pub(crate) struct Tracing<'a> {
    gang: &'a Gang,
    me: usize,
    collectors: usize,
}

/// What a tracing phase asks of a collector.
pub(crate) trait Tracer {
    /// Does an entry.
    fn take(&mut self, entry: Entry);
    /// Takes the newest private entry.
    fn pop(&mut self) -> Option<Entry>;
    /// Takes the oldest private entries for others, if there are many: calls `give` until it refuses.
    fn share(&mut self, give: impl FnMut(Entry) -> bool) -> usize;
}

impl Tracing<'_> {
    /// Whether no other collector takes part.
    pub fn is_alone(&self) -> bool {
        self.collectors == 1
    }

    /// Does `first`, whose work may come from something shared that only shrinks, and then works until nobody has any.
    ///
    /// A helper may find the phase over: then `first` finds nothing either.
    pub fn work<T: Tracer>(&self, tracer: &mut T, first: impl FnOnce(&mut T)) {
        let gang = self.gang;
        let deque = &gang.deques[self.me];
        if self.me != 0 {
            gang.termination.become_busy(self.me);
        }
        first(tracer);
        let mut busy = true;
        let mut patience = Patience::for_nanos(PATIENCE.0);
        loop {
            if busy {
                while let Some(entry) = tracer.pop() {
                    tracer.take(entry);
                    if self.collectors > 1 && deque.is_empty() {
                        // SAFETY: collector `me` owns its deque.
                        let given = tracer.share(|entry| unsafe { deque.push(entry) }.is_ok());
                        if given > 0 {
                            gang.termination.announce_work(given);
                        }
                    }
                }
                // SAFETY: collector `me` owns its deque.
                if let Some(entry) = unsafe { deque.pop() } {
                    tracer.take(entry);
                } else if !self.steal(tracer) {
                    gang.termination.become_idle(self.me);
                    (busy, patience) = (false, Patience::for_nanos(PATIENCE.0));
                }
            } else if gang.termination.is_done() || gang.termination.detect(|| self.all_empty()) {
                return;
            } else if !self.all_empty() {
                gang.termination.become_busy(self.me);
                busy = true;
            } else if !patience.spin() {
                gang.termination.sleep(self.me, || self.all_empty());
            }
        }
    }

    fn all_empty(&self) -> bool {
        self.gang.deques[..self.collectors].iter().all(Deque::is_empty)
    }

    /// Steals from the others in turn, beginning behind itself: up to half of what the first victim shows.
    fn steal(&self, tracer: &mut impl Tracer) -> bool {
        for step in 1..self.collectors {
            let victim = &self.gang.deques[(self.me + step) % self.collectors];
            let mut wanted = victim.len().div_ceil(2);
            let mut got = false;
            while wanted > 0 {
                match victim.steal() {
                    Steal::Taken(entry) => {
                        tracer.take(entry);
                        got = true;
                        wanted -= 1;
                    }
                    Steal::Retry => core::hint::spin_loop(),
                    Steal::Empty => break,
                }
            }
            if got {
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Entries `[depth, 0]` that stand for a binary tree of that depth; counts its leaves.
    struct Leaves<'a> {
        private: Vec<Entry>,
        leaves: &'a AtomicUsize,
    }

    impl Tracer for Leaves<'_> {
        fn take(&mut self, [depth, _]: Entry) {
            if depth == 0 {
                self.leaves.fetch_add(1, Ordering::Relaxed);
            } else {
                self.private.extend([[depth - 1, 0]; 2]);
            }
        }

        fn pop(&mut self) -> Option<Entry> {
            self.private.pop()
        }

        fn share(&mut self, mut give: impl FnMut(Entry) -> bool) -> usize {
            let mut given = 0;
            while self.private.len() > 2 && give(self.private[0]) {
                self.private.remove(0);
                given += 1;
            }
            given
        }
    }

    #[test]
    fn every_leaf_is_counted_once_in_every_phase() {
        let gang = Gang::new().unwrap();
        gang.start(3);
        for depth in [0, 1, 5, 14] {
            // Called or not, and dismissed early or late, helpers come to the phase or stay away.
            if depth % 2 == 1 {
                gang.call(4);
            }
            if depth == 5 {
                gang.dismiss();
            }
            let leaves = AtomicUsize::new(0);
            gang.trace(4, &|me, tracing| {
                tracing.work(&mut Leaves { private: vec![], leaves: &leaves }, |tracer| {
                    if me == 0 {
                        tracer.private.push([depth, 0]);
                    }
                });
            });
            assert_eq!(leaves.load(Ordering::Relaxed), 1 << depth);
        }
        let sum = AtomicUsize::new(0);
        gang.run_pieces(4, 1000, &|_, piece| {
            sum.fetch_add(piece, Ordering::Relaxed);
        });
        assert_eq!(sum.into_inner(), 999 * 500);
        gang.end();
    }

    #[test]
    fn a_helper_gives_memory_to_what_it_was_told_and_still_takes_part_in_phases() {
        const SIZE: usize = 1 << 20;
        let gang = Gang::new().unwrap();
        let at = memory::map_lazy(Bytes(SIZE)).unwrap().as_ptr();
        gang.start(1);
        gang.back_soon(at.expose_provenance()..at.addr() + SIZE);
        let mut pages = [0u8; SIZE / 4096];
        loop {
            let sum = AtomicUsize::new(0);
            gang.run_pieces(2, 100, &|_, piece| {
                sum.fetch_add(piece, Ordering::Relaxed);
            });
            assert_eq!(sum.into_inner(), 99 * 50);
            // SAFETY: the mapping is this test's own, and there is a byte for each page.
            assert_eq!(unsafe { libc::mincore(at.cast(), SIZE, pages.as_mut_ptr().cast()) }, 0);
            if pages.iter().all(|page| page & 1 != 0) {
                break;
            }
            std::thread::yield_now();
        }
        gang.end();
        // SAFETY: as above.
        unsafe { memory::unmap(at, Bytes(SIZE)) };
    }

    #[test]
    fn a_gang_without_helpers_works_alone() {
        let gang = Gang::new().unwrap();
        let sum = AtomicUsize::new(0);
        gang.run_pieces(8, 10, &|me, piece| {
            assert_eq!(me, 0);
            sum.fetch_add(piece, Ordering::Relaxed);
        });
        assert_eq!(sum.into_inner(), 45);
    }
}
