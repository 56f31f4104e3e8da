//! Fills the memory of the last hour from the flight recorder, after a start.
//!
//! A thread replays what an earlier run of this boot has recorded into a policy without rules. It
//! reads only, and gives up after a while; the loop does not wait for it.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;
use std::time::Duration;

use super::clock;
use crate::model::{DecisionId, Mode, Moment};
use crate::policy::Policy;
use crate::policy::memory_ring::{
    EngineNames, MemoryPoint, MemoryRing, MemorySampler, POINTS, STEP_SECONDS,
};
use crate::policy::rule::RuleSet;
use crate::recording::{RecordingEntry, SegmentBegin, SegmentReader, segment_files};

/// The longest time that this takes. An hour of a calm node is replayed in about a second.
const TAKES: Duration = Duration::from_secs(10);

/// Steps without a pause. The start of the daemon has other work to do.
const STEPS_AT_ONCE: u32 = 200;
const PAUSE: Duration = Duration::from_millis(2);

/// Starts the thread.
pub(super) fn start(storage: &Path, boot_id: &str, now: Moment, ring: &Arc<Mutex<MemoryRing>>) {
    let (folder, boot_id) = (storage.join("recording"), boot_id.to_owned());
    let ring = Arc::clone(ring);
    let started = Builder::new().name("memory-past".to_owned()).spawn(move || {
        let Some((points, names)) = earlier(&folder, &boot_id, now) else { return };
        let points_found = points.len();
        ring.lock().unwrap_or_else(PoisonError::into_inner).set_earlier(points, names);
        tracing::debug!(points_found, "memory of the last hour read from the flight recorder");
    });
    if let Err(error) = started {
        tracing::warn!(%error, "plot of memory begins anew: no thread");
    }
}

/// The points of the hour before `now` in the same boot; `None` without any.
fn earlier(folder: &Path, boot_id: &str, now: Moment) -> Option<(Vec<MemoryPoint>, EngineNames)> {
    let hour = Duration::from_secs(STEP_SECONDS * POINTS as u64);
    let since = now.uptime.saturating_sub(hour);
    let segments: Vec<(PathBuf, SegmentBegin)> = segment_files(folder)
        .into_iter()
        .filter_map(|path| {
            let begin = begin(&path)?;
            (begin.boot_id == *boot_id && begin.at.uptime < now.uptime).then_some((path, begin))
        })
        .collect();
    let starts_late = |(_, begin): &(PathBuf, SegmentBegin)| begin.at.uptime > since;
    let first = segments.iter().position(starts_late).unwrap_or(segments.len()).saturating_sub(1);
    let mut replay = JournalReplay::new(now, since);
    for (path, _) in segments.get(first..)? {
        if replay.segment(path).is_none() {
            break;
        }
    }
    let JournalReplay { points, sampler, .. } = replay;
    (!points.is_empty()).then(|| (points, sampler.names().clone()))
}

fn open(path: &Path) -> Option<SegmentReader<BufReader<File>>> {
    SegmentReader::open(BufReader::new(File::open(path).ok()?)).ok()
}

/// The first entry of a segment.
fn begin(path: &Path) -> Option<SegmentBegin> {
    match open(path)?.next_entry().ok()?? {
        RecordingEntry::Begin(begin) => Some(*begin),
        _ => None,
    }
}

/// The state of the replay.
struct JournalReplay {
    until: Moment,
    since: Duration,
    gives_up: Duration,
    policy: Option<Policy>,
    sampler: MemorySampler,
    points: Vec<MemoryPoint>,
    steps: u32,
}

impl JournalReplay {
    fn new(until: Moment, since: Duration) -> Self {
        Self {
            until,
            since,
            gives_up: clock::monotonic() + TAKES,
            policy: None,
            sampler: MemorySampler::default(),
            points: Vec::new(),
            steps: 0,
        }
    }

    /// `None` if enough has been read, or nothing more can be.
    fn segment(&mut self, path: &Path) -> Option<()> {
        let mut reader = open(path)?;
        while let Ok(Some(entry)) = reader.next_entry() {
            match entry {
                // Another process knows nothing of what the one before it has read.
                RecordingEntry::Begin(begin) if begin.is_start || self.policy.is_none() => {
                    let rules = RuleSet::default();
                    let policy = Policy::new(begin.at, Mode::Observe, &rules, DecisionId(1));
                    self.policy = Some(policy);
                }
                RecordingEntry::Step(step) => {
                    if step.at.uptime >= self.until.uptime || clock::monotonic() > self.gives_up {
                        return None;
                    }
                    let policy = self.policy.as_mut()?;
                    policy.step(step.at, &step.seen);
                    if step.at.uptime >= self.since {
                        let status = policy.status(step.at);
                        self.points.extend(self.sampler.take(&status));
                    }
                    self.steps += 1;
                    if self.steps.is_multiple_of(STEPS_AT_ONCE) {
                        std::thread::sleep(PAUSE);
                    }
                }
                _ => {}
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_hour_of_the_same_boot_comes_from_the_flight_recorder() {
        let incidents = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/incidents");
        let folder = incidents.join("page-cache-flood-by-read");
        let begin = begin(&folder.join("recording-1.umarec")).unwrap();
        let later = |seconds| Moment {
            uptime: begin.at.uptime + Duration::from_secs(seconds),
            utc: begin.at.utc,
        };
        let (points, _) = earlier(&folder, &begin.boot_id, later(600)).unwrap();
        assert!(points.len() >= 3, "{}", points.len());
        assert!(earlier(&folder, "another boot", later(600)).is_none());
        assert!(earlier(&folder, &begin.boot_id, later(0)).is_none(), "nothing was before");
        assert!(earlier(&incidents, &begin.boot_id, later(600)).is_none(), "no recording");
    }
}
