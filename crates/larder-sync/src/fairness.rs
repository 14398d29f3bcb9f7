//! How fairly a lock was admitted to: over a long time from counts, over a short time from the order of admissions (the
//! notes' "Measuring long-term fairness for locks", and "Malthusian Locks" for the short term).
//!
//! **When to use:** on what a benchmark counted. Several figures, because none says it all: Jain's index hardly sees one
//! starved thread among many, which `least_to_most` does. **When not:** over sections of different length, where
//! time and not counts should be shared. **Cost:** sorts its input.
//!
//! ```
//! use larder_sync::fairness::LongTerm;
//!
//! let figures = LongTerm::of(&[10, 15, 22, 33]).unwrap();
//! assert!((figures.gini - 0.2375).abs() < 1e-9);
//! ```

extern crate std;

use std::collections::BTreeMap;
use std::vec::Vec;

/// Fairness from the counts of a window of fixed time, one for each thread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LongTerm {
    /// Standard deviation over mean; 0 is fair.
    pub relative_deviation: f64,
    /// Jain's index: 1 is fair, `1 / n` is one thread for all.
    pub jain: f64,
    /// Gini's coefficient: 0 is fair; the area between the diagonal and the curve of shares, doubled.
    pub gini: f64,
    /// Median absolute deviation from the median, over the median; 0 is fair, infinite when the median is 0.
    pub median_deviation: f64,
    /// Smallest count over largest: 1 is fair, 0 means that somebody starved.
    pub least_to_most: f64,
}

fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 }
}

impl LongTerm {
    /// The figures of these counts; `None` without counts, or if all are 0.
    pub fn of(counts: &[u64]) -> Option<Self> {
        let mut sorted: Vec<f64> = counts.iter().map(|&count| count as f64).collect();
        sorted.sort_by(f64::total_cmp);
        let n = sorted.len() as f64;
        let sum: f64 = sorted.iter().sum();
        if sum == 0.0 {
            return None;
        }
        let squares: f64 = sorted.iter().map(|count| count * count).sum();
        let mean = sum / n;
        let variance = sorted.iter().map(|count| (count - mean) * (count - mean)).sum::<f64>() / n;
        let ranked: f64 = sorted.iter().zip(1_u32..).map(|(count, rank)| f64::from(rank) * count).sum();
        let middle = median(&sorted);
        let mut distances: Vec<f64> = sorted.iter().map(|count| (count - middle).abs()).collect();
        distances.sort_by(f64::total_cmp);
        Some(Self {
            relative_deviation: variance.sqrt() / mean,
            jain: sum * sum / (n * squares),
            gini: 2.0 * ranked / (n * sum) - (n + 1.0) / n,
            median_deviation: if middle == 0.0 { f64::INFINITY } else { median(&distances) / middle },
            least_to_most: sorted[0] / sorted[sorted.len() - 1],
        })
    }
}

/// Fairness from the order in which threads were admitted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShortTerm {
    /// Lock working set size: distinct threads in a window of so many admissions, on average.
    pub working_set: f64,
    /// Admissions from one of a thread's to its next, on average over all.
    pub mean_time_to_reacquire: f64,
    /// The same, in the median.
    pub median_time_to_reacquire: f64,
    /// Most admissions of others between two of the same thread.
    pub longest_bypass: usize,
}

impl ShortTerm {
    /// The figures of a log of admissions, which names threads by number. `None` if the log is shorter than the window or
    /// the window is empty. Without any thread admitted twice, times to reacquire are 0.
    pub fn of(log: &[u32], window: usize) -> Option<Self> {
        if window == 0 || log.len() < window {
            return None;
        }
        let mut inside = BTreeMap::new();
        let mut last = BTreeMap::new();
        let (mut sum_of_sets, mut gaps) = (0.0, Vec::new());
        for (position, &thread) in log.iter().enumerate() {
            if let Some(before) = last.insert(thread, position) {
                gaps.push((position - before) as f64);
            }
            *inside.entry(thread).or_insert(0_usize) += 1;
            if position >= window {
                let leaving = log[position - window];
                if let Some(times) = inside.get_mut(&leaving) {
                    *times -= 1;
                    if *times == 0 {
                        inside.remove(&leaving);
                    }
                }
            }
            if position + 1 >= window {
                sum_of_sets += inside.len() as f64;
            }
        }
        gaps.sort_by(f64::total_cmp);
        let none = gaps.is_empty();
        Some(Self {
            working_set: sum_of_sets / (log.len() - window + 1) as f64,
            mean_time_to_reacquire: if none { 0.0 } else { gaps.iter().sum::<f64>() / gaps.len() as f64 },
            median_time_to_reacquire: if none { 0.0 } else { median(&gaps) },
            longest_bypass: gaps.last().map_or(0, |&gap| gap as usize - 1),
        })
    }
}

/// How many threads fit over a lock before it is saturated, read from the counts under last-in-first-out admission: those
/// that fit share the lock about evenly, and the rest starve (the notes' "Locks with LIFO admission order"). Counts the
/// threads with at least half of the largest count.
pub fn threads_before_saturation(lifo_counts: &[u64]) -> usize {
    let most = lifo_counts.iter().copied().max().unwrap_or(0);
    lifo_counts.iter().filter(|&&count| most != 0 && count >= most.div_ceil(2)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_counts_are_fair() {
        let figures = LongTerm::of(&[5; 8]).unwrap();
        assert_eq!((figures.relative_deviation, figures.jain, figures.least_to_most), (0.0, 1.0, 1.0));
        assert!(figures.gini.abs() < 1e-12);
        assert_eq!(figures.median_deviation, 0.0);
    }

    #[test]
    fn one_thread_for_all_is_not() {
        let figures = LongTerm::of(&[0, 0, 0, 100]).unwrap();
        assert_eq!((figures.jain, figures.gini, figures.least_to_most), (0.25, 0.75, 0.0));
        assert_eq!(figures.relative_deviation, 3.0_f64.sqrt());
        assert_eq!(figures.median_deviation, f64::INFINITY);
    }

    #[test]
    fn nothing_has_no_figures() {
        assert_eq!(LongTerm::of(&[]), None);
        assert_eq!(LongTerm::of(&[0, 0]), None);
        assert_eq!(ShortTerm::of(&[1, 2], 3), None);
        assert_eq!(ShortTerm::of(&[1, 2], 0), None);
    }

    #[test]
    fn taking_turns_has_a_working_set_of_all() {
        let log: Vec<u32> = (0..100).map(|position| position % 4).collect();
        let figures = ShortTerm::of(&log, 10).unwrap();
        let wanted = ShortTerm {
            working_set: 4.0,
            mean_time_to_reacquire: 4.0,
            median_time_to_reacquire: 4.0,
            longest_bypass: 3,
        };
        assert_eq!(figures, wanted);
    }

    #[test]
    fn a_bypass_is_found() {
        let figures = ShortTerm::of(&[7, 1, 1, 1, 1, 7], 2).unwrap();
        assert_eq!(figures.longest_bypass, 4);
        assert_eq!(figures.working_set, 1.4);
        assert_eq!(figures.median_time_to_reacquire, 1.0);
    }

    #[test]
    fn starved_threads_do_not_fit() {
        assert_eq!(threads_before_saturation(&[100, 90, 110, 95, 3, 0, 0, 1]), 4);
        assert_eq!(threads_before_saturation(&[]), 0);
        assert_eq!(threads_before_saturation(&[0, 0]), 0);
    }
}
