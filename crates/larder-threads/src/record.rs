//! One thread's record.

use larder_sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use larder_sync::parker::Event;
use larder_sync::step;

use crate::client::Signals;
use crate::ground::signal::AlternateStack;

/// Where a thread is in its life, as the collector cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ThreadState {
    /// The record is on the free list.
    Free = 0,
    /// Created, but not yet running its own code: its argument is a root, it has no stack.
    Starting = 1,
    /// Runs, or sleeps in a system call that the runtime does not know of: must be signalled.
    Running = 2,
    /// In a blocking region: its saved stack pointer is valid, and it checks for a stop before it goes on.
    Blocked = 3,
    /// Ended, but not yet joined: its result is a root.
    Finished = 4,
}

/// A registered thread.
///
/// Records are type-stable: they come from an arena, are reused, and are never unmapped.
#[repr(C, align(128))]
pub struct Thread {
    /// Next record of the registry's list, or of its free list.
    ///
    /// Sync: the registry's lock.
    pub(crate) next: AtomicPtr<Thread>,
    /// See [`ThreadState`].
    ///
    /// Sync: owner thread, under the registry's lock, except between `Running` and `Blocked` (label `stop.blocked`).
    pub(crate) state: AtomicU32,
    /// The kernel's id.
    ///
    /// Sync: written before `Running` under the registry's lock.
    pub(crate) tid: AtomicI32,
    /// `pthread_t`.
    ///
    /// Sync: the registry's lock.
    pub(crate) pthread: AtomicUsize,
    /// The address where the stack begins (its highest).
    ///
    /// Sync: owner thread; read in a stopped world.
    pub(crate) stack_base: AtomicUsize,
    /// Everything live on the stack lies at or above this while the thread is stopped or blocked.
    ///
    /// Sync: owner thread (handler or blocking region); read in a stopped world, ordered by `stop.ack` or `stop.blocked`.
    pub(crate) stack_pointer: AtomicUsize,
    /// The alternate stack on which a handler of the client ran last, `[low, high)`, or zeroes: no region begins there.
    ///
    /// Sync: owner thread alone.
    pub(crate) handler_stack: [AtomicUsize; 2],
    /// Whether that stack was set up with SS_AUTODISARM: the kernel does not know that a handler runs there. By library path alone nobody notes it.
    ///
    /// Sync: owner thread alone.
    pub(crate) is_disarmed: AtomicU32,
    /// The thread control block, for thread-local storage.
    ///
    /// Sync: as `tid`.
    pub(crate) thread_pointer: AtomicUsize,
    /// Number of the last stop for which the collector sent a signal.
    ///
    /// Sync: collector writes before it sends; owner thread reads in the handler (the signal orders).
    pub(crate) signalled: AtomicU32,
    /// Signals of ours to this thread, for whatever reason: how many were begun, sent and taken by its handler. See [`crate::client`].
    pub(crate) signals: Signals,
    /// Number of the last stop that the thread answered.
    ///
    /// Sync: owner thread writes; collector reads, ordered by `stop.ack`.
    pub(crate) answered: AtomicU32,
    /// Number of the stop in which the thread is parked, 0 while it is not. A later stop that finds the thread still parked
    /// claims it by writing its own number: the thread need not run to be stopped again.
    ///
    /// Sync: owner thread before it answers and when it leaves, collectors in between, by compare-and-swap; `stop.parked`.
    pub(crate) parked: AtomicU32,
    /// Start routine, of threads that were created here. Such a thread's argument is a root until it ends.
    ///
    /// Sync: creator before the thread exists, then owner thread.
    pub(crate) start: AtomicUsize,
    /// See `start`.
    pub(crate) argument: AtomicUsize,
    /// What the thread returned, while `Finished`.
    ///
    /// Sync: owner thread, then the registry's lock.
    pub(crate) result: AtomicUsize,
    /// Nobody will join it.
    ///
    /// Sync: the registry's lock.
    pub(crate) detached: AtomicU32,
    /// Alternate stack, `[low, high)`, or zeroes.
    ///
    /// Sync: owner thread; read in a stopped world.
    pub(crate) alternate: [AtomicUsize; 2],
    /// The rest of the alternate stack on which the thread was stopped, or zeroes.
    ///
    /// Sync: as `stack_pointer`.
    pub(crate) stopped_on: [AtomicUsize; 2],
    /// How many children of clone run with this thread's thread pointer, and so take its record for their own.
    ///
    /// Sync: owner thread, before such a child begins and after it has ended.
    pub(crate) lent: AtomicU32,
    /// Whether the thread is suspended on its own: see [`crate::suspend`].
    ///
    /// Sync: labels `suspend.*`.
    pub(crate) suspension: AtomicU32,
    /// Happens when `suspension` changes. Sync: its own.
    pub(crate) suspension_changed: Event,
    /// Whether somebody looks at the thread's stacks, or wants to: see [`crate::look`].
    ///
    /// Sync: labels `look.*`.
    pub(crate) look: AtomicU32,
    /// Happens when `look` changes. Sync: its own.
    pub(crate) look_changed: Event,
    /// The last round of looks in which the thread was looked at, and in which that was tried.
    ///
    /// Sync: the registry's lock.
    pub(crate) looked: AtomicU32,
    /// See `looked`.
    pub(crate) tried: AtomicU32,
    /// Number of the record: below the most threads that there ever were at once. Kept when the record is reused.
    ///
    /// Sync: written once, under the registry's lock, before the record is used.
    pub(crate) number: AtomicU32,
    /// The client was told that this thread was stopped.
    ///
    /// Sync: the collector, during a stop.
    pub(crate) announced: AtomicU32,
    /// The thread's slab of buffers where sequences are not available.
    ///
    /// Sync: owner thread sets it when it registers; read in a stopped world. Kept when the record is reused.
    pub(crate) buffers: AtomicPtr<u8>,
}

