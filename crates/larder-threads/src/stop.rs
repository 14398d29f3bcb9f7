//! Stopping the world, and resuming it.
//!
//! `WORLD.number` is one word to sleep on: even while threads run, odd during a stop; each stop has its own odd number.
//!
//! | step | collector (holds the registry's lock) | thread |
//! |---|---|---|
//! | 1 | `number` becomes odd; where there are few threads, signals those that are seen running | |
//! | 2 | heavy half of a fence; for each `Running` record that has no signal yet: if it is still parked, claims it; else `signalled` := number, sends the signal | |
//! | 3 | | handler: in a slow path, leaves a note and returns; else publishes its stack pointer |
//! | 4 | | `parked` and `answered` := number, adds 1 to `answers`; the last one wakes the collector |
//! | 5 | waits until there are as many answers as signals, its own for threads that it finds blocked among them | sleeps while the number is odd |
//! | 6 | marks ... | |
//! | 7 | `number` becomes even; wakes one | `parked` := 0 by an exchange, wakes the next, returns from the handler |
//!
//! A thread that comes back from a blocking region reads the number after it has become `Running` again; the collector
//! reads the state after it has made the number odd. With the two halves of an asymmetric fence between the accesses, at least
//! one of them sees the other: the thread waits, or it is signalled (and a signalled thread always answers).
//! The resume is passed on: the collector wakes one thread, and every thread that leaves wakes the next (the first ones two,
//! until each CPU has one). So the collector is not pushed off its CPU by those it woke while it still holds locks, and with
//! more threads than CPUs most are still parked when the next stop begins. That stop **claims** them: it replaces the number
//! in `parked` by its own. They are stopped already and need neither a signal nor a CPU, so that a stop costs by the threads
//! that ran since the last one. Leaving and claiming are exchanges on one word: exactly one of them happens. The queue on the
//! word is first in, first out, and a claim does not wake, so that every parked thread's turn comes.
//!
//! A thread that is still on its way out of the last stop when the next one begins sees another number, returns from
//! its handler, and finds the next signal pending.

use core::sync::atomic::AtomicI32;

use larder_sync::atomic::{AtomicU32, Ordering, compiler_fence, fence};
use larder_sync::parker::Event;
use larder_sync::spin::Patience;
use larder_sync::{asymmetric, process_static, step};
use larder_sys::clock;
use larder_sys::memory::KeepErrno;

use crate::ground::red_zone::{self, Asleep};
use crate::ground::signal::{self, Mask};
use crate::ground::{tls, with_registers_spilled};
use crate::place::Place;
use crate::record::{Thread, ThreadState};
use crate::registry::{REGISTRY, RegistryGuard};
use crate::{client, look, silent, suspend};

/// The state of the world. The collector that writes holds the registry's lock.
struct World {
    /// Even while threads run, odd during a stop. Sync: collector bumps; `event.happen`, and `stop.blocked` for the
    /// full fences.
    number: Event,
    /// Threads that answered the present stop. Sync: reset by the collector before it sends; handlers add; `stop.ack`.
    answers: AtomicU32,
    /// How many answers complete the present stop; `u32::MAX` while signals are still being sent. Sync: collector
    /// writes; `stop.last`.
    expected: AtomicU32,
    /// Happens when the last answer is there: what the collector sleeps on. Sync: its own.
    complete: Event,
    /// CPUs that the program has, once threads were resumed on several. Sync: a hint; collector writes.
    cpus: AtomicU32,
    /// How many of the threads that leave next wake two others instead of one, until every CPU has a thread.
    ///
    /// Sync: a hint; collector writes, leaving threads count down.
    boost: AtomicU32,
}

process_static! {
    /// See the module.
    static WORLD: World = World {
        number: Event::new(),
        answers: AtomicU32::new(0),
        expected: AtomicU32::new(u32::MAX),
        complete: Event::new(),
        cpus: AtomicU32::new(1),
        boost: AtomicU32::new(0),
    };
}

/// What `parked` holds in a thread that one other suspended. No stop has this number: theirs are odd.
pub(crate) const BY_REQUEST: u32 = 2;

/// The signal that stops threads. Sync: set before the first stop.
static SIGNAL: AtomicI32 = AtomicI32::new(libc::SIGPWR);

/// Most threads of which those that run are signalled before the fence: the kernel interrupts their CPUs for both at once then. With many, most
/// sleep, and to look at each twice takes longer than the fence.
const FEW: u32 = 64;

