//! The markers of the process: the collecting thread and its helpers.
//!
//! Helpers are created outside of pauses, sleep between cycles, and join a round late or not at all: a helper that the
//! kernel has not scheduled yet counts as idle from the beginning, and the round's gate keeps one that comes after its
//! end out. So nobody ever waits for a thread that has not begun.
//!
//! There are rounds in a stopped world ([`Crew::mark`]), whose first marker is the collecting thread, and rounds beside the program
//! ([`Crew::mark_beside`]), whose first marker is the marker thread. Never two at once: whoever begins the one kind has ended the
//! other. A round beside the program can be interrupted; then each marker leaves what it has, and the first takes it.

use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU16, AtomicU32, AtomicUsize, Ordering};

use larder_policy::ablation::{Ablation, Optimization};
use larder_sync::gate::Gate;
use larder_sync::parker::Event;
use larder_sync::spin::Patience;
use larder_sync::termination::MAX_MARKERS;
use larder_sys::apart::{self, Apart};
use larder_sys::memory::{self, ReserveError};
use larder_sys::signal::Mask;
use larder_sys::vector::Vector;
use larder_units::{Bytes, Nanos};

use crate::descriptor::Entry;
use crate::ending::Ending;
use crate::marker::{Marker, Own, PROC_ROOM, Tally, WORDS};
use crate::objects::Objects;
use crate::public::{Form, Public, Shared};
use crate::stack::Stack;

/// How long an idle marker looks at every work list before it sleeps. In a stopped world nobody else has work for its CPU, and what wakes
/// a CPU that has nothing to do costs the waker as much again; beside the program somebody has.
const PATIENCE: [Nanos; 2] = [Nanos(50_000), Nanos(5_000)];
/// How long a helper that was called waits for the round to begin before it sleeps.
const CALLED: Nanos = Nanos(300_000);
/// Threads of the program that may help at once to mark beside it.
pub const GUESTS: usize = 3;
/// The place of the marker thread, which is the first in rounds beside the program, with those of its guests below. Rounds have fewer
/// markers ([`Crew::prepare`] bounds them).
const BESIDE: usize = MAX_MARKERS - 1;
/// Stack of a helper thread.
const HELPER_STACK: usize = 256 << 10;

/// All markers.
pub struct Crew {
    publics: [Public; MAX_MARKERS],
    owns: [UnsafeCell<Own>; MAX_MARKERS],
    ending: Ending,
    /// Helper threads that exist; they are markers 1..=helpers. Sync: one caller of `prepare` at a time.
    helpers: AtomicUsize,
    /// Helpers, by their numbers. Sync: its own.
    aparts: [Apart; MAX_MARKERS],
    /// Rings for every round; helpers sleep on it.
    bell: Event,
    /// 1 while a round is about to begin, and helpers need not sleep; also after a cycle that was given up, until the next one. Sync: a hint;
    /// collector writes.
    called: AtomicU32,
    /// Open during a round; helpers that take part, or look whether they do, are inside. Sync: its own.
    gate: Gate,
    /// Markers of the present round. Sync: collector writes while the gate is closed.
    markers: AtomicUsize,
    /// What the present round does without, as [`Ablation::bits`]. Sync: as `markers`.
    ablation: AtomicU16,
    /// The present round is beside the program. Sync: as `markers`.
    beside: AtomicBool,
    /// The present round's work; it ends with the round. Sync: as `markers`.
    job: AtomicPtr<Job>,
    /// Markers of the present round that look for work, and one more beside the program, where guests may. Sync: a hint; they count themselves.
    hungry: AtomicU32,
    /// Blocks that wait for their grey objects to be scanned have waited long enough: nothing else was left. Sync: a hint.
    ripe: AtomicBool,
    /// Bound on private entries. Sync: set before the markers that it is for.
    limit: AtomicUsize,
}

// SAFETY: `owns[i]` is used by marker `i` only: 0 under the collection lock, `BESIDE` by the marker thread, others by their thread inside
// the gate, and by who has closed the gate, and set up before their thread exists.
unsafe impl Sync for Crew {}

/// What a round is like.
#[derive(Clone, Copy)]
struct Round {
    markers: usize,
    ablation: Ablation,
    /// Markers steal.
    balanced: bool,
    /// Where from.
    form: Form,
    /// Beside the program.
    beside: bool,
}

