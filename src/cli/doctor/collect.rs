//! Collects the facts of the checks. Each source has a timeout.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, ErrorKind, Read as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::Duration;

use super::cluster::cluster;
use super::loaders::{loaders, raylets};
use super::{DoctorArguments, systemctl};
use crate::cli::control::{ClientError, entries};
use crate::cli::launch::kernel_events;
use crate::cli::tune::misfits;
use crate::config::flags::{LoadFlags, RunFlags};
use crate::config::mistake::{Mistakes, SourceText};
use crate::config::reader::{environment, load};
use crate::config::settings::SystemPaths;
use crate::daemon::missing;
use crate::doctor::{
    AdviceTable, ContainerFacts, DoctorFacts, EngineFacts, Fact, MOST_SCRIPT_BYTES, ProfileMisfits,
    UnitFacts, UnmetNeed, dgx_release, unit,
};
use crate::files::open_regular;
use crate::parse::proc::meminfo::{Meminfo, MeminfoField};
use crate::sources::engines::{NotInspected, inspect_containers};
use crate::sources::memory::has_pressure;
use crate::supervisors::docker::socket_of_environment;

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

/// Limit of a file of advice.
const MOST_ADVICE_BYTES: u64 = 1 << 20;

/// The release of DGX OS, on machines that run it.
const DGX_RELEASE: &str = "/etc/dgx-release";

/// Timeouts of one source of facts, and of a request to the daemon.
const SOURCE_TIMEOUT: Duration = Duration::from_secs(10);
const DAEMON_TIMEOUT: Duration = Duration::from_secs(3);

