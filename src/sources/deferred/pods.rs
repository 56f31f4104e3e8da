//! The ends of containers of pods, of engines, as the container runtime of Kubernetes (CRI) reports
//! them. A kubelet starts them again, so that nothing can be deferred here; an entry that asks for
//! that is answered with the reason.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use super::adopted::AdoptedContainers;
use super::matching::RestartEntries;
use super::{Reporter, TrackedPods, block_on};
use crate::engines::last_words;
use crate::files::{is_log_of, open_regular};
use crate::model::{
    DeclaredRestart, DeferredRestart, EndedWorkload, EngineSeen, OnRequest, Pod, Proof, Supervisor,
    Workload, WorkloadEnd, WorkloadLog, WorkloadState,
};
use crate::parse::container::{cri_end, pod_log_end};
use crate::supervisors::cri::{Cri, CriError};

/// Between two queries, and after a failed one.
const EVERY: Duration = Duration::from_secs(1);
const AGAIN: Duration = Duration::from_secs(10);

/// Timeout of one response, and of all of one runtime.
const ANSWER_TAKES: Duration = Duration::from_secs(2);
const QUERY_TAKES: Duration = Duration::from_secs(5);

/// Timeout of reading a log.
const LOG_TAKES: Duration = Duration::from_secs(2);

/// So much of a log is read, from its end.
const MAX_LOG_BYTES: u64 = 256 << 10;

/// A container is tracked for this time after its engine is gone.
const TRACKED_FOR: Duration = Duration::from_secs(60);

/// How long an end is sent, since messages may be dropped.
const IS_REPORTED: Duration = Duration::from_secs(30);

/// A kubelet that stops a pod stops its containers first, and its sandbox right after that.
const SANDBOX_STOPS_WITHIN: Duration = Duration::from_secs(2);

/// The most runtimes, and the most containers of one.
const MOST_RUNTIMES: usize = 4;
const MOST_CONTAINERS: usize = 64;

const OBSTACLE: &str = "the kubelet starts it again itself, whether or not there is memory, and \
    umawarden cannot hold it: have the container's command wait for /api/v1/gate before the engine \
    begins, since init containers do not run again; to keep it stopped, scale its workload down";

/// A container of a pod in which an engine is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrackedPod {
    /// Its name within the pod.
    pub container: Arc<str>,
    /// The pod that the container belongs to, where it is known.
    pub pod: Option<Arc<Pod>>,
    /// The file of its log.
    pub log: Option<Arc<str>>,
}

impl TrackedPod {
    /// The container of an engine, with the socket of its runtime and its id.
    pub(super) fn of(engine: &EngineSeen) -> Option<(&Arc<str>, &Arc<str>, Self)> {
        let id = engine.container.as_ref().filter(|_| engine.proof == Proof::PodContainer)?;
        let runtime = engine.runtime.as_ref()?;
        let container = Arc::clone(engine.container_name.as_ref().unwrap_or(id));
        let (pod, log) = (engine.pod.clone(), runtime.log.clone());
        Some((&runtime.socket, id, Self { container, pod, log }))
    }

    /// `NAMESPACE/POD/CONTAINER`, or the container's name alone.
    fn name(&self) -> Arc<str> {
        match &self.pod {
            Some(pod) => format!("{}/{}/{}", pod.namespace, pod.name, pod.container).into(),
            None => Arc::clone(&self.container),
        }
    }

    fn labels(&self) -> BTreeMap<String, String> {
        let labels = self.pod.iter().filter_map(|pod| pod.labels.as_ref()).flatten();
        labels.map(|(key, value)| (key.to_string(), value.to_string())).collect()
    }
}

/// The thread that queries the runtimes of pods.
#[derive(Debug)]
pub(super) struct PodEnds {
    tracked: watch::Receiver<TrackedPods>,
    declared: watch::Receiver<Arc<[DeclaredRestart]>>,
    reporter: Reporter,
    runtimes: BTreeMap<Arc<str>, PodRuntime>,
}

/// One runtime, and its containers of engines.
#[derive(Debug)]
struct PodRuntime {
    socket: PathBuf,
    reporter: Reporter,
    cri: Option<Cri>,
    containers: BTreeMap<Arc<str>, WatchedContainer>,
    retry_at: Duration,
}

/// A container, as it was last.
#[derive(Debug)]
struct WatchedContainer {
    its: TrackedPod,
    /// When an engine was in it last.
    used_at: Duration,
    /// When it was started, as the runtime writes it.
    started: Option<Arc<str>>,
    /// Its end, and when it was noticed.
    end: Option<(WorkloadEnd, Duration)>,
}

impl PodEnds {
    pub(super) fn new(
        tracked: watch::Receiver<TrackedPods>,
        declared: watch::Receiver<Arc<[DeclaredRestart]>>,
        reporter: Reporter,
    ) -> Self {
        Self { tracked, declared, reporter, runtimes: BTreeMap::new() }
    }

