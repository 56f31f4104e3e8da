//! Asks Docker how the containers fare that are started again.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::Teller;
use super::adopted::AdoptedFile;
use super::matching::Wanted;
use crate::model::{
    DeclaredRestart, HeldEnd, HeldReadings, HeldSeen, HeldState, Requested, RestartMatch,
    Supervisor,
};
use crate::parse::container::{ContainerEvent, containers, event, inspected, requested};
use crate::supervisors::docker::{Docker, Lines, NoAnswer, escaped};

/// How long it may take to answer.
const ANSWER_TAKES: Duration = Duration::from_secs(5);

/// Of an answer no more is read.
const MAX_LIST_BYTES: usize = 16 << 20;
const MAX_INSPECT_BYTES: usize = 1 << 20;
const MAX_EVENTS_BYTES: usize = 4 << 20;

/// Between two looks at all, whatever Docker tells by itself.
const EVERY: Duration = Duration::from_secs(5);
/// The same while nothing is started again.
const IDLE: Duration = Duration::from_secs(10);
/// After it could not be asked.
const AGAIN: Duration = Duration::from_millis(500);
/// However much happens, it is asked no more often.
const AT_LEAST: Duration = Duration::from_millis(50);
/// The same while nothing is started again, whatever happens to other containers.
const SELDOM: Duration = Duration::from_secs(1);

/// By then Docker tells all that it knows of an end.
const SETTLES_SECONDS: i64 = 10;

/// More containers of one node are not started again.
const MAX_HELD: usize = 64;

/// What is worth asking again for. Health checks are executed all the time, and left out.
const EVENTS: [&str; 9] =
    ["create", "destroy", "die", "kill", "oom", "rename", "start", "update", "health_status"];

/// What is known of one container beyond what is asked anew each time.
#[derive(Clone, Debug)]
struct Known {
    /// When its life began that was seen to go on, as Docker writes it.
    seen_running: Option<Arc<str>>,
    /// The end of which it is known whether somebody wanted it.
    judged: Option<(Arc<str>, Requested)>,
}

/// Asks.
#[derive(Debug)]
pub(super) struct DockerWatch {
    docker: Docker,
    adopted: AdoptedFile,
    declared: watch::Receiver<Arc<[DeclaredRestart]>>,
    teller: Teller,
    known: BTreeMap<Arc<str>, Known>,
    has_held: bool,
    /// What happens is told late, or not at all: it is looked at more often instead.
    is_mute: bool,
}

impl DockerWatch {
    pub(super) fn new(
        socket: &Path,
        adopted: &Path,
        declared: watch::Receiver<Arc<[DeclaredRestart]>>,
        teller: Teller,
    ) -> Self {
        Self {
            docker: Docker::new(socket),
            adopted: AdoptedFile::new(adopted),
            declared,
            teller,
            known: BTreeMap::new(),
            has_held: false,
            is_mute: false,
        }
    }

