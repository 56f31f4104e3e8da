//! `umawarden doctor`: the traps on this node, each with its fix.

mod collect;
mod systemctl;

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use super::Exit;
use super::control::PlaceArguments;
use crate::cli::output::outln;
use crate::doctor::{Finding, Verdict, examine};
use crate::model::counted;

/// Arguments of `umawarden doctor`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct DoctorArguments {
    /// Where the daemon is, if one runs.
    #[command(flatten)]
    place: PlaceArguments,

    /// Tell what is as it should be, too.
    #[arg(long)]
    all: bool,

    /// Where procfs is mounted [default: path.procfs of the configuration, else /proc].
    #[arg(long = "path.procfs", value_name = "DIR")]
    procfs: Option<PathBuf>,

    /// Where sysfs is mounted [default: path.sysfs of the configuration, else /sys].
    #[arg(long = "path.sysfs", value_name = "DIR")]
    sysfs: Option<PathBuf>,

    /// The kernel log [default: path.kmsg of the configuration, else /dev/kmsg].
    #[arg(long = "path.kmsg", value_name = "FILE")]
    kmsg: Option<PathBuf>,

    /// The socket of Docker or Podman [default: path.docker_socket of the configuration, else
    /// /run/docker.sock].
    #[arg(long = "path.docker-socket", value_name = "FILE")]
    docker: Option<PathBuf>,

    /// Where systemd's units are; several times for several folders [default: those of systemd].
    #[arg(long = "path.units", value_name = "DIR")]
    units: Vec<PathBuf>,

    /// The program that asks systemd [default: systemctl, where systemd runs].
    #[arg(long = "path.systemctl", value_name = "FILE")]
    systemctl: Option<PathBuf>,
}

const AFTER_HELP: &str = "\
Looks at this node for what makes engines die, or come back into the memory of their dead
predecessors, and says for each how to mend it: restart policies, --rm, health checks and shm_size
of containers; restarts, limits, timeouts, order and KillMode of systemd units, as systemd itself
tells them where it runs, and as their files do elsewhere; swap, settings, kernel, driver, kernel
log, and what the rules ask for and this user may not do. Nothing is changed, and nothing that hangs
is waited for longer than ten seconds. What cannot be looked at is told as \"cannot tell\", with the
reason: try it with sudo.

Exit codes: 0 nothing found, 1 warnings, 3 problems, 2 the arguments, or the daemon's configuration,
cannot be read. What cannot be told changes none of them.

  sudo umawarden doctor
  sudo umawarden doctor --json | jq 'select(.verdict == \"problem\")'";

/// Something will fail.
const PROBLEMS: u8 = 3;

/// Runs the command.
///
/// # Errors
/// The daemon's configuration cannot be read.
pub fn execute(arguments: &DoctorArguments) -> anyhow::Result<Exit> {
    let findings = examine(&collect::facts(arguments)?);
    for finding in &findings {
        if arguments.place.json {
            outln!("{}", json!(finding));
        } else if arguments.all || finding.verdict != Verdict::Ok {
            outln!("{}", super::history::printable(&line(finding)));
            if let Some(fix) = &finding.fix {
                outln!("             fix: {}", super::history::printable(fix));
            }
        }
    }
    let count = |verdict| findings.iter().filter(|one| one.verdict == verdict).count() as u64;
    if !arguments.place.json {
        outln!(
            "{}, {}, {} that cannot be told, {} in order",
            counted(count(Verdict::Problem), "problem"),
            counted(count(Verdict::Warning), "warning"),
            count(Verdict::CannotTell),
            count(Verdict::Ok),
        );
    }
    Ok(match (count(Verdict::Problem), count(Verdict::Warning)) {
        (1.., _) => Exit::Code(PROBLEMS),
        (0, 1..) => Exit::Findings,
        (0, 0) => Exit::Fine,
    })
}

fn line(finding: &Finding) -> String {
    let Finding { check, verdict, subject, says, .. } = finding;
    let verdict = verdict.name().replace('_', " ");
    match subject {
        Some(subject) => format!("{verdict:<12} {subject}, {check}: {says}"),
        None => format!("{verdict:<12} {check}: {says}"),
    }
}
