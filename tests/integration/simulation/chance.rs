//! Randomness from a seed: the same seed gives the same run.

use std::ops::RangeInclusive;
use std::time::Duration;

/// One stream of random choices. Each part of a run has its own, so that removing one part does not
/// change the others.
pub struct Chance(fastrand::Rng);

impl Chance {
    pub fn new(seed: u64, stream: &str) -> Self {
        let mut mixed = seed ^ 0xcbf2_9ce4_8422_2325;
        for byte in stream.bytes() {
            mixed = (mixed ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        Self(fastrand::Rng::with_seed(mixed))
    }

    pub fn whole(&mut self, range: RangeInclusive<u64>) -> u64 {
        self.0.u64(range)
    }

    /// From 0 to just below 1.
    pub fn share(&mut self) -> f64 {
        self.0.f64()
    }

    pub fn between(&mut self, least: f64, most: f64) -> f64 {
        least + self.share() * (most - least)
    }

    pub fn once_in(&mut self, times: u64) -> bool {
        self.0.u64(0..times.max(1)) == 0
    }

    /// Whether an event with a mean of `a_beat` per beat happens within `beats`.
    pub fn happens(&mut self, a_beat: f64, beats: f64) -> bool {
        self.share() < a_beat * beats
    }

    pub fn one_of<'a, T>(&mut self, these: &'a [T]) -> &'a T {
        &these[self.0.usize(0..these.len())]
    }

    /// Time until the next event, with that mean.
    pub fn until(&mut self, mean: Duration) -> Duration {
        mean.mul_f64(-(1.0 - self.share()).ln())
    }

    pub fn span(&mut self, least: Duration, most: Duration) -> Duration {
        least + (most - least).mul_f64(self.share())
    }
}
