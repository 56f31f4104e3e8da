//! The NVIDIA driver's figures for the memory of each process, with their times.

use std::collections::BTreeMap;
use std::time::Duration;

use super::history::History;
use crate::model::{GpuDevice, GpuReadings, Reading};

/// Older figures are no evidence: the driver is polled every second while memory falls, and any
/// process may have taken memory since.
pub(super) const COUNT_FOR: Duration = Duration::from_secs(15);

/// Bytes by process id, or by name in a declared world.
pub(super) type Amounts<K> = BTreeMap<K, u64>;

/// The driver's answers of the last minutes.
#[derive(Debug, Default)]
pub(super) struct Figures {
    answers: History<Amounts<u32>>,
    /// Processes of this program, which hold nothing.
    pub(super) askers: Vec<u32>,
}

/// How much each process has grown by the driver's figures.
#[derive(Debug, Default)]
pub(super) struct DriverGrowth {
    /// By process, up to the last answer; who has not grown is left out.
    pub(super) by_process: Amounts<u32>,
    /// When the last answer came.
    pub(super) answered: Duration,
    /// The time between the two answers.
    pub(super) elapsed: Duration,
    /// How old the last answer is.
    pub(super) age: Duration,
}

impl Figures {
    pub(super) fn take(&mut self, readings: &GpuReadings) {
        self.askers.clone_from(&readings.askers);
        let (Some(picture), Some(at)) = (&readings.picture, readings.answered_at) else { return };
        // A GPU's own memory is another pool.
        let ours = |device: &&GpuDevice| device.is_unified() == Some(true);
        let mut amounts = Amounts::new();
        let (mut has_any, mut is_whole) = (false, !picture.is_cut);
        for device in picture.devices.iter().filter(ours) {
            has_any = true;
            let Reading::Value(processes) = &device.processes else {
                is_whole = false;
                continue;
            };
            for process in processes {
                match process.used_bytes {
                    Reading::Value(bytes) => {
                        let sum = amounts.entry(process.pid).or_insert(0);
                        *sum = sum.saturating_add(bytes);
                    }
                    // Within containers the driver gives no figure.
                    Reading::Unsupported | Reading::Failed => is_whole = false,
                }
            }
        }
        if has_any && is_whole {
            self.answered(at, amounts);
        }
    }

    pub(super) fn answered(&mut self, at: Duration, amounts: Amounts<u32>) {
        if self.answers.last().is_none_or(|(last, _)| *last < at) {
            self.answers.push(at, amounts);
        }
    }

    /// How old the last answer is, while it counts.
    pub(super) fn age(&self, now: Duration) -> Option<Duration> {
        let (at, _) = self.answers.last()?;
        Some(now.saturating_sub(*at)).filter(|age| *age <= COUNT_FOR)
    }

    /// How much each process has grown since the last answer up to `since`, or the first after it.
    /// `None` without two answers of which the last one counts.
    pub(super) fn grown(&self, since: Duration, now: Duration) -> Option<DriverGrowth> {
        let age = self.age(now)?;
        let (answered, last) = self.answers.last()?;
        let (first_at, first) =
            self.answers.up_to(since).or_else(|| self.answers.since(since).next())?;
        let elapsed = answered.checked_sub(*first_at).filter(|elapsed| !elapsed.is_zero())?;
        let by_process = last
            .iter()
            .map(|(pid, bytes)| (*pid, bytes.saturating_sub(*first.get(pid).unwrap_or(&0))))
            .filter(|(_, grown)| *grown > 0)
            .collect();
        Some(DriverGrowth { by_process, answered: *answered, elapsed, age })
    }
}

impl DriverGrowth {
    /// The growth until now of a process that has grown by that much until the last response, at
    /// the same pace.
    pub(super) fn by_now(&self, grown: u64) -> u64 {
        let pace = grown as f64 / self.elapsed.as_secs_f64();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "bytes, from 0 on"
        )]
        let since = (pace * self.age.as_secs_f64()) as u64;
        grown.saturating_add(since)
    }
}
