//! The configuration file.

use std::path::PathBuf;
use std::time::Duration;

use super::{GpuInterval, LogFormat, LogLevel, SamplingInterval, limits};
use crate::config::decode::{self, Advice, Findings, Table, choice, each, list, value};
use crate::config::engines;
use crate::config::guard_rails::{self, NamedAlert};
use crate::config::measure::{self, ListenAddress, base_url, telemetry_path};
use crate::config::mistake::{Mistakes, SourceText};
use crate::config::nvsentinel::{self, NvsentinelSettings};
use crate::config::otlp::{self, OtlpSettings};
use crate::config::overrides::{self, WrittenOverride};
use crate::config::reboot;
use crate::config::yaml::{self, Content, YamlNode};
use crate::config::{alertmanager, cluster, kubernetes, restarts};
use crate::model::{
    AlertmanagerSettings, ClusterSettings, DeclaredEngine, DeclaredRestart, Grades,
    KubernetesSettings, Mode, RebootSettings,
};
use crate::policy::guard::GuardRails;

/// What a configuration file says; `None` is for the default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileSettings {
    /// `mode`.
    pub mode: Option<Mode>,
    /// `enforce`.
    pub enforce: Option<Grades>,
    /// `rule_files`, as written.
    pub rule_files: Option<Vec<PathBuf>>,
    /// `rules`.
    pub overrides: Vec<WrittenOverride>,
    /// `sampling_interval`.
    pub sampling_interval: Option<SamplingInterval>,
    /// `evaluation_interval`.
    pub evaluation_interval: Option<Duration>,
    /// `path.procfs`.
    pub procfs: Option<PathBuf>,
    /// `path.sysfs`.
    pub sysfs: Option<PathBuf>,
    /// `path.docker_socket`.
    pub docker_sockets: Option<Vec<PathBuf>>,
    /// `path.cri_socket`.
    pub cri_socket: Option<PathBuf>,
    /// `path.kmsg`.
    pub kmsg: Option<PathBuf>,
    /// `web.systemd_socket`.
    pub systemd_socket: Option<bool>,
    /// `web.external_url`.
    pub external_url: Option<String>,
    /// `web.listen_address`.
    pub listen: Option<Vec<ListenAddress>>,
    /// `web.telemetry_path`.
    pub telemetry_path: Option<String>,
    /// `web.control_socket`.
    pub control_socket: Option<PathBuf>,
    /// `web.config_file`.
    pub web_config_file: Option<PathBuf>,
    /// `web.tokens_file`.
    pub web_tokens_file: Option<PathBuf>,
    /// `pause_file`.
    pub pause_file: Option<PathBuf>,
    /// `storage.path`.
    pub storage_path: Option<PathBuf>,
    /// `storage.retention.time`.
    pub retention_time: Option<Duration>,
    /// `storage.retention.size`, in bytes.
    pub retention_size_bytes: Option<u64>,
    /// `recording.size`, in bytes.
    pub recording_size_bytes: Option<u64>,
    /// `recording.black_box`.
    pub recording_black_box: Option<Duration>,
    /// `gpu.interval`.
    pub gpu_interval: Option<GpuInterval>,
    /// `gpu.library`.
    pub gpu_library: Option<PathBuf>,
    /// `log.level`.
    pub log_level: Option<LogLevel>,
    /// `log.format`.
    pub log_format: Option<LogFormat>,
    /// `guard_rails`.
    pub guard_rails: Option<GuardRails>,
    /// The alerts that `guard_rails` names.
    pub named_alerts: Vec<NamedAlert>,
    /// `engines`.
    pub engines: Option<Vec<DeclaredEngine>>,
    /// `cluster`.
    pub cluster: Option<ClusterSettings>,
    /// `restarts`.
    pub restarts: Option<Vec<DeclaredRestart>>,
    /// `reboot`.
    pub reboot: Option<RebootSettings>,
    /// `alertmanager`.
    pub alertmanager: Option<AlertmanagerSettings>,
    /// `kubernetes`.
    pub kubernetes: Option<KubernetesSettings>,
    /// `otlp`.
    pub otlp: Option<OtlpSettings>,
    /// `nvsentinel`.
    pub nvsentinel: Option<NvsentinelSettings>,
    /// `starts.at_once`.
    pub starts_at_once: Option<u32>,
    /// `starts.folder`.
    pub starts_folder: Option<PathBuf>,
    /// `verdict.leaked_size`, in bytes.
    pub leaked_bytes: Option<u64>,
    /// `verdict.leaked_after`.
    pub leaked_after: Option<Duration>,
}

