//! Concurrent cycles: marking beside the program (thesis, chapter 5).
//!
//! | phase | who acts | what happens |
//! |---|---|---|
//! | `Idle` | | as without concurrent cycles |
//! | `Asked` | the marker thread | looks through blocks for empty ones; makes the heap's pages clean; stops the world shortly: the epochs of the cycle begin, short stacks of threads that ran are looked at |
//! | `Marking` | the marker thread | static data; the other stacks, one at a time ([`larder_threads::look`]); marks; asks for written pages and scans them, again and again while it pays |
//! | `Looking` | the marker thread | has traced what there was at the beginning, and waits for the loader's list, to look at roots once more; who collects may take the cycle over meanwhile, since it may have that list |
//! | `Ready` | | nothing is left but what was written lately; a thread that allocates comes to finish. The marker thread cleans now and then |
//! | `Finishing` | a thread of the program, as in a stop cycle | stops the world: written pages, all roots (of long stacks what was written, see [`stacks`]), what was put aside; the rest as in a stop cycle |
//! | `Abandoned` | | in a child of fork: the next cycle takes the marks back |
//!
//! **Why nothing live is lost.** Watching begins before the first object is marked. Take an object that is reachable when the
//! world stands still in the end, and the last pointer on a way to it. If the word that holds it is a root, it is looked at
//! then. If it lies in a marked object, that object was scanned after the word was written; or the page was written after
//! the object was scanned, and is among the pages that the final stop scans, or was asked for since: then a round scanned it
//! after that. The marker thread asks for pages, pushes what is on them, and marks, one after the other: no object is marked
//! by somebody else between the question and the look. (Mutators give out marked cells: see [`crate::dirty`].)
//!
//! **Objects that are made meanwhile** ([`Births`]) are born unmarked while the cycle traces what there was when it began, so that what dies young
//! is found by the same cycle, and nobody scans it. Then the world stops shortly once more: from there on objects are born marked (refills claim cells with
//! the new epoch), roots are looked at again, beside the program as at the beginning, and what they lead to is marked; so the final stop
//! has little of it left. What a buffer had before is handed out unmarked and found by its roots. Three sorts are born marked always: everything of a
//! snapshot, which has nobody else who would look at it; uncollectable objects, since a marker that saw one freed could keep it for ever; and objects that name
//! their own descriptor and are not cleared, since a marker that comes upon one too early would take what the memory held before for that. Where they are
//! cleared, as explicitly typed ones, a refill makes cells zero before it claims them: until the program writes the descriptor there is nothing to scan, and
//! what it writes is on a page that was written since.
//!
//! **Words that are older than the object at their address.** A program that frees explicitly may leave the address in an object, be given the
//! same memory later, and not store the new pointer, as the old one is equal: that object may have been scanned before, and nobody writes to it. What a cycle frees
//! nobody refers to, so there are such words for blocks alone in which something was freed explicitly, which their records keep
//! ([`Block::was_freed_in`](larder_blocks::Block::was_freed_in)). There objects are always born marked, in a young cycle and before it, too. An object that was
//! there when the word was scanned was marked then, one in a buffer included; one that came since was born marked.
//!
//! **What waits until the marking has ended**: blocks do not return to the pool (a word that the marker has just looked up
//! must not lead to another class), so the census rests, and a large object that is freed explicitly goes when the cycle does.
//! Mark procedures, and descriptors that are found through an object's type, wait for the final stop: a procedure, or the memory of a type, may be the
//! business of threads that run.
//!
//! **Markers.** The marker thread is one; where there are CPUs and much is to be marked, helpers of the crew join it
//! ([`Crew::mark_beside`](larder_trace::crew::Crew::mark_beside)). It alone asks for pages and pushes what is on them, and no round is open then.
//!
//! **Help.** Between the budget and the point at which the cycle is overtaken, who allocates marks in proportion; see `marking::drain`.
//!
//! **Clients see nothing of it but time.** Everything that a client is told or asked happens in the final stop, on a thread
//! of the program that allocates or collects, in the order of a stop cycle: events, links, finalizers, toggle references.
//! The marker thread runs no code of the client's.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use larder_events::PhaseKind;
use larder_policy::concurrent::{self as policy, CrewFacts, StartFacts, WholeFacts, WriteFacts};
use larder_sync::phases::{Claim, Phase, Phases};
use larder_sys::say;
use larder_sys::vector::Vector;
use larder_sys::watch::{Kind, Watch};
use larder_trace::crew::CREW;
use larder_trace::marker::Tally;
use larder_trace::{Entry, Marker};
use larder_units::{Bytes, Nanos};