/// A record that holds nothing. Elsewhere than under loom, zeroed memory is one.
#[cfg(loom)]
impl Default for Thread {
    fn default() -> Self {
        let word = || AtomicUsize::new(0);
        Self {
            next: AtomicPtr::new(core::ptr::null_mut()),
            state: AtomicU32::new(0),
            tid: AtomicI32::new(0),
            pthread: word(),
            stack_base: word(),
            stack_pointer: word(),
            thread_pointer: word(),
            signalled: AtomicU32::new(0),
            signals: Signals::default(),
            answered: AtomicU32::new(0),
            parked: AtomicU32::new(0),
            start: word(),
            argument: word(),
            result: word(),
            detached: AtomicU32::new(0),
            alternate: [word(), word()],
            stopped_on: [word(), word()],
            handler_stack: [word(), word()],
            is_disarmed: AtomicU32::new(0),
            lent: AtomicU32::new(0),
            suspension: AtomicU32::new(0),
            suspension_changed: Event::new(),
            look: AtomicU32::new(0),
            look_changed: Event::new(),
            looked: AtomicU32::new(0),
            tried: AtomicU32::new(0),
            number: AtomicU32::new(0),
            announced: AtomicU32::new(0),
            buffers: AtomicPtr::new(core::ptr::null_mut()),
        }
    }
}

impl Thread {
    /// Where the thread is in its life.
    pub fn state(&self) -> ThreadState {
        // ORDER stop.blocked: Acquire, with the Release in `set_state`: a collector that sees `Blocked` sees the stack
        // pointer that was published before. (In `stop_world` the fence that comes later would do, so no model misses it.)
        match self.state.load(Ordering::Acquire) {
            1 => ThreadState::Starting,
            2 => ThreadState::Running,
            3 => ThreadState::Blocked,
            4 => ThreadState::Finished,
            _ => ThreadState::Free,
        }
    }

    pub(crate) fn set_state(&self, state: ThreadState) {
        // ORDER stop.blocked: Release, with the load in `state`.
        self.state.store(state as u32, step::order("stop.blocked: Release", Ordering::Release));
    }

    /// The thread ended without telling anybody: it has neither a stack nor thread-local storage any more. By the collector, under the
    /// registry's lock.
    pub(crate) fn note_gone(&self) {
        self.thread_pointer.store(0, Ordering::Relaxed);
        self.set_state(ThreadState::Finished);
    }

    /// The kernel's id of the thread.
    pub fn tid(&self) -> i32 {
        self.tid.load(Ordering::Relaxed)
    }

    /// The record's number: threads that exist at the same time have different ones, and they are small.
    pub fn number(&self) -> usize {
        self.number.load(Ordering::Relaxed) as usize
    }

    /// Where its stack begins.
    pub fn stack_base(&self) -> usize {
        self.stack_base.load(Ordering::Relaxed)
    }

    /// Moves the place where its stack begins: fibers.
    pub fn set_stack_base(&self, base: usize) {
        self.stack_base.store(base, Ordering::Relaxed);
    }

