//! Whether a look is likely to be worth it, from what came of those before.

/// Looks that were in vain, since one was not.
#[derive(Clone, Copy, Debug, Default)]
pub struct Guess {
    missed: u32,
}

impl Guess {
    /// Nothing is known, and a look is likely to be worth it.
    pub const NEW: Self = Self { missed: 0 };

    /// Whether to look. Where looks were in vain several times, only now and then.
    #[inline(always)]
    pub fn is_likely(&mut self) -> bool {
        const OFTEN: u32 = 4;
        const NOW_AND_THEN: u32 = 64;
        let likely = self.missed < OFTEN || self.missed.is_multiple_of(NOW_AND_THEN);
        self.missed = self.missed.wrapping_add(u32::from(!likely));
        likely
    }

    /// Whether a look was worth it.
    #[inline(always)]
    pub fn see(&mut self, worth: bool) {
        self.missed = if worth { 0 } else { self.missed.wrapping_add(1) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_some_looks_in_vain_there_are_few_until_one_is_worth_it() {
        let mut guess = Guess::NEW;
        let mut look = |worth: bool| {
            let likely = guess.is_likely();
            if likely {
                guess.see(worth);
            }
            likely
        };
        assert!((0..4).all(|_| look(false)));
        assert_eq!((0..6400).filter(|_| look(false)).count(), 100);
        // The next one that happens is worth it, and so are all.
        assert!((0..64).any(|_| look(true)));
        assert!((0..100).all(|_| look(true)));
    }
}