use crate::barrier::{self, Algorithm};
use crate::epochs::Epochs;
use crate::heap::HEAP;
use crate::timeline::Timeline;
use crate::view::View;
use crate::{cycle, dirty, generations, grey, own_threads, pacing, settings};

mod ahead;
pub(crate) mod backoff;
mod births;
mod copies;
mod ending;
mod guests;
mod looking;
mod marking;
mod protected;
mod stacks;
mod watching;
mod way;

pub(crate) use ahead::{about_to_clear, about_to_refill};
pub use births::{Births, set_births};
pub(crate) use births::{birth_mark, count_anew as count_births_anew, count_lost_mark};
pub(crate) use copies::Copies;
pub(crate) use ending::about_to_write;
pub(crate) use guests::hand_over;
use guests::{HANDED_OVER_NESTED, HELP_FROM, help, with_guests};
use marking::marker_main;
pub(crate) use protected::counts_as_written;
use stacks::Stacks;
pub(crate) use stacks::push_stacks;
use watching::{Parts, fetch};

/// The phases of the module's table. Sync: its own.
static PHASES: Phases = Phases::new();
/// Whether cycles are concurrent. Sync: a setting.
static ON: AtomicBool = AtomicBool::new(false);
/// How writes are noticed: the place of a [`Way`] in `WAYS`. Sync: a setting.
static WANTED: AtomicU32 = AtomicU32::new(0);
/// The marker thread exists. Sync: written under the lock that guards the creation of helpers.
static EXISTS: AtomicBool = AtomicBool::new(false);
/// Bytes that count as allocated since the last cycle ([`net`](crate::heap::Heap::net)) after which one is asked for. Sync: a statistic that decides when.
static START_AFTER: AtomicUsize = AtomicUsize::new(usize::MAX);
/// Bytes allocated and bytes freed explicitly since the last cycle when this one was asked for. Sync: as `START_AFTER`.
static SINCE_AT_REQUEST: AtomicUsize = AtomicUsize::new(0);
static FREED_AT_REQUEST: AtomicUsize = AtomicUsize::new(0);
/// Longest pause that is wanted, in nanoseconds. Sync: a setting.
static GOAL_NS: AtomicU64 = AtomicU64::new(1_000_000);
/// Bytes allocated from the request for the last full concurrent cycle until its end, and for the last young one; the largest number before the first.
/// Sync: statistics.
static MEANWHILE: [AtomicUsize; 2] = [const { AtomicUsize::new(usize::MAX) }; 2];
/// Bytes that each of them had to look at, about: what was live when it began, or what was handed out since the one before. Sync:
/// statistics.
static TO_MARK: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
/// How long the last full cycle marked, in nanoseconds, and the bytes of objects and roots that it looked at; 0 before the first. Of a
/// concurrent one, its first part is added in the end. Sync: statistics.
static MARKED_NS: AtomicU64 = AtomicU64::new(0);
static MARKED_BYTES: AtomicUsize = AtomicUsize::new(0);
/// How long the marker thread marked before it cleaned for the first time, in nanoseconds. Sync: as `MARKED_NS`.
static TRACED_NS: AtomicU64 = AtomicU64::new(0);
/// Its marking was not left to end by itself. Sync: a statistic.
static WAS_HURRIED: AtomicBool = AtomicBool::new(false);
/// Cycles that ended in a stopped world because the program allocated faster than they marked. Sync: a statistic.
static OVERTAKEN: AtomicU64 = AtomicU64::new(0);
/// Cycles that marked beside the program. Sync: a statistic.
static COMPLETED: AtomicU64 = AtomicU64::new(0);

