//! Signals for loom: a thread that takes them runs a handler between two steps of its own.
//!
//! A thread looks for a signal before each access to an atomic and at each compiler fence, and a wait on a futex ends
//! when one arrives, as in the kernel. A look is an atomic exchange, so loom explores every moment at which the signal
//! may have arrived. Sending orders what the sender did before what the handler does; nothing is ordered the other way.

use loom::sync::atomic::{AtomicBool, Ordering, fence};
use loom::sync::{Condvar, Mutex};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;

/// A futex's sleepers, in the order in which they came.
pub(crate) type Queue = Arc<Mutex<VecDeque<Bed>>>;
/// Where one thread sleeps once.
pub(crate) type Bed = Arc<Condvar>;

/// A thread that takes signals.
pub struct Target {
    handler: fn(),
    pending: AtomicBool,
    /// The futex on which the thread sleeps, if it sleeps.
    asleep: Mutex<Option<(Queue, Bed)>>,
}

struct Own {
    target: Option<Arc<Target>>,
    masked: bool,
}

loom::thread_local! {
    static OWN: RefCell<Own> = RefCell::new(Own { target: None, masked: false });
}

std::thread_local! {
    // Keeps models without signals fast. loom runs all threads of a model on the one that explores it.
    static ANYBODY_TAKES: Cell<bool> = const { Cell::new(false) };
}

fn own<R>(f: impl FnOnce(&mut Own) -> R) -> Option<R> {
    // A thread that ends takes no signals any more.
    OWN.try_with(|own| f(&mut own.borrow_mut())).ok()
}

/// The calling thread takes signals from here on: `handler` runs for each, with signals masked.
pub fn take_with(handler: fn()) -> Arc<Target> {
    let target = Arc::new(Target { handler, pending: AtomicBool::new(false), asleep: Mutex::new(None) });
    own(|own| own.target = Some(target.clone()));
    ANYBODY_TAKES.set(true);
    target
}

/// Masks the calling thread's signals, or takes those that wait; returns what it was before.
pub fn mask(masked: bool) -> bool {
    let before = own(|own| std::mem::replace(&mut own.masked, masked)).unwrap_or(true);
    look();
    before
}

/// Runs the handler if a signal waits and none is masked.
pub fn look() {
    if !ANYBODY_TAKES.get() || std::thread::panicking() {
        return;
    }
    loop {
        let Some(Some(target)) = own(|own| own.target.clone().filter(|_| !own.masked)) else { return };
        // Relaxed, and a fence only after the signal: a look that finds nothing must order nothing.
        if !target.pending.swap(false, Ordering::Relaxed) {
            return;
        }
        fence(Ordering::Acquire);
        own(|own| own.masked = true);
        (target.handler)();
        own(|own| own.masked = false);
    }
}

/// Sends the signal to a thread.
pub fn send(target: &Target) {
    // An exchange, because loom would let a look that found nothing overwrite a store that it was before.
    target.pending.swap(true, Ordering::Release);
    let asleep = target.asleep.lock().expect(POISON).clone();
    if let Some((queue, bed)) = asleep {
        let mut sleepers = queue.lock().expect(POISON);
        if let Some(at) = sleepers.iter().position(|other| Arc::ptr_eq(other, &bed)) {
            sleepers.remove(at);
            bed.notify_one();
        }
    }
}

pub(crate) const POISON: &str = "a model does not poison its locks";

/// Notes where the calling thread, which holds the queue's lock, is about to sleep; false when a signal waits for it.
pub(crate) fn lie_down(queue: &Queue, bed: &Bed) -> bool {
    let Some(Some(target)) = own(|own| own.target.clone().filter(|_| !own.masked)) else { return true };
    let mut asleep = target.asleep.lock().expect(POISON);
    // An exchange as well, because it sees the newest value.
    if target.pending.fetch_or(false, Ordering::Relaxed) {
        return false;
    }
    *asleep = Some((queue.clone(), bed.clone()));
    true
}

/// The calling thread, which holds no queue's lock, woke up or did not sleep.
pub(crate) fn get_up() {
    if let Some(Some(target)) = own(|own| own.target.clone().filter(|_| !own.masked)) {
        *target.asleep.lock().expect(POISON) = None;
        look();
    }
}
