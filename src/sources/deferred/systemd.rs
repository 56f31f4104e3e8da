//! Queries systemd about units with deferred restarts, and about the ends of other services of
//! engines. Only if the configuration names a unit, or an engine runs in one.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::services::{Services, output};
use super::{Reporter, TrackedServices};
use crate::model::{
    DeclaredRestart, DeferredRestart, OnRequest, RestartMatch, Supervisor, Workload, WorkloadEnd,
    WorkloadHealth, WorkloadLog, WorkloadState,
};
use crate::supervisors::systemd::{Bus, Jobs, Properties, Systemd, SystemdJob, number, text};

/// Between two queries without signals, and after a failed one.
const EVERY: Duration = Duration::from_secs(1);
/// The same without deferred restarts.
const IDLE: Duration = Duration::from_secs(10);

/// The least time between two reports about a user's systemd. A report after each of its signals
/// would fill the queue, and those of others would be dropped.
const OF_USER_EVERY: Duration = Duration::from_millis(500);

/// The longest of systemd's words, in bytes.
const MAX_WORD_BYTES: usize = 32;

/// Where a property should have a word and has other text.
const NO_WORD: &str = "invalid";

/// The state of a unit between queries.
#[derive(Clone, Debug, Default)]
struct Tracked {
    /// It was running while its jobs were tracked.
    was_watched: bool,
    /// It was to be stopped in this life.
    is_to_stop: bool,
    /// The end for which it is known whether it was requested.
    examined: Option<(Arc<str>, OnRequest)>,
    /// The last output before an end.
    output: Option<(Arc<str>, Option<Arc<WorkloadLog>>)>,
}

/// The thread that queries systemd.
#[derive(Debug)]
pub(super) struct SystemdWatch {
    bus: Bus,
    supervisor: Supervisor,
    declared: watch::Receiver<Arc<[DeclaredRestart]>>,
    tracked: watch::Receiver<TrackedServices>,
    reporter: Reporter,
    known: BTreeMap<Arc<str>, Tracked>,
    /// The last report had units, or an error about them.
    has_reported: bool,
}

impl SystemdWatch {
    pub(super) fn new(
        bus: Bus,
        (declared, tracked): (
            watch::Receiver<Arc<[DeclaredRestart]>>,
            watch::Receiver<TrackedServices>,
        ),
        reporter: Reporter,
    ) -> Self {
        let supervisor = match &bus {
            Bus::OfUser { user, .. } => Supervisor::SystemdOfUser(*user),
            Bus::System(_) | Bus::Peer(_) => Supervisor::Systemd,
        };
        let (known, has_reported) = (BTreeMap::new(), false);
        Self { bus, supervisor, declared, tracked, reporter, known, has_reported }
    }

