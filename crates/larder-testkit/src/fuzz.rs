//! Random operations on the heap, compared with a model of what must be alive and what it must hold.
//!
//! Each thread has its own graph of objects and its own roots of three sorts: words on its stack, a registered range, and
//! the content of an uncollectable object. The model knows every object that can be reached, and keeps addresses only in
//! disguise, so that only the roots keep objects. Every byte of an object is either a link to another object or part of
//! a pattern that belongs to this object alone: whoever hands a cell out twice, frees it too early, or writes into
//! it, changes a pattern.

use core::ffi::c_void;
use core::ptr;
use core::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::Mutex;

use larder_fixed::concurrent::Way;
use larder_fixed::finalization::{self, Order};
use larder_fixed::options::{Form, Options, usual_scan};
use larder_fixed::{
    allocate, allocate_aligned, allocate_many, concurrent, cycle, free, generations, init, kind, object,
};
use larder_sys::watch::Kind;

use crate::table::Words;
use crate::verifier::{self, Rules};
use crate::{Random, crowd, pattern};

/// One run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Threads that work at once.
    pub threads: usize,
    /// Where the random numbers begin.
    pub seed: u64,
    /// Operations of each thread, at least.
    pub steps: usize,
    /// Each thread goes on after them until this says so: for what a busy machine reaches late.
    pub until: fn() -> bool,
    /// A cycle at every n-th refill.
    pub collect_every: Option<u64>,
    /// Whether interior pointers count everywhere.
    pub all_interior_pointers: bool,
    /// Whether objects get finalizers; then the verifier cannot know every root.
    pub finalizers: bool,
    /// Markers, or as many as the heap thinks right.
    pub markers: Option<usize>,
    /// The widest vector instructions that markers use.
    pub widest_scan: Form,
    /// Cycles mark beside the program, and watch its writes so.
    pub beside: Option<Kind>,
    /// Markers beside the program, or as many as the heap thinks right.
    pub markers_beside: Option<usize>,
    /// Most young cycles between two full ones.
    pub young: usize,
    /// Called by each thread before its first and after its last operation.
    pub around: [fn(); 2],
}

impl Plan {
    /// A plain run.
    pub fn new(threads: usize, seed: u64, steps: usize) -> Self {
        Self {
            threads,
            seed,
            steps,
            until: || true,
            collect_every: None,
            all_interior_pointers: true,
            finalizers: true,
            markers: None,
            widest_scan: usual_scan(),
            beside: None,
            markers_beside: None,
            young: 0,
            around: [|| {}; 2],
        }
    }
}

/// Runs the plan in this process, which has no heap yet. What is wrong stops the process, or panics.
pub fn run(plan: &Plan) {
    prepare(plan);
    work(plan);
    assert!(cycle::collect());
    assert!(verifier::cycles() > 0 && verifier::cycles() == cycle::number());
}

/// Makes a heap as the plan wants it, and has every cycle verified.
pub fn prepare(plan: &Plan) {
    eprintln!("{plan:?}; repeat with LARDER_SEED={}", plan.seed);
    init(&Options {
        collect_every: plan.collect_every,
        all_interior_pointers: plan.all_interior_pointers,
        markers: plan.markers,
        widest_scan: plan.widest_scan,
        ..Options::default()
    });
    // A concurrent cycle keeps what died while it marked.
    let known = !plan.finalizers && plan.beside.is_none();
    let rules = if known { Rules::EXACT } else { Rules::WITH_FINALIZERS };
    // A plan that says how cycles run beside it has its way.
    if plan.beside.is_some() {
        verifier::watch_alone(rules)
    } else {
        verifier::watch(rules)
    }
    if let Some(markers) = plan.markers_beside {
        concurrent::set_markers(markers);
    }
    if plan.young > 0 {
        generations::set_young_cycles(plan.young);
    }
    if let Some(kind) = plan.beside {
        assert_eq!(concurrent::turn_on(Some(Way::Watch(kind))), Ok(Way::Watch(kind)));
    }
}

