//! Process families: the processes of an engine with their descendants, and this program with its
//! ancestors.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;

use super::handle::{self, ProcessState};
use crate::clients::cgroups::namespace_root;
use crate::model::ProcessId;
use crate::parse::process::is_within;
use crate::sys::descriptors::with_reserve;

/// All processes at a moment, by pid.
pub(super) struct Processes(BTreeMap<u32, ProcessState>);

impl Processes {
    /// Reads all processes. One that ends meanwhile, or is hidden, is left out.
    pub(super) fn read(procfs: &Path) -> io::Result<Self> {
        let mut all = BTreeMap::new();
        for entry in with_reserve(|| fs::read_dir(procfs))? {
            let name = entry?.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
            if let Ok(Some(known)) = handle::known(procfs, pid) {
                all.insert(pid, known);
            }
        }
        Ok(Self(all))
    }

    /// The ancestors of a process, itself first.
    pub(super) fn ancestors(&self, pid: u32) -> Vec<u32> {
        let mut line = Vec::new();
        let mut next = Some(pid);
        while let Some(pid) = next.filter(|pid| *pid > 0 && !line.contains(pid)) {
            line.push(pid);
            next = self.0.get(&pid).map(|known| known.parent);
        }
        line
    }

    /// The living descendants of processes, by pid.
    pub(super) fn descendants(&self, of: &[ProcessId]) -> Vec<ProcessId> {
        let lives = |id: &&ProcessId| self.0.get(&id.pid).is_some_and(|known| known.id == **id);
        let mut family: BTreeSet<u32> = of.iter().filter(lives).map(|id| id.pid).collect();
        let own = family.clone();
        loop {
            let before = family.len();
            let children = self.0.values().filter(|known| family.contains(&known.parent));
            let children: Vec<u32> = children.map(|known| known.id.pid).collect();
            family.extend(children);
            if family.len() == before {
                break;
            }
        }
        let started = family.difference(&own);
        started.filter_map(|pid| self.0.get(pid)).map(|known| known.id).collect()
    }

    /// The processes in the PID namespace of a process; `None`: it is not known, or that of this
    /// program.
    pub(super) fn in_namespace_of(&self, procfs: &Path, pid: u32) -> Option<BTreeSet<u32>> {
        let of = |process: &str| {
            let path = procfs.join(process).join("ns/pid");
            with_reserve(|| fs::read_link(&path)).ok()
        };
        let its = of(&pid.to_string()).filter(|its| of("self").is_some_and(|own| own != *its))?;
        let all = self.0.keys().filter(|pid| of(&pid.to_string()).as_ref() == Some(&its));
        Some(all.copied().collect())
    }

    /// The processes in a control group or below it, in any hierarchy.
    pub(super) fn residents(&self, procfs: &Path, cgroup: &str) -> BTreeSet<u32> {
        let root = namespace_root(procfs);
        let is_resident = |pid: &&u32| {
            let path = procfs.join(pid.to_string()).join("cgroup");
            let Ok(text) = with_reserve(|| fs::read_to_string(&path)) else { return false };
            root.all(&text).any(|path| is_within(&path, cgroup))
        };
        self.0.keys().filter(is_resident).copied().collect()
    }
}