    /// Runs until the loop has ended.
    pub(super) fn run(&mut self) {
        block_on(self.watch(), "cannot query the runtimes of pods");
    }

    async fn watch(&mut self) {
        loop {
            let now = (self.reporter.clock)().uptime;
            self.track(now);
            if self.runtimes.is_empty() {
                if self.tracked.changed().await.is_err() {
                    return;
                }
                continue;
            }
            let mut does_answer = false;
            for runtime in self.runtimes.values_mut() {
                does_answer |= runtime.query(now).await;
            }
            if does_answer {
                let reported = (self.deferred(now), self.ended(now));
                self.reporter.report(Supervisor::Cri, now, reported);
            }
            tokio::select! {
                changed = self.tracked.changed() => if changed.is_err() {
                    return;
                },
                () = sleep(EVERY) => {}
            }
        }
    }

    /// Takes the containers in which engines are now.
    fn track(&mut self, now: Duration) {
        let tracked = Arc::clone(&self.tracked.borrow_and_update());
        for (socket, containers) in tracked.iter() {
            if self.runtimes.len() >= MOST_RUNTIMES && !self.runtimes.contains_key(socket) {
                continue;
            }
            let reporter = &self.reporter;
            let make = || PodRuntime::new(socket, reporter.clone());
            let runtime = self.runtimes.entry(Arc::clone(socket)).or_insert_with(make);
            for (id, its) in containers {
                let is_full = runtime.containers.len() >= MOST_CONTAINERS;
                match runtime.containers.get_mut(id) {
                    Some(known) => (known.its, known.used_at) = (its.clone(), now),
                    None if is_full => {}
                    None => {
                        runtime
                            .containers
                            .insert(Arc::clone(id), WatchedContainer::new(its.clone(), now));
                    }
                }
            }
        }
        for runtime in self.runtimes.values_mut() {
            let is_recent = |at: Duration| now.saturating_sub(at) < TRACKED_FOR;
            runtime.containers.retain(|_, known| is_recent(known.used_at));
        }
        self.runtimes.retain(|_, runtime| !runtime.containers.is_empty());
    }

    /// The containers whose restarts somebody wants deferred, and why that cannot be.
    fn deferred(&self, now: Duration) -> Vec<DeferredRestart> {
        let declared = Arc::clone(&self.declared.borrow());
        let wanted = RestartEntries { declared: &declared, adopted: &AdoptedContainers::default() };
        let all = self.runtimes.values().flat_map(|runtime| &runtime.containers);
        let mut names = BTreeSet::new();
        let current = all.filter(|(_, known)| known.used_at == now);
        let deferred = current.filter_map(|(id, known)| {
            let terms = wanted.terms(id, &known.its.container, &known.its.labels())?;
            let target = known.target(id);
            let is_new = names.insert(Arc::clone(&target.name));
            is_new.then(|| terms.never(target, known.state(), OBSTACLE))
        });
        deferred.collect()
    }

    fn ended(&self, now: Duration) -> Vec<EndedWorkload> {
        let all = self.runtimes.values().flat_map(|runtime| &runtime.containers);
        let ended = all.filter_map(|(id, known)| {
            let (end, noticed) = known.end.as_ref()?;
            let is_recent = now.saturating_sub(*noticed) < IS_REPORTED;
            (is_recent && !known.may_change(now))
                .then(|| EndedWorkload { target: known.target(id), end: end.clone() })
        });
        ended.collect()
    }
}

impl WatchedContainer {
    fn new(its: TrackedPod, used_at: Duration) -> Self {
        Self { its, used_at, started: None, end: None }
    }

    fn target(&self, id: &Arc<str>) -> Workload {
        Workload { supervisor: Supervisor::Cri, name: self.its.name(), id: Arc::clone(id) }
    }

    fn state(&self) -> WorkloadState {
        match (&self.end, &self.started) {
            (Some((end, _)), _) => WorkloadState::Ended(end.clone()),
            (None, Some(mark)) => WorkloadState::Running { mark: Arc::clone(mark), health: None },
            (None, None) => WorkloadState::Between { status: "not reported yet".into() },
        }
    }

    /// Whether its pod may be stopped as well, which is known a little later.
    fn may_change(&self, now: Duration) -> bool {
        self.end.as_ref().is_some_and(|(end, noticed)| {
            let is_late = now.saturating_sub(*noticed) >= SANDBOX_STOPS_WITHIN;
            let is_like_a_stop = matches!(end.exit_code, Some(0)) || end.looks_requested();
            is_like_a_stop && !end.is_pod_stopped && !is_late
        })
    }
}

