//! The size of a recording, and the speed of its replay.
//!
//! A minute of this machine is measured and repeated: gauges with the same values, counters
//! continued from the previous repetition.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use umawarden::cli::replay::Replayer;
use umawarden::config::shipped::shipped_rules;
use umawarden::model::{
    AssessmentLimits, DecisionId, FORGET_RECEIVED_AFTER, MetricKind, Mode, Moment, Observation,
    Readings, metric,
};
use umawarden::recording::{
    RecordedRules, RecordedStep, RecordingEntry, RecordingRing, RuleText, SegmentBegin,
    SegmentReader, StepResult, segment_files,
};
use umawarden::sources::memory::MemorySource;
use umawarden::sources::process::ProcessSource;

use super::{processor_time, row};

/// The default size of the flight recorder's ring.
const DEFAULT_RING: f64 = 64.0 * 1024.0 * 1024.0;

/// Real time of the measurement.
const MEASURED: Duration = Duration::from_secs(60);

/// Recorded time of the replay.
const REPLAYED: Duration = Duration::from_secs(2 * 3600);

const ROUNDS: usize = 3;

/// A ring larger than everything that is written.
const ENDLESS: u64 = 1 << 40;

/// Observations of a minute at equal intervals.
struct Minute {
    interval: Duration,
    steps: Vec<Vec<Observation>>,
}

/// Measures with ten steps a second, the calm interval, and with one.
pub fn measure() {
    let minute = Minute::measure(Duration::from_millis(50));
    for every in [2, 5, 20] {
        let thinned = minute.thinned(every);
        measure_at(&thinned);
    }
}

fn measure_at(minute: &Minute) {
    let folder = tempfile::tempdir().unwrap();
    let bytes = minute.record(folder.path(), REPLAYED);
    let interval = minute.interval;
    let hours = REPLAYED.as_secs_f64() / 3600.0;
    let a_day = bytes as f64 / hours * 24.0;
    row(&format!("recording, a day at {interval:?}"), "MiB", vec![a_day / 1024.0 / 1024.0]);
    row(&format!("default ring at {interval:?}"), "days", vec![DEFAULT_RING / a_day]);
    let steps = REPLAYED.as_secs_f64() / interval.as_secs_f64();
    let (mut read, mut replayed, mut month) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        read.push(timed(|| read_all(folder.path(), None)) / steps * 1e6);
        let took = timed(|| read_all(folder.path(), Some(Replayer::under_recorded_rules())));
        replayed.push(took / steps * 1e6);
        month.push(took / hours * 24.0 * 30.0);
    }
    row(&format!("replay at {interval:?}, a step only read"), "us", read);
    row(&format!("replay at {interval:?}, a step, shipped rules"), "us", replayed);
    row(&format!("replay of 30 days at {interval:?} would take"), "s", month);
}

fn timed(work: impl FnOnce()) -> f64 {
    let began = processor_time();
    work();
    (processor_time() - began).as_secs_f64()
}

fn read_all(folder: &Path, mut replayer: Option<Replayer>) {
    for path in segment_files(folder) {
        let file = BufReader::new(File::open(path).unwrap());
        let mut reader = SegmentReader::open(file).unwrap();
        while let Some(entry) = reader.next_entry().unwrap() {
            if let Some(replayer) = &mut replayer {
                replayer.take(&entry).unwrap();
            }
        }
    }
}

impl Minute {
    fn measure(interval: Duration) -> Self {
        let mut memory = MemorySource::open(Path::new("/proc"), Path::new("/sys"));
        let process = ProcessSource::default();
        let began = Instant::now();
        let clock = move || began.elapsed();
        let mut steps = Vec::new();
        let mut next = Duration::ZERO;
        while next < MEASURED {
            std::thread::sleep(next.saturating_sub(began.elapsed()));
            let mut seen = Vec::new();
            memory.read(&clock, &mut seen);
            if next.subsec_nanos() == 0 {
                process.read(&clock, &mut seen);
            }
            steps.push(seen);
            next += interval;
        }
        Self { interval, steps }
    }

    /// Every `every`-th step.
    fn thinned(&self, every: usize) -> Self {
        let steps = self.steps.iter().step_by(every).cloned().collect();
        Self { interval: self.interval * u32::try_from(every).unwrap(), steps }
    }

    /// Records `time` into a folder; returns its size in bytes.
    fn record(&self, folder: &Path, time: Duration) -> u64 {
        let mut at = Moment { uptime: Duration::from_secs(1000), utc: Timestamp::UNIX_EPOCH };
        let mut ring = RecordingRing::new(folder, ENDLESS, begin(at, self.interval));
        let end = at.uptime + time;
        let mut repetition = 0.0;
        while at.uptime < end {
            for (seen, first) in self.steps.iter().zip(std::iter::repeat(&self.steps)) {
                at.uptime += self.interval;
                at.utc += self.interval;
                let seen = seen.iter().map(|seen| again(seen, first, repetition)).collect();
                let step = RecordedStep { at, seen, said: StepResult::default() };
                ring.take(&RecordingEntry::Step(step)).unwrap();
            }
            repetition += 1.0;
        }
        ring.flush().unwrap();
        ring.tally().written_bytes
    }
}

/// The observation in a later repetition of the minute.
fn again(seen: &Observation, minute: &[Vec<Observation>], repetition: f64) -> Observation {
    let Observation::Readings(readings) = seen else { return seen.clone() };
    let of = |seen: &Observation| match seen {
        Observation::Readings(other) if other.source == readings.source => Some(other.clone()),
        _ => None,
    };
    let first = minute.iter().flatten().find_map(of);
    let last = minute.iter().rev().flatten().find_map(of);
    let mut again = readings.clone();
    if let (Some(first), Some(last)) = (first, last) {
        move_counters(&mut again, &first, &last, repetition);
    }
    Observation::Readings(again)
}

fn move_counters(readings: &mut Readings, first: &Readings, last: &Readings, repetition: f64) {
    let keys = readings.schema.series.iter();
    let ends = first.values.iter().zip(&last.values);
    for ((value, key), (first, last)) in readings.values.iter_mut().zip(keys).zip(ends) {
        let is_counter = metric(&key.name).is_some_and(|m| m.kind == MetricKind::Counter);
        if let (true, Some(first), Some(last)) = (is_counter, first.value(), last.value()) {
            *value = value.map(|value| value + repetition * (last - first));
        }
    }
}

fn begin(at: Moment, interval: Duration) -> SegmentBegin {
    let text = |file: umawarden::config::mistake::SourceText| RuleText {
        name: file.name.to_string(),
        text: file.text.replace("interval: 100ms", &format!("interval: {interval:?}")),
    };
    let rules = RecordedRules {
        mode: Mode::Observe,
        evaluation_interval: interval,
        guard_rails: serde_json::Value::Null,
        overrides: serde_json::Value::Null,
        assessment: AssessmentLimits::default(),
        forget_received_after: FORGET_RECEIVED_AFTER,
        cluster: None,
        files: shipped_rules().into_iter().map(text).collect(),
    };
    SegmentBegin::of_process("bench", at, DecisionId(1), rules)
}
