//! When the loop takes in what Alertmanagers have posted.

use std::time::Duration;

use super::{Daemon, clock};

/// How soon it is looked whether the journal has room for what is held for it.
const HELD_FOR: Duration = Duration::from_millis(20);

/// At the end: for the journal to write what was posted last.
const LAST_POSTS: Duration = Duration::from_millis(300);
const LAST_LOOKS: Duration = Duration::from_millis(1);

impl Daemon {
    /// Returns whether there are more. Where the journal is behind they wait: they are kept in it,
    /// and whoever posts more than that is told to come again.
    pub(super) fn take_posted_alerts(&mut self) -> bool {
        let are_held = self.journal.is_behind() && self.alerting.has_posts();
        self.alerting.posts_are_held = are_held;
        !are_held && self.alerting.take(&mut self.seen)
    }

    /// After which time posts are worth another look.
    pub(super) fn posts_wait_for(&self) -> Duration {
        if self.alerting.posts_are_held { HELD_FOR } else { Duration::MAX }
    }

    /// Takes in all that was promised to whoever posted it, no faster than the journal can keep it
    /// as long as there is time.
    pub(super) fn take_last_posts(&mut self) {
        let began = clock::uptime();
        self.alerting.close();
        let mut more = true;
        while more {
            more = self.alerting.take_rest(&mut self.seen);
            if !self.seen.is_empty() {
                self.step(clock::now());
            }
            while more
                && self.journal.is_behind()
                && clock::uptime().saturating_sub(began) < LAST_POSTS
            {
                std::thread::sleep(LAST_LOOKS);
            }
        }
    }
}
