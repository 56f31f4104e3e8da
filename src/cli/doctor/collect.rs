//! Collects the facts of the checks. Each source has a timeout.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::Duration;

use super::loaders::{loaders, raylets};
use super::{DoctorArguments, systemctl};
use crate::cli::control::{ClientError, entries};
use crate::cli::launch::kernel_events;
use crate::cli::tune::misfits;
use crate::config::flags::RunFlags;
use crate::config::reader::{environment, load};
use crate::config::settings::SystemPaths;
use crate::daemon::missing;
use crate::doctor::{ContainerFacts, EngineFacts, Fact, Facts, Lack, UnitFacts, unit};
use crate::parse::proc::meminfo::{Meminfo, MeminfoField};
use crate::sources::engines::{NotInspected, inspect_containers};

/// The unit folders of systemd, highest precedence first.
const UNIT_FOLDERS: [&str; 7] = [
    "/etc/systemd/system",
    "/run/systemd/system",
    "/run/systemd/generator",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
    "/run/systemd/generator.late",
];

/// Limits of one folder and of one file.
const MOST_UNITS: usize = 8192;
const MOST_UNIT_BYTES: u64 = 256 << 10;

/// Timeouts of one source of facts, and of a request to the daemon.
const SOURCE_TIMEOUT: Duration = Duration::from_secs(10);
const DAEMON_TIMEOUT: Duration = Duration::from_secs(3);

/// Collects all facts.
///
/// # Errors
/// The daemon's configuration cannot be read.
pub(super) fn facts(arguments: &DoctorArguments) -> anyhow::Result<Facts> {
    let daemon = &arguments.daemon;
    let flags = RunFlags {
        config_file: daemon.storage.config_file.clone(),
        storage_path: daemon.storage.storage_path.clone(),
        procfs: arguments.procfs.clone(),
        sysfs: arguments.sysfs.clone(),
        kmsg: arguments.kmsg.clone(),
        docker_socket: arguments.docker.clone(),
        ..RunFlags::default()
    };
    let loaded = load(&flags, &environment())?;
    let SystemPaths { procfs, sysfs, docker_socket: docker, kmsg, .. } =
        loaded.settings.path.clone();
    let client = daemon.client()?.with_patience(DAEMON_TIMEOUT);
    let lacks = missing(&loaded.settings, &loaded.rules).into_iter().map(|one| Lack {
        what: one.what,
        remedy: one.remedy.to_owned(),
        is_wanted_now: one.wanted_now,
    });
    let units = arguments.units.clone();
    let units = within("the units of systemd", move || all_units(&units));
    let of_engines: Vec<String> = match &units {
        Fact::Is((units, _)) => units.iter().map(|unit| unit.name.clone()).collect(),
        Fact::Absent | Fact::Unknown(_) => Vec::new(),
    };
    let program = arguments.systemctl.clone();
    let of_ray = procfs.clone();
    Ok(Facts {
        systemd: within("systemd", move || systemctl::query(program.as_deref(), of_engines)),
        memory: memory(&procfs),
        kernel: line(&procfs.join("sys/kernel/osrelease")),
        driver: line_or_absent(&procfs.join("driver/nvidia/version")),
        has_pressure: Fact::Is(procfs.join("pressure/memory").exists()),
        kernel_log: within("the kernel log", move || match kernel_events(&kmsg) {
            Some(events) => Fact::Is(events),
            None => Fact::Unknown(format!("cannot open {}", kmsg.display())),
        }),
        settings: settings(&procfs, &sysfs),
        lacks: Fact::Is(lacks.collect()),
        has_daemon: match client.request("GET", "/api/v1/pause", None) {
            Ok(_) | Err(ClientError::Forbidden(_)) => Fact::Is(true),
            Err(ClientError::Absent(_)) => Fact::Is(false),
            Err(error) => Fact::Unknown(error.to_string()),
        },
        engines: match client.request("GET", "/api/v1/engines", None) {
            Ok(reply) => entries::<EngineFacts>(reply, "engines").map_or_else(
                |error| Fact::Unknown(format!("{error:#}")),
                |engines| Fact::Is(engines.into_iter().map(|(_, engine)| engine).collect()),
            ),
            Err(ClientError::Absent(_)) => Fact::Absent,
            Err(error) => Fact::Unknown(error.to_string()),
        },
        loaders: within("the command lines of engines", move || loaders(&procfs)),
        raylets: within("the processes of Ray", move || raylets(&of_ray)),
        containers: within("Docker", move || containers(&docker)),
        units,
    })
}

