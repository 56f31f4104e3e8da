//! Decisions of two sides, step by step.

use crate::model::{DecisionRecord, counted};

/// One of the two sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ComparisonSide {
    /// Recorded, or decided by the recorded rules.
    Before,
    /// Decided now.
    Now,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ComparedWith {
    Nothing,
    /// With the recording: equal to the last value.
    Recorded,
    /// Two sets of rules: numbers and values may differ, actions may not.
    Rules,
}

/// The comparison so far.
#[derive(Debug)]
pub(super) struct ReplayComparison {
    what: ComparedWith,
    steps: u64,
    same: u64,
    differences: u64,
    left_out: u64,
    /// The source is a log without decisions and rules.
    of_log: bool,
}

impl ReplayComparison {
    pub(super) fn with_recorded() -> Self {
        Self::of(ComparedWith::Recorded)
    }

    pub(super) fn of_rules() -> Self {
        Self::of(ComparedWith::Rules)
    }

    pub(super) fn none() -> Self {
        Self::of(ComparedWith::Nothing)
    }

    fn of(what: ComparedWith) -> Self {
        Self { what, steps: 0, same: 0, differences: 0, left_out: 0, of_log: false }
    }

    /// The source is a log.
    pub(super) fn set_log(&mut self) {
        self.of_log = true;
        if self.what == ComparedWith::Recorded {
            self.what = ComparedWith::Nothing;
        }
    }

    /// Compares one step. Returns decisions of one side alone.
    pub(super) fn step<'d>(
        &mut self,
        before: &'d [DecisionRecord],
        now: &'d [DecisionRecord],
    ) -> Vec<(ComparisonSide, &'d DecisionRecord)> {
        if self.what == ComparedWith::Nothing {
            return Vec::new();
        }
        self.steps += 1;
        let mut left: Vec<&DecisionRecord> = now.iter().collect();
        let mut differences = Vec::new();
        for decision in before {
            match left.iter().position(|other| self.are_same(decision, other)) {
                Some(position) => {
                    left.remove(position);
                    self.same += 1;
                }
                None => differences.push((ComparisonSide::Before, decision)),
            }
        }
        differences.extend(left.into_iter().map(|decision| (ComparisonSide::Now, decision)));
        // A changed decision is on both sides, and counts once.
        let before = differences.iter().filter(|(side, _)| *side == ComparisonSide::Before).count();
        self.differences += before.max(differences.len() - before) as u64;
        differences
    }

    /// Recorded decisions without a counterpart to compare.
    pub(super) fn leave_out(&mut self, decisions: usize) {
        if self.what == ComparedWith::Recorded {
            self.left_out += decisions as u64;
        }
    }

    pub(super) fn differences(&self) -> u64 {
        self.differences
    }

    pub(super) fn has_compared(&self) -> bool {
        self.steps > 0
    }

    /// The name of a side for people.
    pub(super) fn name(&self, side: ComparisonSide) -> &'static str {
        match (self.what, side) {
            (ComparedWith::Rules, ComparisonSide::Before) if self.of_log => "shipped rules",
            (ComparedWith::Rules, ComparisonSide::Before) => "recorded rules",
            (ComparedWith::Rules, ComparisonSide::Now) => "given rules",
            (_, ComparisonSide::Before) => "recorded",
            (_, ComparisonSide::Now) => "replayed",
        }
    }

    /// The result in words.
    pub(super) fn result(&self) -> String {
        let differences = self.differences;
        let mut text = match self.what {
            ComparedWith::Nothing if self.of_log => {
                return "A log holds no decisions to compare with, and nothing of what memory did: \
                        rules that ask for that are unknown."
                    .to_owned();
            }
            ComparedWith::Nothing => {
                return "Not compared: other rules than the recorded ones.".to_owned();
            }
            _ if self.steps == 0 && self.left_out == 0 => {
                return "Not compared: no step of it is whole.".to_owned();
            }
            _ if self.steps == 0 => {
                return "Not compared with the recorded decisions: the process started before."
                    .to_owned();
            }
            ComparedWith::Recorded if differences == 0 => match self.same {
                0 => "No decision was recorded, and none came.".to_owned(),
                1 => "The one recorded decision came again exactly.".to_owned(),
                same => format!("All {same} recorded decisions came again exactly."),
            },
            ComparedWith::Recorded => {
                format!("{}.", differ(differences, " from what was recorded"))
            }
            ComparedWith::Rules if differences == 0 => {
                format!("Both rules decide the same: {}.", counted(self.same, "decision"))
            }
            ComparedWith::Rules => format!("{}; the same: {}.", differ(differences, ""), self.same),
        };
        if self.left_out > 0 {
            let left_out = counted(self.left_out, "recorded decision");
            text += &format!(" Not compared: {left_out}, as it is not known what came before.");
        }
        text
    }

    fn are_same(&self, left: &DecisionRecord, right: &DecisionRecord) -> bool {
        let acts_the_same = left.at == right.at
            && left.rule == right.rule
            && left.mode == right.mode
            && left.decision == right.decision
            && left.step == right.step
            && left.action == right.action;
        // As JSON, since a NaN does not equal itself.
        let json = |decision: &DecisionRecord| serde_json::to_string(&decision.because).ok();
        let same_reasons = || left.id == right.id && json(left) == json(right);
        acts_the_same && (self.what == ComparedWith::Rules || same_reasons())
    }
}

fn differ(decisions: u64, from: &str) -> String {
    let verb = if decisions == 1 { "differs" } else { "differ" };
    format!("{} {verb}{from}", counted(decisions, "decision"))
}
