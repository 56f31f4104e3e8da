//! `umawarden doctor`: known faults of this node, each with its fix.

#[cfg_attr(not(feature = "kubernetes"), path = "doctor/no_cluster.rs")]
mod cluster;
mod collect;
mod loaders;
mod packages;
mod systemctl;

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use super::Exit;
use super::control::DaemonArguments;
use super::style::{StyledRow, Tone};
use crate::cli::output::outln;
use crate::doctor::{Finding, Severity, examine};
use crate::model::counted;

/// Arguments of `umawarden doctor`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct DoctorArguments {
    /// The daemon, if one runs.
    #[command(flatten)]
    daemon: DaemonArguments,

    /// Print passed checks too.
    #[arg(long)]
    all: bool,

    /// A file of advice in place of the one in the program, which `umawarden print advice` prints.
    #[arg(long, value_name = "FILE")]
    advice: Option<PathBuf>,

    /// Where procfs is mounted [default: path.procfs of the configuration, else /proc].
    #[arg(long = "path.procfs", value_name = "DIR")]
    procfs: Option<PathBuf>,

    /// Where sysfs is mounted [default: path.sysfs of the configuration, else /sys].
    #[arg(long = "path.sysfs", value_name = "DIR")]
    sysfs: Option<PathBuf>,

    /// The kernel log [default: path.kmsg of the configuration, else /dev/kmsg].
    #[arg(long = "path.kmsg", value_name = "FILE")]
    kmsg: Option<PathBuf>,

    /// The socket of Docker or Podman [default: DOCKER_HOST=unix://…, else that of Docker's
    /// context, else path.docker_socket of the configuration, else /run/docker.sock].
    #[arg(long = "path.docker-socket", value_name = "FILE")]
    docker: Option<PathBuf>,

    /// A folder of systemd units; may be repeated [default: the folders of systemd].
    #[arg(long = "path.units", value_name = "DIR")]
    units: Vec<PathBuf>,

    /// The program systemctl [default: systemctl, if systemd runs].
    #[arg(long = "path.systemctl", value_name = "FILE")]
    systemctl: Option<PathBuf>,
}

const AFTER_HELP: &str = "\
Checks this node for faults that kill engines, or restart them before the memory of their dead \
predecessors is reclaimed, and prints a fix for each: restart policies, --rm, health checks and \
shm_size of containers; restarts, limits, timeouts, order and KillMode of systemd units; swap, \
settings, kernel, driver, kernel log, and permissions that the rules need; rights at the API \
server of Kubernetes; how running engines read weights; and what is known against the versions and \
options of engines, with its source. Units are read from systemd if it runs, and from their files \
otherwise. The scripts that they start are read, and not run. Nothing is changed. Each source has \
a timeout of ten seconds. A check that cannot be made is \"unknown\", with the reason: try it with \
sudo.

Exit codes: 0 nothing found, 1 warnings, 3 problems, 2 the arguments, the advice or the daemon's \
configuration cannot be read. Unknown checks do not change the exit code.

  sudo umawarden doctor
  sudo umawarden doctor --json | jq 'select(.severity == \"problem\")'";

/// The exit code for a problem.
const PROBLEMS: u8 = 3;

/// Runs the command.
///
/// # Errors
/// The daemon's configuration or the file of advice cannot be read.
pub fn execute(arguments: &DoctorArguments) -> anyhow::Result<Exit> {
    let findings = examine(&collect::facts(arguments)?);
    for finding in &findings {
        if arguments.daemon.json {
            outln!("{}", json!(finding));
        } else if arguments.all || finding.severity != Severity::Ok {
            row(finding).print();
            if let Some(fix) = &finding.fix {
                StyledRow::new(Tone::Strong, "             fix: ", fix).print();
            }
        }
    }
    let count = |severity| findings.iter().filter(|one| one.severity == severity).count() as u64;
    if !arguments.daemon.json {
        outln!(
            "{}, {}, {} unknown, {} ok",
            counted(count(Severity::Problem), "problem"),
            counted(count(Severity::Warning), "warning"),
            count(Severity::Unknown),
            count(Severity::Ok),
        );
    }
    Ok(match (count(Severity::Problem), count(Severity::Warning)) {
        (1.., _) => Exit::Code(PROBLEMS),
        (0, 1..) => Exit::Findings,
        (0, 0) => Exit::Fine,
    })
}

fn row(finding: &Finding) -> StyledRow {
    let Finding { check, severity, subject, text, .. } = finding;
    let tone = match severity {
        Severity::Problem => Tone::Bad,
        Severity::Warning => Tone::Warn,
        Severity::Unknown => Tone::Faint,
        Severity::Ok => Tone::Good,
    };
    let text = match subject {
        Some(subject) => format!("{subject}, {check}: {text}"),
        None => format!("{check}: {text}"),
    };
    StyledRow::new(tone, &format!("{:<12} ", severity.name()), &text)
}