/// How long the collector looks for the last answer before it sleeps, where each thread that owes one may have a CPU: what an interruption of another
/// CPU takes, and some more. A collector that slept would have to be woken across CPUs once more.
const ANSWER_NS: u64 = 50_000;

/// After this long without the last answer the collector looks whether somebody died, and sends again.
/// In a model nobody dies, and an answer that is not noticed must not be found by looking again.
const RECHECK_NS: u64 = if cfg!(loom) { u64::MAX } else { 50_000_000 };
/// After this long it looks whether somebody has gone to sleep instead of answering; each further look waits twice as long.
#[cfg(not(loom))]
fn first_look_ns() -> u64 {
    2_000_000
}

#[cfg(loom)]
std::thread_local! {
    /// Whether collectors of this model look for threads that sleep instead of answering.
    pub static LOOKS: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// In a model, some time or never.
#[cfg(loom)]
fn first_look_ns() -> u64 {
    if LOOKS.get() { 1 } else { u64::MAX }
}

/// What a stop cost.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stopped {
    /// Threads that were signalled.
    pub signalled: u32,
    /// Threads that were in a blocking region.
    pub blocked: u32,
    /// Threads that had not left the last stop.
    pub parked: u32,
    /// From the request until the last answer.
    pub time_ns: u64,
}

/// Chooses the stop signal; before `install`.
pub fn set_signal(signal: i32) {
    SIGNAL.store(signal, Ordering::Relaxed);
}

/// The stop signal.
pub fn signal() -> i32 {
    SIGNAL.load(Ordering::Relaxed)
}

/// Installs the handler. False when the kernel refuses the signal.
pub fn install() -> bool {
    client::note(signal::handling(signal()));
    red_zone::find_c_library();
    // SAFETY: the handler calls only async-signal-safe functions.
    unsafe { signal::install(signal(), on_signal, &Mask::all_but_faults()) }
}

/// Whether a stop is under way.
pub fn in_progress() -> bool {
    WORLD.number.current() & 1 == 1
}

larder_sys::handler! {
    /// The stop's handler: for its signals, and for those that the client sends itself.
    pub(crate) fn on_signal => signalled
}

extern "C" fn signalled(number: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let _errno = KeepErrno::new();
    // SAFETY: a thread's record outlives its registration.
    let thread = unsafe { tls::with(|t| t.record.get()).cast::<Thread>().as_ref() };
    // SAFETY: the kernel gave it to this handler.
    let ours = unsafe { client::is_ours(info, thread) };
    // SAFETY: as above.
    take_signal(|| unsafe { red_zone::asleep(context) });
    if !ours {
        // SAFETY: the arguments are those of this handler.
        unsafe { client::pass_on(number, info, context) };
    }
}

/// What the handler does, on the thread that it interrupts, with signals masked; `asleep` finds out whether that sleeps.
pub(crate) fn take_signal(asleep: impl FnOnce() -> Option<Asleep>) {
    let (record, deferring) = tls::with(|t| (t.record.get(), t.slow_depth.get() != 0));
    if record.is_null() {
        return;
    }
    if deferring && step::kept("stop: leave a note in a slow path") {
        tls::with(|t| t.stop_pending.set(1));
        return;
    }
    // SAFETY: a thread's record outlives its registration, and `record` is cleared before that ends.
    let thread = unsafe { &*record.cast::<Thread>() };
    // The kernel saved every register in its frame, at or above this handler's own frame: the handler runs on the stack
    // that it interrupted. That may be the alternate stack of a client's handler.
    let here = larder_sys::thread::stack_pointer().addr();
    let place = Place::of(thread, here);
    stand(thread, asleep().map_or(place, |asleep| place.asleep(asleep)));
}

/// Does what was asked of the calling thread, whose frames and saved registers lie in `place`: parks it, suspends it, lets it be looked at.
fn stand(thread: &Thread, place: Place) {
    park(thread, place);
    suspend::sleep_if_asked(thread, place);
    look::sleep_if_asked(thread, place);
}

