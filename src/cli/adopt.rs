//! `umawarden adopt`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use jiff::Timestamp;
use serde_json::json;

use super::Exit;
use super::control::ControlClient;
use super::storage::StorageArguments;
use crate::cli::output::{errln, outln};
use crate::config::flags::RunFlags;
use crate::config::measure::size_bytes;
use crate::config::settings::Settings;
use crate::daemon::user_name;
use crate::model::{StartNeed, author, bytes_text, printable};
use crate::parse::container::{InspectedContainer, inspected};
use crate::sources::deferred::{AdoptedContainer, AdoptedContainers, AdoptedFile};
use crate::supervisors::docker::{Docker, DockerError, socket_of_environment, within};

/// Timeout of a request to Docker.
const ANSWER_TAKES: Duration = Duration::from_secs(10);

/// The version of the file's format.
const VERSION: u32 = 1;

/// Arguments of `umawarden adopt`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct AdoptArguments {
    /// The container's name or id.
    #[arg(value_name = "CONTAINER")]
    container: String,

    /// Memory that must be available before it is started: 90GiB.
    #[arg(long, value_name = "SIZE", value_parser = size_bytes)]
    need: Option<u64>,

    /// Memory that must be in free blocks of 2 MiB and more.
    #[arg(long, value_name = "SIZE", value_parser = size_bytes)]
    contiguous: Option<u64>,

    /// Apply the change; without this it is only printed.
    #[arg(long)]
    yes: bool,

    /// Undo the adoption: restore Docker's restart policy.
    #[arg(long, conflicts_with_all = ["need", "contiguous"])]
    undo: bool,

    /// One JSON object instead of text.
    #[arg(long)]
    json: bool,

    /// Docker's socket [default: DOCKER_HOST=unix://… or that of Docker's context, which must be
    /// the first of the configuration; else that of the configuration file, else /run/docker.sock].
    #[arg(long = "path.docker-socket", value_name = "SOCKET")]
    docker_socket: Option<PathBuf>,

    /// The daemon.
    #[command(flatten)]
    storage: StorageArguments,
}

const AFTER_HELP: &str = "\
Docker's own restart policy restarts a dead engine within 100 ms, before the driver's memory is \
reclaimed: it dies again, and so on. This sets the container's restart policy to \"no\" and lets \
the daemon restart it: once there is memory, one engine at a time, later after each death in a \
row. The previous policy is stored in adopted.json in the storage folder, from where --undo \
restores it.

Labels of an existing container cannot be changed. One that is created anew, as by `docker compose \
up`, needs the label umawarden.restart=when-ready (and umawarden.restart.need=90GiB) and the \
restart policy \"no\", or an entry of restarts in the configuration.

Exit codes: 0 done, or printed; 1 nothing to do, or Docker refuses; 2 there is no such container, \
Docker does not respond, or adopted.json cannot be written.

  umawarden adopt vllm --need 90GiB --yes
  umawarden adopt vllm --undo --yes";

/// Runs the command.
///
/// # Errors
/// There is no such container, Docker does not respond, or the record cannot be written.
pub fn execute(arguments: &AdoptArguments) -> anyhow::Result<Exit> {
    let sockets = arguments.docker_socket.iter().cloned().collect();
    let flags = RunFlags { docker_sockets: sockets, ..RunFlags::default() };
    let settings = arguments.storage.settings(flags)?;
    let path = AdoptedFile::path_in(&settings.storage.path);
    let mut file = AdoptedFile::new(&path);
    let adopted = file.read()?.clone();
    let socket = socket(arguments, &settings)?;
    if arguments.undo {
        return undo(arguments, &socket, &mut file, adopted);
    }
    let found = inspect(&socket, &arguments.container)?;
    if found.is_removed_at_end {
        bail!(
            "Docker removes {} when it ends (--rm), so that there is nothing to start again: \
             create it without --rm",
            found.name
        );
    }
    let known = adopted.containers.get(&*found.id);
    let policy = match known {
        // Its previous policy is recorded; the current one is ours.
        Some(known) if &*found.restart_policy == "no" => {
            (known.restart_policy.clone(), known.restart_most)
        }
        _ => (found.restart_policy.to_string(), found.restart_most),
    };
    let need = StartNeed {
        need_bytes: arguments.need,
        contiguous_bytes: arguments.contiguous,
        ..StartNeed::default()
    };
    let entry = AdoptedContainer {
        name: found.name.to_string(),
        need: need.or(&known.map(|known| known.need.clone()).unwrap_or_default()),
        restart_policy: policy.0,
        restart_most: policy.1,
        since: Timestamp::now(),
        author: caller(),
    };
    let remarks = remarks(&settings);
    if arguments.yes
        && let Err(error) = take_over(&socket, &found, &entry, &mut file, adopted)
    {
        return refused(error);
    }
    show(arguments, &found, &entry, &remarks);
    Ok(Exit::Fine)
}

