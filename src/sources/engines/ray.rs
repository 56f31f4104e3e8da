//! Which processes are of one engine by Ray: its workers are children of the node's raylet, not of
//! the server that has ordered them.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::details::Details;
use super::groups::Kin;
use crate::model::ProcessId;
use crate::parse::process::{arguments, variable};
use crate::parse::ray::{driver, is_job, session, worker_job};

/// The name of the process that starts Ray's workers on a node.
pub(super) const RAYLET: &str = "raylet";

/// A worker writes its job into the first lines of its output.
const FIRST_LINES_BYTES: u64 = 64 << 10;

/// The job of each process that is of a Ray cluster. What was found once stays: a later server must
/// not take the workers of an earlier one.
#[derive(Debug, Default)]
pub(super) struct RayJobs {
    jobs: BTreeMap<ProcessId, Arc<str>>,
}

impl RayJobs {
    /// The job of a process, as `SESSION/JOB`; without `/JOB` where that is not to be known.
    pub(super) fn job(&self, id: ProcessId) -> Option<&Arc<str>> {
        self.jobs.get(&id)
    }

    /// Finds new workers, and the servers that have ordered them.
    pub(super) fn find(&mut self, processes: &BTreeMap<u32, Kin>, details: &Details) {
        let id = |pid: u32, kin: &Kin| ProcessId { pid, start_ticks: kin.start_ticks };
        let is_there = |id: &ProcessId| {
            processes.get(&id.pid).is_some_and(|kin| kin.start_ticks == id.start_ticks)
        };
        self.jobs.retain(|id, _| is_there(id));
        let raylet = |kin: &Kin| {
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
        let drivers: Vec<(ProcessId, String)> = of_engines()
            .filter(|(_, kin)| raylet(kin).is_none())
            .map(|(pid, kin)| id(*pid, kin))
            .filter_map(|id| Some((id, of_driver(id, details)?)))
            .collect();
        for (worker, raylet) in workers {
            let Some(session) = of_raylet(raylet, details) else { continue };
            let job = of_worker(worker, details).map(|job| format!("{session}/{job}"));
            let job = job.or_else(|| only_job(&session, &drivers)).unwrap_or(session);
            self.jobs.insert(worker, job.into());
        }
        self.jobs.extend(drivers.into_iter().map(|(id, job)| (id, job.into())));
    }
}

/// The job of the session's drivers on this node, if they have one in common.
fn only_job(session: &str, drivers: &[(ProcessId, String)]) -> Option<String> {
    let is_of_it = |job: &&String| job.split_once('/').is_some_and(|(of, _)| of == session);
    let mut jobs = drivers.iter().map(|(_, job)| job).filter(is_of_it);
    let first = jobs.next()?;
    jobs.all(|job| job == first).then(|| first.clone())
}

fn of_raylet(id: ProcessId, details: &Details) -> Option<String> {
    let line = details.command_line(id)?;
    session(&arguments(&line)).map(str::to_owned)
}

fn of_driver(id: ProcessId, details: &Details) -> Option<String> {
    let mut found = None;
    details.each_open(id.pid, &mut |path| {
        found = found.take().or_else(|| driver(path).map(|(of, job)| format!("{of}/{job}")));
    });
    found
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