/// The work of a plan, in a heap that exists.
pub fn work(plan: &Plan) {
    let inner = plan.clone();
    crowd::all(plan.threads, move |i| {
        inner.around[0]();
        let mut fuzzer = Fuzzer::new(plan_seed(&inner, i), inner.finalizers);
        let mut done = 0;
        while done < inner.steps || !(inner.until)() {
            fuzzer.step();
            done += 1;
        }
        fuzzer.finish();
        inner.around[1]();
    });
    MAIL.iter().for_each(|m| drop(m.lock().unwrap().take()));
    MAIL_ROOTS.iter().for_each(|w| w.store(0, Ordering::Release));
    if plan.finalizers {
        everything_dies();
    }
}

fn plan_seed(plan: &Plan, thread: usize) -> u64 {
    plan.seed.wrapping_mul(1_000_003).wrapping_add(thread as u64 + 1)
}

/// No thread and no root is left: what had a finalizer gets it, and links are cleared. A few words on this stack may
/// still look like addresses of objects.
fn everything_dies() {
    for _ in 0..4 {
        assert!(cycle::collect());
        finalization::invoke();
    }
    let used = TOKENS_USED.load(Ordering::Relaxed).min(TOKENS);
    let states = |state| TOKEN_STATE[..used].iter().filter(|s| s.load(Ordering::Relaxed) == state).count();
    let (reachable, waiting, done) = (states(REACHABLE), states(DROPPED), states(FINALIZED));
    assert_eq!(reachable, 0, "a thread left without dropping its objects");
    assert!(waiting <= 2 + done / 20, "{waiting} finalizers did not run, {done} did");
}

/// Root words of a thread: a third of each sort.
const SLOTS: usize = 96;
/// Uncollectable objects of a thread beyond its roots.
const PINNED: usize = 12;
/// Finalizers of a run.
const TOKENS: usize = 1 << 16;
/// Words that can be weak links, for each thread.
const LINKS: usize = 64;

const REACHABLE: u8 = 1;
const DROPPED: u8 = 2;
const FINALIZED: u8 = 3;

/// Sync: `REACHABLE` and `DROPPED` by the thread that owns the object, before it drops it; `FINALIZED` by the finalizer.
static TOKEN_STATE: [AtomicU8; TOKENS] = [const { AtomicU8::new(0) }; TOKENS];
/// Pattern of the object. Sync: written before the finalizer is registered.
static TOKEN_ID: [AtomicU64; TOKENS] = [const { AtomicU64::new(0) }; TOKENS];
/// Its bytes. Sync: as `TOKEN_ID`.
static TOKEN_EXTENT: [AtomicUsize; TOKENS] = [const { AtomicUsize::new(0) }; TOKENS];
/// Sync: a ticket.
static TOKENS_USED: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" fn finalizer(object: *mut c_void, token: *mut c_void) {
    let t = token.addr() - 1;
    let before = TOKEN_STATE[t].swap(FINALIZED, Ordering::AcqRel);
    if before != DROPPED {
        larder_sys::die!("the finalizer of {object:p} runs in state {before}: it is reachable, or it ran before");
    }
    // SAFETY: a finalizer may use its object, whose content nobody has changed.
    unsafe {
        pattern::check(object.cast(), 0, TOKEN_EXTENT[t].load(Ordering::Relaxed), TOKEN_ID[t].load(Ordering::Relaxed));
        // A finalizer may allocate.
        allocate(kind::NORMAL, 40);
    }
}

/// Objects on their way from one thread to another. Static data are roots.
static MAIL: [Mutex<Option<Node>>; 8] = [const { Mutex::new(None) }; 8];
/// Sync: under the lock of the same number in `MAIL`.
static MAIL_ROOTS: [AtomicUsize; 8] = [const { AtomicUsize::new(0) }; 8];

/// What the model knows of one object.
#[derive(Debug)]
struct Node {
    /// The complement of the address.
    hidden: usize,
    id: u64,
    kind: usize,
    /// Bytes of links and pattern, from the address on.
    extent: usize,
    /// Words at the beginning that are links, and what they refer to.
    links: Vec<Option<usize>>,
    /// Another object has referred to it: it must not be freed explicitly.
    was_linked: bool,
    /// The address is not the beginning of the object.
    displaced: bool,
    token: Option<usize>,
    /// Number of the word that is its weak link.
    weak: Option<usize>,
}

