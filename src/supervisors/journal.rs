//! journald, through `journalctl`.
//!
//! Only fields that journald sets itself select the entries of a service (`_SYSTEMD_UNIT`,
//! `_SYSTEMD_USER_UNIT` with `_UID`, `_SYSTEMD_INVOCATION_ID`): other programs can write entries
//! that claim to be of a unit.

use std::io::{self, Read as _};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use crate::model::WorkloadLog;
use crate::parse::container::output_end;

/// journald may be slow while memory is short.
const TAKES: Duration = Duration::from_secs(2);

/// What a service wrote at its end is in the journal within this time.
const SETTLES: Duration = Duration::from_millis(200);

/// Entries that are read, and the size limit of all of them.
const ENTRIES: &str = "--lines=400";
const MAX_BYTES: u64 = 1 << 20;

/// Entries that journald received so long before the start and after the end are still of that run,
/// if it does not report which run they are of: systemd takes the time of a start after the fork,
/// when the process may already have written.
const NEAR_MICROS: u64 = 50_000;

/// Why the journal cannot be read.
#[derive(Debug)]
pub enum JournalReadError {
    /// There is no `journalctl`.
    NoJournalctl,
    /// It has not ended in time.
    TimedOut(Duration),
    /// Any other failure.
    Failed(String),
}

/// The beginning of what `journalctl` prints with these arguments.
///
/// # Errors
/// It cannot be run, or has not ended within `takes`.
pub fn journalctl(
    arguments: &[String],
    most_bytes: u64,
    takes: Duration,
) -> Result<Vec<u8>, JournalReadError> {
    let mut command = Command::new("journalctl");
    command.args(["--quiet", "--no-pager", "--output=json"]).args(arguments);
    command.stdin(Stdio::null()).stderr(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => JournalReadError::NoJournalctl,
        _ => JournalReadError::Failed(format!("journalctl cannot be run: {error}")),
    })?;
    let (to, answer) = channel();
    let out = child.stdout.take();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let read = out.map(|out| out.take(most_bytes).read_to_end(&mut bytes));
        // The receiver may have timed out.
        let _ = to.send(read.map(|read| read.map(|_| bytes)));
    });
    let read = answer.recv_timeout(takes);
    // It has ended or timed out.
    let _ = child.kill();
    // Only reaps it.
    let _ = child.wait();
    match read {
        Ok(Some(Ok(bytes))) => Ok(bytes),
        Ok(_) => Err(JournalReadError::Failed("cannot read the output of journalctl".to_owned())),
        Err(_) => Err(JournalReadError::TimedOut(takes)),
    }
}

/// One run of a service, in microseconds since 1970.
#[derive(Clone, Copy, Debug)]
pub struct ServiceRun {
    /// Its start.
    pub began: u64,
    /// Its end.
    pub ended: u64,
}

/// An entry in the JSON that `journalctl` prints.
#[derive(Debug, Deserialize)]
struct JournalctlEntry {
    #[serde(rename = "__REALTIME_TIMESTAMP")]
    at: String,
    #[serde(rename = "_SYSTEMD_INVOCATION_ID", default)]
    invocation: Option<String>,
    /// A text; numbers of bytes if it is not printable; null if it is too long.
    #[serde(rename = "MESSAGE", default)]
    message: Value,
}

impl JournalctlEntry {
    fn at(&self) -> u64 {
        self.at.parse().unwrap_or(0)
    }

    fn text(&self) -> Vec<u8> {
        let byte = |value: &Value| value.as_u64().and_then(|byte| u8::try_from(byte).ok());
        match &self.message {
            Value::String(text) => text.as_bytes().to_vec(),
            Value::Array(bytes) => bytes.iter().filter_map(byte).collect(),
            _ => Vec::new(),
        }
    }
}

/// The last lines that a service wrote in that run, and earlier ones of it for which `is_reason`
/// holds. `user`: the user whose own systemd runs it. Waits until they are in the journal.
pub fn last_output(
    (unit, user): (&str, Option<u32>),
    run: ServiceRun,
    is_reason: impl Fn(&str) -> bool,
) -> WorkloadLog {
    std::thread::sleep(SETTLES);
    let second = |micros: u64| micros / 1_000_000;
    let mut arguments = vec![
        ENTRIES.to_owned(),
        "--output-fields=MESSAGE,_SYSTEMD_INVOCATION_ID".to_owned(),
        format!("--since=@{}", second(run.began).saturating_sub(1)),
        format!("--until=@{}", second(run.ended) + 2),
    ];
    arguments.extend(entries_of(unit, user));
    let why = match journalctl(&arguments, MAX_BYTES, TAKES) {
        Ok(text) if !text.is_empty() => return lines(&text, run, is_reason),
        Ok(_) => "journald has no output of that run: it writes elsewhere (StandardOutput=), or \
                  umawarden may not read the journal (group systemd-journal)"
            .to_owned(),
        Err(JournalReadError::NoJournalctl) => "there is no journalctl".to_owned(),
        Err(JournalReadError::TimedOut(takes)) => {
            format!("journald has not answered within {} s", takes.as_secs())
        }
        Err(JournalReadError::Failed(why)) => why,
    };
    WorkloadLog::Unknown(why)
}

