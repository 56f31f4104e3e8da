//! Which processes are of one engine by Ray: its workers are children of the node's raylet, not of
//! the server that has ordered them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::details::Details;
use super::groups::ProcessKinship;
use crate::model::ProcessId;
use crate::parse::process::{arguments, variable};
use crate::parse::ray::{driver, is_job, session, worker_job};

/// The name of the process that starts Ray's workers on a node.
pub(super) const RAYLET: &str = "raylet";

/// A worker writes its job into the first lines of its output.
const FIRST_LINES_BYTES: u64 = 64 << 10;

/// The job of each process that is of a Ray cluster. What was found once stays: a later server must
/// not take the workers of an earlier one. Names and logs are of a process's own choosing, so jobs
/// of different users are different.
#[derive(Debug, Default)]
pub(super) struct RayJobs {
    jobs: BTreeMap<ProcessId, RayJob>,
    /// Those of them that a raylet has started.
    workers: BTreeSet<ProcessId>,
}

/// A job of a Ray cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RayJob {
    /// `SESSION/JOB`; without `/JOB` where that is not to be known.
    pub(super) name: Arc<str>,
    /// The user of all its processes.
    user: u32,
}

impl RayJobs {
    pub(super) fn job(&self, id: ProcessId) -> Option<&RayJob> {
        self.jobs.get(&id)
    }

    /// Whether a raylet has started it, though that may have ended.
    pub(super) fn is_worker(&self, id: ProcessId) -> bool {
        self.workers.contains(&id)
    }

    /// Finds new workers, and the servers that have ordered them.
    pub(super) fn find(&mut self, processes: &BTreeMap<u32, ProcessKinship>, details: &Details) {
        let id = |pid: u32, kin: &ProcessKinship| ProcessId { pid, start_ticks: kin.start_ticks };
        let is_there = |id: &ProcessId| {
            processes.get(&id.pid).is_some_and(|kin| kin.start_ticks == id.start_ticks)
        };
        self.jobs.retain(|id, _| is_there(id));
        self.workers.retain(is_there);
        let raylet = |kin: &ProcessKinship| {
            let parent = processes.get(&kin.parent).filter(|parent| parent.is_raylet)?;
            Some(id(kin.parent, parent))
        };
        let of_engines = || processes.iter().filter(|(_, kin)| kin.recognised.is_some());
        let workers: Vec<_> = of_engines()
            .filter_map(|(pid, kin)| Some((id(*pid, kin), raylet(kin)?)))
            .filter(|(worker, _)| !self.jobs.contains_key(worker))
            .collect();
        if workers.is_empty() {
            return;
        }
        let drivers: Vec<(ProcessId, RayJob)> = of_engines()
            .filter(|(_, kin)| raylet(kin).is_none())
            .map(|(pid, kin)| id(*pid, kin))
            .filter_map(|id| Some((id, of_driver(id, details)?)))
            .collect();
        for (worker, raylet) in workers {
            let user = details.user(worker.pid);
            let Some(user) = user.filter(|_| user == details.user(raylet.pid)) else { continue };
            let Some(session) = of_raylet(raylet, details) else { continue };
            let job = of_worker(worker, details).map(|job| format!("{session}/{job}").into());
            let job = job.or_else(|| only_job(&session, user, &drivers));
            let name = job.unwrap_or_else(|| session.into());
            self.jobs.insert(worker, RayJob { name, user });
            self.workers.insert(worker);
        }
        self.jobs.extend(drivers);
    }
}

/// The job of the session's drivers of that user on this node, if they have one in common.
fn only_job(session: &str, user: u32, drivers: &[(ProcessId, RayJob)]) -> Option<Arc<str>> {
    let is_of_it = |job: &&RayJob| {
        job.user == user && job.name.split_once('/').is_some_and(|(of, _)| of == session)
    };
    let mut jobs = drivers.iter().map(|(_, job)| job).filter(is_of_it);
    let first = jobs.next()?;
    jobs.all(|job| job == first).then(|| Arc::clone(&first.name))
}

fn of_raylet(id: ProcessId, details: &Details) -> Option<String> {
    let line = details.command_line(id)?;
    session(&arguments(&line)).map(str::to_owned)
}

fn of_driver(id: ProcessId, details: &Details) -> Option<RayJob> {
    let mut found = None;
    details.each_open(id.pid, &mut |path| {
        found = found.take().or_else(|| driver(path).map(|(of, job)| format!("{of}/{job}")));
    })?;
    Some(RayJob { name: found?.into(), user: details.user(id.pid)? })
}

fn of_worker(id: ProcessId, details: &Details) -> Option<String> {
    let output = details.output(id, FIRST_LINES_BYTES).unwrap_or_default();
    let output = String::from_utf8_lossy(&output);
    if let Some(job) = worker_job(&output) {
        return Some(job.to_owned());
    }
    let environment = details.environment(id).unwrap_or_default();
    variable(&environment, "RAY_JOB_ID").filter(|job| is_job(job))
}