    /// The lowest live address of its stack; valid while the thread is stopped, blocked, or the collector itself.
    pub fn stack_pointer(&self) -> usize {
        self.stack_pointer.load(Ordering::Relaxed)
    }

    /// Publishes the lowest live address of its stack.
    pub(crate) fn set_stack_pointer(&self, sp: usize) {
        self.stack_pointer.store(sp, Ordering::Relaxed);
    }

    /// Alternate stacks that may hold roots: the one that was declared, and the one on which it was stopped. Where these are one, the frames
    /// below its stack pointer have returned, or are the collector's.
    pub fn alternate_stacks(&self) -> [Option<(usize, usize)>; 2] {
        let [(mut low, high), stopped_on] = [&self.alternate, &self.stopped_on]
            .map(|pair| (pair[0].load(Ordering::Relaxed), pair[1].load(Ordering::Relaxed)));
        if (low..high).contains(&stopped_on.0) {
            low = stopped_on.1;
        }
        [(low, high), stopped_on].map(|(low, high)| (low < high).then_some((low, high)))
    }

    /// Declares an alternate stack; equal bounds take it back.
    pub fn set_alternate_stack(&self, low: usize, high: usize) {
        self.alternate[0].store(low, Ordering::Relaxed);
        self.alternate[1].store(high, Ordering::Relaxed);
    }

    /// Notes the alternate stack that a handler of the client runs on, and whether it is disarmed meanwhile.
    pub(crate) fn set_handler_stack(&self, low: usize, high: usize, disarmed: bool) {
        self.handler_stack[0].store(low, Ordering::Relaxed);
        self.handler_stack[1].store(high, Ordering::Relaxed);
        self.is_disarmed.store(u32::from(disarmed), Ordering::Relaxed);
    }

    fn handler_stack(&self) -> [usize; 2] {
        [0, 1].map(|end| self.handler_stack[end].load(Ordering::Relaxed))
    }

    /// Whether the address is of that stack. By address, so that a handler which leaves by `longjmp` leaves it.
    pub(crate) fn is_on_handler_stack(&self, sp: usize) -> bool {
        let [low, high] = self.handler_stack();
        (low..high).contains(&sp)
    }

    /// That stack, where it is disarmed and the address is of it.
    pub(crate) fn disarmed_stack_at(&self, sp: usize) -> Option<AlternateStack> {
        let [low, high] = self.handler_stack();
        let is_here = self.is_disarmed.load(Ordering::Relaxed) != 0 && (low..high).contains(&sp);
        is_here.then(|| AlternateStack::disarmed(low, high))
    }

    /// Whether who finds this record may be another than the thread.
    pub(crate) fn is_lent(&self) -> bool {
        self.lent.load(Ordering::Relaxed) != 0
    }

    /// Its thread control block.
    pub fn thread_pointer(&self) -> *const u8 {
        core::ptr::with_exposed_provenance(self.thread_pointer.load(Ordering::Relaxed))
    }

    /// Words of the record that are roots: the argument of a thread that has not ended, the result of one that has.
    pub fn roots(&self) -> [usize; 2] {
        [self.argument.load(Ordering::Relaxed), self.result.load(Ordering::Relaxed)]
    }

    /// Its `pthread_t`.
    pub fn pthread(&self) -> usize {
        self.pthread.load(Ordering::Relaxed)
    }

    /// Notes that the thread was looked at in a round of looks. The caller holds the registry's lock.
    pub fn note_look(&self, round: u32) {
        self.looked.store(round, Ordering::Relaxed);
    }

    /// Whether it was looked at in that round. The caller holds the registry's lock.
    pub fn was_looked_at(&self, round: u32) -> bool {
        self.looked.load(Ordering::Relaxed) == round
    }

    /// Whether a look at it is to be tried in that round. The caller holds the registry's lock.
    pub(crate) fn is_to_be_looked_at(&self, round: u32) -> bool {
        !self.was_looked_at(round) && self.tried.load(Ordering::Relaxed) != round && self.state() != ThreadState::Free
    }

    /// Notes whether the client was told that this thread is stopped, and returns what was noted before. By the
    /// collector, during a stop.
    pub fn announce(&self, stopped: bool) -> bool {
        self.announced.swap(u32::from(stopped), Ordering::Relaxed) != 0
    }

    /// Its slab of buffers, or null.
    pub fn buffers(&self) -> *mut u8 {
        self.buffers.load(Ordering::Relaxed)
    }
}
