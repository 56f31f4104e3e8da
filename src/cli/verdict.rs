//! `umawarden verdict`.

use clap::Args;
use jiff::Timestamp;
use serde::Deserialize;

use super::Exit;
use super::control::{DaemonArguments, entries, list};
use super::style::{StyledRow, Tone};
use crate::cli::output::outln;
use crate::model::{MemoryState, measured_bytes_text};

/// Arguments of `umawarden verdict`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct VerdictArguments {
    #[command(flatten)]
    daemon: DaemonArguments,
}

const AFTER_HELP: &str = "\
Shows the daemon's assessment of memory in no counter of the kernel, with its evidence:

  clean        the GPU is idle, and memory is at its baseline
  in_use       an engine lives, or a process uses the GPU
  orphan       only processes that an engine left behind use it: end them
  lingering    it is being reclaimed: wait
  held_shmem   shared memory remains that no engine uses
  reclaimable  no process uses it, and remedies were not tried yet
  leaked       no process uses it, and no remedy has reclaimed it: reboot
  wedged       the driver is stuck, by at least two independent signs: reboot
  unknown      necessary facts are unknown, which are listed

Below is who took memory within the last ten seconds, with the evidence: the driver's figures, \
those of processes, the kernel's counters, or that one engine alone has the driver open. \
stop_engine chooses by this account, and stops no engine if it is ambiguous.

The series uma_memory_verdict{verdict=\"…\"} and uma_memory_growth_bytes{owner=\"…\"} have the \
same, for rules and dashboards.

Exit codes: 0 no problem; 1 orphan, held_shmem, leaked or wedged; 2 no daemon responds, or this \
user may not query it.";

#[derive(Debug, Deserialize)]
struct AssessmentView {
    #[serde(rename = "verdict")]
    state: MemoryState,
    meaning: String,
    since: Timestamp,
    evidence: Vec<Reason>,
    account: PrintedAccount,
}

#[derive(Debug, Deserialize)]
struct Reason {
    text: String,
}

#[derive(Debug, Deserialize)]
struct PrintedAccount {
    window_seconds: f64,
    grown_bytes: f64,
    entries: Vec<Reason>,
}

/// Runs the command.
///
/// # Errors
/// No daemon responds, or its response is invalid.
pub fn execute(arguments: &VerdictArguments) -> anyhow::Result<Exit> {
    let daemon = &arguments.daemon;
    let mut reply = daemon.client()?.request("GET", "/api/v1/verdict", None)?;
    // A single object, printed like a list.
    let one = reply.data.get("verdict").cloned().unwrap_or_default();
    reply.data = serde_json::json!({ "verdict": [one] });
    let shown = entries::<AssessmentView>(reply, "verdict")?;
    if daemon.json {
        list(&shown, true, "", |_| String::new());
    } else {
        shown.iter().for_each(|(_, shown)| print(shown));
    }
    let is_bad = shown.iter().any(|(_, shown)| is_bad(shown.state));
    Ok(if is_bad { Exit::Findings } else { Exit::Fine })
}

fn is_bad(state: MemoryState) -> bool {
    matches!(
        state,
        MemoryState::Orphan | MemoryState::HeldShmem | MemoryState::Leaked | MemoryState::Wedged
    )
}

fn print(shown: &AssessmentView) {
    let AssessmentView { state, meaning, since, evidence, account } = shown;
    let tone = match state {
        state if is_bad(*state) => Tone::Bad,
        MemoryState::Unknown => Tone::Warn,
        _ => Tone::Good,
    };
    StyledRow::new(tone, state.name(), &format!(", since {since:.0}: {meaning}")).print();
    for reason in evidence {
        StyledRow::from(format!("  {}", reason.text)).print();
    }
    if let Some(taken) = taken(account) {
        outln!("{taken}");
    }
    for entry in &account.entries {
        StyledRow::from(format!("  {}", entry.text)).print();
    }
}

/// The amount of the account. `None`: nothing was taken.
fn taken(account: &PrintedAccount) -> Option<String> {
    let PrintedAccount { window_seconds, grown_bytes, .. } = account;
    let is_any = *window_seconds > 0.0 && *grown_bytes > 0.0;
    is_any.then(|| {
        format!("within {window_seconds} s {} were taken", measured_bytes_text(*grown_bytes))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_of_nothing_is_not_shown() {
        let of = |window_seconds, grown_bytes| {
            taken(&PrintedAccount { window_seconds, grown_bytes, entries: Vec::new() })
        };
        assert_eq!(of(0.0, 0.0), None);
        assert_eq!(of(10.0, 0.0), None);
        let text = of(10.0, 1024.0 * 1024.0 * 1024.0).unwrap();
        assert_eq!(text, "within 10 s 1.0 GiB were taken");
    }
}