/// See [`set_markers`]. Sync: a setting.
static CHOSEN_MARKERS: AtomicUsize = AtomicUsize::new(0);
/// Markers for the next cycle. Sync: written with the budget; a statistic.
static NEXT_MARKERS: AtomicUsize = AtomicUsize::new(1);
/// Markers of the last cycle. Sync: a statistic.
static LAST_MARKERS: AtomicUsize = AtomicUsize::new(1);
/// Bytes that helpers marked beside the program, over all cycles. Sync: the marker thread adds; a statistic.
static BY_HELPERS: AtomicU64 = AtomicU64::new(0);

/// Bytes of stacks that final stops did not read, over all cycles. Sync: collectors add in a stopped world; a statistic.
static UNWRITTEN_STACKS: AtomicU64 = AtomicU64::new(0);
/// See [`compared_pages`]. Sync: as `UNWRITTEN_STACKS`.
static COMPARED: AtomicU64 = AtomicU64::new(0);

/// Stack of the marker thread.
const STACK: usize = 256 << 10;

/// What belongs to a cycle under way.
struct State {
    watch: Option<Watch>,
    /// How writes are noticed in this cycle.
    way: Way,
    /// Bytes from the heap's beginning that are watched; 0 when none are. No address: where the runtime is linked into the program, its
    /// data are roots, and this one would change after they were scanned.
    watched: usize,
    /// Between cycles, what is not written stays watched.
    leaves: bool,
    /// See [`Marker::put_aside`].
    aside: Vector<Entry>,
    tally: Tally,
    /// It is a young one: see [`generations`].
    young: bool,
    /// Most markers that this cycle has beside the program.
    markers: usize,
    figures: Figures,
    /// What the marker thread did.
    timeline: Timeline,
    since_at_start: usize,
    births: Births,
    /// The same when objects began to be born marked; `None` before.
    since_born_marked: Option<usize>,
    /// When the world went on after the first stop.
    resumed: Nanos,
    /// The round of looks of this cycle, and whether stacks may be looked at before the final stop.
    round: u32,
    looks_at_stacks: bool,
    /// Long ones, which are watched from their look to the final stop.
    stacks: Stacks,
    copies: Copies,
}

/// What is recorded about the part of a cycle that ran beside the program.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    /// When the cycle began, on the monotonic clock.
    pub start: Nanos,
    /// The longest of the short stops before the final one.
    pub start_pause: Nanos,
    /// From there until only the final stop was left.
    pub beside: Nanos,
    /// When that was so for the first time.
    pub ready: Nanos,
    /// Rounds of cleaning.
    pub rounds: u32,
    /// How often threads that allocated helped to mark.
    pub helps: u32,
    /// Bytes that they marked.
    pub bytes_helped: usize,
    /// Most markers that marked beside the program at once, helping threads not counted.
    pub markers: u32,
    /// Pages scanned again beside the program, and in the final stop.
    pub pages: [usize; 2],
    /// How often of such a page only those words were looked up that differ from its copy.
    pub compared: usize,
    /// The program allocated faster than the cycle marked, or somebody wanted the cycle to end: marking ended in the stop.
    pub hurried: bool,
}

struct Guarded(UnsafeCell<State>);
// SAFETY: used by the marker thread in `Asked`, `Marking` and `Idle`, and by the collector in `Finishing`; `PHASES` hands it over.
unsafe impl Sync for Guarded {}

static STATE: Guarded = Guarded(UnsafeCell::new(State {
    watch: None,
    way: WAYS[0],
    watched: 0,
    leaves: false,
    aside: Vector::new(),
    tally: Tally::NONE,
    young: false,
    markers: 1,
    figures: Figures {
        start: Nanos(0),
        start_pause: Nanos(0),
        beside: Nanos(0),
        ready: Nanos(0),
        rounds: 0,
        helps: 0,
        bytes_helped: 0,
        markers: 0,
        pages: [0; 2],
        compared: 0,
        hurried: false,
    },
    timeline: Timeline::new(),
    since_at_start: 0,
    births: Births::Late,
    since_born_marked: None,
    resumed: Nanos(0),
    round: 0,
    looks_at_stacks: false,
    stacks: Stacks::new(),
    copies: Copies::new(),
}));

fn phase() -> Phase {
    PHASES.now()
}

