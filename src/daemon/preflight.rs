//! What this process will not be able to see or do, told at the start and not at the incident.
//!
//! The kernel log and the journal say for themselves what they lack.

use std::path::Path;

use rustix::fs::{Access, access};
use rustix::io::Errno;

use crate::config::settings::Settings;
use crate::model::Mode;
use crate::policy::rule::RuleSet;

/// One thing that will be missing, and what would mend it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Missing {
    /// What cannot be done.
    pub(super) what: String,
    /// How to mend it.
    pub(super) remedy: &'static str,
    /// Whether it is wanted now; otherwise only once the mode is enforce.
    pub(super) wanted_now: bool,
}

/// Looks at every file that actions write and at those that only some kernels have.
pub(super) fn missing(settings: &Settings, rules: &RuleSet) -> Vec<Missing> {
    let procfs = &settings.path.procfs;
    let mut missing = Vec::new();
    if !procfs.join("pressure/memory").exists() {
        missing.push(Missing {
            what: "memory pressure (PSI): the kernel does not offer it".to_owned(),
            remedy: "boot with psi=1",
            wanted_now: true,
        });
    }
    for (action, file) in [
        ("drop_caches", procfs.join("sys/vm/drop_caches")),
        ("compact_memory", procfs.join("sys/vm/compact_memory")),
        ("set_sysctl", procfs.join("sys/vm/swappiness")),
    ] {
        missing.extend(unwritable(action, &file, settings.mode, rules));
    }
    // Every control group has one; where it can be written, so can the files beside it.
    let root = settings.path.sysfs.join("fs/cgroup");
    let is_v2 = root.join("cgroup.controllers").exists();
    let of_root = root.join(if is_v2 { "cgroup.procs" } else { "memory/cgroup.procs" });
    missing.extend(unwritable("reclaim", &of_root, settings.mode, rules));
    missing
}

/// Only actions that some rule decides are worth a word.
fn unwritable(action: &str, file: &Path, mode: Mode, rules: &RuleSet) -> Option<Missing> {
    let deciding = rules.groups.iter().flat_map(|group| &group.rules).filter(|rule| {
        let remedy = rule.remedy.as_ref();
        remedy.is_some_and(|remedy| remedy.steps.iter().any(|step| step.name() == action))
    });
    let modes: Vec<Mode> = deciding.map(|rule| rule.mode.unwrap_or(mode)).collect();
    let error = access(file, Access::WRITE_OK).err().filter(|_| !modes.is_empty())?;
    Some(Missing {
        what: format!("action {action}: {} cannot be written: {error}", file.display()),
        remedy: match error {
            Errno::ROFS => {
                "run privileged, or mount the host's /proc and /sys and give --path.procfs and \
                 --path.sysfs"
            }
            Errno::NOENT => {
                "a kernel that offers it, and --path.procfs and --path.sysfs where they are mounted"
            }
            _ => "run as uid 0 of the host: no capability stands in for it",
        },
        wanted_now: modes.contains(&Mode::Enforce),
    })
}
