//! `umawarden engines`.

use std::collections::BTreeSet;
use std::time::Duration;

use clap::Args;
use serde::Deserialize;
use serde_json::Value;

use super::control::{ControlClient, DaemonArguments, entries, list};
use super::style::{Screen, StyledRow, Tone};
use super::{Exit, last_boot};
use crate::cli::output::{self, errln, outln};
use crate::engines::ENGINES;
use crate::model::{
    EngineKind, EnginePhase, Orphan, Pod, ProcessId, ProgramEvent, RankStatus, RestartState,
    Supervisor, bytes_text, counted, seconds_text,
};

/// Arguments of `umawarden engines`.
#[derive(Debug, Args)]
#[command(after_help = after_help())]
pub struct EnginesArguments {
    #[command(flatten)]
    daemon: DaemonArguments,

    /// Show them again each second, until Ctrl-C; without a terminal only what has changed.
    #[arg(long)]
    watch: bool,
}

/// Between two queries, and the time limit of a response.
const WATCHED_EVERY: Duration = Duration::from_secs(1);
const WATCH_TAKES: Duration = Duration::from_secs(5);

/// Moves the cursor of a terminal to its first line, and clears what is below.
const CLEAR: &str = "\x1b[H\x1b[J";

/// Ranks on other nodes that a line names.
const MOST_RANKS: usize = 4;

const NOTHING: &str = "No inference engine is found.";

fn after_help() -> String {
    let mut known: Vec<&str> = ENGINES.iter().filter_map(|facts| facts.known_as).collect();
    let last = known.pop().unwrap_or_default();
    format!(
        "Shows the inference engines that the daemon has found, their phases with the evidence, \
         and those that ended in the last ten minutes. {} and {last} are recognised by their \
         names; others are declared in the configuration under engines. Then come the deferred \
         restarts of containers and units, with their states. With --json: one engine a line, with \
         all its processes and their memory, and then the restarts.\n\nExit codes: 0 shown; 1 one \
         of them is stuck (not ready, and without progress) or given up (it died too often); 2 no \
         daemon responds, or this user may not query it.",
        known.join(", ")
    )
}

/// The printed fields; `--json` has all.
#[derive(Debug, Deserialize)]
struct EngineRow {
    name: String,
    kind: EngineKind,
    phase: EnginePhase,
    seconds: f64,
    reason: String,
    stuck: bool,
    lost_rank: Option<String>,
    #[serde(default)]
    other_ranks: Vec<RankStatus>,
    without_progress_seconds: Option<f64>,
    found_by: String,
    server: ProcessId,
    model: Option<String>,
    requests: Option<u64>,
    load: Option<EngineLoad>,
    memory_bytes: u64,
    load_read_bytes: Option<u64>,
    processes: Vec<Value>,
    #[serde(default)]
    orphans: Vec<Orphan>,
    #[serde(default)]
    key_withheld: Option<String>,
    #[serde(default)]
    container_runtime_error: Option<String>,
    #[serde(default)]
    pod: Option<Pod>,
}

#[derive(Debug, Deserialize)]
struct DeferredRestart {
    name: String,
    supervisor: Supervisor,
    state: RestartState,
    seconds: f64,
    reason: String,
    need_bytes: Option<u64>,
    #[serde(default)]
    estimated_seconds: Option<f64>,
}

#[derive(Debug, Deserialize)]
struct EngineLoad {
    kv_cache_usage: Option<f64>,
    sleeping: Option<bool>,
}

/// What the daemon has answered.
struct EnginesResponse {
    engines: Vec<(Value, EngineRow)>,
    held: Vec<(Value, DeferredRestart)>,
}

impl EnginesResponse {
    fn of(client: &ControlClient) -> anyhow::Result<Self> {
        let reply = client.request("GET", "/api/v1/engines", None)?;
        let held = entries::<DeferredRestart>(reply.clone(), "deferred_restarts")?;
        Ok(Self { engines: entries::<EngineRow>(reply, "engines")?, held })
    }

    /// Every engine and restart: what changes when it is news, its JSON, and its line.
    fn all(&self) -> impl Iterator<Item = (String, &Value, StyledRow)> {
        let engines = self.engines.iter().map(|(json, engine)| {
            let EngineRow { name, phase, stuck, lost_rank, other_ranks, .. } = engine;
            (format!("{name} {phase} {stuck} {lost_rank:?} {other_ranks:?}"), json, row(engine))
        });
        let held = self.held.iter().map(|(json, held)| {
            (format!("restart {} {}", held.name, held.state.meaning()), json, restart_row(held))
        });
        engines.chain(held)
    }
}

