//! `umawarden gate`.

mod gang;
mod holders;
mod lease;
mod node;
mod prepare;
mod remote;
mod show;
pub(crate) mod signals;
mod wait;

use std::ffi::OsString;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Args;

use super::Exit;
use super::control::ControlClient;
use super::loader::note_loader;
use super::loads::{self, MemoryNeed};
use super::storage::StorageArguments;
use crate::cli::output::{errln, outln};
use crate::cli::style::fitted_lines;
use crate::config::flags::RunFlags;
use crate::config::measure::{duration_within, size_bytes};
use crate::config::settings::Settings;
use crate::daemon::peers::Peers;
use crate::model::{GateRequest, PeerAddress, pool_names};
use crate::parse::process::{cgroup, system_unit};

use lease::StartLease;
pub(crate) use lease::{LeaseArguments, LeaseOwner};
pub(crate) use node::{GateNode, GateSetup, may_have_own_memory};
use prepare::{PrepareSetup, Preparer};
use remote::RemoteGate;
pub(crate) use show::ProgressPrinter;
pub(crate) use wait::{GateWait, WaitEnd};

/// The longest timeout.
const LONGEST: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Arguments of `umawarden gate`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct GateArguments {
    /// Memory that the engine will take, for example 90GiB; auto: what that of --like took before.
    #[arg(long, value_name = "SIZE")]
    need: MemoryNeed,

    /// With --need auto: the engine's name, or the beginning of a fingerprint of `umawarden loads`.
    #[arg(long, value_name = "NAME")]
    like: Option<String>,

    /// Memory that it needs in free blocks of at least 2 MiB.
    #[arg(long, value_name = "SIZE", value_parser = size_bytes)]
    contiguous: Option<u64>,

    /// Where it takes memory.
    #[command(flatten)]
    places: PlaceArguments,

    /// Its name for others that wait. A launch or lease of the same name by the same shell takes
    /// the memory over [default: the unit below systemd, else gate].
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    #[command(flatten)]
    lease: LeaseArguments,

    /// How long to wait; 0 checks once.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = timeout)]
    timeout: Duration,

    /// Free memory if needed: evict the model files of ended engines, then drop all caches, then
    /// compact memory (the latter two need root).
    #[arg(long)]
    prepare: bool,

    /// Other nodes that reserve as much, for an engine that spans them; they need a token of the
    /// role operate. HOST or HOST:PORT (9942 unless given) of the umawarden that runs there,
    /// several with commas [without a value: those of cluster in the configuration file].
    #[arg(long, value_name = "NODES", value_delimiter = ',', num_args = 0..=1)]
    peers: Option<Vec<PeerAddress>>,

    /// The umawarden that reserves the memory instead of this command, for an init container:
    /// HOST or HOST:PORT (9942 unless given). It needs a token of the role operate. POD_NAMESPACE,
    /// POD_NAME and POD_UID of the environment name the pod.
    #[arg(
        long = "node",
        value_name = "NODE",
        conflicts_with_all = ["peers", "prepare"],
    )]
    remote: Option<PeerAddress>,

    /// File with the token for --node [default: that of cluster in the configuration file].
    #[arg(long, value_name = "FILE", requires = "remote")]
    bearer_token_file: Option<PathBuf>,

    /// One JSON object at the end.
    #[arg(long)]
    json: bool,

    /// This node and its daemon.
    #[command(flatten)]
    pub(crate) node: NodeArguments,

    /// The engine's command, behind `--`: what its loader costs is noted. It is not run.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Where this node is read, and its daemon, if it has one.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct NodeArguments {
    /// The daemon's storage.
    #[command(flatten)]
    storage: StorageArguments,

    /// The daemon's control socket, if it is not in its storage folder.
    #[arg(long = "web.control-socket", value_name = "FILE")]
    control_socket: Option<PathBuf>,

    /// Where procfs is mounted [default: that of the configuration file, else /proc].
    #[arg(long = "path.procfs", value_name = "DIR")]
    procfs: Option<PathBuf>,

    /// Where sysfs is mounted [default: that of the configuration file, else /sys].
    #[arg(long = "path.sysfs", value_name = "DIR")]
    sysfs: Option<PathBuf>,
}

/// The pools of memory that an engine takes its need from.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct PlaceArguments {
    /// Memory that it takes beside --need from the CPUs' memory, where the GPU has memory of its
    /// own (GH200, GB200, cards); where both share one, it is added.
    #[arg(long, value_name = "SIZE", value_parser = size_bytes, default_value = "0")]
    host_need: u64,

    /// The pools that share --need evenly: host, or gpu0,gpu1 [default: where engines put weights
    /// on this node, on a GPU that CUDA_VISIBLE_DEVICES names alone; of several GPUs each must
    /// have --need].
    #[arg(long, value_name = "POOLS", value_parser = pools)]
    pool: Option<Pools>,
}

