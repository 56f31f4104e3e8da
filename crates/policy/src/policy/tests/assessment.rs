//! Memory without an apparent owner, over time, through the whole policy and the shipped rules.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use proptest::prelude::*;

use crate::config::mistake::SourceText;
use crate::config::rules::parse_rules;
use crate::model::{
    DecisionId, EarlierRuns, EngineReadings, Event, EventKind, GpuDriver, GpuLossSign, GpuPicture,
    GpuReadings, Holder, HolderReadings, KernelEvent, KernelRecord, MemoryState, Mode, Moment,
    Observation, ObservedTask, Outcome, OutcomeResult, ProcessId, ProgramEvent, Reading, Readings,
    SYSLOG_SEQ_BASE, Schema, SeriesKey, Source,
};
use crate::policy::Policy;

const GIB: u64 = 1 << 30;
const TICK: Duration = Duration::from_millis(250);

/// A node of 120 GiB, with the driver loaded and asked.
struct AssessmentWorld {
    policy: Policy,
    now: Duration,
    schema: Arc<Schema>,
    unaccounted: u64,
    /// What comes back when caches are dropped.
    pools: u64,
    holders: Vec<Holder>,
    tasks: Vec<ObservedTask>,
    records: Vec<KernelRecord>,
    driver: GpuDriver,
    scans: bool,
    acts: bool,
    outcomes: Vec<Outcome>,
    events: Vec<Event>,
    changes: Vec<(u64, MemoryState)>,
    decided: Vec<(u64, &'static str)>,
}

impl AssessmentWorld {
    fn new() -> Self {
        let key = |name| SeriesKey::new(name, &[]);
        let series = vec![
            key("uma_memory_total_bytes"),
            key("uma_memory_free_bytes"),
            key("uma_memory_unaccounted_bytes"),
            key("uma_memory_shmem_bytes"),
        ];
        let text = include_str!("../../../../../rules/leak.yaml");
        let rules = parse_rules(&[SourceText::new("leak.yaml", text)], TICK).unwrap();
        let start = Moment { uptime: Duration::from_secs(1_000), utc: Timestamp::UNIX_EPOCH };
        let mut policy = Policy::new(start, Mode::Enforce, &rules, DecisionId(1));
        policy.resume(start, &EarlierRuns::default());
        let mut node = Self {
            policy,
            now: Duration::ZERO,
            schema: Arc::new(Schema { series }),
            unaccounted: GIB,
            pools: 0,
            holders: Vec::new(),
            tasks: Vec::new(),
            records: Vec::new(),
            driver: GpuDriver::Responsive,
            scans: true,
            acts: true,
            outcomes: Vec::new(),
            events: Vec::new(),
            changes: Vec::new(),
            decided: Vec::new(),
        };
        node.wait(30);
        assert_eq!(node.state(), MemoryState::Clean);
        node.changes.clear();
        node
    }

    fn at(&self) -> Moment {
        Moment {
            uptime: Duration::from_secs(1_000) + self.now,
            utc: Timestamp::UNIX_EPOCH + self.now,
        }
    }

    fn wait(&mut self, seconds: u64) {
        let until = self.now + Duration::from_secs(seconds);
        while self.now < until {
            self.now += TICK;
            self.step();
        }
    }

