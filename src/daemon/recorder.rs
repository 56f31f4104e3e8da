//! Hands what the policy was told, and what it said, to a thread that records it.
//!
//! The loop only moves what it does not need any more into a queue; it neither waits nor wakes the
//! thread, which looks by itself twice a second.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, channel, sync_channel};
use std::thread::Builder;
use std::time::Duration;

use super::cluster;
use crate::config::reader::Loaded;
use crate::config::settings::Settings;
use crate::journal::ResumePoint;
use crate::model::{
    AlertChange, ClusterNames, DecisionId, GpuDevice, GpuPicture, Moment, Observation,
};
use crate::policy::Step;
use crate::recording::{
    Begin, Entry, IncidentLimits, Incidents, RecordedRules, RecordedStep, Ring, RuleText, Said,
};

/// Entries that may wait; half a minute at ten steps a second.
const QUEUE_ENTRIES: usize = 1024;

/// Steps that may wait to be used again; those of a storm are not.
const QUEUE_USED: usize = 64;
const MOST_USED: usize = 64;

/// The bound on what waits, in bytes and roughly: a storm in the kernel log is no reason to take
/// memory from a machine that has none left.
const QUEUE_BYTES: usize = 16 << 20;

/// How long the thread lets entries gather.
const GATHERS: Duration = Duration::from_millis(500);

/// The loop's end of the recorder.
pub(super) struct Recorder {
    /// `None`: nothing is recorded.
    to: Option<SyncSender<(Entry, usize)>>,
    /// What has been recorded comes back, for its room.
    used: Receiver<Vec<Observation>>,
    waiting_bytes: Arc<AtomicUsize>,
    /// Steps that found the queue full and that the recording does not know of yet.
    dropped: u64,
    ended: Receiver<()>,
    thread: Option<std::thread::Thread>,
    tally: Arc<Tally>,
}

/// What the recorder has done so far.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// Steps that found the queue full.
    dropped_steps: AtomicU64,
    /// Steps that the thread could not write.
    lost_steps: AtomicU64,
    written_bytes: AtomicU64,
    write_errors: AtomicU64,
    incidents: AtomicU64,
}

impl Tally {
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

/// What whoever replays needs to start like this process.
pub(super) fn begin(
    loaded: &Loaded,
    started: Moment,
    boot_id: &str,
    next_decision: DecisionId,
    resume: Option<&ResumePoint>,
) -> Begin {
    let names = loaded.settings.cluster.as_ref().map(cluster::names);
    Begin {
        already_counted: resume.map(|point| point.known.clone()).unwrap_or_default(),
        last_events: resume.map(|point| point.last_events.clone()).unwrap_or_default(),
        awaits_past: true,
        ..Begin::of_process(boot_id, started, next_decision, rules(loaded, names))
    }
}

fn rules(loaded: &Loaded, cluster: Option<ClusterNames>) -> RecordedRules {
    let file = |source: &crate::config::mistake::SourceText| RuleText {
        name: source.name.to_string(),
        text: source.text.clone(),
    };
    RecordedRules {
        mode: loaded.settings.mode,
        evaluation_interval: loaded.settings.evaluation_interval,
        files: loaded.texts.iter().map(file).collect(),
        // No map in it has keys that are not text, so this cannot fail.
        guard_rails: serde_json::to_value(&loaded.rules.guard_rails).unwrap_or_default(),
        verdict: loaded.settings.verdict,
        forget_received_after: loaded.settings.alertmanager.forget_after,
        cluster,
    }
}

impl Recorder {
    /// Starts the thread, unless recording is turned off.
    pub(super) fn start(settings: &Settings, begin: Begin) -> Self {
        let (to, entries) = sync_channel(QUEUE_ENTRIES);
        let (give_back, used) = sync_channel(QUEUE_USED);
        let (end, ended) = channel();
        let waiting_bytes = Arc::new(AtomicUsize::new(0));
        let tally = Arc::new(Tally::default());
        let mut recorder =
            Self { to: None, used, waiting_bytes, dropped: 0, ended, thread: None, tally };
        let size = settings.recording.size_bytes;
        if size == 0 {
            return recorder;
        }
        let storage = &settings.storage.path;
        let mut keeper = Keeper {
            ring: Ring::new(&storage.join("recording"), size, begin),
            incidents: Incidents::new(&storage.join("incidents"), IncidentLimits::within(size)),
            incidents_fail: false,
            incident_errors: 0,
            give_back,
            tally: Arc::clone(&recorder.tally),
        };
        let waiting = Arc::clone(&recorder.waiting_bytes);
        let thread = Builder::new().name("recorder".to_owned()).spawn(move || {
            keeper.follow(&entries, &waiting);
            // The loop may have gone without waiting.
            let _gone = end.send(());
        });
        match thread {
            Ok(thread) => {
                recorder.to = Some(to);
                recorder.thread = Some(thread.thread().clone());
            }
            Err(error) => tracing::error!("nothing is recorded: no thread for it: {error}"),
        }
        recorder
    }