const KEYS: [&str; 24] = [
    "mode",
    "enforce",
    "rule_files",
    "rules",
    "sampling_interval",
    "evaluation_interval",
    "path",
    "web",
    "storage",
    "pause_file",
    "recording",
    "gpu",
    "log",
    "guard_rails",
    "engines",
    "restarts",
    "starts",
    "verdict",
    "reboot",
    "cluster",
    "alertmanager",
    "kubernetes",
    "otlp",
    "nvsentinel",
];

const ADVICE: [Advice; 12] = [
    (&["groups"], "this is a rule file: name it under rule_files"),
    (
        &["listen_address", "systemd_socket", "external_url", "telemetry_path", "control_socket"],
        "it belongs to web",
    ),
    (&["config_file", "tokens_file"], "it belongs to web"),
    (
        &["tls_server_config", "http_server_config", "rate_limit", "basic_auth_users"],
        "it belongs into a file of its own: name that as web: {config_file: …}",
    ),
    (&["retention"], "it belongs to storage"),
    (&["leaked_size", "leaked_after"], "it belongs to verdict"),
    (&["black_box"], "it belongs to recording"),
    (&["interval", "library", "nvml"], "it belongs to gpu"),
    (&["level", "format"], "it belongs to log"),
    (&["endpoint", "signals", "headers_file"], "it belongs to otlp"),
    (&["peers", "nodes"], "write cluster: {peers: [HOST, HOST:PORT]}"),
    (&guard_rails::KEYS, "it belongs to guard_rails"),
];

/// Reads a configuration file's text. An empty file is fine.
pub fn parse_settings(source: &SourceText) -> Result<FileSettings, Mistakes> {
    let root = yaml::parse(source).map_err(|mistake| Mistakes(vec![mistake]))?;
    let mut findings = Findings::new(source);
    let mut settings = FileSettings::default();
    if !matches!(root.content, Content::Null)
        && let Some(table) =
            Table::read_advised(&root, "the configuration", &KEYS, &ADVICE, &mut findings)
    {
        read_top(&table, &mut settings, &mut findings);
        read_path(&table, &mut settings, &mut findings);
        read_web(&table, &mut settings, &mut findings);
        read_storage(&table, &mut settings, &mut findings);
        read_recording(&table, &mut settings, &mut findings);
        read_gpu(&table, &mut settings, &mut findings);
        read_log(&table, &mut settings, &mut findings);
        read_assessment_limits(&table, &mut settings, &mut findings);
        read_starts(&table, &mut settings, &mut findings);
        settings.cluster = table.get("cluster").and_then(|node| cluster::read(node, &mut findings));
        settings.alertmanager =
            table.get("alertmanager").and_then(|node| alertmanager::read(node, &mut findings));
        settings.otlp = table.get("otlp").and_then(|node| otlp::read(node, &mut findings));
        settings.nvsentinel =
            table.get("nvsentinel").and_then(|node| nvsentinel::read(node, &mut findings));
        settings.overrides = table
            .get("rules")
            .and_then(|node| overrides::read(node, &mut findings))
            .unwrap_or_default();
        settings.engines = table.get("engines").and_then(|node| engines::read(node, &mut findings));
        settings.restarts =
            table.get("restarts").and_then(|node| restarts::read(node, &mut findings));
        if let Some(node) = table.get("guard_rails")
            && let Some((rails, alerts)) =
                guard_rails::read(node, table.get("cluster").is_some(), &mut findings)
        {
            settings.guard_rails = Some(rails);
            settings.named_alerts = alerts;
        }
        if let Some(node) = table.get("reboot")
            && let Some((reboot, alerts)) = reboot::read(node, &mut findings)
        {
            settings.reboot = Some(reboot);
            settings.named_alerts.extend(alerts);
        }
        if let Some(node) = table.get("kubernetes")
            && let Some((kubernetes, alerts)) = kubernetes::read(node, &mut findings)
        {
            settings.kubernetes = Some(kubernetes);
            settings.named_alerts.extend(alerts);
        }
    }
    match findings.into_mistakes() {
        mistakes if mistakes.is_empty() => Ok(settings),
        mistakes => Err(Mistakes(mistakes)),
    }
}

