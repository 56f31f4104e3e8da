//! `umawarden launch`: waits for memory, runs an engine, and reports its cause of death.

mod evidence;
mod family;
mod link;
mod run;
mod tee;

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::Args;

use super::control::{ControlClient, DaemonArguments};
use super::gate::{
    self, GateNode, GateWait, LeaseArguments, LeaseOwner, PlaceArguments, ProgressPrinter, WaitEnd,
    timeout,
};
use super::loader::note_loader;
use super::loads::{self, MemoryNeed};
use super::{Exit, death};
use crate::cli::output::{self, errln};
use crate::config::flags::RunFlags;
use crate::config::measure::{duration_within, size_bytes};
use crate::daemon::peers::Peers;
use crate::engines::recognise;
use crate::model::{
    DeathReport, Deceased, EngineKind, Event, Moment, PeerAddress, WorkloadLog, duration_text,
    printable,
};
use crate::policy::death::{Circumstances, explain};
use crate::sys::signals::Signals;
use evidence::{Evidence, OwnGroup};
use link::DaemonLink;
use run::{CommandResult, CommandRun, CommandStartError};

/// Arguments of `umawarden launch`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct LaunchArguments {
    /// Memory that it will take, and that is waited for; auto: what the engine of this name took
    /// before. Without this it is run at once.
    #[arg(long, value_name = "SIZE")]
    need: Option<MemoryNeed>,

    /// Memory that it needs in free blocks of at least 2 MiB.
    #[arg(long, value_name = "SIZE", value_parser = size_bytes, requires = "need")]
    contiguous: Option<u64>,

    /// Where it takes memory.
    #[command(flatten)]
    places: PlaceArguments,

    #[command(flatten)]
    lease: LeaseArguments,

    /// How long to wait for memory; 0 runs it only if memory is available.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = timeout)]
    timeout: Duration,

    /// Free memory during the wait: see `umawarden gate --help`.
    #[arg(long, requires = "need")]
    prepare: bool,

    /// Other nodes that must have as much at the same time: see `umawarden gate --help`.
    #[arg(long, value_name = "NODES", value_delimiter = ',', num_args = 0..=1, requires = "need")]
    peers: Option<Vec<PeerAddress>>,

    /// Its name, also for the daemon [default: the program's name].
    #[arg(long, value_name = "NAME", value_parser = name)]
    name: Option<String>,

    /// Exit with the command's own code, even if it is 0 although a process of it was killed.
    #[arg(long)]
    pass_exit_code: bool,

    /// How long processes that outlive the command may take to end.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = grace)]
    grace: Duration,

    /// Then kill the remaining processes of the command.
    #[arg(long)]
    kill_orphans: bool,

    /// Pass the command's output through, and keep its end for the report: it then writes to pipes
    /// and not to a terminal, and cannot outlive a umawarden that is killed.
    #[arg(long)]
    tee: bool,

    /// Append the report of its death as a line of JSON to this file, if no daemon records it.
    #[arg(long, value_name = "FILE")]
    report_file: Option<PathBuf>,

    /// The daemon, if one runs.
    #[command(flatten)]
    daemon: DaemonArguments,

    /// Where procfs is mounted.
    #[arg(long = "path.procfs", value_name = "DIR", default_value = "/proc")]
    procfs: PathBuf,

    /// Where sysfs is mounted.
    #[arg(long = "path.sysfs", value_name = "DIR", default_value = "/sys")]
    sysfs: PathBuf,

    /// The kernel log.
    #[arg(long = "path.kmsg", value_name = "FILE", default_value = "/dev/kmsg")]
    kmsg: PathBuf,

    /// The command, behind `--`.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

const AFTER_HELP: &str = "\
Waits until the node can take the engine, runs the command in the foreground, and reports its \
cause of death: exit code or signal, its phase, whether the kernel's OOM killer, another killer or \
a signal ended it or one of its processes, the evidence, memory at that moment, what is left \
behind, and what to do. A running daemon gets the engine's processes, and keeps the report \
(`umawarden history`); without one it goes to --report-file.

