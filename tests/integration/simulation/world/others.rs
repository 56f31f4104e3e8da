//! Foreign input: posted alerts, and other nodes.

use std::time::Duration;

use umawarden::model::{Observation, ReceivedAlerts};

use super::World;
use crate::simulation::chance::Chance;
use crate::simulation::checker::Violation;
use crate::simulation::rule_book::{Author, RuleBook};

/// Steps between two checks of the full status.
const CHECK_EVERY: u32 = 16;

/// Additional rules about foreign alerts and nodes.
pub(super) fn with_foreign(book: RuleBook, seed: u64, beat: Duration, total: f64) -> RuleBook {
    let mut chance = Chance::new(seed, "foreign rules");
    book.with_foreign(&mut Author { chance: &mut chance, beat, total })
}

impl World {
    pub(super) fn post(&mut self, posts: Vec<ReceivedAlerts>) {
        // A post without a receiver is retried later, with the state of that time.
        let Some(process) = &mut self.process else { return };
        let times = if self.plan.is_doubled { 2 } else { 1 };
        let posts = posts.into_iter().flat_map(|post| std::iter::repeat_n(post, times));
        process.seen.extend(posts.map(|post| Observation::ReceivedAlerts(Box::new(post))));
    }

    /// The other nodes are queried.
    pub(super) fn query_neighbours(&mut self) {
        if let Some(process) = self.process.as_mut().filter(|process| process.loaded.is_among()) {
            self.neighbours.query(&mut process.seen);
        }
    }

    /// Now and then the full status is compared with the input.
    pub(super) fn check_status(&mut self) -> Result<(), Violation> {
        self.unchecked_steps += 1;
        let (at, Some(process)) = (self.at(), &mut self.process) else { return Ok(()) };
        if self.unchecked_steps < CHECK_EVERY {
            return Ok(());
        }
        self.unchecked_steps = 0;
        self.checker.check_status(at, &process.policy.status(at))
    }
}
