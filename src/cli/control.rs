//! What the commands share that give orders: where the daemon is, who speaks, and how it is asked.

mod client;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

pub(super) use client::{Client, ClientError, Reply};

use super::Exit;
use super::storage::StorageArguments;
use crate::cli::output::{errln, outln};
use crate::config::flags::RunFlags;
use crate::config::measure::duration_within;
use crate::exports::LONGEST;
use crate::model::{duration_text, end, seconds_text};

/// Where the daemon is.
#[derive(Clone, Debug, Default, Args)]
pub struct PlaceArguments {
    /// Where its journal is.
    #[command(flatten)]
    pub storage: StorageArguments,

    /// The daemon's control socket, if that is not beside its journal.
    #[arg(long = "web.control-socket", value_name = "FILE")]
    pub control_socket: Option<PathBuf>,

    /// The daemon's pause file, if that is not beside its journal.
    #[arg(long = "pause-file", value_name = "FILE")]
    pub pause_file: Option<PathBuf>,

    /// One JSON object a line.
    #[arg(long)]
    pub json: bool,
}

/// Who speaks, and why.
#[derive(Clone, Debug, Default, Args)]
pub struct WordsArguments {
    /// Why; shown wherever the order is.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub comment: String,

    /// Your name, beside that of the user who runs this [default: under sudo, who called it].
    #[arg(long, value_name = "NAME")]
    pub author: Option<String>,
}

/// Where the daemon keeps what its operators need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) socket: PathBuf,
    pub(super) pause_file: PathBuf,
}

impl PlaceArguments {
    /// Finds the daemon's files as the daemon does.
    pub(super) fn place(&self) -> anyhow::Result<Place> {
        let settings = self.storage.settings(RunFlags {
            control_socket: self.control_socket.clone(),
            pause_file: self.pause_file.clone(),
            ..RunFlags::default()
        })?;
        // The socket's stays as short as it is: a unix socket's address has room for little.
        let pause_file = std::path::absolute(&settings.pause_file).unwrap_or(settings.pause_file);
        Ok(Place { socket: settings.web.control_socket, pause_file })
    }

    /// The daemon there.
    pub(super) fn client(&self) -> anyhow::Result<Client> {
        Ok(Client::new(&self.place()?.socket))
    }
}

impl WordsArguments {
    /// The name to give beside the user's.
    pub(super) fn name(&self) -> Option<String> {
        let caller = || std::env::var("SUDO_USER").ok();
        self.author.clone().or_else(caller).filter(|name| !name.is_empty())
    }

    /// As they stand in a request.
    pub(super) fn json(&self) -> Map<String, Value> {
        let mut words = Map::new();
        if let Some(name) = self.name() {
            words.insert("author".to_owned(), name.into());
        }
        words.insert("comment".to_owned(), json!(self.comment));
        words
    }
}

/// How long, for a request.
pub(super) fn lasting(text: &str) -> Result<Duration, String> {
    duration_within(text, Duration::from_millis(1), LONGEST)
}

/// Until when, for a request.
pub(super) fn until(text: &str) -> Result<Timestamp, String> {
    end(text, Timestamp::now())
}

/// The fields `duration` and `until` of a request.
pub(super) fn put_lasts(
    body: &mut Map<String, Value>,
    lasts: Option<Duration>,
    until: Option<Timestamp>,
) {
    if let Some(lasts) = lasts {
        body.insert("duration".to_owned(), duration_text(lasts).into());
    }
    if let Some(until) = until {
        body.insert("until".to_owned(), until.to_string().into());
    }
}

/// Tells what came of an order: in words of `say`, or as JSON.
///
/// # Errors
/// The daemon hangs, is ending, or cannot keep the order; or cannot make anything of it.
pub(super) fn tell(
    reply: Reply,
    as_json: bool,
    say: impl FnOnce(&Value) -> String,
) -> anyhow::Result<Exit> {
    let Reply { status, data, problem, warnings } = reply;
    match status {
        200 => {
            let line = if as_json { data.to_string() } else { say(&data) };
            outln!("{}", if as_json { line } else { super::history::printable(&line).into() });
            for warning in warnings {
                errln!("umawarden: {}", super::history::printable(&warning));
            }
            Ok(Exit::Fine)
        }
        404 | 409 => {
            errln!("umawarden: {}", super::history::printable(&problem));
            Ok(Exit::Findings)
        }
        _ => anyhow::bail!("{}", super::history::printable(&problem)),
    }
}

/// The entries of a list that the daemon gave.
///
/// # Errors
/// The daemon did not answer with one.
pub(super) fn entries<T: serde::de::DeserializeOwned>(
    reply: Reply,
    name: &str,
) -> anyhow::Result<Vec<(Value, T)>> {
    if reply.status != 200 {
        anyhow::bail!("{}", super::history::printable(&reply.problem));
    }
    let entries = reply.data.get(name).and_then(Value::as_array).cloned().unwrap_or_default();
    let read = |entry: Value| {
        let typed = serde_json::from_value(entry.clone())
            .context("the daemon is of another version: its answer is not understood")?;
        Ok((entry, typed))
    };
    entries.into_iter().map(read).collect()
}

/// Prints a list, a line for each entry; where there is none, says so on standard error.
pub(super) fn list<T>(
    entries: &[(Value, T)],
    as_json: bool,
    nothing: &str,
    line: impl Fn(&T) -> String,
) {
    for (json, entry) in entries {
        if as_json {
            outln!("{json}");
        } else {
            outln!("{}", super::history::printable(&line(entry)));
        }
    }
    if entries.is_empty() && !nothing.is_empty() {
        errln!("{nothing}");
    }
}

/// How long until then, for people.
pub(super) fn left(until: Timestamp) -> String {
    let left = Duration::try_from(until.duration_since(Timestamp::now())).unwrap_or_default();
    format!("in {}", seconds_text(left))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_socket_is_where_the_daemon_with_the_same_arguments_makes_it() {
        let named = |storage: Option<&Path>, config: Option<&Path>| StorageArguments {
            storage_path: storage.map(Path::to_owned),
            config_file: config.map(Path::to_owned),
        };
        let folder = tempfile::tempdir().unwrap();
        let storage = folder.path().join("state");
        let by_flag =
            PlaceArguments { storage: named(Some(&storage), None), ..PlaceArguments::default() };
        let beside =
            Place { socket: storage.join("control.sock"), pause_file: storage.join("paused") };
        assert_eq!(by_flag.place().unwrap(), beside);
        let file = folder.path().join("umawarden.yaml");
        std::fs::write(&file, "storage: {path: state}\npause_file: stop\n").unwrap();
        let by_file =
            PlaceArguments { storage: named(None, Some(&file)), ..PlaceArguments::default() };
        let expected = Place { pause_file: folder.path().join("stop"), ..beside };
        assert_eq!(by_file.place().unwrap(), expected);
    }
}