/// The fields that select the entries of a service.
fn entries_of(unit: &str, user: Option<u32>) -> Vec<String> {
    match user {
        None => vec![format!("_SYSTEMD_UNIT={unit}")],
        Some(user) => vec![format!("_SYSTEMD_USER_UNIT={unit}"), format!("_UID={user}")],
    }
}

/// The lines of that run among entries of its unit.
fn lines(text: &[u8], run: ServiceRun, is_reason: impl Fn(&str) -> bool) -> WorkloadLog {
    let entries = text.split(|byte| *byte == b'\n');
    // The last line may be cut.
    let entries = entries.filter_map(|line| serde_json::from_slice::<JournalctlEntry>(line).ok());
    let entries: Vec<JournalctlEntry> = entries.collect();
    let during = run.began.saturating_sub(NEAR_MICROS)..=run.ended;
    let last = entries.iter().rev().find(|entry| during.contains(&entry.at()));
    let invocation = last.and_then(|last| last.invocation.clone());
    let near = *during.start()..=run.ended.saturating_add(NEAR_MICROS);
    let is_its = |entry: &JournalctlEntry| match (&invocation, &entry.invocation) {
        (Some(own), Some(other)) => own == other,
        _ => near.contains(&entry.at()),
    };
    let of_run = entries.iter().filter(|entry| is_its(entry));
    let messages: Vec<Vec<u8>> = of_run.map(JournalctlEntry::text).collect();
    WorkloadLog::Lines(output_end(&messages, is_reason))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RUN: ServiceRun = ServiceRun { began: 1_000_000, ended: 5_000_000 };

    fn entry(at: u64, invocation: Option<&str>, message: &Value) -> String {
        let mut entry =
            serde_json::json!({"__REALTIME_TIMESTAMP": at.to_string(), "MESSAGE": message});
        if let Some(invocation) = invocation {
            entry["_SYSTEMD_INVOCATION_ID"] = invocation.into();
        }
        format!("{entry}\n")
    }

    fn found(entries: &[String]) -> Vec<String> {
        match lines(entries.concat().as_bytes(), RUN, |_| false) {
            WorkloadLog::Lines(lines) => lines,
            WorkloadLog::Unknown(why) => panic!("{why}"),
        }
    }

    #[test]
    fn the_unit_of_a_user_is_not_that_of_the_system_or_of_another_user() {
        assert_eq!(entries_of("a.service", None), ["_SYSTEMD_UNIT=a.service"]);
        let of_user = ["_SYSTEMD_USER_UNIT=a.service", "_UID=1000"];
        assert_eq!(entries_of("a.service", Some(1000)), of_user);
    }

    #[test]
    fn only_entries_of_that_run_are_read() {
        let entries = [
            entry(900_000, Some("before"), &"of the run before".into()),
            entry(940_000, Some("this"), &"starts".into()),
            entry(2_000_000, Some("this"), &"loads\nits model".into()),
            entry(4_900_000, Some("this"), &serde_json::json!([27, 91, 51, 49, 109, 98, 97, 100])),
            entry(4_950_000, Some("this"), &Value::Null),
            entry(5_010_000, Some("next"), &"of the run after".into()),
            entry(5_200_000, Some("this"), &"CUDA out of memory, password=x".into()),
        ];
        let secret = "CUDA out of memory, password [the rest may hold a secret]";
        assert_eq!(found(&entries), ["starts", "loads", "its model", "bad", secret]);
    }

    #[test]
    fn without_an_invocation_the_time_decides() {
        let entries = [
            entry(940_000, None, &"of the run before".into()),
            entry(990_000, None, &"starts".into()),
            entry(2_000_000, None, &"loads".into()),
            entry(5_040_000, None, &"ends".into()),
            entry(5_200_000, None, &"of the run after".into()),
            "{\"MESSAGE\":\"cut".to_owned(),
        ];
        assert_eq!(found(&entries), ["starts", "loads", "ends"]);
    }

    proptest! {
        #[test]
        fn any_output_is_read(text in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = lines(&text, RUN, |_| true);
        }
    }
}