/// How a cycle learns of the program's writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// It watches pages.
    Watch(Kind),
    /// The client tells of each: see [`crate::barrier`].
    Barrier(Algorithm),
}

/// Every way, by number.
const WAYS: [Way; 5] = [
    Way::Watch(Kind::Uffd),
    Way::Watch(Kind::SoftDirty),
    Way::Watch(Kind::Mprotect),
    Way::Barrier(Algorithm::IncrementalUpdate),
    Way::Barrier(Algorithm::Snapshot),
];

/// Turns concurrent cycles on, in the way that is named, or by the best kind of watching that the machine offers. The heap
/// is initialised. On failure says why, and cycles stay as they are.
///
/// With `Way::Barrier` the client calls the barrier for each pointer that it stores into the heap from here on.
pub fn turn_on(way: Option<Way>) -> Result<Way, Refused> {
    let way = match way {
        // The best is one that was just tried.
        None => Way::Watch(Kind::best().ok_or(Refused::NoKind)?),
        Some(Way::Watch(kind)) if !kind.is_offered() => return Err(Refused::NotOffered(kind)),
        Some(Way::Barrier(_)) if barrier::set_up().is_err() => return Err(Refused::NoMemory),
        Some(way) => way,
    };
    WANTED.store(WAYS.iter().position(|w| *w == way).unwrap_or(0) as u32, Ordering::Relaxed);
    ON.store(true, Ordering::Relaxed);
    pacing::renew_budget();
    Ok(way)
}

/// The way that was chosen.
fn wanted() -> Way {
    WAYS[WANTED.load(Ordering::Relaxed) as usize]
}

/// Turns concurrent cycles off; one that is under way ends as it would have.
pub fn turn_off() {
    ON.store(false, Ordering::Relaxed);
    look_after_watch();
}

/// Why cycles cannot be concurrent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The machine offers no way of watching writes that is right for every program.
    NoKind,
    /// Not the one that was named.
    NotOffered(Kind),
    /// There is no memory for the barrier's cards.
    NoMemory,
}

/// Whether cycles are concurrent.
#[inline(always)]
pub fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Whether a cycle is marking beside the program, or waits to be finished.
pub fn is_under_way() -> bool {
    matches!(phase(), Phase::Marking | Phase::Looking | Phase::Ready | Phase::Finishing)
}

/// Whether the watch can go on between cycles, so that they may be young.
pub fn watches_between_cycles() -> bool {
    is_on() && matches!(wanted(), Way::Watch(Kind::Uffd | Kind::Mprotect))
}

/// A setting has changed on which it depends whether the watch goes on between cycles: the marker thread looks.
pub(crate) fn look_after_watch() {
    if EXISTS.load(Ordering::Relaxed) {
        PHASES.ring();
    }
}

/// Cycles that marked beside the program, and how many of them were overtaken.
pub fn completed() -> [u64; 2] {
    [COMPLETED.load(Ordering::Relaxed), OVERTAKEN.load(Ordering::Relaxed)]
}

/// Chooses how many markers mark beside the program, at most 16; 0 leaves it to the heap
/// ([`larder_policy::concurrent::markers`]).
pub fn set_markers(markers: usize) {
    CHOSEN_MARKERS.store(markers.min(16), Ordering::Relaxed);
    pacing::renew_budget();
}

/// Bytes that helpers of the marker thread have marked so far.
pub fn marked_by_helpers() -> u64 {
    BY_HELPERS.load(Ordering::Relaxed)
}

/// Bytes of stacks that final stops did not read so far, since nobody had written to them.
pub fn unwritten_stacks() -> u64 {
    UNWRITTEN_STACKS.load(Ordering::Relaxed)
}

/// How often cycles have looked up only those words of a written page that differ from a copy.
pub fn compared_pages() -> u64 {
    COMPARED.load(Ordering::Relaxed)
}

/// Chooses the longest pause that is wanted.
pub fn set_pause_goal(goal: Nanos) {
    GOAL_NS.store(goal.0.max(1), Ordering::Relaxed);
}

/// The longest pause that is wanted.
pub fn pause_goal() -> Nanos {
    Nanos(GOAL_NS.load(Ordering::Relaxed))
}

