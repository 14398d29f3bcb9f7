//! Looking at the stacks of threads that go on: one of them stands still at a time, or a few that sleep anyway.
//!
//! A thread in a blocking region is **held**: it is neither signalled nor woken, and waits where its region ends only if that ends
//! while it is looked at. One that runs is **asked** by the stop signal to stand still for its own look. Nobody waits while another
//! thread's stack is looked at.
//!
//! | step | who looks (holds the registry's lock) | thread at the end of its region |
//! |---|---|---|
//! | 1 | `look` := HELD | becomes `Running` |
//! | 2 | heavy half of a fence | light half |
//! | 3 | reads the state; if it is `Blocked`, looks | reads `look`; if it is HELD, makes it AWAITED, and sleeps |
//! | 4 | `look` := FREE; wakes if it was AWAITED | goes on |
//!
//! Between the two halves of the fence at least one of the two sees the other: either the thread waits, or it is seen to run. Then
//!
//! | step | who looks | thread in the signal's handler, or where it leaves a slow path |
//! |---|---|---|
//! | 5 | `look` := ASKED; sends the stop signal | |
//! | 6 | sleeps while `look` is ASKED, but not for long | parks, `look` becomes ASLEEP, wakes |
//! | 7 | looks | sleeps while `look` is ASLEEP |
//! | 8 | `look` := FREE, wakes | leaves as from a stop, returns from the handler |
//!
//! A stop cannot begin meanwhile, since it needs the registry's lock, and no thread registers or ends. What was seen is out of date as
//! soon as the thread goes on: so this is for the beginning of a cycle whose final stop looks at all stacks once more, and finds most of
//! what they lead to marked.

use larder_sync::atomic::Ordering;
use larder_sync::{asymmetric, step};
use larder_sys::clock;

use crate::place::Place;
use crate::record::{Thread, ThreadState};
use crate::registry::{Registry, RegistryGuard};
use crate::{client, stop, suspend};

const FREE: u32 = 0;
const HELD: u32 = 1;
const AWAITED: u32 = 2;
const ASKED: u32 = 3;
const ASLEEP: u32 = 4;

/// Threads that are held together: one whose region ends waits for so many looks at most.
const TOGETHER: usize = 16;
/// How often a thread is tried that falls asleep when it is asked, and awakes when it is held.
const TRIES: usize = 4;
/// How long the looker sleeps before it sees whether the thread has gone to sleep, or died, instead of answering. In a model, some time.
const RECHECK_NS: u64 = if cfg!(loom) { 1 } else { 1_000_000 };

/// What a round of looks came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Looked {
    /// Threads that slept, and were held.
    pub held: usize,
    /// Threads that ran, and were asked to stand still.
    pub asked: usize,
    /// Threads that did not stand still in time.
    pub missed: usize,
}

/// How one look ended.
enum Outcome {
    Held,
    Asked,
    /// The thread is gone, or has no stack.
    Nothing,
    Missed,
}

impl Registry {
    /// Begins a round of looks, in which nobody was looked at yet. Returns its number. One round at a time.
    pub fn begin_looks(&self) -> u32 {
        self.looks.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }

    /// Calls `f` with each thread that was not looked at in this round, while it stands still; ends when there is none, or when
    /// `is_over` says so, which is asked now and then. Waits for `patience_ns` at most until a thread that runs stands still.
    ///
    /// The caller is no mutator and holds no lock that one may wait for without answering a stop. `f` neither allocates nor locks.
    pub fn look_at_each(
        &self,
        round: u32,
        patience_ns: u64,
        mut is_over: impl FnMut() -> bool,
        mut f: impl FnMut(&'static Thread),
    ) -> Looked {
        let mut looked = Looked::default();
        while !is_over() {
            let mut some = [None; TOGETHER];
            let mut found = 0;
            // The lock is held for some sleepers or for one other thread, which may be late: somebody may wait to begin a thread.
            let guard = self.lock_to_stop();
            for (sleepers, most) in [(true, TOGETHER), (false, 1)] {
                guard.for_each(|thread| {
                    if found < most
                        && thread.is_to_be_looked_at(round)
                        && (!sleepers || thread.state() == ThreadState::Blocked)
                    {
                        thread.tried.store(round, Ordering::Relaxed);
                        some[found] = Some(thread);
                        found += 1;
                    }
                });
            }
            if found == 0 {
                break;
            }
            guard.look_at(&some[..found], round, patience_ns, &mut looked, &mut f);
        }
        looked
    }
}

impl RegistryGuard<'_> {
    /// Those that sleep together, then the others one after the other.
    fn look_at(
        &self,
        some: &[Option<&'static Thread>],
        round: u32,
        patience_ns: u64,
        looked: &mut Looked,
        f: &mut dyn FnMut(&'static Thread),
    ) {
        let threads = || some.iter().flatten();
        // Relaxed: the fence orders it.
        threads().for_each(|thread| thread.look.store(HELD, Ordering::Relaxed));
        fence_of_looker();
        let mut asleep = [false; TOGETHER];
        for (thread, asleep) in threads().zip(&mut asleep) {
            *asleep = look_if_blocked(thread, f);
            let_go(thread);
        }
        for (thread, asleep) in threads().zip(asleep) {
            let outcome = if asleep { Outcome::Held } else { look_at_one(thread, patience_ns, f) };
            match outcome {
                Outcome::Held => looked.held += 1,
                Outcome::Asked => looked.asked += 1,
                Outcome::Nothing => {}
                Outcome::Missed => {
                    looked.missed += 1;
                    continue;
                }
            }
            thread.note_look(round);
        }
    }
}

fn fence_of_looker() {
    if step::kept("look.held: the looker's fence") {
        // Between the store of HELD and the load of the state: a thread that ends a region stores its state and then reads `look`
        // (`stop::obstacle_after_fence`).
        asymmetric::heavy();
    }
}

/// Looks at a thread that is held, if it sleeps.
fn look_if_blocked(thread: &'static Thread, f: &mut dyn FnMut(&'static Thread)) -> bool {
    let blocked = thread.state() == ThreadState::Blocked;
    if blocked {
        f(thread);
    }
    blocked
}

/// Looks at a thread that did not sleep a moment ago.
fn look_at_one(thread: &'static Thread, patience_ns: u64, f: &mut dyn FnMut(&'static Thread)) -> Outcome {
    for _ in 0..TRIES {
        match thread.state() {
            ThreadState::Running if suspend::is_asleep(thread) => {
                // At a client's wish, and whoever resumes it needs the registry's lock.
                f(thread);
                return Outcome::Asked;
            }
            ThreadState::Running => match stand_still(thread, patience_ns) {
                Answer::Stands => {
                    f(thread);
                    let_go(thread);
                    return Outcome::Asked;
                }
                Answer::Gone => {
                    thread.note_gone();
                    return Outcome::Nothing;
                }
                Answer::Late => return Outcome::Missed,
                Answer::Blocked => {}
            },
            ThreadState::Blocked => {
                // Relaxed: the fence orders it.
                thread.look.store(HELD, Ordering::Relaxed);
                fence_of_looker();
                let asleep = look_if_blocked(thread, f);
                let_go(thread);
                if asleep {
                    return Outcome::Held;
                }
            }
            _ => {
                // It has words of its record that are roots, and no stack.
                f(thread);
                return Outcome::Nothing;
            }
        }
    }
    Outcome::Missed
}

