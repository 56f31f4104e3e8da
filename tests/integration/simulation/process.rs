//! One life of the program: the policy, its observations since the last step, and its recording.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use umawarden::config::mistake::SourceText;
use umawarden::config::rules::parse_rules_under;
use umawarden::model::{
    AssessmentLimits, ClusterNames, Event, FORGET_RECEIVED_AFTER, Mode, Moment, Observation,
};
use umawarden::policy::guard::GuardRails;
use umawarden::policy::rule::RuleSet;
use umawarden::policy::{Policy, Step};
use umawarden::recording::{RecordedRules, RuleText, SegmentBegin};

use super::checker::Violation;
use super::journal::Kept;
use super::recorded::Recording;

/// How often the kernel-log position is journalled while no event carries it along.
const CURSOR_INTERVAL: Duration = Duration::from_secs(10);

/// Rules in force, as text and as read.
#[derive(Clone)]
pub struct Loaded {
    pub mode: Mode,
    pub rules: RuleSet,
    recorded: RecordedRules,
}

impl Loaded {
    pub fn new(mode: Mode, files: &[(&str, String)], rails: GuardRails) -> Self {
        let evaluation_interval = Duration::from_millis(100);
        let texts: Vec<_> =
            files.iter().map(|(name, text)| SourceText::new(*name, text.as_str())).collect();
        let guard_rails = serde_json::to_value(&rails).unwrap();
        let rules = parse_rules_under(&texts, evaluation_interval, rails)
            .unwrap_or_else(|mistakes| panic!("the simulation's own rules: {mistakes}"));
        let files = files.iter().map(|(name, text)| {
            let (name, text) = ((*name).to_owned(), text.clone());
            RuleText { name, text }
        });
        let files = files.collect();
        let assessment = AssessmentLimits::default();
        let recorded = RecordedRules {
            mode,
            evaluation_interval,
            files,
            guard_rails,
            overrides: serde_json::Value::Null,
            assessment,
            cluster: None,
            forget_received_after: FORGET_RECEIVED_AFTER,
        };
        Self { mode, rules, recorded }
    }

    /// The same in a cluster, and with that time to keep alerts that are not repeated.
    pub fn among(mut self, cluster: Option<&ClusterNames>, forget_after: Duration) -> Self {
        self.recorded.cluster = cluster.cloned();
        self.recorded.forget_received_after = forget_after;
        self
    }

    pub fn cluster(&self) -> Option<&ClusterNames> {
        self.recorded.cluster.as_ref()
    }

    pub fn is_among(&self) -> bool {
        self.recorded.cluster.is_some()
    }

    pub fn forget_after(&self) -> Duration {
        self.recorded.forget_received_after
    }
}

pub struct Process {
    pub policy: Policy,
    pub seen: Vec<Observation>,
    pub loaded: Loaded,
    /// Number of orders before it started.
    pub orders_before: usize,
    /// It has no past from the journal yet.
    pub awaits_past: bool,
    /// The next kernel-log record to read.
    pub next_seq: u64,
    pub resumes: bool,
    /// Records with reported events, also of earlier processes as far as the journal is readable.
    pub reported: BTreeSet<u64>,
    recording: Recording,
    journalled: Option<u64>,
    journal_due: Duration,
}

impl Process {
    /// Starts as the daemon does, with the past in the journal.
    pub fn start(
        kept: &Kept,
        now: Duration,
        boot: &Arc<str>,
        started: Moment,
        loaded: Loaded,
    ) -> Self {
        let next_decision = kept.next_decision(now, started);
        let mut policy = Policy::new(started, loaded.mode, &loaded.rules, next_decision);
        policy.await_past();
        policy.forget_received_after(loaded.forget_after());
        policy.set_cluster(loaded.cluster().cloned());
        let resume = kept.resume_point(boot).filter(|_| kept.is_up(now));
        let known = resume.as_ref().map(|(_, known)| known.clone()).unwrap_or_default();
        policy.resume_kernel_log(known.clone());
        let is_known = resume.is_some();
        let last_events = if is_known { kept.last_events(boot) } else { Default::default() };
        policy.resume_events(&last_events);
        let recording = Recording::new(&SegmentBegin {
            already_counted: known,
            last_events,
            awaits_past: true,
            ..SegmentBegin::of_process(boot, started, next_decision, loaded.recorded.clone())
        });
        Self {
            policy,
            seen: Vec::new(),
            loaded,
            orders_before: kept.orders(),
            awaits_past: true,
            next_seq: resume.as_ref().map_or(0, |(seq, _)| *seq),
            resumes: resume.is_some(),
            reported: if kept.is_up(now) { kept.event_seqs(boot) } else { BTreeSet::new() },
            recording,
            journalled: None,
            journal_due: Duration::ZERO,
        }
    }

    /// Steps the policy with all observations; returns both.
    pub fn step(&mut self, at: Moment) -> (Vec<Observation>, Step) {
        let seen = std::mem::take(&mut self.seen);
        let step = self.policy.step(at, &seen);
        self.recording.step(at, seen.clone(), &step);
        (seen, step)
    }

    pub fn reload(&mut self, at: Moment, loaded: Loaded) -> Vec<umawarden::model::AlertChange> {
        let ended = self.policy.replace_rules(at, loaded.mode, &loaded.rules);
        self.policy.forget_received_after(loaded.forget_after());
        self.recording.reload(at, loaded.recorded.clone(), &ended);
        self.loaded = loaded;
        ended
    }

    /// The position in the kernel log, when it is to be journalled now.
    pub fn cursor(&mut self, now: Duration, events: &[Event], at_once: bool) -> Option<u64> {
        let pending = self.policy.kernel_log_pending_since();
        let resume_seq = pending.unwrap_or(self.next_seq).min(self.next_seq);
        let moved = self.journalled != Some(resume_seq);
        if events.is_empty() && !(moved && (at_once || now >= self.journal_due)) {
            return None;
        }
        self.journalled = Some(resume_seq);
        self.journal_due = now + CURSOR_INTERVAL;
        Some(resume_seq)
    }

    /// Another policy gets the same input.
    pub fn replay(self) -> Result<(), Violation> {
        self.recording.replay()
    }
}
