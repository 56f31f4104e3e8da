//! `umawarden pause` and `umawarden resume`.

use std::io::ErrorKind;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, Subcommand};
use jiff::Timestamp;
use serde_json::json;

use super::Exit;
use super::control::{
    AttributionArguments, ClientError, ControlClient, DaemonResponse, PauseFileArguments,
};
use crate::cli::output::{errln, outln};
use crate::daemon::user_name;
use crate::model::{Pause, author, printable};
use crate::pause::{PauseFile, PauseFileState};

/// Timeout for the daemon to notice the file, which it reads four times a second.
const DAEMON_TAKES: Duration = Duration::from_secs(3);
const CHECKS: u32 = 20;
const BETWEEN_CHECKS: Duration = Duration::from_millis(100);

/// Arguments of `umawarden pause`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP, args_conflicts_with_subcommands = true)]
pub struct PauseArguments {
    #[command(subcommand)]
    what: Option<PauseCommand>,

    /// Author and reason.
    #[command(flatten)]
    words: AttributionArguments,

    #[command(flatten)]
    daemon: PauseFileArguments,
}

#[derive(Debug, Subcommand)]
enum PauseCommand {
    /// Show whether the daemon is paused.
    Status {
        /// The daemon.
        #[command(flatten)]
        daemon: PauseFileArguments,
    },
}

/// Arguments of `umawarden resume`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct ResumeArguments {
    /// Author and reason.
    #[command(flatten)]
    words: AttributionArguments,

    #[command(flatten)]
    daemon: PauseFileArguments,
}

const AFTER_HELP: &str = "\
While paused, umawarden watches, alerts and decides, and does nothing. The switch is the file \
`paused` in the storage folder: it works while the daemon is down or hangs, and survives restarts \
and reboots. `touch` and `rm` do as well. The daemon reads it four times a second, and once more \
right before an action; an action in progress is not stopped.

Exit codes: 0 done, or paused already; of `pause status`: paused; 1 not paused; 2 the file cannot \
be written, removed or read, or the daemon does not comply.

  umawarden pause --comment 'firmware update'
  umawarden pause status
  umawarden resume";

/// Pauses, or shows the state.
///
/// # Errors
/// The file cannot be written, and no daemon takes the order either.
pub fn pause(arguments: &PauseArguments) -> anyhow::Result<Exit> {
    if let Some(PauseCommand::Status { daemon }) = &arguments.what {
        return status(daemon);
    }
    let found = arguments.daemon.files()?;
    let file = PauseFile::new(&found.pause_file);
    let client = ControlClient::new(&found.socket).with_patience(DAEMON_TAKES);
    // A file in doubt pauses a daemon too, but does not make this command report success.
    let state = file.check();
    if matches!(state, PauseFileState::Present(_)) {
        say(&arguments.daemon, &file, file.describe(&state).as_ref(), "paused already");
        return Ok(Exit::Fine);
    }
    let uid = rustix::process::getuid().as_raw();
    let name = arguments.words.name();
    let pause = Pause {
        author: author(name.as_deref(), user_name(uid).as_deref(), uid),
        comment: arguments.words.comment.clone(),
        since: Some(Timestamp::now()),
    };
    let written = file.write(&pause);
    let order = || {
        order_result(client.request("POST", "/api/v1/pause", Some(&arguments.words.json().into())))
    };
    if let Err(error) = written {
        // An unwritable pause may still be ordered from the daemon.
        let text = format!("writing {} failed: {error}{}", file.path().display(), advice(&error));
        return match order() {
            Ok(true) => {
                errln!("umawarden: {text}: the pause ends when the daemon does");
                say(&arguments.daemon, &file, Some(&pause), "paused");
                Ok(Exit::Fine)
            }
            _ => anyhow::bail!("not paused: {text}"),
        };
    }
    match wait_until(&client, true) {
        Ok(true) => {}
        // The daemon watches another file.
        Ok(false) => {
            if !order().is_ok_and(|paused| paused) {
                anyhow::bail!(
                    "{} is there, but the daemon at {} is not paused: is that its --pause-file?",
                    file.path().display(),
                    found.socket.display()
                );
            }
        }
        Err(error) => errln!(
            "umawarden: a daemon that uses {} does nothing from now on; none has confirmed it: \
             {error}",
            file.path().display()
        ),
    }
    say(&arguments.daemon, &file, Some(&pause), "paused");
    Ok(Exit::Fine)
}

