//! One container and its events, as Docker reports them. Podman leaves out some fields and renames
//! others.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use super::{MAX_NAME_BYTES, is_id, label_map};
use crate::model::{OnRequest, WorkloadEnd, WorkloadHealth, WorkloadState};
use crate::parse::process::printable;

/// A longer text is cut.
pub(super) const MAX_TEXT_BYTES: usize = 300;

/// PATH_MAX. A longer path is none.
pub(super) const MAX_PATH_BYTES: usize = 4096;

/// Earlier times (before 2000) mean that there is none.
const NO_TIME_BEFORE: i64 = 946_684_800;

/// Longest time from a SIGTERM to the end that it caused.
const TERM_TAKES: Duration = Duration::from_secs(600);
/// Longest time from a SIGKILL to the end that it caused.
const KILL_TAKES: Duration = Duration::from_secs(30);

/// A container as `GET /containers/ID/json` reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InspectedContainer {
    /// Its id: 64 hexadecimal digits.
    pub id: Arc<str>,
    /// Its name, printable.
    pub name: Arc<str>,
    /// Its labels, as they are: to be compared, and not to be shown.
    pub labels: BTreeMap<String, String>,
    /// Its state. It does not show whether its end was requested.
    pub state: WorkloadState,
    /// When it was started, as Docker writes it.
    pub started: Arc<str>,
    /// Docker's own restart policy: `no`, `always`, `unless-stopped`, `on-failure`.
    pub restart_policy: Arc<str>,
    /// How often `on-failure` tries.
    pub restart_most: i64,
    /// Whether it is removed when it ends.
    pub is_removed_at_end: bool,
    /// The number of its first process while it runs.
    pub pid: Option<u32>,
    /// The file of its log (`LogPath`), which depends on the data root of the runtime. `None` for
    /// a driver without one, such as journald.
    pub log: Option<PathBuf>,
}

impl InspectedContainer {
    /// One of which nothing else is known.
    pub fn unknown(id: Arc<str>, name: Arc<str>, state: WorkloadState) -> Self {
        Self {
            id,
            name,
            labels: BTreeMap::new(),
            state,
            started: "".into(),
            restart_policy: "no".into(),
            restart_most: 0,
            is_removed_at_end: false,
            pid: None,
            log: None,
        }
    }
}

/// Reads the answer to `GET /containers/ID/json`.
///
/// # Errors
/// It is no container.
pub fn inspected(text: &[u8]) -> Result<InspectedContainer, String> {
    let document: Value =
        serde_json::from_slice(text).map_err(|error| format!("no JSON was answered: {error}"))?;
    let id = document.get("Id").and_then(Value::as_str).filter(|id| is_id(id));
    let id = id.ok_or("what was answered names no container")?;
    let state = document.get("State").ok_or("the state of a container was not answered")?;
    let name = document.get("Name").and_then(Value::as_str).unwrap_or_default();
    let name = name.strip_prefix('/').unwrap_or(name);
    let host = document.get("HostConfig");
    let policy = host.and_then(|host| host.get("RestartPolicy"));
    let policy_name = policy.and_then(|policy| policy.get("Name")?.as_str()).unwrap_or("no");
    let most = policy.and_then(|policy| policy.get("MaximumRetryCount")?.as_i64());
    let config = document.get("Config");
    let labels = config.and_then(|config| config.get("Labels"));
    let is_removed = host.and_then(|host| host.get("AutoRemove")?.as_bool());
    let pid = state.get("Pid").and_then(Value::as_u64);
    let is_path =
        |path: &&str| path.starts_with('/') && path.len() < MAX_PATH_BYTES && !path.contains('\0');
    let log = document.get("LogPath").and_then(Value::as_str).filter(is_path);
    Ok(InspectedContainer {
        id: id.into(),
        name: short(name, MAX_NAME_BYTES),
        labels: label_map(labels),
        state: read_state(state)?,
        started: text_of(state, "StartedAt"),
        restart_policy: if policy_name.is_empty() { "no".into() } else { short(policy_name, 64) },
        restart_most: most.unwrap_or(0),
        is_removed_at_end: is_removed.unwrap_or(false),
        pid: pid.and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid > 0),
        log: log.map(PathBuf::from),
    })
}

pub(super) fn short(text: &str, most: usize) -> Arc<str> {
    let bytes = text.as_bytes();
    printable(&bytes[..bytes.len().min(most)]).into()
}

fn text_of(state: &Value, key: &str) -> Arc<str> {
    short(state.get(key).and_then(Value::as_str).unwrap_or_default(), 64)
}