/// Sleeps because another thread than a collector wants it: `word`, if it is still `asked`, becomes `asleep`, which `changed` tells, and
/// the thread sleeps as long as it is that. Meanwhile it counts as parked. Everything live on its stacks lies in `place`.
pub(crate) fn sleep_by_request(
    thread: &Thread,
    place: Place,
    word: &AtomicU32,
    changed: &Event,
    [asked, asleep]: [u32; 2],
    asleep_order: Ordering,
) {
    // One in a blocking region has said itself where it stands, and its end looks for stops.
    let parks = thread.state() == ThreadState::Running;
    // As in a stop: a region may just begin.
    let outer = thread.place();
    if parks {
        thread.publish(place);
        thread.parked.store(BY_REQUEST, Ordering::Relaxed);
    }
    // ORDER suspend.asleep, look.asleep: Release, with the loads in `suspend` and `look::stand_still`: whoever sees it may take the
    // thread for parked, and sees the place.
    if word.compare_exchange(asked, asleep, asleep_order, Ordering::Relaxed).is_ok() {
        changed.bump_and_wake_all();
    }
    loop {
        let seen = changed.current();
        // ORDER suspend.resumed, look.over: Acquire, with the exchanges in `resume` and `look::let_go`: what was done meanwhile is seen.
        if word.load(Ordering::Acquire) != asleep {
            break;
        }
        changed.wait(seen);
    }
    if parks {
        stay_parked(thread);
        thread.publish(outer);
    }
}

/// Parks a thread that left a slow path with a stop pending.
#[cold]
pub(crate) fn park_deferred() {
    let _errno = KeepErrno::new();
    // First the mask. A second signal, of a later stop, must not interrupt the answer half-way; and a handler of the client that came after
    // the note was taken, and before the answer, would see the stop and wait for its end, which waits for this thread.
    let early = step::kept("defer: mask before the note is taken").then(|| Mask::all_but_faults().set());
    tls::with(|t| t.stop_pending.set(0));
    compiler_fence(Ordering::SeqCst);
    let mask = early.unwrap_or_else(|| Mask::all_but_faults().set());
    let record = tls::with(|t| t.record.get()).cast::<Thread>();
    // SAFETY: as in the handler.
    if let Some(thread) = unsafe { record.as_ref() } {
        with_registers_spilled(|sp| stand(thread, Place::of(thread, sp)));
    }
    mask.set();
}

/// Answers the present stop and sleeps until it is over. Returns at once when there is none for this thread.
fn park(thread: &Thread, place: Place) {
    // Acquires what the collector wrote before the stop began (`event.happen`).
    let number = WORLD.number.current();
    let answered = thread.answered.load(Ordering::Relaxed);
    if number & 1 == 0 || thread.signalled.load(Ordering::Relaxed) != number || answered == number {
        return;
    }
    // Relaxed: whoever changes the word gives the answer, the collector for a thread that it finds blocked; then the
    // signal comes too late, and the thread waits where its region ends.
    if thread.answered.compare_exchange(answered, number, Ordering::Relaxed, Ordering::Relaxed).is_err() {
        return;
    }
    // The signal may come while a region begins: after the thread has said where it stands, and before it is `Blocked`.
    let outer = thread.place();
    thread.publish(place);
    thread.parked.store(number, Ordering::Relaxed);
    // ORDER stop.ack: Release, with the load in `wait_for_answers`: all that this thread did, its stack pointer included,
    // is seen by the collector. Each addition continues the release sequences of those before it.
    let answers = WORLD.answers.fetch_add(1, step::order("stop.ack: Release", Ordering::Release)) + 1;
    if step::kept("stop.last: the thread's fence") {
        // Between the addition and the load: the collector stores `expected` and then reads `answers`.
        fence(Ordering::SeqCst);
    }
    // ORDER stop.last: Relaxed, with the store in `stop_world`; the fences order it.
    if answers == WORLD.expected.load(Ordering::Relaxed) {
        WORLD.complete.bump_and_wake(1);
    }
    stay_parked(thread);
    thread.publish(outer);
}

/// Sleeps until the thread may leave: no stop is under way, and none that began has claimed it.
pub(crate) fn stay_parked(thread: &Thread) {
    loop {
        // ORDER stop.parked: Acquire, with the exchange in `claim`: whoever reads a claim reads that stop's number below.
        let parked = thread.parked.load(step::order("stop.parked: Acquire", Ordering::Acquire));
        // Acquires what the collector wrote before the resume (`event.happen`).
        let number = WORLD.number.current();
        if number & 1 == 1 {
            WORLD.number.wait(number);
            continue;
        }
        if !step::kept("stop.parked: leave by an exchange") {
            thread.parked.store(0, Ordering::Relaxed);
            break;
        }
        // A stop that began meanwhile has claimed the thread, or finds it running: one of the two exchanges fails.
        if thread.parked.compare_exchange(parked, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            break;
        }
    }
    pass_on();
}