The report goes to standard error; standard input and output are the command's. What the command \
writes last is part of the report if its output is a file, or with --tee. A key on the terminal \
(Ctrl-C, Ctrl-Z) reaches the command as if the shell had started it; SIGHUP, SIGINT, SIGQUIT, \
SIGTERM, SIGUSR1, SIGUSR2 and SIGWINCH that are sent to umawarden are passed on to it. If \
umawarden itself is killed with SIGKILL, the command goes on. Needs no privilege; without the \
right to read the kernel log (root, or CAP_SYSLOG) it does not see OOM kills, which the report \
says.

Exit codes: the command's own, 128 and the number of the signal that ended it, or
   79  the command ended with 0, but a process of it was killed, or it gave up;
       never with --pass-exit-code
  124  there was no memory for it in time, or never is: it was not run
  125  umawarden itself failed: it was not run
  126  the command cannot be executed
  127  there is no such command
    2  the arguments are wrong, or --need auto finds no earlier load

  umawarden launch --need auto --name chat -- vllm serve MODEL
  umawarden launch --need 90GiB --prepare --name chat -- vllm serve MODEL";

/// As of all commands.
const WRONG_ARGUMENTS: u8 = 2;
/// The command exited with 0 although a process was killed.
const LIED: u8 = 79;
/// As in timeout(1) and env(1).
const NO_MEMORY: u8 = 124;
const FAILED: u8 = 125;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Timeout of the daemon's report about the engine.
const DAEMON_TAKES: Duration = Duration::from_secs(3);

/// A longer file of reports is started anew.
const LONGEST_REPORT_FILE: u64 = 4 << 20;

fn grace(text: &str) -> Result<Duration, String> {
    duration_within(text, Duration::ZERO, Duration::from_secs(3600))
}

fn name(text: &str) -> Result<String, String> {
    let is_name = !text.is_empty() && text.len() <= 128 && !text.contains(char::is_control);
    is_name.then(|| text.to_owned()).ok_or_else(|| "a name has 1 to 128 characters".to_owned())
}

/// Events in the kernel log of this boot. `None` if it cannot be read.
pub(super) fn kernel_events(kmsg: &Path) -> Option<Vec<Event>> {
    evidence::kernel_events(kmsg)
}

/// The result of the wait.
enum LaunchWait {
    /// With the peers, which reserve memory while this lives.
    Open(Option<Box<Peers>>),
    /// Why it did not open.
    Closed(String),
    /// A signal came first.
    Asked(i32),
}

/// Now, on both clocks.
fn clock() -> Moment {
    crate::daemon::clock::now()
}

/// Runs the command. Errors before it runs have their own exit codes.
pub fn execute(arguments: &LaunchArguments) -> Exit {
    let name = arguments.name();
    if !arguments.daemon.json {
        note_loader(&arguments.command);
    }
    let need = match arguments.need_bytes(&name) {
        Ok(need) => need,
        Err(error) => return failed(WRONG_ARGUMENTS, &format!("{error:#}")),
    };
    let signals = match run::take_signals() {
        Ok(signals) => signals,
        Err(error) => return failed(FAILED, &format!("cannot take signals: {error}")),
    };
    let _peers = match arguments.wait_for_memory(need, &signals) {
        Ok(LaunchWait::Open(peers)) => peers,
        Ok(LaunchWait::Closed(why)) => return failed(NO_MEMORY, &why),
        Ok(LaunchWait::Asked(signal)) => {
            return Exit::Code(u8::try_from(128 + signal).unwrap_or(FAILED));
        }
        Err(error) => return failed(FAILED, &format!("{error:#}")),
    };
    let client = match arguments.daemon.client() {
        Ok(client) => client,
        Err(error) => return failed(FAILED, &format!("{error:#}")),
    };
    let mut link = DaemonLink::new(client);
    let group = OwnGroup::find(&arguments.procfs, &arguments.sysfs);
    let run = CommandRun {
        command: &arguments.command,
        signals,
        procfs: &arguments.procfs,
        grace: arguments.grace,
        kills_orphans: arguments.kill_orphans,
        tees: arguments.tee,
    };
    let program = || arguments.command[0].to_string_lossy().into_owned();
    let ran = match run.run(|head| link.begin(&name, head)) {
        Ok(ran) => ran,
        Err(CommandStartError::NotFound(error)) => {
            let what = "there is no such command, or no interpreter for it";
            return failed(NOT_FOUND, &format!("{}: {what}: {error}", program()));
        }
        Err(CommandStartError::NotExecutable(error)) => {
            return failed(NOT_EXECUTABLE, &format!("{} cannot be executed: {error}", program()));
        }
        Err(CommandStartError::Failed(error)) => return failed(FAILED, &format!("{error:#}")),
    };
    link.stop();
    let report = report(arguments, &name, &ran, &group, &link);
    arguments.print(&report);
    arguments.keep(&report, &link);
    exit(&report, arguments.pass_exit_code)
}

