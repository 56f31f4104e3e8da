//! The settings of `umawarden run`: defaults, then the configuration file, then flags.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;

use super::cluster::in_folder as in_folder_of;
use super::flags::RunFlags;
use super::guard_rails::{NamedAlert, default_guard_rails};
use super::measure::ListenAddress;
use super::nvsentinel::NvsentinelSettings;
use super::otlp::OtlpSettings;
use super::overrides::WrittenOverride;
use crate::model::{
    AlertmanagerSettings, AssessmentLimits, ClusterSettings, DeclaredEngine, DeclaredRestart,
    DrainMode, KubernetesAccess, KubernetesSettings, Mode, NodeDrain, RebootSettings,
    StartSettings, named,
};
use crate::policy::guard::GuardRails;

mod file;
pub mod limits;
#[cfg(test)]
mod tests;

pub use file::{FileSettings, parse_settings};

/// All settings of `umawarden run`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Whether remedies are carried out.
    pub mode: Mode,
    /// Where rules come from.
    pub rules: RuleSource,
    /// What is changed in them.
    pub overrides: Vec<WrittenOverride>,
    /// Time between two readings of memory.
    pub sampling_interval: SamplingInterval,
    /// Time between evaluations of groups that do not say.
    pub evaluation_interval: Duration,
    /// Paths of the kernel's files and of other servers.
    pub path: SystemPaths,
    /// The HTTP server and the control socket.
    pub web: WebSettings,
    /// Folder and limits of the journal.
    pub storage: Storage,
    /// While it exists, nothing is done.
    pub pause_file: PathBuf,
    /// The flight recorder.
    pub recording: Recording,
    /// Queries of the NVIDIA driver.
    pub gpu: Gpu,
    /// The program's own log.
    pub log: Log,
    /// Guard rails of all remedies.
    pub guard_rails: GuardRails,
    /// The alerts that the guard rails name; each must be one of a rule.
    pub named_alerts: Vec<NamedAlert>,
    /// The inference engines that are declared; others are known by their names.
    pub engines: Vec<DeclaredEngine>,
    /// Containers and units that are restarted when there is memory, besides those with the label.
    pub restarts: Vec<DeclaredRestart>,
    /// The other nodes of an engine that spans several.
    pub cluster: Option<ClusterSettings>,
    /// How starts are let in.
    pub starts: StartSettings,
    /// When memory counts as leaked.
    pub assessment: AssessmentLimits,
    /// Receiving from and sending to Alertmanagers.
    pub alertmanager: AlertmanagerSettings,
    /// What Kubernetes is to know of this node.
    pub kubernetes: Option<KubernetesSettings>,
    /// Export of metrics and traces.
    pub otlp: Option<OtlpSettings>,
    /// Where health events for NVSentinel go; `None`: nowhere.
    pub nvsentinel: Option<NvsentinelSettings>,
}

/// Time between two readings of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SamplingInterval {
    /// Depends on the state of memory.
    #[default]
    Auto,
    /// A fixed time.
    Every(Duration),
}

/// Queries of the NVIDIA driver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gpu {
    /// Time between two queries.
    pub interval: GpuInterval,
    /// Path of the NVML library, where the loader does not find it.
    pub library: Option<PathBuf>,
}

/// Time between two queries of the NVIDIA driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GpuInterval {
    /// Depends on what happens.
    #[default]
    Auto,
    /// No queries.
    Off,
    /// A fixed time.
    Every(Duration),
}

/// Where rules come from, in their order; nothing is no rules at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleSource(pub Vec<RuleEntry>);

/// One entry of `rule_files`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleEntry {
    /// The rules inside the binary.
    Shipped,
    /// A file, a folder or a glob.
    Path(PathBuf),
}

impl RuleSource {
    /// The word for the rules inside the binary. A file of that name is `./shipped`.
    pub const SHIPPED: &str = "shipped";

    /// The rules inside the binary alone.
    pub fn shipped() -> Self {
        Self(vec![RuleEntry::Shipped])
    }

    /// Entries as written, with relative paths from that folder.
    pub fn written(entries: &[PathBuf], folder: &Path) -> Self {
        let entry = |path: &PathBuf| match path.as_os_str() == Self::SHIPPED {
            true => RuleEntry::Shipped,
            false => RuleEntry::Path(folder.join(path)),
        };
        Self(entries.iter().map(entry).collect())
    }

    /// The entries of a command line, where none are the shipped rules.
    pub fn given(entries: &[PathBuf]) -> Self {
        if entries.is_empty() { Self::shipped() } else { Self::written(entries, Path::new("")) }
    }
}

