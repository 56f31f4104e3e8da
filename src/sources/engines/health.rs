//! Probes the health of engines on its own thread, each with a deadline.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::StatusCode;
use tokio::runtime::Runtime;
use tokio::sync::Notify;

use super::http::{ANSWER_TAKES, client, get};
use crate::clients::http::{HttpClient, HttpError};
use crate::clients::network::Network;
use crate::clients::{Endpoint, EngineKey, KeyRing, NoKey, origin};
use crate::engines::{HealthPath, LoadSource, facts};
use crate::model::{
    EngineHealth, EngineKind, EngineLoad, EngineSeen, EngineTarget, HealthResponse, Observation,
    ProcessId, Reading,
};

/// Probe intervals: for an engine that is not ready, and for a ready one, which logs a line per
/// probe.
const WHILE_DOWN: Duration = Duration::from_secs(1);
const WHILE_UP: Duration = Duration::from_secs(5);

/// A withheld key is logged once per life of an engine, and not more often than this.
const WITHHELD_LOGGED: Duration = Duration::from_secs(10);

/// The delay before an engine without a response is probed again.
const TICK: Duration = Duration::from_millis(200);

/// The size limit of a response.
const MAX_BODY_BYTES: usize = 4 << 20;

/// The first health path of a kind.
pub(super) fn path(kind: EngineKind) -> Option<&'static str> {
    facts(kind).health.first().map(|first| first.path)
}

/// An engine to probe.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Target {
    engine: Arc<str>,
    server: ProcessId,
    kind: EngineKind,
    url: Arc<str>,
    /// The network namespace of the address, if it is another one.
    network: Option<Network>,
    /// What sending the key to this process alone needs, for an engine with a key.
    keyed: Option<Arc<EngineTarget>>,
    procfs: Arc<Path>,
}

/// All engines to probe, shared by the scanner and the prober.
#[derive(Clone, Debug, Default)]
pub(super) struct Targets {
    known: Arc<Mutex<Vec<Target>>>,
    /// Signals a changed list.
    are_others: Arc<Notify>,
}

impl Targets {
    /// Replaces the list.
    pub(super) fn set(&self, engines: &[EngineSeen], procfs: &Path) {
        let network = |seen: &EngineSeen| {
            let name = Arc::clone(seen.health_network.as_ref()?);
            let pid = seen.processes.first()?.id.pid;
            Some(Network { file: procfs.join(pid.to_string()).join("ns/net"), name })
        };
        let target = |seen: &EngineSeen| {
            Some(Target {
                engine: Arc::clone(&seen.name),
                server: seen.server,
                kind: seen.kind,
                url: seen.health_url.clone()?,
                network: network(seen),
                keyed: seen.keys.api.is_some().then(|| Arc::new(EngineTarget::from(seen))),
                procfs: procfs.into(),
            })
        };
        let targets: Vec<Target> = engines.iter().filter_map(target).collect();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if *known != targets {
            *known = targets;
            self.are_others.notify_one();
        }
    }

    fn get(&self) -> Vec<Target> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The probe state of one engine.
#[derive(Debug, Default)]
struct ProbeState {
    next: Duration,
    is_pending: Arc<AtomicBool>,
    is_up: Arc<AtomicBool>,
    is_logged: Arc<AtomicBool>,
}

/// The time of the last log line about a withheld key.
type Logged = Arc<Mutex<Option<Duration>>>;

/// Probes engines.
#[derive(Debug)]
pub(super) struct HealthProber {
    targets: Targets,
    to: SyncSender<Observation>,
    clock: fn() -> Duration,
    runtime: Runtime,
    client: HttpClient,
    probes: BTreeMap<(Arc<str>, ProcessId), ProbeState>,
    logged: Logged,
    /// Whether the loop has ended.
    is_over: Arc<AtomicBool>,
}

impl HealthProber {
    pub(super) fn new(
        targets: Targets,
        to: SyncSender<Observation>,
        clock: fn() -> Duration,
    ) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (probes, is_over, logged) = (BTreeMap::new(), Arc::default(), Arc::default());
        let client = client().map_err(io::Error::other)?;
        Ok(Self { targets, to, clock, runtime, client, probes, logged, is_over })
    }

