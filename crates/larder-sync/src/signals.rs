//! Signals for loom: a thread that takes them runs a handler between two steps of its own.
//!
//! A thread looks for a signal before each access to an atomic and at each compiler fence, and a wait on a futex ends
//! when one arrives, as in the kernel. A look is an atomic exchange, so loom explores every moment at which the signal
//! may have arrived. Sending orders what the sender did before what the handler does; nothing is ordered the other way.

use crate::loom::sync::atomic::{AtomicBool, Ordering, fence};
use crate::loom::sync::{Condvar, Mutex};
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
    /// A second signal: the client's.
    client: AtomicBool,
    /// The futex on which the thread sleeps, if it sleeps.
    asleep: Mutex<Option<(Queue, Bed)>>,
}

struct Own {
    target: Option<Arc<Target>>,
    masked: bool,
    /// The client's handler, if it has one and is not in it.
    client: Option<fn()>,
}

crate::loom::thread_local! {
    static OWN: RefCell<Own> = RefCell::new(Own { target: None, masked: false, client: None });
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
    let target = Arc::new(Target {
        handler,
        pending: AtomicBool::new(false),
        client: AtomicBool::new(false),
        asleep: Mutex::new(None),
    });
    own(|own| own.target = Some(target.clone()));
    ANYBODY_TAKES.set(true);
    target
}

/// From here on `handler` runs for a signal of the client's, with that one masked and no other. The calling thread takes signals.
/// Returns what [`send_clients`] wants.
pub fn handle_clients(handler: fn()) -> Arc<Target> {
    own(|own| {
        own.client = Some(handler);
        own.target.clone()
    })
    .flatten()
    .expect("a thread that takes signals")
}

/// Sends the client's signal to a thread. It ends no wait on a futex, as if it came after it.
pub fn send_clients(target: &Target) {
    target.client.swap(true, Ordering::Release);
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
            return look_for_clients(&target);
        }
        fence(Ordering::Acquire);
        own(|own| own.masked = true);
        (target.handler)();
        own(|own| own.masked = false);
    }
}

fn look_for_clients(target: &Target) {
    let Some(Some(handler)) = own(|own| own.client) else { return };
    if target.client.swap(false, Ordering::Relaxed) {
        fence(Ordering::Acquire);
        own(|own| own.client = None);
        handler();
        own(|own| own.client = Some(handler));
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
