//! Feeds a recording to the policy.

mod excerpt;

use anyhow::Context;
use serde_json::Value;

use crate::config::mistake::SourceText;
use crate::config::overrides::{RuleOverride, apply_again};
use crate::config::rules::parse_rules;
use crate::model::{AlertChange, EarlierRuns, Moment, Observation};
use crate::policy::guard::GuardRails;
use crate::policy::rule::RuleSet;
use crate::policy::status::Status;
use crate::policy::{Policy, Step};
use crate::recording::{RecordedRules, RecordingEntry, SegmentBegin};

pub use excerpt::{Excerpt, last_step, replay};

/// Gives the entries of a recording to a [`Policy`].
#[derive(Debug)]
pub struct Replayer {
    given: Option<Vec<SourceText>>,
    state: Option<ReplayState>,
    is_cut: bool,
}

#[derive(Debug)]
struct ReplayState {
    policy: Policy,
    begin: SegmentBegin,
    is_whole: bool,
}

/// The result of an entry.
#[derive(Debug, Default)]
pub struct StepOutcome {
    /// The policy's step.
    pub step: Step,
    /// Alerts that ended because their rules were replaced.
    pub ended: Vec<AlertChange>,
    /// Whether the policy was restarted.
    pub is_new: bool,
}

impl Replayer {
    /// With the recorded rules.
    pub fn under_recorded_rules() -> Self {
        Self { given: None, state: None, is_cut: false }
    }

    /// With these rules throughout.
    pub fn under(rules: Vec<SourceText>) -> Self {
        Self { given: Some(rules), state: None, is_cut: false }
    }

    /// Takes the next entry.
    ///
    /// # Errors
    /// If the rules have mistakes, or this build cannot use the recorded ones.
    pub fn take(&mut self, entry: &RecordingEntry) -> anyhow::Result<StepOutcome> {
        let mut stepped = StepOutcome::default();
        match entry {
            RecordingEntry::Begin(begin) => stepped = self.begin(begin)?,
            RecordingEntry::Gap { .. } => self.cut(),
            RecordingEntry::Reload { at, rules, .. } => {
                let set = self.rules(rules)?;
                if let Some(state) = &mut self.state {
                    stepped.ended = state.policy.replace_rules(*at, rules.mode, &set);
                    state.policy.set_assessment_limits(rules.assessment);
                    state.policy.forget_received_after(rules.forget_received_after);
                    state.policy.set_cluster(rules.cluster.clone());
                    state.begin.rules.clone_from(rules);
                }
            }
            RecordingEntry::Step(recorded) => {
                if let Some(state) = &mut self.state {
                    stepped.step = state.policy.step(recorded.at, &recorded.seen);
                }
            }
        }
        Ok(stepped)
    }

    /// Restores acts before `at` that are not in the recording.
    pub fn resume(&mut self, at: Moment, past: &EarlierRuns) {
        if let Some(state) = &mut self.state {
            state.policy.resume(at, past);
        }
    }

    /// The policy, after the first entry.
    pub fn policy(&self) -> Option<&Policy> {
        self.state.as_ref().map(|state| &state.policy)
    }

    /// Writes the policy's status at that time, if it has begun.
    pub fn draw(&mut self, at: Moment, status: &mut Option<Status>) {
        match (&mut self.state, status) {
            (Some(state), Some(status)) => state.policy.draw(at, status),
            (Some(state), status) => *status = Some(state.policy.status(at)),
            (None, _) => {}
        }
    }

    /// Entries are missing before the next one.
    pub fn cut(&mut self) {
        self.is_cut = true;
        if let Some(state) = &mut self.state {
            state.is_whole = false;
        }
    }

    /// Whether the policy has the whole state of the recorded one.
    pub fn is_whole(&self) -> bool {
        self.state.as_ref().is_some_and(|state| state.is_whole)
    }

    /// Whether the first entry was taken.
    pub fn has_begun(&self) -> bool {
        self.state.is_some()
    }

    fn begin(&mut self, begin: &SegmentBegin) -> anyhow::Result<StepOutcome> {
        let is_cut = std::mem::take(&mut self.is_cut);
        if let Some(state) = &mut self.state
            && !begin.is_start
            && state.begin.started == begin.started
            && state.begin.boot_id == begin.boot_id
            && state.begin.at <= begin.at
        {
            let goes_on = begin.goes_on_from == Some(state.begin.segment);
            state.is_whole &= goes_on && !is_cut;
            let known = std::mem::replace(&mut state.begin, begin.clone());
            if known.rules != begin.rules {
                return self.take(&RecordingEntry::Reload {
                    at: begin.at,
                    rules: begin.rules.clone(),
                    ended: Vec::new(),
                });
            }
            return Ok(StepOutcome::default());
        }
        let rules = self.rules(&begin.rules)?;
        let mut policy = Policy::new(begin.at, begin.rules.mode, &rules, begin.next_decision);
        policy.set_assessment_limits(begin.rules.assessment);
        policy.forget_received_after(begin.rules.forget_received_after);
        policy.set_cluster(begin.rules.cluster.clone());
        policy.resume_kernel_log(begin.already_counted.clone());
        policy.resume_events(&begin.last_events);
        policy.resume(begin.started, &begin.past());
        policy.resume_received(begin.at, &begin.received);
        if begin.awaits_past {
            policy.await_past();
        }
        if begin.pause.is_some() {
            policy.step(begin.at, &[Observation::Pause(begin.pause.clone())]);
        }
        self.state = Some(ReplayState { policy, begin: begin.clone(), is_whole: begin.is_start });
        Ok(StepOutcome { is_new: true, ..StepOutcome::default() })
    }

