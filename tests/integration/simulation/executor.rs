//! Who does what was decided, badly: slowly, in vain, for ever, or without saying so.

use std::time::Duration;

use umawarden::model::{Action, Decision, Mode, OutcomeResult};

use super::chance::Chance;

/// After this the real executor gives an action up.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(30);

pub struct Executor {
    due: Vec<Due>,
    /// The lane of most actions, that of the brake, and that of starts.
    hang_until: [Duration; 3],
    chance: Chance,
}

struct Due {
    at: Duration,
    decision: Decision,
    result: OutcomeResult,
    took: Duration,
}

/// What has ended, and how far it has come if nothing else is in its way.
pub struct Ended {
    pub decision: Decision,
    pub result: OutcomeResult,
    pub took: Duration,
}

impl Ended {
    /// Whether it has touched the machine.
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

    /// Takes a decision to act on; what ends at once is told at once.
    pub fn submit(
        &mut self,
        now: Duration,
        decision: Decision,
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
    pub fn ended(&mut self, now: Duration) -> Vec<Ended> {
        let (ended, waiting) = self.due.drain(..).partition(|due| due.at <= now);
        self.due = waiting;
        let told = |due: Due| {
            let Due { decision, result, took, .. } = due;
            Ended { decision, result, took }
        };
        Vec::into_iter(ended).map(told).collect()
    }

    /// Whether an ordinary action hangs.
    pub fn hangs(&self, now: Duration) -> bool {
        self.hang_until[0] > now
    }

    /// The process is gone. Of what was under way nobody hears; it may have been done all the same.
    pub fn die(&mut self) -> Vec<Decision> {
        self.hang_until = [Duration::ZERO; 3];
        let all = self
            .due
            .drain(..)
            .filter(|due| due.decision.mode == Mode::Enforce && due.result == OutcomeResult::Done);
        all.map(|due| due.decision).collect()
    }

    /// Everything stood still for so long.
    pub fn sleep(&mut self, time: Duration) {
        for due in &mut self.due {
            due.at += time;
        }
        self.hang_until.iter_mut().for_each(|until| *until += time);
    }
}
