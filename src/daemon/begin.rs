//! Starts the daemon.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use anyhow::Context;
use arc_swap::ArcSwap;

use super::alerting::Alerting;
use super::alive::AliveRecorder;
use super::black_box::BlackBox;
use super::entrance::{ServerShared, ServerSockets, serve};
use super::evicting::Evicting;
use super::leases::LeaseWatch;
use super::orders::Orders;
use super::own::OwnReadings;
use super::past::{PastReceiver, Search};
use super::pause::PauseWatch;
use super::priority::{self, Priority};
use super::recorder::{self, Recorder};
use super::report::LogReporter;
use super::sampling::Sampling;
use super::service::Loader;
use super::settling::{Settling, settle};
use super::wake::Wake;
use super::{Cursor, Daemon, clock, cluster, first, kubernetes, otlp, preflight};
use crate::access::AccessControl;
use crate::actions::{
    ActionWorker, CacheEmptier, DEFAULT_TIME_LIMIT, Executor, Intent, LaneSetup, MemoryExecutor,
    MemorySetup, RebootExecutor, SettingsTally, StartExecutor, StopExecutor, TemporarySettings,
    TemporarySetup, WorkerSetup,
};
use crate::config::reader::LoadedConfig;
use crate::config::settings::{GpuInterval, Settings};
use crate::exports::ClientLimits;
use crate::journal::{Journal, JournalEntry, Note, ResumePoint, Retention};
use crate::model::{DecisionId, Mode, Moment, Observation, Outcome};
use crate::otlp::Otlp;
use crate::policy::Policy;
use crate::policy::memory_ring::MemoryFeed;
use crate::policy::status::Status;
use crate::sources::cluster::ClusterWatch;
use crate::sources::deferred::{AdoptedFile, DeferredSetup, DeferredWatch};
use crate::sources::engines::{DockerPace, EngineSetup, EngineWatch, USER_FOLDERS};
use crate::sources::gpu::{GpuSetup, GpuWatch, Patience};
use crate::sources::holders::{HolderSetup, HolderWatch};
use crate::sources::kernel_log::{KernelLogSource, ResumeFrom};
use crate::sources::logged_in::LoggedInWatch;
use crate::sources::memory::MemorySource;
use crate::sources::process::ProcessSource;
use crate::supervisors::logged_in::{LoginSources, UTMP};
use crate::supervisors::systemd::Bus;
use crate::sys::descriptors;

/// How long the brake waits for its intent to be on disk before it acts without: about as long as a
/// healthy disk takes. A collapse takes a few percent of the remaining memory meanwhile.
const BRAKE_INTENT_TAKES: Duration = Duration::from_millis(10);

/// How long an action waits for its intent to be on disk before it is dropped.
const INTENT_TAKES: Duration = Duration::from_secs(5);

/// How long the start waits for the past from the journal.
const JOURNAL_TAKES: Duration = Duration::from_secs(5);

/// Below procfs: the id of this boot.
const BOOT_ID: &str = "sys/kernel/random/boot_id";

/// The running program, even if its file was replaced.
const OWN_PROGRAM: &str = "/proc/self/exe";

/// The kernel log with the kernel's sequence numbers.
const KERNEL_RING: &str = "/dev/kmsg";

