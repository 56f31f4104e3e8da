//! Hands steps of the policy, with their input, to a thread that records them.
//!
//! The loop only moves used values into a queue. It neither waits nor wakes the thread, which polls
//! twice a second.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, channel, sync_channel};
use std::thread::Builder;
use std::time::Duration;

use super::cluster;
use crate::config::overrides::changes;
use crate::config::reader::LoadedConfig;
use crate::config::settings::Settings;
use crate::journal::ResumePoint;
use crate::model::{
    AlertChange, ClusterNames, DecisionId, GpuDevice, GpuPicture, Moment, Observation,
};
use crate::policy::Step;
use crate::recording::{
    IncidentLimits, Incidents, RecordedRules, RecordedStep, RecordingEntry, RecordingRing,
    RuleText, SegmentBegin, StepResult,
};

/// Entries in the queue; half a minute at ten steps a second.
const QUEUE_ENTRIES: usize = 1024;

/// Steps that are kept for reuse; those of a storm are not.
const QUEUE_USED: usize = 64;
const MOST_USED: usize = 64;

/// The estimated memory of the queue: a storm in the kernel log must not take memory that is short.
const QUEUE_BYTES: usize = 16 << 20;

/// How long the thread sleeps between polls.
const BATCH_FOR: Duration = Duration::from_millis(500);

/// The loop's handle of the recorder.
pub(super) struct Recorder {
    /// `None`: recording is off.
    to: Option<SyncSender<(RecordingEntry, usize)>>,
    /// Recorded steps, whose memory is reused.
    used: Receiver<Vec<Observation>>,
    waiting_bytes: Arc<AtomicUsize>,
    /// Steps that found the queue full and are not yet reported in the recording.
    dropped: u64,
    ended: Receiver<()>,
    thread: Option<std::thread::Thread>,
    tally: Arc<RecorderTally>,
}

/// Counters of the recorder.
#[derive(Debug, Default)]
pub(super) struct RecorderTally {
    /// Steps that found the queue full.
    dropped_steps: AtomicU64,
    /// Steps that could not be written.
    lost_steps: AtomicU64,
    written_bytes: AtomicU64,
    write_errors: AtomicU64,
    incidents: AtomicU64,
}

impl RecorderTally {
    /// Dropped steps, written bytes, write errors, incidents.
    pub(super) fn values(&self) -> [u64; 4] {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [
            read(&self.dropped_steps).saturating_add(read(&self.lost_steps)),
            read(&self.written_bytes),
            read(&self.write_errors),
            read(&self.incidents),
        ]
    }
}

/// The state from which a replay starts.
pub(super) fn begin(
    loaded: &LoadedConfig,
    started: Moment,
    boot_id: &str,
    next_decision: DecisionId,
    resume: Option<&ResumePoint>,
) -> SegmentBegin {
    let names = loaded.settings.cluster.as_ref().map(cluster::names);
    SegmentBegin {
        already_counted: resume.map(|point| point.known.clone()).unwrap_or_default(),
        last_events: resume.map(|point| point.last_events.clone()).unwrap_or_default(),
        awaits_past: true,
        ..SegmentBegin::of_process(boot_id, started, next_decision, rules(loaded, names))
    }
}

fn rules(loaded: &LoadedConfig, cluster: Option<ClusterNames>) -> RecordedRules {
    let file = |source: &crate::config::mistake::SourceText| RuleText {
        name: source.name.to_string(),
        text: source.text.clone(),
    };
    RecordedRules {
        mode: loaded.settings.mode,
        evaluation_interval: loaded.settings.evaluation_interval,
        files: loaded.texts.iter().map(file).collect(),
        // All keys are text, so that this cannot fail.
        guard_rails: serde_json::to_value(&loaded.rules.guard_rails).unwrap_or_default(),
        overrides: overrides(loaded),
        assessment: loaded.settings.assessment,
        forget_received_after: loaded.settings.alertmanager.forget_after,
        cluster,
    }
}