/// Records the previous policy on disk, then changes it and verifies the change. A failed change
/// removes the record.
fn take_over(
    socket: &Path,
    found: &InspectedContainer,
    entry: &AdoptedContainer,
    file: &mut AdoptedFile,
    before: AdoptedContainers,
) -> anyhow::Result<()> {
    let mut after = before.clone();
    after.version = VERSION;
    after.containers.insert(found.id.to_string(), entry.clone());
    file.write(&after).context("nothing was changed, since it could not be kept")?;
    if &*found.restart_policy == "no" {
        return Ok(());
    }
    if let Err(error) = set_policy(socket, &found.id, "no", 0) {
        file.write(&before).context("putting back what was kept")?;
        return Err(error.context("nothing was changed"));
    }
    Ok(())
}

/// The daemon restarts containers of its first socket only.
fn socket(arguments: &AdoptArguments, settings: &Settings) -> anyhow::Result<PathBuf> {
    let known = settings.path.docker();
    let of_environment = socket_of_environment().filter(|_| arguments.docker_socket.is_none());
    match of_environment {
        Some(socket) if socket != known => bail!(
            "DOCKER_HOST or Docker's context names {}, where the daemon restarts nothing: make it \
             the first path.docker_socket of the configuration, or give --path.docker-socket",
            socket.display()
        ),
        Some(socket) => Ok(socket),
        None => Ok(known.to_owned()),
    }
}

fn undo(
    arguments: &AdoptArguments,
    socket: &Path,
    file: &mut AdoptedFile,
    mut adopted: AdoptedContainers,
) -> anyhow::Result<Exit> {
    let wanted = &arguments.container;
    let mut its = adopted.containers.iter().filter(|(id, known)| {
        known.name == *wanted || wanted.len() >= 4 && id.starts_with(wanted.as_str())
    });
    let Some((id, known)) = its.next().map(|(id, known)| (id.clone(), known.clone())) else {
        errln!("umawarden: {} was not adopted", printable(wanted));
        return Ok(Exit::Findings);
    };
    if its.next().is_some() {
        bail!("several adopted containers are called {wanted}: give the id");
    }
    let (name, policy) = (&known.name, &known.restart_policy);
    let is_there = exists(socket, &id)?;
    if arguments.yes {
        // The policy was "no" before, and stays so.
        if is_there
            && policy != "no"
            && let Err(error) = set_policy(socket, &id, policy, known.restart_most)
        {
            return refused(error);
        }
        adopted.containers.remove(&id);
        file.write(&adopted)?;
    }
    let done = if arguments.yes { "done" } else { "nothing was changed: add --yes" };
    if arguments.json {
        outln!(
            "{}",
            json!({ "container": id, "name": name, "restart_policy": policy,
                    "exists": is_there, "done": arguments.yes })
        );
    } else if is_there {
        let is = if arguments.yes { "is" } else { "would be" };
        outln!(
            "Docker's restart policy of {name} {is} \"{policy}\" again, and umawarden leaves it."
        );
        outln!("{done}");
    } else {
        outln!("{name} is no longer there: it is only forgotten.\n{done}");
    }
    Ok(Exit::Fine)
}

/// Warnings about conditions for a restart.
fn remarks(settings: &Settings) -> Vec<String> {
    let client = ControlClient::new(&settings.web.control_socket);
    let status = client.request("GET", "/api/v1/status", None);
    let mode = status.as_ref().ok().and_then(|reply| reply.data.get("mode")?.as_str());
    match (status.is_ok(), mode) {
        (true, Some("enforce")) => Vec::new(),
        (true, _) => vec![
            "the daemon is in observe mode: it only says what it would start. Run it with --mode \
             enforce, or give the container an entry of restarts with mode: enforce"
                .to_owned(),
        ],
        (false, _) => vec![
            "no daemon responds: until `umawarden run --mode enforce` runs, nothing starts this \
             container again"
                .to_owned(),
        ],
    }
}