impl Round {
    fn new(markers: usize, ablation: Ablation, beside: bool) -> Self {
        let balanced = !ablation.leaves_out(Optimization::Balance);
        // The shares of markers that do not steal are dealt into the deques.
        let locked = balanced && ablation.leaves_out(Optimization::Deque);
        Self { markers, ablation, balanced, form: if locked { Form::Watermark } else { Form::Deque }, beside }
    }

    /// The place of a marker of the round, by its number in it.
    fn place(&self, marker: usize) -> usize {
        if marker == 0 && self.beside { BESIDE } else { marker }
    }
}

/// What a round beside the program has, and one in a stopped world has not.
pub struct Beside<'a> {
    /// Set when marking shall end although work is left; not cleared before the round has ended.
    pub interrupted: &'a AtomicBool,
    /// Takes what a helper has put aside ([`Marker::put_aside`]), on the helper's thread.
    pub bring: fn(&mut Vector<Entry>),
}

/// What markers of a round begin with: see [`Crew::mark_from`].
pub type Begin<'a, H> = &'a (dyn for<'m> Fn(&mut Marker<'m, H>) + Sync);

struct Job {
    run: unsafe fn(*const c_void, usize),
    context: *const c_void,
}

/// The crew of the process.
pub static CREW: Crew = Crew::new();

impl Crew {
    const fn new() -> Self {
        Self {
            publics: [const { Public::new() }; MAX_MARKERS],
            owns: [const {
                UnsafeCell::new(Own {
                    stack: Stack::new(),
                    words: core::ptr::null_mut(),
                    proc_room: core::ptr::null_mut(),
                    proc_entries: 0,
                })
            }; MAX_MARKERS],
            ending: Ending::new(),
            helpers: AtomicUsize::new(0),
            aparts: [const { Apart::new() }; MAX_MARKERS],
            bell: Event::new(),
            called: AtomicU32::new(0),
            gate: Gate::new_closed(),
            markers: AtomicUsize::new(0),
            ablation: AtomicU16::new(0),
            beside: AtomicBool::new(false),
            job: AtomicPtr::new(core::ptr::null_mut()),
            hungry: AtomicU32::new(0),
            ripe: AtomicBool::new(false),
            limit: AtomicUsize::new(usize::MAX),
        }
    }

    /// Bounds the private entries of markers that are set up after this; the smallest bound counts.
    pub fn bound_stacks(&self, entries: usize) {
        self.limit.fetch_min(entries, Ordering::Relaxed);
    }

    /// Gives marker `i` its memory.
    fn set_up(&self, i: usize) -> Result<(), ReserveError> {
        // SAFETY: the marker does not run yet (see `Sync` above).
        let own = unsafe { &mut *self.owns[i].get() };
        let limit = self.limit.load(Ordering::Relaxed);
        own.stack.reserve(limit)?;
        if own.words.is_null() {
            own.words = memory::map_lazy(Bytes(WORDS * size_of::<usize>()))?.as_ptr().cast();
        }
        if own.proc_room.is_null() {
            let entries = PROC_ROOM.min(limit);
            own.proc_room = memory::map_lazy(Bytes(entries * size_of::<Entry>()))?.as_ptr().cast();
            own.proc_entries = entries;
        }
        self.publics[i].set_up(&own.stack)
    }

    /// Gives the collecting thread's marker its memory early: what is left of a limited address space may be gone when the first cycle
    /// comes. Where there is none, [`Crew::prepare`] tries again. Nobody else prepares meanwhile.
    pub fn prepare_first(&self) {
        let _ = self.set_up(0);
    }

    /// Sees to it that there can be `markers` markers; returns how many there can be. Creates threads: not in a pause, and
    /// not while the loader's list is held. One caller at a time, with client signals blocked.
    pub fn prepare(&self, markers: usize) -> usize {
        if self.set_up(0).is_err() {
            return 0;
        }
        let mut have = self.helpers.load(Ordering::Relaxed);
        while have + 1 < markers.min(BESIDE - GUESTS) && self.set_up(have + 1).is_ok() && start_helper(have + 1) {
            have += 1;
            self.helpers.store(have, Ordering::Relaxed);
        }
        (have + 1).min(markers.max(1))
    }

    /// How many threads of its own the crew has.
    pub fn helpers(&self) -> usize {
        // Relaxed: exact for whoever keeps others from `prepare`, by its lock.
        self.helpers.load(Ordering::Relaxed)
    }

    /// The collecting thread's private state.
    ///
    /// # Safety
    /// The caller holds the collection lock and keeps only one of these at a time.
    #[allow(clippy::mut_from_ref)] // The collection lock makes it unique.
    pub unsafe fn first(&self) -> &mut Own {
        // SAFETY: the caller's promise.
        unsafe { &mut *self.owns[0].get() }
    }