/// What became of a thread that was asked.
enum Answer {
    Stands,
    /// It has begun a blocking region instead.
    Blocked,
    Gone,
    Late,
}

/// Asks a running thread to stand still until [`let_go`].
fn stand_still(thread: &Thread, patience_ns: u64) -> Answer {
    // ORDER look.asked: Release, with the load in `sleep_if_asked`.
    thread.look.store(ASKED, Ordering::Release);
    client::keep_ours();
    // A thread that is gone is found so below.
    client::send(thread);
    let begun = clock::now();
    loop {
        let seen = thread.look_changed.current();
        // ORDER look.asleep: Acquire, with the exchange in `sleep_if_asked`: the place that the thread published is seen.
        if thread.look.load(step::order("look.asleep: Acquire", Ordering::Acquire)) != ASKED {
            return Answer::Stands;
        }
        if thread.look_changed.wait_timeout(seen, RECHECK_NS) {
            continue;
        }
        let answer = if thread.state() == ThreadState::Blocked {
            Answer::Blocked
        } else if client::is_gone(thread) {
            Answer::Gone
        } else if clock::now().since(begun).0 >= patience_ns {
            Answer::Late
        } else {
            continue;
        };
        // ORDER look.asleep: Acquire, as above, where the thread has come in the last moment.
        if thread.look.compare_exchange(ASKED, FREE, Ordering::Relaxed, Ordering::Acquire).is_ok() {
            return answer;
        }
        return Answer::Stands;
    }
}

/// The look is over, or there was none.
fn let_go(thread: &Thread) {
    // ORDER look.over: Release, with the loads in `wait` and `sleep_if_asked`, and in `stop::obstacle_after_fence`: what was read on
    // the thread's stack was read before it goes on.
    let was = thread.look.swap(FREE, step::order("look.over: Release", Ordering::Release));
    if was == AWAITED || was == ASLEEP {
        thread.look_changed.bump_and_wake_all();
    }
}

/// Whether the thread, which has just become visible as running, must wait for a look at it to end. Its light half of the fence came before.
#[inline]
pub(crate) fn is_held(thread: &Thread) -> bool {
    // ORDER look.over: Acquire, with the exchange in `let_go`.
    matches!(thread.look.load(step::order("look.over: Acquire", Ordering::Acquire)), HELD | AWAITED)
}

/// Sleeps while the calling thread is held.
pub(crate) fn wait(thread: &Thread) {
    loop {
        let seen = thread.look_changed.current();
        // ORDER look.over: Acquire, with the exchange in `let_go`, which finds AWAITED or comes first.
        match thread.look.compare_exchange(HELD, AWAITED, Ordering::Relaxed, Ordering::Acquire) {
            Ok(_) | Err(AWAITED) => thread.look_changed.wait(seen),
            Err(_) => return,
        }
    }
}

/// Sleeps, if somebody asked the calling thread to stand still. From the stop signal's handler, or when a slow path was left;
/// everything live on its stacks lies in `place`.
pub(crate) fn sleep_if_asked(thread: &Thread, place: Place) {
    // ORDER look.asked: Acquire, with the store in `stand_still`.
    if thread.look.load(Ordering::Acquire) != ASKED {
        return;
    }
    stop::sleep_by_request(
        thread,
        place,
        &thread.look,
        &thread.look_changed,
        [ASKED, ASLEEP],
        step::order("look.asleep: Release", Ordering::Release),
    );
}

/// Nobody looks at the thread. For a record that is used anew, and for the one thread of a fork's child.
pub(crate) fn forget(thread: &Thread) {
    thread.look.store(FREE, Ordering::Relaxed);
}