    /// Runs until the loop has ended.
    pub(super) fn run(&mut self) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        match runtime {
            Ok(runtime) => runtime.block_on(self.watch()),
            Err(error) => {
                let why = format!("cannot query systemd: starting a runtime failed: {error}");
                self.reporter.doubt(self.supervisor, &why);
            }
        }
    }

    /// The configured units.
    fn units(&mut self) -> Vec<(Arc<str>, DeclaredRestart)> {
        let declared = self.declared.borrow_and_update();
        let unit = |entry: &DeclaredRestart| match &entry.matches {
            RestartMatch::Unit(name) => Some((Arc::clone(name), entry.clone())),
            RestartMatch::Container(_) | RestartMatch::Label(..) | RestartMatch::UnitOfUser(..) => {
                None
            }
        };
        declared.iter().filter_map(unit).collect()
    }

    pub(super) async fn watch(&mut self) {
        loop {
            let is_idle = self.units().is_empty();
            if is_idle {
                self.report_none();
            }
            if is_idle && self.tracked.borrow_and_update().is_empty() {
                if self.has_changed().await.is_err() {
                    return;
                }
                continue;
            }
            let why = match self.track_units().await {
                Ok(()) => return,
                Err(why) => why,
            };
            // Changes meanwhile are not seen.
            for known in self.known.values_mut() {
                known.was_watched = false;
            }
            // Without such units systemd is not needed.
            if !is_idle {
                self.has_reported = true;
                self.reporter.doubt(self.supervisor, &why);
            }
            let rest = if is_idle { IDLE } else { EVERY };
            if timeout(rest, self.declared.changed()).await.is_ok_and(|changed| changed.is_err()) {
                return;
            }
        }
    }

    /// Units that are no longer configured are reported no longer.
    fn report_none(&mut self) {
        if std::mem::take(&mut self.has_reported) {
            let read_at = (self.reporter.clock)().uptime;
            self.reporter.report(self.supervisor, read_at, (Vec::new(), Vec::new()));
        }
    }

    /// Waits until the units or services change. An error: the loop has ended.
    async fn has_changed(&mut self) -> Result<(), watch::error::RecvError> {
        tokio::select! {
            changed = self.declared.changed() => changed,
            changed = self.tracked.changed() => changed,
        }
    }

    /// The services of engines without a deferred restart.
    fn others(&mut self, units: &[(Arc<str>, DeclaredRestart)]) -> BTreeMap<Arc<str>, Arc<str>> {
        let tracked = Arc::clone(&self.tracked.borrow_and_update());
        let is_other = |name: &Arc<str>| units.iter().all(|(unit, _)| unit != name);
        let others = tracked.iter().filter(|(name, _)| is_other(name));
        others.map(|(name, cgroup)| (Arc::clone(name), Arc::clone(cgroup))).collect()
    }

    /// Queries after each signal, and once a second. Ends with the loop.
    async fn track_units(&mut self) -> Result<(), String> {
        let systemd = Systemd::connect(&self.bus).await?;
        let mut jobs = systemd.jobs().await?;
        let mut services = Services::new(self.reporter.clone());
        let (mut was_ended, mut kept) = (false, BTreeSet::new());
        loop {
            let units = self.units();
            for (name, _) in &units {
                if kept.insert(Arc::clone(name)) {
                    systemd.keep(name).await?;
                }
            }
            let others = self.others(&units);
            services.track(&systemd, &others).await?;
            let mut deferred = Vec::with_capacity(units.len());
            for (name, entry) in &units {
                let properties = systemd.service(name).await?;
                // A job that was queued before this query is received before it.
                self.take_waiting_jobs(&systemd, &mut jobs, &mut services).await?;
                self.read_output(name, &properties).await;
                deferred.push(self.seen(name, entry, &properties));
            }
            services.read_output().await;
            let read_at = (self.reporter.clock)().uptime;
            let (supervisor, ended) = (self.supervisor, services.ended());
            let is_idle = units.is_empty();
            let is_news = !is_idle || !ended.is_empty() || was_ended || self.has_reported;
            (was_ended, self.has_reported) = (!ended.is_empty(), !is_idle);
            if is_news {
                self.reporter.report(supervisor, read_at, (deferred, ended));
            }
            if is_idle && others.is_empty() && !was_ended {
                return Err("no units or services".to_owned());
            }
            let paused = self.pause(&systemd, &mut jobs, &mut services).await?;
            let every = if is_idle { IDLE } else { EVERY };
            tokio::select! {
                job = jobs.next() => self.take_job(&systemd, job, &mut services).await?,
                changed = services.change() => changed?,
                changed = self.has_changed() => if changed.is_err() {
                    return Ok(());
                },
                () = sleep(every.saturating_sub(paused)) => {}
            }
        }
    }

    /// After a report about a user's systemd, only takes its jobs for a while. Returns the time.
    async fn pause(
        &mut self,
        systemd: &Systemd,
        jobs: &mut Jobs,
        services: &mut Services,
    ) -> Result<Duration, String> {
        if self.supervisor.user().is_none() {
            return Ok(Duration::ZERO);
        }
        let mut over = pin!(sleep(OF_USER_EVERY));
        loop {
            tokio::select! {
                // A flood of jobs does not prolong it.
                biased;
                () = &mut over => return Ok(OF_USER_EVERY),
                job = jobs.next() => self.take_job(systemd, job, services).await?,
            }
        }
    }

    async fn take_waiting_jobs(
        &mut self,
        systemd: &Systemd,
        jobs: &mut Jobs,
        services: &mut Services,
    ) -> Result<(), String> {
        while let Ok(job) = timeout(Duration::ZERO, jobs.next()).await {
            self.take_job(systemd, job, services).await?;
        }
        Ok(())
    }

    async fn take_job(
        &mut self,
        systemd: &Systemd,
        job: Option<SystemdJob>,
        services: &mut Services,
    ) -> Result<(), String> {
        let SystemdJob { path, unit, position } = job.ok_or("systemd has ended the connection")?;
        if !self.known.contains_key(&*unit) && !services.knows(&unit) {
            return Ok(());
        }
        // A finished job was most likely a stop: others take longer.
        let kind = systemd.job_type(&path).await;
        if kind.is_none_or(|kind| kind.contains("stop") || kind == "restart") {
            services.is_to_stop(&unit, position);
            if let Some(known) = self.known.get_mut(&*unit) {
                known.is_to_stop = true;
            }
        }
        Ok(())
    }

    /// Reads the last output of a unit that has ended since.
    async fn read_output(&mut self, name: &Arc<str>, properties: &Properties) {
        let WorkloadState::Ended(end) = state(properties) else { return };
        let known = self.known.entry(Arc::clone(name)).or_default();
        let is_known = known.output.as_ref().is_some_and(|(mark, _)| *mark == end.mark);
        if is_known || !known.was_watched {
            return;
        }
        known.output =
            Some((Arc::clone(&end.mark), output(name, self.supervisor.user(), &end).await));
    }

    fn seen(
        &mut self,
        name: &Arc<str>,
        entry: &DeclaredRestart,
        properties: &Properties,
    ) -> DeferredRestart {
        let known = self.known.entry(Arc::clone(name)).or_default();
        let property = |key: &str| word(properties, key);
        let mut state = state(properties);
        match &mut state {
            WorkloadState::Running { .. } => {
                (known.was_watched, known.examined) = (true, None);
                if property("ActiveState") == "active" {
                    known.is_to_stop = false;
                }
            }
            WorkloadState::Ended(end) => {
                let examined = known.examined.clone().filter(|(mark, _)| *mark == end.mark);
                end.requested = examined
                    .map_or_else(|| requested(known, properties), |(_, requested)| requested);
                known.examined = Some((Arc::clone(&end.mark), end.requested));
                let read = known.output.as_ref().filter(|(mark, _)| *mark == end.mark);
                end.log = read.and_then(|(_, output)| output.clone());
            }
            WorkloadState::Fresh | WorkloadState::Between { .. } => {}
        }
        let restart = property("Restart");
        let (of_user, systemctl) = match self.supervisor.user() {
            Some(user) => (format!(" of user {user}"), "as that user, `systemctl --user"),
            None => (String::new(), "`systemctl"),
        };
        let obstacle = match property("LoadState").as_str() {
            "loaded" if restart.is_empty() || restart == "no" => None,
            "loaded" => Some(format!(
                "systemd starts it again itself (Restart={restart}), whether or not there is \
                 memory: {systemctl} edit {name}`, with Restart=no below [Service]"
            )),
            other => Some(format!("systemd cannot load this unit ({other})")),
        };
        DeferredRestart {
            target: Workload {
                supervisor: self.supervisor,
                name: Arc::clone(name),
                id: Arc::clone(name),
            },
            state,
            need: entry.need.clone(),
            limits: entry.limits.clone(),
            mode: entry.mode,
            found_by: format!("restarts: unit {name}{of_user}").into(),
            obstacle: obstacle.map(Arc::from),
        }
    }
}

