//! When the loop takes posted alerts of Alertmanagers.

use std::time::Duration;

use super::{Daemon, clock};

/// How soon the capacity of the journal is checked again.
const HELD_FOR: Duration = Duration::from_millis(20);

/// At the end, for the journal to write the last posts.
const LAST_POSTS: Duration = Duration::from_millis(300);
const LAST_CHECKS: Duration = Duration::from_millis(1);

impl Daemon {
    /// Returns whether there are more. While the journal is behind, posts wait in the queue, and
    /// further ones are refused with Retry-After.
    pub(super) fn take_posted_alerts(&mut self) -> bool {
        let are_held = self.journal.is_behind() && self.alerting.has_posts();
        self.alerting.posts_are_held = are_held;
        !are_held && self.alerting.take(&mut self.seen)
    }

    /// The time after which posts are checked again.
    pub(super) fn posts_wait_for(&self) -> Duration {
        if self.alerting.posts_are_held { HELD_FOR } else { Duration::MAX }
    }

    /// Takes all confirmed posts, no faster than the journal can write while there is time.
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
                std::thread::sleep(LAST_CHECKS);
            }
        }
    }
}