    fn rules(&self, recorded: &RecordedRules) -> anyhow::Result<RuleSet> {
        let interval = recorded.evaluation_interval;
        let mut rules = if let Some(given) = &self.given {
            parse_rules(given, interval).context("the given rules have mistakes")?
        } else {
            let texts: Vec<SourceText> = recorded
                .files
                .iter()
                .map(|file| SourceText::new(file.name.as_str(), file.text.as_str()))
                .collect();
            let mut rules = parse_rules(&texts, interval)
                .context("this build cannot use the recorded rules; give others by --rules")?;
            override_again(&recorded.overrides, &mut rules)?;
            rules
        };
        // Most incidents of `tests/incidents` lack them.
        rules.guard_rails = match &recorded.guard_rails {
            Value::Null => GuardRails::default(),
            written => serde_json::from_value(written.clone())
                .context("this build cannot use the recorded guard rails")?,
        };
        Ok(rules)
    }
}

/// Changes recorded rules as the configuration did. Most incidents of `tests/incidents` have no
/// changes.
pub(crate) fn override_again(recorded: &Value, rules: &mut RuleSet) -> anyhow::Result<()> {
    if !recorded.is_null() {
        let changes: Vec<RuleOverride> = serde_json::from_value(recorded.clone())
            .context("this build cannot use the recorded overrides of rules")?;
        apply_again(&changes, rules);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use jiff::Timestamp;
    use serde_json::json;

    use super::*;
    use crate::model::{
        AssessmentLimits, DecisionId, EngineReadings, FORGET_RECEIVED_AFTER, HolderReadings,
        MemoryState, Mode, Reading, Readings, Schema, SeriesKey, Source,
    };
    use crate::recording::{RecordedStep, StepResult};

    const GIB: f64 = 1024.0 * 1024.0 * 1024.0;

    fn at(seconds: u64) -> Moment {
        Moment { uptime: Duration::from_secs(seconds), utc: Timestamp::UNIX_EPOCH }
    }

    fn rules(assessment: AssessmentLimits) -> RecordedRules {
        RecordedRules {
            mode: Mode::Observe,
            evaluation_interval: Duration::from_secs(1),
            files: Vec::new(),
            guard_rails: json!(null),
            overrides: Value::Null,
            assessment,
            forget_received_after: FORGET_RECEIVED_AFTER,
            cluster: None,
        }
    }

    /// 2 GiB of shared memory without a process.
    fn step(seconds: u64) -> RecordingEntry {
        let (at, memory) = (at(seconds), [120.0, 100.0, 1.0, 2.0]);
        let names = ["total", "free", "unaccounted", "shmem"];
        let key = |name| SeriesKey::new(&format!("uma_memory_{name}_bytes"), &[]);
        let readings = Readings {
            source: Source::Meminfo,
            schema: Arc::new(Schema { series: names.map(key).to_vec() }),
            values: memory.map(|gib| Reading::Value(gib * GIB)).to_vec(),
            took: Duration::ZERO,
            error: None,
        };
        let holders = HolderReadings {
            read_at: at.uptime,
            holders: Vec::new(),
            processes: 100,
            unseen: 0,
            is_driver_loaded: Reading::Value(true),
            hidden: Vec::new(),
            memory: Vec::new(),
            socket_bytes: Reading::Unsupported,
            tasks: Vec::new(),
            error: None,
        };
        let engines = EngineReadings { read_at: at.uptime, ..EngineReadings::default() };
        let seen = vec![
            Observation::Readings(readings),
            Observation::Holders(Box::new(holders)),
            Observation::Engines(Box::new(engines)),
        ];
        RecordingEntry::Step(RecordedStep { at, seen, said: StepResult::default() })
    }

    fn memory_state(replayer: &mut Replayer, seconds: u64) -> MemoryState {
        replayer.take(&step(seconds)).unwrap();
        replayer.state.as_mut().unwrap().policy.status(at(seconds)).assessment.state
    }

    #[test]
    fn memory_is_assessed_by_the_recorded_limits_of_start_and_reload() {
        let narrow = AssessmentLimits { leaked_bytes: 1 << 30, ..AssessmentLimits::default() };
        let begin = |limits| {
            let begin = SegmentBegin::of_process("boot", at(1_000), DecisionId(1), rules(limits));
            RecordingEntry::Begin(Box::new(begin))
        };
        for (limits, expected) in
            [(narrow, MemoryState::HeldShmem), (AssessmentLimits::default(), MemoryState::Clean)]
        {
            let mut replayer = Replayer::under_recorded_rules();
            replayer.take(&begin(limits)).unwrap();
            assert_eq!(memory_state(&mut replayer, 1_002), expected);
            let reload =
                RecordingEntry::Reload { at: at(1_003), rules: rules(narrow), ended: Vec::new() };
            replayer.take(&reload).unwrap();
            assert_eq!(memory_state(&mut replayer, 1_004), MemoryState::HeldShmem);
        }
    }

    #[test]
    fn fields_missing_in_older_recordings_have_their_defaults() {
        let mut written = serde_json::to_value(rules(AssessmentLimits::default())).unwrap();
        let fields = written.as_object_mut().unwrap();
        assert!(fields.remove("assessment").is_some());
        let read: RecordedRules = serde_json::from_value(written).unwrap();
        assert_eq!(read.assessment, AssessmentLimits::default());
    }
}
