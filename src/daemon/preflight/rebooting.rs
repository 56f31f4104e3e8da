//! Whether the configured way to reboot can work, without rebooting.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use rustix::io::Errno;

use super::{LackText, MissingAbility, wanted};
use crate::config::settings::Settings;
use crate::model::{RebootSettings, RebootWay};
use crate::policy::rule::RuleSet;
use crate::supervisors::logind::Bus;

/// What the way needs and is missing.
pub(super) fn missing(settings: &Settings, rules: &RuleSet) -> Vec<MissingAbility> {
    let Some(wanted_now) = wanted("reboot", settings.mode, rules) else { return Vec::new() };
    let search = std::env::var_os("PATH").unwrap_or_default();
    let reboot = &rules.guard_rails.reboot;
    let lacks = of_way(&reboot.way, &Bus::system(), &search);
    let lacks = lacks.into_iter().chain(of_sysrq(reboot, &settings.path.procfs));
    let report = |(what, remedy)| MissingAbility {
        what: format!("action reboot: {what}"),
        remedy,
        wanted_now,
    };
    lacks.map(report).collect()
}

pub(super) fn of_way(way: &RebootWay, bus: &Bus, search: &OsStr) -> Option<LackText> {
    match way {
        RebootWay::Logind => of_bus(bus),
        RebootWay::Sentinel { file } => of_sentinel(file),
        RebootWay::Command { line } => of_command(line.first()?, search),
    }
}

/// The D-Bus service is checked.
fn of_bus(bus: &Bus) -> Option<LackText> {
    let socket = bus.socket();
    let error = access(socket, Access::WRITE_OK).err()?;
    Some((
        format!(
            "{} cannot be used: {error}: logind and systemd cannot be reached",
            socket.display()
        ),
        "run D-Bus and logind, mount the host's /run/dbus in a container, or choose another \
         reboot.way",
    ))
}

fn of_sentinel(file: &Path) -> Option<LackText> {
    let folder = file.parent()?;
    let error = access(folder, Access::WRITE_OK | Access::EXEC_OK).err()?;
    Some((
        format!("{} cannot be made: {}: {error}", file.display(), folder.display()),
        "make the folder, or mount the host's, and run as uid 0 (`umawarden print drop-in \
         reboot`), or change reboot.sentinel_file",
    ))
}

fn of_command(program: &str, search: &OsStr) -> Option<LackText> {
    let remedy = "install it, or change reboot.command; an absolute path is searched nowhere else";
    if program.contains('/') {
        let error = runnable(Path::new(program)).err()?;
        return Some((format!("{program} of reboot.command cannot be run: {error}"), remedy));
    }
    let mut paths = std::env::split_paths(search).map(|folder| folder.join(program));
    let is_found = paths.any(|path: PathBuf| runnable(&path).is_ok());
    (!is_found).then(|| (format!("{program} of reboot.command is nowhere on PATH"), remedy))
}

fn runnable(file: &Path) -> Result<(), Errno> {
    access(file, Access::EXEC_OK)?;
    // Execute permission of a folder is no program.
    if file.is_file() { Ok(()) } else { Err(Errno::ISDIR) }
}

fn of_sysrq(reboot: &RebootSettings, procfs: &Path) -> Option<LackText> {
    reboot.sysrq_after?;
    let file = procfs.join("sysrq-trigger");
    let error = access(&file, Access::WRITE_OK).err()?;
    Some((
        format!("sysrq is allowed, and {} cannot be written: {error}", file.display()),
        "run privileged as uid 0 of the host (`umawarden print drop-in reboot`), or mount the \
         host's /proc and give --path.procfs",
    ))
}
