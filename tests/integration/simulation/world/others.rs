//! What others tell: those who post alerts, and the other nodes.

use std::time::Duration;

use umawarden::model::{Observation, ReceivedAlerts};

use super::World;
use crate::simulation::chance::Chance;
use crate::simulation::checker::Violation;
use crate::simulation::rule_book::{Author, RuleBook};

/// Steps from one look at the whole picture to the next.
const DRAWN_EVERY: u32 = 16;

/// Rules about what others tell, besides those that there are.
pub(super) fn with_foreign(book: RuleBook, seed: u64, beat: Duration, total: f64) -> RuleBook {
    let mut chance = Chance::new(seed, "foreign rules");
    book.with_foreign(&mut Author { chance: &mut chance, beat, total })
}

impl World {
    pub(super) fn post(&mut self, posts: Vec<ReceivedAlerts>) {
        // Whoever posts to nobody tries again later, and tells what is so then.
        let Some(process) = &mut self.process else { return };
        let times = if self.plan.is_doubled { 2 } else { 1 };
        let posts = posts.into_iter().flat_map(|post| std::iter::repeat_n(post, times));
        process.seen.extend(posts.map(|post| Observation::ReceivedAlerts(Box::new(post))));
    }

    /// The other nodes are asked.
    pub(super) fn ask_neighbours(&mut self) {
        if let Some(process) = self.process.as_mut().filter(|process| process.loaded.is_among()) {
            self.neighbours.ask(&mut process.seen);
        }
    }

    /// Now and then the whole picture is compared with what was told.
    pub(super) fn draw(&mut self) -> Result<(), Violation> {
        self.undrawn += 1;
        let (at, Some(process)) = (self.at(), &mut self.process) else { return Ok(()) };
        if self.undrawn < DRAWN_EVERY {
            return Ok(());
        }
        self.undrawn = 0;
        self.checker.look(at, &process.policy.status(at))
    }
}
