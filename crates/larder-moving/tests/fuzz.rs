//! Sequences of operations against a model: a graph of numbered nodes that knows what must be reachable. The verifier looks at the heap
//! after every collection, and then the model is compared, whoever's allocation collected.
//!
//! A run that fails names its seed; `LARDER_SEED=N cargo test -p larder-moving --test fuzz` repeats it, beside the fixed ones.

#[path = "fuzz/members.rs"]
mod members;
mod mini;
#[path = "fuzz/shapes.rs"]
mod shapes;

use larder_lab::{Lowest, Processors, SPECIALISED};
use larder_moving::{Barrier, ClassFunction, Collection, Config, Handle, Heap, Keep, Local, Stats};
use members::Member;
use mini::*;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::thread::Scope;

/// A small generator of numbers, so that a seed is a test case.
struct Random(u64);

impl Random {
    fn next(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % bound
    }
}

struct Node {
    kind: Kind,
    references: Vec<u64>,
    payload: usize,
    watched: bool,
}

/// What the heap should hold: node number 0 is no node.
#[derive(Default)]
struct Model {
    nodes: HashMap<u64, Node>,
    roots: Vec<u64>,
    handles: Vec<(Handle, Keep, u64, usize)>,
    next: u64,
}

impl Model {
    /// What is strongly reachable from `from`, ephemerons included.
    fn reach(&self, from: impl IntoIterator<Item = u64>) -> HashSet<u64> {
        let mut found: HashSet<u64> = HashSet::new();
        let mut pending: Vec<u64> = from.into_iter().filter(|&n| n != 0).collect();
        loop {
            while let Some(n) = pending.pop() {
                if found.insert(n) && self.nodes[&n].kind == Kind::Strong {
                    pending.extend(self.nodes[&n].references.iter().filter(|&&n| n != 0));
                }
            }
            for &n in &found {
                if self.nodes[&n].kind == Kind::Ephemerons {
                    for pair in self.nodes[&n].references.chunks_exact(2) {
                        if pair[1] != 0 && !found.contains(&pair[1]) && (pair[0] == 0 || found.contains(&pair[0])) {
                            pending.push(pair[1]);
                        }
                    }
                }
            }
            if pending.is_empty() {
                return found;
            }
        }
    }

    fn strong_roots(&self) -> Vec<u64> {
        let handles = self.handles.iter().filter(|handle| handle.1 != Keep::Weak).map(|handle| handle.2);
        self.roots.iter().copied().chain(handles).collect()
    }
}

/// A run. The thread that has it decides; it and the members do what it decides, one after the other.
struct Case<'s, 'h> {
    vm: Vm<'h>,
    heap: &'h Heap<Mini>,
    scope: &'s Scope<'s, 'h>,
    /// Each with a root of its own.
    members: Vec<(Member<'s, 'h>, Local)>,
    cpus: Vec<usize>,
    /// By words: made before the first step, so that they go the old way after a flip, until they are updated.
    functions: Arc<Vec<ClassFunction<Mini>>>,
    model: Model,
    locals: Vec<Local>,
    random: Random,
    /// Numbers of watched nodes that the heap has said are dead.
    told: HashSet<u64>,
    /// How many collections the model has seen.
    settled: usize,
}

/// Roots of the deciding thread; those of members follow.
const ROOTS: usize = 24;
/// Members of runs that have some.
const MEMBERS: usize = 5;

impl<'s, 'h> Case<'s, 'h> {
    /// Somebody: 0 is the deciding thread.
    fn anybody(&mut self) -> usize {
        self.random.next(self.members.len() + 1)
    }

