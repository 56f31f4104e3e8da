//! The details of every container from Docker, including ended ones.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tokio::time::timeout;

use crate::supervisors::docker::{Docker, DockerError};

const MOST_CONTAINERS: usize = 128;

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
    let list = json(&docker.list(true, ANSWER_TAKES).await?)?;
    let ids = list.as_array().into_iter().flatten().filter_map(|one| one["Id"].as_str());
    let is_id = |id: &&str| id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    let mut reported = Vec::new();
    for id in ids.filter(is_id).take(MOST_CONTAINERS) {
        match docker.inspect(id, ANSWER_TAKES).await {
            Ok(found) => reported.push(json(&found.text)?),
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(reported)
}

fn json(text: &[u8]) -> Result<Value, NotInspected> {
    let no_json = |error| NotInspected::Failed(format!("it answered no JSON: {error}"));
    serde_json::from_slice(text).map_err(no_json)
}

impl From<DockerError> for NotInspected {
    fn from(error: DockerError) -> Self {
        match error {
            DockerError::Absent => Self::Absent,
            error => Self::Failed(error.to_string()),
        }
    }
}
