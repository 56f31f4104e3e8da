//! When memory is sampled next.

#[cfg(test)]
mod tests;

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::Duration;

use rustix::event::PollFlags;

use super::clock;
use crate::config::settings::SamplingInterval;
use crate::policy::Policy;
use crate::policy::pace::{MemoryMeasurement, Pace};
use crate::sources::is_procfs;
use crate::sources::memory::{PressureTrigger, has_pressure};
use crate::sys::free_memory::FreeMemory;

/// The schedule of samples. They are on a grid, so that a late one does not delay the next.
#[derive(Debug)]
pub(super) struct Sampling {
    /// `None`: a constant interval.
    auto: Option<Auto>,
    interval: Duration,
    /// When the last sample was due, on the clock that stops in suspend: samples are not missed
    /// then.
    last: Duration,
    due: Duration,
    /// When memory was last sampled or checked.
    checked: Duration,
}

#[derive(Debug)]
struct Auto {
    pace: Pace,
    /// The kernel's free memory is that of the sampled machine.
    is_of_this_machine: bool,
    trigger: Option<PressureTrigger>,
}

/// The time of a sample or other observation, on the clock that stops in suspend and on the one
/// that does not.
#[derive(Clone, Copy, Debug)]
pub(super) struct SampleTime {
    pub(super) monotonic: Duration,
    pub(super) uptime: Duration,
}

impl Sampling {
    pub(super) fn new(interval: SamplingInterval, procfs: &Path) -> Self {
        let (auto, interval) = match interval {
            SamplingInterval::Every(interval) => (None, interval),
            SamplingInterval::Auto => {
                let trigger = PressureTrigger::set(procfs).inspect_err(|error| {
                    // The preflight reports a kernel without pressure.
                    if has_pressure(procfs) {
                        tracing::info!(%error, "no memory pressure alarm");
                    }
                });
                let pace = Pace::new(clock::uptime());
                let is_of_this_machine = is_procfs(procfs);
                let auto = Auto { pace, is_of_this_machine, trigger: trigger.ok() };
                (Some(auto), crate::policy::pace::WATCHFUL)
            }
        };
        let now = clock::monotonic();
        Self { auto, interval, last: now, due: now, checked: now }
    }

    /// The descriptor that wakes the loop when tasks wait for memory.
    pub(super) fn alarm(&self) -> Option<BorrowedFd<'_>> {
        self.auto.as_ref()?.trigger.as_ref().map(AsFd::as_fd)
    }

    /// Handles the alarm's poll(2) events: tasks wait for memory, so that it is sampled at once; or
    /// the alarm has failed.
    pub(super) fn on_alarm(&mut self, events: PollFlags) {
        let Some(Auto { pace, trigger: trigger @ Some(_), .. }) = &mut self.auto else { return };
        if events.intersects(PollFlags::ERR | PollFlags::NVAL) {
            tracing::warn!("memory pressure alarm failed");
            *trigger = None;
        } else if events.contains(PollFlags::PRI) {
            pace.stirred(clock::uptime());
            self.due = self.due.min(clock::monotonic());
        }
    }

    /// Records activity that may concern memory, at an uptime.
    pub(super) fn record_activity(&mut self, uptime: Duration) {
        if let Some(auto) = &mut self.auto {
            auto.pace.stirred(uptime);
        }
    }

    /// An engine loads a model.
    pub(super) fn loads(&mut self, uptime: Duration) {
        if let Some(auto) = &mut self.auto {
            auto.pace.loads(uptime);
        }
    }

    /// Whether samples are at their lowest rate, or nearly so.
    pub(super) fn is_calm(&self) -> bool {
        self.auto.is_none() || self.interval >= crate::policy::pace::WATCHFUL
    }

    /// How long until a check of free memory is due, if any.
    pub(super) fn next_check(&self) -> Option<Duration> {
        let auto = self.auto.as_ref().filter(|auto| auto.is_of_this_machine)?;
        let after = auto.pace.check_after(clock::uptime())?;
        Some((self.checked + after).saturating_sub(clock::monotonic()))
    }

    /// Checks free memory, and schedules a sample at once if it shows a collapse. `evictable`
    /// bytes count as free.
    pub(super) fn check_free(&mut self, evictable: u64) {
        let Some(auto) = &mut self.auto else { return };
        self.checked = clock::monotonic();
        let free = FreeMemory::now().free_bytes.saturating_add(evictable);
        if auto.pace.check_free(clock::uptime(), free as f64) {
            self.due = self.due.min(self.checked);
        }
    }

    /// How long until a sample is due.
    pub(super) fn due_in(&self) -> Duration {
        self.due.saturating_sub(clock::monotonic())
    }

    /// When the next sample is due.
    pub(super) fn due(&self) -> Duration {
        self.due
    }

    /// Whether a sample is due.
    pub(super) fn is_due(&self, at: SampleTime) -> bool {
        at.monotonic >= self.due
    }

    /// The grid begins now, with a sample that has just been taken.
    pub(super) fn begin(&mut self) {
        self.last = clock::monotonic();
        self.due = self.last + self.interval;
    }

    pub(super) fn interval(&self) -> Duration {
        self.interval
    }

    /// Records a sample that the policy has processed; `evictable` bytes count as free. Returns
    /// the number of samples missed before it.
    pub(super) fn taken(&mut self, taken: SampleTime, policy: &Policy, evictable: u64) -> u64 {
        if let Some(auto) = &mut self.auto {
            let with_evictable = |memory: MemoryMeasurement| MemoryMeasurement {
                free: memory.free + evictable as f64,
                ..memory
            };
            auto.pace.measured(taken.uptime, policy.memory().map(with_evictable));
        }
        self.choose(taken.uptime, policy);
        let (now, interval) = (taken.monotonic, self.interval);
        self.checked = now;
        // A sample brought forward by an alarm begins a new grid.
        self.last = self.due;
        self.due = self.last + interval;
        if self.due > now {
            return 0;
        }
        let missed = (now - self.due).as_nanos() / interval.as_nanos().max(1) + 1;
        self.last = now;
        self.due = now + interval;
        u64::try_from(missed).unwrap_or(u64::MAX)
    }

    /// The policy has processed something else, which may bring the next sample forward.
    pub(super) fn reconsider(&mut self, at: SampleTime, policy: &Policy) {
        self.choose(at.uptime, policy);
        self.due = self.due.min((self.last + self.interval).max(at.monotonic));
    }

    fn choose(&mut self, uptime: Duration, policy: &Policy) {
        if let Some(auto) = &self.auto {
            self.interval = auto.pace.interval(uptime, policy.needs_samples_every());
        }
    }
}