    /// Runs until the loop ends.
    pub(super) fn run(&mut self) {
        while self.begin_due() {
            let rest = self.next_in();
            let are_others = Arc::clone(&self.targets.are_others);
            // Running probes continue during the wait. The thread wakes only when needed.
            self.runtime.block_on(async {
                // Both a change of the list and the timeout are reasons to check again.
                let _ = tokio::time::timeout(rest, are_others.notified()).await;
            });
        }
    }

    /// Time until the next probe is due.
    fn next_in(&self) -> Duration {
        let now = (self.clock)();
        let next = self.probes.values().map(|state| state.next.saturating_sub(now)).min();
        next.map_or(Duration::MAX, |next| next.max(TICK))
    }

    /// Starts the probes that are due. Returns whether the loop still runs.
    fn begin_due(&mut self) -> bool {
        let now = (self.clock)();
        let targets = self.targets.get();
        let keys: BTreeSet<_> =
            targets.iter().map(|target| (Arc::clone(&target.engine), target.server)).collect();
        self.probes.retain(|key, _| keys.contains(key));
        for target in targets {
            let key = (Arc::clone(&target.engine), target.server);
            let state = self.probes.entry(key).or_default();
            if now < state.next || state.is_pending.swap(true, Ordering::Relaxed) {
                continue;
            }
            let is_up = state.is_up.load(Ordering::Relaxed);
            state.next = now + if is_up { WHILE_UP } else { WHILE_DOWN };
            let to = self.to.clone();
            let is_over = Arc::clone(&self.is_over);
            let (is_pending, is_up) = (Arc::clone(&state.is_pending), Arc::clone(&state.is_up));
            let (is_logged, logged) = (Arc::clone(&state.is_logged), Arc::clone(&self.logged));
            let client = self.client.clone();
            self.runtime.spawn(async move {
                let health = probe(target, &client, now).await;
                is_up.store(health.answer == HealthResponse::Ready, Ordering::Relaxed);
                is_pending.store(false, Ordering::Relaxed);
                log_withheld(&health, &is_logged, &logged);
                // A full queue: the next probe repeats the result.
                if let Err(TrySendError::Disconnected(_)) =
                    to.try_send(Observation::EngineHealth(Box::new(health)))
                {
                    is_over.store(true, Ordering::Relaxed);
                }
            });
        }
        !self.is_over.load(Ordering::Relaxed)
    }
}

async fn probe(target: Target, client: &HttpClient, now: Duration) -> EngineHealth {
    let answer = target.answer(client).await;
    let (key, key_withheld) = match answer {
        HealthResponse::Ready => {
            target.key().await.map_or_else(|why| (None, Some(why)), |k| (k, None))
        }
        _ => (None, None),
    };
    let load = match answer {
        HealthResponse::Ready => target.load(client, key.as_ref()).await,
        _ => EngineLoad::default(),
    };
    let key_withheld = key_withheld.or_else(|| key.and_then(|key| key.refusal()));
    let Target { engine, server, .. } = target;
    let requests = load.requests();
    let asked_at = now;
    EngineHealth { engine, server, asked_at, answer, requests, load, key_withheld }
}

fn log_withheld(health: &EngineHealth, is_logged: &AtomicBool, logged: &Logged) {
    let Some(why) = &health.key_withheld else { return };
    let mut last = logged.lock().unwrap_or_else(PoisonError::into_inner);
    let is_lately = last.is_some_and(|last| health.asked_at.saturating_sub(last) < WITHHELD_LOGGED);
    if !is_lately && !is_logged.swap(true, Ordering::Relaxed) {
        *last = Some(health.asked_at);
        tracing::warn!(engine = %health.engine, pid = %health.server, %why, "key withheld");
    }
}