fn show(
    arguments: &AdoptArguments,
    found: &InspectedContainer,
    entry: &AdoptedContainer,
    remarks: &[String],
) {
    let name = &entry.name;
    if arguments.json {
        let result = json!({
            "container": found.id,
            "name": name,
            "restart_policy_before": entry.restart_policy,
            "restart_policy": if arguments.yes { "no" } else { &*found.restart_policy },
            "need_bytes": entry.need.need_bytes,
            "contiguous_bytes": entry.need.contiguous_bytes,
            "done": arguments.yes,
            "remarks": remarks,
        });
        outln!("{result}");
        return;
    }
    match &*entry.restart_policy {
        "no" => {
            outln!("Docker does not start {name} again when it dies (restart policy \"no\").")
        }
        policy => outln!(
            "Docker starts {name} again itself when it dies (restart policy \"{policy}\"): after \
             100 ms, whether or not its memory is back. The new one dies of that, and the next."
        ),
    }
    // In observe mode, or without a daemon, nothing is started.
    let is_done = arguments.yes && remarks.is_empty();
    let verb = if is_done { "starts" } else { "would start" };
    match entry.need.need_bytes {
        Some(need) => outln!(
            "Now umawarden {verb} it when {} are available and no memory is being released.",
            bytes_text(need)
        ),
        None => outln!(
            "Now umawarden {verb} it when as much as its processes held is available and no memory \
             is being released. Say how much it needs with --need: a driver's memory is in \
             no process."
        ),
    }
    for remark in remarks {
        outln!("But {remark}.");
    }
    outln!("Whoever creates it anew gives it the label umawarden.restart=when-ready instead.");
    if arguments.yes {
        outln!("Undo: umawarden adopt {name} --undo --yes");
    } else {
        outln!("Nothing was changed: add --yes.");
    }
}

/// Docker rejects the request.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct DockerRefusal(String);

/// Returns the exit code. A rejection by Docker is not a failure of this program.
fn refused(error: anyhow::Error) -> anyhow::Result<Exit> {
    if error.downcast_ref::<DockerRefusal>().is_none() {
        return Err(error);
    }
    errln!("umawarden: {error:#}");
    Ok(Exit::Findings)
}

fn caller() -> String {
    let uid = rustix::process::getuid().as_raw();
    let caller = std::env::var("SUDO_USER").ok().filter(|name| !name.is_empty());
    author(caller.as_deref(), user_name(uid).as_deref(), uid)
}

/// The container as Docker reports it. `None` if there is no such container.
fn inspect_text(socket: &Path, container: &str) -> anyhow::Result<Option<Vec<u8>>> {
    let (docker, name) = (Docker::new(socket), container.to_owned());
    let replied =
        within(ANSWER_TAKES, move || async move { Ok(docker.inspect(&name, ANSWER_TAKES).await) });
    match replied.map_err(|error| of_socket(socket, &error))? {
        Ok(found) => Ok(Some(found.text)),
        Err(DockerError::NotAContainer(_)) => Ok(None),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error @ DockerError::Status { .. }) => bail!("{}", printable(&error.to_string())),
        Err(error) => Err(of_socket(socket, &error.to_string())),
    }
}

fn of_socket(socket: &Path, error: &str) -> anyhow::Error {
    anyhow::anyhow!("{}: {error}", socket.display())
}

fn inspect(socket: &Path, container: &str) -> anyhow::Result<InspectedContainer> {
    let Some(body) = inspect_text(socket, container)? else {
        bail!("there is no container {container}: `docker ps -a` lists them");
    };
    inspected(&body).map_err(|error| anyhow::anyhow!("{container}: {error}"))
}

fn exists(socket: &Path, container: &str) -> anyhow::Result<bool> {
    Ok(inspect_text(socket, container)?.is_some())
}

/// Changes Docker's restart policy, and verifies it.
fn set_policy(socket: &Path, id: &str, policy: &str, most: i64) -> anyhow::Result<()> {
    let (docker, container, wanted) = (Docker::new(socket), id.to_owned(), policy.to_owned());
    let replied = within(ANSWER_TAKES, move || async move {
        Ok(docker.set_restart_policy(&container, &wanted, most, ANSWER_TAKES).await)
    });
    match replied.map_err(|error| of_socket(socket, &error))? {
        Ok(()) => {}
        Err(error) if error.is_not_found() => {
            let why = "this Docker cannot change a restart policy (Podman cannot): create the \
                       container anew, with --restart no and --label umawarden.restart=when-ready";
            bail!(DockerRefusal(why.to_owned()));
        }
        Err(error @ DockerError::Status { .. }) => {
            bail!(DockerRefusal(printable(&error.to_string()).into_owned()));
        }
        Err(error) => return Err(of_socket(socket, &error.to_string())),
    }
    let now = inspect(socket, id)?.restart_policy;
    if *now != *policy {
        bail!(DockerRefusal(format!("Docker says that the restart policy is \"{now}\" still")));
    }
    Ok(())
}
