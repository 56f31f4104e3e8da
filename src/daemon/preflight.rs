//! What this process will not be able to see or do, told at the start and not at the incident.

use std::path::Path;

use rustix::fs::{Access, access};

use crate::config::settings::Settings;
use crate::model::{Action, Mode};
use crate::policy::rule::RuleSet;

/// One thing that will be missing, and what would mend it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Missing {
    /// What cannot be done.
    pub(super) what: String,
    /// How to mend it.
    pub(super) remedy: String,
}

/// Looks at every file that actions write and at those that only some kernels have.
pub(super) fn missing(settings: &Settings, rules: &RuleSet) -> Vec<Missing> {
    let procfs = &settings.path.procfs;
    let mut missing = Vec::new();
    if !procfs.join("pressure/memory").exists() {
        missing.push(Missing {
            what: "memory pressure (PSI): the kernel does not offer it".to_owned(),
            remedy: "boot with psi=1".to_owned(),
        });
    }
    for (action, file) in [
        (Action::NAMES[0], procfs.join("sys/vm/drop_caches")),
        (Action::NAMES[1], procfs.join("sys/vm/compact_memory")),
    ] {
        missing.extend(unwritable(action, &file, settings.mode, rules));
    }
    missing
}

/// Only actions that some rule would really do are worth a warning.
fn unwritable(action: &str, file: &Path, mode: Mode, rules: &RuleSet) -> Option<Missing> {
    let enforced = rules.groups.iter().flat_map(|group| &group.rules).any(|rule| {
        let uses = rule
            .remedy
            .as_ref()
            .is_some_and(|remedy| remedy.steps.iter().any(|step| step.name() == action));
        uses && rule.mode.unwrap_or(mode) == Mode::Enforce
    });
    if !enforced {
        return None;
    }
    let error = access(file, Access::WRITE_OK).err()?;
    Some(Missing {
        what: format!("action {action}: {} cannot be written: {error}", file.display()),
        remedy: "run as root of the host (no capability helps), with a writable /proc/sys"
            .to_owned(),
    })
}
