//! Asks engines for their health, on a thread of its own, each with a deadline.

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

use super::http::{ANSWER_TAKES, NoAnswer, get};
use crate::clients::network::Network;
use crate::clients::{EngineKey, KeyRing, NoKey, Place, origin};
use crate::engines::{HealthPath, LoadSource, facts};
use crate::model::{
    EngineHealth, EngineKind, EngineLoad, EngineSeen, EngineTarget, HealthAnswer, Observation,
    ProcessId,
};

/// Between two questions: to one that is on its way, and to one that answers, which writes a line
/// of log for each.
const WHILE_DOWN: Duration = Duration::from_secs(1);
const WHILE_UP: Duration = Duration::from_secs(5);

/// That a key is withheld is logged once for each life of an engine, and no more often than this.
const WITHHELD_LOGGED: Duration = Duration::from_secs(10);

/// How soon somebody is asked again who has not answered by then.
const TICK: Duration = Duration::from_millis(200);

/// Of an answer no more is read.
const MAX_BODY_BYTES: usize = 4 << 20;

/// Where a kind is asked first, if it can be.
pub(super) fn path(kind: EngineKind) -> Option<&'static str> {
    facts(kind).health.first().map(|first| first.path)
}

/// Whom to ask.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Target {
    engine: Arc<str>,
    server: ProcessId,
    kind: EngineKind,
    url: Arc<str>,
    /// Where that address means it, if that is not our own network.
    network: Option<Network>,
    /// What is needed to send it its key, and no other process: where it has one.
    keyed: Option<Arc<EngineTarget>>,
    procfs: Arc<Path>,
}

/// All whom to ask; shared by the two threads, and by nobody else.
#[derive(Clone, Debug, Default)]
pub(super) struct Targets {
    known: Arc<Mutex<Vec<Target>>>,
    /// They are others than before.
    are_others: Arc<Notify>,
}

impl Targets {
    /// Those from now on.
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

/// How the asking of one engine stands.
#[derive(Debug, Default)]
struct Course {
    next: Duration,
    is_asked: Arc<AtomicBool>,
    is_up: Arc<AtomicBool>,
    is_logged: Arc<AtomicBool>,
}

/// When it was last logged that a key is withheld.
type Logged = Arc<Mutex<Option<Duration>>>;

/// Asks.
#[derive(Debug)]
pub(super) struct Asker {
    targets: Targets,
    to: SyncSender<Observation>,
    clock: fn() -> Duration,
    runtime: Runtime,
    courses: BTreeMap<(Arc<str>, ProcessId), Course>,
    logged: Logged,
    /// The loop has gone.
    is_over: Arc<AtomicBool>,
}

impl Asker {
    pub(super) fn new(
        targets: Targets,
        to: SyncSender<Observation>,
        clock: fn() -> Duration,
    ) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (courses, is_over, logged) = (BTreeMap::new(), Arc::default(), Arc::default());
        Ok(Self { targets, to, clock, runtime, courses, logged, is_over })
    }

    /// Until the loop has gone.
    pub(super) fn run(&mut self) {
        while self.begin_due() {
            let rest = self.next_in();
            let are_others = Arc::clone(&self.targets.are_others);
            // What was begun goes on meanwhile. The machine is not woken for nothing.
            self.runtime.block_on(async {
                // Both are reasons to look whom to ask.
                let _or_its_time_has_come = tokio::time::timeout(rest, are_others.notified()).await;
            });
        }
    }

    /// How long nobody is to be asked.
    fn next_in(&self) -> Duration {
        let now = (self.clock)();
        let next = self.courses.values().map(|course| course.next.saturating_sub(now)).min();
        next.map_or(Duration::MAX, |next| next.max(TICK))
    }

