//! Starts a unit, through systemd's API.

use std::path::Path;
use std::time::Duration;

use super::NotStarted;
use crate::model::{Supervisor, Workload};
use crate::supervisors::docker::within;
use crate::supervisors::systemd::{Bus, Systemd, number, text};

/// Each call has a deadline of its own.
const STARTING_TAKES: Duration = Duration::from_secs(25);

/// `user_folders`: where users have their folders for the time of their sessions.
pub(super) fn start(
    (system, user_folders): (&Bus, &Path),
    workload: &Workload,
    ended: &str,
) -> Result<(), NotStarted> {
    let bus = match workload.supervisor {
        Supervisor::Systemd => system.clone(),
        Supervisor::SystemdOfUser(user) => Bus::of_user(user_folders, user),
        Supervisor::Docker | Supervisor::DockerOfUser(_) | Supervisor::Cri => {
            return Err(NotStarted::Failed(format!("{workload} is no unit")));
        }
    };
    let (name, ended) = (workload.id.to_string(), ended.to_owned());
    let done = within(STARTING_TAKES, move || async move {
        let systemd = Systemd::connect(&bus).await?;
        let properties = systemd.service(&name).await?;
        let state = properties.get("ActiveState").and_then(text).unwrap_or_default();
        if !matches!(state.as_str(), "inactive" | "failed") {
            return Ok(Err(NotStarted::Stale(format!("systemd says that it is {state}"))));
        }
        let mark = properties.get("InactiveEnterTimestamp").and_then(number).unwrap_or(0);
        if mark.to_string() != ended {
            return Ok(Err(NotStarted::Stale("it has run and ended again since".to_owned())));
        }
        Ok(systemd.start(&name).await.map_err(NotStarted::Failed))
    });
    done.unwrap_or_else(|error| Err(NotStarted::Failed(error)))
}
