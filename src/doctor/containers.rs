//! How Docker starts and restarts engines.

use std::time::Duration;

use serde_json::Value;

use super::{DoctorFacts, Fact, Finding, Severity, known, lack_of_socket};
use crate::engines::{ENGINES, SlowHealth, facts, recognise};
use crate::model::{EngineKind, bytes_text, duration_text, seconds_text};
use crate::parse::process::printable;

/// The label by which this program restarts a container once there is memory.
const WHEN_READY: (&str, &str) = ("umawarden.restart", "when-ready");

/// A guess: an engine that loads tens of GiB from a disk of a few GiB/s is rarely ready earlier.
pub(super) const LOADS_WITHIN: Duration = Duration::from_secs(300);

/// Docker's defaults of a health check.
const USUAL_INTERVAL: Duration = Duration::from_secs(30);
const USUAL_TIMEOUT: Duration = Duration::from_secs(30);
const USUAL_RETRIES: u32 = 3;

/// Further arguments of a container are ignored.
const MOST_ARGUMENTS: usize = 256;

/// Docker's health check of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HealthCheck {
    /// The command.
    pub test: String,
    /// Time between two checks.
    pub interval: Duration,
    /// Timeout of one check.
    pub timeout: Duration,
    /// Failures within this time after the start do not count.
    pub start_period: Duration,
    /// This many failures in a row make it unhealthy.
    pub retries: u32,
}

/// One container, from `docker inspect`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerFacts {
    /// Without the leading slash.
    pub name: String,
    /// As given at its start: repository and tag, or digest.
    pub image: String,
    /// The engine that it runs, if known.
    pub engine: Option<EngineKind>,
    /// Whether it has the GPU.
    pub has_gpu: bool,
    /// `no`, `always`, `unless-stopped` or `on-failure`.
    pub restart: String,
    /// Whether it is removed when it stops (`--rm`).
    pub is_removed: bool,
    /// The size of its `/dev/shm`.
    pub shm_bytes: Option<u64>,
    /// Whether it uses the host's `/dev/shm`.
    pub has_host_shm: bool,
    /// `None` without one, or if it is disabled.
    pub health: Option<HealthCheck>,
    /// Whether this program restarts it once there is memory.
    pub has_deferred_restart: bool,
}

