//! Random choices of generated tests, and how many rounds a test has.

/// Whether `tests/soak` runs, which has hours.
pub fn is_nightly() -> bool {
    std::env::var_os("UMAWARDEN_NIGHTLY").is_some()
}

/// The first of them; in `tests/soak` the second.
pub fn rounds<T>(ordinary: T, nightly: T) -> T {
    if is_nightly() { nightly } else { ordinary }
}

/// A pseudo-random generator with the same sequence on every platform (splitmix64).
#[derive(Debug)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % sides as u64).unwrap_or(0)
    }

    pub fn pick<'c>(&mut self, choices: &[&'c str]) -> &'c str {
        choices[self.roll(choices.len())]
    }

    pub fn chance(&mut self, percent: usize) -> bool {
        self.roll(100) < percent
    }
}