fn read_state(state: &Value) -> Result<WorkloadState, String> {
    let status = state.get("Status").and_then(Value::as_str).unwrap_or_default();
    let flag = |key: &str| state.get(key).and_then(Value::as_bool).unwrap_or(false);
    let (started, finished) = (text_of(state, "StartedAt"), text_of(state, "FinishedAt"));
    let health = state.get("Health").or_else(|| state.get("Healthcheck"));
    let health = match health.and_then(|health| health.get("Status")?.as_str()) {
        Some("starting") => Some(WorkloadHealth::Starting),
        Some("healthy") => Some(WorkloadHealth::Healthy),
        Some("unhealthy") => Some(WorkloadHealth::Unhealthy),
        _ => None,
    };
    Ok(match status {
        "running" if flag("Restarting") => WorkloadState::Between { status: "restarting".into() },
        "running" => WorkloadState::Running { mark: started, health },
        "exited" | "stopped" if time(&finished).is_some() => WorkloadState::Ended(WorkloadEnd {
            utc: time(&finished),
            lived: lived(&started, &finished),
            mark: finished,
            exit_code: state.get("ExitCode").and_then(Value::as_i64).map(narrow),
            is_oom_killed: flag("OOMKilled"),
            error: Some(short(
                state.get("Error").and_then(Value::as_str).unwrap_or_default(),
                MAX_TEXT_BYTES,
            ))
            .filter(|error| !error.is_empty()),
            requested: OnRequest::Unknown,
            are_stops_silent: false,
            is_pod_stopped: false,
            log: None,
        }),
        "created" | "configured" if time(&started).is_none() => WorkloadState::Fresh,
        "" => return Err("the state of a container has no name".to_owned()),
        other => WorkloadState::Between { status: short(other, 64) },
    })
}

fn narrow(code: i64) -> i32 {
    i32::try_from(code).unwrap_or(-1)
}

/// A time that is one: Docker writes the year 1 for what never was.
pub fn time(text: &str) -> Option<Timestamp> {
    text.parse().ok().filter(|time| is_time(*time))
}

pub(super) fn is_time(time: Timestamp) -> bool {
    time.as_second() >= NO_TIME_BEFORE
}

fn lived(started: &str, finished: &str) -> Option<Duration> {
    let lived = time(finished)?.duration_since(time(started)?);
    Duration::try_from(lived).ok()
}

/// Something that has happened to a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerEvent {
    /// The container's id.
    pub id: Arc<str>,
    /// What: `die`, `kill`, `start`.
    pub action: Arc<str>,
    /// The signal that was sent.
    pub signal: Option<i32>,
    /// What it ended with, where it has.
    pub exit_code: Option<i32>,
    /// When, in nanoseconds since 1970.
    pub time_ns: i64,
}

/// Reads a line of `GET /events`. `None` where it is no event of a container.
pub fn event(line: &[u8]) -> Option<ContainerEvent> {
    let document: Value = serde_json::from_slice(line).ok()?;
    let kind = document.get("Type").and_then(Value::as_str).unwrap_or("container");
    let actor = document.get("Actor");
    let id = actor.and_then(|actor| actor.get("ID")).or_else(|| document.get("id"))?.as_str()?;
    let action = document.get("Action").or_else(|| document.get("status"))?.as_str()?;
    let attribute = |name: &str| actor?.get("Attributes")?.get(name)?.as_str();
    let exit_code = attribute("exitCode").or_else(|| attribute("containerExitCode"));
    let time_ns = document.get("timeNano").and_then(Value::as_i64);
    let time_s = document.get("time").and_then(Value::as_i64);
    let action = if action == "died" { "die" } else { action };
    (kind == "container" && is_id(id)).then(|| ContainerEvent {
        id: id.into(),
        action: short(action, 64),
        signal: attribute("signal").and_then(|signal| signal.parse().ok()),
        exit_code: exit_code.and_then(|code| code.parse().ok()),
        time_ns: time_ns
            .or(time_s.map(|seconds| seconds.saturating_mul(1_000_000_000)))
            .unwrap_or(0),
    })
}

