//! A container, through Docker's API.

use std::path::Path;
use std::time::Duration;

use super::NotStarted;
use crate::model::{HeldState, HeldTarget, Supervisor};
use crate::parse::container::{Inspected, inspected};
use crate::supervisors::docker::{Docker, NoAnswer, within};

/// How long Docker may take to tell, and to start one: networks, mounts and a GPU take their time.
const TELLING_TAKES: Duration = Duration::from_secs(5);
const STARTING_TAKES: Duration = Duration::from_secs(20);

/// For a thread to begin.
const SLACK: Duration = Duration::from_secs(1);

/// Of an answer no more is read.
const MAX_BODY_BYTES: usize = 1 << 20;

pub(super) fn start(socket: &Path, held: &HeldTarget, ended: &str) -> Result<(), NotStarted> {
    let is_id = held.id.len() == 64 && held.id.bytes().all(|byte| byte.is_ascii_hexdigit());
    if held.supervisor != Supervisor::Docker || !is_id {
        return Err(NotStarted::Failed(format!("{held} is no container")));
    }
    let docker = Docker::new(socket);
    let (id, ended) = (held.id.to_string(), ended.to_owned());
    let patience = TELLING_TAKES + STARTING_TAKES + SLACK;
    let done = within(patience, move || async move {
        let path = format!("/containers/{id}/json");
        let told = docker.get(&path, MAX_BODY_BYTES, TELLING_TAKES).await;
        let told = told.map_err(|error| error.to_string())?;
        if told.status == 404 {
            return Ok(Err(NotStarted::Stale("it is no longer there".to_owned())));
        }
        if told.status != 200 {
            return Err(told.message());
        }
        let found = inspected(&told.body)?;
        if *found.id != *id {
            return Err("Docker tells of another container than it was asked for".to_owned());
        }
        if let Err(stale) = verify(&found, &ended) {
            return Ok(Err(stale));
        }
        let path = format!("/containers/{id}/start");
        let answer = docker.post(&path, None, MAX_BODY_BYTES, STARTING_TAKES).await;
        Ok(match answer {
            Ok(answer) if answer.status == 204 => Ok(()),
            Ok(answer) if answer.status == 304 => {
                Err(NotStarted::Stale("somebody else has started it".to_owned()))
            }
            Ok(answer) if answer.status == 404 => {
                Err(NotStarted::Stale("it is no longer there".to_owned()))
            }
            Ok(answer) => Err(NotStarted::Failed(answer.message())),
            Err(error @ (NoAnswer::Absent | NoAnswer::Refused)) => {
                Err(NotStarted::Failed(error.to_string()))
            }
            // It has the request: what it made of that shows.
            Err(error) => {
                Err(NotStarted::Failed(format!("{error}: it may be started all the same")))
            }
        })
    });
    done.unwrap_or_else(|error| Err(NotStarted::Failed(error)))
}

/// Whether it is as it was when that was decided.
fn verify(found: &Inspected, ended: &str) -> Result<(), NotStarted> {
    let stale = |why: &str| Err(NotStarted::Stale(why.to_owned()));
    match &found.state {
        HeldState::Ended(end) if *end.mark != *ended => stale("it has run and ended again since"),
        HeldState::Ended(_) if &*found.restart_policy != "no" => {
            stale("Docker starts it again itself by now (its restart policy has changed)")
        }
        HeldState::Ended(_) => Ok(()),
        HeldState::Running { .. } => stale("somebody else has started it"),
        HeldState::Fresh => stale("it has never been started"),
        HeldState::Between { status: told } => {
            Err(NotStarted::Stale(format!("Docker says that it is {told}")))
        }
    }
}