    /// Gives [`Crew::beside`] and its guests their memory. False where there is none. Nobody uses it meanwhile.
    pub fn prepare_beside(&self) -> bool {
        (BESIDE - GUESTS..=BESIDE).all(|i| self.set_up(i).is_ok())
    }

    /// Lets guests steal from the marker beside the program, or ends that.
    pub fn open_beside<H: Objects>(&'static self, marker: &mut Marker<'_, H>, open: bool) {
        if open {
            // Guests do not say that they are.
            self.hungry.store(1, Ordering::Relaxed);
        }
        marker.set_public(open.then(|| self.shared(BESIDE, Form::Deque)));
    }

    /// The public part of the marker in a place.
    fn shared(&self, place: usize, form: Form) -> Shared<'_> {
        Shared { part: &self.publics[place], form, hungry: &self.hungry }
    }

    /// Takes an entry that guests could steal back onto the stack of the marker beside the program; false where there is none.
    pub fn take_back_beside<H: Objects>(&self, marker: &mut Marker<'_, H>) -> bool {
        // SAFETY: the part of the marker beside the program, which calls.
        unsafe { marker.take_back(&self.publics[BESIDE], Form::Deque) }
    }

    /// Steals for a guest, from the marker thread or from the helpers of its round; false where there is nothing.
    pub fn steal_beside<H: Objects>(&self, marker: &mut Marker<'_, H>) -> bool {
        // A number that is out of date is one of helpers all the same, whose deques are empty.
        let helpers = self.markers.load(Ordering::Relaxed).min(BESIDE - GUESTS);
        marker.steal_from(&self.publics[BESIDE], Form::Deque)
            || (1..helpers).any(|helper| marker.steal_from(&self.publics[helper], Form::Deque))
    }

    /// The private state of a thread that helps [`Crew::beside`], by its number below [`GUESTS`].
    ///
    /// # Safety
    /// As for [`Crew::beside`], for each number.
    #[allow(clippy::mut_from_ref)] // The caller's promise makes it unique.
    pub unsafe fn guest(&self, number: usize) -> &mut Own {
        // SAFETY: the caller's promise.
        unsafe { &mut *self.owns[BESIDE - GUESTS + number].get() }
    }

    /// The private state of the thread that marks beside the program: no round uses it.
    ///
    /// # Safety
    /// [`Crew::prepare_beside`] has succeeded, and the caller keeps only one of these at a time.
    #[allow(clippy::mut_from_ref)] // The caller's promise makes it unique.
    pub unsafe fn beside(&self) -> &mut Own {
        // SAFETY: the caller's promise.
        unsafe { &mut *self.owns[BESIDE].get() }
    }

    /// Wakes the helpers of the next round, which has so many markers and begins within a fraction of a millisecond: it takes as long to
    /// get them their CPUs as to find the roots of a small program. World stopped.
    pub fn call(&self, markers: usize) {
        if markers > 1 {
            self.called.store(1, Ordering::Relaxed);
            apart::keep_off_this_cpu(&self.aparts[1..markers]);
            self.bell.bump_and_wake(markers as u32 - 1);
        }
    }

    /// Marks to the end with `markers` markers, beginning with what `first` (marker 0) holds. Returns what the others
    /// did; `first` keeps its own tally. The second value says whether entries were dropped by others.
    pub fn mark<H: Objects + Sync>(&'static self, markers: usize, first: &mut Marker<'_, H>) -> (Tally, bool) {
        if markers <= 1 {
            first.drain(|_| {});
            return (Tally::default(), false);
        }
        self.mark_in_round(markers, first, None, None)
    }

    /// As [`Crew::mark`], but each marker begins with `begin`, which finds work and claims what it looks at: late helpers find nothing left. A claim is
    /// `AcqRel`, so that who finds nothing left sees that the others are busy. `first` does it alone where markers do not steal.
    pub fn mark_from<H: Objects + Sync>(
        &'static self,
        markers: usize,
        first: &mut Marker<'_, H>,
        begin: Begin<'_, H>,
    ) -> (Tally, bool) {
        if markers <= 1 || first.ablation().leaves_out(Optimization::Balance) {
            begin(first);
            return self.mark(markers, first);
        }
        self.mark_in_round(markers, first, None, Some(begin))
    }

    /// Marks beside the program with `markers` markers, at least two, of whom `first` is the marker thread's: until nothing is left, or the
    /// round is interrupted. Then what the others had is with `first`, on its stack or where it can be taken back
    /// ([`Crew::take_back_beside`]). Returns what [`Crew::mark`] does.
    ///
    /// Guests may steal meanwhile, and before and after; what they have is not seen here.
    pub fn mark_beside<H: Objects + Sync>(
        &'static self,
        markers: usize,
        first: &mut Marker<'_, H>,
        beside: &Beside<'_>,
    ) -> (Tally, bool) {
        let result = self.mark_in_round(markers, first, Some(beside), None);
        // Guests go on.
        self.open_beside(first, true);
        for helper in 1..markers {
            // SAFETY: the gate is closed, so the helper is out, and what it wrote is seen.
            let own = unsafe { &mut *self.owns[helper].get() };
            while let Some(entry) = own.stack.pop() {
                first.push(entry);
            }
            own.stack.trim();
        }
        result
    }

    fn mark_in_round<H: Objects + Sync>(
        &'static self,
        markers: usize,
        first: &mut Marker<'_, H>,
        beside: Option<&Beside<'_>>,
        begin: Option<Begin<'_, H>>,
    ) -> (Tally, bool) {
        struct Context<'a, H: Objects> {
            beside: Option<&'a Beside<'a>>,
            begin: Option<Begin<'a, H>>,
            heap: H,
            bytes: AtomicUsize,
            objects: AtomicUsize,
            stolen: AtomicUsize,
            long: AtomicUsize,
            by_block: AtomicUsize,
            overflowed: AtomicU32,
        }
        unsafe fn help<H: Objects + Sync>(context: *const c_void, me: usize) {
            // SAFETY: the gate keeps the context alive while a helper is inside.
            let context = unsafe { &*context.cast::<Context<'_, H>>() };
            // SAFETY: marker `me`'s own state, and it is inside the gate.
            let own = unsafe { &mut *CREW.owns[me].get() };
            let mut marker = Marker::new(context.heap, own);
            let round = CREW.round();
            marker.leave_out(round.ablation);
            marker.set_public(round.balanced.then(|| CREW.shared(me, round.form)));
            let mut aside = Vector::new();
            match context.beside {
                None => {
                    if let Some(begin) = context.begin {
                        CREW.become_busy(me);
                        begin(&mut marker);
                    }
                    CREW.work(&mut marker, me, !round.balanced || context.begin.is_some(), || false);
                }
                Some(beside) => {
                    marker.put_aside(&mut aside);
                    CREW.work(&mut marker, me, false, || beside.interrupted.load(Ordering::Relaxed));
                    // SAFETY: marker `me`'s own; others may still be stealing from it.
                    while unsafe { marker.take_back(&CREW.publics[me], round.form) } {}
                }
            }
            context.bytes.fetch_add(marker.tally.bytes, Ordering::Relaxed);
            context.objects.fetch_add(marker.tally.objects, Ordering::Relaxed);
            context.stolen.fetch_add(marker.tally.stolen, Ordering::Relaxed);
            context.long.fetch_add(marker.tally.long, Ordering::Relaxed);
            context.by_block.fetch_add(marker.tally.by_block, Ordering::Relaxed);
            context.overflowed.fetch_or(u32::from(marker.take_overflow()), Ordering::Relaxed);
            match context.beside {
                None => own.stack.trim(),
                Some(beside) => {
                    (beside.bring)(&mut aside);
                    aside.clear();
                }
            }
        }
        let context = Context {
            beside,
            begin,
            heap: first.heap(),
            bytes: AtomicUsize::new(0),
            objects: AtomicUsize::new(0),
            stolen: AtomicUsize::new(0),
            long: AtomicUsize::new(0),
            by_block: AtomicUsize::new(0),
            overflowed: AtomicU32::new(0),
        };
        let mut job = Job { run: help::<H>, context: (&raw const context).cast() };
        let round = Round::new(markers, first.ablation(), beside.is_some());
        self.ending.begin(markers, first.ablation().leaves_out(Optimization::Nsb));
        if round.balanced {
            for helper in 1..markers {
                // On behalf of a thread that has not begun: see the module.
                self.ending.become_idle(helper);
            }
        } else {
            // Each helper has to come, since nobody takes its share.
            self.deal(markers, first);
        }
        // All Relaxed: the gate publishes them.
        self.job.store(&raw mut job, Ordering::Relaxed);
        self.markers.store(markers, Ordering::Relaxed);
        self.hungry.store(markers as u32 - 1 + u32::from(round.beside), Ordering::Relaxed);
        self.ablation.store(first.ablation().bits(), Ordering::Relaxed);
        self.beside.store(round.beside, Ordering::Relaxed);
        self.ripe.store(false, Ordering::Relaxed);
        self.gate.open();
        // A round beside the program is long and has few markers: whoever is woken of many may not be one of them.
        let all = !round.balanced || round.beside;
        self.bell.bump_and_wake(if all { u32::MAX } else { markers as u32 - 1 });
        self.called.store(0, Ordering::Relaxed);
        first.set_public(round.balanced.then(|| self.shared(round.place(0), round.form)));
        if let Some(begin) = begin {
            begin(first);
        }
        match beside {
            None => self.work(first, 0, true, || false),
            Some(beside) => self.work(first, 0, true, || beside.interrupted.load(Ordering::Relaxed)),
        }
        first.set_public(None);
        // From here on nobody uses the job, and what helpers wrote is seen.
        self.gate.close();
        let tally = Tally {
            bytes: context.bytes.load(Ordering::Relaxed),
            objects: context.objects.load(Ordering::Relaxed),
            stolen: context.stolen.load(Ordering::Relaxed),
            long: context.long.load(Ordering::Relaxed),
            by_block: context.by_block.load(Ordering::Relaxed),
        };
        (tally, context.overflowed.load(Ordering::Relaxed) != 0)
    }

    /// One round of marker `me`, if one is open to it.
    fn help_once(&self, me: usize) {
        let Some(_inside) = self.gate.try_enter() else { return };
        // Both Relaxed: written before the gate was opened.
        if me < self.markers.load(Ordering::Relaxed) {
            let job = self.job.load(Ordering::Relaxed);
            // SAFETY: we are inside, so the collector waits for us before the job ends.
            unsafe { ((*job).run)((*job).context, me) };
        }
    }

    /// What the present round is like. Inside the gate.
    fn round(&self) -> Round {
        // All Relaxed: written before the gate was opened.
        Round::new(
            self.markers.load(Ordering::Relaxed),
            Ablation::from_bits(self.ablation.load(Ordering::Relaxed)),
            self.beside.load(Ordering::Relaxed),
        )
    }

    /// Hands the roots out in turn, where markers do not steal. What does not fit into a deque stays with the first.
    fn deal<H: Objects>(&self, markers: usize, first: &mut Marker<'_, H>) {
        for turn in 0..first.private() {
            let Some(entry) = first.deal() else { break };
            // SAFETY: the helpers do not run yet, and this thread is marker 0.
            if turn % markers == 0 || unsafe { !self.publics[turn % markers].give(entry) } {
                first.push(entry);
            }
        }
    }

    fn all_empty(&self, round: Round) -> bool {
        (0..round.markers).all(|marker| self.publics[round.place(marker)].is_empty(round.form))
    }

    /// Takes part in a round as marker `me` until it is over, or `interrupted` says so for good; then entries may be left.
    fn work<H: Objects>(&self, marker: &mut Marker<'_, H>, me: usize, mut busy: bool, interrupted: impl Fn() -> bool) {
        let round = self.round();
        // Where nobody steals, nobody has anything left who is idle.
        let nothing_public = || !round.balanced || self.all_empty(round);
        let heap = marker.heap();
        let all_empty = || nothing_public() && !heap.has_grey();
        let patience = || Patience::for_nanos(PATIENCE[usize::from(round.beside)].0);
        let mut looks = patience();
        loop {
            if interrupted() {
                // Those that sleep find out, and late ones do not begin.
                self.ending.interrupt();
                return;
            }
            if busy {
                if !marker.drain_until(|pieces| self.ending.announce_work(pieces), &interrupted) {
                    continue;
                }
                // SAFETY: marker `me`'s own.
                let took_back = unsafe { marker.take_back(&self.publics[round.place(me)], round.form) };
                let found =
                    took_back || self.steal(marker, me, round) || (self.is_ripe(round, busy) && self.take_grey(marker));
                if !found {
                    self.ending.become_idle(me);
                    self.hungry.fetch_add(1, Ordering::Relaxed);
                    busy = false;
                }
            } else if self.ending.is_done() || self.ending.detect(all_empty) {
                return;
            } else if !nothing_public() || (self.is_ripe(round, busy) && heap.has_grey()) {
                self.become_busy(me);
                (busy, looks) = (true, patience());
            } else if !looks.spin() {
                // Others have work for a while, and none to give away.
                if heap.has_grey() {
                    self.ripe.store(true, Ordering::Relaxed);
                }
                self.ending.sleep(me, all_empty);
                looks = patience();
            }
        }
    }

    /// Whether blocks need not wait any longer: there is nothing else to be marked, as far as can be seen by a marker of the round that is busy, or idle.
    fn is_ripe(&self, round: Round, busy: bool) -> bool {
        let idle = self.hungry.load(Ordering::Relaxed) as usize;
        self.ripe.load(Ordering::Relaxed) || idle + usize::from(busy) >= round.markers + usize::from(round.beside)
    }

    /// Has a marker take blocks that wait, if there are any, and lets others do so.
    pub fn take_grey<H: Objects>(&self, marker: &mut Marker<'_, H>) -> bool {
        let took = marker.take_grey();
        if self.ripe.load(Ordering::Relaxed) != took {
            self.ripe.store(took, Ordering::Relaxed);
            if took {
                self.ending.announce_work(MAX_MARKERS);
            }
        }
        took
    }

    /// The same for a guest, if others do.
    pub fn take_ripe_grey<H: Objects>(&self, marker: &mut Marker<'_, H>) -> bool {
        self.ripe.load(Ordering::Relaxed) && marker.take_grey()
    }

    fn become_busy(&self, me: usize) {
        self.ending.become_busy(me);
        self.hungry.fetch_sub(1, Ordering::Relaxed);
    }

    /// Steals from the others in turn, beginning behind itself.
    fn steal<H: Objects>(&self, marker: &mut Marker<'_, H>, me: usize, round: Round) -> bool {
        round.balanced
            && (1..round.markers).any(|step| {
                let victim = round.place((me + step) % round.markers);
                marker.steal_from(&self.publics[victim], round.form)
            })
    }

    /// In a fork child: the helpers are gone.
    ///
    /// # Safety
    /// The caller is the only thread of the process.
    pub unsafe fn reset_after_fork(&self) {
        self.helpers.store(0, Ordering::Relaxed);
        // The fork may have come in the middle of a round beside the program: what its markers had is the parent's.
        // What was not used is not written to: each page that is costs a copy.
        // SAFETY: the caller's promise.
        unsafe {
            self.publics.iter().filter(|public| public.is_set_up()).for_each(|public| public.reset_after_fork());
            self.owns.iter().for_each(|own| (*own.get()).stack.clear());
            self.aparts.iter().for_each(Apart::forget);
            self.bell.reset_after_fork();
            self.called.store(0, Ordering::Relaxed);
            self.gate.reset_after_fork(true);
        }
    }
}