/// Paths of the kernel's files and of other servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SystemPaths {
    /// The proc file system.
    pub procfs: PathBuf,
    /// The sys file system.
    pub sysfs: PathBuf,
    /// Sockets with Docker's API, of the system's runtimes; the configured ones first.
    pub docker_sockets: Vec<PathBuf>,
    /// Sockets of the CRI, in the order of attempts.
    pub cri_sockets: Vec<PathBuf>,
    /// The kernel log.
    pub kmsg: PathBuf,
}

impl SystemPaths {
    /// The first configured socket with Docker's API.
    pub fn docker(&self) -> &Path {
        self.docker_sockets.first().map_or(Path::new(DOCKER_SOCKET), PathBuf::as_path)
    }
}

/// The HTTP server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebSettings {
    /// At least one.
    pub listen: Vec<ListenAddress>,
    /// Whether systemd passes the sockets instead.
    pub systemd_socket: bool,
    /// Address of the page for people, without a slash at its end; `None`: the node's name and the
    /// first port.
    pub external_url: Option<String>,
    /// Begins with `/`; never one of the other routes.
    pub telemetry_path: String,
    /// The unix socket for orders.
    pub control_socket: PathBuf,
    /// TLS and passwords, in the format of Prometheus.
    pub config_file: Option<PathBuf>,
    /// Tokens and roles of access control.
    pub tokens_file: Option<PathBuf>,
}

/// Folder and limits of the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Storage {
    /// The folder of the journal.
    pub path: PathBuf,
    /// Older entries are removed.
    pub retention_time: Duration,
    /// The oldest entries are removed beyond that size.
    pub retention_size_bytes: u64,
}

/// The flight recorder, below the journal's folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recording {
    /// The ring's size, and that of all incidents; 0 is no recording.
    pub size_bytes: u64,
    /// How far the black box reaches back; 0 is no black box.
    pub black_box: Duration,
}

/// The program's own log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Log {
    /// Lowest level of messages that are shown.
    pub level: LogLevel,
    /// Form of lines.
    pub format: LogFormat,
}

named! {
    /// The lowest level of log messages that are shown.
    #[derive(Default, ValueEnum)]
    pub enum LogLevel {
        /// Failures.
        Error = "error",
        /// Failures and possible failures.
        Warn = "warn",
        /// These, and actions.
        #[default]
        Info = "info",
        /// These, and reasons.
        Debug = "debug",
        /// Everything.
        Trace = "trace",
    }
}

named! {
    /// The form of log lines.
    #[derive(Default, ValueEnum)]
    pub enum LogFormat {
        /// For people.
        #[default]
        Text = "text",
        /// `key=value` pairs, as Prometheus logs.
        Logfmt = "logfmt",
        /// One JSON object a line.
        Json = "json",
    }
}

/// What the process' environment says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    /// `STATE_DIRECTORY`, which systemd sets for units with `StateDirectory=`.
    pub state_directory: Option<PathBuf>,
    /// The configuration file of an installed package, if there is one.
    pub config_file: Option<PathBuf>,
}

/// Where Docker, and the Podman of root (`podman.socket`), listen by default.
const DOCKER_SOCKET: &str = "/run/docker.sock";
const PODMAN_SOCKET: &str = "/run/podman/podman.sock";

/// Where containerd, the containerd of k3s, and CRI-O listen by default.
const CRI_SOCKETS: [&str; 3] = [
    "/run/containerd/containerd.sock",
    "/run/k3s/containerd/containerd.sock",
    "/run/crio/crio.sock",
];

/// The control socket's name in the journal's folder.
const SOCKET: &str = "control.sock";

