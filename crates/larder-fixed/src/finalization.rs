//! Finalizers and disappearing links of this heap: the tables of `larder-trace`, under the allocation lock.

use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use larder_sys::thread::stack_pointer;
use larder_sys::{signal, tls};
use larder_trace::finalize::Finalizers;
pub use larder_trace::finalize::{FinalizerFn, NoMemory, Order};
use larder_trace::links::{Links, Reachability};
pub use larder_trace::links::{Moved, Registered};
pub use larder_trace::toggle::Status;
use larder_trace::toggle::ToggleRefs;
use larder_trace::{Interior, Marker};

use crate::view::View;
use crate::{cycle, hooks, lock, pacing, settings};

struct Tables {
    short: Links,
    long: Links,
    finalizers: Finalizers,
    toggles: ToggleRefs,
}

struct Guarded(UnsafeCell<Tables>);
// SAFETY: used under the allocation lock only.
unsafe impl Sync for Guarded {}

static TABLES: Guarded = Guarded(UnsafeCell::new(Tables {
    short: Links::new(),
    long: Links::new(),
    finalizers: Finalizers::new(),
    toggles: ToggleRefs::new(),
}));

/// Finalizers that wait to be run. Sync: written under the allocation lock; anyone reads it as a hint.
static READY: AtomicUsize = AtomicUsize::new(0);
/// Short and long links that the last cycle cleared. Sync: the collector writes; statistics.
static CLEARED: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];
/// The cycle after which the notifier was called last. Sync: a ticket.
static NOTIFIED: AtomicU64 = AtomicU64::new(0);
/// Objects that a cycle did not finalize, since they can be reached from themselves, and how many of these places are used. As many as somebody may
/// read. Sync: written in a stopped world; who takes them after it may lose some to the next cycle.
static CYCLES: [AtomicUsize; 16] = [const { AtomicUsize::new(0) }; 16];
static IN_CYCLES: AtomicUsize = AtomicUsize::new(0);
/// The thread that runs finalizers now, by its thread block, or 0: finalizers do not nest.
///
/// A finalizer need not return: it may end its thread, or leave by `longjmp`. So the name goes when its thread is unregistered, and counts no more
/// for a thread that has left the frame which wrote it.
///
/// Sync: compare-and-swap; a thread takes its own name away, and the child of a fork that of a thread which it does not have.
static RUNNING: AtomicUsize = AtomicUsize::new(0);
/// The stack pointer of the frame that runs them. Sync: for the thread that `RUNNING` names alone.
static FRAME: AtomicUsize = AtomicUsize::new(0);

fn with_tables<R>(f: impl FnOnce(&mut Tables) -> R) -> R {
    // SAFETY: the lock makes this the only reference.
    lock::with(|| f(unsafe { &mut *TABLES.0.get() }))
}

/// Sets (or with `None` removes) the finalizer of an object; returns the old one and its client data.
pub fn register(
    object: usize,
    f: Option<FinalizerFn>,
    client_data: usize,
    order: Order,
) -> Result<(Option<FinalizerFn>, usize), NoMemory> {
    with_tables(|t| {
        let before = t.finalizers.len();
        let result = t.finalizers.register(object, f, client_data, order);
        if t.finalizers.len() > before {
            pacing::finalizer_registered();
        }
        result
    })
}

/// Registers an object as a toggle reference.
pub fn add_toggle(object: usize, strong: bool) -> Result<(), NoMemory> {
    with_tables(|t| t.toggles.add(object, strong))
}

/// How many finalizers, links and long links are registered.
pub fn registered() -> [usize; 3] {
    with_tables(|t| [t.finalizers.len(), t.short.len(), t.long.len()])
}

/// Short and long links that the last cycle cleared.
pub fn cleared() -> [usize; 2] {
    [0, 1].map(|i| CLEARED[i].load(Ordering::Relaxed))
}

/// What a table knows, for a dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registration {
    /// A link and its object.
    Link(usize, usize),
    /// A long link and its object.
    LongLink(usize, usize),
    /// An object with a finalizer.
    Finalizer(usize),
}

/// Gives `f` everything that is registered: links, long links, finalizers. Under the allocation lock, which the caller may hold.
pub fn for_each_registered(f: &mut dyn FnMut(Registration)) {
    lock::with_or_held(|| {
        // SAFETY: under the lock, and nobody changes them while a client's function runs.
        let t = unsafe { &*TABLES.0.get() };
        t.short.for_each(|link, object| f(Registration::Link(link, object)));
        t.long.for_each(|link, object| f(Registration::LongLink(link, object)));
        t.finalizers.for_each_registered(|object| f(Registration::Finalizer(object)));
    });
}

