//! The statistics of `random`. Seeds are fixed, so each figure is the same at every run; the limits are those that a true
//! random source misses once in a thousand times or less.
#![cfg(not(loom))]

use larder_sync::random::{Random, mix};

/// Chi-square over equally likely cells.
fn chi_square(counts: &[u64]) -> f64 {
    let expected = counts.iter().sum::<u64>() as f64 / counts.len() as f64;
    counts.iter().map(|&count| (count as f64 - expected).powi(2) / expected).sum()
}

/// Chi-square with `cells - 1` degrees of freedom, as standard deviations from its mean (Wilson and Hilferty).
fn deviations(chi_square: f64, cells: usize) -> f64 {
    let degrees = (cells - 1) as f64;
    ((chi_square / degrees).cbrt() - (1.0 - 2.0 / (9.0 * degrees))) / (2.0 / (9.0 * degrees)).sqrt()
}

fn is_even(counts: &[u64], what: &str) {
    let off = deviations(chi_square(counts), counts.len());
    assert!(off.abs() < 3.3, "{what}: {off} standard deviations");
}

#[test]
fn bounded_numbers_are_evenly_distributed() {
    for bound in [2, 3, 6, 10, 100, 255, 1000] {
        for seed in 0..4 {
            let mut random = Random::from_seed(seed);
            let mut counts = vec![[0_u64; 2]; bound as usize];
            for _ in 0..200 * bound.max(50) {
                counts[random.below(bound) as usize][0] += 1;
                counts[random.exactly_below(bound) as usize][1] += 1;
            }
            for form in 0..2 {
                let counts: Vec<u64> = counts.iter().map(|both| both[form]).collect();
                is_even(&counts, &format!("bound {bound}, seed {seed}, form {form}"));
            }
        }
    }
}

#[test]
fn bounds_at_the_edges() {
    let mut random = Random::from_seed(1);
    for _ in 0..100 {
        assert_eq!((random.below(0), random.below(1), random.exactly_below(0), random.exactly_below(1)), (0, 0, 0, 0));
        assert!(random.exactly_below(u64::MAX) < u64::MAX);
        assert!(random.exactly_below((1 << 63) + 1) <= 1 << 63);
    }
}

#[test]
fn pairs_of_neighbours_are_evenly_distributed() {
    let mut random = Random::from_seed(11);
    let mut counts = vec![0; 64 * 64];
    let mut last = random.below(64);
    for _ in 0..64 * 64 * 50 {
        let now = random.below(64);
        counts[(last * 64 + now) as usize] += 1;
        last = now;
    }
    is_even(&counts, "pairs");
}

#[test]
fn every_bit_is_set_half_of_the_time() {
    let mut random = Random::from_seed(5);
    const WORDS: u64 = 100_000;
    let mut set = [0_u64; 64];
    for _ in 0..WORDS {
        let word = random.next_word();
        (0..64).for_each(|bit| set[bit] += word >> bit & 1);
    }
    for (bit, &set) in set.iter().enumerate() {
        let off = (set as f64 - WORDS as f64 / 2.0) / (WORDS as f64 / 4.0).sqrt();
        assert!(off.abs() < 4.0, "bit {bit}: {off} standard deviations");
    }
}

/// Avalanche: each input bit turns each output bit in half of the cases.
#[test]
fn a_changed_bit_changes_half_of_the_others() {
    const WORDS: u64 = 4_000;
    for input in 0..64 {
        let mut turned = [0_u64; 64];
        for word in 0..WORDS {
            let changed = mix(word) ^ mix(word ^ (1 << input));
            (0..64).for_each(|bit| turned[bit] += changed >> bit & 1);
        }
        for (bit, &turned) in turned.iter().enumerate() {
            let share = turned as f64 / WORDS as f64;
            assert!((0.45..0.55).contains(&share), "bit {input} turns bit {bit} in {share}");
        }
    }
}

#[test]
fn colours_are_apart() {
    let words = [0_u64; 2];
    let mut one = Random::coloured(0, &words[0]);
    let mut other = Random::coloured(0, &words[1]);
    let mut turned = 0;
    for _ in 0..1000 {
        turned += (one.next_word() ^ other.next_word()).count_ones();
    }
    assert!((31_000..33_000).contains(&turned), "{turned} of 64000 bits differ");
}