/// Collects all facts.
///
/// # Errors
/// The daemon's configuration or the file of advice cannot be read.
pub(super) fn facts(arguments: &DoctorArguments) -> anyhow::Result<DoctorFacts> {
    let daemon = &arguments.daemon;
    let docker = arguments.docker.clone().or_else(socket_of_environment);
    let flags = RunFlags {
        load: LoadFlags { config_file: daemon.storage.config_file.clone(), ..Default::default() },
        storage_path: daemon.storage.storage_path.clone(),
        procfs: arguments.procfs.clone(),
        sysfs: arguments.sysfs.clone(),
        kmsg: arguments.kmsg.clone(),
        docker_sockets: docker.into_iter().collect(),
        ..RunFlags::default()
    };
    let loaded = load(&flags, &environment())?;
    let docker = loaded.settings.path.docker().to_owned();
    let SystemPaths { procfs, sysfs, kmsg, .. } = loaded.settings.path.clone();
    let client = daemon.client()?.with_patience(DAEMON_TIMEOUT);
    let lacks = missing(&loaded.settings, &loaded.rules).into_iter().map(|one| UnmetNeed {
        what: one.what,
        remedy: one.remedy.to_owned(),
        is_wanted_now: one.wanted_now,
    });
    let advice = advice(arguments.advice.as_deref())?;
    let (units, of_units) = (arguments.units.clone(), advice.clone());
    let units = within("the units of systemd", move || all_units(&units, &of_units));
    let of_engines: Vec<String> = match &units {
        Fact::Is((units, _)) => {
            let runs = units.iter().filter(|unit| unit.engine.is_some());
            runs.map(|unit| unit.name.clone()).collect()
        }
        Fact::Absent | Fact::Unknown(_) => Vec::new(),
    };
    let program = arguments.systemctl.clone();
    let (of_ray, of_loaders) = (procfs.clone(), advice.clone());
    Ok(DoctorFacts {
        advice,
        page_bytes: ::procfs::page_size(),
        hidden_cma_bytes: hidden_cma(&procfs),
        dgx_os: dgx_os(Path::new(DGX_RELEASE)),
        systemd: within("systemd", move || systemctl::query(program.as_deref(), of_engines)),
        memory: memory(&procfs),
        kernel: line(&procfs.join("sys/kernel/osrelease")),
        driver: line_or_absent(&procfs.join("driver/nvidia/version")),
        has_pressure: Fact::Is(has_pressure(&procfs)),
        kernel_log: within("the kernel log", move || match kernel_events(&kmsg) {
            Some(events) => Fact::Is(events),
            None => Fact::Unknown(format!("cannot open {}", kmsg.display())),
        }),
        settings: settings(&procfs, &sysfs),
        lacks: Fact::Is(lacks.collect()),
        rules_off: Fact::Is(loaded.rules.shipped_off.to_vec()),
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
        loaders: within("the command lines of engines", move || loaders(&procfs, &of_loaders)),
        raylets: within("the processes of Ray", move || raylets(&of_ray)),
        containers: within("Docker", move || containers(&docker)),
        cluster: cluster(&loaded.settings, &loaded.rules),
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

/// The advice inside the binary, or that of a file in its place.
fn advice(file: Option<&Path>) -> anyhow::Result<AdviceTable> {
    let profiles = crate::tune::profiles().map_err(anyhow::Error::msg)?;
    let machines: Vec<&str> = profiles.iter().map(|profile| profile.name.as_str()).collect();
    let read = match file {
        None => AdviceTable::shipped(&machines),
        Some(path) => {
            let name = path.display();
            let bytes = first_bytes(path, MOST_ADVICE_BYTES)
                .map_err(|error| anyhow::anyhow!("cannot read the advice {name}: {error}"))?;
            if bytes.len() as u64 > MOST_ADVICE_BYTES {
                let most = MOST_ADVICE_BYTES >> 20;
                anyhow::bail!("cannot read the advice {name}: it is larger than {most} MiB");
            }
            let text = String::from_utf8(bytes).map_err(|_| {
                anyhow::anyhow!("cannot read the advice {name}: it is not UTF-8; save it as UTF-8")
            })?;
            AdviceTable::parse(&SourceText::new(name.to_string(), text), &machines)
        }
    };
    read.map_err(|mistakes: Mistakes| anyhow::Error::msg(mistakes.to_string()))
}

/// A regular file's first bytes, and one more if it has more.
fn first_bytes(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?.take(most + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn meminfo(procfs: &Path) -> Result<Meminfo, String> {
    let path = procfs.join("meminfo");
    let text = fs::read(&path);
    let text = text.map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    Meminfo::parse(&text).map_err(|_| format!("cannot parse {}", path.display()))
}

fn memory(procfs: &Path) -> Fact<(u64, u64)> {
    let meminfo = match meminfo(procfs) {
        Ok(meminfo) => meminfo,
        Err(why) => return Fact::Unknown(why),
    };
    let get = |field| meminfo.get(field).value();
    match get(MeminfoField::MemTotal) {
        // A kernel without swap has no such line.
        Some(total) => Fact::Is((total, get(MeminfoField::SwapTotal).unwrap_or(0))),
        None => Fact::Unknown(format!("{}/meminfo has no MemTotal", procfs.display())),
    }
}

/// Free CMA memory beyond all CMA memory.
fn hidden_cma(procfs: &Path) -> Fact<u64> {
    let meminfo = match meminfo(procfs) {
        Ok(meminfo) => meminfo,
        Err(why) => return Fact::Unknown(why),
    };
    let get = |field| meminfo.get(field).value();
    match (get(MeminfoField::CmaFree), get(MeminfoField::CmaTotal)) {
        (Some(free), Some(total)) => Fact::Is(free.saturating_sub(total)),
        // A kernel without CMA.
        _ => Fact::Absent,
    }
}

fn dgx_os(path: &Path) -> Fact<String> {
    match line_or_absent(path) {
        Fact::Is(text) => match dgx_release(&text) {
            Some(release) => Fact::Is(release.to_owned()),
            None => Fact::Unknown(format!("{} names no release", path.display())),
        },
        other => other,
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

fn settings(procfs: &Path, sysfs: &Path) -> Fact<ProfileMisfits> {
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
fn all_units(
    folders: &[PathBuf],
    advice: &AdviceTable,
) -> Fact<(Vec<UnitFacts>, BTreeSet<String>)> {
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
        unit(name, &texts, advice, &mut |path| first_bytes(path, MOST_SCRIPT_BYTES as u64))
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