/// Whether a cycle beside the program is under way, or waits to be finished: then every slow path of allocation is to [`attend`].
#[inline]
pub(crate) fn wants_attention() -> bool {
    phase() != Phase::Idle
}

/// What a slow path of allocation does about concurrent cycles: begins one when it is time, and finishes one that waits.
/// `coming`: bytes that are about to be allocated.
#[inline]
pub(crate) fn attend(coming: usize) {
    if is_on() || phase() == Phase::Ready {
        attend_slow(coming);
    }
}

#[cold]
fn attend_slow(coming: usize) {
    let since = HEAP.counts.since.load(Ordering::Relaxed);
    match phase() {
        Phase::Idle if HEAP.counts_as_much_as(since + coming, START_AFTER.load(Ordering::Relaxed)) => ask_for(coming),
        Phase::Ready => _ = cycle::collect_due(),
        Phase::Marking if HEAP.counts_as_much_as(since, HELP_FROM.load(Ordering::Relaxed)) => help(coming),
        Phase::Asked | Phase::Marking | Phase::Looking => way::give(since),
        _ => {}
    }
}

/// Begins a concurrent cycle, if one can begin here and now.
pub fn ask() {
    ask_for(0);
}

/// The same before `coming` bytes are allocated.
fn ask_for(coming: usize) {
    if !is_on() || phase() != Phase::Idle || !cycle::may_collect() || cycle::is_disabled() {
        return;
    }
    if !EXISTS.load(Ordering::Relaxed) {
        if !own_threads::are_allowed() {
            // Until the program makes one, cycles stop it.
            return;
        }
        if !create() {
            say!("cannot create the marker thread: cycles are not concurrent any more");
            turn_off();
            return;
        }
        if !EXISTS.load(Ordering::Relaxed) {
            return;
        }
    }
    if PHASES.ask() {
        // From here on the budget is where the program overtakes the cycle, and what it was is where it begins to help. One large object may
        // be more than all of that: it overtakes no cycle that begins because of it.
        let (budget, since) = (HEAP.budget.load(Ordering::Relaxed), HEAP.counts.since.load(Ordering::Relaxed));
        let beyond = HEAP.net(since + coming).saturating_sub(budget);
        let live = HEAP.live.load(Ordering::Relaxed);
        SINCE_AT_REQUEST.store(since, Ordering::Relaxed);
        FREED_AT_REQUEST.store(HEAP.freed.load(Ordering::Relaxed), Ordering::Relaxed);
        way::is_to_be_given(since + coming);
        HELP_FROM.store(budget + beyond, Ordering::Relaxed);
        HEAP.budget.store(policy::overtaken_at(Bytes(budget), Bytes(live)).0 + beyond, Ordering::Relaxed);
        PHASES.ring();
    }
}

/// Finishes a cycle that waits for it. Returns whether one still marks.
pub fn finish_if_ready() -> bool {
    if phase() == Phase::Ready {
        cycle::collect_due();
    }
    matches!(phase(), Phase::Asked | Phase::Marking | Phase::Looking)
}

/// In the stress mode, whose `tick` this is: begins a concurrent cycle, or lets one go on. False where the caller is to collect,
/// which finishes one that is under way, at whatever point that is.
pub(crate) fn takes_stress(tick: u64) -> bool {
    match phase() {
        Phase::Idle if !tick.is_multiple_of(4) => {
            ask();
            phase() != Phase::Idle
        }
        Phase::Asked | Phase::Marking | Phase::Looking => tick % 4 != 1,
        _ => false,
    }
}

/// How many threads of the heap's are not the crew's.
pub(crate) fn own_threads() -> usize {
    usize::from(EXISTS.load(Ordering::Relaxed))
}

/// Creates the marker thread, unless somebody has, or it is not allowed any more. False where that failed.
fn create() -> bool {
    cycle::prepared(|| {
        // Somebody may have been suspended since the caller looked.
        EXISTS.load(Ordering::Relaxed) || !own_threads::are_allowed() || {
            // The marker thread may have all of the range stay mapped. Should the program limit its address space then, nothing more can be mapped,
            // and nobody could collect.
            CREW.prepare_first();
            CREW.prepare_beside() && start_thread()
        }
    })
}

