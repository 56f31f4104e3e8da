//! Collects what the checks are about. What hangs is given up.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::Duration;

use super::{DoctorArguments, systemctl};
use crate::cli::control::{ClientError, entries};
use crate::cli::launch::kernel_events;
use crate::cli::tune::misfits;
use crate::config::flags::RunFlags;
use crate::config::reader::{environment, load};
use crate::config::settings::SystemPaths;
use crate::daemon::missing;
use crate::doctor::{ContainerFacts, EngineFacts, Facts, Known, Lack, UnitFacts, unit};
use crate::parse::proc::meminfo::{Meminfo, MeminfoField};
use crate::sources::engines::{NotInspected, inspect_containers};

/// Where systemd looks for units, the most important first.
const UNIT_FOLDERS: [&str; 7] = [
    "/etc/systemd/system",
    "/run/systemd/system",
    "/run/systemd/generator",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
    "/run/systemd/generator.late",
];

/// More units are not looked at, and no longer files.
const MOST_UNITS: usize = 8192;
const MOST_UNIT_BYTES: u64 = 256 << 10;

/// How long one source of facts may take.
const ONE_TAKES: Duration = Duration::from_secs(10);
const DAEMON_TAKES: Duration = Duration::from_secs(3);

/// All facts.
///
/// # Errors
/// The daemon's configuration cannot be read.
pub(super) fn facts(arguments: &DoctorArguments) -> anyhow::Result<Facts> {
    let place = &arguments.place;
    let flags = RunFlags {
        config_file: place.storage.config_file.clone(),
        storage_path: place.storage.storage_path.clone(),
        procfs: arguments.procfs.clone(),
        sysfs: arguments.sysfs.clone(),
        kmsg: arguments.kmsg.clone(),
        docker_socket: arguments.docker.clone(),
        ..RunFlags::default()
    };
    let loaded = load(&flags, &environment())?;
    let SystemPaths { procfs, sysfs, docker_socket: docker, kmsg, .. } =
        loaded.settings.path.clone();
    let client = place.client()?.with_patience(DAEMON_TAKES);
    let lacks = missing(&loaded.settings, &loaded.rules).into_iter().map(|one| Lack {
        what: one.what,
        remedy: one.remedy.to_owned(),
        is_wanted_now: one.wanted_now,
    });
    let units = arguments.units.clone();
    let units = within("the units of systemd", move || all_units(&units));
    let of_engines: Vec<String> = match &units {
        Known::Is((units, _)) => units.iter().map(|unit| unit.name.clone()).collect(),
        Known::Absent | Known::Not(_) => Vec::new(),
    };
    let program = arguments.systemctl.clone();
    Ok(Facts {
        systemd: within("systemd", move || systemctl::ask(program.as_deref(), of_engines)),
        memory: memory(&procfs),
        kernel: line(&procfs.join("sys/kernel/osrelease")),
        driver: line_or_absent(&procfs.join("driver/nvidia/version")),
        has_pressure: Known::Is(procfs.join("pressure/memory").exists()),
        kernel_log: within("the kernel log", move || match kernel_events(&kmsg) {
            Some(events) => Known::Is(events),
            None => Known::Not(format!("{} cannot be opened", kmsg.display())),
        }),
        settings: settings(&procfs, &sysfs),
        lacks: Known::Is(lacks.collect()),
        has_daemon: match client.ask("GET", "/api/v1/pause", None) {
            Ok(_) | Err(ClientError::Forbidden(_)) => Known::Is(true),
            Err(ClientError::Absent(_)) => Known::Is(false),
            Err(error) => Known::Not(error.to_string()),
        },
        engines: match client.ask("GET", "/api/v1/engines", None) {
            Ok(reply) => entries::<EngineFacts>(reply, "engines").map_or_else(
                |error| Known::Not(format!("{error:#}")),
                |engines| Known::Is(engines.into_iter().map(|(_, engine)| engine).collect()),
            ),
            Err(ClientError::Absent(_)) => Known::Absent,
            Err(error) => Known::Not(error.to_string()),
        },
        containers: within("Docker", move || containers(&docker)),
        units,
    })
}

/// On a thread that may hang for all that this command cares.
fn within<T: Send + 'static>(
    what: &str,
    work: impl FnOnce() -> Known<T> + Send + 'static,
) -> Known<T> {
    let (to, answer) = channel();
    std::thread::spawn(move || {
        // Whoever waits may have given up.
        let _gone = to.send(work());
    });
    let late = |_| Known::Not(format!("{what}: no answer within {} s", ONE_TAKES.as_secs()));
    answer.recv_timeout(ONE_TAKES).unwrap_or_else(late)
}

fn memory(procfs: &Path) -> Known<(u64, u64)> {
    let path = procfs.join("meminfo");
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(error) => return Known::Not(format!("{} cannot be read: {error}", path.display())),
    };
    let Ok(meminfo) = Meminfo::parse(&text) else {
        return Known::Not(format!("{} is not understood", path.display()));
    };
    let get = |field| meminfo.get(field).value();
    match get(MeminfoField::MemTotal) {
        // A kernel without swap has no such line.
        Some(total) => Known::Is((total, get(MeminfoField::SwapTotal).unwrap_or(0))),
        None => Known::Not(format!("{} has no MemTotal", path.display())),
    }
}

fn line(path: &Path) -> Known<String> {
    match fs::read_to_string(path) {
        Ok(text) => Known::Is(text.trim().to_owned()),
        Err(error) => Known::Not(format!("{} cannot be read: {error}", path.display())),
    }
}

fn line_or_absent(path: &Path) -> Known<String> {
    match fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Known::Absent,
        _ => line(path),
    }
}

fn settings(procfs: &Path, sysfs: &Path) -> Known<(String, Vec<crate::doctor::Misfit>)> {
    match misfits(procfs, sysfs) {
        Ok(Some(found)) => Known::Is(found),
        Ok(None) => Known::Absent,
        Err(error) => Known::Not(format!("{error:#}")),
    }
}

fn containers(socket: &Path) -> Known<Vec<ContainerFacts>> {
    match inspect_containers(socket) {
        Ok(told) => Known::Is(told.iter().filter_map(ContainerFacts::read).collect()),
        Err(NotInspected::Absent) => Known::Absent,
        Err(NotInspected::Failed(why)) => Known::Not(format!("{}: {why}", socket.display())),
    }
}

/// Those that run an engine, and the names of all.
fn all_units(folders: &[PathBuf]) -> Known<(Vec<UnitFacts>, BTreeSet<String>)> {
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
        return Known::Absent;
    }
    let of_file = |(name, path): (&String, &PathBuf)| {
        let texts: Vec<String> = std::iter::once(path.clone())
            .chain(drop_ins(&folders, name))
            .filter_map(read)
            .collect();
        unit(name, &texts)
    };
    let units = files.iter().filter_map(of_file).collect();
    Known::Is((units, names))
}

/// `NAME.d/*.conf` of all folders, by their names; the more important folder's counts.
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

/// A masked unit is a link to /dev/null, and empty.
fn read(path: PathBuf) -> Option<String> {
    let about = fs::metadata(&path).ok()?;
    (about.is_file() && about.len() <= MOST_UNIT_BYTES)
        .then(|| fs::read(&path).ok())
        .flatten()
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}