/// Registers a link: the word at `link` is cleared when `object` dies, before its finalizer runs.
pub fn register_link(link: usize, object: usize) -> Result<Registered, NoMemory> {
    with_tables(|t| t.short.register(link, object))
}

/// Takes a link back.
pub fn unregister_link(link: usize) -> bool {
    with_tables(|t| t.short.unregister(link))
}

/// The link has moved to another word.
pub fn move_link(from: usize, to: usize) -> Moved {
    with_tables(|t| t.short.move_link(from, to))
}

/// Registers a long link: cleared only when `object` is really gone, after its finalizer ran.
pub fn register_long_link(link: usize, object: usize) -> Result<Registered, NoMemory> {
    with_tables(|t| t.long.register(link, object))
}

/// Takes a long link back.
pub fn unregister_long_link(link: usize) -> bool {
    with_tables(|t| t.long.unregister(link))
}

/// The long link has moved to another word.
pub fn move_long_link(from: usize, to: usize) -> Moved {
    with_tables(|t| t.long.move_link(from, to))
}

/// Finalizers that wait to be run.
pub fn ready() -> usize {
    READY.load(Ordering::Relaxed)
}

/// Runs the finalizers that are ready, on this thread, without any lock. Returns how many.
pub fn invoke() -> usize {
    let mut run = 0;
    while READY.load(Ordering::Relaxed) > 0 {
        let next = with_tables(|t| {
            let next = t.finalizers.take_ready();
            READY.store(t.finalizers.ready(), Ordering::Relaxed);
            next
        });
        let Some((f, object, client_data)) = next else { break };
        // The object and the data stay on this stack until the finalizer returns.
        // SAFETY: the client registered the function for this object.
        unsafe {
            f(
                core::ptr::with_exposed_provenance_mut::<c_void>(object),
                core::ptr::with_exposed_provenance_mut::<c_void>(client_data),
            );
        }
        core::hint::black_box((object, client_data));
        run += 1;
    }
    run
}

/// Makes everything that is registered ready, and runs it, until nothing is registered any more.
pub fn finalize_all() {
    loop {
        let queued = with_tables(|t| {
            let n = t.finalizers.queue_all();
            READY.store(t.finalizers.ready(), Ordering::Relaxed);
            n
        });
        if queued == 0 && ready() == 0 {
            return;
        }
        invoke();
    }
}

/// An object that is not finalized, since it can be reached from itself. World stopped.
fn note_cycle(object: usize) {
    let known = IN_CYCLES.load(Ordering::Relaxed);
    if let Some(place) = CYCLES.get(known) {
        place.store(object, Ordering::Relaxed);
        IN_CYCLES.store(known + 1, Ordering::Relaxed);
    }
}

/// Warns of the objects that the last cycles have noted: as long as they refer to themselves they stay.
fn tell_of_cycles() {
    let Some(warn) = hooks::WARN.get() else { return };
    for place in &CYCLES[..IN_CYCLES.swap(0, Ordering::Relaxed)] {
        // SAFETY: the client set it to be called so.
        unsafe { warn(c"GC Warning: Finalization cycle involving %p\n".as_ptr(), place.load(Ordering::Relaxed)) };
    }
}

/// After a cycle: runs what became ready, or tells the client. No lock is held.
pub(crate) fn after_cycle() {
    if IN_CYCLES.load(Ordering::Relaxed) > 0 {
        tell_of_cycles();
    }
    if ready() == 0 {
        return;
    }
    if settings::FINALIZE_ON_DEMAND.load(Ordering::Relaxed) {
        let number = cycle::number();
        if NOTIFIED.swap(number, Ordering::Relaxed) != number {
            hooks::call(&hooks::FINALIZER_NOTIFIER);
        }
        return;
    }
    // A finalizer that allocates may come here again; it must not run the others inside itself.
    let (own, here) = (tls::block().addr(), stack_pointer().addr());
    if RUNNING.compare_exchange(0, own, Ordering::Acquire, Ordering::Relaxed).is_ok() || has_left_finalizer(own, here) {
        FRAME.store(here, Ordering::Relaxed);
        invoke();
        has_run(own);
    }
}

/// Whether the calling thread, which stands at `here`, is named although the frame that ran its last finalizer is gone: what a finalizer calls lies
/// below that frame. A handler on an alternate stack may lie above it.
///
/// (So may a coroutine to which a finalizer has switched: then others run inside of it, which harms nothing but its expectations.)
fn has_left_finalizer(own: usize, here: usize) -> bool {
    RUNNING.load(Ordering::Relaxed) == own
        && here >= FRAME.load(Ordering::Relaxed)
        && signal::alternate_stack_in_use().is_none()
}

