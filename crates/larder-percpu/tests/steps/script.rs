//! What the machine's threads do: scripts that call sequences, and account for what went in and came out.

use std::ops::Deref;

/// What a script wants next.
pub enum Step {
    /// Call a sequence with these arguments.
    Call(&'static str, [u64; 6]),
    /// Read a word into a local.
    Load(u64, usize),
    /// Store a word.
    Store(u64, u64),
    /// Abort the sequences of all running threads.
    Membarrier,
    /// Go to another place of the script; costs no step.
    Go(u8),
    /// It is over.
    Done,
}

/// A thread's program: from its place, its locals, and what the last call returned.
pub type Script = fn(u8, &mut [u64; 6], (u64, u64), &mut Accounts) -> Step;

/// Items in order, so that states can be compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Items {
    items: [u64; 12],
    count: usize,
}

impl Items {
    /// One more.
    pub fn push(&mut self, item: u64) {
        let place = self.partition_point(|&other| other < item);
        assert!(self.count < self.items.len(), "the scripts have so many items at most");
        self.items.copy_within(place..self.count, place + 1);
        self.items[place] = item;
        self.count += 1;
    }
}

impl Deref for Items {
    type Target = [u64];
    fn deref(&self) -> &[u64] {
        &self.items[..self.count]
    }
}

/// What was put in and came out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Accounts {
    pub put: Items,
    pub got: Items,
    pub added: u64,
    pub found: u64,
}

impl Accounts {
    /// Notes an item that was put somewhere.
    pub fn put(&mut self, item: u64) {
        self.put.push(item);
    }

    /// Notes an item that came out; 0 is none.
    pub fn got(&mut self, item: u64) {
        if item != 0 {
            self.got.push(item);
        }
    }
}
