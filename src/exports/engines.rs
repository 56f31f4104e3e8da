//! `/api/v1/engines`: inference engines, their phases, and the evidence.

use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use serde::Serialize;
use serde_json::{Value, json};

use super::api::success;
use super::routes::Site;
use crate::model::{EngineLoad, EngineProcess, EngineSeen, Reading, RestartStatus};
use crate::policy::gate::orphans;
use crate::policy::status::EngineStatus;

/// All engines by name, including those that ended in the last ten minutes; and deferred restarts.
pub(super) async fn engines(State(site): State<Site>) -> Response {
    let status = site.served.status.load_full();
    let now = (site.served.uptime)();
    let engines: Vec<Value> = status.engines.iter().map(|engine| shown(engine, now)).collect();
    let restarts = status.restarts.iter().map(|one| restart(one, now));
    let restarts: Vec<Value> = restarts.collect();
    success(&json!({ "engines": engines, "deferred_restarts": restarts }))
}

/// A deferred restart.
fn restart(status: &RestartStatus, now: Duration) -> Value {
    let mut shown = json!(status);
    shown["since"] = status.since.utc.to_string().into();
    shown["seconds"] = now.saturating_sub(status.since.uptime).as_secs_f64().into();
    shown
}

fn shown(status: &EngineStatus, now: Duration) -> Value {
    let seen = &status.engine;
    let ago = |then: Duration| now.saturating_sub(then).as_secs_f64();
    let health = status.health.as_ref().map(|health| {
        let mut shown = json!(health.answer);
        shown["asked_seconds_ago"] = ago(health.asked_at).into();
        shown
    });
    let requests = status.health.as_ref().and_then(|health| health.requests.value());
    let mut shown = json!({
        "name": seen.name,
        "kind": seen.kind,
        "phase": status.phase,
        "since": status.since.utc.to_string(),
        "seconds": ago(status.since.uptime),
        "reason": status.reason,
        "stuck": status.is_stuck,
        "without_progress_seconds": status.without_progress.map(|still| still.as_secs_f64()),
        "stuck_after_seconds": seen.stuck_after.as_secs_f64(),
        "scanned_seconds_ago": ago(status.scanned_at),
        "found_by": seen.found_by,
        "server": seen.server,
        "model": seen.model,
        "model_files": seen.model_files,
        "port": seen.port,
        "listening": value(seen.is_listening),
        "health_url": seen.health_url,
        "health_network": seen.health_network,
        "health": health,
        "requests": requests,
        "load": status.health.as_ref().map(|health| load(&health.load)),
        "rank": seen.rank,
        "lost_rank": status.lost_rank,
        "other_ranks": status.other_ranks,
        "proof": seen.proof,
        "key_withheld": status.health.as_ref().and_then(|health| health.key_withheld.as_ref()),
        "log_bytes": value(seen.log_bytes),
        "memory_bytes": status.memory_bytes,
        "load_read_bytes": status.load_read_bytes,
        "orphans": orphans(seen).collect::<Vec<_>>(),
        "processes": seen.processes.iter().map(process).collect::<Vec<_>>(),
    });
    if let (Value::Object(all), Value::Object(runs_in)) = (&mut shown, runs_in(seen)) {
        all.extend(runs_in);
    }
    shown
}

/// The container, pod and service that the engine runs in.
fn runs_in(seen: &EngineSeen) -> Value {
    json!({
        "cgroup": seen.cgroup,
        "container": seen.container,
        "container_name": seen.container_name,
        "container_runtime": seen.runtime,
        "container_runtime_error": seen.runtime_error,
        "pod": seen.pod,
        "claimed_container": seen.claimed_container,
        "image": seen.image,
        "unit": seen.unit,
        "user_unit": seen.user_unit,
        "client_unit": seen.client_unit,
        "uid": seen.uid,
    })
}

/// The load that the engine reports.
fn load(load: &EngineLoad) -> Value {
    json!({
        "running": value(load.running),
        "waiting": value(load.waiting),
        "kv_cache_usage": value(load.kv_cache_usage),
        "kv_cache_available_tokens": value(load.kv_cache_available_tokens),
        "sleeping": value(load.is_sleeping),
    })
}

fn process(process: &EngineProcess) -> Value {
    json!({
        "pid": process.id.pid,
        "start_ticks": process.id.start_ticks,
        "parent": process.parent,
        "comm": process.comm,
        "state": process.state,
        "cpu_seconds": Duration::from_millis(process.cpu_ms).as_secs_f64(),
        "anon_bytes": value(process.anon_bytes),
        "file_bytes": value(process.file_bytes),
        "shmem_bytes": value(process.shmem_bytes),
        "hugetlb_bytes": value(process.hugetlb_bytes),
        "read_bytes": value(process.read_bytes),
        "read_chars": value(process.read_chars),
        "mapped_model_files": value(process.mapped_files),
        "mapped_model_bytes": value(process.mapped_bytes),
        "open_model_files": value(process.open_files),
        "open_devices": value(process.open_devices),
    })
}

/// `null` without a value.
fn value<T: Serialize>(reading: Reading<T>) -> Value {
    json!(reading.value())
}
