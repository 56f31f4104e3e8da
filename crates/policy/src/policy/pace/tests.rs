use std::time::Duration;

use proptest::prelude::*;

use super::{CALM, CHECK_EVERY, FAST, MemoryMeasurement, Pace, SHORTEST_SLOPE, WATCHFUL};

const GIB: f64 = (1_u64 << 30) as f64;
const NEVER: Duration = Duration::MAX;

/// A machine of 121 GiB whose pace is asked after each measurement, and heeded.
struct Machine {
    pace: Pace,
    now: Duration,
    memory: MemoryMeasurement,
}

impl Machine {
    fn with_free(free_gib: f64) -> Self {
        let now = Duration::from_secs(1000);
        let memory = MemoryMeasurement {
            total: 121.0 * GIB,
            free: free_gib * GIB,
            available: (free_gib + 10.0) * GIB,
            reserve: GIB / 16.0,
        };
        let mut machine = Self { pace: Pace::new(now), now, memory };
        machine.run(Duration::from_secs(10), 0.0);
        machine
    }

    /// Takes that much each second, and returns the interval after each sample.
    fn run(&mut self, time: Duration, takes_gib_s: f64) -> Vec<Duration> {
        let end = self.now + time;
        let mut intervals = Vec::new();
        while self.now < end {
            self.pace.measured(self.now, Some(self.memory));
            let interval = self.pace.interval(self.now, NEVER);
            intervals.push(interval);
            self.now += interval;
            let taken = takes_gib_s * GIB * interval.as_secs_f64();
            self.memory.free = (self.memory.free - taken).max(0.0);
            self.memory.available = (self.memory.available - taken).max(0.0);
        }
        intervals
    }
}

fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

#[test]
fn ample_free_memory_is_sampled_slowly_except_at_the_start() {
    let mut machine = Machine::with_free(60.0);
    assert!(machine.run(seconds(60.0), 0.0).iter().all(|interval| *interval == CALM));
    let mut fresh = Pace::new(machine.now);
    fresh.measured(machine.now, Some(machine.memory));
    assert_eq!(fresh.interval(machine.now, NEVER), WATCHFUL, "nothing is known of it yet");
}

#[test]
fn a_collapse_is_sampled_fast_from_its_first_sample_until_a_second_after() {
    let mut machine = Machine::with_free(60.0);
    let intervals = machine.run(seconds(1.5), 13.0);
    // The first sample shows nothing yet.
    assert_eq!(intervals[..2], [CALM, FAST]);
    assert!(intervals[1..].iter().all(|interval| *interval == FAST), "{intervals:?}");
    let after = machine.run(seconds(10.0), 0.0);
    let fast = after.iter().filter(|interval| **interval == FAST).count();
    // The slope is remembered for a second, and FAST for another.
    assert!((50..=110).contains(&fast), "{fast}");
    assert_eq!(after.last(), Some(&CALM));
    assert!(after.contains(&WATCHFUL), "in between");
}

#[test]
fn a_slow_fall_does_not_shorten_the_interval() {
    let mut machine = Machine::with_free(100.0);
    assert!(machine.run(seconds(30.0), 1.0).iter().all(|interval| *interval == CALM));
    let mut slow = Machine::with_free(20.0);
    assert!(slow.run(seconds(30.0), 0.1).iter().all(|interval| *interval == CALM));
}

#[test]
fn low_steady_memory_is_sampled_at_the_watchful_interval() {
    for free_gib in [0.01, 0.1, 3.0] {
        let mut machine = Machine::with_free(free_gib);
        let intervals = machine.run(seconds(30.0), 0.0);
        assert!(intervals.iter().all(|interval| *interval == WATCHFUL), "{free_gib} GiB");
    }
}

#[test]
fn a_load_is_sampled_fast_once_it_may_exhaust_memory() {
    let mut machine = Machine::with_free(60.0);
    let mut pace_of = |takes_gib_s, lasts: f64| {
        let end = machine.now + seconds(lasts);
        while machine.now < end {
            machine.pace.loads(machine.now);
            machine.run(Duration::from_millis(1), takes_gib_s);
        }
        machine.pace.interval(machine.now, NEVER)
    };
    assert_eq!(pace_of(2.0, 25.0), CALM, "10 GiB are left, which is five seconds");
    assert_eq!(pace_of(2.0, 3.2), FAST);
    assert_eq!(pace_of(0.0, 3.0), WATCHFUL, "what follows a collapse is not calm");
    assert_eq!(machine.pace.check_after(machine.now), Some(CHECK_EVERY));
    assert_eq!(machine.run(seconds(3.0), 0.0).last(), Some(&WATCHFUL), "little is left");
    assert_eq!(machine.pace.check_after(machine.now), None);
}

#[test]
fn a_free_memory_sample_in_a_collapse_advances_the_next_full_sample_once() {
    let mut machine = Machine::with_free(60.0);
    let now = machine.now + SHORTEST_SLOPE;
    assert!(!machine.pace.check_free(now, 59.9 * GIB), "that leaves two minutes");
    assert!(machine.pace.check_free(now, 55.0 * GIB), "25 GiB/s leave two seconds");
    assert_eq!((machine.pace.interval(now, NEVER), machine.pace.check_after(now)), (FAST, None));
    assert!(!machine.pace.check_free(now, 54.0 * GIB), "that is known");
    let later = now + Duration::from_secs(3600);
    assert!(!machine.pace.check_free(later, 6.0 * GIB), "what was an hour ago is no slope");
    assert!(!Pace::new(now).check_free(now, 0.0), "nothing is known of the machine yet");
}