/// Runs the command.
///
/// # Errors
/// No daemon responds, or its response is invalid.
pub fn execute(arguments: &EnginesArguments) -> anyhow::Result<Exit> {
    let daemon = &arguments.daemon;
    let client = daemon.client()?;
    let answer = EnginesResponse::of(&client)?;
    if arguments.watch {
        return watch(&client, answer, daemon.json);
    }
    let EnginesResponse { engines, held } = answer;
    let nothing = if held.is_empty() { NOTHING } else { "" };
    list(&engines, daemon.json, nothing, row);
    list(&held, daemon.json, "", restart_row);
    let is_any_stuck = engines.iter().any(|(_, engine)| engine.stuck);
    let is_any_given_up = held.iter().any(|(_, held)| held.state == RestartState::GivenUp);
    Ok(if is_any_stuck || is_any_given_up { Exit::Findings } else { Exit::Fine })
}

/// Until the reader of the output is gone, or a signal ends it.
fn watch(client: &ControlClient, first: EnginesResponse, as_json: bool) -> anyhow::Result<Exit> {
    let client = client.clone().with_patience(WATCH_TAKES);
    let is_redrawn = !as_json && output::is_terminal() && !output::is_dumb();
    let mut known = BTreeSet::new();
    let mut is_away = false;
    let mut answer = Ok(first);
    while !output::is_reader_gone() {
        match &answer {
            Ok(answer) if is_redrawn => output::print(&screenful(answer)),
            Ok(answer) => {
                let mut now = BTreeSet::new();
                for (news, json, row) in answer.all() {
                    match as_json {
                        _ if known.contains(&news) => {}
                        true => outln!("{json}"),
                        false => row.print(),
                    }
                    now.insert(news);
                }
                known = now;
            }
            Err(error) if is_redrawn => output::print(&format!("{CLEAR}{error:#}\n")),
            Err(error) if !is_away => errln!("umawarden: {error:#}"),
            Err(_) => {}
        }
        is_away = answer.is_err();
        std::thread::sleep(WATCHED_EVERY);
        answer = EnginesResponse::of(&client);
    }
    Ok(Exit::Fine)
}

fn screenful(answer: &EnginesResponse) -> String {
    let screen = Screen::of_output();
    let lines: Vec<String> = answer.all().map(|(.., row)| row.shown(screen)).collect();
    let lines = if lines.is_empty() { NOTHING.to_owned() } else { lines.join("\n") };
    format!("{CLEAR}{lines}\n")
}

fn restart_row(held: &DeferredRestart) -> StyledRow {
    let DeferredRestart { name, supervisor, state, seconds, reason, .. } = held;
    let DeferredRestart { need_bytes, estimated_seconds, .. } = held;
    let (thing, lasts) = (supervisor.thing(), time(*seconds));
    let needs =
        need_bytes.map(|bytes| format!(", needs {}", bytes_text(bytes))).unwrap_or_default();
    let left = estimated_seconds.map(|left| format!(", about {} left", time(left)));
    let left = left.unwrap_or_default();
    let tone = if *state == RestartState::GivenUp { Tone::Bad } else { Tone::Warn };
    let state = state.meaning();
    let text =
        format!("{state} for {lasts}{left}: {reason}; {thing} with a deferred restart{needs}");
    StyledRow::new(tone, &format!("{name:<20} "), &text)
}

fn tone(engine: &EngineRow) -> Tone {
    match engine.phase {
        _ if engine.stuck || engine.lost_rank.is_some() => Tone::Bad,
        EnginePhase::Ready | EnginePhase::Serving => Tone::Good,
        EnginePhase::Starting | EnginePhase::Loading => Tone::Number(0),
        EnginePhase::Stopping => Tone::Warn,
        EnginePhase::Gone => Tone::Faint,
    }
}

fn row(engine: &EngineRow) -> StyledRow {
    let EngineRow { name, phase, reason, stuck, found_by, server, .. } = engine;
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
    about.extend(other_ranks(&engine.other_ranks));
    about.extend(engine.orphans.iter().map(|orphan| {
        format!("its server has ended, and {} (pid {}) is left", orphan.comm, orphan.id)
    }));
    about.extend(engine.pod.as_ref().map(|pod| format!("{pod}, container {}", pod.container)));
    about.extend(engine.model.as_ref().map(|model| format!("model {model}")));
    about.extend(engine.key_withheld.as_ref().map(|why| format!("queried without its key: {why}")));
    let error = engine.container_runtime_error.as_ref();
    about.extend(error.map(|why| format!("its container is unknown: {why}")));
    about.push(format!("found by {found_by}"));
    let text = format!("{phase}{stuck}{lost} for {lasts}: {reason}; {}", about.join(", "));
    StyledRow::new(tone(engine), &format!("{name:<20} "), &text)
}

/// The first ranks on other nodes, and how many more there are.
fn other_ranks(ranks: &[RankStatus]) -> impl Iterator<Item = String> {
    let more = ranks.len().saturating_sub(MOST_RANKS);
    let more = (more > 0).then(|| format!("{} on other nodes", counted(more as u64, "more rank")));
    ranks.iter().take(MOST_RANKS).map(ToString::to_string).chain(more)
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
