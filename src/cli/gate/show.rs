//! What people and scripts are shown of the waiting.

use std::fmt::Write as _;
use std::mem::{Discriminant, discriminant};
use std::time::Duration;

use serde_json::{Value, json};

use super::wait::{Ended, Looked, Waited};
use crate::cli::history::printable;
use crate::cli::output::{self, errln, outln};
use crate::model::{
    GateAnswer, GateReason, bytes_text, duration_text, measured_bytes_text, seconds_text,
};
use crate::policy::gate::SETTLES;

/// Between two lines where nothing changes, and where something does.
const EVERY: Duration = Duration::from_secs(10);
const AT_MOST_EVERY: Duration = Duration::from_secs(1);

/// Before this nothing is known of how memory moves.
const FIRST: Duration = SETTLES.saturating_add(Duration::from_millis(300));

/// Bytes in a second; less than that comes and goes all the time.
const LEAST_PACE: f64 = 64.0 * 1024.0 * 1024.0;

/// Where a terminal does not tell how wide it is.
const WIDTH: usize = 80;

/// Tells of the waiting on standard error: a line that changes on a terminal, else one now and
/// then.
pub(crate) struct Telling {
    limit: Option<Duration>,
    is_terminal: bool,
    told: Option<(Duration, Vec<Discriminant<GateReason>>)>,
    /// Whether an unfinished line stands on the terminal.
    is_on_line: bool,
}

impl Telling {
    /// Of a waiting that is over then at the latest.
    pub(crate) fn new(limit: Option<Duration>) -> Self {
        let is_terminal = output::is_error_terminal();
        Self { limit, is_terminal, told: None, is_on_line: false }
    }

    /// Tells of one look, if it is worth it.
    pub(crate) fn tell(&mut self, looked: &Looked<'_>) {
        for news in looked.news {
            self.clear();
            errln!("umawarden: {}", printable(news));
        }
        if looked.answer.is_open || looked.waited < FIRST {
            return;
        }
        if self.is_terminal {
            let line = printable(&line(looked, self.limit)).into_owned();
            let width = width();
            let cut: String = line.chars().take(width.saturating_sub(1)).collect();
            output::print_error(&format!("\r\x1b[K{cut}"));
            self.is_on_line = true;
            return;
        }
        let kinds: Vec<_> = looked.answer.reasons.iter().map(discriminant).collect();
        let is_due = self.told.as_ref().is_none_or(|(at, before)| {
            let since = looked.waited.saturating_sub(*at);
            since >= EVERY || (since >= AT_MOST_EVERY && *before != kinds)
        });
        if is_due {
            errln!("umawarden: {}", printable(&line(looked, self.limit)));
            self.told = Some((looked.waited, kinds));
        }
    }

    /// Leaves a terminal as it was.
    pub(crate) fn end(&mut self) {
        self.clear();
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.is_on_line) {
            output::print_error("\r\x1b[K");
        }
    }
}

fn width() -> usize {
    let told = rustix::termios::tcgetwinsize(std::io::stderr()).map(|size| size.ws_col);
    told.ok().filter(|columns| *columns > 0).map_or(WIDTH, usize::from)
}

/// How long, for people: tenths of a second where it is short.
fn time(time: Duration) -> String {
    match time.as_secs() {
        0..60 => format!("{:.1}s", time.as_secs_f64()),
        _ => seconds_text(time),
    }
}

fn line(looked: &Looked<'_>, limit: Option<Duration>) -> String {
    let mut text = format!("closed for {}", seconds_text(looked.waited));
    if let Some(limit) = limit {
        text.push_str(&format!(" of {}", duration_text(limit)));
    }
    if let Some(wait) = looked.answer.wait {
        text.push_str(&format!(", about {} to go", time(wait)));
    }
    if let Some(pace) = pace(looked.answer) {
        text.push_str(&format!(", {pace}"));
    }
    let reasons: Vec<String> = looked.answer.reasons.iter().map(ToString::to_string).collect();
    format!("{text}: {}", reasons.join("; "))
}

/// How fast what can be had grows or shrinks, where that is worth a word.
fn pace(answer: &GateAnswer) -> Option<String> {
    let pace = answer.room.motion.room?.bytes_per_second;
    let which = if pace > 0.0 { "more" } else { "less" };
    (pace.abs() >= LEAST_PACE).then(|| format!("{}/s {which}", measured_bytes_text(pace.abs())))
}

/// What to do about it, where that is not to wait.
fn advice(reason: &GateReason) -> Option<String> {
    match reason {
        GateReason::Orphan(orphan) => {
            Some(format!("end it: kill {}, and kill -9 {} if it stays", orphan.id, orphan.id))
        }
        GateReason::TooLarge { .. } => Some("ask for less with --need".to_owned()),
        GateReason::Unknown { .. } => {
            Some("look at what --path.procfs names, and at this user's rights".to_owned())
        }
        GateReason::Fragmented { .. } => {
            Some("compact memory (--prepare); after days of use only a reboot helps".to_owned())
        }
        GateReason::PeerUnknown { .. } => {
            Some("umawarden must run there, and be reached from here".to_owned())
        }
        _ => None,
    }
}

/// Tells people how it ended.
pub(super) fn text(waited: &Waited) {
    let answer = &waited.answer;
    if waited.ended == Ended::Open {
        let room = answer.room_bytes.unwrap_or(0);
        let peers: Vec<&str> = answer.peers.iter().map(|peer| &*peer.node).collect();
        outln!(
            "open after {}: {} of {} can be had{}",
            time(waited.waited),
            bytes_text(room),
            bytes_text(answer.question.need_bytes),
            if peers.is_empty() {
                String::new()
            } else {
                format!("; open, too: {}", peers.join(", "))
            }
        );
        for note in &answer.notes {
            outln!("note: {note}");
        }
        return;
    }
    errln!("umawarden: not open after {}:", time(waited.waited));
    output::print_error(&printable_lines(&reasons(answer)));
}

/// The reasons and the notes, a line for each.
fn reasons(answer: &GateAnswer) -> Vec<String> {
    let reasons = answer.reasons.iter().map(|reason| {
        let mut text = reason.to_string();
        if let Some(advice) = advice(reason) {
            // Writing to a String cannot fail.
            let _never = write!(text, " ({advice})");
        }
        text
    });
    reasons.chain(answer.notes.iter().map(|note| format!("note: {note}"))).collect()
}

fn printable_lines(lines: &[String]) -> String {
    lines.iter().map(|line| format!("  {}\n", printable(line))).collect()
}

/// The whole, for scripts.
pub(super) fn json(waited: &Waited) -> Value {
    let mut shown = json!(waited.answer);
    shown["ended"] = match waited.ended {
        Ended::Open => "open",
        Ended::TimedOut => "timed_out",
        Ended::Hopeless => "hopeless",
        Ended::Stopped => "stopped",
    }
    .into();
    shown["waited_seconds"] = waited.waited.as_secs_f64().into();
    shown
}