    fn seen(&mut self) -> Vec<Observation> {
        let at = self.at();
        let values = [120 * GIB, 118 * GIB - self.unaccounted, self.unaccounted, 0];
        #[expect(clippy::cast_precision_loss, reason = "a series' value is an f64 everywhere")]
        let values = values.iter().map(|value| Reading::Value(*value as f64)).collect();
        let mut seen = vec![Observation::Readings(Readings {
            source: Source::Meminfo,
            schema: Arc::clone(&self.schema),
            values,
            took: Duration::ZERO,
            error: None,
        })];
        seen.extend(self.outcomes.drain(..).map(Observation::Outcome));
        seen.extend(self.events.drain(..).map(Observation::Event));
        seen.extend(self.records.drain(..).map(Observation::KernelRecord));
        if self.now.subsec_millis() == 0 && self.scans {
            let engines = EngineReadings {
                read_at: at.uptime,
                engines: Vec::new(),
                ..EngineReadings::default()
            };
            seen.push(Observation::Engines(Box::new(engines)));
            seen.push(Observation::Holders(Box::new(HolderReadings {
                read_at: at.uptime,
                holders: self.holders.clone(),
                processes: 100,
                unseen: 0,
                is_driver_loaded: Reading::Value(true),
                hidden: Vec::new(),
                memory: Vec::new(),
                socket_bytes: Reading::Unsupported,
                tasks: self.tasks.clone(),
                error: None,
            })));
            let is_answer = self.driver == GpuDriver::Responsive;
            seen.push(Observation::Gpu(Box::new(GpuReadings {
                read_at: at.uptime,
                driver: self.driver.clone(),
                answered_at: None,
                askers: Vec::new(),
                picture: is_answer.then(Arc::<GpuPicture>::default),
            })));
        }
        seen
    }

    fn step(&mut self) {
        let seen = self.seen();
        let (at, second) = (self.at(), self.now.as_secs());
        let step = self.policy.step(at, &seen);
        for event in step.events {
            if let EventKind::Program(ProgramEvent::MemoryAssessed { state, .. }) = event.kind {
                self.changes.push((second, state));
            }
        }
        for decision in step.decisions {
            if !decision.is_act() {
                continue;
            }
            let action = decision.action.name();
            self.decided.push((second, action));
            if action == "drop_caches" {
                self.unaccounted -= self.pools;
                self.pools = 0;
            }
            let result = match self.acts {
                true => OutcomeResult::Done,
                false => OutcomeResult::Failed("read-only file system".to_owned()),
            };
            self.outcomes.push(Outcome {
                decision: decision.id,
                action: action.to_owned(),
                result,
                ended: at,
                took: Duration::ZERO,
                effect: None,
            });
        }
    }

    fn state(&mut self) -> MemoryState {
        self.policy.status(self.at()).assessment.state
    }

