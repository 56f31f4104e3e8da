//! What Docker would do with engines when they die, and before.

use std::time::Duration;

use serde_json::Value;

use super::{Facts, Finding, Known, Verdict, known};
use crate::engines::{ENGINES, SlowHealth, facts, recognise};
use crate::model::{EngineKind, bytes_text, duration_text, seconds_text};
use crate::parse::process::printable;

/// By this label a container is started again by this program, when there is memory.
const WHEN_READY: (&str, &str) = ("umawarden.restart", "when-ready");

/// A guess: an engine that takes tens of GiB from a disk of a few GiB/s, and prepares itself, is
/// rarely ready before.
pub(super) const LOADS_WITHIN: Duration = Duration::from_secs(300);

/// What Docker takes where a health check does not say.
const USUAL_INTERVAL: Duration = Duration::from_secs(30);
const USUAL_TIMEOUT: Duration = Duration::from_secs(30);
const USUAL_RETRIES: u32 = 3;

/// More arguments of one container are not looked at.
const MOST_ARGUMENTS: usize = 256;

/// How Docker asks whether a container is well.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HealthCheck {
    /// The command.
    pub test: String,
    /// From one question to the next.
    pub interval: Duration,
    /// How long an answer may take.
    pub timeout: Duration,
    /// Failures within that time do not count.
    pub start_period: Duration,
    /// So many in a row, and it is unhealthy.
    pub retries: u32,
}

/// One container, as `docker inspect` tells it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerFacts {
    /// Its name.
    pub name: String,
    /// Its image.
    pub image: String,
    /// What it runs, where that is an engine that is known.
    pub engine: Option<EngineKind>,
    /// Whether it was given the GPU.
    pub has_gpu: bool,
    /// `no`, `always`, `unless-stopped` or `on-failure`.
    pub restart: String,
    /// Whether it is removed when it ends.
    pub is_removed: bool,
    /// How much its `/dev/shm` may hold.
    pub shm_bytes: Option<u64>,
    /// Whether it has the host's `/dev/shm` instead.
    pub has_host_shm: bool,
    /// Its health check.
    pub health: Option<HealthCheck>,
    /// Whether this program starts it again, when there is memory.
    pub is_held: bool,
}

impl ContainerFacts {
    /// Reads the answer to `GET /containers/ID/json`. What is not there, or is miswritten, is left
    /// out: Docker and Podman do not agree on all of it.
    pub fn read(told: &Value) -> Option<Self> {
        let name = text(told.get("Name")?)?;
        let name = name.strip_prefix('/').unwrap_or(&name).to_owned();
        let (config, host) = (&told["Config"], &told["HostConfig"]);
        let image = text(&config["Image"]).unwrap_or_default();
        let path = text(&told["Path"]);
        let arguments = told["Args"].as_array().into_iter().flatten().filter_map(text);
        let line: Vec<String> = path.into_iter().chain(arguments).take(MOST_ARGUMENTS).collect();
        let by_image = || {
            let is_its = |name: &&str| is_image(&image, name);
            let found = ENGINES.iter().find(|facts| facts.images.iter().any(is_its));
            found.map(|facts| facts.kind)
        };
        let engine = recognise("", &line, None).map(|(kind, _)| kind).or_else(by_image);
        let label = config["Labels"].get(WHEN_READY.0).and_then(Value::as_str);
        Some(Self {
            name,
            image,
            engine,
            has_gpu: has_gpu(host),
            restart: text(&host["RestartPolicy"]["Name"])
                .filter(|name| !name.is_empty())
                .unwrap_or_else(|| "no".to_owned()),
            is_removed: host["AutoRemove"] == true,
            shm_bytes: host["ShmSize"].as_u64(),
            has_host_shm: host["IpcMode"] == "host",
            health: health(&config["Healthcheck"]),
            is_held: label == Some(WHEN_READY.1),
        })
    }

    fn is_engine(&self) -> bool {
        self.engine.is_some() || self.has_gpu
    }

    fn restarts(&self) -> bool {
        !matches!(&*self.restart, "no")
    }

    fn subject(&self) -> String {
        format!("container {}", self.name)
    }
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(|text| printable(text.as_bytes()))
}

/// Whether an image's name is that repository's, whatever its tag, digest or mirror.
fn is_image(image: &str, repository: &str) -> bool {
    let at = |(place, found): (usize, &str)| {
        let before = image.get(..place).unwrap_or_default();
        let after = image.get(place + found.len()..).unwrap_or_default();
        let ends = repository.ends_with('/') || after.is_empty() || after.starts_with([':', '@']);
        (before.is_empty() || before.ends_with('/')) && ends
    };
    image.match_indices(repository).any(at)
}

fn has_gpu(host: &Value) -> bool {
    let requests = host["DeviceRequests"].as_array();
    let asks = |request: &Value| request["Capabilities"].to_string().contains("\"gpu\"");
    let devices = host["Devices"].as_array();
    let is_device = |device: &Value| {
        device["PathOnHost"].as_str().is_some_and(|path| path.starts_with("/dev/nvidia"))
    };
    host["Runtime"] == "nvidia"
        || requests.is_some_and(|requests| requests.iter().any(asks))
        || devices.is_some_and(|devices| devices.iter().any(is_device))
}

