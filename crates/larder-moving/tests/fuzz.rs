//! Sequences of operations against a model: a graph of numbered nodes that knows what must be reachable.

mod mini;

use larder_lab::{Lowest, Processors};
use larder_moving::{Barrier, Collection, Config, Handle, Keep};
use mini::*;
use std::collections::{HashMap, HashSet};

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

struct Case<'h> {
    vm: Vm<'h>,
    model: Model,
    locals: Vec<larder_moving::Local>,
    random: Random,
    /// Numbers of watched nodes that the heap has said are dead.
    told: HashSet<u64>,
}

const ROOTS: usize = 24;

impl Case<'_> {
    /// Checks the whole graph against the model; what a collection may have cleared is cleared in the model.
    fn check(&mut self) {
        let reachable = self.model.reach(self.model.strong_roots());
        let mut at: HashMap<u64, usize> = HashMap::new();
        let mut pending: Vec<(u64, usize)> =
            (0..ROOTS).map(|i| (self.model.roots[i], self.vm.get(self.locals[i]))).collect();
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
        self.vm.collect(kind);
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
        let old = r.next(6) == 0;
        let object = if old { make_old } else { make }(&self.vm, kind, references, payload).unwrap();
        self.model.next += 1;
        let n = self.model.next;
        mini::payload(object).fill(n as u8);
        set_number(object, n);
        let root = self.random.next(ROOTS);
        self.vm.set(self.locals[root], object);
        self.model.roots[root] = n;
        self.model.nodes.insert(n, Node { kind, references: vec![0; references], payload, watched: false });
        if self.random.next(12) == 0 {
            self.vm.watch(object, n as usize);
            self.model.nodes.get_mut(&n).unwrap().watched = true;
        }
    }

    /// A random node that is reached from the roots by strong references: number and address.
    fn walk(&mut self) -> (u64, usize) {
        let root = self.random.next(ROOTS);
        let (mut n, mut address) = (self.model.roots[root], self.vm.get(self.locals[root]));
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

    fn step(&mut self) {
        match self.random.next(100) {
            0..40 => self.make(),
            40..75 => {
                let ((from, at), (to, value)) = (self.walk(), self.walk());
                if from != 0 && count(at) != 0 {
                    // Both of an ephemeron's slots at once, as one is not much without the other.
                    let i = self.random.next(count(at));
                    if self.model.nodes[&from].kind != Kind::Ephemerons {
                        set(&self.vm, at, i, value);
                        self.model.nodes.get_mut(&from).unwrap().references[i] = to;
                    } else if i | 1 < count(at) {
                        let (key, key_at) = self.walk();
                        let pair = if key == 0 { [(0, 0); 2] } else { [(key, key_at), (to, value)] };
                        for (j, (n, address)) in pair.into_iter().enumerate() {
                            set(&self.vm, at, (i & !1) + j, address);
                            self.model.nodes.get_mut(&from).unwrap().references[(i & !1) + j] = n;
                        }
                    }
                }
            }
            75..87 => {
                let root = self.random.next(ROOTS);
                let (n, address) = if self.random.next(3) == 0 { self.walk() } else { (0, 0) };
                self.vm.set(self.locals[root], address);
                self.model.roots[root] = n;
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

fn run(config: Config, seed: u64, steps: usize) {
    let heap = heap(config);
    let vm = heap.attach().unwrap();
    let locals = (0..ROOTS).map(|_| vm.local(0)).collect();
    let model = Model { roots: vec![0; ROOTS], ..Model::default() };
    let mut case = Case { vm, model, locals, random: Random(seed * 0x9e37_79b9 + 1), told: HashSet::new() };
    for _ in 0..steps {
        case.step();
    }
    case.collect(Collection::Full);
    let stats = heap.stats();
    assert!(stats.young_collections > 10 && stats.full_collections > 3 && stats.moved_objects > 0, "{stats:?}");
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