/// Opens everything. The backlog of the kernel log is not read yet.
pub(super) fn begin(loaded: LoadedConfig, loader: Loader) -> anyhow::Result<Daemon> {
    prepare_process(&loaded);
    let settings = loaded.settings.clone();
    let entrance = ServerSockets::open(&settings)?;
    let wake = Wake::new().context("cannot make the loop's wake-up (eventfd)")?;
    let started = clock::now();
    let RunStart { journal, boot, boot_id, resume, next_decision } = beginning(&settings, started);
    let mut policy = new_policy(&loaded, started, next_decision, resume.as_ref());
    let (past, found) = search_past(&settings, &journal, &boot_id, boot.as_deref(), &wake)?;
    let pause = PauseWatch::start(&settings.pause_file, wake.clone())?;
    let recorder = record(&loaded, started, &boot_id, next_decision, resume.as_ref());
    let (kernel_log, resume_from) = open_kernel_log(&settings.path.kmsg, resume.as_ref());
    let (status, tally) = (Arc::new(ArcSwap::from_pointee(policy.status(started))), Arc::default());
    let temporary = temporary_settings(&settings, &journal, boot.clone(), &tally);
    let taker = take_orders(&journal, &status, &pause, started);
    let watches = watch(&settings, &policy, &status)?;
    let alerting = Alerting::start(&settings, &status, wake.clone())?;
    let shared = ServerShared::begin(&loaded, &boot_id, started);
    let own = (&alerting, &watches.leases);
    first::report(&loaded, &entrance.addresses(), &status, (&journal, started))?;
    let (service, access) = serve(&settings, entrance, (loader, &wake), taker, own, &shared)?;
    let otlp = otlp::start(&settings, &boot_id, &status)?;
    let kubernetes = kubernetes::start(&settings, &status)?;
    let servers = (&otlp, &kubernetes);
    let sampling = Sampling::new(settings.sampling_interval, &settings.path.procfs);
    // Threads that start from here on are raised like this one.
    let priority = settle_in();
    let ((sender, outcomes), evicting) = (channel(), Evicting::default());
    let acting = (&evicting, temporary, &status, &kubernetes);
    let worker = start_worker(&journal, &pause, &wake, sender, &loaded, acting)?;
    // Last: a failed start must leave no open record.
    let black_box = BlackBox::start(&settings, boot.as_deref(), Arc::clone(&status), priority);
    let own = own_readings(&settings, started, sampling.interval(), (tally, access), servers);
    Ok(Daemon {
        memory: MemorySource::open(&settings.path.procfs, &settings.path.sysfs),
        process: ProcessSource::default(),
        engines: watches.engines,
        deferred: watches.deferred,
        gpu: watches.gpu,
        holders: watches.holders,
        logged_in: watch_logged_in(&settings),
        leases: watches.leases,
        cluster: watches.cluster,
        settings,
        policy,
        kernel_log,
        journal,
        worker,
        outcomes,
        service,
        spare_status: Arc::new((**status.load()).clone()),
        status,
        memory_feed: MemoryFeed::new(Arc::clone(&shared.memory)),
        shared,
        wake,
        own,
        evicting,
        report: LogReporter::default(),
        recorder,
        black_box,
        otlp,
        kubernetes,
        boot_id,
        alive: AliveRecorder::new(boot.map(Arc::from)),
        cursor: Cursor { next_seq: resume_from.map(|from| from.seq), ..Cursor::default() },
        sampling,
        settling: Settling::new(started.uptime, priority.is_locked),
        next_slow: started.uptime,
        seen: found.into_iter().collect(),
        past,
        pause,
        alerting,
    })
}

/// The journal, and where this run goes on.
struct RunStart {
    journal: Arc<Journal>,
    boot: Option<String>,
    boot_id: Arc<str>,
    resume: Option<ResumePoint>,
    next_decision: DecisionId,
}

fn beginning(settings: &Settings, started: Moment) -> RunStart {
    let journal = Arc::new(open_journal(settings));
    let boot = find_boot_id(settings);
    let boot_id = name_kernel_log(settings, boot.as_deref(), started);
    let resume = resume_point(&journal, &boot_id);
    let next_decision = journal.next_decision_id(started.utc, JOURNAL_TAKES);
    RunStart { journal, boot, boot_id, resume, next_decision }
}

/// Sources with threads of their own.
struct SourceWatches {
    engines: EngineWatch,
    deferred: DeferredWatch,
    gpu: Option<GpuWatch>,
    holders: HolderWatch,
    leases: LeaseWatch,
    cluster: Option<ClusterWatch>,
}

/// Starts the sources before this thread is raised, which they would inherit.
fn watch(
    settings: &Settings,
    policy: &Policy,
    status: &Arc<ArcSwap<Status>>,
) -> anyhow::Result<SourceWatches> {
    Ok(SourceWatches {
        engines: watch_engines(settings)?,
        leases: LeaseWatch::open(settings, status)?,
        deferred: watch_deferred(settings)?,
        gpu: watch_gpu(settings)?,
        holders: watch_holders(settings)?,
        cluster: cluster::watch(settings, policy)?,
    })
}

