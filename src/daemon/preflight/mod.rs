//! Reports at the start what this process will not be able to read or do.
//!
//! The kernel log and the journal report their own failures.

mod abilities;
mod rebooting;
#[cfg(test)]
mod tests;

use std::path::Path;

use rustix::fs::{Access, access};
use rustix::io::Errno;
use rustix::thread::CapabilitySet;

use crate::clients::check_permissions;
use crate::config::reader::LoadedConfig;
use crate::config::settings::Settings;
use crate::model::{
    ADD_SHIPPED, EngineMatch, Mode, SecretSource, ShippedPart, ShippedRule, off_names,
};
use crate::policy::rule::RuleSet;
use crate::sources::memory::has_pressure;
use abilities::{Abilities, DockerAccess, Numbers, Reclaims};

/// Capabilities of `evict_checkpoint`, to see and evict files and pages of other users.
const OF_EVICTION: [(CapabilitySet, &str); 4] = [
    (CapabilitySet::SYS_PTRACE, "CAP_SYS_PTRACE"),
    (CapabilitySet::SYS_NICE, "CAP_SYS_NICE"),
    (CapabilitySet::SYS_ADMIN, "CAP_SYS_ADMIN"),
    (CapabilitySet::FOWNER, "CAP_FOWNER"),
];

/// Capabilities of `stop_engine`, for processes of other users.
const OF_STOPPING: [(CapabilitySet, &str); 1] = [(CapabilitySet::KILL, "CAP_KILL")];

/// A missing ability, and its remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingAbility {
    /// What cannot be done.
    pub what: String,
    /// What a person can do about it.
    pub remedy: &'static str,
    /// Whether it is needed now, or only in mode enforce.
    pub wanted_now: bool,
}

/// Logs what the configuration has that is worth a warning.
pub(super) fn report(loaded: &LoadedConfig) {
    for remark in &loaded.remarks {
        tracing::warn!(%remark, "configuration");
    }
    report_shipped_off(&loaded.rules.shipped_off);
    for missing in missing(&loaded.settings, &loaded.rules) {
        let (what, remedy) = (missing.what, missing.remedy);
        if missing.wanted_now {
            tracing::warn!(what, remedy, "not available");
        } else {
            tracing::debug!(what, remedy, "would not be available in enforce mode");
        }
    }
}

fn report_shipped_off(off: &[ShippedRule]) {
    if off.is_empty() {
        return;
    }
    let is_off = |part| off.iter().any(|rule| rule.part == Some(part));
    let (brake, load_guard) = (is_off(ShippedPart::Brake), is_off(ShippedPart::LoadGuard));
    tracing::warn!(
        count = off.len(),
        brake_off = brake,
        load_guard_off = load_guard,
        rules = off_names(off),
        remedy = ADD_SHIPPED,
        "shipped_rules_off"
    );
}

/// Checks everything that the rules' actions need, and files that only some kernels have.
/// Read-only.
pub fn missing(settings: &Settings, rules: &RuleSet) -> Vec<MissingAbility> {
    let mut missing = Vec::new();
    if !has_pressure(&settings.path.procfs) {
        missing.push(MissingAbility {
            what: "memory pressure (PSI): the kernel does not offer it".to_owned(),
            remedy: "add psi=1 to the kernel's command line, and boot",
            wanted_now: true,
        });
    }
    missing.extend(unwritable(settings, rules));
    missing.extend(unable(settings, rules, &Abilities::find(settings)));
    missing.extend(rebooting::missing(settings, rules));
    missing.extend(keyless(settings));
    missing
}

/// Whether any rule has an action, and if so, whether in enforce mode.
fn wanted(action: &str, mode: Mode, rules: &RuleSet) -> Option<bool> {
    let enforced = &rules.guard_rails.enforced;
    let all = rules.groups.iter().flat_map(|group| &group.rules);
    let steps = all.flat_map(|rule| {
        let steps = rule.remedy.iter().flat_map(|remedy| &remedy.steps);
        steps.map(|step| (rule.mode.unwrap_or(mode), step))
    });
    let wanted = steps.filter(|(_, step)| step.name() == action);
    let wanted = wanted.map(|(mode, step)| mode == Mode::Enforce && enforced.has(step.grade()));
    wanted.reduce(|any, one| any || one)
}

