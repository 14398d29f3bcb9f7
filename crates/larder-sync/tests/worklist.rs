//! The deque and the termination under many real threads.
#![cfg(not(loom))]

use larder_sync::termination::Termination;
use larder_sync::worklist::{Deque, Entry, Steal};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::thread;

/// A deque whose memory lives, and stays, for the rest of the process.
fn deque(capacity: usize) -> Deque {
    let slots = vec![[0; 2]; capacity].leak();
    let deque = Deque::new();
    // SAFETY: the leaked slots are used by this deque only, and nobody else has seen it yet.
    unsafe { deque.attach(slots.as_mut_ptr(), slots.len()) };
    deque
}

fn number_of(entry: Entry) -> usize {
    assert_eq!(entry[1], !entry[0], "a torn entry was taken");
    entry[0]
}

/// How often each entry was taken.
struct Taken(Vec<AtomicU8>);

impl Taken {
    fn new(entries: usize) -> Self {
        Self((0..entries).map(|_| AtomicU8::new(0)).collect())
    }

    fn enter(&self, entry: Entry) {
        // ORDER test.count: Relaxed; the join of the threads orders it before its reader.
        self.0[number_of(entry)].fetch_add(1, Ordering::Relaxed);
    }

    fn assert_each_once(&self, capacity: usize) {
        // ORDER test.count: Relaxed, as above.
        let wrong = self.0.iter().filter(|taken| taken.load(Ordering::Relaxed) != 1).count();
        assert_eq!(wrong, 0, "entries not taken exactly once, with room for {capacity}");
    }
}

#[test]
fn one_owner_and_eight_thieves_take_each_entry_once() {
    const ENTRIES: usize = 400_000;
    const THIEVES: usize = 8;
    for capacity in [1, 2, 64, 4096] {
        let deque = deque(capacity);
        let taken = Taken::new(ENTRIES);
        let closed = AtomicBool::new(false);
        let enter = |entry| taken.enter(entry);
        thread::scope(|scope| {
            for _ in 0..THIEVES {
                scope.spawn(|| {
                    loop {
                        match deque.steal() {
                            Steal::Taken(entry) => {
                                enter(entry);
                            }
                            Steal::Retry => {}
                            // ORDER test.closed: Acquire, with the store below: the deque stays empty after it.
                            Steal::Empty if closed.load(Ordering::Acquire) => break,
                            Steal::Empty => thread::yield_now(),
                        }
                    }
                });
            }
            for number in 0..ENTRIES {
                // SAFETY: this thread is the only owner.
                unsafe {
                    if let Err(entry) = deque.push([number, !number]) {
                        enter(entry);
                    }
                    if number % 3 == 0
                        && let Some(entry) = deque.pop()
                    {
                        enter(entry);
                    }
                }
            }
            // SAFETY: as above.
            while let Some(entry) = unsafe { deque.pop() } {
                enter(entry);
            }
            // ORDER test.closed: Release, with the load above.
            closed.store(true, Ordering::Release);
        });
        assert!(deque.is_empty());
        taken.assert_each_once(capacity);
    }
}

#[test]
fn thieves_of_several_take_each_entry_once() {
    const ENTRIES: usize = 400_000;
    const THIEVES: usize = 8;
    for capacity in [1, 2, 64, 4096] {
        let deque = deque(capacity);
        let taken = Taken::new(ENTRIES);
        let closed = AtomicBool::new(false);
        let take = |most: usize| {
            let mut entries = [[0; 2]; 40];
            // SAFETY: nobody pops.
            let n = unsafe { deque.steal_many(&mut entries[..most]) };
            entries[..n].iter().for_each(|&entry| taken.enter(entry));
            n
        };
        thread::scope(|scope| {
            for thief in 0..THIEVES {
                let (take, closed) = (&take, &closed);
                scope.spawn(move || {
                    loop {
                        // ORDER test.closed: Acquire, with the store below: the deque gets no more after it.
                        let was_closed = closed.load(Ordering::Acquire);
                        match take(1 + 5 * thief) {
                            0 if was_closed => break,
                            0 => thread::yield_now(),
                            _ => {}
                        }
                    }
                });
            }
            for number in 0..ENTRIES {
                // SAFETY: this thread is the only owner.
                while unsafe { deque.push([number, !number]) }.is_err() {
                    take(2);
                }
            }
            // ORDER test.closed: Release, with the load above.
            closed.store(true, Ordering::Release);
        });
        assert!(deque.is_empty());
        taken.assert_each_once(capacity);
    }
}

static TERMINATION: Termination = Termination::new();

/// One marker of a round that walks a binary tree: the piece `n` has the children `2n` and `2n + 1` below `nodes`.
fn mark(me: usize, root: Option<usize>, nodes: usize, lists: &[Deque], marked: &[AtomicU8], left: &AtomicUsize) {
    let all_empty = || lists.iter().all(Deque::is_empty);
    let mut private: Vec<usize> = root.into_iter().collect();
    'busy: loop {
        // SAFETY: only marker `me` pushes to and pops from its own list.
        while let Some(node) = private.pop().or_else(|| unsafe { lists[me].pop() }.map(number_of)) {
            // ORDER test.count: Relaxed; the end of the round orders both before their readers.
            marked[node].fetch_add(1, Ordering::Relaxed);
            let mut children = (2 * node..2 * node + 2).filter(|&child| child < nodes);
            left.fetch_add(children.clone().count(), Ordering::Relaxed);
            private.extend(children.next());
            if let Some(child) = children.next() {
                // SAFETY: as above.
                match unsafe { lists[me].push([child, !child]) } {
                    Ok(()) => TERMINATION.announce_work(1),
                    Err(_) => private.push(child),
                }
            }
            left.fetch_sub(1, Ordering::Relaxed);
        }
        TERMINATION.become_idle(me);
        loop {
            if TERMINATION.detect(all_empty) {
                // ORDER test.count: Relaxed, as above.
                assert_eq!(left.load(Ordering::Relaxed), 0, "the end was declared while work was left");
                return;
            }
            if all_empty() {
                TERMINATION.sleep(me, all_empty);
                continue;
            }
            TERMINATION.become_busy(me);
            for distance in 1..=lists.len() {
                if let Steal::Taken(entry) = lists[(me + distance) % lists.len()].steal() {
                    private.push(number_of(entry));
                    continue 'busy;
                }
            }
            TERMINATION.become_idle(me);
        }
    }
}

#[test]
fn rounds_of_1_to_64_markers_mark_each_node_once_and_end() {
    for (markers, nodes, rounds) in [(1, 1000, 3), (2, 2, 300), (2, 50_000, 20), (8, 64, 200), (64, 20_000, 5)] {
        let lists: Vec<Deque> = (0..markers).map(|_| deque(16)).collect();
        for round in 0..rounds {
            let marked: Vec<AtomicU8> = (0..nodes).map(|_| AtomicU8::new(0)).collect();
            let left = AtomicUsize::new(1);
            TERMINATION.begin(markers);
            thread::scope(|scope| {
                for me in 0..markers {
                    let (lists, marked, left) = (&lists, &marked, &left);
                    let root = (me == round % markers).then_some(1);
                    scope.spawn(move || mark(me, root, nodes, lists, marked, left));
                }
            });
            assert!(TERMINATION.is_done());
            // ORDER test.count: Relaxed; the join of the threads came before.
            let wrong = marked.iter().skip(1).filter(|marked| marked.load(Ordering::Relaxed) != 1).count();
            assert_eq!(wrong, 0, "nodes not marked exactly once by {markers} markers");
        }
    }
}