impl Node {
    fn at(&self) -> *mut u8 {
        ptr::with_exposed_provenance_mut(!self.hidden)
    }

    fn pattern_start(&self) -> usize {
        self.links.len() * 8
    }

    /// Whether nothing but one root can refer to it.
    fn is_plain(&self) -> bool {
        !self.was_linked && !self.displaced && self.token.is_none() && self.weak.is_none()
    }
}

struct Fuzzer {
    /// The first third of the roots. On the stack, since the whole fuzzer is.
    stack: [usize; SLOTS / 3],
    /// The last two objects in hand: an object is, from its allocation until a root refers to it, and from its last root until it
    /// is freed. Elsewhere its address may be in disguise only, since compilers undo a disguise as late as they can.
    in_hand: [usize; 2],
    range: Words,
    /// The complement of the address of the uncollectable object that is the last third.
    hidden_table: usize,
    /// The model: which node a root refers to.
    roots: [Option<usize>; SLOTS],
    nodes: Vec<Option<Node>>,
    pinned: Vec<usize>,
    weak: Words,
    weak_used: Vec<bool>,
    random: Random,
    next_id: u64,
    finalizers: bool,
    step: usize,
}

impl Fuzzer {
    fn new(seed: u64, finalizers: bool) -> Self {
        // SAFETY: uncollectable: it needs no root.
        let table = unsafe { allocate(kind::UNCOLLECTABLE, SLOTS / 3 * 8) };
        assert!(!table.is_null());
        Self {
            stack: [0; SLOTS / 3],
            in_hand: [0; 2],
            range: Words::roots(SLOTS / 3),
            hidden_table: !table.expose_provenance(),
            roots: [None; SLOTS],
            nodes: vec![],
            pinned: vec![],
            weak: Words::hidden(LINKS),
            weak_used: vec![false; LINKS],
            random: Random::new(seed),
            next_id: seed << 20,
            finalizers,
            step: 0,
        }
    }

    fn hold(&mut self, at: *mut u8) {
        let hands = [at.expose_provenance(), self.in_hand[0]];
        // SAFETY: an own field; volatile, so that it is really in memory.
        unsafe { ptr::from_mut(&mut self.in_hand).write_volatile(hands) };
    }

    fn write_root(&mut self, slot: usize, value: usize) {
        let third = SLOTS / 3;
        match slot / third {
            // SAFETY: an element of the array; volatile, so that it is really in memory.
            0 => unsafe { ptr::from_mut(&mut self.stack[slot]).write_volatile(value) },
            1 => self.range.set(slot - third, value),
            _ => {
                let table = ptr::with_exposed_provenance_mut::<usize>(!self.hidden_table);
                // SAFETY: the table has a third of the slots, and lives until `finish`.
                unsafe { table.add(slot - 2 * third).write_volatile(value) };
            }
        }
    }

    fn read_root(&self, slot: usize) -> usize {
        let third = SLOTS / 3;
        match slot / third {
            // SAFETY: as in `write_root`.
            0 => unsafe { ptr::from_ref(&self.stack[slot]).read_volatile() },
            1 => self.range.get(slot - third),
            _ => {
                let table = ptr::with_exposed_provenance::<usize>(!self.hidden_table);
                // SAFETY: as in `write_root`.
                unsafe { table.add(slot - 2 * third).read_volatile() }
            }
        }
    }

    fn node(&self, n: usize) -> &Node {
        self.nodes[n].as_ref().expect("the model follows links to nodes that exist")
    }

    fn node_mut(&mut self, n: usize) -> &mut Node {
        self.nodes[n].as_mut().expect("the model follows links to nodes that exist")
    }

    fn add_node(&mut self, node: Node) -> usize {
        match self.nodes.iter().position(Option::is_none) {
            Some(n) => {
                self.nodes[n] = Some(node);
                n
            }
            None => {
                self.nodes.push(Some(node));
                self.nodes.len() - 1
            }
        }
    }