    fn take_changes(&mut self) -> Vec<(u64, MemoryState)> {
        std::mem::take(&mut self.changes)
    }
}

#[test]
fn a_leak_is_reported_five_minutes_after_all_attempts() {
    let mut node = AssessmentWorld::new();
    node.unaccounted = 61 * GIB;
    node.wait(600);
    let changes = node.take_changes();
    let [(reclaimable, first), (tried, second), (leaked, third)] = changes[..] else {
        panic!("{changes:?}");
    };
    assert_eq!(
        [first, second, third],
        [MemoryState::Reclaimable, MemoryState::Unknown, MemoryState::Leaked]
    );
    assert!((30..=31).contains(&reclaimable), "{changes:?}");
    let [(dropped, "drop_caches"), (compacted, "compact_memory"), (notified, "notify")] =
        node.decided[..]
    else {
        panic!("{:?}", node.decided);
    };
    assert!((41..=43).contains(&dropped) && dropped <= compacted, "{:?}", node.decided);
    assert!(tried <= compacted + 2, "{changes:?} {:?}", node.decided);
    assert!((dropped + 300..=dropped + 303).contains(&leaked), "{changes:?} {:?}", node.decided);
    assert!(notified >= leaked);
}

#[test]
fn pooled_driver_memory_is_reclaimed_and_no_leak() {
    let mut node = AssessmentWorld::new();
    (node.unaccounted, node.pools) = (61 * GIB, 60 * GIB);
    node.wait(900);
    let states: Vec<MemoryState> = node.take_changes().iter().map(|(_, state)| *state).collect();
    assert_eq!(states[0], MemoryState::Reclaimable);
    assert_eq!(states.last(), Some(&MemoryState::Clean));
    assert!(!states.contains(&MemoryState::Leaked), "{states:?}");
}

#[test]
fn without_attempts_nothing_counts_as_leaked() {
    let mut node = AssessmentWorld::new();
    node.acts = false;
    node.unaccounted = 61 * GIB;
    node.wait(3_600);
    assert_eq!(node.state(), MemoryState::Reclaimable);
}

#[test]
fn a_new_process_or_a_change_restarts_the_time() {
    let mut node = AssessmentWorld::new();
    node.unaccounted = 61 * GIB;
    node.wait(200);
    node.holders = vec![Holder::of_driver(9, 'S')];
    node.wait(10);
    assert_eq!(node.state(), MemoryState::InUse);
    node.holders.clear();
    node.wait(200);
    assert_eq!(node.state(), MemoryState::Reclaimable, "what was tried was before that");
    let mut node = AssessmentWorld::new();
    node.unaccounted = 61 * GIB;
    for _ in 0..10 {
        node.wait(100);
        node.unaccounted -= GIB / 8;
        assert_ne!(node.state(), MemoryState::Leaked);
    }
    // After the last move all must be tried again, which the rule does at most every ten minutes.
    node.wait(290);
    assert_ne!(node.state(), MemoryState::Leaked);
    node.wait(640);
    assert_eq!(node.state(), MemoryState::Leaked);
}

#[test]
fn falling_memory_lingers_with_an_estimated_time() {
    let mut node = AssessmentWorld::new();
    node.unaccounted = 81 * GIB;
    node.wait(5);
    let mut estimates = Vec::new();
    for second in 0..80_u64 {
        for _ in 0..4 {
            node.unaccounted -= GIB / 4;
            node.now += TICK;
            node.step();
        }
        let status = node.policy.status(node.at());
        if let Some(estimate) = status.assessment.estimated_seconds {
            estimates.push((79 - second, estimate));
        }
    }
    assert!(estimates.len() > 70, "{estimates:?}");
    // A pace is taken over two seconds.
    for (left, estimate) in estimates.into_iter().filter(|(left, _)| (2..=76).contains(left)) {
        let ratio = estimate / left as f64;
        assert!((0.5..=2.0).contains(&ratio), "{estimate} for {left}");
    }
    node.wait(10);
    assert_eq!(node.state(), MemoryState::Clean);
}

/// The state after a hung task of the driver was named while the driver is silent, where `/proc`
/// shows the task so from then on.
fn after_hung(tasks: &[ObservedTask], seq: u64) -> (AssessmentWorld, MemoryState) {
    let mut node = AssessmentWorld::new();
    node.driver = GpuDriver::Silent { since: node.at().uptime, process_state: Some('D') };
    node.wait(70);
    let text = "INFO: task nvidia-modeset:77 blocked for more than 120 seconds.";
    node.records.push(KernelRecord {
        seq,
        facility: 0,
        level: 3,
        usec: 1,
        caller: None,
        utc: node.at().utc,
        text: text.to_owned(),
        dictionary: String::new(),
    });
    for task in tasks {
        node.tasks = vec![task.clone()];
        node.wait(1);
    }
    let state = node.state();
    (node, state)
}

fn task(start_ticks: u64, state: char, is_kernel: bool) -> ObservedTask {
    ObservedTask { id: ProcessId { pid: 77, start_ticks }, state, is_kernel }
}

#[test]
fn a_hung_task_is_a_sign_only_where_proc_shows_it_too() {
    let waits = task(5, 'D', true);
    let (mut node, state) = after_hung(&vec![waits; 20], 1);
    assert_eq!(state, MemoryState::Wedged);
    node.tasks = vec![task(5, 'S', true)];
    node.wait(2);
    assert_ne!(node.state(), MemoryState::Wedged, "it goes on");
    for (tasks, why) in [
        (vec![task(5, 'S', true); 20], "it does not wait"),
        (vec![task(5, 'D', false); 20], "any user may choose that name"),
        ((0..20).map(|start| task(start, 'D', true)).collect(), "never the same twice"),
    ] {
        assert_ne!(after_hung(&tasks, 1).1, MemoryState::Wedged, "{why}");
    }
}

#[test]
fn a_hung_task_only_in_syslog_is_no_sign_and_counted_apart() {
    let waits = task(5, 'D', true);
    let (mut node, state) = after_hung(&vec![waits; 20], SYSLOG_SEQ_BASE + 1);
    assert_ne!(state, MemoryState::Wedged);
    node.wait(1);
    let status = node.policy.status(node.at());
    let value = |name| {
        let key = SeriesKey::new(name, &[("event", "hung_task")]);
        let place = status.series.iter().position(|series| *series == key).unwrap();
        status.values[place]
    };
    assert_eq!(value("uma_kernel_claimed_events_total"), Reading::Value(1.0));
    assert_eq!(value("uma_kernel_events_total"), Reading::Failed);
    assert_eq!(value("uma_kernel_event_last_timestamp_seconds"), Reading::Failed);
}

#[test]
fn a_wedged_driver_needs_two_signs() {
    let mut node = AssessmentWorld::new();
    node.holders = vec![Holder::of_driver(9, 'D')];
    node.wait(300);
    assert_eq!(node.state(), MemoryState::InUse, "one sign is none");
    // The kernel says of the same process what was seen already.
    let hung = KernelEvent::HungTask {
        pid: 9,
        comm: "python3".to_owned(),
        seconds: 120,
        owner_pid: None,
        owner_comm: None,
    };
    let utc = Some(node.at().utc);
    node.events.push(Event { kind: hung.into(), utc, seq: Some(1) });
    node.wait(10);
    assert_eq!(node.state(), MemoryState::InUse, "that is the same sign");
    node.driver = GpuDriver::Silent { since: node.at().uptime, process_state: Some('D') };
    node.wait(58);
    assert_eq!(node.state(), MemoryState::InUse);
    node.wait(4);
    assert_eq!(node.state(), MemoryState::Wedged);
    let reasons = node.policy.status(node.at()).assessment.reasons();
    assert!(reasons[0].contains("has not answered for"), "{reasons:?}");
    assert!(reasons[1].contains("python3 (pid 9) has waited in the kernel"), "{reasons:?}");
    node.driver = GpuDriver::Responsive;
    node.wait(3);
    assert_eq!(node.state(), MemoryState::InUse);
}

#[test]
fn a_gpu_that_is_lost_without_an_xid_is_a_sign() {
    let after = |sign| {
        let mut node = AssessmentWorld::new();
        node.holders = vec![Holder::of_driver(9, 'D')];
        node.wait(300);
        let lost = KernelEvent::GpuLost { pci: None, gpu: None, sign };
        let utc = Some(node.at().utc);
        node.events.push(Event { kind: lost.into(), utc, seq: Some(1) });
        node.wait(10);
        node.state()
    };
    assert_eq!(after(GpuLossSign::OffBus), MemoryState::Wedged);
    assert_eq!(after(GpuLossSign::GspTimeout), MemoryState::Wedged);
    assert_eq!(after(GpuLossSign::ResetRequired), MemoryState::InUse);
}

#[test]
fn without_samples_the_assessment_is_unknown() {
    let mut node = AssessmentWorld::new();
    node.unaccounted = 61 * GIB;
    node.wait(200);
    node.scans = false;
    node.wait(600);
    assert_eq!(node.state(), MemoryState::Unknown);
    assert!(node.take_changes().iter().all(|(_, state)| *state != MemoryState::Leaked));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// Whatever comes and goes: a leak is reported only after five minutes without a change.
    #[test]
    fn a_leak_is_never_reported_early(
        changes in prop::collection::vec((1_u64..400, 0_u8..5), 1..12),
    ) {
        let mut node = AssessmentWorld::new();
        node.unaccounted = 61 * GIB;
        let mut undisturbed_since = node.now.as_secs();
        for (seconds, change) in changes {
            node.wait(seconds);
            for (second, state) in node.take_changes() {
                let is_early = second < undisturbed_since + 300;
                prop_assert!(state != MemoryState::Leaked || !is_early);
            }
            let before = (node.holders.clone(), node.unaccounted, node.driver.clone());
            match change {
                0 => node.holders = vec![Holder::of_driver(9, 'S')],
                1 => node.holders.clear(),
                2 => node.unaccounted -= GIB / 4,
                3 => node.driver = GpuDriver::Unknown { why: "it was started again".into() },
                _ => node.driver = GpuDriver::Responsive,
            }
            if before != (node.holders.clone(), node.unaccounted, node.driver.clone()) {
                undisturbed_since = node.now.as_secs();
            }
        }
    }
}