fn overrides(loaded: &LoadedConfig) -> serde_json::Value {
    match changes(&loaded.settings.overrides) {
        changes if changes.is_empty() => serde_json::Value::Null,
        changes => serde_json::to_value(changes).unwrap_or_default(),
    }
}

impl Recorder {
    /// Starts the thread, unless recording is off.
    pub(super) fn start(settings: &Settings, begin: SegmentBegin) -> Self {
        let (to, entries) = sync_channel(QUEUE_ENTRIES);
        let (give_back, used) = sync_channel(QUEUE_USED);
        let (end, ended) = channel();
        let waiting_bytes = Arc::new(AtomicUsize::new(0));
        let tally = Arc::new(RecorderTally::default());
        let mut recorder =
            Self { to: None, used, waiting_bytes, dropped: 0, ended, thread: None, tally };
        let size = settings.recording.size_bytes;
        if size == 0 {
            return recorder;
        }
        let storage = &settings.storage.path;
        let mut keeper = RecorderThread {
            ring: RecordingRing::new(&storage.join("recording"), size, begin),
            incidents: Incidents::new(&storage.join("incidents"), IncidentLimits::within(size)),
            incidents_fail: false,
            incident_errors: 0,
            give_back,
            tally: Arc::clone(&recorder.tally),
        };
        let waiting = Arc::clone(&recorder.waiting_bytes);
        let thread = Builder::new().name("recorder".to_owned()).spawn(move || {
            keeper.run(&entries, &waiting);
            // The loop may have ended without waiting.
            let _ = end.send(());
        });
        match thread {
            Ok(thread) => {
                recorder.to = Some(to);
                recorder.thread = Some(thread.thread().clone());
            }
            Err(error) => tracing::error!(%error, "recording off: cannot start its thread"),
        }
        recorder
    }

    /// Counters; `None` if recording is off.
    pub(super) fn tally(&self) -> Option<&RecorderTally> {
        self.to.as_ref().map(|_| &*self.tally)
    }

    /// Records a step. Afterwards `seen` is an unused value for reuse.
    pub(super) fn step(&mut self, at: Moment, seen: &mut Vec<Observation>, step: &Step) {
        if self.to.is_none() {
            return;
        }
        let used = self.used.try_recv().unwrap_or_else(|_| Vec::with_capacity(seen.len()));
        let seen = std::mem::replace(seen, used);
        let bytes = weight(&seen) + 1024 * (step.events.len() + step.decisions.len());
        let said = StepResult {
            events: step.events.clone(),
            alerts: step.alerts.clone(),
            decisions: step.decisions.clone(),
            aim_checks: step.aim_checks.clone(),
        };
        self.send(RecordingEntry::Step(RecordedStep { at, seen, said }), bytes);
    }

    /// Records a change of rules.
    pub(super) fn reload(
        &mut self,
        at: Moment,
        loaded: &LoadedConfig,
        cluster: Option<ClusterNames>,
        ended: &[AlertChange],
    ) {
        let rules = rules(loaded, cluster);
        let bytes = rules.files.iter().map(|file| file.text.len()).sum();
        self.send(RecordingEntry::Reload { at, rules, ended: ended.to_vec() }, bytes);
    }

    /// Waits until the queue is written. A thread that hangs on its disk is abandoned.
    pub(super) fn close(&mut self, deadline: Duration) {
        if self.to.take().is_none() {
            return;
        }
        if let Some(thread) = self.thread.take() {
            thread.unpark();
        }
        if self.ended.recv_timeout(deadline).is_err() {
            tracing::warn!("recording may lack its end: slow disk");
        }
    }

