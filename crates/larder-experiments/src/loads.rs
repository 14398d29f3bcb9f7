//! How many cache lines this machine can load in a second: where each load waits for the one before, and where none does.
//!
//! Marking is loads, mostly: of an object nobody knows the address before another object was read. A marker that follows addresses as it
//! finds them is bound by the dependent rate, one that has many objects under way by the independent rate.
//!
//! Time is that of the thread on its CPU, so that a machine which does other things as well is measured as far as it can be: what others do to
//! its caches and its memory stays in.

use std::hint::black_box;
use std::sync::Barrier;

use larder_sys::clock;

/// Bytes in a cache line.
const LINE: usize = 64;
/// Words in one.
const WORDS: usize = LINE / 8;

/// Lines that lie in one cycle, in no order: the first word of each has the number of the next.
pub struct Lines(Vec<[usize; WORDS]>);

/// Loads in a second.
#[derive(Clone, Copy, Debug)]
pub struct Rates {
    /// Each waits for the one before.
    pub dependent: f64,
    /// None waits.
    pub independent: f64,
    /// None waits, and the lines are read in order of address.
    pub in_order: f64,
}

/// Seconds that this thread was on a CPU so far.
fn cpu_s() -> f64 {
    clock::of_thread().0 as f64 * 1e-9
}

fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

impl Lines {
    /// Lines of so many bytes together.
    pub fn new(bytes: usize) -> Self {
        let n = (bytes / LINE).max(2);
        let mut order: Vec<usize> = (0..n).collect();
        let mut state = 0x9E37_79B9_7F4A_7C15;
        for i in (1..n).rev() {
            order.swap(i, next(&mut state) as usize % (i + 1));
        }
        let mut lines = vec![[0; WORDS]; n];
        for (at, line) in order.iter().enumerate() {
            lines[*line][0] = order[(at + 1) % n];
        }
        Self(lines)
    }

    /// Seconds for `count` loads, each of which says where the next is.
    fn dependent(&self, count: usize, from: usize) -> f64 {
        let begun = cpu_s();
        let mut at = from;
        for _ in 0..count {
            at = self.0[at][0];
        }
        black_box(at);
        cpu_s() - begun
    }

    /// Seconds for `count` loads at places that are known without them.
    fn independent(&self, count: usize, seed: u64) -> f64 {
        let begun = cpu_s();
        let n = self.0.len() as u64;
        let (mut sum, mut state) = (0usize, seed | 1);
        for _ in 0..count {
            // A product instead of a remainder: the place of a random number in the range.
            let place = (u128::from(next(&mut state)) * u128::from(n)) >> 64;
            sum = sum.wrapping_add(self.0[place as usize][0]);
        }
        black_box(sum);
        cpu_s() - begun
    }

    fn in_order(&self) -> f64 {
        let begun = cpu_s();
        black_box(self.0.iter().fold(0usize, |sum, line| sum.wrapping_add(line[0])));
        cpu_s() - begun
    }

    /// The rates with so many threads at once, of the fastest of `rounds` rounds.
    pub fn rates(&self, threads: usize, count: usize, rounds: usize) -> Rates {
        let barrier = Barrier::new(threads);
        // Each thread's best time; the slowest thread's counts.
        let best = |measure: &(dyn Fn(usize) -> f64 + Sync)| {
            std::thread::scope(|scope| {
                let of_thread = |thread: usize| {
                    (0..rounds)
                        .map(|_| {
                            barrier.wait();
                            measure(thread)
                        })
                        .fold(f64::INFINITY, f64::min)
                };
                let handles: Vec<_> = (0..threads).map(|thread| scope.spawn(move || of_thread(thread))).collect();
                handles.into_iter().map(|handle| handle.join().expect("a thread that only reads")).fold(0.0, f64::max)
            })
        };
        let all = (threads * count) as f64;
        Rates {
            dependent: all / best(&|thread| self.dependent(count, thread * self.0.len() / threads)),
            independent: all / best(&|thread| self.independent(count, thread as u64 * 77 + 5)),
            in_order: (threads * self.0.len()) as f64 / best(&|_| self.in_order()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_lie_in_one_cycle() {
        let lines = Lines::new(1000 * LINE);
        let (mut at, mut seen) = (0, vec![false; 1000]);
        for _ in 0..1000 {
            assert!(!std::mem::replace(&mut seen[at], true), "line {at} comes twice");
            at = lines.0[at][0];
        }
        assert_eq!(at, 0);
    }

    #[test]
    fn rates_are_numbers() {
        let rates = Lines::new(1 << 16).rates(2, 1000, 2);
        assert!(rates.dependent > 0.0 && rates.independent.is_finite() && rates.in_order > 0.0, "{rates:?}");
    }
}