extern "C" fn helper_main(me: *mut c_void) -> *mut c_void {
    Mask::all_but_faults().set();
    CREW.aparts[me.addr()].begin();
    // SAFETY: the name is a C string of fewer than 16 bytes.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"larder-marker".as_ptr()) };
    loop {
        // A round that is rung in after this is not slept through.
        let seen = CREW.bell.current();
        CREW.help_once(me.addr());
        let mut patience = Patience::for_nanos(CALLED.0);
        while CREW.called.load(Ordering::Relaxed) != 0 && CREW.bell.current() == seen && patience.spin() {}
        CREW.bell.wait(seen);
    }
}

/// When the program ends, helpers may run on every CPU. The last thread that leaves frees the address space, and a helper that is bound to
/// a CPU with much else to do is that one: the process then stays until its turn comes, seconds after the program has ended.
#[used]
// SAFETY: the section has addresses of functions that take nothing and return.
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = let_helpers_go;

extern "C" fn let_helpers_go() {
    CREW.aparts.iter().for_each(Apart::let_go);
}

/// Creates helper `me`. The caller blocks every signal that has a client's handler, and the helper inherits that.
fn start_helper(me: usize) -> bool {
    // SAFETY: attributes are initialised and destroyed here; the routine and its argument match.
    unsafe {
        let mut attributes: libc::pthread_attr_t = core::mem::zeroed();
        libc::pthread_attr_init(&mut attributes);
        libc::pthread_attr_setstacksize(&mut attributes, HELPER_STACK);
        libc::pthread_attr_setdetachstate(&mut attributes, libc::PTHREAD_CREATE_DETACHED);
        let mut handle = core::mem::zeroed();
        let r = libc::pthread_create(&mut handle, &attributes, helper_main, core::ptr::without_provenance_mut(me));
        libc::pthread_attr_destroy(&mut attributes);
        r == 0
    }
}