/// The first end after that start, by the events of the container, oldest first.
pub fn end_after(started: Timestamp, events: &[ContainerEvent]) -> Option<WorkloadEnd> {
    let started_ns = i64::try_from(started.as_nanosecond()).ok()?;
    let of_life = || events.iter().skip_while(|event| event.time_ns < started_ns);
    let dies = of_life().find(|event| &*event.action == "die")?;
    let utc = Timestamp::from_nanosecond(dies.time_ns.into()).ok()?;
    let is_before = |event: &&ContainerEvent| event.time_ns <= dies.time_ns;
    let end = WorkloadEnd {
        mark: utc.to_string().into(),
        utc: Some(utc),
        lived: Duration::try_from(utc.duration_since(started)).ok(),
        exit_code: dies.exit_code,
        is_oom_killed: of_life().take_while(is_before).any(|event| &*event.action == "oom"),
        ..WorkloadEnd::unknown()
    };
    let requested = requested(&end, events);
    Some(WorkloadEnd { requested, ..end })
}

/// Whether that end was requested, by the events of the container, oldest first. Docker keeps a few
/// hundred events of all containers, and none from before its start.
pub fn requested(end: &WorkloadEnd, events: &[ContainerEvent]) -> OnRequest {
    let ended_ns = end.utc.and_then(|utc| i64::try_from(utc.as_nanosecond()).ok());
    let Some(ended_ns) = ended_ns else { return OnRequest::Unknown };
    let slack_ns: i64 = 2_000_000_000;
    let is_end = |event: &ContainerEvent| {
        &*event.action == "die" && event.time_ns.abs_diff(ended_ns) <= slack_ns.unsigned_abs()
    };
    let since =
        events.iter().rposition(|event| &*event.action == "start" && event.time_ns <= ended_ns);
    let of_life = events.get(since.unwrap_or(0)..).unwrap_or_default();
    let within = |event: &ContainerEvent, takes: Duration| {
        let ago_ns = ended_ns.saturating_sub(event.time_ns);
        let takes_ns = i64::try_from(takes.as_nanos()).unwrap_or(i64::MAX);
        (-slack_ns..=takes_ns).contains(&ago_ns)
    };
    let asks = |event: &ContainerEvent| match (&*event.action, event.signal) {
        ("stop", _) => within(event, KILL_TAKES),
        ("kill", Some(9)) => within(event, KILL_TAKES),
        // SIGHUP, SIGUSR1 and others ask for something else.
        ("kill", Some(2 | 3 | 15) | None) => within(event, TERM_TAKES),
        ("kill", Some(signal)) => signal >= 34 && within(event, TERM_TAKES),
        _ => false,
    };
    if of_life.iter().any(asks) {
        return OnRequest::Yes;
    }
    if of_life.iter().any(is_end) { OnRequest::No } else { OnRequest::Unknown }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

    fn read(state: &str) -> Result<InspectedContainer, String> {
        let text = format!(
            r#"{{"Id":"{ID}","Name":"/vllm","State":{state},
                "HostConfig":{{"RestartPolicy":{{"Name":"no","MaximumRetryCount":0}}}},
                "Config":{{"Labels":{{"umawarden.restart":"when-ready"}}}}}}"#
        );
        inspected(text.as_bytes())
    }

    const DEAD: &str = r#"{"Status":"exited","Running":false,"OOMKilled":true,"ExitCode":137,
        "Error":"","StartedAt":"2026-11-22T10:00:00.5Z","FinishedAt":"2026-11-22T10:00:03.25Z"}"#;

    #[test]
    fn an_end_has_its_mark_and_lifetime() {
        let found = read(DEAD).unwrap();
        assert_eq!((&*found.name, &*found.restart_policy), ("vllm", "no"));
        let WorkloadState::Ended(end) = found.state else { panic!("{found:?}") };
        assert_eq!(&*end.mark, "2026-11-22T10:00:03.25Z");
        assert_eq!((end.exit_code, end.is_oom_killed), (Some(137), true));
        assert_eq!(end.lived, Some(Duration::from_millis(2750)));
        assert_eq!(end.requested, OnRequest::Unknown);
    }

    #[test]
    fn transitional_states_are_neither_up_nor_down() {
        let none = r#""StartedAt":"0001-01-01T00:00:00Z","FinishedAt":"0001-01-01T00:00:00Z""#;
        for status in ["created", "configured"] {
            let found = read(&format!(r#"{{"Status":"{status}",{none}}}"#)).unwrap();
            assert_eq!(found.state, WorkloadState::Fresh);
        }
        // Docker that has not written down when it ended has not written down that it did.
        for status in ["paused", "restarting", "removing", "dead", "exited", "new\u{1b}[2J"] {
            let status = serde_json::to_string(status).unwrap();
            let found = read(&format!(r#"{{"Status":{status},{none}}}"#)).unwrap();
            assert!(matches!(found.state, WorkloadState::Between { .. }), "{found:?}");
        }
        for broken in ["{}", "[]", "7", r#"{"Status":null}"#] {
            assert!(read(broken).is_err(), "{broken}");
        }
        assert!(inspected(b"{\"message\":\"no such container\"}").is_err());
        assert!(inspected(b"").is_err());
    }

    fn happens(action: &str, signal: Option<i32>, seconds_before: i64) -> ContainerEvent {
        let ended: Timestamp = "2026-11-22T10:00:03.25Z".parse().unwrap();
        let time_ns =
            i64::try_from(ended.as_nanosecond()).unwrap() - seconds_before * 1_000_000_000;
        let exit_code = (action == "die").then_some(137);
        ContainerEvent { id: ID.into(), action: action.into(), signal, exit_code, time_ns }
    }

    #[test]
    fn the_preceding_event_shows_who_requested_an_end() {
        let WorkloadState::Ended(end) = read(DEAD).unwrap().state else { panic!() };
        let start = || happens("start", None, 3);
        let dies = || happens("die", None, 0);
        for (events, wanted) in [
            (vec![], OnRequest::Unknown),
            (vec![start()], OnRequest::Unknown),
            (vec![start(), dies()], OnRequest::No),
            (vec![start(), happens("oom", None, 1), dies()], OnRequest::No),
            (vec![start(), happens("kill", Some(15), 2), dies()], OnRequest::Yes),
            (vec![start(), happens("kill", Some(9), 1), dies()], OnRequest::Yes),
            (vec![start(), dies(), happens("stop", None, 0)], OnRequest::Yes),
            // A reload, and a stop of the life before.
            (vec![start(), happens("kill", Some(1), 1), dies()], OnRequest::No),
            (vec![happens("kill", Some(15), 5), start(), dies()], OnRequest::No),
            (vec![happens("kill", Some(15), 900), dies()], OnRequest::No),
        ] {
            assert_eq!(requested(&end, &events), wanted, "{events:?}");
        }
    }

    #[test]
    fn the_end_of_an_earlier_life_is_read_from_its_events() {
        let started: Timestamp = "2026-11-22T10:00:00.25Z".parse().unwrap();
        let again = happens("start", None, 0);
        let oom = [happens("start", None, 3), happens("oom", None, 2), happens("die", None, 2)];
        let end = end_after(started, &[&oom[..], std::slice::from_ref(&again)].concat()).unwrap();
        assert_eq!((end.exit_code, end.is_oom_killed), (Some(137), true));
        assert_eq!((end.lived, end.requested), (Some(Duration::from_secs(1)), OnRequest::No));
        let before = [happens("die", None, 9), happens("oom", None, 8), happens("start", None, 3)];
        assert_eq!(end_after(started, &before), None, "of the life before");
        let stops = [
            happens("start", None, 3),
            happens("kill", Some(15), 2),
            happens("die", None, 1),
            again,
            happens("oom", None, 0),
        ];
        let end = end_after(started, &stops).unwrap();
        assert_eq!((end.requested, end.is_oom_killed), (OnRequest::Yes, false));
    }

    #[test]
    fn an_event_is_read_as_docker_and_podman_write_it() {
        let docker = format!(
            r#"{{"status":"kill","id":"{ID}","Type":"container","Action":"kill","Actor":{{"ID":
            "{ID}","Attributes":{{"signal":"15","name":"x"}}}},"scope":"local","time":7,
            "timeNano":7000000001}}"#
        );
        let found = event(docker.as_bytes()).unwrap();
        assert_eq!(
            (&*found.action, found.signal, found.time_ns),
            ("kill", Some(15), 7_000_000_001)
        );
        assert_eq!(found.exit_code, None);
        let podman = format!(r#"{{"status":"died","id":"{ID}","time":7}}"#);
        let found = event(podman.as_bytes()).unwrap();
        assert_eq!((&*found.action, found.time_ns), ("die", 7_000_000_000));
        for (name, code, read) in [
            ("exitCode", "137", Some(137)),
            ("containerExitCode", "1", Some(1)),
            ("exitCode", "x", None),
        ] {
            let ends = format!(
                r#"{{"Action":"die","Actor":{{"ID":"{ID}","Attributes":{{"{name}":"{code}"}}}}}}"#
            );
            assert_eq!(event(ends.as_bytes()).unwrap().exit_code, read, "{ends}");
        }
        let network = format!(r#"{{"Type":"network","Action":"connect","Actor":{{"ID":"{ID}"}}}}"#);
        assert_eq!(event(network.as_bytes()), None);
        assert_eq!(event(b"{"), None);
        assert_eq!(event(br#"{"Type":"container","Action":"die","Actor":{"ID":"x"}}"#), None);
    }
}