impl Target {
    async fn answer(&self, client: &HttpClient) -> HealthResponse {
        let (usual, origin) = (facts(self.kind).health, origin(&self.url));
        let is_usual =
            usual.first().is_some_and(|first| format!("{origin}{}", first.path) == *self.url);
        if !is_usual {
            return self.answer_at(client, &self.url).await;
        }
        let mut last = HealthResponse::Failed { error: "it cannot be queried".to_owned() };
        for HealthPath { path, overrules_unready } in usual {
            let unready = matches!(last, HealthResponse::NotReady { .. });
            if unready && !overrules_unready {
                return last;
            }
            match self.answer_at(client, &format!("{origin}{path}")).await {
                HealthResponse::Failed { error } if error.starts_with("404") => {
                    if !unready {
                        last = HealthResponse::Failed { error };
                    }
                }
                answer @ HealthResponse::NotReady { .. } => last = answer,
                answer => return answer,
            }
        }
        last
    }

    async fn answer_at(&self, client: &HttpClient, url: &str) -> HealthResponse {
        let error = match get(client, url, self.network.as_ref(), None, 0).await {
            Ok(answer) => return answer_of(answer.status),
            Err(error) => error,
        };
        match &error {
            HttpError::TimedOut(_) | HttpError::ConnectTimedOut(_) => HealthResponse::TimedOut,
            HttpError::Connect(why) => match why.kind() {
                io::ErrorKind::ConnectionRefused => HealthResponse::Refused,
                io::ErrorKind::TimedOut => HealthResponse::TimedOut,
                io::ErrorKind::NotFound => {
                    HealthResponse::Failed { error: "its network is gone".to_owned() }
                }
                _ => HealthResponse::Failed { error: why.to_string() },
            },
            error => HealthResponse::Failed { error: error.to_string() },
        }
    }

    /// The load that the engine reports.
    async fn load(&self, client: &HttpClient, key: Option<&EngineKey>) -> EngineLoad {
        for source in facts(self.kind).load {
            let load = self.load_from(client, source, key).await;
            if !load.is_empty() {
                return load;
            }
        }
        EngineLoad::NONE
    }

    async fn load_from(
        &self,
        client: &HttpClient,
        source: &LoadSource,
        key: Option<&EngineKey>,
    ) -> EngineLoad {
        let url = format!("{}{}", origin(&self.url), source.path);
        let facts = facts(self.kind);
        let is_core = facts.core_load == Some(source.path);
        match get(client, &url, self.network.as_ref(), key, MAX_BODY_BYTES).await {
            Ok(answer) if answer.is_success() => match (source.read)(&answer.text()) {
                Some(load) if is_core => EngineLoad { core_answers: Reading::Value(true), ..load },
                load => load.unwrap_or_default(),
            },
            Ok(_) => EngineLoad::default(),
            Err(HttpError::TimedOut(_)) if is_core => {
                EngineLoad { core_answers: Reading::Failed, ..facts.unread_load }
            }
            Err(_) => facts.unread_load,
        }
    }

    /// The key of the engine, if it has one; an error says why it is not sent. Reading its file may
    /// hang, but no other thread waits for it.
    async fn key(&self) -> Result<Option<EngineKey>, Arc<str>> {
        let Some(engine) = self.keyed.clone() else { return Ok(None) };
        let endpoint =
            Endpoint { origin: origin(&self.url).to_owned(), network: self.network.clone() };
        let ring = KeyRing::new(&self.procfs, engine, endpoint);
        let reading = tokio::task::spawn_blocking(move || ring.api());
        match tokio::time::timeout(ANSWER_TAKES, reading).await {
            Ok(Ok(Ok(key))) => Ok(key),
            Ok(Ok(Err(NoKey::Unreadable(error)))) => Err(error.to_string().into()),
            Ok(Ok(Err(NoKey::Unproven(why)))) => Err(why.into()),
            Ok(Err(_)) | Err(_) => {
                let seconds = ANSWER_TAKES.as_secs();
                Err(format!("the key cannot be read within {seconds} s").into())
            }
        }
    }
}

fn answer_of(status: u16) -> HealthResponse {
    match status {
        // A server that requires a key is ready.
        200..=299 | 401 | 403 => HealthResponse::Ready,
        500..=599 => HealthResponse::NotReady { status },
        status => {
            let known = StatusCode::from_u16(status);
            let error = known.map_or_else(|_| status.to_string(), |status| status.to_string());
            HealthResponse::Failed { error }
        }
    }
}