/// Ends a pause.
///
/// # Errors
/// The file cannot be removed, or the daemon is still paused.
pub fn resume(arguments: &ResumeArguments) -> anyhow::Result<Exit> {
    let found = arguments.daemon.files()?;
    let file = PauseFile::new(&found.pause_file);
    let client = ControlClient::new(&found.socket).with_patience(DAEMON_TAKES);
    // The daemon first, since it records who ended the pause.
    let body = arguments.words.json().into();
    let response = client.request("DELETE", "/api/v1/pause", Some(&body));
    let mut resumed = matches!(&response, Ok(reply) if reply.status == 200);
    match &response {
        Ok(_) | Err(ClientError::Absent(_)) => {}
        Err(error) => errln!("umawarden: the daemon was not reached: {error}"),
    }
    resumed |= file.remove().map_err(|error| {
        let advice = advice(&error);
        anyhow::anyhow!("not resumed: removing {} failed: {error}{advice}", file.path().display())
    })?;
    if response.is_ok() && !wait_until(&client, false)? {
        let problem = response.map(|reply| reply.problem).unwrap_or_default();
        anyhow::bail!(
            "the daemon at {} is still paused: {}",
            found.socket.display(),
            printable(&problem)
        );
    }
    if !resumed {
        errln!("umawarden: it is not paused: there is no {}", file.path().display());
        return Ok(Exit::Findings);
    }
    say(&arguments.daemon, &file, None, "no longer paused");
    Ok(Exit::Fine)
}

fn status(daemon: &PauseFileArguments) -> anyhow::Result<Exit> {
    let found = daemon.files()?;
    let file = PauseFile::new(&found.pause_file);
    let client = ControlClient::new(&found.socket).with_patience(DAEMON_TAKES);
    let by_daemon = || -> anyhow::Result<Option<Pause>> {
        let reply = client.request("GET", "/api/v1/pause", None)?;
        let pause = reply.data.get("pause").context("the daemon's answer is not understood")?;
        Ok(serde_json::from_value::<Option<Pause>>(pause.clone())?)
    };
    let state = file.check();
    let known = match state {
        PauseFileState::Present(_) => Ok(file.describe(&state)),
        PauseFileState::Absent | PauseFileState::Doubtful(_) => by_daemon(),
    };
    let pause = match (&state, known) {
        (_, Ok(pause)) => pause,
        // Without a daemon, a pause exists only as a file.
        (PauseFileState::Absent | PauseFileState::Present(_), Err(error)) => {
            if !matches!(error.downcast_ref(), Some(ClientError::Absent(_))) {
                errln!("umawarden: the daemon was not reached: {error}");
            }
            None
        }
        (PauseFileState::Doubtful(error), Err(unreached)) => anyhow::bail!(
            "whether it is paused is not known: checking {} failed: {error}{}; {unreached}",
            file.path().display(),
            advice(error)
        ),
    };
    match pause {
        Some(pause) => {
            say(daemon, &file, Some(&pause), "paused");
            Ok(Exit::Fine)
        }
        None => {
            say(daemon, &file, None, "not paused");
            Ok(Exit::Findings)
        }
    }
}

/// Whether the daemon reports a pause.
fn order_result(reply: Result<DaemonResponse, ClientError>) -> anyhow::Result<bool> {
    let reply = reply?;
    anyhow::ensure!(reply.status == 200, "{}", printable(&reply.problem));
    for warning in &reply.warnings {
        errln!("umawarden: {}", printable(warning));
    }
    reply.data["paused"].as_bool().context("the daemon's answer is not understood")
}

/// Waits a moment for the daemon to pause or resume.
fn wait_until(client: &ControlClient, wanted: bool) -> Result<bool, ClientError> {
    for _ in 0..CHECKS {
        let reply = client.request("GET", "/api/v1/pause", None)?;
        if reply.data["paused"].as_bool() == Some(wanted) {
            return Ok(true);
        }
        std::thread::sleep(BETWEEN_CHECKS);
    }
    Ok(false)
}

fn advice(error: &std::io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::NotFound => {
            " (give the daemon's folder with --storage.path; under systemd mostly \
             /var/lib/umawarden)"
        }
        ErrorKind::PermissionDenied => " (try it with sudo)",
        _ => "",
    }
}

fn say(daemon: &PauseFileArguments, file: &PauseFile, pause: Option<&Pause>, what: &str) {
    if daemon.daemon.json {
        let json = json!({ "paused": pause.is_some(), "pause": pause, "file": file.path() });
        outln!("{json}");
        return;
    }
    let mut line = what.to_owned();
    if let Some(pause) = pause {
        line.push_str(&format!(" by {}", pause.author));
        if let Some(since) = pause.since {
            line.push_str(&format!(" since {since:.0}"));
        }
        if !pause.comment.is_empty() {
            line.push_str(&format!(": {}", pause.comment));
        }
    }
    outln!("{}", printable(&line));
}