/// Names of pools.
pub(crate) type Pools = Arc<[Arc<str>]>;

pub(crate) fn pools(text: &str) -> Result<Pools, String> {
    pool_names(text).map(Arc::from)
}

impl PlaceArguments {
    /// The request for these pools.
    pub(crate) fn request(&self, need_bytes: u64, contiguous_bytes: Option<u64>) -> GateRequest {
        GateRequest {
            need_bytes,
            contiguous_bytes,
            host_need_bytes: self.host_need,
            pools: self.pool.iter().flat_map(|pools| pools.iter().cloned()).collect(),
        }
    }
}

const AFTER_HELP: &str = "\
Waits until this node can take an engine: until enough memory is available, memory is no longer \
being reclaimed, and the last engine has left no process behind. Available are MemFree above the \
kernel's low watermark, clean unmapped page cache, and half of the reclaimable slab. MemAvailable \
counts more, which the driver does not get. Memory in no counter of the kernel (a driver's) is \
waited for while it falls; if it stays, this is reported and does not keep the gate closed. \
Unreadable values do.

With --peers it opens once the memory is reserved on this node and all peers. A peer that accepts \
no token of the role operate is only queried; a peer without a response keeps it closed. This \
node's own daemon may be a peer. --prepare frees memory on this node alone.

It reads /proc ten times a second, and needs no daemon. With one it knows the baseline of memory \
in no counter; without one it allows for 1 GiB and a 64th of all memory. In a container it needs \
the host's PID namespace to see processes of engines.

Exit codes: 0 open; 1 not open in time; 2 invalid arguments, or a node never has that much; 130 \
and 143 ended by a signal.

  umawarden gate --need 90GiB
  umawarden gate --need 90GiB --contiguous 6GiB --timeout 10m --prepare
  umawarden gate --need auto --like qwen
  umawarden gate --need 90GiB --peers spark-2,spark-3
  umawarden gate --need 90GiB -- vllm serve MODEL --load-format instanttensor
  umawarden gate --need 90GiB --peers --config.file umawarden.yaml
  ExecStartPre=/usr/bin/umawarden gate --need 90GiB --timeout 10m
  ExecCondition=/usr/bin/umawarden gate --need 90GiB --timeout 0";

/// How long a start may wait for memory.
pub(crate) fn timeout(text: &str) -> Result<Duration, String> {
    duration_within(text, Duration::ZERO, LONGEST)
}

impl NodeArguments {
    /// The daemon's settings.
    ///
    /// # Errors
    /// The configuration file cannot be used.
    pub(crate) fn settings(&self) -> anyhow::Result<Settings> {
        let flags = RunFlags {
            control_socket: self.control_socket.clone(),
            procfs: self.procfs.clone(),
            sysfs: self.sysfs.clone(),
            ..RunFlags::default()
        };
        self.storage.settings(flags)
    }
}

/// The daemon of this node, if it watches the same files.
pub(crate) fn daemon(arguments: &NodeArguments, settings: &Settings) -> Option<ControlClient> {
    let is_its = arguments.procfs.is_none();
    is_its.then(|| holders::patient(ControlClient::new(&settings.web.control_socket)))
}

/// The setup of a node with these settings.
pub(crate) fn setup(settings: &Settings, daemon: Option<ControlClient>) -> GateSetup {
    GateSetup {
        procfs: settings.path.procfs.clone(),
        sysfs: settings.path.sysfs.clone(),
        declared: settings.engines.clone(),
        daemon,
        nvml: settings.gpu.library.clone(),
    }
}

/// The preparer with these settings.
pub(crate) fn preparer(settings: &Settings, daemon: Option<ControlClient>) -> Preparer {
    let files = settings.engines.iter().flat_map(|engine| &engine.model_files).map(Arc::clone);
    Preparer::new(PrepareSetup {
        procfs: settings.path.procfs.clone(),
        model_files: files.collect(),
        daemon,
    })
}

/// The given peers, or else those of the configuration.
///
/// # Errors
/// No peers are given or configured; or a thread cannot be started.
pub(crate) fn peers(
    given: Option<&[PeerAddress]>,
    settings: &Settings,
    request: &GateRequest,
) -> anyhow::Result<Option<Peers>> {
    let configured = settings.cluster.as_ref();
    let peers = match (given, configured) {
        (None, _) => return Ok(None),
        (Some([]), Some(cluster)) if cluster.has_peers() => {
            let peers = Peers::of_cluster(cluster, request);
            return Ok(Some(peers.context("cannot query the peers")?));
        }
        (Some(given), _) => given,
    };
    let access = configured.map(|cluster| cluster.access.clone()).unwrap_or_default();
    anyhow::ensure!(
        !peers.is_empty(),
        "--peers names no nodes, and neither does the configuration file: write --peers \
         spark-2,spark-3, or there cluster: {{peers: [spark-2, spark-3]}} (--config.file)"
    );
    Ok(Some(Peers::start(peers, &access, request).context("cannot query the peers")?))
}

