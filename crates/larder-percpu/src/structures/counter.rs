//! A statistics counter: adding is one sequence on the index's own line; reading sums up.

use crate::areas::{By, Options};
use crate::domain::Domain;
use crate::locked::Busy;
use crate::word::Open64;

/// A counter that many threads add to and few read.
///
/// Not for counts that decide something at once: [`sum`](Self::sum) adds up words that change meanwhile.
///
/// ```
/// use larder_percpu::{By, structures::Counter};
///
/// static REQUESTS: Counter = Counter::new(By::ConcurrencyId);
/// REQUESTS.add(2);
/// assert_eq!(REQUESTS.sum(), 2);
/// ```
pub struct Counter {
    domain: Domain<Open64>,
}

impl Counter {
    /// A counter at zero.
    pub const fn new(by: By) -> Self {
        Self { domain: Domain::new(by) }
    }

    /// A counter at zero, with options.
    pub const fn with(options: Options) -> Self {
        Self { domain: Domain::with(options) }
    }

    /// Adds. Any thread, also in signal handlers once it was used or set up.
    #[inline(always)]
    pub fn add(&self, n: u64) {
        // SAFETY: the area is one word.
        unsafe { self.domain.core().add_inlined::<Open64>(0, n) };
    }

    /// The sum over all indices. What is added meanwhile may be in it or not; what was added before is.
    pub fn sum(&self) -> u64 {
        self.domain.iter().fold(0, |sum, word| sum.wrapping_add(word.load()))
    }

    /// Sets one index's part to zero and returns it: nothing is counted twice or lost.
    pub fn take(&self, index: usize) -> Result<u64, Busy> {
        self.domain.take_over(index, |word| {
            let n = word.load();
            word.store(&**word, 0);
            n
        })
    }

    /// Sets every index's part to zero and returns the sum. Indices at zero are not taken over.
    pub fn take_all(&self) -> Result<u64, Busy> {
        let mut sum = 0u64;
        for index in 0..self.domain.areas() {
            if self.domain.area(index).load() != 0 {
                sum = sum.wrapping_add(self.take(index)?);
            }
        }
        Ok(sum)
    }

    /// The domain below.
    pub fn domain(&self) -> &Domain<Open64> {
        &self.domain
    }
}