fn own_readings(
    settings: &Settings,
    started: Moment,
    sampling_interval: Duration,
    (tally, access): (Arc<SettingsTally>, Arc<AccessControl>),
    (otlp, kubernetes): (&Otlp, &kubernetes::Kubernetes),
) -> OwnReadings {
    let procfs = &settings.path.procfs;
    let mut own = OwnReadings::new(started, sampling_interval, tally, access, procfs);
    own.set_servers(otlp.tally(), kubernetes.tally());
    own
}

fn record(
    loaded: &LoadedConfig,
    started: Moment,
    boot_id: &str,
    next_decision: DecisionId,
    resume: Option<&ResumePoint>,
) -> Recorder {
    let begin = recorder::begin(loaded, started, boot_id, next_decision, resume);
    Recorder::start(&loaded.settings, begin)
}

/// A policy without a past, which does nothing before it knows it.
fn new_policy(
    loaded: &LoadedConfig,
    started: Moment,
    next_decision: DecisionId,
    resume: Option<&ResumePoint>,
) -> Policy {
    let settings = &loaded.settings;
    let mut policy = Policy::new(started, settings.mode, &loaded.rules, next_decision);
    policy.await_past();
    policy.set_assessment_limits(settings.assessment);
    policy.forget_received_after(settings.alertmanager.forget_after);
    policy.set_cluster(settings.cluster.as_ref().map(cluster::names));
    if let Some(point) = resume {
        policy.resume_kernel_log(point.known.clone());
        policy.resume_events(&point.last_events);
    }
    policy
}

fn take_orders(
    journal: &Arc<Journal>,
    status: &Arc<ArcSwap<Status>>,
    pause: &PauseWatch,
    started: Moment,
) -> Orders {
    Orders {
        journal: Arc::clone(journal),
        status: Arc::clone(status),
        pause: pause.clone(),
        last_silence: last_silence(journal, started),
    }
}

pub(super) fn watch_engines(settings: &Settings) -> anyhow::Result<EngineWatch> {
    let setup = EngineSetup {
        procfs: settings.path.procfs.clone(),
        docker: settings.path.docker_sockets.clone(),
        users: USER_FOLDERS.into(),
        cri: settings.path.cri_sockets.clone(),
        declared: settings.engines.clone(),
        pace: DockerPace::default(),
        clock: clock::uptime,
    };
    EngineWatch::start(setup).context("cannot start the threads that watch inference engines")
}

pub(super) fn watch_holders(settings: &Settings) -> anyhow::Result<HolderWatch> {
    let setup = HolderSetup {
        procfs: settings.path.procfs.clone(),
        sysfs: settings.path.sysfs.clone(),
        clock: clock::uptime,
    };
    HolderWatch::start(setup)
        .context("cannot start the thread that watches who has the driver open")
}

/// Users are only watched if a reboot is configured.
fn watch_logged_in(settings: &Settings) -> LoggedInWatch {
    let procfs = settings.path.procfs.clone();
    let sources = LoginSources { bus: Bus::system(), utmp: UTMP.into(), procfs };
    LoggedInWatch::new(sources, clock::uptime)
}

fn watch_deferred(settings: &Settings) -> anyhow::Result<DeferredWatch> {
    let setup = DeferredSetup {
        docker: settings.path.docker().to_owned(),
        systemd: Bus::system(),
        user_folders: USER_FOLDERS.into(),
        adopted: AdoptedFile::path_in(&settings.storage.path),
        declared: settings.restarts.clone(),
        clock: clock::now,
    };
    DeferredWatch::start(setup).context("cannot start the threads that watch deferred restarts")
}

/// `None` if the driver is not polled.
pub(super) fn watch_gpu(settings: &Settings) -> anyhow::Result<Option<GpuWatch>> {
    let interval = match settings.gpu.interval {
        GpuInterval::Off => return Ok(None),
        GpuInterval::Auto => None,
        GpuInterval::Every(interval) => Some(interval),
    };
    let setup = GpuSetup {
        program: OWN_PROGRAM.into(),
        library: settings.gpu.library.clone(),
        interval,
        patience: Patience::default(),
        procfs: settings.path.procfs.clone(),
        clock: clock::uptime,
    };
    let watch = GpuWatch::start(setup);
    watch.context("cannot start the thread that queries the NVIDIA driver").map(Some)
}