fn start_thread() -> bool {
    // SAFETY: attributes are initialised and destroyed here; the routine and its argument match.
    let started = unsafe {
        let mut attributes: libc::pthread_attr_t = core::mem::zeroed();
        libc::pthread_attr_init(&mut attributes);
        libc::pthread_attr_setstacksize(&mut attributes, STACK);
        libc::pthread_attr_setdetachstate(&mut attributes, libc::PTHREAD_CREATE_DETACHED);
        let mut handle = core::mem::zeroed();
        let r = libc::pthread_create(&mut handle, &attributes, marker_main, core::ptr::null_mut());
        libc::pthread_attr_destroy(&mut attributes);
        r == 0
    };
    EXISTS.store(started, Ordering::Relaxed);
    started
}

/// Ends marking beside the program, if that is under way: the marker thread leaves what is left to the stop. Waits, as a
/// blocked thread, until it has. The caller holds no lock.
pub(crate) fn hurry() {
    while let Some(seen) = PHASES.hurry() {
        cycle::blocked(|| PHASES.wait_until_marked(seen));
    }
}

/// Takes the cycle under way over. The caller holds the cycle lock.
pub(crate) fn claim() -> Claim {
    let claim = PHASES.claim();
    if claim == Claim::NotBegun {
        // It was due before it could begin, or is not wanted any more.
        if HEAP.cycle_due() {
            WAS_HURRIED.store(true, Ordering::Relaxed);
            backoff::came_late();
        }
        count_overtaken();
    }
    claim
}

/// Whether a cycle waits to be finished.
pub(crate) fn is_ready() -> bool {
    phase() == Phase::Ready
}

/// Pushes what is left to be done in the final stop: what the marker thread had not come to, pages written lately, and what
/// was put aside. World stopped; the caller has claimed the cycle. Several markers look for what was written, and mark from there. Returns how many pages
/// had been, and what other markers than this one have marked.
pub(crate) fn push_rest(marker: &mut Marker<'_, View>, markers: usize) -> (usize, Tally) {
    // SAFETY: the caller's claim.
    let state = unsafe { &mut *STATE.0.get() };
    // SAFETY: the marker thread does not mark between `Ready` and the next `Asked`.
    let left = unsafe { CREW.beside() };
    while let Some(entry) = left.stack.pop() {
        marker.push(entry);
    }
    if left.stack.take_overflow() {
        marker.note_overflow();
    }
    let new = Epochs::now().new;
    let State { watch, way, watched, aside, figures, copies, .. } = state;
    let (handed, lost) = with_guests(|guests| {
        while let Some(entry) = guests.left.pop() {
            marker.push(entry);
        }
        (core::mem::take(&mut guests.tally), core::mem::take(&mut guests.overflowed))
    });
    marker.tally += handed;
    if lost | HANDED_OVER_NESTED.swap(false, Ordering::Relaxed) {
        marker.note_overflow();
    }
    let known = copies.make_no_more();
    let unwatched = AtomicUsize::new(0);
    let push = |marker: &mut Marker<'_, View>, low, high| {
        let n = dirty::push(marker, |marker, low, high| known.push(marker, low, high), new, low, high);
        unwatched.fetch_add(n, Ordering::Relaxed);
    };
    let mut others = Tally::NONE;
    let pages = if let Some(parts) = Parts::of(watch, *way, watched, markers) {
        let markers = markers.min(parts.markers());
        CREW.call(markers);
        let (tally, overflowed) =
            CREW.mark_from(markers, marker, &|marker| parts.fetch(|low, high| push(marker, low, high)));
        others = tally;
        if overflowed {
            marker.note_overflow();
        }
        parts.pages()
    } else {
        fetch(watch, *way, watched, None, |low, high| push(marker, low, high)).ok()
    };
    match pages {
        // What has no pointers does not count: with `uffd` it is told of because it is not watched.
        Some(pages) => figures.pages[1] += pages.saturating_sub(unwatched.load(Ordering::Relaxed)),
        // Nothing is known: everything that is marked is scanned again.
        None => marker.note_overflow(),
    }
    figures.compared = copies.compared();
    COMPARED.fetch_add(figures.compared as u64, Ordering::Relaxed);
    let view = marker.heap();
    let mut some_waited = false;
    while let Some(entry) = aside.pop() {
        some_waited = true;
        let at = entry.start.addr();
        // It may have been freed meanwhile, and what lies there now is scanned as what it is.
        if view.is_marked(at) == Some(true)
            && let Some(entry) = view.entry_of(at)
        {
            marker.push(entry);
        }
    }
    if some_waited {
        backoff::some_waited();
    }
    aside.clear();
    (figures.pages[1], others)
}