    /// Lets somebody do something.
    fn by<R: Send + 'h>(&mut self, who: usize, f: impl FnOnce(&Vm<'_>) -> R + Send + 'h) -> R {
        match who {
            0 => f(&self.vm),
            n => self.members[n - 1].0.run(&mut self.vm, f),
        }
    }

    fn root(&mut self, i: usize) -> usize {
        if i < ROOTS {
            return self.vm.get(self.locals[i]);
        }
        let local = self.members[i - ROOTS].1;
        self.by(i - ROOTS + 1, move |vm| vm.get(local))
    }

    fn set_root(&mut self, i: usize, n: u64, address: usize) {
        if i < ROOTS {
            self.vm.set(self.locals[i], address);
        } else {
            let local = self.members[i - ROOTS].1;
            self.by(i - ROOTS + 1, move |vm| vm.set(local, address));
        }
        self.model.roots[i] = n;
    }

    fn any_root(&mut self) -> usize {
        self.random.next(self.model.roots.len())
    }

    /// Checks the whole graph against the model; what a collection may have cleared is cleared in the model.
    fn check(&mut self) {
        let reachable = self.model.reach(self.model.strong_roots());
        let mut at: HashMap<u64, usize> = HashMap::new();
        let mut pending: Vec<(u64, usize)> =
            (0..self.model.roots.len()).map(|i| (self.model.roots[i], self.root(i))).collect();
        for &(handle, keep, n, address) in &self.model.handles {
            let now = self.vm.get_handle(handle);
            match keep {
                Keep::Strong => pending.push((n, now)),
                Keep::Pinned => {
                    assert_eq!(now, address, "a pinned object has moved");
                    pending.push((n, now));
                }
                Keep::Weak => {
                    assert!(now != 0 || !reachable.contains(&n), "a weak handle was cleared while {n} lives");
                    // A watched object lives on until it is taken, and so may what it refers to.
                    if now != 0 && reachable.contains(&n) {
                        pending.push((n, now));
                    }
                }
            }
        }
        let mut cleared = vec![];
        while let Some((n, address)) = pending.pop() {
            assert_eq!(n == 0, address == 0, "node {n} at {address:#x}");
            if n == 0 {
                continue;
            }
            if let Some(&before) = at.get(&n) {
                assert_eq!(before, address, "two copies of node {n}");
                continue;
            }
            at.insert(n, address);
            let node = &self.model.nodes[&n];
            assert_eq!((number(address), count(address)), (n, node.references.len()));
            let content = payload(address);
            assert_eq!(content.len(), node.payload);
            assert!(content[8..].iter().all(|&byte| byte == n as u8), "the content of node {n}");
            for (i, &referent) in node.references.iter().enumerate() {
                let found = get(address, i);
                match node.kind {
                    Kind::Strong => pending.push((referent, found)),
                    Kind::Weak => {
                        if found == 0 && referent != 0 {
                            assert!(!reachable.contains(&referent), "{n} lost {referent}, which lives");
                            cleared.push((n, i));
                        } else if reachable.contains(&referent) {
                            pending.push((referent, found));
                        }
                    }
                    Kind::Ephemerons => {
                        let key = node.references[i & !1];
                        let lives = key != 0 && reachable.contains(&key);
                        if lives || referent == 0 {
                            pending.push((referent, found));
                        } else if found == 0 {
                            cleared.push((n, i));
                        }
                    }
                }
            }
        }
        assert_eq!(at.keys().copied().collect::<HashSet<_>>(), reachable);
        for (n, i) in cleared {
            self.model.nodes.get_mut(&n).unwrap().references[i] = 0;
        }
    }

    fn collect(&mut self, kind: Collection) {
        let who = self.anybody();
        self.by(who, move |vm| vm.collect(kind));
        self.settle();
    }

    /// Compares heap and model if there were collections since the last time.
    fn settle(&mut self) {
        let since: Vec<Collection> = self.heap.host().collections.lock().unwrap()[self.settled..].to_vec();
        let Some(&kind) = since.iter().max() else { return };
        self.settled += since.len();
        // Which watched objects died: those that the heap says, and after a full collection at least the unreachable.
        let reachable = self.model.reach(self.model.strong_roots());
        let mut told = vec![];
        while let Some((object, token)) = self.vm.next_dead() {
            assert_eq!(number(object), token as u64);
            assert!(!reachable.contains(&(token as u64)), "{token} was said to be dead");
            told.push(token as u64);
        }
        for &n in &told {
            assert!(self.model.nodes[&n].watched && self.told.insert(n), "{n} was told twice");
        }
        self.check();
        if kind == Collection::Full {
            // What was told is kept with all that it refers to, this once.
            let kept = self.model.reach(self.model.strong_roots().into_iter().chain(told));
            for (n, node) in &self.model.nodes {
                assert!(!node.watched || kept.contains(n) || self.told.contains(n), "the death of {n} was not told");
            }
            // Nothing weak is left that does not live: `check` has taken over what was cleared.
            self.model.nodes.retain(|n, _| kept.contains(n));
            for (n, node) in self.model.nodes.iter().filter(|(n, _)| reachable.contains(n)) {
                let dead = node.references.iter().find(|&&referent| referent != 0 && !kept.contains(&referent));
                assert_eq!(dead, None, "{n}, {:?}, still refers to what is dead", node.kind);
            }
            for &(handle, keep, n, _) in &self.model.handles {
                assert!(keep != Keep::Weak || kept.contains(&n) || self.vm.get_handle(handle) == 0);
            }
        }
    }

    fn make(&mut self) {
        let r = &mut self.random;
        let kind = [Kind::Strong, Kind::Strong, Kind::Strong, Kind::Weak, Kind::Ephemerons][r.next(5)];
        let references = match r.next(40) {
            0 => 1500 + r.next(3000),
            1 => 100 + r.next(400),
            _ => r.next(7),
        };
        let payload = 8 + match r.next(30) {
            0 => 8000 + r.next(30_000),
            1 => 500 + r.next(3000),
            _ => r.next(60),
        };
        let (old, by_function) = (r.next(6) == 0, r.next(3) == 0);
        // A function makes whole words.
        let payload = if by_function { payload.next_multiple_of(8) } else { payload };
        let words = 1 + references + payload / 8;
        let (who, functions) = (self.anybody(), self.functions.clone());
        let object = self.by(who, move |vm| match functions.get(words - 1).filter(|_| by_function && !old) {
            Some(function) => make_by(vm, function, kind, references),
            None if old => make_old(vm, kind, references, payload),
            None => make(vm, kind, references, payload),
        });
        let object = object.unwrap();
        self.settle();
        assert!(mini::payload(object).iter().all(|&byte| byte == 0) && (0..references).all(|i| get(object, i) == 0));
        self.model.next += 1;
        let n = self.model.next;
        mini::payload(object).fill(n as u8);
        set_number(object, n);
        let root = self.any_root();
        self.set_root(root, n, object);
        self.model.nodes.insert(n, Node { kind, references: vec![0; references], payload, watched: false });
        if self.random.next(12) == 0 {
            self.vm.watch(object, n as usize);
            self.model.nodes.get_mut(&n).unwrap().watched = true;
        }
    }

    /// A random node that is reached from the roots by strong references: number and address.
    fn walk(&mut self) -> (u64, usize) {
        let root = self.any_root();
        let (mut n, mut address) = (self.model.roots[root], self.root(root));
        for _ in 0..self.random.next(6) {
            if n == 0 || self.model.nodes[&n].kind != Kind::Strong || self.model.nodes[&n].references.is_empty() {
                break;
            }
            let i = self.random.next(count(address));
            if get(address, i) == 0 {
                break;
            }
            (n, address) = (self.model.nodes[&n].references[i], get(address, i));
        }
        (n, address)
    }

    /// Everybody takes a little from a buffer, and a collection finds the rest: more than processors could leave.
    fn everybody_takes_little(&mut self) {
        for who in 0..=self.members.len() {
            self.takes_little(who);
        }
        self.collect(Collection::Young);
    }

    /// One thread leaves a buffer on each CPU that it comes by: more than it could leave itself.
    fn one_goes_round(&mut self) {
        self.collect(Collection::Young);
        let who = 1 + self.random.next(self.members.len());
        for cpu in self.cpus.clone() {
            self.by(who, move |_| move_to(cpu));
            self.takes_little(who);
        }
        self.collect(Collection::Young);
    }

    /// An object that is garbage at once.
    fn takes_little(&mut self, who: usize) {
        assert!(self.by(who, |vm| make(vm, Kind::Strong, 0, 8)).is_ok());
        self.settle();
    }

    /// A member that does other things than its kin: it moves, or leaves, with its root, for another one.
    fn member_step(&mut self) {
        let i = self.random.next(self.members.len());
        if self.random.next(3) != 0 {
            let cpu = self.cpus[self.random.next(self.cpus.len())];
            return self.by(i + 1, move |_| move_to(cpu));
        }
        self.members.remove(i).0.end(&mut self.vm);
        self.model.roots.remove(ROOTS + i);
        self.add_member();
    }

    fn add_member(&mut self) {
        let member = Member::new(self.scope, self.heap, self.random.0);
        let local = member.run(&mut self.vm, |vm| vm.local(0));
        self.members.push((member, local));
        self.model.roots.push(0);
    }

    fn step(&mut self) {
        if !self.members.is_empty() {
            match self.random.next(60) {
                0 => return self.everybody_takes_little(),
                1 => return self.one_goes_round(),
                2..5 => return self.member_step(),
                5 => {
                    let way = self.heap.buffers().way();
                    return self.functions.iter().for_each(|function| function.update(way));
                }
                _ => {}
            }
        }
        match self.random.next(100) {
            0..40 => self.make(),
            40..75 => {
                let ((from, at), (to, value)) = (self.walk(), self.walk());
                if from != 0 && count(at) != 0 {
                    // Both of an ephemeron's slots at once, as one is not much without the other.
                    let i = self.random.next(count(at));
                    let who = self.anybody();
                    if self.model.nodes[&from].kind != Kind::Ephemerons {
                        self.by(who, move |vm| set(vm, at, i, value));
                        self.model.nodes.get_mut(&from).unwrap().references[i] = to;
                    } else if i | 1 < count(at) {
                        let (key, key_at) = self.walk();
                        let pair = if key == 0 { [(0, 0); 2] } else { [(key, key_at), (to, value)] };
                        for (j, (n, address)) in pair.into_iter().enumerate() {
                            self.by(who, move |vm| set(vm, at, (i & !1) + j, address));
                            self.model.nodes.get_mut(&from).unwrap().references[(i & !1) + j] = n;
                        }
                    }
                }
            }
            75..87 => {
                let root = self.any_root();
                let (n, address) = if self.random.next(3) == 0 { self.walk() } else { (0, 0) };
                self.set_root(root, n, address);
            }
            87..92 => {
                let (n, address) = self.walk();
                if n != 0 && self.model.handles.len() < 12 {
                    let keep = [Keep::Strong, Keep::Weak, Keep::Pinned][self.random.next(3)];
                    self.model.handles.push((self.vm.handle(address, keep), keep, n, address));
                }
            }
            92..97 => {
                if !self.model.handles.is_empty() {
                    let i = self.random.next(self.model.handles.len());
                    self.vm.release(self.model.handles.swap_remove(i).0);
                }
            }
            97..99 => self.collect(Collection::Young),
            _ => self.collect(Collection::Full),
        }
    }
}