/// Runs `work` on a thread that is abandoned after the timeout.
fn within<T: Send + 'static>(
    what: &str,
    work: impl FnOnce() -> Fact<T> + Send + 'static,
) -> Fact<T> {
    let (to, answer) = channel();
    std::thread::spawn(move || {
        // The receiver may have timed out.
        let _ = to.send(work());
    });
    let late =
        |_| Fact::Unknown(format!("{what}: no response within {} s", SOURCE_TIMEOUT.as_secs()));
    answer.recv_timeout(SOURCE_TIMEOUT).unwrap_or_else(late)
}

fn memory(procfs: &Path) -> Fact<(u64, u64)> {
    let path = procfs.join("meminfo");
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(error) => return Fact::Unknown(format!("cannot read {}: {error}", path.display())),
    };
    let Ok(meminfo) = Meminfo::parse(&text) else {
        return Fact::Unknown(format!("cannot parse {}", path.display()));
    };
    let get = |field| meminfo.get(field).value();
    match get(MeminfoField::MemTotal) {
        // A kernel without swap has no such line.
        Some(total) => Fact::Is((total, get(MeminfoField::SwapTotal).unwrap_or(0))),
        None => Fact::Unknown(format!("{} has no MemTotal", path.display())),
    }
}

fn line(path: &Path) -> Fact<String> {
    match fs::read_to_string(path) {
        Ok(text) => Fact::Is(text.trim().to_owned()),
        Err(error) => Fact::Unknown(format!("cannot read {}: {error}", path.display())),
    }
}

fn line_or_absent(path: &Path) -> Fact<String> {
    match fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Fact::Absent,
        _ => line(path),
    }
}

fn settings(procfs: &Path, sysfs: &Path) -> Fact<(String, Vec<crate::doctor::Misfit>)> {
    match misfits(procfs, sysfs) {
        Ok(Some(found)) => Fact::Is(found),
        Ok(None) => Fact::Absent,
        Err(error) => Fact::Unknown(format!("{error:#}")),
    }
}

fn containers(socket: &Path) -> Fact<Vec<ContainerFacts>> {
    match inspect_containers(socket) {
        Ok(containers) => Fact::Is(containers.iter().filter_map(ContainerFacts::read).collect()),
        Err(NotInspected::Absent) => Fact::Absent,
        Err(NotInspected::Failed(why)) => Fact::Unknown(format!("{}: {why}", socket.display())),
    }
}

/// The units that run an engine, and the names of all units.
fn all_units(folders: &[PathBuf]) -> Fact<(Vec<UnitFacts>, BTreeSet<String>)> {
    let usual = || UNIT_FOLDERS.iter().map(PathBuf::from).collect();
    let folders: Vec<PathBuf> = if folders.is_empty() { usual() } else { folders.to_vec() };
    let mut names = BTreeSet::new();
    let mut files: BTreeMap<String, PathBuf> = BTreeMap::new();
    for folder in &folders {
        let Ok(entries) = fs::read_dir(folder) else { continue };
        for entry in entries.flatten().take(MOST_UNITS) {
            let Some(name) = entry.file_name().to_str().map(str::to_owned) else { continue };
            if name.ends_with(".service") {
                files.entry(name.clone()).or_insert_with(|| entry.path());
            }
            names.insert(name);
        }
    }
    if names.is_empty() {
        return Fact::Absent;
    }
    let of_file = |(name, path): (&String, &PathBuf)| {
        let texts: Vec<String> = std::iter::once(path.clone())
            .chain(drop_ins(&folders, name))
            .filter_map(read)
            .collect();
        unit(name, &texts)
    };
    let units = files.iter().filter_map(of_file).collect();
    Fact::Is((units, names))
}

/// `NAME.d/*.conf` of all folders, by name. The folder with the highest precedence wins.
fn drop_ins(folders: &[PathBuf], name: &str) -> Vec<PathBuf> {
    let mut found: BTreeMap<std::ffi::OsString, PathBuf> = BTreeMap::new();
    for folder in folders {
        let Ok(entries) = fs::read_dir(folder.join(format!("{name}.d"))) else { continue };
        for entry in entries.flatten().take(MOST_UNITS) {
            if entry.path().extension().is_some_and(|extension| extension == "conf") {
                found.entry(entry.file_name()).or_insert_with(|| entry.path());
            }
        }
    }
    found.into_values().collect()
}

/// `None` for a masked unit, which is a link to /dev/null.
fn read(path: PathBuf) -> Option<String> {
    let about = fs::metadata(&path).ok()?;
    (about.is_file() && about.len() <= MOST_UNIT_BYTES)
        .then(|| fs::read(&path).ok())
        .flatten()
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}