fn health(told: &Value) -> Option<HealthCheck> {
    let test = told.get("Test")?.as_array()?;
    let words: Vec<String> = test.iter().filter_map(text).take(MOST_ARGUMENTS).collect();
    // What its image asks for may have been taken away, and an empty one is its image's.
    if words.is_empty() || words[0] == "NONE" {
        return None;
    }
    let span = |name: &str, usual| match told.get(name).and_then(Value::as_u64) {
        Some(0) | None => usual,
        Some(nanoseconds) => Duration::from_nanos(nanoseconds),
    };
    let retries = told["Retries"].as_u64().and_then(|retries| u32::try_from(retries).ok());
    Some(HealthCheck {
        test: words.join(" "),
        interval: span("Interval", USUAL_INTERVAL),
        timeout: span("Timeout", USUAL_TIMEOUT),
        start_period: span("StartPeriod", Duration::ZERO),
        retries: retries.filter(|retries| *retries > 0).unwrap_or(USUAL_RETRIES),
    })
}

pub(super) fn examine(facts: &Facts) -> Vec<Finding> {
    let containers = match known("containers", &facts.containers, "there is no Docker here") {
        Err(finding) => return vec![*finding],
        Ok(containers) => containers,
    };
    let total = match facts.memory {
        Known::Is((total, _)) => Some(total),
        Known::Absent | Known::Not(_) => None,
    };
    let engines = || containers.iter().filter(|container| container.is_engine());
    let mut findings = Vec::new();
    for container in engines() {
        findings.extend(restart(container));
        findings.extend(removed(container));
        findings.extend(unhealthy(container));
        findings.extend(total.and_then(|total| shm(container, total)));
    }
    if findings.is_empty() {
        let says = match engines().count() {
            0 => format!("none of {} runs an engine or has the GPU", containers.len()),
            some => format!("nothing is wrong with those {some} that run engines"),
        };
        findings.push(Finding::ok("containers", says));
    }
    findings
}

fn restart(container: &ContainerFacts) -> Option<Finding> {
    if !container.restarts() {
        return None;
    }
    let (name, policy) = (&container.name, &container.restart);
    let adopt = format!("sudo umawarden adopt {name}");
    if container.is_held {
        let says = format!(
            "its label lets umawarden start it again when there is memory, and its restart policy \
             {policy} lets Docker do so at once"
        );
        let finding = Finding::new("restart_policy", Verdict::Problem, says);
        return Some(
            finding.of(&container.subject()).fix(format!("docker update --restart no {name}")),
        );
    }
    let hides = container.engine.and_then(|kind| facts(kind).hides_killed_workers);
    let (verdict, says) = match hides.filter(|_| policy == "on-failure") {
        Some(command) => (
            Verdict::Problem,
            format!(
                "{command} ends with 0 when its worker is killed: --restart on-failure never \
                 starts it again"
            ),
        ),
        None => (
            Verdict::Warning,
            format!(
                "--restart {policy} starts it again at once, into the memory that its dead \
                 predecessor still holds, so that it dies again"
            ),
        ),
    };
    Some(Finding::new("restart_policy", verdict, says).of(&container.subject()).fix(adopt))
}

fn removed(container: &ContainerFacts) -> Option<Finding> {
    container.is_removed.then(|| {
        let says = "--rm removes it when it dies, with its log and its exit code: nothing can be \
                    said of its death, and nobody can start it again";
        Finding::new("auto_remove", Verdict::Warning, says)
            .of(&container.subject())
            .fix("start it without --rm")
    })
}

fn unhealthy(container: &ContainerFacts) -> Option<Finding> {
    let health = container.health.as_ref()?;
    let engine = facts(container.engine?);
    let found = |says: String, fix: String| {
        let finding = Finding::new("health_check", Verdict::Warning, says);
        Some(finding.of(&container.subject()).fix(fix))
    };
    let gives_up =
        health.start_period.saturating_add(health.interval.saturating_mul(health.retries));
    if gives_up < LOADS_WITHIN {
        let after = seconds_text(gives_up);
        return found(
            format!(
                "its health check calls it unhealthy {after} after its start, when an engine still \
                 loads (a guess: up to {}); whoever restarts what is unhealthy never lets it load",
                duration_text(LOADS_WITHIN)
            ),
            "--health-start-period 15m".to_owned(),
        );
    }
    let SlowHealth { path, who, takes } = engine.slow_health.as_ref()?;
    if !health.test.contains(path) || health.timeout >= *takes {
        return None;
    }
    let takes = takes.as_secs();
    found(
        format!(
            "its health check waits for less than the {takes} s within which {who} answers {path}"
        ),
        "--health-timeout 30s".to_owned(),
    )
}

fn shm(container: &ContainerFacts, total: u64) -> Option<Finding> {
    let room = container.shm_bytes.filter(|_| !container.has_host_shm)?;
    let verdict = match room {
        room if room >= total / 2 => Verdict::Problem,
        room if room >= total / 4 => Verdict::Warning,
        _ => return None,
    };
    let says = format!(
        "its /dev/shm may hold {} of this node's {}: that is memory of the same pool, and stays \
         taken after a kill, for the kernel's reaper does not take it back",
        bytes_text(room),
        bytes_text(total)
    );
    let finding = Finding::new("shm_size", verdict, says).of(&container.subject());
    Some(finding.fix("a smaller --shm-size: a few GiB are enough for one engine"))
}