/// Names the seed of a run that fails.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("LARDER_SEED={} repeats this run", self.0);
        }
    }
}

/// An object by a class's function.
fn make_by(
    vm: &Vm<'_>,
    function: &ClassFunction<Mini>,
    kind: Kind,
    references: usize,
) -> Result<usize, larder_moving::OutOfMemory> {
    let object = vm.allocate_by(function)?.cast::<usize>();
    // SAFETY: a fresh object of at least a word.
    unsafe { object.write(header(kind, references, 8 * function.words())) };
    Ok(object.expose_provenance())
}

fn run(config: Config, seed: u64, steps: usize) {
    let stats = run_with(config, seed, 0, steps).0;
    assert!(stats.young_collections > 10 && stats.full_collections > 3 && stats.moved_objects > 0, "{stats:?}");
}

/// Returns what the heap did, and how often its levels' buffers were refilled.
fn run_with(config: Config, seed: u64, members: usize, steps: usize) -> (Stats, u64) {
    let _seed = Seed(seed);
    let heap = heap(config);
    let functions = Arc::new((1..=SPECIALISED).map(|words| heap.class_function(words).unwrap()).collect());
    std::thread::scope(|scope| {
        shapes::walk_by(seed);
        let vm = heap.attach().unwrap();
        let mut case = Case {
            locals: (0..ROOTS).map(|_| vm.local(0)).collect(),
            vm,
            heap: &heap,
            scope,
            members: vec![],
            cpus: cpus(),
            functions,
            model: Model { roots: vec![0; ROOTS], ..Model::default() },
            random: Random(seed * 0x9e37_79b9 + 1),
            told: HashSet::new(),
            settled: 0,
        };
        (0..members).for_each(|_| case.add_member());
        for _ in 0..steps {
            case.step();
        }
        case.collect(Collection::Full);
    });
    let levels = (0..larder_lab::UPPER).filter_map(|k| heap.buffers().level_statistics(k));
    (heap.stats(), levels.map(|level| level.refills).sum())
}