impl ContainerFacts {
    /// Reads the response to `GET /containers/ID/json`. Missing and invalid fields are omitted,
    /// since Docker and Podman differ.
    pub fn read(json: &Value) -> Option<Self> {
        let name = text(json.get("Name")?)?;
        let name = name.strip_prefix('/').unwrap_or(&name).to_owned();
        let (config, host) = (&json["Config"], &json["HostConfig"]);
        let image = text(&config["Image"]).unwrap_or_default();
        let path = text(&json["Path"]);
        let arguments = json["Args"].as_array().into_iter().flatten().filter_map(text);
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
            has_deferred_restart: label == Some(WHEN_READY.1),
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

/// Whether an image belongs to a repository, whatever its tag, digest or mirror.
fn is_image(image: &str, repository: &str) -> bool {
    let at = |(start, found): (usize, &str)| {
        let before = image.get(..start).unwrap_or_default();
        let after = image.get(start + found.len()..).unwrap_or_default();
        let ends = repository.ends_with('/') || after.is_empty() || after.starts_with([':', '@']);
        (before.is_empty() || before.ends_with('/')) && ends
    };
    image.match_indices(repository).any(at)
}

fn has_gpu(host: &Value) -> bool {
    let requests = host["DeviceRequests"].as_array();
    let requests_gpu = |request: &Value| request["Capabilities"].to_string().contains("\"gpu\"");
    let devices = host["Devices"].as_array();
    let is_device = |device: &Value| {
        device["PathOnHost"].as_str().is_some_and(|path| path.starts_with("/dev/nvidia"))
    };
    host["Runtime"] == "nvidia"
        || requests.is_some_and(|requests| requests.iter().any(requests_gpu))
        || devices.is_some_and(|devices| devices.iter().any(is_device))
}

fn health(json: &Value) -> Option<HealthCheck> {
    let test = json.get("Test")?.as_array()?;
    let words: Vec<String> = test.iter().filter_map(text).take(MOST_ARGUMENTS).collect();
    // `NONE` disables the check of the image; an empty test inherits it.
    if words.is_empty() || words[0] == "NONE" {
        return None;
    }
    let span = |name: &str, usual| match json.get(name).and_then(Value::as_u64) {
        Some(0) | None => usual,
        Some(nanoseconds) => Duration::from_nanos(nanoseconds),
    };
    let retries = json["Retries"].as_u64().and_then(|retries| u32::try_from(retries).ok());
    Some(HealthCheck {
        test: words.join(" "),
        interval: span("Interval", USUAL_INTERVAL),
        timeout: span("Timeout", USUAL_TIMEOUT),
        start_period: span("StartPeriod", Duration::ZERO),
        retries: retries.filter(|retries| *retries > 0).unwrap_or(USUAL_RETRIES),
    })
}

pub(super) fn examine(facts: &DoctorFacts) -> Vec<Finding> {
    let containers = match known("containers", &facts.containers, "no Docker on this node") {
        Err(finding) => {
            return vec![match lack_of_socket(facts) {
                Some(lack) => {
                    let severity =
                        if lack.is_wanted_now { Severity::Problem } else { finding.severity };
                    let text = format!("containers were not examined; {}", lack.what);
                    Finding::new("containers", severity, text).fix(lack.remedy.clone())
                }
                None => *finding,
            }];
        }
        Ok(containers) => containers,
    };
    let total = match facts.memory {
        Fact::Is((total, _)) => Some(total),
        Fact::Absent | Fact::Unknown(_) => None,
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
        let text = match engines().count() {
            0 => format!("none of {} runs an engine or has the GPU", containers.len()),
            some => format!("no fault in the {some} that run engines"),
        };
        findings.push(Finding::ok("containers", text));
    }
    findings
}

fn restart(container: &ContainerFacts) -> Option<Finding> {
    if !container.restarts() {
        return None;
    }
    let (name, policy) = (&container.name, &container.restart);
    let adopt = format!("sudo umawarden adopt {name}");
    if container.has_deferred_restart {
        let text = format!(
            "its label lets umawarden restart it once there is memory, and its restart policy \
             {policy} lets Docker restart it at once"
        );
        let finding = Finding::new("restart_policy", Severity::Problem, text);
        return Some(
            finding.of(&container.subject()).fix(format!("docker update --restart no {name}")),
        );
    }
    let hides = container.engine.and_then(|kind| facts(kind).hides_killed_workers);
    let (severity, text) = match hides.filter(|_| policy == "on-failure") {
        Some(command) => (
            Severity::Problem,
            format!(
                "{command} exits with 0 when its worker is killed: --restart on-failure never \
                 restarts it"
            ),
        ),
        None => (
            Severity::Warning,
            format!(
                "--restart {policy} restarts it at once, before the memory of its dead predecessor \
                 is reclaimed, and it dies again"
            ),
        ),
    };
    Some(Finding::new("restart_policy", severity, text).of(&container.subject()).fix(adopt))
}

fn removed(container: &ContainerFacts) -> Option<Finding> {
    container.is_removed.then(|| {
        let text = "--rm removes it when it dies, with its log and exit code: its death cannot be \
            explained, and it cannot be restarted";
        Finding::new("auto_remove", Severity::Warning, text)
            .of(&container.subject())
            .fix("start it without --rm")
    })
}

fn unhealthy(container: &ContainerFacts) -> Option<Finding> {
    let health = container.health.as_ref()?;
    let engine = facts(container.engine?);
    let found = |text: String, fix: String| {
        let finding = Finding::new("health_check", Severity::Warning, text);
        Some(finding.of(&container.subject()).fix(fix))
    };
    let gives_up =
        health.start_period.saturating_add(health.interval.saturating_mul(health.retries));
    if gives_up < LOADS_WITHIN {
        let after = seconds_text(gives_up);
        return found(
            format!(
                "its health check reports unhealthy {after} after its start, while an engine still \
                 loads (a guess: up to {}); a restart of unhealthy containers never lets it load",
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
            "the timeout of its health check is below the {takes} s in which {who} answers {path}"
        ),
        "--health-timeout 30s".to_owned(),
    )
}

fn shm(container: &ContainerFacts, total: u64) -> Option<Finding> {
    let bytes = container.shm_bytes.filter(|_| !container.has_host_shm)?;
    let severity = match bytes {
        bytes if bytes >= total / 2 => Severity::Problem,
        bytes if bytes >= total / 4 => Severity::Warning,
        _ => return None,
    };
    let text = format!(
        "its /dev/shm may take {} of this node's {}: files there are memory, and stay \
         in use after a kill, since the kernel's reaper does not free them",
        bytes_text(bytes),
        bytes_text(total)
    );
    let finding = Finding::new("shm_size", severity, text).of(&container.subject());
    Some(finding.fix("a smaller --shm-size: a few GiB are enough for one engine"))
}