    /// Empties a root; its object may die from here on.
    fn drop_root(&mut self, slot: usize) {
        if let Some(n) = self.roots[slot].take()
            && let Some(token) = self.node(n).token
        {
            // Objects with finalizers have one root and no links to them: this was it.
            TOKEN_STATE[token].store(DROPPED, Ordering::Release);
        }
        self.write_root(slot, 0);
    }

    fn set_root(&mut self, slot: usize, n: usize) {
        self.drop_root(slot);
        self.roots[slot] = Some(n);
        let at = !self.node(n).hidden;
        self.write_root(slot, at);
    }

    fn random_rooted(&mut self) -> Option<(usize, usize)> {
        let start = self.random.below(SLOTS);
        (0..SLOTS).map(|i| (start + i) % SLOTS).find_map(|s| self.roots[s].map(|n| (s, n)))
    }

    fn random_size(&mut self) -> usize {
        let r = &mut self.random;
        match r.below(80) {
            0..40 => r.below(130),
            40..64 => r.below(1024),
            64..75 => r.below(8 * 1024),
            75..79 => r.below(34 * 1024),
            _ => r.below(200 * 1024),
        }
    }

    fn random_kind(&mut self) -> usize {
        [kind::NORMAL, kind::NORMAL, kind::NORMAL, kind::POINTER_FREE, kind::TYPED][self.random.below(5)]
    }

    /// Checks a fresh object and writes its pattern. It is kept in hand.
    fn dress(&mut self, at: *mut u8, kind: usize, requested: usize, displaced: bool) -> Node {
        self.hold(at);
        let size = if displaced { requested } else { object::size(at.addr()) };
        assert!(size >= requested && at.addr().is_multiple_of(16), "{at:p}: {size} bytes for {requested}");
        if !displaced {
            assert_eq!(object::base(at.addr()), Some(at.addr()), "a fresh object is allocated");
            assert_eq!(object::kind_of(at.addr()), kind);
        }
        let scanned = !matches!(kind, kind::POINTER_FREE | kind::POINTER_FREE_UNCOLLECTABLE);
        if scanned {
            // SAFETY: the object is this thread's own.
            let set = unsafe { pattern::first_set(at, size) };
            assert_eq!(set, None, "{at:p} of {size} bytes, kind {kind}, is not cleared");
        }
        let mut extent = if self.random.below(2) == 0 { size } else { requested };
        if kind == kind::TYPED {
            extent = extent.min(size - 8);
        }
        let links = if scanned { self.random.below(3).min(extent / 8) } else { 0 };
        if kind == kind::TYPED {
            let descriptor = [1, 1 << 63 | 1, 3 << 62 | 1][links];
            // SAFETY: the last word of the cell is the descriptor's.
            unsafe { at.add(size - 8).cast::<usize>().write(descriptor) };
        }
        self.next_id += 1;
        let node = Node {
            hidden: !at.expose_provenance(),
            id: self.next_id,
            kind,
            extent,
            links: vec![None; links],
            was_linked: false,
            displaced,
            token: None,
            weak: None,
        };
        // SAFETY: inside the object.
        unsafe { pattern::fill(at, node.pattern_start(), extent, node.id) };
        node
    }

    fn new_object(&mut self, kind: usize, bytes: usize) -> usize {
        // SAFETY: `dress` keeps the object until the next one, and the caller stores it in a root before.
        let at = unsafe { allocate(kind, bytes) };
        assert!(!at.is_null(), "the heap is not bounded");
        let node = self.dress(at, kind, bytes, false);
        self.add_node(node)
    }

    /// Looks at every byte of an object.
    fn check(&self, n: usize) {
        let node = self.node(n);
        let at = node.at();
        if !node.displaced {
            assert_eq!(object::base(at.addr()), Some(at.addr()), "{node:?} is not allocated any more");
            assert_eq!(object::kind_of(at.addr()), node.kind, "{node:?}");
        }
        for (i, link) in node.links.iter().enumerate() {
            // SAFETY: the model says that the object is alive.
            let word = unsafe { at.cast::<usize>().add(i).read() };
            assert_eq!(word, link.map_or(0, |to| !self.node(to).hidden), "link {i} of {node:?}");
        }
        // SAFETY: the model says that the object is alive.
        let broken = unsafe { pattern::broken_at(at, node.pattern_start(), node.extent, node.id) };
        assert_eq!(broken, None, "{node:?} at {at:p}, step {}, cycle {}", self.step, cycle::number());
        if let Some(w) = node.weak {
            assert_eq!(self.weak.get(w), node.hidden, "the weak link of {node:?}, which is alive");
        }
    }

