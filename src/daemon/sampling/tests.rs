use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use rustix::event::PollFlags;

use super::{SampleTime, Sampling};
use crate::config::settings::SamplingInterval;
use crate::daemon::clock;
use crate::model::{DecisionId, Mode, Moment};
use crate::policy::Policy;
use crate::policy::pace::{CALM, CHECK_EVERY, MemoryMeasurement, WATCHFUL};
use crate::policy::rule::RuleSet;
use crate::sys::free_memory::FreeMemory;

const STEP: Duration = Duration::from_millis(100);

fn policy() -> Policy {
    let started = Moment { uptime: Duration::ZERO, utc: Timestamp::UNIX_EPOCH };
    Policy::new(started, Mode::Observe, &RuleSet::default(), DecisionId(1))
}

fn at(monotonic: Duration) -> SampleTime {
    SampleTime { monotonic, uptime: monotonic }
}

fn fixed() -> Sampling {
    let mut sampling = Sampling::new(SamplingInterval::Every(STEP), Path::new("/nowhere"));
    (sampling.last, sampling.due) = (Duration::ZERO, STEP);
    sampling
}

#[test]
fn a_late_sample_does_not_delay_the_next_one() {
    let mut sampling = fixed();
    assert!(!sampling.is_due(at(STEP - Duration::from_millis(1))));
    assert!(sampling.is_due(at(STEP)));
    assert_eq!(sampling.taken(at(STEP + Duration::from_millis(30)), &policy(), 0), 0);
    assert_eq!(sampling.due, 2 * STEP);
}

#[test]
fn missed_samples_are_counted_and_not_made_up_for() {
    let mut sampling = fixed();
    // Those of 200, 300 and 400 ms; that of 100 ms is only late.
    assert_eq!(sampling.taken(at(Duration::from_millis(430)), &policy(), 0), 3);
    assert_eq!(sampling.due, Duration::from_millis(530));
}

#[test]
fn activity_between_samples_does_not_change_a_fixed_interval() {
    let mut sampling = fixed();
    sampling.record_activity(Duration::from_millis(50));
    sampling.reconsider(at(Duration::from_millis(50)), &policy());
    assert_eq!(sampling.due, STEP);
    assert!(sampling.alarm().is_none());
    sampling.on_alarm(PollFlags::PRI);
    assert_eq!(sampling.due, STEP);
}

/// In calm, with the last sample at 10 s and the next one at 10.25 s.
fn calm() -> Sampling {
    let mut sampling = Sampling::new(SamplingInterval::Auto, Path::new("/nowhere"));
    assert_eq!(sampling.interval(), WATCHFUL, "nothing is known yet");
    let Some(auto) = &mut sampling.auto else { panic!("it is auto") };
    auto.pace = crate::policy::pace::Pace::new(Duration::ZERO);
    let last = Duration::from_secs(10);
    (sampling.interval, sampling.last, sampling.due) = (CALM, last, last + CALM);
    sampling
}

#[test]
fn activity_between_samples_brings_the_next_one_forward_without_a_miss() {
    for (after_ms, due_ms) in [(0, 100), (40, 100), (240, 240)] {
        let mut sampling = calm();
        let now = Duration::from_secs(10) + Duration::from_millis(after_ms);
        sampling.reconsider(at(now), &policy());
        assert_eq!(sampling.due, Duration::from_millis(10_250), "nothing has happened");
        sampling.record_activity(now);
        sampling.reconsider(at(now), &policy());
        assert_eq!(sampling.due, Duration::from_millis(10_000 + due_ms));
        let due = sampling.due;
        assert_eq!(sampling.taken(at(due), &policy(), 0), 0);
        assert_eq!(sampling.due, due + WATCHFUL);
    }
}

#[test]
fn a_pressure_alarm_samples_at_once_and_a_broken_trigger_is_ignored() {
    let folder = Path::new("/proc");
    let mut sampling = Sampling::new(SamplingInterval::Auto, folder);
    if sampling.alarm().is_none() {
        eprintln!("not checked: no PSI here, or not for this user");
        return;
    }
    let later = clock::monotonic() + Duration::from_secs(60);
    sampling.due = later;
    sampling.on_alarm(PollFlags::empty());
    assert_eq!(sampling.due, later);
    sampling.on_alarm(PollFlags::PRI);
    assert_eq!(sampling.due_in(), Duration::ZERO);
    sampling.on_alarm(PollFlags::ERR | PollFlags::PRI);
    assert!(sampling.alarm().is_none());
}

/// On this machine, while an engine loads.
fn loading(interval: SamplingInterval, procfs: &str) -> Sampling {
    let mut sampling = Sampling::new(interval, Path::new(procfs));
    sampling.loads(clock::uptime());
    sampling
}

#[test]
fn free_memory_is_checked_only_for_the_sampled_machine_and_only_while_useful() {
    let next_check = |interval, procfs| loading(interval, procfs).next_check();
    let soon = next_check(SamplingInterval::Auto, "/proc");
    assert!(soon.is_some_and(|soon| soon <= CHECK_EVERY), "{soon:?}");
    assert_eq!(next_check(SamplingInterval::Auto, "/nowhere"), None, "another machine's");
    assert_eq!(next_check(SamplingInterval::Every(STEP), "/proc"), None, "as was ordered");
    let mut idle = Sampling::new(SamplingInterval::Auto, Path::new("/proc"));
    let Some(auto) = &mut idle.auto else { panic!("it is auto") };
    auto.pace = crate::policy::pace::Pace::new(Duration::ZERO);
    assert_eq!(idle.next_check(), None, "nothing loads");
}

#[test]
fn only_a_check_that_shows_a_collapse_brings_the_sample_forward() {
    let now = FreeMemory::now();
    let total = now.total_bytes as f64;
    let evictable = 1_u64 << 50;
    for (more, evictable, is_brought_forward) in
        [(0.0, 0, false), (1e15, 0, true), (1e15, evictable, false)]
    {
        let mut sampling = loading(SamplingInterval::Auto, "/proc");
        let later = clock::monotonic() + Duration::from_secs(60);
        sampling.due = later;
        let Some(auto) = &mut sampling.auto else { panic!("it is auto") };
        let before = clock::uptime().saturating_sub(Duration::from_millis(300));
        let free = now.free_bytes as f64 + more;
        let memory = MemoryMeasurement { total, free, available: total, reserve: 0.0 };
        auto.pace.measured(before, Some(memory));
        sampling.check_free(evictable);
        assert_eq!(sampling.due < later, is_brought_forward, "{more}");
        assert_eq!(sampling.next_check().is_none(), is_brought_forward, "all is measured then");
    }
}
