//! How often memory is to be measured: seldom while it cannot run out soon, often while it may.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Duration;

/// While much is free and nothing happens. 20 GiB have gone within 1.5 s: that is six samples.
pub const CALM: Duration = Duration::from_millis(250);

/// While little is free, and after something has happened.
pub const WATCHFUL: Duration = Duration::from_millis(100);

/// While an engine loads, free memory alone is read between measurements. That costs next to
/// nothing, and brings the next measurement forward once it shows a collapse.
pub const CHECK_EVERY: Duration = Duration::from_millis(20);

/// While memory falls so fast that it will be gone within seconds.
/// Sixteen samples of its last third of a second; more often would cost more than a fiftieth of a
/// core.
pub const FAST: Duration = Duration::from_millis(20);

/// How soon the reserve must be reached, at the present pace, for that.
const HORIZON: Duration = Duration::from_secs(5);

/// The same while an engine loads: it reads in leaps, and [`CHECK_EVERY`] sees soon enough how they
/// end. The brake uses the last second, and begins to when 0.4 s are left.
const HORIZON_LOADING: Duration = Duration::from_secs(2);

/// The past from which the pace is taken.
const PAST: Duration = Duration::from_secs(1);

/// Over a shorter time the kernel's own batches resemble a fall.
const SHORTEST_SLOPE: Duration = Duration::from_millis(200);

/// A slower fall leaves time to look again: a share of all memory in a second, that of the shipped
/// rule for a load (240 MiB/s of 121 GiB).
const SLOWEST_FALL: f64 = 1.0 / 512.0;

/// Less than this above the reserve is little, as for the shipped rules: shares of all memory.
const LITTLE_FREE: f64 = 1.0 / 32.0;
const LITTLE_AVAILABLE: f64 = 1.0 / 16.0;

/// How long [`FAST`] and [`CHECK_EVERY`] outlast their reason, so that a collapse that halts is not
/// taken for over.
const FAST_LASTS: Duration = Duration::from_secs(1);

/// How long [`WATCHFUL`] outlasts its reason: longer than an unprivileged PSI trigger is silent.
const WATCHFUL_LASTS: Duration = Duration::from_secs(3);

/// Most samples kept: the past at one sample each ten milliseconds.
const MAX_SAMPLES: usize = 100;

/// What a measurement of memory gave, in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemoryMeasurement {
    /// `MemTotal`.
    pub total: f64,
    /// `MemFree`, and page cache that eviction behind readers can free.
    pub free: f64,
    /// Free, or soon to be had.
    pub available: f64,
    /// What the kernel keeps for itself; below it allocations stall.
    pub reserve: f64,
}

#[derive(Clone, Copy, Debug)]
struct PastSample {
    at: Duration,
    memory: MemoryMeasurement,
}

/// What follows from the last second.
#[derive(Debug)]
pub struct Pace {
    past: VecDeque<PastSample>,
    watchful_until: Duration,
    loading_until: Duration,
    fast_until: Duration,
}

impl Pace {
    /// Nothing is known yet, so it begins watchful. Times are on one clock that does not go back.
    pub fn new(now: Duration) -> Self {
        let past = VecDeque::with_capacity(MAX_SAMPLES);
        let never = Duration::ZERO;
        let watchful_until = now + WATCHFUL_LASTS;
        Self { past, watchful_until, loading_until: never, fast_until: never }
    }

    /// Takes in a measurement; `None`: memory could not be measured, which is no reason to be calm.
    pub fn measured(&mut self, now: Duration, memory: Option<MemoryMeasurement>) {
        let Some(memory) = memory else {
            self.past.clear();
            return self.stirred(now);
        };
        while self.past.front().is_some_and(|sample| now.saturating_sub(sample.at) > PAST)
            || self.past.len() >= MAX_SAMPLES
        {
            self.past.pop_front();
        }
        let MemoryMeasurement { total, free, available, reserve } = memory;
        if free - reserve < total * LITTLE_FREE || available - reserve < total * LITTLE_AVAILABLE {
            self.stirred(now);
        }
        if self.is_gone_soon(now, memory) {
            self.collapses(now);
        }
        self.past.push_back(PastSample { at: now, memory });
    }

    /// Takes in how much is free, in bytes, between two measurements. Returns whether that shows a
    /// collapse that was not known of.
    pub fn check_free(&mut self, now: Duration, free: f64) -> bool {
        let Some(last) = self.past.back() else { return false };
        let is_known = now < self.fast_until;
        // What is available is not known, and taken to be as it was.
        let is_gone_soon = self.is_gone_soon(now, MemoryMeasurement { free, ..last.memory });
        if is_gone_soon {
            self.collapses(now);
        }
        is_gone_soon && !is_known
    }

    /// Whether the reserve will be reached within [`HORIZON`], or [`HORIZON_LOADING`].
    fn is_gone_soon(&self, now: Duration, memory: MemoryMeasurement) -> bool {
        let MemoryMeasurement { total, free, available, reserve } = memory;
        let horizon = if now < self.loading_until { HORIZON_LOADING } else { HORIZON };
        let gone_soon = |left: f64, before: fn(&MemoryMeasurement) -> f64| {
            self.past.iter().any(|sample| {
                let age = now.saturating_sub(sample.at);
                let fall = (before(&sample.memory) - left) / age.as_secs_f64();
                (SHORTEST_SLOPE..=PAST).contains(&age)
                    && fall >= total * SLOWEST_FALL
                    && left - reserve <= fall * horizon.as_secs_f64()
            })
        };
        gone_soon(free, |memory| memory.free) || gone_soon(available, |memory| memory.available)
    }

    fn collapses(&mut self, now: Duration) {
        self.fast_until = now + FAST_LASTS;
        // What follows a collapse is not calm either.
        self.stirred(now + FAST_LASTS);
    }

    /// Something has happened that may have to do with memory: the kernel said so, or tasks waited
    /// for it.
    pub fn stirred(&mut self, now: Duration) {
        self.watchful_until = self.watchful_until.max(now + WATCHFUL_LASTS);
    }

    /// Time after a sample until the next sample of free memory is due, if at all.
    pub fn check_after(&self, now: Duration) -> Option<Duration> {
        (now < self.loading_until && now >= self.fast_until).then_some(CHECK_EVERY)
    }

    /// An engine loads a model: free memory is sampled in between.
    pub fn loads(&mut self, now: Duration) {
        self.loading_until = self.loading_until.max(now + FAST_LASTS);
    }

    /// The time from the last measurement to the next one. `rules` is how often they need one.
    pub fn interval(&self, now: Duration, rules: Duration) -> Duration {
        let own = match () {
            () if now < self.fast_until => FAST,
            () if now < self.watchful_until => WATCHFUL,
            () => CALM,
        };
        own.min(rules).max(FAST)
    }
}