/// Lets the next thread go.
fn pass_on() {
    let more = WORLD.boost.load(Ordering::Relaxed);
    if more > 0 {
        // Two threads may take the same value: then one CPU more is busy a little earlier.
        WORLD.boost.store(more - 1, Ordering::Relaxed);
    }
    if step::kept("stop: pass the wake on") {
        WORLD.number.pass_on(1 + u32::from(more > 0));
    }
}

/// Sleeps while the stop `number` lasts.
pub(crate) fn wait_while(number: u32) {
    // Acquires what the collector wrote before the resume (`event.happen`).
    WORLD.number.wait(number);
    pass_on();
}

/// What the calling thread, which has just become visible as running, has to wait for.
pub(crate) enum Obstacle {
    /// The end of the stop of this number.
    Stop(u32),
    /// The end of a look at its stacks.
    Look,
    /// Somebody to resume it.
    Suspension,
}

/// What the calling thread has to wait for, if anything. It has just become visible as running.
pub(crate) fn obstacle_after_fence(thread: &Thread) -> Option<Obstacle> {
    if step::kept("stop.blocked: the thread's fence") {
        // Between the store of the state and these loads: the collector makes the number odd and then reads the state; who looks at the
        // thread holds it and then reads the state; who suspends it asks and then reads the state.
        asymmetric::light();
    }
    let number = WORLD.number.current();
    if number & 1 == 1 {
        return Some(Obstacle::Stop(number));
    }
    if look::is_held(thread) {
        return Some(Obstacle::Look);
    }
    suspend::is_asked(thread).then_some(Obstacle::Suspension)
}

