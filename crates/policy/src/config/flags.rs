//! The flags of `umawarden run`. Each wins over its key in the configuration file.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::measure::{ListenAddress, base_url, telemetry_path};
use super::otlp;
use super::settings::{GpuInterval, LogFormat, LogLevel, SamplingInterval, limits};
use crate::model::Mode;

/// What decides which rules are loaded, and what they may do.
#[derive(Clone, Debug, Default, Args)]
pub struct LoadFlags {
    /// Configuration file (YAML) [default: /etc/umawarden/umawarden.yaml if it exists].
    ///
    /// Not needed: everything has a default. Keys are named like the flags:
    /// `web: {listen_address: ":9942"}` is --web.listen-address.
    /// Flags win over the file. Relative paths in the file count from its folder.
    #[arg(long = "config.file", value_name = "FILE")]
    pub config_file: Option<PathBuf>,

    /// Whether remedies are carried out [default: observe].
    ///
    /// This flag overrides `mode` of the configuration file, at a reload too.
    /// `enforce` in the file lists the grades that are carried out; without it, all are.
    #[arg(long, value_name = "MODE", value_enum)]
    pub mode: Option<ModeFlag>,

    /// Rule file, folder of *.yaml, glob, or the word shipped; may be given again
    /// [default: shipped].
    ///
    /// shipped is the rules inside the program; a file of that name is ./shipped. Replaces
    /// `rule_files` of the configuration file. `umawarden rules check` checks files.
    #[arg(long, value_name = "PATH")]
    pub rules: Vec<PathBuf>,
}

/// Settings from the command line.
#[derive(Clone, Debug, Default, Args)]
pub struct RunFlags {
    /// The configuration and the rules.
    #[command(flatten)]
    pub load: LoadFlags,

    /// How often memory is read: auto, or always the same, 10ms to 1s [default: auto].
    ///
    /// auto is every 250 ms while much is free and nothing happens; every 100 ms while little is
    /// free, after a kernel event, and while tasks wait for memory; every 20 ms while memory falls
    /// so fast that it reaches the reserve within 5 s. While a rule is pending or firing, memory is
    /// read at least at the `interval` of its group, and always three times within the shortest
    /// range of a rule. Groups that are due are evaluated with the next sample.
    #[arg(long = "sampling-interval", value_name = "DURATION", value_parser = limits::sampling)]
    pub sampling_interval: Option<SamplingInterval>,

    /// Where to serve metrics and the API; may be given again, or a list with commas
    /// [default: :9942].
    ///
    /// `:9942` is every address of this node, `127.0.0.1:9942` and `[::1]:9942` only this node
    /// itself. Port 0 takes any free port, which the log then names.
    #[arg(long = "web.listen-address", value_name = "ADDRESS", value_delimiter = ',')]
    pub listen_address: Vec<ListenAddress>,