fn read_top(table: &Table<'_>, settings: &mut FileSettings, findings: &mut Findings<'_>) {
    settings.sampling_interval = entry(table, "sampling_interval", limits::sampling, findings);
    settings.evaluation_interval =
        entry(table, "evaluation_interval", limits::evaluation, findings);
    settings.mode =
        table.get("mode").and_then(|node| choice(node, "mode", &Mode::CHOICES, findings));
    settings.enforce = table.get("enforce").and_then(|node| guard_rails::grades(node, findings));
    if let (Some(mode), Some(enforce), Some(node)) =
        (settings.mode, &settings.enforce, table.get("enforce"))
    {
        contradicts(mode, enforce, node, findings);
    }
    // An empty key is more likely a mistake than a request for no rules.
    if let (Some(key), None) = (table.key("rule_files"), table.get("rule_files")) {
        findings
            .add(key.span.clone(), "rule_files is empty")
            .hint("remove it for the shipped rules, or write rule_files: [] for none");
    }
    settings.pause_file =
        table.get("pause_file").and_then(|node| path(node, "pause_file", findings));
    settings.rule_files = table.get("rule_files").and_then(|node| {
        let entries = list(node, "rule_files", findings)?;
        each(entries, findings, |entry, findings| path(entry, "an entry of rule_files", findings))
    });
}

/// Notes that the mode and the list say different things.
fn contradicts(mode: Mode, enforce: &Grades, node: &YamlNode, findings: &mut Findings<'_>) {
    let hint = match (mode, enforce.are_none()) {
        (Mode::Observe, false) => "remove mode to carry out these grades, or enforce for none",
        (Mode::Enforce, true) => "name grades, or remove enforce to carry out all of them",
        _ => return,
    };
    let message = format!("mode is {}, and enforce names {enforce}", mode.name());
    let message = match enforce.are_none() {
        true => format!("mode is {}, and enforce names no grade", mode.name()),
        false => message,
    };
    findings.add(node.span.clone(), message).hint(hint);
}

/// The value under a key that says what it is.
fn entry<T>(
    table: &Table<'_>,
    key: &str,
    read: impl Fn(&str) -> Result<T, String>,
    findings: &mut Findings<'_>,
) -> Option<T> {
    value(table.get(key)?, key, read, findings)
}

fn path(node: &YamlNode, what: &str, findings: &mut Findings<'_>) -> Option<PathBuf> {
    value(node, what, measure::path, findings)
}

fn section<'n>(
    table: &Table<'n>,
    name: &str,
    keys: &[&str],
    findings: &mut Findings<'_>,
) -> Option<Table<'n>> {
    Table::read(table.get(name)?, name, keys, findings)
}

fn read_path(table: &Table<'_>, settings: &mut FileSettings, findings: &mut Findings<'_>) {
    let keys = ["procfs", "sysfs", "docker_socket", "cri_socket", "kmsg"];
    let Some(table) = section(table, "path", &keys, findings) else { return };
    settings.docker_sockets = table.get("docker_socket").and_then(|node| match node.content {
        Content::List(_) => {
            let entries = list(node, "docker_socket", findings)?;
            let what = "an entry of docker_socket";
            each(entries, findings, |entry, findings| path(entry, what, findings))
        }
        _ => path(node, "docker_socket", findings).map(|socket| vec![socket]),
    });
    let mut read = |key: &str| path(table.get(key)?, key, findings);
    settings.procfs = read("procfs");
    settings.sysfs = read("sysfs");
    settings.cri_socket = read("cri_socket");
    settings.kmsg = read("kmsg");
}