fn failed(code: u8, why: &str) -> Exit {
    errln!("umawarden: {}", printable(why));
    Exit::Code(code)
}

/// The command's exit code, and the one to report.
fn exit(report: &DeathReport, passes: bool) -> Exit {
    let own = report.exit.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(FAILED);
    Exit::Code(if report.is_exit_code_a_lie() && !passes { LIED } else { own })
}

/// The kind of engine, by its workers' titles, else by its command line.
fn kind(command: &[OsString], ran: &CommandResult) -> Option<EngineKind> {
    let mut titles = ran.relatives.iter().map(|relative| recognise(&relative.comm, &[], None));
    let line: Vec<String> =
        command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let found = titles.find_map(|found| found).or_else(|| recognise("", &line, None));
    found.map(|(kind, _)| kind)
}

fn report(
    arguments: &LaunchArguments,
    name: &str,
    ran: &CommandResult,
    group: &OwnGroup,
    link: &DaemonLink,
) -> DeathReport {
    let Evidence { events, is_kernel_log_read, mut not_known } =
        evidence::since(&arguments.kmsg, ran.began);
    let trouble = link.trouble();
    let own_stops = match &trouble {
        None => link.own_stops(ran.began.utc).unwrap_or_else(|why| {
            not_known.push(format!("whether umawarden's own brake ended it: {why}"));
            Vec::new()
        }),
        Some(_) => Vec::new(),
    };
    if let Some(why) = &trouble {
        not_known.push(format!("the phase that it died in: {why}"));
    }
    if ran.is_cut {
        not_known.push("it had more processes than are tracked".to_owned());
    }
    let who = Deceased {
        name: name.into(),
        engine: kind(&arguments.command, ran),
        server: Some(ran.head),
        container: group.container.clone(),
        user: None,
        container_name: None,
        pod: None,
        unit: group.unit.clone(),
        cgroup: group.path.clone(),
    };
    let log: &[String] = match &ran.output {
        Some(WorkloadLog::Lines(lines)) => lines,
        Some(WorkloadLog::Unknown(why)) => {
            not_known.push(format!("what it wrote itself: {why}"));
            &[]
        }
        None => &[],
    };
    let circumstances = Circumstances {
        who,
        log,
        exit: ran.status,
        began: Some(ran.began.uptime),
        phase: link.phase(),
        family: &ran.relatives,
        events: &events,
        own_stops: &own_stops,
        asked: ran.asked.clone(),
        is_supervised: true,
        oom_kills: group.new_kills(),
        is_cgroup_own: group.is_own(),
        are_pids_global: evidence::are_pids_global(&arguments.procfs),
        is_kernel_log_read,
        memory: ran.memory,
        not_known,
        ..Circumstances::default()
    };
    let mut report = explain(&circumstances, ran.ended);
    run::mark_killed(&mut report.orphans, &ran.killed_orphans);
    report
}

impl LaunchArguments {
    fn name(&self) -> String {
        let program = self.command.first().map(Path::new).and_then(Path::file_name);
        let program = || program.map(|name| name.to_string_lossy().into_owned());
        self.name.clone().or_else(program).unwrap_or_default()
    }

    /// The need in bytes, if one is given.
    fn need_bytes(&self, name: &str) -> anyhow::Result<Option<u64>> {
        match self.need {
            None => Ok(None),
            Some(MemoryNeed::Bytes(bytes)) => Ok(Some(bytes)),
            Some(MemoryNeed::Auto) => {
                let storage = self.daemon.storage.settings(RunFlags::default())?.storage.path;
                let expected = loads::expected(&storage, name, &self.command)?;
                if !self.daemon.json {
                    errln!("umawarden: --need auto is {}", expected.note);
                }
                Ok(Some(expected.need_bytes))
            }
        }
    }