/// What the marker thread marked, and what was born marked. World stopped; the caller has claimed the cycle, and `waste` bytes were
/// taken back from buffers.
pub(crate) fn found_live(waste: Bytes) -> Tally {
    // SAFETY: the caller's claim.
    let state = unsafe { &*STATE.0.get() };
    let now = HEAP.counts.since.load(Ordering::Relaxed);
    let late = state.since_born_marked.map_or(0, |from| now.saturating_sub(from));
    let seen = (state.tally.bytes + late).saturating_sub(waste.0).saturating_add_signed(births::unseen());
    let survivors = if state.young {
        // As far as is known: what died of them, or of what was handed out since, was not looked for.
        HEAP.live.load(Ordering::Relaxed).saturating_sub(HEAP.freed.load(Ordering::Relaxed))
    } else {
        0
    };
    Tally { bytes: seen + survivors, ..state.tally }
}

/// The cycle is over, completed or given up. World stopped; the caller has claimed it, and adds what the marker thread did to its own
/// timeline, whose stop was requested at `stop`.
pub(crate) fn finished(completed: bool, stop: Nanos, timeline: &mut Timeline) -> Figures {
    // SAFETY: the caller's claim.
    let state = unsafe { &mut *STATE.0.get() };
    MEANWHILE[usize::from(state.young)].store(allocated_since_request(), Ordering::Relaxed);
    LAST_MARKERS.store(state.figures.markers as usize, Ordering::Relaxed);
    barrier::activate(None);
    ahead::over();
    let meanwhile = HEAP.counts.since.load(Ordering::Relaxed).saturating_sub(state.since_at_start);
    if state.figures.ready.0 == 0 {
        // It was taken over before it was ready.
        state.figures.hurried = true;
        state.figures.beside = stop.since(state.figures.start);
        state.timeline.add_until(PhaseKind::Beside, state.resumed, stop, state.tally.bytes);
    } else {
        state.timeline.add_until(PhaseKind::Wait, state.figures.ready, stop, 0);
    }
    let figures = state.figures;
    WAS_HURRIED.store(figures.hurried, Ordering::Relaxed);
    timeline.append(&state.timeline);
    if completed {
        COMPLETED.fetch_add(1, Ordering::Relaxed);
    }
    if let Some(watch) = &state.watch
        && state.watched != 0
        && !generations::is_on()
    {
        // Until the marker thread has a CPU, the program is faster than it.
        state.leaves = ending::begin(watch, state.watched)
            && policy::leaves_watch(WriteFacts {
                watched: protected::pages(state.watched),
                written: figures.pages.iter().sum(),
                meanwhile: Bytes(meanwhile),
                budget: Bytes(HEAP.budget.load(Ordering::Relaxed)),
            });
    }
    PHASES.finished();
    figures
}

/// Bytes that count as allocated since the cycle was asked for.
fn allocated_since_request() -> usize {
    let since = |now: &AtomicUsize, then: &AtomicUsize| {
        Bytes(now.load(Ordering::Relaxed).saturating_sub(then.load(Ordering::Relaxed)))
    };
    let allocated = since(&HEAP.counts.since, &SINCE_AT_REQUEST);
    larder_policy::pacing::net_allocation(allocated, since(&HEAP.freed, &FREED_AT_REQUEST), true).0
}

/// The world runs again after [`finished`]: the marker thread may end the watch.
pub(crate) fn resumed() {
    PHASES.ring();
}

/// Counts a cycle that was overtaken.
pub(crate) fn count_overtaken() {
    OVERTAKEN.fetch_add(1, Ordering::Relaxed);
}