fn read_web(table: &Table<'_>, settings: &mut FileSettings, findings: &mut Findings<'_>) {
    let keys = [
        "listen_address",
        "systemd_socket",
        "external_url",
        "telemetry_path",
        "control_socket",
        "config_file",
        "tokens_file",
    ];
    let Some(table) = section(table, "web", &keys, findings) else { return };
    settings.listen = table.get("listen_address").and_then(|node| listen(node, findings));
    settings.systemd_socket = table
        .get("systemd_socket")
        .and_then(|node| decode::boolean(node, "systemd_socket", findings));
    settings.external_url = entry(&table, "external_url", base_url, findings);
    settings.telemetry_path = entry(&table, "telemetry_path", telemetry_path, findings);
    settings.control_socket =
        table.get("control_socket").and_then(|node| path(node, "control_socket", findings));
    settings.web_config_file =
        table.get("config_file").and_then(|node| path(node, "config_file", findings));
    settings.web_tokens_file =
        table.get("tokens_file").and_then(|node| path(node, "tokens_file", findings));
}

/// One address, or a list of them.
fn listen(node: &YamlNode, findings: &mut Findings<'_>) -> Option<Vec<ListenAddress>> {
    let what = "listen_address";
    let entries = match &node.content {
        Content::List(entries) => entries.as_slice(),
        _ => return value(node, what, str::parse, findings).map(|address| vec![address]),
    };
    if entries.is_empty() {
        findings
            .add(node.span.clone(), "listen_address must name at least one address")
            .hint("remove it for the default, :9942");
    }
    each(entries, findings, |entry, findings| value(entry, what, str::parse, findings))
}

fn read_storage(table: &Table<'_>, settings: &mut FileSettings, findings: &mut Findings<'_>) {
    let Some(table) = section(table, "storage", &["path", "retention"], findings) else { return };
    settings.storage_path = table.get("path").and_then(|node| path(node, "path", findings));
    let Some(table) = section(&table, "retention", &["time", "size"], findings) else { return };
    settings.retention_time = table
        .get("time")
        .and_then(|node| value(node, "retention time", limits::retention_time, findings));
    settings.retention_size_bytes = table
        .get("size")
        .and_then(|node| value(node, "retention size", limits::retention_size, findings));
}

fn read_recording(table: &Table<'_>, settings: &mut FileSettings, findings: &mut Findings<'_>) {
    let Some(table) = section(table, "recording", &["size", "black_box"], findings) else {
        return;
    };
    settings.recording_size_bytes = table
        .get("size")
        .and_then(|node| value(node, "recording size", limits::recording_size, findings));
    settings.recording_black_box = entry(&table, "black_box", limits::black_box, findings);
}

fn read_gpu(table: &Table<'_>, settings: &mut FileSettings, findings: &mut Findings<'_>) {
    let Some(table) = section(table, "gpu", &["interval", "library"], findings) else { return };
    settings.gpu_interval = entry(&table, "interval", limits::gpu, findings);
    settings.gpu_library = table.get("library").and_then(|node| path(node, "library", findings));
}

fn read_assessment_limits(
    table: &Table<'_>,
    settings: &mut FileSettings,
    findings: &mut Findings<'_>,
) {
    let keys = ["leaked_size", "leaked_after"];
    let Some(table) = section(table, "verdict", &keys, findings) else { return };
    settings.leaked_bytes = entry(&table, "leaked_size", limits::leaked_size, findings);
    settings.leaked_after = entry(&table, "leaked_after", limits::leaked_after, findings);
}

fn read_starts(table: &Table<'_>, settings: &mut FileSettings, findings: &mut Findings<'_>) {
    let Some(table) = section(table, "starts", &["at_once", "folder"], findings) else { return };
    settings.starts_at_once = entry(&table, "at_once", limits::at_once, findings);
    settings.starts_folder = table.get("folder").and_then(|node| path(node, "folder", findings));
}

fn read_log(table: &Table<'_>, settings: &mut FileSettings, findings: &mut Findings<'_>) {
    let Some(table) = section(table, "log", &["level", "format"], findings) else { return };
    settings.log_level =
        table.get("level").and_then(|node| choice(node, "level", &LogLevel::CHOICES, findings));
    settings.log_format =
        table.get("format").and_then(|node| choice(node, "format", &LogFormat::CHOICES, findings));
}
