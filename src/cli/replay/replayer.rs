//! The policy, told again what it was told.

use anyhow::Context;

use crate::config::mistake::SourceText;
use crate::config::rules::parse_rules;
use crate::model::{AlertChange, Moment, Observation, Past};
use crate::policy::guard::GuardRails;
use crate::policy::rule::RuleSet;
use crate::policy::{Policy, Step};
use crate::recording::{Begin, Entry, RecordedRules};

/// Gives the entries of a recording to a [`Policy`].
#[derive(Debug)]
pub struct Replayer {
    given: Option<Vec<SourceText>>,
    state: Option<State>,
    is_cut: bool,
}

#[derive(Debug)]
struct State {
    policy: Policy,
    begin: Begin,
    is_whole: bool,
}

/// What an entry brought.
#[derive(Debug, Default)]
pub struct Stepped {
    /// What the policy said to a step.
    pub step: Step,
    /// Alerts that ended with rules that were replaced.
    pub ended: Vec<AlertChange>,
    /// Whether the policy was begun anew.
    pub is_new: bool,
}

impl Replayer {
    /// Under the rules that were in force.
    pub fn under_recorded_rules() -> Self {
        Self { given: None, state: None, is_cut: false }
    }

    /// Under these rules throughout.
    pub fn under(rules: Vec<SourceText>) -> Self {
        Self { given: Some(rules), state: None, is_cut: false }
    }

    /// Takes the next entry.
    ///
    /// # Errors
    /// If the rules have mistakes, or this build cannot use the recorded ones.
    pub fn take(&mut self, entry: &Entry) -> anyhow::Result<Stepped> {
        let mut stepped = Stepped::default();
        match entry {
            Entry::Begin(begin) => stepped = self.begin(begin)?,
            Entry::Gap { .. } => self.cut(),
            Entry::Reload { at, rules, .. } => {
                let set = self.rules(rules)?;
                if let Some(state) = &mut self.state {
                    stepped.ended = state.policy.replace_rules(*at, rules.mode, &set);
                    state.begin.rules.clone_from(rules);
                }
            }
            Entry::Step(recorded) => {
                if let Some(state) = &mut self.state {
                    stepped.step = state.policy.step(recorded.at, &recorded.seen);
                }
            }
        }
        Ok(stepped)
    }

    /// Tells what was done before `at` and is not in the recording.
    pub fn resume(&mut self, at: Moment, past: &Past) {
        if let Some(state) = &mut self.state {
            state.policy.resume(at, past);
        }
    }

    /// The policy, once there was anything to begin with.
    pub fn policy(&self) -> Option<&Policy> {
        self.state.as_ref().map(|state| &state.policy)
    }

    /// Something is missing before the next entry.
    pub fn cut(&mut self) {
        self.is_cut = true;
        if let Some(state) = &mut self.state {
            state.is_whole = false;
        }
    }

    /// Whether the policy knows all that the recorded one knew.
    pub fn is_whole(&self) -> bool {
        self.state.as_ref().is_some_and(|state| state.is_whole)
    }

    /// Whether there was anything to begin with.
    pub fn has_begun(&self) -> bool {
        self.state.is_some()
    }

    fn begin(&mut self, begin: &Begin) -> anyhow::Result<Stepped> {
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
                return self.take(&Entry::Reload {
                    at: begin.at,
                    rules: begin.rules.clone(),
                    ended: Vec::new(),
                });
            }
            return Ok(Stepped::default());
        }
        let rules = self.rules(&begin.rules)?;
        let mut policy = Policy::new(begin.at, begin.rules.mode, &rules, begin.next_decision);
        policy.resume_kernel_log(begin.already_counted.clone());
        policy.resume_events(&begin.last_events);
        policy.resume(begin.started, &begin.past());
        if begin.awaits_past {
            policy.await_past();
        }
        if begin.pause.is_some() {
            policy.step(begin.at, &[Observation::Pause(begin.pause.clone())]);
        }
        self.state = Some(State { policy, begin: begin.clone(), is_whole: begin.is_start });
        Ok(Stepped { is_new: true, ..Stepped::default() })
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
            parse_rules(&texts, interval)
                .context("this build cannot use the recorded rules; give others by --rules")?
        };
        // Recordings of before there were any say nothing of them.
        rules.guard_rails = match &recorded.guard_rails {
            serde_json::Value::Null => GuardRails::default(),
            written => serde_json::from_value(written.clone())
                .context("this build cannot use the recorded guard rails")?,
        };
        Ok(rules)
    }
}