fn search_past(
    settings: &Settings,
    journal: &Arc<Journal>,
    boot_id: &Arc<str>,
    boot: Option<&str>,
    wake: &Wake,
) -> anyhow::Result<(PastReceiver, Option<Observation>)> {
    let search = Search {
        storage: settings.storage.path.clone(),
        journal: Arc::clone(journal),
        boot_id: Arc::clone(boot_id),
        boot: boot.map(Arc::from),
    };
    search.start(wake.clone())
}

/// Shrinks the process, then locks its memory.
fn settle_in() -> Priority {
    settle();
    priority::take()
}

/// The kernel log, from where an earlier run of this boot has read it. Another log than the
/// kernel's has no substitute.
fn open_kernel_log(
    kmsg: &Path,
    resume: Option<&ResumePoint>,
) -> (KernelLogSource, Option<ResumeFrom>) {
    let from = resume.map(|point| ResumeFrom { seq: point.resume_seq });
    let log = match kmsg == Path::new(KERNEL_RING) {
        true => KernelLogSource::open_or_syslog(kmsg, from),
        false => KernelLogSource::open(kmsg, from),
    };
    (log, from)
}

fn open_journal(settings: &Settings) -> Journal {
    let retention = Retention {
        max_age: settings.storage.retention_time,
        max_bytes: settings.storage.retention_size_bytes,
    };
    Journal::open(&settings.storage.path, retention)
}

fn resume_point(journal: &Journal, boot_id: &str) -> Option<ResumePoint> {
    journal.resume_point(boot_id, JOURNAL_TAKES).unwrap_or_else(|error| {
        tracing::warn!(%error, "earlier kernel events of this boot unknown");
        None
    })
}

/// The highest id of a silence, so that none is used twice; the time if the journal is unavailable.
fn last_silence(journal: &Journal, started: Moment) -> u64 {
    match journal.operator_memory(started.utc, JOURNAL_TAKES) {
        Ok(memory) => memory.last_silence,
        Err(_) => u64::try_from(started.utc_ms()).unwrap_or(0),
    }
}

fn start_worker(
    journal: &Arc<Journal>,
    pause: &PauseWatch,
    wake: &Wake,
    outcomes: Sender<Outcome>,
    loaded: &LoadedConfig,
    (evicting, temporary, status, cluster): (
        &Evicting,
        TemporarySettings,
        &Arc<ArcSwap<Status>>,
        &kubernetes::Kubernetes,
    ),
) -> anyhow::Result<ActionWorker> {
    let wake = wake.clone();
    let emptier = CacheEmptier {
        procfs: loaded.settings.path.procfs.clone(),
        uptime: clock::uptime,
        sleep: std::thread::sleep,
        tally: evicting.emptied(),
    };
    let end_pauses = temporary.end_pauses();
    let path = &loaded.settings.path;
    let memory = memory_executor(
        loaded,
        MemorySetup {
            procfs: path.procfs.clone(),
            sysfs: path.sysfs.clone(),
            evictor: evicting.evictor(),
            temporary,
            emptier,
        },
    );
    let stop = StopExecutor {
        procfs: path.procfs.clone(),
        sysfs: path.sysfs.clone(),
        docker: path.docker().to_owned(),
        user_folders: USER_FOLDERS.into(),
    };
    let start = start_executor(loaded);
    let reboot = RebootExecutor::new(&path.procfs, Bus::system());
    let reboot = kubernetes::evicting(reboot, status);
    let lane = |executor: Box<dyn Executor + Send>| {
        let (journal, pause) = (Arc::clone(journal), pause.switch());
        LaneSetup {
            executor,
            intent: intent_within(journal, INTENT_TAKES),
            pause: Box::new(move || pause.read()),
        }
    };
    // The brake waits for no disk: not for the intent, and not for the pause file.
    let watched = pause.clone();
    let brake = LaneSetup {
        executor: Box::new(stop),
        intent: intent_within(Arc::clone(journal), BRAKE_INTENT_TAKES),
        pause: Box::new(move || watched.known()),
    };
    ActionWorker::start(WorkerSetup {
        ordinary: lane(Box::new(memory)),
        brake,
        start: lane(Box::new(start)),
        reboot: lane(Box::new(reboot)),
        kubernetes: kubernetes::executor(&loaded.settings, cluster, status).map(lane),
        outcomes,
        wake: Box::new(move || wake.notify()),
        clock: clock::now,
        time_limit: DEFAULT_TIME_LIMIT,
        end_pauses,
    })
    .context("cannot start the thread that acts")
}