/// The system's unit that this process runs in, whose engine the gate is for.
fn own_unit(settings: &Settings) -> Option<String> {
    let text = std::fs::read_to_string(settings.path.procfs.join("self/cgroup")).ok()?;
    Some(system_unit(cgroup(&text)?)?.to_owned())
}

/// Prints why a wait has ended without memory.
pub(crate) fn print_reasons(waited: &wait::WaitResult) {
    show::text(waited);
}

impl GateArguments {
    /// The need, in bytes.
    ///
    /// # Errors
    /// What the engine took before is unknown.
    fn need_bytes(&self, settings: &Settings) -> anyhow::Result<u64> {
        match (self.need, &self.like) {
            (MemoryNeed::Bytes(bytes), None) => Ok(bytes),
            (MemoryNeed::Auto, Some(like)) => {
                let expected = loads::expected(&settings.storage.path, like, &self.command)?;
                errln!("umawarden: --need auto is {}", expected.note);
                Ok(expected.need_bytes)
            }
            (MemoryNeed::Auto, None) => {
                anyhow::bail!("--need auto needs --like NAME: the engine whose earlier loads count")
            }
            (MemoryNeed::Bytes(_), Some(_)) => anyhow::bail!("--like goes with --need auto"),
        }
    }
}

impl GateArguments {
    fn remote_gate<'a>(
        &'a self,
        node: &'a PeerAddress,
        settings: &Settings,
    ) -> anyhow::Result<RemoteGate<'a>> {
        let need_bytes = self.need_bytes(settings)?;
        Ok(RemoteGate {
            node,
            token: self.bearer_token_file.clone(),
            who: self.name.clone().unwrap_or_else(|| "gate".to_owned()),
            request: self.places.request(need_bytes, self.contiguous),
            lease: &self.lease,
            timeout: self.timeout,
            json: self.json,
        })
    }
}

/// Runs the command.
///
/// # Errors
/// The configuration cannot be used, or a thread cannot be started.
pub fn execute(arguments: &GateArguments) -> anyhow::Result<Exit> {
    signals::end_at_once().context("cannot listen for signals")?;
    note_loader(&arguments.command);
    let settings = arguments.node.settings()?;
    if let Some(remote) = &arguments.remote {
        return arguments.remote_gate(remote, &settings)?.wait(&settings);
    }
    let daemon = daemon(&arguments.node, &settings);
    let mut node = GateNode::start(setup(&settings, daemon.clone()))
        .context("cannot start the scan of processes")?;
    let mut preparer = arguments.prepare.then(|| preparer(&settings, daemon));
    let need_bytes = arguments.need_bytes(&settings)?;
    let request = arguments.places.request(need_bytes, arguments.contiguous);
    let mut peers = peers(arguments.peers.as_deref(), &settings, &request)?;
    let who = arguments.name.clone().or_else(|| own_unit(&settings));
    let who = who.unwrap_or_else(|| "gate".to_owned());
    let mut lease = arguments.lease.lease(&settings, &who, (&request, LeaseOwner::Parent));
    let mut printer = ProgressPrinter::new(Some(arguments.timeout));
    let waiting = GateWait {
        request,
        limit: Some(arguments.timeout),
        preparer: preparer.as_mut(),
        peers: peers.as_mut(),
        lease: lease.as_mut(),
    };
    let waited = waiting.run(&mut node, |progress| {
        printer.print(&progress);
        ControlFlow::Continue(())
    });
    printer.end();
    let kept = peers.filter(|_| waited.ended == WaitEnd::Open).map(Peers::keep);
    for node in kept.into_iter().flatten() {
        errln!("umawarden: {node} has not confirmed the lease: there it ends within two minutes");
    }
    if arguments.json {
        outln!("{}", show::json(&waited));
    } else {
        show::text(&waited);
        let note = lease.as_ref().filter(|_| waited.ended == WaitEnd::Open);
        if let Some(note) = note.and_then(StartLease::note) {
            outln!("{}", fitted_lines(&format!("note: {note}")));
        }
    }
    Ok(match waited.ended {
        WaitEnd::Open => Exit::Fine,
        WaitEnd::TimedOut | WaitEnd::Stopped => Exit::Findings,
        WaitEnd::Hopeless => Exit::Unusable,
    })
}
