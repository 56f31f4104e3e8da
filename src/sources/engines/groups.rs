//! Groups processes by engine: a server and everything that it has started.

use std::collections::BTreeMap;

use super::ray::RayJob;
use crate::engines::{ProcessRole, facts};
use crate::model::{EngineKind, ProcessId};

/// The most ancestors of a process. It ends loops, which reads at different times can cause.
const MAX_DEPTH: usize = 128;

/// The facts by which a process is grouped.
#[derive(Clone, Debug, Default)]
pub(super) struct ProcessKinship {
    pub(super) start_ticks: u64,
    pub(super) parent: u32,
    pub(super) recognised: Option<(EngineKind, ProcessRole)>,
    /// Index among the declared engines.
    pub(super) declared: Option<usize>,
    /// Whether it starts Ray's workers on this node.
    pub(super) is_raylet: bool,
    /// Whether `umawarden launch` started it. It is then the head of all processes below it.
    pub(super) is_launched: bool,
}

impl ProcessKinship {
    fn is_of_interest(&self) -> bool {
        self.is_launched || self.recognised.is_some() || self.declared.is_some()
    }

    /// Whether a process below this one may belong to the same engine.
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

/// The head of each process that belongs to an engine. `before` is the last result: a process stays
/// with its engine even if all processes between them have ended. `job` is the job of a process in
/// a Ray cluster.
pub(super) fn heads<'j>(
    processes: &BTreeMap<u32, ProcessKinship>,
    before: &BTreeMap<ProcessId, ProcessId>,
    job: impl Fn(ProcessId) -> Option<&'j RayJob>,
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
    join(&mut heads, processes, job);
    // Heads may have got heads meanwhile: a script that has become a server.
    let resolved = heads.clone();
    for head in heads.values_mut() {
        if let Some(above) = resolved.get(head) {
            *head = *above;
        }
    }
    heads
}

/// Makes one engine of all processes with the same job of a Ray cluster: that of their server on
/// this node, else that of the oldest.
fn join<'j>(
    heads: &mut BTreeMap<ProcessId, ProcessId>,
    processes: &BTreeMap<u32, ProcessKinship>,
    job: impl Fn(ProcessId) -> Option<&'j RayJob>,
) {
    let is_worker = |head: &ProcessId| {
        let kin = processes.get(&head.pid).filter(|kin| kin.start_ticks == head.start_ticks);
        kin.is_some_and(|kin| {
            matches!(kin.recognised, Some((_, ProcessRole::Worker))) && !kin.is_launched
        })
    };
    let mut first: BTreeMap<&RayJob, (bool, u64, ProcessId)> = BTreeMap::new();
    for (id, head) in heads.iter() {
        if let Some(job) = job(*id) {
            let own = (is_worker(head), head.start_ticks, *head);
            let least = first.entry(job).or_insert(own);
            *least = own.min(*least);
        }
    }
    let moved: BTreeMap<ProcessId, ProcessId> =
        heads.iter().filter_map(|(id, head)| Some((*head, first.get(job(*id)?)?.2))).collect();
    for head in heads.values_mut() {
        if let Some(joined) = moved.get(head) {
            *head = *joined;
        }
    }
}

/// The topmost ancestor in the same engine, or the process itself.
fn head(processes: &BTreeMap<u32, ProcessKinship>, pid: u32) -> Option<ProcessId> {
    let mut found: Option<(u32, &ProcessKinship)> = None;
    let mut at = pid;
    for _ in 0..MAX_DEPTH {
        let Some(kin) = processes.get(&at) else { break };
        if kin.is_of_interest() {
            match found {
                Some((_, below)) if !kin.takes_in(below) => break,
                _ => found = Some((at, kin)),
            }
        }
        // A parent is older. A younger one has reused the number.
        let parent = processes.get(&kin.parent);
        if parent.is_none_or(|parent| parent.start_ticks > kin.start_ticks) {
            break;
        }
        at = kin.parent;
    }
    found.map(|(pid, kin)| ProcessId { pid, start_ticks: kin.start_ticks })
}