    /// Until nobody can want to know any more.
    pub(super) fn run(&mut self) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        match runtime {
            Ok(runtime) => runtime.block_on(self.watch()),
            Err(error) => {
                let why = format!("Docker cannot be asked: starting a runtime failed: {error}");
                self.teller.doubt(Supervisor::Docker, &why);
            }
        }
    }

    async fn watch(&mut self) {
        loop {
            // Whatever happens from now on is told by the stream, or seen by the look.
            let lines = if self.is_mute { None } else { self.begin_to_follow().await };
            match self.look().await {
                Ok(held) => {
                    self.has_held = !held.is_empty();
                    self.tell(held);
                }
                Err(error) => {
                    self.is_mute = false;
                    if self.is_to_be_told(&error) {
                        self.teller.doubt(Supervisor::Docker, &error.to_string());
                    }
                    if self.rest(if self.has_held { AGAIN } else { IDLE }).await {
                        return;
                    }
                    continue;
                }
            }
            let is_over = match lines {
                Some(lines) => self.follow(lines).await,
                None => self.rest(if self.has_held { AGAIN } else { IDLE }).await,
            };
            if is_over {
                return;
            }
        }
    }

    /// Without Docker nothing is lacking, unless somebody counts on it.
    fn is_to_be_told(&self, error: &NoAnswer) -> bool {
        let counts_on_it =
            |entry: &DeclaredRestart| !matches!(entry.matches, RestartMatch::Unit(_));
        self.has_held
            || self.declared.borrow().iter().any(counts_on_it)
            || !matches!(error, NoAnswer::Absent | NoAnswer::Refused)
    }

    /// Waits; whether nobody can want to know any more.
    async fn rest(&mut self, time: Duration) -> bool {
        match timeout(time, self.declared.changed()).await {
            Ok(Ok(())) | Err(_) => false,
            Ok(Err(_)) => true,
        }
    }

    fn tell(&self, held: Vec<HeldSeen>) {
        let read_at = (self.teller.clock)().uptime;
        let supervisor = Supervisor::Docker;
        self.teller.tell(HeldReadings { supervisor, read_at, held, error: None });
    }

    async fn begin_to_follow(&mut self) -> Option<Lines> {
        let filters = serde_json::json!({ "type": ["container"], "event": EVENTS });
        let path = format!("/events?filters={}", escaped(&filters.to_string()));
        let lines = self.docker.follow(&path, ANSWER_TAKES).await;
        // Podman begins to answer when something has happened.
        self.is_mute = matches!(lines, Err(NoAnswer::TimedOut(_)));
        lines.ok()
    }

    /// Looks again whenever something happens, and after a while; whether nobody can want to know
    /// any more. Returns when the stream ends, too: then Docker does.
    async fn follow(&mut self, mut lines: Lines) -> bool {
        loop {
            let happens = async {
                let line = lines.next().await;
                matches!(line, Ok(Some(_)))
            };
            let goes_on = tokio::select! {
                goes_on = happens => goes_on,
                changed = self.declared.changed() => {
                    if changed.is_err() {
                        return true;
                    }
                    true
                }
                () = sleep(if self.has_held { EVERY } else { IDLE }) => true,
            };
            if !goes_on {
                return false;
            }
            // What happens together is looked at once.
            let gathers = sleep(if self.has_held { AT_LEAST } else { SELDOM });
            tokio::pin!(gathers);
            loop {
                tokio::select! {
                    line = lines.next() => if !matches!(line, Ok(Some(_))) {
                        return false;
                    },
                    () = &mut gathers => break,
                }
            }
            match self.look().await {
                Ok(held) => {
                    self.has_held = !held.is_empty();
                    self.tell(held);
                }
                Err(error) => {
                    self.teller.doubt(Supervisor::Docker, &error.to_string());
                    return false;
                }
            }
        }
    }

    /// All containers that are started again.
    async fn look(&mut self) -> Result<Vec<HeldSeen>, NoAnswer> {
        let listed =
            self.docker.get("/containers/json?all=1", MAX_LIST_BYTES, ANSWER_TAKES).await?;
        if listed.status != 200 {
            return Err(NoAnswer::Failed(listed.message()));
        }
        let all = containers(&listed.body).map_err(NoAnswer::Failed)?;
        let declared = Arc::clone(&self.declared.borrow_and_update());
        let adopted = match self.adopted.read() {
            Ok(adopted) => adopted.clone(),
            Err(error) => return Err(NoAnswer::Failed(error.to_string())),
        };
        let wanted = Wanted { declared: &declared, adopted: &adopted };
        let mut held = Vec::new();
        for (id, container) in &all {
            let Some(terms) = wanted.terms(id, &container.name, &container.labels) else {
                continue;
            };
            if held.len() >= MAX_HELD {
                break;
            }
            let path = format!("/containers/{id}/json");
            let told = self.docker.get(&path, MAX_INSPECT_BYTES, ANSWER_TAKES).await?;
            match told.status {
                200 => {
                    let found = inspected(&told.body).map_err(NoAnswer::Failed)?;
                    let requested = self.judge(&found.id, &found.started, &found.state).await;
                    held.push(terms.held(&found, requested));
                }
                // It has gone meanwhile.
                404 => {}
                _ => return Err(NoAnswer::Failed(told.message())),
            }
        }
        self.known.retain(|id, _| all.contains_key(id));
        Ok(held)
    }

    /// Whether somebody wanted its end: asked for once for each end.
    async fn judge(&mut self, id: &Arc<str>, started: &Arc<str>, state: &HeldState) -> Requested {
        let fresh = Known { seen_running: None, judged: None };
        let known = self.known.entry(Arc::clone(id)).or_insert(fresh);
        if let HeldState::Running { mark, .. } = state {
            known.seen_running = Some(Arc::clone(mark));
        }
        let HeldState::Ended(end) = state else { return Requested::Unknown };
        if let Some((mark, judged)) = &known.judged
            && *mark == end.mark
        {
            return *judged;
        }
        let was_watched = known.seen_running.as_ref() == Some(started);
        let judged = match self.events_of(id, end).await {
            Some(events) => match requested(end, &events) {
                // Docker that remembers nothing of an end was itself down then, and nobody can
                // have asked it for that.
                Requested::Unknown if was_watched => Requested::No,
                judged => judged,
            },
            None => Requested::Unknown,
        };
        // What was just written down may be told a moment later.
        let age = end.utc.map(|utc| (self.teller.clock)().utc.duration_since(utc));
        let is_old = age.is_some_and(|age| age.as_secs() >= SETTLES_SECONDS);
        if (judged != Requested::Unknown || is_old)
            && let Some(known) = self.known.get_mut(id)
        {
            known.judged = Some((Arc::clone(&end.mark), judged));
        }
        judged
    }

    /// What Docker remembers of a container's last life; `None`: it does not tell.
    async fn events_of(&self, id: &str, end: &HeldEnd) -> Option<Vec<ContainerEvent>> {
        let ended = end.utc?.as_second();
        let lived = i64::try_from(end.lived.unwrap_or_default().as_secs()).unwrap_or(i64::MAX);
        let since = ended.saturating_sub(lived).saturating_sub(2);
        // Docker waits for a time that has not come.
        let now = (self.teller.clock)().utc;
        let until = format!("{}.{:09}", now.as_second(), now.subsec_nanosecond());
        let filters = serde_json::json!({
            "container": [id],
            "event": ["start", "kill", "stop", "die", "died", "oom"],
        });
        let filters = escaped(&filters.to_string());
        let path = format!("/events?since={since}&until={until}&filters={filters}");
        let told = self.docker.get(&path, MAX_EVENTS_BYTES, ANSWER_TAKES).await.ok()?;
        if told.status != 200 {
            return None;
        }
        let mut events: Vec<ContainerEvent> =
            told.body.split(|byte| *byte == b'\n').filter_map(event).collect();
        events.retain(|event| *event.id == *id);
        events.sort_by_key(|event| event.time_ns);
        Some(events)
    }
}
