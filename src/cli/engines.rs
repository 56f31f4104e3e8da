//! `umawarden engines`.

use std::time::Duration;

use clap::Args;
use serde::Deserialize;

use super::control::{DaemonArguments, entries, list};
use super::{Exit, last_boot};
use crate::engines::ENGINES;
use crate::model::{
    EngineKind, EnginePhase, Orphan, ProcessId, ProgramEvent, RestartState, Supervisor, bytes_text,
    counted, seconds_text,
};

/// Arguments of `umawarden engines`.
#[derive(Debug, Args)]
#[command(after_help = after_help())]
pub struct EnginesArguments {
    /// The daemon.
    #[command(flatten)]
    daemon: DaemonArguments,
}

fn after_help() -> String {
    let mut known: Vec<&str> = ENGINES.iter().filter_map(|facts| facts.known_as).collect();
    let last = known.pop().unwrap_or_default();
    format!(
        "Shows the inference engines that the daemon has found, their phases with the evidence, \
         and those that ended in the last ten minutes. {} and {last} are recognised by their \
         names; others are declared in the configuration under engines. Then the deferred restarts \
         of containers and units, with their states. With --json: one engine a line, with all its \
         processes and their memory, and then the restarts.\n\nExit codes: 0 shown; 1 one of them \
         is stuck (not ready, and without progress) or given up (it died too often); 2 no daemon \
         responds, or this user may not query it.",
        known.join(", ")
    )
}

/// The printed fields; `--json` has all.
#[derive(Debug, Deserialize)]
struct Engine {
    name: String,
    kind: EngineKind,
    phase: EnginePhase,
    seconds: f64,
    reason: String,
    stuck: bool,
    lost_rank: Option<String>,
    without_progress_seconds: Option<f64>,
    found_by: String,
    server: ProcessId,
    model: Option<String>,
    requests: Option<u64>,
    load: Option<Load>,
    memory_bytes: u64,
    load_read_bytes: Option<u64>,
    processes: Vec<serde_json::Value>,
    #[serde(default)]
    orphans: Vec<Orphan>,
    #[serde(default)]
    key_withheld: Option<String>,
}

/// A deferred restart.
#[derive(Debug, Deserialize)]
struct DeferredRestart {
    name: String,
    supervisor: Supervisor,
    state: RestartState,
    seconds: f64,
    reason: String,
    need_bytes: Option<u64>,
}

/// The load of an engine.
#[derive(Debug, Deserialize)]
struct Load {
    kv_cache_usage: Option<f64>,
    sleeping: Option<bool>,
}

/// Runs the command.
///
/// # Errors
/// No daemon responds, or its response is invalid.
pub fn execute(arguments: &EnginesArguments) -> anyhow::Result<Exit> {
    let daemon = &arguments.daemon;
    let reply = daemon.client()?.request("GET", "/api/v1/engines", None)?;
    let held = entries::<DeferredRestart>(reply.clone(), "deferred_restarts")?;
    let engines = entries::<Engine>(reply, "engines")?;
    let nothing = if held.is_empty() { "No inference engine is found." } else { "" };
    list(&engines, daemon.json, nothing, lines);
    list(&held, daemon.json, "", restart_line);
    let is_any_stuck = engines.iter().any(|(_, engine)| engine.stuck);
    let is_any_given_up = held.iter().any(|(_, held)| held.state == RestartState::GivenUp);
    Ok(if is_any_stuck || is_any_given_up { Exit::Findings } else { Exit::Fine })
}

fn restart_line(held: &DeferredRestart) -> String {
    let DeferredRestart { name, supervisor, state, seconds, reason, need_bytes, .. } = held;
    let (thing, lasts) = (supervisor.thing(), time(*seconds));
    let needs =
        need_bytes.map(|bytes| format!(", needs {}", bytes_text(bytes))).unwrap_or_default();
    let state = state.meaning();
    format!("{name:<20} {state} for {lasts}: {reason}; held {thing}{needs}")
}

fn lines(engine: &Engine) -> String {
    let Engine { name, phase, reason, stuck, found_by, server, .. } = engine;
    let (kind, lasts) = (engine.kind.name(), time(engine.seconds));
    let stuck = if *stuck { ", STUCK" } else { "" };
    let lost = engine.lost_rank.as_ref().map(|lost| format!(", LOST: {lost}")).unwrap_or_default();
    let mut about = vec![
        kind.to_owned(),
        format!("pid {server}"),
        match engine.processes.len() {
            1 => "1 process".to_owned(),
            several => format!("{several} processes"),
        },
        bytes_text(engine.memory_bytes),
    ];
    about.extend(engine.requests.map(|requests| counted(requests, "request")));
    if let Some(load) = &engine.load {
        let percent = |share: f64| format!("{:.0} % of its KV cache in use", share * 100.0);
        about.extend(load.kv_cache_usage.map(percent));
        about.extend(load.sleeping.filter(|sleeps| *sleeps).map(|_| "it sleeps".to_owned()));
    }
    about.extend(engine.load_read_bytes.map(|bytes| format!("{} read", bytes_text(bytes))));
    about.extend(
        engine.without_progress_seconds.map(|still| format!("no progress for {}", time(still))),
    );
    about.extend(engine.orphans.iter().map(|orphan| {
        format!("its server has ended, and {} (pid {}) is left", orphan.comm, orphan.id)
    }));
    about.extend(engine.model.as_ref().map(|model| format!("model {model}")));
    about.extend(engine.key_withheld.as_ref().map(|why| format!("queried without its key: {why}")));
    about.push(format!("found by {found_by}"));
    format!("{name:<20} {phase}{stuck}{lost} for {lasts}: {reason}; {}", about.join(", "))
}

fn time(seconds: f64) -> String {
    seconds_text(Duration::try_from_secs_f64(seconds).unwrap_or_default())
}

/// One line on an event of the program.
pub(super) fn event_text(event: &ProgramEvent) -> String {
    match event {
        ProgramEvent::UncleanBoot { .. } => last_boot::event_text(event),
        other => other.to_string(),
    }
}
