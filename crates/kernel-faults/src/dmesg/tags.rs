//! What follows the stamps of a syslog file or of another log: a host and a program, mostly.

use super::{header, json};
use crate::faults;

/// What follows the stamps of a log. The first line that shows it decides; a program that is named
/// later decides anew, for good.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Tags {
    #[default]
    Undecided,
    /// Host and program, or the program: other texts are of unknown senders.
    Named,
    /// The kernel's text: of `dmesg -t` in a container's log.
    Missing,
    /// A host, and the kernel's text.
    OnlyHost,
}

impl Tags {
    /// The host and the text of a line whose stamp precedes `rest`; `None`: programs are named, or
    /// the sender is unknown.
    pub(super) fn split<'a>(
        &mut self,
        stamp: &str,
        rest: &'a str,
    ) -> Option<(Option<&'a str>, &'a str)> {
        if *self != Self::Named && is_tagged(rest) {
            *self = Self::Named;
        }
        let hosted = rest.split_once(' ').map(|(host, text)| (host, text.trim_start()));
        if *self == Self::Undecided {
            *self = decide(stamp, rest, hosted)?;
        }
        match self {
            Self::Named | Self::Undecided => None,
            Self::Missing => Some((None, rest)),
            Self::OnlyHost => hosted.map(|(host, text)| (Some(host), text)),
        }
    }
}

/// The line of another log behind the name of its stream.
pub(super) fn behind_stream(rest: &str) -> Option<&str> {
    let (_, line) = rest.split_once(' ').filter(|(name, _)| !name.ends_with(':'))?;
    let is_line = header::has_stamp(line) || header::record(line).is_some();
    (is_line || json::is_record(line)).then_some(line)
}

fn decide(stamp: &str, rest: &str, hosted: Option<(&str, &str)>) -> Option<Tags> {
    // Severities of programs are in capitals.
    let is_host = |host: &str| {
        host.contains(|letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit())
            && !host.contains([':', '[', '(', '=', ','])
    };
    let has_host = hosted.is_some_and(|(host, text)| is_host(host) && faults::is_fault(text));
    match (faults::is_fault(rest), has_host) {
        (false, false) => None,
        (true, false) => Some(Tags::Missing),
        (false, true) => Some(Tags::OnlyHost),
        // A host, or the first word of a process' name: stamps of containers' logs are in UTC.
        (true, true) if stamp.ends_with('Z') => Some(Tags::Missing),
        (true, true) => Some(Tags::OnlyHost),
    }
}

/// Whether `kernel: ` or a program with its pid follows, perhaps after a host.
fn is_tagged(rest: &str) -> bool {
    let is_tag = |text: &str| {
        header::identifier(text).is_some_and(|(name, has_pid, _)| {
            name == "kernel" || (has_pid && !name.contains([' ', ':']))
        })
    };
    // The first word of a kernel message may be a program with a pid: `systemd[1]: …`.
    let hosted = rest.split_once(' ').filter(|(host, _)| !host.contains([':', '[']));
    rest.starts_with("kernel:") || hosted.is_some_and(|(_, text)| is_tag(text.trim_start()))
}