    /// Waits at the gate, if a size is given.
    fn wait_for_memory(&self, need: Option<u64>, signals: &Signals) -> anyhow::Result<LaunchWait> {
        let Some(need_bytes) = need else { return Ok(LaunchWait::Open(None)) };
        let settings = self.daemon.storage.settings(RunFlags {
            control_socket: self.daemon.control_socket.clone(),
            procfs: Some(self.procfs.clone()),
            sysfs: Some(self.sysfs.clone()),
            ..RunFlags::default()
        })?;
        // A daemon that watches the same node.
        let is_its = self.procfs == Path::new("/proc");
        let daemon = is_its.then(|| ControlClient::new(&settings.web.control_socket));
        let daemon = daemon.map(|client| client.with_patience(DAEMON_TAKES));
        let mut node = GateNode::start(gate::setup(&settings, daemon.clone()))
            .context("cannot start to track the processes")?;
        let mut preparer = self.prepare.then(|| gate::preparer(&settings, daemon));
        let request = self.places.request(need_bytes, self.contiguous);
        let mut peers = gate::peers(self.peers.as_deref(), &settings, &request)?;
        let (limit, mut asked) = (Some(self.timeout), None);
        let mut printer = ProgressPrinter::new(limit);
        let mut lease = self.lease.lease(&settings, &self.name(), (&request, LeaseOwner::Own));
        let waiting = GateWait {
            request,
            limit,
            preparer: preparer.as_mut(),
            peers: peers.as_mut(),
            lease: lease.as_mut(),
        };
        let waited = waiting.run(&mut node, |progress| {
            printer.print(&progress);
            asked = run::asked_to_end(signals);
            if asked.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        printer.end();
        if let Some(lease) = lease.filter(|_| waited.ended == WaitEnd::Open) {
            lease.count_with(node);
        }
        let reasons: Vec<String> =
            waited.response.reasons.iter().map(ToString::to_string).collect();
        Ok(match (asked, waited.ended) {
            (Some(signal), _) => LaunchWait::Asked(signal),
            (None, WaitEnd::Open) => LaunchWait::Open(peers.map(Box::new)),
            (None, WaitEnd::TimedOut | WaitEnd::Stopped) => LaunchWait::Closed(format!(
                "there was no memory for it within {}: it was not run: {}",
                duration_text(self.timeout),
                reasons.join("; ")
            )),
            (None, WaitEnd::Hopeless) => LaunchWait::Closed(format!(
                "this node never has so much memory: it was not run: {}",
                reasons.join("; ")
            )),
        })
    }

    fn print(&self, report: &DeathReport) {
        if self.daemon.json {
            // A program reads it: it stays one line.
            output::print_error(&format!("{}\n", serde_json::json!(report)));
        } else if report.is_failure || !report.orphans.is_empty() {
            errln!("umawarden: {}", death::text(report));
        } else {
            errln!("umawarden: {}.", printable(&report.sentence()));
        }
    }

    /// Records the report in the daemon's journal, else in a file.
    fn keep(&self, report: &DeathReport, link: &DaemonLink) {
        let why = match link.trouble().map_or_else(|| link.keep(report), Err) {
            Ok(()) => return,
            Err(why) => why,
        };
        let kept = match &self.report_file {
            Some(file) => append(file, report).map(|()| format!("it is in {}", file.display())),
            None => Ok("--report-file keeps it without one".to_owned()),
        };
        match kept {
            Ok(where_to) if report.is_failure || self.report_file.is_some() => {
                errln!("umawarden: this report is in no journal: {why}; {where_to}");
            }
            Ok(_) => {}
            Err(error) => errln!("umawarden: this report is kept nowhere: {why}; {error}"),
        }
    }
}

fn append(path: &Path, report: &DeathReport) -> Result<(), String> {
    let written = || -> std::io::Result<()> {
        let is_long = path.metadata().is_ok_and(|about| about.len() > LONGEST_REPORT_FILE);
        if is_long {
            let mut old = path.as_os_str().to_owned();
            old.push(".old");
            std::fs::rename(path, old)?;
        }
        let mut file = OpenOptions::new().append(true).create(true).open(path)?;
        file.write_all(format!("{}\n", serde_json::json!(report)).as_bytes())
    };
    written().map_err(|error| format!("{} cannot be written: {error}", path.display()))
}