    /// Forgets what the roots do not reach, and checks everything else.
    fn check_all(&mut self) {
        let mut reached = vec![false; self.nodes.len()];
        let mut work: Vec<usize> = self.roots.iter().flatten().chain(&self.pinned).copied().collect();
        while let Some(n) = work.pop() {
            if !core::mem::replace(&mut reached[n], true) {
                work.extend(self.node(n).links.iter().flatten());
            }
        }
        for (n, reached) in reached.into_iter().enumerate() {
            if reached {
                self.check(n);
            } else if let Some(gone) = self.nodes[n].take()
                && let Some(w) = gone.weak
                && self.weak.get(w) == 0
            {
                // Cleared, and so forgotten by the heap: the word can be used again.
                self.weak_used[w] = false;
            }
        }
        for slot in 0..SLOTS {
            assert_eq!(self.read_root(slot), self.roots[slot].map_or(0, |n| !self.node(n).hidden), "root {slot}");
        }
    }

    fn step(&mut self) {
        self.step += 1;
        match self.random.below(100) {
            0..38 => {
                let (kind, bytes, slot) = (self.random_kind(), self.random_size(), self.random.below(SLOTS));
                let n = self.new_object(kind, bytes);
                self.set_root(slot, n);
            }
            38..50 => self.link(),
            50..60 => {
                let slot = self.random.below(SLOTS);
                self.drop_root(slot);
            }
            60..66 => self.unlink(),
            66..73 => self.free_one(),
            73..79 => self.copy(),
            79..84 => self.pin_or_unpin(),
            84..88 if self.finalizers => self.give_finalizer(),
            88..91 => self.give_weak_link(),
            91..94 => self.many(),
            94..96 => self.mail(),
            96..98 => self.aligned(),
            98 => self.ask(),
            _ => self.control(),
        }
        if let Some((_, n)) = self.random_rooted() {
            self.check(n);
        }
        if self.step.is_multiple_of(64) {
            self.check_all();
        }
    }

    /// Makes one object refer to another, and perhaps takes the other's root away.
    fn link(&mut self) {
        let (Some((_, from)), Some((slot, to))) = (self.random_rooted(), self.random_rooted()) else { return };
        let links = self.node(from).links.len();
        if links == 0 || from == to || self.node(to).token.is_some() || self.node(from).token.is_some() {
            return;
        }
        let i = self.random.below(links);
        self.node_mut(to).was_linked = true;
        let (at, target) = (self.node(from).at(), !self.node(to).hidden);
        // SAFETY: a link word of a live object.
        unsafe { at.cast::<usize>().add(i).write(target) };
        self.node_mut(from).links[i] = Some(to);
        if self.random.below(2) == 0 {
            self.drop_root(slot);
        }
        self.forget_unreachable_later();
    }

    /// An overwritten link may have been the last way to an object: the model finds out before it looks at it again.
    fn forget_unreachable_later(&mut self) {
        if self.random.below(4) == 0 {
            self.check_all();
        }
    }

    fn unlink(&mut self) {
        let Some((_, n)) = self.random_rooted() else { return };
        let links = self.node(n).links.len();
        if links == 0 {
            return;
        }
        let i = self.random.below(links);
        // SAFETY: a link word of a live object.
        unsafe { self.node(n).at().cast::<usize>().add(i).write(0) };
        self.node_mut(n).links[i] = None;
        self.forget_unreachable_later();
    }

    fn free_one(&mut self) {
        let Some((slot, n)) = self.random_rooted() else { return };
        let roots = self.roots.iter().filter(|r| **r == Some(n)).count();
        if self.node(n).is_plain() && roots == 1 {
            self.check(n);
            let at = self.node(n).at();
            self.hold(at);
            self.drop_root(slot);
            self.nodes[n] = None;
            // SAFETY: nothing refers to it.
            unsafe { free(at) };
        }
    }