/// The thread of that name runs no finalizer any more.
fn has_run(own: usize) {
    _ = RUNNING.compare_exchange(own, 0, Ordering::Release, Ordering::Relaxed);
}

/// The calling thread is about to be unregistered: if it was running finalizers, somebody else may.
pub(crate) fn thread_leaves() {
    has_run(tls::block().addr());
}

/// In a child of fork: whoever else was running finalizers runs them in the parent.
pub(crate) fn after_fork_in_child() {
    if RUNNING.load(Ordering::Relaxed) != tls::block().addr() {
        RUNNING.store(0, Ordering::Relaxed);
    }
}

/// Pushes what the tables keep alive. World stopped; the caller holds the allocation lock.
pub(crate) fn push_roots(mut f: impl FnMut(usize)) {
    // SAFETY: the caller holds the lock.
    let t = unsafe { &*TABLES.0.get() };
    t.toggles.push_roots(&mut f);
    t.finalizers.push_roots(f);
}

/// Asks the client about each toggle reference. Before the stop; the caller holds the allocation lock.
pub(crate) fn decide_toggles() {
    // SAFETY: the caller holds the lock.
    let t = unsafe { &mut *TABLES.0.get() };
    if t.toggles.is_empty() {
        return;
    }
    let Some(decide) = hooks::TOGGLE.get() else { return };
    t.toggles.decide(|object| {
        // SAFETY: the client set it to be called so, with an object that it registered and that was not freed.
        match unsafe { decide(core::ptr::with_exposed_provenance_mut(object)) } {
            0 => Status::Drop,
            1 => Status::Strong,
            _ => Status::Weak,
        }
    });
}

/// Whether the client wants to know of each object that is queued.
pub(crate) fn is_awaited() -> bool {
    hooks::AWAIT_FINALIZE.get().is_some()
}

/// Tells the client of the `count` objects that were queued last. The caller holds the allocation lock.
pub(crate) fn tell_awaiting(count: usize) {
    let Some(tell) = hooks::AWAIT_FINALIZE.get() else { return };
    // SAFETY: the caller holds the lock.
    let t = unsafe { &*TABLES.0.get() };
    // SAFETY: the client set it to be called so.
    t.finalizers.newest(count, |object| unsafe { tell(core::ptr::with_exposed_provenance_mut(object)) });
}

/// What the tables ask of the marker.
pub(crate) struct Reach<'a, 'b> {
    pub marker: &'a mut Marker<'b, View>,
}

impl Reachability for Reach<'_, '_> {
    fn is_marked(&self, object: usize) -> bool {
        self.marker.heap().is_marked(object).unwrap_or(true)
    }

    fn set_mark(&mut self, object: usize) {
        self.marker.heap().set_mark(object);
    }

    fn mark_from(&mut self, object: usize, ignore_self: bool) {
        let view = self.marker.heap();
        let Some(entry) = view.entry_of(object) else { return };
        if !view.leads_on(entry) {
            return;
        }
        if ignore_self {
            // As libgc does it: the object's words one by one, except those that point into the object itself. A way back
            // through another object counts.
            for word in view.words_of(object) {
                if !view.is_inside(object, word) {
                    self.marker.word(word, Interior::AsConfigured);
                }
            }
        } else {
            self.marker.push(entry);
        }
        self.marker.drain(|_| {});
    }

    fn base(&self, address: usize) -> Option<usize> {
        self.marker.heap().base_of(address)
    }
}

/// What one cycle's finalization did.
#[derive(Clone, Copy, Default)]
pub(crate) struct Finalized {
    pub links: usize,
    pub queued: usize,
}

/// Clears links and queues finalizers, in libgc's order. World stopped, everything else marked.
pub(crate) fn process(reach: &mut Reach<'_, '_>) -> Finalized {
    // SAFETY: the collector holds the allocation lock.
    let t = unsafe { &mut *TABLES.0.get() };
    let java = settings::JAVA_FINALIZATION.load(Ordering::Relaxed);
    // SAFETY: links are words of the client's, valid as long as they are registered.
    let short = unsafe { t.short.clear_dead(reach) };
    let queued = t.finalizers.process(reach, java, note_cycle);
    t.short.remove_dangling(reach);
    // SAFETY: as above.
    let long = unsafe { t.long.clear_dead(reach) };
    t.long.remove_dangling(reach);
    t.toggles.clear_dead(reach);
    READY.store(t.finalizers.ready(), Ordering::Relaxed);
    CLEARED[0].store(short, Ordering::Relaxed);
    CLEARED[1].store(long, Ordering::Relaxed);
    Finalized { links: short + long, queued }
}