#[test]
fn available_memory_shows_a_fall_hidden_by_reclaim() {
    let mut machine = Machine::with_free(1.0);
    machine.memory.available = 20.0 * GIB;
    for _ in 0..4 {
        machine.pace.measured(machine.now, Some(machine.memory));
        machine.now += WATCHFUL;
        machine.memory.available -= 0.5 * GIB;
    }
    assert_eq!(machine.pace.interval(machine.now, NEVER), FAST);
}

#[test]
fn a_kernel_event_is_followed_by_three_watchful_seconds() {
    let mut machine = Machine::with_free(60.0);
    machine.pace.stirred(machine.now);
    let intervals = machine.run(seconds(10.0), 0.0);
    let watchful = intervals.iter().filter(|interval| **interval == WATCHFUL).count();
    assert_eq!(watchful, 30);
    assert_eq!(intervals.last(), Some(&CALM));
}

#[test]
fn unreadable_memory_does_not_count_as_calm() {
    let mut machine = Machine::with_free(60.0);
    machine.pace.measured(machine.now, None);
    assert_eq!(machine.pace.interval(machine.now, NEVER), WATCHFUL);
}

#[test]
fn samples_from_before_a_suspend_give_no_slope() {
    let mut machine = Machine::with_free(60.0);
    machine.now += Duration::from_secs(3600);
    machine.memory.free = 6.0 * GIB;
    machine.memory.available = 16.0 * GIB;
    machine.pace.measured(machine.now, Some(machine.memory));
    assert_eq!(machine.pace.interval(machine.now, NEVER), CALM);
}

#[test]
fn rules_shorten_the_interval_down_to_the_shortest_one() {
    let machine = Machine::with_free(60.0);
    let interval = |rules| machine.pace.interval(machine.now, rules);
    assert_eq!(interval(seconds(1.0)), CALM);
    assert_eq!(interval(seconds(0.05)), seconds(0.05));
    assert_eq!(interval(seconds(0.001)), FAST);
}

fn any_amount() -> impl Strategy<Value = f64> {
    prop_oneof![0.0..500.0 * GIB, Just(0.0), Just(f64::NAN), Just(f64::INFINITY), any::<f64>()]
}

fn any_memory() -> impl Strategy<Value = Option<MemoryMeasurement>> {
    let memory = (any_amount(), any_amount(), any_amount(), any_amount()).prop_map(
        |(total, free, available, reserve)| MemoryMeasurement { total, free, available, reserve },
    );
    proptest::option::weighted(0.9, memory)
}

proptest! {
    #[test]
    fn the_interval_and_its_history_stay_bounded(
        samples in proptest::collection::vec((0_u64..2000, any_memory(), any::<bool>()), 1..300),
        rules_ms in 0_u64..10_000,
    ) {
        let mut now = Duration::from_secs(5);
        let mut pace = Pace::new(now);
        let capacity = pace.past.capacity();
        for (wait_ms, memory, stirred) in samples {
            now += Duration::from_millis(wait_ms);
            pace.measured(now, memory);
            if stirred {
                pace.stirred(now);
            }
            let free = memory.map_or(f64::NAN, |memory| memory.available);
            if pace.check_free(now, free) {
                prop_assert_eq!(pace.interval(now, NEVER), FAST);
            }
            let rules = Duration::from_millis(rules_ms);
            let interval = pace.interval(now, rules);
            prop_assert!((FAST..=CALM).contains(&interval));
            prop_assert!(interval <= rules.max(FAST));
            prop_assert!(!stirred || interval <= WATCHFUL);
            prop_assert!(memory.is_some() || interval <= WATCHFUL);
            prop_assert_eq!(pace.past.capacity(), capacity);
        }
    }

    /// Wherever it begins: a fall that ends within the horizon is seen fast before memory is gone.
    #[test]
    fn collapses_are_sampled_above_the_reserve(free_gib in 8.0..110.0_f64, gib_s in 2.0..20.0_f64) {
        let mut machine = Machine::with_free(free_gib);
        let mut seen_fast_at = None;
        while machine.memory.free > machine.memory.reserve {
            let intervals = machine.run(Duration::from_millis(1), gib_s);
            if intervals.last() == Some(&FAST) && seen_fast_at.is_none() {
                seen_fast_at = Some(machine.memory.free);
            }
        }
        let left_s = seen_fast_at.map(|free| (free - machine.memory.reserve) / (gib_s * GIB));
        // Less only where less was left at the begin; a calm interval passes before it is seen.
        let possible = ((free_gib - 1.0 / 16.0) / gib_s - 2.0 * CALM.as_secs_f64()).min(4.0);
        prop_assert!(left_s.is_some_and(|left_s| left_s >= possible), "{left_s:?} < {possible}");
    }

    /// More memory taken never lengthens the interval.
    #[test]
    fn a_faster_fall_never_lengthens_the_interval(
        free_gib in 1.0..110.0_f64, one in 0.0..20.0_f64, more in 0.0..20.0_f64,
    ) {
        let last = |gib_s: f64| {
            let mut machine = Machine::with_free(free_gib);
            for _ in 0..8 {
                machine.pace.measured(machine.now, Some(machine.memory));
                machine.now += WATCHFUL;
                machine.memory.free -= gib_s * GIB * WATCHFUL.as_secs_f64();
                machine.memory.available -= gib_s * GIB * WATCHFUL.as_secs_f64();
            }
            machine.pace.interval(machine.now, NEVER)
        };
        prop_assert!(last(one + more) <= last(one));
    }
}