    /// What `realloc` does: a new object with the old one's content.
    fn copy(&mut self) {
        let Some((slot, from)) = self.random_rooted() else { return };
        if !self.node(from).is_plain() || self.roots.iter().filter(|r| **r == Some(from)).count() != 1 {
            return;
        }
        let bytes = self.random_size();
        let kind = self.node(from).kind;
        let to = self.new_object(kind, bytes);
        let (old, new) = (self.node(from).at(), self.node(to).at());
        // The new object gets the old one's links, as far as it has room, and both are alive.
        for i in 0..self.node(from).links.len().min(self.node(to).links.len()) {
            let link = self.node(from).links[i];
            // SAFETY: link words of live objects.
            unsafe { new.cast::<usize>().add(i).write(old.cast::<usize>().add(i).read()) };
            self.node_mut(to).links[i] = link;
        }
        self.check(from);
        self.check(to);
        self.hold(old);
        self.roots[slot] = Some(to);
        self.write_root(slot, new.addr());
        self.nodes[from] = None;
        // SAFETY: nothing refers to the old object any more.
        unsafe { free(old) };
    }

    fn pin_or_unpin(&mut self) {
        if self.pinned.len() < PINNED {
            let kind = [kind::UNCOLLECTABLE, kind::POINTER_FREE_UNCOLLECTABLE][self.random.below(2)];
            let bytes = self.random_size();
            let n = self.new_object(kind, bytes);
            if let Some((_, to)) = self.random_rooted()
                && !self.node(n).links.is_empty()
                && self.node(to).token.is_none()
            {
                self.node_mut(to).was_linked = true;
                // SAFETY: a link word of a live object.
                unsafe { self.node(n).at().cast::<usize>().write(!self.node(to).hidden) };
                self.node_mut(n).links[0] = Some(to);
            }
            self.pinned.push(n);
        } else {
            let i = self.random.below(PINNED);
            let n = self.pinned.swap_remove(i);
            self.check(n);
            let at = self.nodes[n].take().expect("pinned nodes exist").at();
            // SAFETY: nothing refers to it.
            unsafe { free(at) };
            self.check_all();
        }
    }

    fn give_finalizer(&mut self) {
        let slot = self.random.below(SLOTS);
        let bytes = self.random.below(600);
        let n = self.new_object(kind::POINTER_FREE, bytes);
        let t = TOKENS_USED.fetch_add(1, Ordering::Relaxed);
        if t < TOKENS {
            let node = self.node(n);
            TOKEN_ID[t].store(node.id, Ordering::Relaxed);
            TOKEN_EXTENT[t].store(node.extent, Ordering::Relaxed);
            TOKEN_STATE[t].store(REACHABLE, Ordering::Release);
            let order = [Order::Normal, Order::IgnoreSelf, Order::NoOrder, Order::Unreachable][self.random.below(4)];
            let old = finalization::register(!self.node(n).hidden, Some(finalizer), t + 1, order);
            assert!(matches!(old, Ok((None, 0))), "a fresh object has no finalizer");
            self.node_mut(n).token = Some(t);
        }
        self.set_root(slot, n);
    }

    fn give_weak_link(&mut self) {
        let Some((_, n)) = self.random_rooted() else { return };
        let Some(w) = self.weak_used.iter().position(|used| !used) else { return };
        if self.node(n).weak.is_some() || self.node(n).displaced || self.node(n).token.is_some() {
            return;
        }
        self.weak_used[w] = true;
        self.weak.set(w, self.node(n).hidden);
        let new = finalization::register_link(self.weak.address(w), !self.node(n).hidden);
        assert_eq!(new, Ok(finalization::Registered::New));
        self.node_mut(n).weak = Some(w);
    }