/// Files that actions write.
fn unwritable(settings: &Settings, rules: &RuleSet) -> Vec<MissingAbility> {
    let procfs = &settings.path.procfs;
    // Every control group has one; if it is writable, so are its siblings.
    let root = settings.path.sysfs.join("fs/cgroup");
    let is_v2 = root.join("cgroup.controllers").exists();
    let of_root = root.join(if is_v2 { "cgroup.procs" } else { "memory/cgroup.procs" });
    let files = [
        ("drop_caches", procfs.join("sys/vm/drop_caches")),
        ("compact_memory", procfs.join("sys/vm/compact_memory")),
        ("set_sysctl", procfs.join("sys/vm/swappiness")),
        ("reclaim", of_root),
    ];
    let refused = files
        .iter()
        .filter_map(|(action, file)| Some((access(file, Access::WRITE_OK).err()?, *action)));
    let report = |(error, actions, wanted_now): (Errno, Vec<&str>, bool)| {
        let named = files.iter().filter(|(action, _)| actions.contains(action));
        let named: Vec<String> = named.map(|(_, file)| file.display().to_string()).collect();
        let what =
            format!("{}: {} cannot be written: {error}", of_actions(&actions), named.join(", "));
        MissingAbility { what, remedy: to_write(error), wanted_now }
    };
    by_cause(refused, settings, rules).into_iter().map(report).collect()
}

/// The wanted actions that each cause prevents, and whether one of them is wanted now.
fn by_cause<C: PartialEq>(
    prevented: impl Iterator<Item = (C, &'static str)>,
    settings: &Settings,
    rules: &RuleSet,
) -> Vec<(C, Vec<&'static str>, bool)> {
    let mut causes: Vec<(C, Vec<&str>, bool)> = Vec::new();
    for (cause, action) in prevented {
        let Some(wanted_now) = wanted(action, settings.mode, rules) else { continue };
        match causes.iter_mut().find(|(known, ..)| *known == cause) {
            Some((_, actions, now)) => {
                actions.push(action);
                *now |= wanted_now;
            }
            None => causes.push((cause, vec![action], wanted_now)),
        }
    }
    causes
}

fn of_actions(actions: &[&str]) -> String {
    let word = if actions.len() == 1 { "action" } else { "actions" };
    format!("{word} {}", actions.join(", "))
}

fn to_write(error: Errno) -> &'static str {
    match error {
        Errno::ROFS => {
            "with the packaged unit: `umawarden print drop-in memory`; in a container: run \
             privileged, or mount the host's /proc and /sys and give --path.procfs and --path.sysfs"
        }
        Errno::NOENT => {
            "a kernel that offers it, and --path.procfs and --path.sysfs where they are mounted"
        }
        _ => "run as uid 0 of the host: no capability replaces it",
    }
}