fn intent_within(journal: Arc<Journal>, time: Duration) -> Intent {
    Box::new(move |decision| journal.intent(decision, time).map_err(|error| error.to_string()))
}

fn start_executor(loaded: &LoadedConfig) -> StartExecutor {
    let docker = loaded.settings.path.docker().to_owned();
    StartExecutor { docker, systemd: Bus::system(), user_folders: USER_FOLDERS.into() }
}

/// The executor, with its files open if actions are enabled.
fn memory_executor(loaded: &LoadedConfig, setup: MemorySetup) -> MemoryExecutor {
    let mut executor = MemoryExecutor::new(setup);
    let modes = loaded.rules.groups.iter().flat_map(|group| &group.rules).map(|rule| rule.mode);
    if modes.flatten().chain([loaded.settings.mode]).any(|mode| mode == Mode::Enforce) {
        executor.open();
    }
    executor
}

/// The executor of temporary settings. The undo log is opened where it may hang.
fn temporary_settings(
    settings: &Settings,
    journal: &Arc<Journal>,
    boot_id: Option<String>,
    tally: &Arc<SettingsTally>,
) -> TemporarySettings {
    let journal = Arc::clone(journal);
    TemporarySettings::new(TemporarySetup {
        procfs: settings.path.procfs.clone(),
        sysfs: settings.path.sysfs.clone(),
        storage: settings.storage.path.clone(),
        boot_id,
        clock: clock::now,
        report: Box::new(move |text| {
            tracing::warn!(text, "temporary settings");
            journal.record(&JournalEntry::Note(Note { at: clock::now(), text }));
        }),
        tally: Arc::clone(tally),
    })
}

/// Each of the two servers may use an eighth of the descriptors.
pub(super) fn limits() -> ClientLimits {
    let limits = ClientLimits::default();
    ClientLimits { connections: limits.connections.min(descriptors::share(8)), ..limits }
}

/// Raises the limit on open files, fills the reserve, and reports what the settings miss.
fn prepare_process(loaded: &LoadedConfig) {
    crate::sys::share_freed_memory();
    match descriptors::raise_limit() {
        Ok(limit) => tracing::debug!(%limit, "open_files"),
        Err(error) => tracing::warn!(%error, "cannot raise the limit on open files"),
    }
    if let Err(error) = descriptors::keep_reserve() {
        tracing::warn!(
            %error, remedy = "raise LimitNOFILE=", "cannot reserve descriptors"
        );
    }
    preflight::report(loaded);
}

fn find_boot_id(settings: &Settings) -> Option<String> {
    // A fake procfs may lack it; the kernel's own has the same id.
    [&*settings.path.procfs, Path::new("/proc")].into_iter().find_map(|procfs| {
        let text = std::fs::read_to_string(procfs.join(BOOT_ID)).ok()?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    })
}

/// The id of this boot's kernel log. A file has other sequence numbers than the kernel's ring, and
/// so a position of its own. Without a boot id nothing is resumed.
fn name_kernel_log(settings: &Settings, boot: Option<&str>, started: Moment) -> Arc<str> {
    let boot_id = boot.map(str::to_owned).unwrap_or_else(|| {
        tracing::warn!(
            path = %settings.path.procfs.join(BOOT_ID).display(),
            effect = "a restart may count kernel events again",
            "boot id unknown"
        );
        format!("unknown-{}", started.utc_ms())
    });
    let kmsg = &settings.path.kmsg;
    if kmsg == Path::new(KERNEL_RING) {
        return boot_id.into();
    }
    format!("{boot_id}:{}", kmsg.display()).into()
}