impl Settings {
    /// Flags win over the file, the file over the defaults. `folder` is the file's: relative paths
    /// in the file count from there, those in flags from the working directory.
    pub fn merge(
        flags: &RunFlags,
        file: FileSettings,
        folder: &Path,
        environment: &Environment,
    ) -> Self {
        let in_folder = |path: PathBuf| folder.join(path);
        let mode = merge_mode(flags, &file);
        let paths = merge_paths(flags, &file, folder);
        let rules = merge_rules(flags, &file, folder);
        let kubernetes = file.kubernetes.map(|file| kubernetes_in_folder(file, folder));
        let default_storage =
            environment.state_directory.clone().unwrap_or_else(|| PathBuf::from("data"));
        let storage_path = flags
            .storage_path
            .clone()
            .or(file.storage_path.map(in_folder))
            .unwrap_or(default_storage);
        let in_storage = |flag: &Option<PathBuf>, file: Option<PathBuf>, name: &str| {
            flag.clone().or(file.map(in_folder)).unwrap_or_else(|| storage_path.join(name))
        };
        Self {
            mode,
            rules,
            overrides: file.overrides,
            sampling_interval: flags
                .sampling_interval
                .or(file.sampling_interval)
                .unwrap_or_default(),
            evaluation_interval: file.evaluation_interval.unwrap_or(limits::DEFAULT_INTERVAL),
            path: paths,
            web: WebSettings {
                control_socket: in_storage(&flags.control_socket, file.control_socket, SOCKET),
                config_file: flags.web_config_file.clone().or(file.web_config_file.map(in_folder)),
                tokens_file: flags.web_tokens_file.clone().or(file.web_tokens_file.map(in_folder)),
                systemd_socket: flags.systemd_socket.or(file.systemd_socket).unwrap_or_default(),
                external_url: flags.external_url.clone().or(file.external_url),
                ..merge_web(flags, file.listen, file.telemetry_path)
            },
            pause_file: in_storage(&flags.pause_file, file.pause_file, "paused"),
            storage: merge_storage(
                flags,
                (file.retention_time, file.retention_size_bytes),
                storage_path,
            ),
            recording: merge_recording(flags, file.recording_size_bytes, file.recording_black_box),
            gpu: merge_gpu(flags, file.gpu_interval, file.gpu_library.map(in_folder)),
            log: Log {
                level: flags.log_level.or(file.log_level).unwrap_or_default(),
                format: flags.log_format.or(file.log_format).unwrap_or_default(),
            },
            guard_rails: GuardRails {
                reboot: merge_reboot(file.reboot, kubernetes.as_ref()),
                has_kubernetes: kubernetes.is_some(),
                enforced: file.enforce.unwrap_or_default(),
                ..file.guard_rails.unwrap_or_else(default_guard_rails)
            },
            named_alerts: file.named_alerts,
            engines: file.engines.unwrap_or_default(),
            restarts: file.restarts.unwrap_or_default(),
            cluster: file.cluster.map(|cluster| in_folder_of(cluster, folder)),
            starts: StartSettings {
                at_once: file.starts_at_once.unwrap_or(1),
                folder: file.starts_folder.map(in_folder),
            },
            assessment: merge_assessment_limits(file.leaked_bytes, file.leaked_after),
            alertmanager: file.alertmanager.unwrap_or_default(),
            kubernetes,
            otlp: merge_otlp(flags, file.otlp, folder),
            nvsentinel: file.nvsentinel,
        }
    }
}

/// Whoever names grades wants them carried out.
fn merge_mode(flags: &RunFlags, file: &FileSettings) -> Mode {
    let names_grades = file.enforce.as_ref().is_some_and(|grades| !grades.are_none());
    let of_grades = if names_grades { Mode::Enforce } else { Mode::Observe };
    flags.load.mode.map(Mode::from).or(file.mode).unwrap_or(of_grades)
}

fn merge_rules(flags: &RunFlags, file: &FileSettings, folder: &Path) -> RuleSource {
    match &file.rule_files {
        _ if !flags.load.rules.is_empty() => RuleSource::given(&flags.load.rules),
        Some(entries) => RuleSource::written(entries, folder),
        None => RuleSource::shipped(),
    }
}

fn merge_paths(flags: &RunFlags, file: &FileSettings, folder: &Path) -> SystemPaths {
    let path = |flag: &_, file: &Option<PathBuf>, default| {
        either_path(folder, flag, file.clone(), default)
    };
    let cri_socket = file.cri_socket.as_ref().map(|path| folder.join(path));
    SystemPaths {
        procfs: path(&flags.procfs, &file.procfs, "/proc"),
        sysfs: path(&flags.sysfs, &file.sysfs, "/sys"),
        docker_sockets: docker_sockets(flags, file, folder),
        cri_sockets: match flags.cri_socket.clone().or(cri_socket) {
            Some(socket) => vec![socket],
            None => CRI_SOCKETS.map(PathBuf::from).to_vec(),
        },
        kmsg: path(&flags.kmsg, &file.kmsg, "/dev/kmsg"),
    }
}

/// Those of the flag or the file, then Docker's if there are none, and root Podman's.
fn docker_sockets(flags: &RunFlags, file: &FileSettings, folder: &Path) -> Vec<PathBuf> {
    let mut sockets: Vec<PathBuf> = match flags.docker_sockets.is_empty() {
        false => flags.docker_sockets.clone(),
        true => file.docker_sockets.iter().flatten().map(|path| folder.join(path)).collect(),
    };
    if sockets.is_empty() {
        sockets.push(DOCKER_SOCKET.into());
    }
    if !sockets.iter().any(|socket| socket == Path::new(PODMAN_SOCKET)) {
        sockets.push(PODMAN_SOCKET.into());
    }
    sockets
}

