//! A bad executor: slow, failing, hanging, or silent.

use std::time::Duration;

use umawarden::model::{Action, DecisionRecord, Mode, OutcomeResult};

use super::chance::Chance;

/// The real executor gives an action up after this time.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(30);

pub struct Executor {
    due: Vec<Due>,
    /// The lane of most actions, that of the brake, and that of starts.
    hang_until: [Duration; 3],
    chance: Chance,
}

struct Due {
    at: Duration,
    decision: DecisionRecord,
    result: OutcomeResult,
    took: Duration,
}

/// A completed act, and how far it has come if nothing else is in its way.
pub struct Ended {
    pub decision: DecisionRecord,
    pub result: OutcomeResult,
    pub took: Duration,
}

impl Ended {
    /// Whether it has changed the machine.
    pub fn touches(&self) -> bool {
        self.decision.mode == Mode::Enforce
            && matches!(self.result, OutcomeResult::Done | OutcomeResult::TimedOut)
    }
}

fn lane(action: &Action) -> usize {
    match action {
        Action::StopEngine { .. } => 1,
        Action::StartContainer { .. } | Action::StartUnit { .. } => 2,
        _ => 0,
    }
}

impl Executor {
    pub fn new(chance: Chance) -> Self {
        Self { due: Vec::new(), hang_until: [Duration::ZERO; 3], chance }
    }

    /// Takes a decision to act; an act that ends at once is reported at once.
    pub fn submit(
        &mut self,
        now: Duration,
        decision: DecisionRecord,
        intent_is_kept: bool,
    ) -> Option<OutcomeResult> {
        let millis = Duration::from_millis;
        let lane = lane(&decision.action);
        let (after, result) = if decision.mode == Mode::Observe {
            (millis(self.chance.whole(0..=20)), OutcomeResult::Skipped)
        } else if matches!(decision.action, Action::Notify { .. }) {
            return Some(OutcomeResult::Done);
        } else if self.hang_until[lane] > now {
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
                    self.hang_until[lane] = now + GIVEN_UP_AFTER + hangs;
                    (GIVEN_UP_AFTER, OutcomeResult::TimedOut)
                }
                // Its outcome is never reported.
                _ => return None,
            }
        };
        self.due.push(Due { at: now + after, decision, result, took: after });
        None
    }

    /// Time of the next outcome.
    pub fn next(&self) -> Option<Duration> {
        self.due.iter().map(|due| due.at).min()
    }

    /// Acts that have ended by now, in the order in which they were submitted.
    pub fn ended(&mut self, now: Duration) -> Vec<Ended> {
        let (ended, waiting) = self.due.drain(..).partition(|due| due.at <= now);
        self.due = waiting;
        let outcome_of = |due: Due| {
            let Due { decision, result, took, .. } = due;
            Ended { decision, result, took }
        };
        Vec::into_iter(ended).map(outcome_of).collect()
    }

    /// Whether an ordinary action hangs.
    pub fn hangs(&self, now: Duration) -> bool {
        self.hang_until[0] > now
    }

    /// The process is gone. Acts under way are never reported; they may have been done all the
    /// same.
    pub fn die(&mut self) -> Vec<DecisionRecord> {
        self.hang_until = [Duration::ZERO; 3];
        let all = self
            .due
            .drain(..)
            .filter(|due| due.decision.mode == Mode::Enforce && due.result == OutcomeResult::Done);
        all.map(|due| due.decision).collect()
    }

    /// Shifts all times after a suspend.
    pub fn sleep(&mut self, time: Duration) {
        for due in &mut self.due {
            due.at += time;
        }
        self.hang_until.iter_mut().for_each(|until| *until += time);
    }
}