    /// What it has done so far; `None` where nothing is recorded.
    pub(super) fn tally(&self) -> Option<&Tally> {
        self.to.as_ref().map(|_| &*self.tally)
    }

    /// Records a step. Afterwards `seen` is what nobody needs any more: of this step, or of one
    /// that has been recorded.
    pub(super) fn step(&mut self, at: Moment, seen: &mut Vec<Observation>, step: &Step) {
        if self.to.is_none() {
            return;
        }
        let used = self.used.try_recv().unwrap_or_else(|_| Vec::with_capacity(seen.len()));
        let seen = std::mem::replace(seen, used);
        let bytes = weight(&seen) + 1024 * (step.events.len() + step.decisions.len());
        let said = Said {
            events: step.events.clone(),
            alerts: step.alerts.clone(),
            decisions: step.decisions.clone(),
            assessments: step.assessments.clone(),
        };
        self.send(Entry::Step(RecordedStep { at, seen, said }), bytes);
    }

    /// Records that other rules are in force.
    pub(super) fn reload(
        &mut self,
        at: Moment,
        loaded: &Loaded,
        cluster: Option<ClusterNames>,
        ended: &[AlertChange],
    ) {
        let rules = rules(loaded, cluster);
        let bytes = rules.files.iter().map(|file| file.text.len()).sum();
        self.send(Entry::Reload { at, rules, ended: ended.to_vec() }, bytes);
    }

    /// Lets the thread write what waits; one that hangs on its disk is left behind.
    pub(super) fn close(&mut self, deadline: Duration) {
        if self.to.take().is_none() {
            return;
        }
        if let Some(thread) = self.thread.take() {
            thread.unpark();
        }
        if self.ended.recv_timeout(deadline).is_err() {
            tracing::warn!("the end of the recording may be missing: its disk is slow");
        }
    }

    fn send(&mut self, entry: Entry, bytes: usize) {
        let Some(to) = &self.to else { return };
        let waiting = self.waiting_bytes.load(Ordering::Relaxed);
        if waiting.saturating_add(bytes) > QUEUE_BYTES && waiting > 0 {
            return self.drop_one();
        }
        if self.dropped > 0 {
            let gap = Entry::Gap { steps: self.dropped };
            if to.try_send((gap, 0)).is_err() {
                return self.drop_one();
            }
            tracing::warn!(steps = self.dropped, "the recorder was behind; not recorded");
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

/// About how many bytes these take.
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

/// The thread's end.
struct Keeper {
    ring: Ring,
    incidents: Incidents,
    incidents_fail: bool,
    incident_errors: u64,
    give_back: SyncSender<Vec<Observation>>,
    tally: Arc<Tally>,
}

impl Keeper {
    fn follow(&mut self, entries: &Receiver<(Entry, usize)>, waiting: &AtomicUsize) {
        loop {
            match entries.try_recv() {
                Ok((entry, bytes)) => {
                    self.keep(&entry);
                    self.count();
                    waiting.fetch_sub(bytes, Ordering::Relaxed);
                    if let Entry::Step(step) = entry
                        && step.seen.len() <= MOST_USED
                    {
                        // One too many is let go of.
                        let _full = self.give_back.try_send(step.seen);
                    }
                }
                Err(TryRecvError::Empty) => std::thread::park_timeout(GATHERS),
                Err(TryRecvError::Disconnected) => break,
            }
        }
        if let Err(error) = self.ring.flush() {
            tracing::warn!("{error}");
        }
        if let Err(error) = self.incidents.end() {
            tracing::warn!("the incident that was being kept is cut: {error}");
        }
    }

    fn keep(&mut self, entry: &Entry) {
        if let Err(error) = self.ring.take(entry) {
            tracing::warn!("{error}");
        }
        match self.incidents.follow(entry, &mut self.ring) {
            Ok(None) => {}
            Ok(Some(path)) => {
                self.incidents_fail = false;
                let path = path.display();
                tracing::info!("the incident is kept for umawarden replay: {path}");
            }
            Err(error) => {
                self.incident_errors += 1;
                if !std::mem::replace(&mut self.incidents_fail, true) {
                    tracing::warn!("an incident cannot be kept: {error}");
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
