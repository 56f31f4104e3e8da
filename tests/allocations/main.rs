//! The sampling loop allocates no memory once it is warm, so that it works when memory has run out.
//! A test program of its own, because counting needs a global allocator of its own.
#![expect(clippy::unwrap_used, reason = "a test ends where anything fails")]

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use umawarden::config::mistake::SourceText;
use umawarden::config::rules::parse_rules;
use umawarden::config::shipped::shipped_rules;
use umawarden::model::{DecisionId, Mode, Moment, Observation};
use umawarden::policy::memory_ring::{MemoryFeed, MemoryRing};
use umawarden::policy::pace::{CALM, Pace};
use umawarden::policy::status::Status;
use umawarden::policy::{Policy, Step};
use umawarden::sources::memory::{MemorySource, VitalSource};

/// Steps before the measurement: more than five minutes.
const WARM: u32 = 2_000;
const MEASURED: u32 = 1_000;
/// Ranges of shipped rules are up to an hour, in which their windows still grow by doubling.
const OF_GROWING_WINDOWS: f64 = 0.005;

/// Allocations of a step that evaluates rules about the assessment, which is unknown here without a
/// scan of the processes: each unknown result carries its reason.
const OF_THREE_UNKNOWN_RULES: f64 = 3.0;
const OF_ONE_UNKNOWN_RULE: f64 = 1.0;

/// The sampling loop of the daemon at its calm interval, with a fake clock.
struct SamplingLoop {
    memory: MemorySource,
    policy: Policy,
    pace: Pace,
    pictures: [Arc<Status>; 2],
    ring: Arc<Mutex<MemoryRing>>,
    feed: MemoryFeed,
    seen: Vec<Observation>,
    at: Moment,
}

impl SamplingLoop {
    /// `root` is the folder of `proc` and `sys`.
    fn with(rules: &[SourceText], root: &Path) -> Self {
        let at = Moment {
            uptime: Duration::from_secs(1000),
            utc: "2026-01-01T00:00:00Z".parse().unwrap(),
        };
        let rules = parse_rules(rules, Duration::from_millis(100)).unwrap();
        let mut policy = Policy::new(at, Mode::Observe, &rules, DecisionId(1));
        let ring = Arc::<Mutex<MemoryRing>>::default();
        Self {
            feed: MemoryFeed::new(Arc::clone(&ring)),
            ring,
            memory: MemorySource::open(&root.join("proc"), &root.join("sys")),
            pace: Pace::new(at.uptime),
            pictures: [Arc::new(policy.status(at)), Arc::new(policy.status(at))],
            policy,
            seen: Vec::new(),
            at,
        }
    }

    fn step(&mut self) -> Step {
        self.at.uptime += CALM;
        self.at.utc += CALM;
        let now = self.at.uptime;
        self.memory.read(&|| now, &mut self.seen);
        let step = self.policy.step(self.at, &self.seen);
        self.pace.measured(now, self.policy.memory());
        self.pace.interval(now, self.policy.needs_samples_every());
        self.policy.draw(self.at, Arc::get_mut(&mut self.pictures[0]).unwrap());
        self.feed.take(&self.pictures[0]);
        self.pictures.swap(0, 1);
        self.memory.recycle(&mut self.seen);
        step
    }

    /// Allocations of a step, on average.
    fn allocations(&mut self) -> f64 {
        for _ in 0..WARM {
            self.step();
        }
        let counted = allocation_counter::measure(|| {
            for _ in 0..MEASURED {
                self.step();
            }
        });
        counted.count_total as f64 / f64::from(MEASURED)
    }
}

#[test]
fn sampling_publishing_and_the_past_of_memory_allocate_nothing() {
    let mut sampling = SamplingLoop::with(&[], Path::new("/"));
    assert_eq!(sampling.allocations(), 0.0);
    let ring = sampling.ring.lock().unwrap();
    let past = ring.history(sampling.at, Duration::from_secs(3600));
    assert!(past.at.len() >= 140, "a point each five seconds: {}", past.at.len());
}

#[test]
fn evaluating_the_shipped_rules_allocates_nothing_in_calm() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/proc/gb10-4k");
    // Reading plain files instead of a procfs allocates more.
    let without = SamplingLoop::with(&[], &root).allocations();
    for file in shipped_rules() {
        let of_assessment = match &*file.name {
            "shipped:leak.yaml" => OF_THREE_UNKNOWN_RULES,
            "shipped:kubernetes.yaml" => OF_ONE_UNKNOWN_RULE,
            _ => 0.0,
        };
        let name = Arc::clone(&file.name);
        let others = SamplingLoop::with(&[file], &root).allocations() - without - of_assessment;
        assert!(others.abs() < OF_GROWING_WINDOWS, "{name}: {others}");
    }
    let all = SamplingLoop::with(&shipped_rules(), &root).allocations() - without;
    let others = all - OF_THREE_UNKNOWN_RULES - OF_ONE_UNKNOWN_RULE;
    assert!(others.abs() < OF_GROWING_WINDOWS, "{others}");
}

#[test]
fn the_black_box_reads_its_values_without_an_allocation() {
    let mut vitals = VitalSource::new(Path::new("/proc"));
    let read = |vitals: &mut VitalSource| vitals.read(umawarden::model::Reading::Value(0));
    read(&mut vitals);
    let counted = allocation_counter::measure(|| {
        for _ in 0..100 {
            read(&mut vitals);
        }
    });
    assert_eq!(counted.count_total, 0);
}
