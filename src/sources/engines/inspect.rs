//! The details of every container from Docker, including ended ones.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tokio::time::timeout;

use crate::supervisors::docker::{Answer, Docker, NoAnswer};

/// Includes ended containers.
const LIST: &str = "/containers/json?all=1";

/// The most containers, and the size limit of a response.
const MOST_CONTAINERS: usize = 128;
const MOST_LIST_BYTES: usize = 16 << 20;
const MOST_BYTES: usize = 1 << 20;

/// Time limits of one response, and of all.
const ANSWER_TAKES: Duration = Duration::from_secs(3);
const ALL_TAKE: Duration = Duration::from_secs(8);

/// Why there are no details.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotInspected {
    /// The socket does not exist.
    Absent,
    /// The query failed.
    Failed(String),
}

/// Inspects all containers, one by one. A container that disappears meanwhile is omitted.
///
/// # Errors
/// There is no Docker, or it does not respond in time.
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
    let mut reported = Vec::new();
    for id in ids.filter(is_id).take(MOST_CONTAINERS) {
        reported.extend(ask(&docker, &format!("/containers/{id}/json"), MOST_BYTES).await?);
    }
    Ok(reported)
}

/// `None`: the container no longer exists.
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