/// Other needs of actions, and alternatives.
fn unable(settings: &Settings, rules: &RuleSet, able: &Abilities) -> Vec<MissingAbility> {
    let actions: [(&'static str, Vec<LackText>); 4] = [
        ("evict_checkpoint", evicting(able)),
        ("stop_engine", stopping(settings, able)),
        ("empty_cache", emptying(able).into_iter().collect()),
        ("reclaim", reclaiming(able).into_iter().collect()),
    ];
    let lacks = actions
        .into_iter()
        .flat_map(|(action, lacks)| lacks.into_iter().map(move |lack| (lack, action)));
    let report = |((what, remedy), actions, wanted_now): (LackText, Vec<&str>, bool)| {
        MissingAbility { what: format!("{}: {what}", of_actions(&actions)), remedy, wanted_now }
    };
    by_cause(lacks, settings, rules).into_iter().map(report).collect()
}

/// A missing ability and its remedy.
type LackText = (String, &'static str);

fn evicting(able: &Abilities) -> Vec<LackText> {
    let mut lacks = Vec::new();
    lacks.extend(holding(able));
    lacks.extend(incapable(able, &OF_EVICTION).map(|names| {
        (
            format!(
                "without {names}, cached and mapped files of other users' engines are not seen or \
                 not evicted: less is evicted, or caches are dropped once instead"
            ),
            "run as uid 0 of the host, or add the capabilities: `umawarden print drop-in evict`",
        )
    }));
    if !able.has_cachestat {
        lacks.push((
            "this kernel has no cachestat(2)".to_owned(),
            "Linux 6.5 or later; without it, unmapped files are evicted unmeasured",
        ));
    }
    lacks
}

fn stopping(settings: &Settings, able: &Abilities) -> Vec<LackText> {
    let mut lacks = Vec::new();
    lacks.extend(holding(able));
    lacks.extend(incapable(able, &OF_STOPPING).map(|names| {
        let what = format!("without {names} only engines of this user can be stopped");
        (what, "run as uid 0 of the host, or add the capability: `umawarden print drop-in stop`")
    }));
    let socket = settings.path.docker().display();
    // Docker runs no container of a pod.
    let is_in_one = |matches: &EngineMatch| {
        matches.namespace.is_none() && (matches.container.is_some() || !matches.labels.is_empty())
    };
    match able.docker {
        DockerAccess::Closed(error) => lacks.push((
            format!("{socket} cannot be used: {error}: containers may be started again"),
            "run as uid 0 or in the group that owns the socket, or give --path.docker-socket",
        )),
        DockerAccess::Absent
            if settings.engines.iter().any(|engine| is_in_one(&engine.matches)) =>
        {
            lacks.push((
                format!("there is no {socket}: containers may be started again"),
                "mount Docker's socket, or give --path.docker-socket",
            ));
        }
        DockerAccess::Open | DockerAccess::Absent => {}
    }
    lacks
}

fn emptying(able: &Abilities) -> Option<LackText> {
    incapable(able, &[(CapabilitySet::SYS_ADMIN, "CAP_SYS_ADMIN")]).map(|name| {
        let what = format!(
            "without {name}, an engine in a container is emptied only if its address or port can \
             be reached from here"
        );
        (what, "run as uid 0 of the host, or add the capability: `umawarden print drop-in engines`")
    })
}

/// Key files of engines that cannot be read. Keys are not read here.
fn keyless(settings: &Settings) -> Vec<MissingAbility> {
    let mut missing = Vec::new();
    for engine in &settings.engines {
        for source in [&engine.keys.api, &engine.keys.admin].into_iter().flatten() {
            let why = match source {
                SecretSource::File(path) => {
                    let path = Path::new(&**path);
                    let read = access(path, Access::READ_OK).map_err(std::io::Error::from);
                    let wrong = read.and_then(|()| check_permissions(path)).err();
                    wrong.map(|error| error.to_string())
                }
                SecretSource::Environment(name) => {
                    std::env::var_os(&**name).is_none().then(|| "it is not set".to_owned())
                }
            };
            missing.extend(why.map(|why| MissingAbility {
                what: format!("the key of engine {}: {source}: {why}", engine.name),
                remedy: "put it there, readable for this program alone",
                wanted_now: true,
            }));
        }
    }
    missing
}

/// Whether processes can be stopped by their pids.
fn holding(able: &Abilities) -> Option<LackText> {
    let remedy = "run in the host's PID namespace (containers: --pid=host), with its /proc";
    match able.numbers {
        Numbers::Ours => None,
        Numbers::OfAPart => Some((
            "this program is in a PID namespace of its own: engines outside of it are neither seen \
             nor held"
                .to_owned(),
            remedy,
        )),
        Numbers::Others => Some((
            "processes below path.procfs have the numbers of another PID namespace, and cannot be \
             held"
                .to_owned(),
            remedy,
        )),
        Numbers::Unknown => Some((
            "this program is not below path.procfs, so that no engine can be stopped".to_owned(),
            remedy,
        )),
    }
}

/// The missing capabilities, if any.
fn incapable(able: &Abilities, wanted: &[(CapabilitySet, &str)]) -> Option<String> {
    let missing = |one: &&(CapabilitySet, &str)| {
        able.is_in_user_namespace || !able.capabilities.contains(one.0)
    };
    let names: Vec<&str> = wanted.iter().filter(missing).map(|(_, name)| *name).collect();
    let within = if able.is_in_user_namespace { " outside of its user namespace" } else { "" };
    (!names.is_empty()).then(|| format!("{}{within}", names.join(", ")))
}

fn reclaiming(able: &Abilities) -> Option<LackText> {
    match able.reclaims {
        Reclaims::Exactly => None,
        Reclaims::Everything => Some((
            "cgroup v1 takes back all that it can, whatever bytes says".to_owned(),
            "boot with cgroup v2 (systemd.unified_cgroup_hierarchy=1)",
        )),
        Reclaims::TooOld => {
            Some(("the kernel has no memory.reclaim".to_owned(), "Linux 5.19 or later"))
        }
        Reclaims::NoController => Some((
            "no memory controller below path.sysfs".to_owned(),
            "boot with cgroup_enable=memory, or mount the host's /sys and give --path.sysfs",
        )),
    }
}