/// Whether an end was requested: not if the unit has failed, or was tracked without a stop job.
fn requested(known: &Tracked, properties: &Properties) -> OnRequest {
    let failed =
        properties.get("ActiveState").and_then(text).is_some_and(|state| state == "failed");
    match known {
        Tracked { is_to_stop: true, .. } => OnRequest::Yes,
        _ if failed => OnRequest::No,
        Tracked { was_watched: true, .. } => OnRequest::No,
        Tracked { .. } => OnRequest::Unknown,
    }
}

/// A property that is one of systemd's words, such as `auto-restart`; empty if there is none. A
/// user may have replaced the program at the socket: any other text would be in messages and
/// reports.
fn word(properties: &Properties, key: &str) -> String {
    let Some(text) = properties.get(key).and_then(text) else { return String::new() };
    let is_usual = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    let is_word = text.len() <= MAX_WORD_BYTES && text.bytes().all(is_usual);
    if is_word { text } else { NO_WORD.to_owned() }
}

/// The state for systemd's properties.
pub(crate) fn state(properties: &Properties) -> WorkloadState {
    let property = |key: &str| word(properties, key);
    let time = |key: &str| properties.get(key).and_then(number).unwrap_or(0);
    let running = |health| WorkloadState::Running {
        mark: time("InactiveExitTimestamp").to_string().into(),
        health,
    };
    let notifies = property("Type").starts_with("notify");
    match property("ActiveState").as_str() {
        "active" | "reloading" | "refreshing" => {
            running(notifies.then_some(WorkloadHealth::Healthy))
        }
        "activating" if property("SubState") == "auto-restart" => {
            WorkloadState::Between { status: "auto-restart".into() }
        }
        "activating" => running(Some(WorkloadHealth::Starting)),
        "inactive" | "failed" if time("InactiveEnterTimestamp") == 0 => WorkloadState::Fresh,
        "inactive" | "failed" => {
            let times = (time("InactiveExitTimestamp"), time("InactiveEnterTimestamp"));
            WorkloadState::Ended(end(properties, times))
        }
        other => WorkloadState::Between { status: other.into() },
    }
}

/// The end of a life; `began` and `ended` are in microseconds since 1970.
pub(super) fn end(properties: &Properties, (began, ended): (u64, u64)) -> WorkloadEnd {
    let property = |key: &str| word(properties, key);
    let value = |key: &str| properties.get(key).and_then(number);
    let utc = i64::try_from(ended).ok().and_then(|usec| Timestamp::from_microsecond(usec).ok());
    let status = value("ExecMainStatus").and_then(|status| i32::try_from(status).ok());
    let result = property("Result");
    let exit_code = match value("ExecMainCode") {
        // CLD_EXITED; CLD_KILLED and CLD_DUMPED.
        Some(1) => status,
        Some(2 | 3) => status.and_then(|signal| signal.checked_add(128)),
        _ => None,
    };
    WorkloadEnd {
        mark: ended.to_string().into(),
        utc,
        lived: ended.checked_sub(began).map(Duration::from_micros),
        exit_code,
        is_oom_killed: result == "oom-kill",
        error: Some(result)
            .filter(|result| !matches!(&**result, "" | "success" | "exit-code" | "signal"))
            .map(|result| format!("systemd says {result}").into()),
        requested: OnRequest::Unknown,
        are_stops_silent: false,
        is_pod_stopped: false,
        log: None,
    }
}
