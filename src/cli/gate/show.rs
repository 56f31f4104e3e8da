//! Prints the progress and the result of a wait.

use std::fmt::Write as _;
use std::mem::{Discriminant, discriminant};
use std::time::Duration;

use serde_json::{Value, json};

use super::wait::{WaitEnd, WaitProgress, WaitResult};
use crate::cli::output::{self, errln, outln};
use crate::cli::progress::{bar, share};
use crate::cli::style::fitted_lines;
use crate::model::{
    GateReason, GateResponse, MemoryPool, PoolKind, bytes_text, duration_text, measured_bytes_text,
    printable, seconds_text, tenths_text,
};
use crate::policy::gate::SETTLES;

/// Between two lines without and with a change.
const EVERY: Duration = Duration::from_secs(10);
const AT_MOST_EVERY: Duration = Duration::from_secs(1);

/// The trend of memory is unknown before.
const FIRST: Duration = SETTLES.saturating_add(Duration::from_millis(300));

/// Bytes a second. Smaller changes are noise.
const LEAST_PACE: f64 = 64.0 * 1024.0 * 1024.0;

/// Prints progress on standard error: one changing line on a terminal, else a line now and then.
pub(crate) struct ProgressPrinter {
    limit: Option<Duration>,
    is_terminal: bool,
    last: Option<(Duration, Vec<Discriminant<GateReason>>)>,
}

impl ProgressPrinter {
    /// For a wait with this timeout.
    pub(crate) fn new(limit: Option<Duration>) -> Self {
        let is_terminal = output::is_error_terminal() && !output::is_dumb();
        Self { limit, is_terminal, last: None }
    }

    /// Prints the progress, if it has changed enough.
    pub(crate) fn print(&mut self, progress: &WaitProgress<'_>) {
        for news in progress.news {
            errln!("umawarden: {}", printable(news));
        }
        if progress.response.is_open || progress.waited < FIRST {
            return;
        }
        if self.is_terminal {
            let line = line(progress, self.limit);
            let bar = reached(progress.response).map(|share| bar(share) + " ").unwrap_or_default();
            output::draw_line(&printable(&format!("{bar}{line}")));
            return;
        }
        let kinds: Vec<_> = {
            let reasons = progress.response.reasons.iter();
            reasons.map(|reason| discriminant(reason.in_any_pool())).collect()
        };
        let is_due = self.last.as_ref().is_none_or(|(at, before)| {
            let since = progress.waited.saturating_sub(*at);
            since >= EVERY || (since >= AT_MOST_EVERY && *before != kinds)
        });
        if is_due {
            errln!("umawarden: {}", printable(&line(progress, self.limit)));
            self.last = Some((progress.waited, kinds));
        }
    }

    /// Ends the line on a terminal.
    pub(crate) fn end(&mut self) {
        output::clear_line();
    }
}

/// How much of the need is available; `None` if that is unknown, or not what it waits for.
fn reached(response: &GateResponse) -> Option<f64> {
    let available = response.available_bytes?;
    let need = response.request.need_bytes;
    (available < need).then(|| share(available, need))
}

fn line(progress: &WaitProgress<'_>, limit: Option<Duration>) -> String {
    let mut text = format!("closed for {}", seconds_text(progress.waited));
    if let Some(limit) = limit {
        text.push_str(&format!(" of {}", duration_text(limit)));
    }
    if let Some(wait) = progress.response.wait {
        text.push_str(&format!(", about {} to go", tenths_text(wait)));
    }
    if let Some(pace) = pace(progress.response) {
        text.push_str(&format!(", {pace}"));
    }
    let reasons: Vec<String> = progress.response.reasons.iter().map(ToString::to_string).collect();
    format!("{text}: {}", reasons.join("; "))
}

/// The rate at which available memory changes, if it is significant.
fn pace(response: &GateResponse) -> Option<String> {
    let pace = response.memory.motion.available?.bytes_per_second;
    let which = if pace > 0.0 { "more" } else { "less" };
    (pace.abs() >= LEAST_PACE).then(|| format!("{}/s {which}", measured_bytes_text(pace.abs())))
}

/// Names of the GPUs with memory of their own.
fn of_gpus(pools: &[MemoryPool]) -> Vec<&str> {
    let gpus = pools.iter().filter(|pool| pool.kind != PoolKind::Host);
    gpus.map(|pool| &*pool.pool).collect()
}

/// The advice for a reason, unless it is to wait.
fn advice(reason: &GateReason, pools: &[MemoryPool]) -> Option<String> {
    match reason.in_any_pool() {
        GateReason::Orphan(orphan) => {
            Some(format!("end it: kill {}, and kill -9 {} if it stays", orphan.id, orphan.id))
        }
        GateReason::TooLarge { .. } => Some(match of_gpus(pools).as_slice() {
            [] | [_] => "request less with --need".to_owned(),
            gpus => format!("name the GPUs that share it with --pool {}", gpus.join(",")),
        }),
        GateReason::PoolUnknown { .. } | GateReason::NoPool { .. } => None,
        GateReason::Unknown { .. } => {
            Some("check --path.procfs, and the rights of this user".to_owned())
        }
        GateReason::Fragmented { .. } => {
            Some("compact memory (--prepare); after days of use only a reboot helps".to_owned())
        }
        GateReason::PeerUnknown { .. } => {
            Some("check that umawarden runs there and can be reached from here".to_owned())
        }
        _ => None,
    }
}

/// Prints the result for people.
pub(super) fn text(waited: &WaitResult) {
    let response = &waited.response;
    if waited.ended == WaitEnd::Open {
        let available = response.available_bytes.unwrap_or(0);
        let place = if response.pools.is_empty() {
            String::new()
        } else {
            format!(" in {}", response.place())
        };
        let peers: Vec<&str> = response.peers.iter().map(|peer| &*peer.node).collect();
        let too = match peers.as_slice() {
            [] => String::new(),
            peers => format!("; open, too: {}", peers.join(", ")),
        };
        let text = format!(
            "open after {}: {} available{place}, {} needed{too}",
            tenths_text(waited.waited),
            bytes_text(available),
            bytes_text(response.request.need_bytes)
        );
        outln!("{}", fitted_lines(&text));
        for note in &response.notes {
            outln!("{}", fitted_lines(&format!("note: {note}")));
        }
        return;
    }
    errln!("umawarden: not open after {}:", tenths_text(waited.waited));
    output::print_fitted_error(&printable_lines(&reasons(response)));
}

/// Reasons and notes, one per line.
fn reasons(response: &GateResponse) -> Vec<String> {
    let reasons = response.reasons.iter().map(|reason| {
        let mut text = reason.to_string();
        if let Some(advice) = advice(reason, &response.pools) {
            // Writing to a String cannot fail.
            let _ = write!(text, " ({advice})");
        }
        text
    });
    reasons.chain(response.notes.iter().map(|note| format!("note: {note}"))).collect()
}

fn printable_lines(lines: &[String]) -> String {
    lines.iter().map(|line| format!("  {}\n", printable(line))).collect()
}

/// The result as JSON.
pub(super) fn json(waited: &WaitResult) -> Value {
    let mut shown = json!(waited.response);
    shown["ended"] = match waited.ended {
        WaitEnd::Open => "open",
        WaitEnd::TimedOut => "timed_out",
        WaitEnd::Hopeless => "hopeless",
        WaitEnd::Stopped => "stopped",
    }
    .into();
    shown["waited_seconds"] = waited.waited.as_secs_f64().into();
    shown
}
