//! Which processes belong together: a server with everything that it has started.

use std::collections::BTreeMap;

use crate::engines::{Role, facts};
use crate::model::{EngineKind, ProcessId};

/// Nobody's ancestors are more; a loop in what was read at different times ends here.
const MAX_DEPTH: usize = 128;

/// What is known of a process.
#[derive(Clone, Debug, Default)]
pub(super) struct Kin {
    pub(super) start_ticks: u64,
    pub(super) parent: u32,
    pub(super) recognised: Option<(EngineKind, Role)>,
    /// Place among the declared engines.
    pub(super) declared: Option<usize>,
    /// Whether somebody has launched it: then it is the head of all that is below it.
    pub(super) is_launched: bool,
}

impl Kin {
    fn is_of_interest(&self) -> bool {
        self.is_launched || self.recognised.is_some() || self.declared.is_some()
    }

    /// Whether a process below may be of the same engine as this one.
    fn takes_in(&self, below: &Self) -> bool {
        if self.is_launched || below.is_launched {
            return !below.is_launched;
        }
        if let (Some(one), Some(other)) = (self.declared, below.declared)
            && one != other
        {
            return false;
        }
        match (self.recognised, below.recognised) {
            (Some((one, _)), Some((other, _))) => {
                one == other || facts(one).starts.contains(&other)
            }
            _ => true,
        }
    }
}

/// The head of each process that belongs to an engine. `before` is what was found the last time: a
/// process stays with its engine though all between them have ended.
pub(super) fn heads(
    processes: &BTreeMap<u32, Kin>,
    before: &BTreeMap<ProcessId, ProcessId>,
) -> BTreeMap<ProcessId, ProcessId> {
    let mut heads = BTreeMap::new();
    for (pid, kin) in processes {
        let id = ProcessId { pid: *pid, start_ticks: kin.start_ticks };
        let known = || before.get(&id).copied();
        let head = match head(processes, *pid) {
            Some(head) if head != id => Some(head),
            itself => known().or(itself),
        };
        if let Some(head) = head {
            heads.insert(id, head);
        }
    }
    // Heads may have heads by now: a script that has become a server.
    let resolved = heads.clone();
    for head in heads.values_mut() {
        if let Some(above) = resolved.get(head) {
            *head = *above;
        }
    }
    heads
}

/// The topmost ancestor of the same engine, the process itself included.
fn head(processes: &BTreeMap<u32, Kin>, pid: u32) -> Option<ProcessId> {
    let mut found: Option<(u32, &Kin)> = None;
    let mut at = pid;
    for _ in 0..MAX_DEPTH {
        let Some(kin) = processes.get(&at) else { break };
        if kin.is_of_interest() {
            match found {
                Some((_, below)) if !kin.takes_in(below) => break,
                _ => found = Some((at, kin)),
            }
        }
        // A parent is older; a younger one has only taken the number over.
        let parent = processes.get(&kin.parent);
        if parent.is_none_or(|parent| parent.start_ticks > kin.start_ticks) {
            break;
        }
        at = kin.parent;
    }
    found.map(|(pid, kin)| ProcessId { pid, start_ticks: kin.start_ticks })
}