impl PodRuntime {
    fn new(socket: &str, reporter: Reporter) -> Self {
        let (cri, containers) = (None, BTreeMap::new());
        Self { socket: socket.into(), reporter, cri, containers, retry_at: Duration::ZERO }
    }

    /// Queries its containers; returns whether it has answered.
    async fn query(&mut self, now: Duration) -> bool {
        if now < self.retry_at {
            return false;
        }
        let queried = timeout(QUERY_TAKES, self.query_all(now)).await;
        let Err(error) = queried.unwrap_or(Err(CriError::TimedOut(QUERY_TAKES))) else {
            return true;
        };
        let socket = self.socket.display();
        tracing::info!(%socket, %error, "ends of containers of pods are unknown");
        (self.cri, self.retry_at) = (None, now + AGAIN);
        false
    }

    async fn query_all(&mut self, now: Duration) -> Result<(), CriError> {
        let cri = match self.cri.take() {
            Some(cri) => cri,
            None => Cri::connect(&self.socket, ANSWER_TAKES).await?,
        };
        for (id, known) in &mut self.containers {
            let is_open = known.end.is_none();
            if !is_open && !known.may_change(now) {
                continue;
            }
            if is_open {
                known.examine(&cri, id, &self.reporter).await?;
            }
            if let Some((end, _)) = &mut known.end {
                let sandbox = cri.sandbox_of(id).await?;
                if sandbox.is_some_and(|sandbox| sandbox.is_stopped()) {
                    stopped_with_pod(end);
                }
            }
        }
        self.cri = Some(cri);
        Ok(())
    }
}

impl WatchedContainer {
    async fn examine(&mut self, cri: &Cri, id: &str, reporter: &Reporter) -> Result<(), CriError> {
        let status = cri.short_status(id).await?;
        let at = (reporter.clock)();
        let end = match &status {
            Some(status) => {
                let started = Timestamp::from_nanosecond(status.started_at.into()).ok();
                self.started = started.map(|at| at.to_string().into());
                let Some(mut end) = cri_end(&status.exit()) else { return Ok(()) };
                let path = Some(&*status.log_path).filter(|path| !path.is_empty());
                let path = path.or(self.its.log.as_deref()).map(PathBuf::from);
                end.log = Some(Arc::new(read_log(path, started).await));
                end
            }
            // Not before it has run: it was removed with its log.
            None => WorkloadEnd {
                mark: at.utc.to_string().into(),
                utc: Some(at.utc),
                log: Some(Arc::new(WorkloadLog::Unknown(
                    "its container is gone, and its log with it".to_owned(),
                ))),
                ..WorkloadEnd::unknown()
            },
        };
        self.end = Some((end, at.uptime));
        Ok(())
    }
}

/// Its pod was stopped as well. An end by a signal is then the kubelet's request, unless it is one
/// for memory.
fn stopped_with_pod(end: &mut WorkloadEnd) {
    end.is_pod_stopped = true;
    if end.looks_requested() {
        end.requested = OnRequest::Yes;
    }
}

/// The last lines of a log. The runtime names its path, and root alone can write there.
async fn read_log(path: Option<PathBuf>, since: Option<Timestamp>) -> WorkloadLog {
    let Some(path) = path else {
        return WorkloadLog::Unknown("the container runtime names no log of it".to_owned());
    };
    let shown = path.display().to_string();
    // Its file system may hang.
    let read = timeout(LOG_TAKES, spawn_blocking(move || end_of_file(&path))).await;
    let text = match read {
        Ok(Ok(Ok(text))) => text,
        Ok(Ok(Err(error))) if error.kind() == io::ErrorKind::NotFound => {
            let why =
                format!("{shown} is not there: in a container, mount /var/log/pods of the host");
            return WorkloadLog::Unknown(why);
        }
        Ok(Ok(Err(error))) => return WorkloadLog::Unknown(format!("{shown}: {error}")),
        Ok(Err(_)) | Err(_) => {
            return WorkloadLog::Unknown(format!("{shown} was not read in time"));
        }
    };
    WorkloadLog::Lines(pod_log_end(&text, since, |line| last_words(line).is_some()))
}

/// The end of a file, from the beginning of a line.
fn end_of_file(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = open_regular(path)?;
    let found = file.metadata()?;
    if !is_log_of(&found, None) {
        return Err(io::Error::other("it is no log"));
    }
    let start = found.len().saturating_sub(MAX_LOG_BYTES);
    file.seek(SeekFrom::Start(start))?;
    let mut text = Vec::new();
    file.take(MAX_LOG_BYTES).read_to_end(&mut text)?;
    if start > 0 {
        let line = text.iter().position(|byte| *byte == b'\n').map_or(text.len(), |end| end + 1);
        text.drain(..line);
    }
    Ok(text)
}

#[cfg(test)]
mod tests;
