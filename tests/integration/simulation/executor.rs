//! Who does what was decided, badly: slowly, in vain, for ever, or without saying so.

use std::time::Duration;

use umawarden::model::{Action, Decision, Mode, Moment, Outcome, OutcomeResult};

use super::chance::Chance;

/// After this the real executor gives an action up.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(30);

pub struct Executor {
    due: Vec<Due>,
    hangs_until: Duration,
    chance: Chance,
}

struct Due {
    at: Duration,
    decision: Decision,
    result: OutcomeResult,
    took: Duration,
}

/// What has ended: the report, and the action if it has touched the machine.
pub struct Ended {
    pub outcome: Outcome,
    pub done: Option<Action>,
}

impl Executor {
    pub fn new(chance: Chance) -> Self {
        Self { due: Vec::new(), hangs_until: Duration::ZERO, chance }
    }

    /// Takes a decision to act on; what ends at once is told at once.
    pub fn submit(
        &mut self,
        now: Duration,
        decision: Decision,
        intent_is_kept: bool,
    ) -> Option<OutcomeResult> {
        let millis = Duration::from_millis;
        let (after, result) = if decision.mode == Mode::Observe {
            (millis(self.chance.whole(0..=20)), OutcomeResult::Skipped)
        } else if matches!(decision.action, Action::Notify { .. }) {
            return Some(OutcomeResult::Done);
        } else if self.hangs_until > now {
            let text = "an earlier action still hangs".to_owned();
            return Some(OutcomeResult::NotDone(text));
        } else if !intent_is_kept {
            let text = "intent could not be written: simulated".to_owned();
            (millis(5_000), OutcomeResult::NotDone(text))
        } else {
            match self.chance.whole(0..=19) {
                0..=12 => (millis(self.chance.whole(1..=3_000)), OutcomeResult::Done),
                13 => (millis(self.chance.whole(10_000..=29_000)), OutcomeResult::Done),
                14..=16 => {
                    let took = millis(self.chance.whole(0..=500));
                    (took, OutcomeResult::Failed("simulated".to_owned()))
                }
                17 | 18 => {
                    let hangs = self.chance.span(Duration::ZERO, millis(1_800_000));
                    self.hangs_until = now + GIVEN_UP_AFTER + hangs;
                    (GIVEN_UP_AFTER, OutcomeResult::TimedOut)
                }
                // Nobody ever hears of it.
                _ => return None,
            }
        };
        self.due.push(Due { at: now + after, decision, result, took: after });
        None
    }

    /// When the next outcome comes.
    pub fn next(&self) -> Option<Duration> {
        self.due.iter().map(|due| due.at).min()
    }

    /// What has ended by now, in the order in which it was submitted.
    pub fn ended(&mut self, now: Duration, moment: Moment) -> Vec<Ended> {
        let (ended, waiting) = self.due.drain(..).partition(|due| due.at <= now);
        self.due = waiting;
        let told = |due: Due| {
            let touched = due.decision.mode == Mode::Enforce
                && matches!(due.result, OutcomeResult::Done | OutcomeResult::TimedOut);
            Ended {
                done: touched.then(|| due.decision.action.clone()),
                outcome: Outcome {
                    decision: due.decision.id,
                    action: due.decision.action.name().to_owned(),
                    result: due.result,
                    ended: moment,
                    took: due.took,
                },
            }
        };
        Vec::into_iter(ended).map(told).collect()
    }

    /// The process is gone, and what it did with it.
    pub fn die(&mut self) {
        self.due.clear();
        self.hangs_until = Duration::ZERO;
    }

    /// Everything stood still for so long.
    pub fn sleep(&mut self, time: Duration) {
        for due in &mut self.due {
            due.at += time;
        }
        self.hangs_until += time;
    }
}