impl RegistryGuard<'_> {
    /// Stops every registered thread but the caller. Returns when all stand still.
    ///
    /// The caller holds the collection lock, is not in a slow path, and does not allocate, log or take a lock that a
    /// stopped thread may hold until it resumes the world.
    pub fn stop_world(&self) -> Stopped {
        let begun = clock::now();
        let own = tls::with(|t| t.record.get());
        client::keep_ours();
        // ORDER stop.last: Relaxed; handlers of this stop see both by `event.happen`, and late ones of the last do not ring
        // for this one, whose answers they have not given yet.
        WORLD.answers.store(0, Ordering::Relaxed);
        WORLD.expected.store(u32::MAX, Ordering::Relaxed);
        let number = WORLD.number.bump();
        let mut stopped = Stopped::default();
        let mut signal = |thread: &Thread| {
            thread.signalled.store(number, Ordering::Relaxed);
            if client::send(thread) {
                stopped.signalled += 1;
            } else {
                thread.answered.store(number, Ordering::Relaxed);
                thread.note_gone();
            }
        };
        let is_own = |thread: &Thread| core::ptr::from_ref(thread).cast::<u8>() == own.cast_const();
        if REGISTRY.count() <= FEW {
            self.for_each(|thread| {
                // One that is seen blocked or parked may not be: that takes the fence.
                let runs = thread.state() == ThreadState::Running && thread.parked.load(Ordering::Relaxed) == 0;
                if runs && !is_own(thread) {
                    signal(thread);
                }
            });
        }
        if step::kept("stop.blocked: the collector's fence") {
            // Between the bump and the loads of the states below: a thread that ends a blocking region stores its state
            // and then reads the number (see `obstacle_after_fence`).
            asymmetric::heavy();
        }
        let (mut parked, mut blocked) = (0, 0);
        self.for_each(|thread| {
            if is_own(thread) || thread.signalled.load(Ordering::Relaxed) == number {
                return;
            }
            match thread.state() {
                ThreadState::Running if claim(thread, number) => parked += 1,
                ThreadState::Running => signal(thread),
                ThreadState::Blocked => blocked += 1,
                _ => {}
            }
        });
        (stopped.parked, stopped.blocked) = (parked, blocked);
        // ORDER stop.last: Relaxed, with the load in `park`; the fences order it.
        WORLD.expected.store(stopped.signalled, Ordering::Relaxed);
        if step::kept("stop.last: the collector's fence") {
            // Between this store and the loads in `wait_for_answers`: see `park`.
            fence(Ordering::SeqCst);
        }
        self.wait_for_answers(number, stopped.signalled, own);
        stopped.time_ns = clock::now().since(begun).0;
        stopped
    }

    fn wait_for_answers(&self, number: u32, expected: u32, own: *mut u8) {
        // Threads that are gone, and those that were found blocked.
        let (mut missing, mut asleep) = (0, 0);
        let begun = clock::now();
        let mut watch = silent::Watch::new();
        let mut patience = first_look_ns();
        if expected < WORLD.cpus.load(Ordering::Relaxed) {
            let mut look = Patience::for_nanos(ANSWER_NS);
            // Relaxed: looked at again below.
            while WORLD.answers.load(Ordering::Relaxed) < expected && look.spin() {}
        }
        loop {
            let seen = WORLD.complete.current();
            // ORDER stop.ack: Acquire, with the additions in `park`.
            let answers = WORLD.answers.load(step::order("stop.ack: Acquire", Ordering::Acquire));
            if answers + missing + asleep >= expected {
                return;
            }
            if WORLD.complete.wait_timeout(seen, patience) {
                continue;
            }
            if step::kept("stop: answer for the blocked") {
                asleep += self.answer_for_the_blocked(number);
            }
            patience = patience.saturating_mul(2).min(RECHECK_NS);
            if patience < RECHECK_NS {
                continue;
            }
            // Somebody has not answered for long: it has blocked the signal or taken it away, is starved, or died without saying so.
            missing = 0;
            client::keep_ours();
            let waited = clock::now().since(begun);
            let report = watch.is_time(waited);
            self.for_each(|thread| {
                let answered = || thread.answered.load(Ordering::Relaxed) == number;
                let waiting = core::ptr::from_ref(thread).cast::<u8>() != own.cast_const()
                    && thread.signalled.load(Ordering::Relaxed) == number
                    && !answered();
                if !waiting {
                    return;
                }
                // Where the client took the signal's handler meanwhile, it got ours.
                if !client::send_again(thread, answered) {
                    missing += 1;
                    thread.note_gone();
                } else if report {
                    silent::report(thread.tid(), self::signal(), waited);
                }
            });
        }
    }

    /// Answers for threads that went into a blocking region before the signal reached them, and there have it masked (by
    /// the mask of `ppoll`, say). The number was odd when each was seen to run, so it waits where its region ends. Returns how many.
    fn answer_for_the_blocked(&self, number: u32) -> u32 {
        let mut found = 0;
        self.for_each(|thread| {
            let answered = thread.answered.load(Ordering::Relaxed);
            if thread.signalled.load(Ordering::Relaxed) == number
                && answered != number
                && thread.state() == ThreadState::Blocked
            {
                // Relaxed: see `park`. The region's stack pointer was seen with the state.
                let ours = thread.answered.compare_exchange(answered, number, Ordering::Relaxed, Ordering::Relaxed);
                found += u32::from(ours.is_ok());
            }
        });
        found
    }

    /// Resumes every stopped thread, in two steps: from here on no thread stands still that looks, and
    /// [`wake_resumed`] gets the sleepers going. Between them the collector gives its locks back.
    pub fn resume_world(&self) {
        // Releases what the collector wrote (`event.happen`, with the wait in `wait_while`).
        WORLD.number.bump();
    }
}

/// Wakes the first of the threads that a resume lets go; it wakes others. One is enough, and it can have the CPU that a
/// marker has just left: more would push the collector off its own.
pub fn wake_resumed(cpus: usize) {
    WORLD.boost.store(cpus as u32 - 1, Ordering::Relaxed);
    if cpus > 1 {
        WORLD.cpus.store(cpus as u32, Ordering::Relaxed);
    }
    if step::kept("stop: wake the first") {
        WORLD.number.pass_on(1);
    }
}

/// Wakes another one of those who sleep though the world runs: see [`suspend::wake_others`].
pub(crate) fn wake_another() {
    WORLD.number.pass_on(1);
}

/// Takes a thread that has not left the last stop over into this one. False if it runs.
fn claim(thread: &Thread, number: u32) -> bool {
    // Relaxed: the thread parked before it answered a stop that is over. A value that is old by now fails below.
    let parked = thread.parked.load(Ordering::Relaxed);
    // ORDER stop.parked: Relaxed, with the load in `stay_parked`; the fence behind the bump of the number releases that.
    parked != 0 && thread.parked.compare_exchange(parked, number, Ordering::Relaxed, Ordering::Relaxed).is_ok()
}

/// In a fork child: no stop is under way.
///
/// # Safety
/// The caller is the only thread of the process.
pub(crate) unsafe fn reset_after_fork() {
    if in_progress() {
        WORLD.number.bump();
    }
}
