//! Watching needs no new memory once it is warm: where none is to be had, it goes on. A program of
//! its own, since counting takes an allocator of its own.
#![expect(clippy::unwrap_used, reason = "a test ends where anything fails")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use umawarden::config::mistake::SourceText;
use umawarden::config::rules::parse_rules;
use umawarden::config::shipped::shipped_rules;
use umawarden::model::{DecisionId, Mode, Moment, Observation};
use umawarden::policy::pace::{CALM, Pace};
use umawarden::policy::status::Status;
use umawarden::policy::{Policy, Step};
use umawarden::sources::memory::{MemorySource, VitalSource};

/// Longer than the range over which a shipped rule looks back at what is measured here: five minutes.
const WARM: u32 = 2_000;
const MEASURED: u32 = 1_000;

/// In a turn in which three rules are judged about a verdict that is not known here, since nobody
/// looks through the processes: what is unknown is told with its reason.
const OF_UNKNOWN_VERDICT: f64 = 3.0;

/// The loop of the daemon in calm, on a clock of its own.
struct Watching {
    memory: MemorySource,
    policy: Policy,
    pace: Pace,
    pictures: [Arc<Status>; 2],
    seen: Vec<Observation>,
    at: Moment,
}

impl Watching {
    /// `root` holds `proc` and `sys`.
    fn with(rules: &[SourceText], root: &Path) -> Self {
        let at = Moment {
            uptime: Duration::from_secs(1000),
            utc: "2026-01-01T00:00:00Z".parse().unwrap(),
        };
        let rules = parse_rules(rules, Duration::from_millis(100)).unwrap();
        let mut policy = Policy::new(at, Mode::Observe, &rules, DecisionId(1));
        Self {
            memory: MemorySource::open(&root.join("proc"), &root.join("sys")),
            pace: Pace::new(at.uptime),
            pictures: [Arc::new(policy.status(at)), Arc::new(policy.status(at))],
            policy,
            seen: Vec::new(),
            at,
        }
    }

    fn turn(&mut self) -> Step {
        self.at.uptime += CALM;
        self.at.utc += CALM;
        let now = self.at.uptime;
        self.memory.read(&|| now, &mut self.seen);
        let step = self.policy.step(self.at, &self.seen);
        self.pace.measured(now, self.policy.memory());
        self.pace.interval(now, self.policy.needs_samples_every());
        self.policy.draw(self.at, Arc::get_mut(&mut self.pictures[0]).unwrap());
        self.pictures.swap(0, 1);
        self.memory.recycle(&mut self.seen);
        step
    }

    /// How often memory was allocated in a turn, on average.
    fn allocations(&mut self) -> f64 {
        for _ in 0..WARM {
            self.turn();
        }
        let counted = allocation_counter::measure(|| {
            for _ in 0..MEASURED {
                self.turn();
            }
        });
        counted.count_total as f64 / f64::from(MEASURED)
    }
}

#[test]
fn sampling_and_drawing_the_picture_allocate_nothing() {
    assert_eq!(Watching::with(&[], Path::new("/")).allocations(), 0.0);
}

/// As a release does it, which compares no proof that a rule is quiet with its evaluation.
#[test]
fn judging_the_shipped_rules_allocates_nothing_where_nothing_happens() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/proc/gb10-4k");
    promql_rules::trust_proofs();
    // What is no procfs takes more to be read.
    let without = Watching::with(&[], &root).allocations();
    for file in shipped_rules() {
        let of_verdict = if &*file.name == "shipped:leak.yaml" { OF_UNKNOWN_VERDICT } else { 0.0 };
        let name = Arc::clone(&file.name);
        assert_eq!(Watching::with(&[file], &root).allocations() - without, of_verdict, "{name}");
    }
    let all = Watching::with(&shipped_rules(), &root).allocations() - without;
    assert_eq!(all, OF_UNKNOWN_VERDICT);
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