    fn send(&mut self, entry: RecordingEntry, bytes: usize) {
        let Some(to) = &self.to else { return };
        let waiting = self.waiting_bytes.load(Ordering::Relaxed);
        if waiting.saturating_add(bytes) > QUEUE_BYTES && waiting > 0 {
            return self.drop_one();
        }
        if self.dropped > 0 {
            let gap = RecordingEntry::Gap { steps: self.dropped };
            if to.try_send((gap, 0)).is_err() {
                return self.drop_one();
            }
            tracing::warn!(steps = self.dropped, "recorder queue full, steps dropped");
            self.dropped = 0;
        }
        self.waiting_bytes.fetch_add(bytes, Ordering::Relaxed);
        if to.try_send((entry, bytes)).is_err() {
            self.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.drop_one();
        }
    }

    fn drop_one(&mut self) {
        self.dropped += 1;
        self.tally.dropped_steps.fetch_add(1, Ordering::Relaxed);
        if let Some(thread) = &self.thread {
            thread.unpark();
        }
    }
}

/// The estimated size in bytes.
fn weight(seen: &[Observation]) -> usize {
    let one = |observation: &Observation| match observation {
        Observation::KernelRecord(record) => 256 + record.text.len() + record.dictionary.len(),
        Observation::Readings(readings) => 128 + readings.values.len() * 16,
        Observation::ReceivedAlerts(post) => {
            post.alerts.iter().map(|alert| 512 + alert.labels.len() * 128).sum()
        }
        Observation::Gpu(readings) => 256 + readings.picture.as_deref().map_or(0, picture_weight),
        Observation::Cluster(readings) => 256 + 160 * readings.values(),
        _ => 256,
    };
    seen.iter().map(one).sum()
}

fn picture_weight(picture: &GpuPicture) -> usize {
    let one =
        |device: &GpuDevice| 1024 + 64 * device.processes().len() + 256 * device.instances.len();
    picture.devices.iter().map(one).sum()
}

/// The thread's side.
struct RecorderThread {
    ring: RecordingRing,
    incidents: Incidents,
    incidents_fail: bool,
    incident_errors: u64,
    give_back: SyncSender<Vec<Observation>>,
    tally: Arc<RecorderTally>,
}

impl RecorderThread {
    fn run(&mut self, entries: &Receiver<(RecordingEntry, usize)>, waiting: &AtomicUsize) {
        loop {
            match entries.try_recv() {
                Ok((entry, bytes)) => {
                    self.keep(&entry);
                    self.count();
                    waiting.fetch_sub(bytes, Ordering::Relaxed);
                    if let RecordingEntry::Step(step) = entry
                        && step.seen.len() <= MOST_USED
                    {
                        // A full queue has enough buffers to use again: this one is freed.
                        let _ = self.give_back.try_send(step.seen);
                    }
                }
                Err(TryRecvError::Empty) => std::thread::park_timeout(BATCH_FOR),
                Err(TryRecvError::Disconnected) => break,
            }
        }
        if let Err(error) = self.ring.flush() {
            tracing::warn!(%error, "recording not written");
        }
        if let Err(error) = self.incidents.end() {
            tracing::warn!(%error, "incident truncated");
        }
    }

    fn keep(&mut self, entry: &RecordingEntry) {
        if let Err(error) = self.ring.take(entry) {
            tracing::warn!(%error, "recording not written");
        }
        match self.incidents.add(entry, &mut self.ring) {
            Ok(None) => {}
            Ok(Some(path)) => {
                self.incidents_fail = false;
                tracing::info!(path = %path.display(), "incident kept for umawarden replay");
            }
            Err(error) => {
                self.incident_errors += 1;
                if !std::mem::replace(&mut self.incidents_fail, true) {
                    tracing::warn!(%error, "cannot keep the incident");
                }
            }
        }
    }

    fn count(&self) {
        let (ring, tally) = (self.ring.tally(), &self.tally);
        let written = ring.written_bytes + self.incidents.written_bytes();
        tally.written_bytes.store(written, Ordering::Relaxed);
        tally.lost_steps.store(ring.lost_steps, Ordering::Relaxed);
        let errors = ring.write_errors + self.incident_errors;
        tally.write_errors.store(errors, Ordering::Relaxed);
        tally.incidents.store(self.incidents.begun(), Ordering::Relaxed);
    }
}
