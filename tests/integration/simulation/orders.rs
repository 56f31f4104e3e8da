//! Orders of people, with and without sense.

use jiff::{SignedDuration, Timestamp};
use umawarden::model::{
    DecisionId, DecisionRecord, HoldReason, Moment, OperatorCommand, OperatorOrder, Pause, RuleId,
    RuleSelector,
};

use super::chance::Chance;

/// People, and their knowledge of the program's questions.
#[derive(Default)]
pub struct People {
    requests: Vec<DecisionId>,
    silences: u64,
    pub pause: Option<Pause>,
}

impl People {
    /// They read the decisions of the program.
    pub fn read(&mut self, decision: &DecisionRecord) {
        let reason = decision.hold_reason();
        if matches!(reason, Some(HoldReason::Approval | HoldReason::Announced)) {
            self.requests.push(decision.id);
        }
    }

    pub fn order(
        &mut self,
        chance: &mut Chance,
        at: Moment,
        beat: std::time::Duration,
        ids: &[RuleId],
    ) -> OperatorCommand {
        let until = later(at.utc, chance.until(beat * 40));
        let order = match chance.whole(0..=9) {
            0 | 1 => {
                self.silences += 1;
                let rules = select(chance, ids);
                OperatorOrder::Silence { id: self.silences, rules, until }
            }
            2 => OperatorOrder::EndSilence { id: chance.whole(0..=self.silences) },
            3 | 4 => OperatorOrder::ResetBreaker { rules: select(chance, ids) },
            5 => OperatorOrder::Deny { decision: self.some_question(chance), until },
            _ => OperatorOrder::Approve { decision: self.some_question(chance), until },
        };
        let author = "simulated".to_owned();
        OperatorCommand { at, author, comment: String::new(), order, refused: None }
    }

    /// Mostly the last question, sometimes an older one, sometimes none.
    fn some_question(&self, chance: &mut Chance) -> DecisionId {
        match self.requests.last() {
            Some(last) if !chance.once_in(4) => *last,
            Some(_) if !chance.once_in(3) => *chance.one_of(&self.requests),
            _ => DecisionId(chance.whole(0..=500)),
        }
    }

    /// The global pause is switched.
    pub fn switch(&mut self, at: Moment) -> Option<Pause> {
        self.pause = match self.pause.take() {
            Some(_) => None,
            None => Some(Pause {
                author: "simulated".to_owned(),
                comment: String::new(),
                since: Some(at.utc),
            }),
        };
        self.pause.clone()
    }
}

fn later(utc: Timestamp, time: std::time::Duration) -> Timestamp {
    utc + SignedDuration::try_from(time).unwrap()
}

fn select(chance: &mut Chance, ids: &[RuleId]) -> RuleSelector {
    match (ids.is_empty(), chance.whole(0..=3)) {
        (true, _) | (_, 0) => RuleSelector::All,
        (_, 1) => RuleSelector::Alert(chance.one_of(ids).alert.clone()),
        _ => RuleSelector::Rule(chance.one_of(ids).clone()),
    }
}
