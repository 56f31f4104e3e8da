//! Every container as Docker tells it when it is asked for one, those that have ended too.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tokio::time::timeout;

use crate::supervisors::docker::{Answer, Docker, NoAnswer};

/// Those that have ended too.
const LIST: &str = "/containers/json?all=1";

/// More containers are not asked for, and no longer answers are read.
const MOST_CONTAINERS: usize = 128;
const MOST_LIST_BYTES: usize = 16 << 20;
const MOST_BYTES: usize = 1 << 20;

/// How long one answer may take, and all of them.
const ANSWER_TAKES: Duration = Duration::from_secs(3);
const ALL_TAKE: Duration = Duration::from_secs(8);

/// Why there is nothing to tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotInspected {
    /// There is no such socket.
    Absent,
    /// It does not tell.
    Failed(String),
}

/// Asks for all containers, one after the other. What is gone meanwhile is left out.
///
/// # Errors
/// There is no Docker, or it does not answer in time.
pub fn inspect_containers(socket: &Path) -> Result<Vec<Value>, NotInspected> {
    let failed = |error: std::io::Error| NotInspected::Failed(error.to_string());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(failed)?;
    let inspected = runtime.block_on(async {
        let late =
            |_| NotInspected::Failed(format!("it took longer than {} s", ALL_TAKE.as_secs()));
        timeout(ALL_TAKE, inspect(socket)).await.map_err(late)?
    });
    runtime.shutdown_background();
    inspected
}

async fn inspect(socket: &Path) -> Result<Vec<Value>, NotInspected> {
    let docker = Docker::new(socket);
    let list = ask(&docker, LIST, MOST_LIST_BYTES).await?;
    let list = list.ok_or_else(|| NotInspected::Failed("it lists no containers".to_owned()))?;
    let ids = list.as_array().into_iter().flatten().filter_map(|one| one["Id"].as_str());
    let is_id = |id: &&str| id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    let mut told = Vec::new();
    for id in ids.filter(is_id).take(MOST_CONTAINERS) {
        told.extend(ask(&docker, &format!("/containers/{id}/json"), MOST_BYTES).await?);
    }
    Ok(told)
}

/// `None`: there is no such container any more.
async fn ask(docker: &Docker, path: &str, most: usize) -> Result<Option<Value>, NotInspected> {
    let answer = docker.get(path, most, ANSWER_TAKES).await.map_err(|error| match error {
        NoAnswer::Absent => NotInspected::Absent,
        error => NotInspected::Failed(error.to_string()),
    })?;
    match &answer {
        Answer { status: 404, .. } => Ok(None),
        Answer { status: 200, body, .. } => serde_json::from_slice(body)
            .map(Some)
            .map_err(|error| NotInspected::Failed(format!("it answered no JSON: {error}"))),
        other => Err(NotInspected::Failed(other.message())),
    }
}