    /// A list of objects at once; the first three are kept. Scanned ones, because the list keeps its own rest alive.
    fn many(&mut self) {
        let kind = kind::NORMAL;
        let bytes = self.random.below(600) + 8;
        // SAFETY: the list is on this stack until its objects are in roots.
        let mut at = unsafe { allocate_many(kind, bytes) };
        let mut kept = 0;
        while !at.is_null() {
            // SAFETY: the first word is the link to the next object.
            let next = unsafe { at.cast::<*mut u8>().replace(ptr::null_mut()) };
            if kept < 3 {
                kept += 1;
                let node = self.dress(at, kind, bytes, false);
                let n = self.add_node(node);
                let slot = self.random.below(SLOTS);
                self.set_root(slot, n);
            }
            at = next;
        }
        assert!(kept > 0, "the heap is not bounded");
    }

    /// Takes an object that another thread left, or leaves one.
    fn mail(&mut self) {
        let i = self.random.below(MAIL.len());
        let slot = self.random.below(SLOTS);
        let mut letter = MAIL[i].lock().unwrap();
        if letter.is_some() {
            self.drop_root(slot);
            let node = letter.take().expect("looked at above");
            self.write_root(slot, !node.hidden);
            // Read too, or the compiler would leave a static out that is only written.
            assert_eq!(MAIL_ROOTS[i].swap(0, Ordering::AcqRel), !node.hidden);
            drop(letter);
            let n = self.add_node(node);
            self.roots[slot] = Some(n);
            self.check(n);
        } else if let Some((slot, n)) = self.random_rooted()
            && self.node(n).is_plain()
            && self.node(n).links.iter().all(Option::is_none)
            && self.roots.iter().filter(|r| **r == Some(n)).count() == 1
        {
            MAIL_ROOTS[i].store(!self.node(n).hidden, Ordering::Release);
            self.drop_root(slot);
            *letter = self.nodes[n].take();
        }
    }

    fn aligned(&mut self) {
        let align = 16 << self.random.below(12);
        let bytes = self.random.below(3000) + 16;
        let kind = [kind::NORMAL, kind::POINTER_FREE][self.random.below(2)];
        // SAFETY: on this stack until it is in a root.
        let at = unsafe { allocate_aligned(kind, bytes, align) };
        assert!(!at.is_null() && at.addr() % align == 0, "{at:p} for alignment {align}");
        let displaced = object::base(at.addr()) != Some(at.addr());
        let node = self.dress(at, kind, bytes, displaced);
        let n = self.add_node(node);
        let slot = self.random.below(SLOTS);
        self.set_root(slot, n);
    }

    /// The heap's answers about addresses inside and outside of objects.
    fn ask(&mut self) {
        let Some((_, n)) = self.random_rooted() else { return };
        if !self.node(n).displaced {
            let base = self.node(n).at().addr();
            let size = object::size(base);
            let inside = base + self.random.below(size);
            assert_eq!(object::base(inside), Some(base));
            assert_ne!(object::base(base + size), Some(base));
            assert_ne!(object::base(base.wrapping_sub(1)), Some(base));
        }
    }

    fn control(&mut self) {
        match self.random.below(24) {
            0..5 => {
                cycle::collect();
            }
            5 => {
                cycle::collect_and_unmap();
            }
            6 => {
                unsafe extern "C" fn at_once() -> i32 {
                    1
                }
                // Given up: nothing is freed and nothing is lost.
                assert!(!cycle::try_collect(Some(at_once), false));
            }
            7 => {
                cycle::disable();
                assert!(!cycle::collect());
                let n = self.new_object(kind::NORMAL, 100);
                let slot = self.random.below(SLOTS);
                self.set_root(slot, n);
                cycle::enable();
            }
            _ => {}
        }
    }

    /// Checks everything once more and gives up all roots.
    fn finish(mut self) {
        self.check_all();
        for slot in 0..SLOTS {
            self.drop_root(slot);
        }
        for n in core::mem::take(&mut self.pinned) {
            let at = self.nodes[n].take().expect("pinned nodes exist").at();
            // SAFETY: nothing refers to it.
            unsafe { free(at) };
        }
        verifier::remove_roots(self.range.start(), self.range.start() + SLOTS / 3 * 8);
        // SAFETY: the last roots are gone with it.
        unsafe { free(ptr::with_exposed_provenance_mut(!self.hidden_table)) };
    }
}
