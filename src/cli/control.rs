//! Shared by commands that send orders: the daemon's address, the author, and the response.

mod client;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

pub(super) use client::{ClientError, ControlClient, DaemonResponse};

use super::Exit;
use super::storage::StorageArguments;
use super::style::StyledRow;
use crate::cli::output::{errln, outln};
use crate::config::flags::RunFlags;
use crate::config::measure::duration_within;
use crate::config::settings::Settings;
use crate::exports::LONGEST;
use crate::model::{duration_text, end, printable, seconds_text};

/// The daemon's address.
#[derive(Clone, Debug, Default, Args)]
pub struct DaemonArguments {
    /// Its storage.
    #[command(flatten)]
    pub storage: StorageArguments,

    /// The daemon's control socket, if it is not in its storage folder.
    #[arg(long = "web.control-socket", value_name = "FILE")]
    pub control_socket: Option<PathBuf>,

    /// One JSON object a line.
    #[arg(long)]
    pub json: bool,
}

/// The daemon's address and its pause file.
#[derive(Clone, Debug, Default, Args)]
pub struct PauseFileArguments {
    /// Its address.
    #[command(flatten)]
    pub daemon: DaemonArguments,

    /// The daemon's pause file, if it is not in its storage folder.
    #[arg(long = "pause-file", value_name = "FILE")]
    pub pause_file: Option<PathBuf>,
}

/// Author and reason of an order.
#[derive(Clone, Debug, Default, Args)]
pub struct AttributionArguments {
    /// The reason; recorded with the order.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub comment: String,

    /// Your name, in addition to that of the user who runs this [default: under sudo, its caller].
    #[arg(long, value_name = "NAME")]
    pub author: Option<String>,
}

/// The daemon's files for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DaemonFiles {
    pub(super) socket: PathBuf,
    pub(super) pause_file: PathBuf,
}

impl DaemonArguments {
    /// Finds the settings in the same way as the daemon.
    fn settings(&self, flags: RunFlags) -> anyhow::Result<Settings> {
        self.storage.settings(RunFlags { control_socket: self.control_socket.clone(), ..flags })
    }

    /// The daemon at this address.
    pub(super) fn client(&self) -> anyhow::Result<ControlClient> {
        Ok(ControlClient::new(&self.settings(RunFlags::default())?.web.control_socket))
    }
}

impl PauseFileArguments {
    /// Finds the files in the same way as the daemon.
    pub(super) fn files(&self) -> anyhow::Result<DaemonFiles> {
        let flags = RunFlags { pause_file: self.pause_file.clone(), ..RunFlags::default() };
        let settings = self.daemon.settings(flags)?;
        // The socket's path stays short: a unix socket's address has a limit.
        let pause_file = std::path::absolute(&settings.pause_file).unwrap_or(settings.pause_file);
        Ok(DaemonFiles { socket: settings.web.control_socket, pause_file })
    }
}

impl AttributionArguments {
    /// The name to send in addition to the user's.
    pub(super) fn name(&self) -> Option<String> {
        let caller = || std::env::var("SUDO_USER").ok();
        self.author.clone().or_else(caller).filter(|name| !name.is_empty())
    }

    /// The fields of a request.
    pub(super) fn json(&self) -> Map<String, Value> {
        let mut words = Map::new();
        if let Some(name) = self.name() {
            words.insert("author".to_owned(), name.into());
        }
        words.insert("comment".to_owned(), json!(self.comment));
        words
    }
}

/// Parses a duration for a request.
pub(super) fn lasting(text: &str) -> Result<Duration, String> {
    duration_within(text, Duration::from_millis(1), LONGEST)
}

/// Parses an end for a request.
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

/// Prints the result of an order, as text of `text` or as JSON.
///
/// # Errors
/// The daemon hangs, is shutting down, or rejects the order.
pub(super) fn print_result(
    reply: DaemonResponse,
    as_json: bool,
    text: impl FnOnce(&Value) -> String,
) -> anyhow::Result<Exit> {
    let DaemonResponse { status, data, problem, warnings } = reply;
    match status {
        200 => {
            match as_json {
                true => outln!("{data}"),
                false => StyledRow::from(text(&data)).print(),
            }
            for warning in warnings {
                errln!("umawarden: {}", printable(&warning));
            }
            Ok(Exit::Fine)
        }
        404 | 409 => {
            errln!("umawarden: {}", printable(&problem));
            Ok(Exit::Findings)
        }
        _ => anyhow::bail!("{}", printable(&problem)),
    }
}

/// The entries of a list in a response.
///
/// # Errors
/// The response is no such list.
pub(super) fn entries<T: serde::de::DeserializeOwned>(
    reply: DaemonResponse,
    name: &str,
) -> anyhow::Result<Vec<(Value, T)>> {
    if reply.status != 200 {
        anyhow::bail!("{}", printable(&reply.problem));
    }
    let entries = reply.data.get(name).and_then(Value::as_array).cloned().unwrap_or_default();
    let read = |entry: Value| {
        let typed = serde_json::from_value(entry.clone())
            .context("the daemon has another version: cannot parse its response")?;
        Ok((entry, typed))
    };
    entries.into_iter().map(read).collect()
}

/// Prints a list, one line per entry. An empty one is reported on standard error.
pub(super) fn list<T, R: Into<StyledRow>>(
    entries: &[(Value, T)],
    as_json: bool,
    nothing: &str,
    line: impl Fn(&T) -> R,
) {
    for (json, entry) in entries {
        if as_json {
            outln!("{json}");
        } else {
            line(entry).into().print();
        }
    }
    if entries.is_empty() && !nothing.is_empty() {
        errln!("{nothing}");
    }
}

/// The time until then, for people.
pub(super) fn left(until: Timestamp) -> String {
    let left = Duration::try_from(until.duration_since(Timestamp::now())).unwrap_or_default();
    format!("in {}", seconds_text(left))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_client_finds_the_socket_of_a_daemon_with_the_same_arguments() {
        let named = |storage: Option<&Path>, config: Option<&Path>| StorageArguments {
            storage_path: storage.map(Path::to_owned),
            config_file: config.map(Path::to_owned),
        };
        let folder = tempfile::tempdir().unwrap();
        let storage = folder.path().join("state");
        let of = |storage| PauseFileArguments {
            daemon: DaemonArguments { storage, ..DaemonArguments::default() },
            pause_file: None,
        };
        let by_flag = of(named(Some(&storage), None));
        let default = DaemonFiles {
            socket: storage.join("control.sock"),
            pause_file: storage.join("paused"),
        };
        assert_eq!(by_flag.files().unwrap(), default);
        let file = folder.path().join("umawarden.yaml");
        std::fs::write(&file, "storage: {path: state}\npause_file: stop\n").unwrap();
        let by_file = of(named(None, Some(&file)));
        let expected = DaemonFiles { pause_file: folder.path().join("stop"), ..default };
        assert_eq!(by_file.files().unwrap(), expected);
    }
}
