//! Starts a container, through Docker's API.

use std::path::Path;
use std::time::Duration;

use super::NotStarted;
use crate::model::{Supervisor, Workload, WorkloadState};
use crate::parse::container::{InspectedContainer, inspected};
use crate::supervisors::docker::{Docker, DockerError, StartOutcome, within};

/// The time limits of Docker for inspecting a container and for starting one, with networks, mounts
/// and a GPU.
const INSPECTING_TAKES: Duration = Duration::from_secs(5);
const STARTING_TAKES: Duration = Duration::from_secs(20);

/// The extra time for a thread to begin.
const SLACK: Duration = Duration::from_secs(1);

pub(super) fn start(socket: &Path, workload: &Workload, ended: &str) -> Result<(), NotStarted> {
    let is_id = workload.id.len() == 64 && workload.id.bytes().all(|byte| byte.is_ascii_hexdigit());
    if workload.supervisor != Supervisor::Docker || !is_id {
        return Err(NotStarted::Failed(format!("{workload} is no container")));
    }
    let docker = Docker::new(socket);
    let (id, ended) = (workload.id.to_string(), ended.to_owned());
    let patience = INSPECTING_TAKES + STARTING_TAKES + SLACK;
    let done = within(patience, move || async move {
        let gone = || NotStarted::Stale("it is no longer there".to_owned());
        let found = match docker.inspect(&id, INSPECTING_TAKES).await {
            Ok(found) => inspected(&found.text)?,
            Err(error) if error.is_not_found() => return Ok(Err(gone())),
            Err(error) => return Err(error.to_string()),
        };
        if *found.id != *id {
            return Err("Docker reports another container than the requested one".to_owned());
        }
        if let Err(stale) = verify(&found, &ended) {
            return Ok(Err(stale));
        }
        Ok(match docker.start(&id, STARTING_TAKES).await {
            Ok(StartOutcome::Now) => Ok(()),
            Ok(StartOutcome::Before) => {
                Err(NotStarted::Stale("another program has started it".to_owned()))
            }
            Err(error) if error.is_not_found() => Err(gone()),
            Err(
                error @ (DockerError::Absent | DockerError::Refused | DockerError::Status { .. }),
            ) => Err(NotStarted::Failed(error.to_string())),
            // Docker has the request: its effect will show.
            Err(error) => {
                Err(NotStarted::Failed(format!("{error}: it may be started all the same")))
            }
        })
    });
    done.unwrap_or_else(|error| Err(NotStarted::Failed(error)))
}

/// Whether the container is unchanged since the decision.
fn verify(found: &InspectedContainer, ended: &str) -> Result<(), NotStarted> {
    let stale = |why: &str| Err(NotStarted::Stale(why.to_owned()));
    match &found.state {
        WorkloadState::Ended(end) if *end.mark != *ended => {
            stale("it has run and ended again since")
        }
        WorkloadState::Ended(_) if &*found.restart_policy != "no" => {
            stale("Docker starts it again itself by now (its restart policy has changed)")
        }
        WorkloadState::Ended(_) => Ok(()),
        WorkloadState::Running { .. } => stale("another program has started it"),
        WorkloadState::Fresh => stale("it has never been started"),
        WorkloadState::Between { status } => {
            Err(NotStarted::Stale(format!("Docker says that it is {status}")))
        }
    }
}