/// A full cycle has marked for so long in its stop, the final one where it was concurrent, and looked at so many bytes altogether.
pub(crate) fn has_marked(took: Nanos, bytes: Bytes, was_concurrent: bool) {
    let before = if was_concurrent { TRACED_NS.load(Ordering::Relaxed) } else { 0 };
    MARKED_NS.store(took.0 + before, Ordering::Relaxed);
    MARKED_BYTES.store(bytes.0, Ordering::Relaxed);
}

/// Whether the next cycle need not be concurrent.
fn is_short_in_one_stop() -> bool {
    let bytes = MARKED_BYTES.load(Ordering::Relaxed);
    policy::is_short_in_one_stop(WholeFacts {
        last: (bytes > 0).then(|| (Nanos(MARKED_NS.load(Ordering::Relaxed)), Bytes(bytes))),
        now: Bytes(HEAP.live.load(Ordering::Relaxed) + pacing::bytes_of_roots()),
        goal: pause_goal(),
    })
}

/// Decides when the next cycle begins. With the budget, by the collector or whoever changes a setting.
pub(crate) fn plan(budget: Bytes) {
    if !is_on() || is_short_in_one_stop() || backoff::is_on() {
        return START_AFTER.store(usize::MAX, Ordering::Relaxed);
    }
    let young = generations::next_is_young();
    let meanwhile = MEANWHILE[usize::from(young)].load(Ordering::Relaxed);
    let meanwhile = (meanwhile != usize::MAX).then_some(Bytes(meanwhile));
    let before = Bytes(TO_MARK[usize::from(young)].load(Ordering::Relaxed));
    let live = [before, if young { budget } else { Bytes(HEAP.live.load(Ordering::Relaxed)) }];
    let last = LAST_MARKERS.load(Ordering::Relaxed).max(1);
    let asked = settings::MARKERS.load(Ordering::Relaxed);
    let markers = match CHOSEN_MARKERS.load(Ordering::Relaxed) {
        0 => policy::markers(CrewFacts {
            usable_cpus: pacing::usable_cpus(),
            most: (asked > 0).then_some(asked),
            live: live[1],
            live_before: live[0],
            budget,
            meanwhile: meanwhile.map(|allocated| (allocated, last)),
        }),
        chosen => chosen,
    };
    NEXT_MARKERS.store(markers, Ordering::Relaxed);
    let start = policy::start_after(StartFacts {
        budget,
        // With more markers it takes less time.
        allocated_meanwhile: meanwhile.map(|bytes| Bytes(bytes.0.saturating_mul(last) / markers)),
        live,
        overtaken: WAS_HURRIED.load(Ordering::Relaxed),
    });
    START_AFTER.store(start.0, Ordering::Relaxed);
}

/// The state. For the marker thread, in the phases that `Guarded` names.
fn own_state<'a>() -> &'a mut State {
    // SAFETY: see `Guarded`; each caller keeps it for one step.
    unsafe { &mut *STATE.0.get() }
}

/// In a child of fork: there is no marker thread, and the parent's watch is not this process's. Marks of a cycle under way are
/// taken back by the next one.
///
/// # Safety
/// The calling thread is the only one of the process.
pub(crate) unsafe fn after_fork_in_child() {
    EXISTS.store(false, Ordering::Relaxed);
    generations::after_fork_in_child();
    let state = own_state();
    if let Way::Watch(kind) = state.way
        && state.watched != 0
    {
        Watch::undo_in_child(kind, HEAP.space.base(), HEAP.space.base() + HEAP.space.span());
        protected::clear(0, state.watched);
    }
    // The parent's thread may have been changing them: they are forgotten, not dropped.
    // SAFETY: a static of plain fields; the child has no other reference.
    unsafe {
        core::ptr::write(&raw mut state.watch, None);
        core::ptr::write(&raw mut state.aside, Vector::new());
        core::ptr::write(&raw mut state.stacks, Stacks::new());
        core::ptr::write(&raw mut state.copies, Copies::new());
        (state.watched, state.leaves) = (0, false);
        PHASES.reset_after_fork();
        grey::forget();
        guests::reset_after_fork();
        ending::reset_after_fork();
        ahead::over();
        barrier::activate(None);
    }
}

/// The marks of an abandoned cycle were taken back. World stopped; by the collector.
pub(crate) fn forgotten() {
    PHASES.finished();
}