    /// Use the sockets that systemd passes instead of addresses [default: false].
    #[arg(long = "web.systemd-socket", value_name = "BOOL", num_args = 0..=1,
          require_equals = true, default_missing_value = "true",
          value_parser = clap::builder::BoolishValueParser::new())]
    pub systemd_socket: Option<bool>,

    /// The address at which people reach the page, for example through a proxy [default: the
    /// node's name and the first port].
    ///
    /// Alerts refer to it. The proxy may serve the page below a path, and removes that from
    /// requests.
    #[arg(long = "web.external-url", value_name = "URL", value_parser = base_url)]
    pub external_url: Option<String>,

    /// Path of the metrics [default: /metrics].
    #[arg(long = "web.telemetry-path", value_name = "PATH", value_parser = telemetry_path)]
    pub telemetry_path: Option<String>,

    /// Unix socket for orders: silences, approvals, pauses [default: control.sock in the
    /// folder of the journal].
    ///
    /// Only its owner and root may open it (mode 0600). Orders over the network need a role from
    /// --web.tokens.file.
    #[arg(long = "web.control-socket", value_name = "FILE")]
    pub control_socket: Option<PathBuf>,

    /// TLS, passwords, headers and a limit of requests, in the format of Prometheus' own
    /// --web.config.file.
    ///
    /// It applies to the network, not to the control socket. The file and the files that it names
    /// are read again when they change. If there are mistakes, they are reported and the previous
    /// version stays in force.
    #[arg(long = "web.config.file", value_name = "FILE")]
    pub web_config_file: Option<PathBuf>,

    /// Who may act over the network: bearer tokens, certificates and users, with a role each.
    ///
    /// `umawarden token create` makes a token and its entry. The file must not be writable for
    /// others, nor readable for all. It is read again when it changes.
    #[arg(long = "web.tokens.file", value_name = "FILE")]
    pub web_tokens_file: Option<PathBuf>,

    /// While this file exists, nothing is done [default: paused in the folder of the journal].
    ///
    /// `umawarden pause` makes it, `umawarden resume` removes it; `touch` and `rm` do as well.
    #[arg(long = "pause-file", value_name = "FILE")]
    pub pause_file: Option<PathBuf>,

    /// Folder of the journal [default: the state directory that systemd gives, else ./data].
    #[arg(long = "storage.path", value_name = "FOLDER")]
    pub storage_path: Option<PathBuf>,

    /// How long the journal is kept [default: 30d].
    #[arg(long = "storage.retention.time", value_name = "DURATION",
          value_parser = limits::retention_time)]
    pub retention_time: Option<Duration>,

    /// How large the journal may grow [default: 256MiB].
    #[arg(long = "storage.retention.size", value_name = "SIZE",
          value_parser = limits::retention_size)]
    pub retention_size_bytes: Option<u64>,

    /// How large the flight recorder's ring may grow; 0 turns it off [default: 64MiB].
    ///
    /// It is in `recording` below the journal's folder and holds all input of the rules, for
    /// `umawarden replay`. When a rule fires, the minutes around it are kept in `incidents`, which
    /// may grow to the same size.
    #[arg(long = "recording.size", value_name = "SIZE", value_parser = limits::recording_size)]
    pub recording_size_bytes: Option<u64>,

    /// How far the black box reaches back, 1m to 1d; 0 turns it off [default: 1h].
    ///
    /// It is in `black-box` below the journal's folder: a record of 512 bytes a second, for
    /// `umawarden history --last-boot`, of this boot and the four before. Another length is used
    /// from the next boot on.
    #[arg(long = "recording.black-box", value_name = "DURATION", value_parser = limits::black_box)]
    pub recording_black_box: Option<Duration>,

    /// Where proc is mounted [default: /proc].
    #[arg(long = "path.procfs", value_name = "FOLDER")]
    pub procfs: Option<PathBuf>,

    /// Where sysfs is mounted [default: /sys].
    #[arg(long = "path.sysfs", value_name = "FOLDER")]
    pub sysfs: Option<PathBuf>,

    /// The socket of Docker, or of a server with its API (Podman); may be repeated. It reports
    /// names and labels of containers. Through it an engine's container is stopped, so that it is
    /// not restarted. Root Podman's /run/podman/podman.sock, and rootless ones below /run/user of
    /// users with engines, are queried too [default: /run/docker.sock].
    #[arg(long = "path.docker-socket", value_name = "FILE")]
    pub docker_sockets: Vec<PathBuf>,

    /// The socket of the container runtime of Kubernetes (CRI). It confirms that an engine runs in
    /// the pod's container that its control group names, and gives that container's name and labels
    /// [default: the first that answers of /run/containerd/containerd.sock,
    /// /run/k3s/containerd/containerd.sock, /run/crio/crio.sock].
    #[arg(long = "path.cri-socket", value_name = "FILE")]
    pub cri_socket: Option<PathBuf>,

    /// The kernel log: a device, or a file or FIFO of lines as /dev/kmsg gives them,
    /// `prio,seq,usec,flags;text` [default: /dev/kmsg].
    ///
    /// Only /dev/kmsg has a substitute if it cannot be opened: the syslog(2) ring. Users can forge
    /// its lines, so no rule acts on them.
    ///
    /// The position and the events of another path are kept under a name of their own: the
    /// `boot_id` of these events is the boot's id, a colon and the path. A restart continues after
    /// the last number that was handled, so numbers should only grow within a boot. A file that
    /// ends below that number is read from its start. Lines of a pipe whose writer begins its
    /// numbers again are dropped, and counted as lost, until they cannot be repetitions. The
    /// journal ignores an event whose number it already has.
    #[arg(long = "path.kmsg", value_name = "FILE")]
    pub kmsg: Option<PathBuf>,

    /// How often the NVIDIA driver is queried about GPUs: auto, off, or always the same, 100ms to
    /// 1h [default: auto].
    ///
    /// auto is every second while engines live or memory is short, and every 10 s otherwise. A
    /// separate process queries the driver. Without a driver, and with off, it does not run.
    #[arg(long = "gpu.interval", value_name = "DURATION", value_parser = limits::gpu)]
    pub gpu_interval: Option<GpuInterval>,

    /// The library that queries the NVIDIA driver [default: libnvidia-ml.so.1 where the loader
    /// finds it, or where containers, WSL and NixOS have it].
    #[arg(long = "gpu.library", value_name = "FILE")]
    pub gpu_library: Option<PathBuf>,

    /// A collector that takes OTLP over HTTP: metrics and traces are sent there [default: none].
    ///
    /// Its base address, such as http://localhost:4318; /v1/metrics and /v1/traces are added to it.
    /// `otlp` in the configuration file sets the interval, the signals, credentials and more.
    /// OTEL_EXPORTER_OTLP_HEADERS, OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME are used.
    #[arg(long = "otlp.endpoint", value_name = "URL", value_parser = otlp::endpoint)]
    pub otlp_endpoint: Option<String>,

    /// The lowest level of messages that are logged [default: info].
    #[arg(long = "log.level", value_name = "LEVEL", value_enum)]
    pub log_level: Option<LogLevel>,

    /// Form of log lines [default: text].
    #[arg(long = "log.format", value_name = "FORMAT", value_enum)]
    pub log_format: Option<LogFormat>,
}

impl From<LoadFlags> for RunFlags {
    fn from(load: LoadFlags) -> Self {
        Self { load, ..Self::default() }
    }
}

/// [`Mode`] as a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ModeFlag {
    /// Decide, journal, count and log what would be done; touch nothing.
    Observe,
    /// Do it.
    Enforce,
}

impl From<ModeFlag> for Mode {
    fn from(flag: ModeFlag) -> Self {
        match flag {
            ModeFlag::Observe => Self::Observe,
            ModeFlag::Enforce => Self::Enforce,
        }
    }
}