fn merge_recording(
    flags: &RunFlags,
    size_bytes: Option<u64>,
    black_box: Option<Duration>,
) -> Recording {
    let size_bytes = flags.recording_size_bytes.or(size_bytes);
    let black_box = flags.recording_black_box.or(black_box);
    Recording {
        size_bytes: size_bytes.unwrap_or(limits::DEFAULT_RECORDING_SIZE_BYTES),
        black_box: black_box.unwrap_or(limits::DEFAULT_BLACK_BOX),
    }
}

fn merge_assessment_limits(
    leaked_bytes: Option<u64>,
    leaked_after: Option<Duration>,
) -> AssessmentLimits {
    let usual = AssessmentLimits::default();
    AssessmentLimits {
        leaked_bytes: leaked_bytes.unwrap_or(usual.leaked_bytes),
        leaked_after: leaked_after.unwrap_or(usual.leaked_after),
    }
}

fn merge_storage(
    flags: &RunFlags,
    (time, size_bytes): (Option<Duration>, Option<u64>),
    path: PathBuf,
) -> Storage {
    let time = flags.retention_time.or(time);
    let size_bytes = flags.retention_size_bytes.or(size_bytes);
    Storage {
        path,
        retention_time: time.unwrap_or(limits::DEFAULT_RETENTION_TIME),
        retention_size_bytes: size_bytes.unwrap_or(limits::DEFAULT_RETENTION_SIZE_BYTES),
    }
}

fn kubernetes_in_folder(file: KubernetesSettings, folder: &Path) -> KubernetesSettings {
    let kubeconfig = file.access.kubeconfig.map(|path| folder.join(path));
    let access = KubernetesAccess { kubeconfig, ..file.access };
    KubernetesSettings { access, ..file }
}

/// A reboot asks the lock server and Kubernetes, where there are such.
fn merge_reboot(
    file: Option<RebootSettings>,
    kubernetes: Option<&KubernetesSettings>,
) -> RebootSettings {
    let mut reboot = file.unwrap_or_default();
    if let Some(kubernetes) = kubernetes.filter(|settings| settings.drain != DrainMode::None) {
        let drain = NodeDrain {
            api: kubernetes.access.clone(),
            evict: kubernetes.drain == DrainMode::Evict,
            for_at_most: kubernetes.drain_for,
        };
        reboot.lock.get_or_insert_default().drain = Some(drain);
    }
    reboot
}

fn merge_otlp(flags: &RunFlags, file: Option<OtlpSettings>, folder: &Path) -> Option<OtlpSettings> {
    let in_folder = |path: Option<PathBuf>| path.map(|path| folder.join(path));
    let file = file.map(|otlp| OtlpSettings {
        headers_file: in_folder(otlp.headers_file),
        ca_file: in_folder(otlp.ca_file),
        ..otlp
    });
    let Some(endpoint) = flags.otlp_endpoint.clone() else { return file };
    Some(OtlpSettings { endpoint, ..file.unwrap_or_else(|| OtlpSettings::to(String::new())) })
}

fn merge_web(
    flags: &RunFlags,
    listen: Option<Vec<ListenAddress>>,
    telemetry_path: Option<String>,
) -> WebSettings {
    let everywhere = ListenAddress { host: super::measure::ListenHost::All, port: 9942 };
    let listen = match &flags.listen_address {
        flags if flags.is_empty() => listen.unwrap_or_else(|| vec![everywhere]),
        flags => flags.clone(),
    };
    let telemetry_path = flags.telemetry_path.clone().or(telemetry_path);
    let telemetry_path = telemetry_path.unwrap_or_else(|| "/metrics".to_owned());
    let control_socket = PathBuf::new();
    WebSettings {
        listen,
        systemd_socket: false,
        external_url: None,
        telemetry_path,
        control_socket,
        config_file: None,
        tokens_file: None,
    }
}

fn merge_gpu(flags: &RunFlags, interval: Option<GpuInterval>, library: Option<PathBuf>) -> Gpu {
    Gpu {
        interval: flags.gpu_interval.or(interval).unwrap_or_default(),
        library: flags.gpu_library.clone().or(library),
    }
}

/// What a flag says, or the file counted from its folder.
fn either_path(
    folder: &Path,
    flag: &Option<PathBuf>,
    file: Option<PathBuf>,
    default: &str,
) -> PathBuf {
    let file = file.map(|path| folder.join(path));
    flag.clone().or(file).unwrap_or_else(|| PathBuf::from(default))
}