    /// Asks those whose time has come. Returns whether anybody still wants to know.
    fn begin_due(&mut self) -> bool {
        let now = (self.clock)();
        let targets = self.targets.get();
        let keys: BTreeSet<_> =
            targets.iter().map(|target| (Arc::clone(&target.engine), target.server)).collect();
        self.courses.retain(|key, _| keys.contains(key));
        for target in targets {
            let key = (Arc::clone(&target.engine), target.server);
            let course = self.courses.entry(key).or_default();
            if now < course.next || course.is_asked.swap(true, Ordering::Relaxed) {
                continue;
            }
            let is_up = course.is_up.load(Ordering::Relaxed);
            course.next = now + if is_up { WHILE_UP } else { WHILE_DOWN };
            let to = self.to.clone();
            let is_over = Arc::clone(&self.is_over);
            let (is_asked, is_up) = (Arc::clone(&course.is_asked), Arc::clone(&course.is_up));
            let (is_logged, logged) = (Arc::clone(&course.is_logged), Arc::clone(&self.logged));
            self.runtime.spawn(async move {
                let health = ask(target, now).await;
                is_up.store(health.answer == HealthAnswer::Ready, Ordering::Relaxed);
                is_asked.store(false, Ordering::Relaxed);
                log_withheld(&health, &is_logged, &logged);
                // What the loop does not take in time is asked again.
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

async fn ask(target: Target, now: Duration) -> EngineHealth {
    let answer = target.answer().await;
    let (key, key_withheld) = match answer {
        HealthAnswer::Ready => {
            target.key().await.map_or_else(|why| (None, Some(why)), |k| (k, None))
        }
        _ => (None, None),
    };
    let load = match answer {
        HealthAnswer::Ready => target.load(key.as_ref()).await,
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
    async fn answer(&self) -> HealthAnswer {
        let (usual, origin) = (facts(self.kind).health, origin(&self.url));
        let is_usual =
            usual.first().is_some_and(|first| format!("{origin}{}", first.path) == *self.url);
        if !is_usual {
            return self.answer_at(&self.url).await;
        }
        let mut last = HealthAnswer::Failed { error: "it cannot be asked".to_owned() };
        for HealthPath { path, overrules_unready } in usual {
            let unready = matches!(last, HealthAnswer::NotReady { .. });
            if unready && !overrules_unready {
                return last;
            }
            match self.answer_at(&format!("{origin}{path}")).await {
                HealthAnswer::Failed { error } if error.starts_with("404") => {
                    if !unready {
                        last = HealthAnswer::Failed { error };
                    }
                }
                answer @ HealthAnswer::NotReady { .. } => last = answer,
                answer => return answer,
            }
        }
        last
    }

    async fn answer_at(&self, url: &str) -> HealthAnswer {
        match get(url, self.network.as_ref(), None, 0).await {
            Ok(answer) => answer_of(answer.status),
            Err(NoAnswer::TimedOut) => HealthAnswer::TimedOut,
            Err(NoAnswer::Refused) => HealthAnswer::Refused,
            Err(NoAnswer::Absent) => {
                HealthAnswer::Failed { error: "its network is gone".to_owned() }
            }
            Err(NoAnswer::Failed(error)) => HealthAnswer::Failed { error },
        }
    }

    /// What it tells of its work.
    async fn load(&self, key: Option<&EngineKey>) -> EngineLoad {
        for source in facts(self.kind).load {
            let load = self.told_at(source, key).await;
            if !load.is_empty() {
                return load;
            }
        }
        EngineLoad::NONE
    }

    async fn told_at(&self, source: &LoadSource, key: Option<&EngineKey>) -> EngineLoad {
        let url = format!("{}{}", origin(&self.url), source.path);
        match get(&url, self.network.as_ref(), key, MAX_BODY_BYTES).await {
            Ok(answer) if answer.status.is_success() => {
                (source.read)(&String::from_utf8_lossy(&answer.body)).unwrap_or_default()
            }
            Ok(_) => EngineLoad::default(),
            Err(_) => facts(self.kind).unread_load,
        }
    }

    /// Its key, if it has one; an error says why it is not sent. Files may hang, and nobody waits
    /// for them.
    async fn key(&self) -> Result<Option<EngineKey>, Arc<str>> {
        let Some(engine) = self.keyed.clone() else { return Ok(None) };
        let place = Place { origin: origin(&self.url).to_owned(), network: self.network.clone() };
        let ring = KeyRing::new(&self.procfs, engine, place);
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

fn answer_of(status: StatusCode) -> HealthAnswer {
    match status {
        status if status.is_success() => HealthAnswer::Ready,
        // Who asks for a key is there.
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => HealthAnswer::Ready,
        status if status.is_server_error() => HealthAnswer::NotReady { status: status.as_u16() },
        status => HealthAnswer::Failed { error: format!("{status}") },
    }
}