#[test]
fn operations_agree_with_the_model_by_cards() {
    for seed in 1..5 {
        run(small(), seed, 4000);
    }
}

#[test]
fn operations_agree_with_the_model_by_store_buffers() {
    for seed in 11..14 {
        run(Config { barrier: Barrier::StoreBuffer, ..small() }, seed, 4000);
    }
}

#[test]
fn operations_agree_with_the_model_when_all_is_promoted_at_once_or_late() {
    run(Config { tenure: 1, ..small() }, 21, 4000);
    run(Config { tenure: 6, collectors: 4, ..small() }, 22, 4000);
}

#[test]
fn operations_agree_with_the_model_when_every_refill_collects() {
    run(Config { collect_every: 1, buffers: buffers(Lowest::Threads, 4), ..small() }, 31, 1500);
    let buffers = buffers(Lowest::Processors(Processors::ConcurrencyIds), 4);
    run(Config { collect_every: 3, buffers, collectors: 1, barrier: Barrier::StoreBuffer, ..small() }, 32, 2500);
}

/// Buffers of any owner, under any levels, on real and simulated CPUs, which flip between threads and processors meanwhile; five threads by
/// turns, which come, go and move.
#[test]
fn operations_agree_with_the_model_whatever_the_buffers_are() {
    let asked = std::env::var("LARDER_SEED").ok().map(|seed| seed.parse().expect("LARDER_SEED is a number"));
    let (mut flips, mut redirected, mut refills, mut collections) = (0, 0, 0, 0);
    let mut stacks = HashSet::new();
    for seed in (100..130).chain(asked) {
        let mut random = Random(seed * 0x9e37_79b9 + 1);
        let config = shapes::heap(&mut random);
        println!("seed {seed}: {:?} over {:?}", config.buffers, config.old_buffers);
        let (stats, level_refills) = run_with(config, seed, MEMBERS, 1200);
        println!("    {stats:?}");
        stacks.insert(config.buffers.upper.iter().flatten().count());
        (flips, redirected) = (flips + stats.flips, redirected + stats.redirected);
        (refills, collections) = (refills + level_refills, collections + stats.young_collections);
    }
    assert_eq!(stacks.len(), larder_lab::UPPER + 1, "upper levels: {stacks:?}");
    assert!(refills > 100 && collections > 1000, "{refills} refills of levels, {collections} collections");
    if larder_sys::rseq_area::find().is_ok() {
        // On one CPU nobody leaves buffers behind, so that once they are the processor's they stay so.
        let [least, least_redirected] = if cpus().len() > 1 { [50, 100] } else { [0, 0] };
        assert!(flips > least && redirected > least_redirected, "{flips} flips, {redirected} redirected");
    }
}
