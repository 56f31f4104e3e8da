//! The picture of the manual: the page of a replayed incident. `docs/screenshots` runs this.
//!
//! The recording is of half a minute, and its reader of the model is no engine. So an engine that
//! loads is added to it, and the hour before: the same engine served, ended, and is started again.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use umawarden::access::{AccessControl, AccessFiles};
use umawarden::config::rules::parse_rules;
use umawarden::config::shipped::shipped_rules;
use umawarden::exports::{ClientLimits, NodeNames, Queries};
use umawarden::model::{
    DecisionId, EnginePhase, Mode, Moment, Reading, RecentEvent, RecentEventKind, RecentEventLevel,
    SeriesKey,
};
use umawarden::policy::Policy;
use umawarden::policy::memory_ring::{MemoryFeed, STEP_SECONDS};
use umawarden::policy::status::{EngineStatus, Status};
use umawarden::recording::{RecordingEntry, SegmentReader};

use super::Browser;
use crate::exports::page::engine;
use crate::exports::server::{Server, moment, no_queries, start_at};

/// Where the pictures are written.
const FOLDER: &str = "UMAWARDEN_SCREENSHOTS";

/// The incident: a model is read, and the page cache eats the reserve.
const INCIDENT: &str = "tests/incidents/page-cache-flood-observed/recording-1.umarec";

/// The recorded clock.
static UPTIME_MS: AtomicU64 = AtomicU64::new(0);

fn uptime() -> Duration {
    Duration::from_millis(UPTIME_MS.load(Ordering::Relaxed))
}

const GIB: f64 = (1_u64 << 30) as f64;

/// The engine, what it has once it serves, and how long its load takes.
const ENGINE: &str = "deepseek";
const SERVES_WITH: f64 = 9.0 * GIB;
const LOAD_TAKES: Duration = Duration::from_secs(48);

/// How long before the recording the picture begins, and the engine ended.
const PAST: Duration = Duration::from_secs(3600);
const ENDED: Duration = Duration::from_secs(14 * 60);

fn before(at: Moment, ago: Duration) -> Moment {
    Moment { uptime: at.uptime - ago, utc: at.utc - ago }
}

/// The place of a series without labels, or with this state.
fn place(status: &Status, name: &str, state: Option<&str>) -> usize {
    let is_it = |key: &SeriesKey| {
        let mut labels = key.labels.iter().map(|(_, value)| Some(&**value));
        *key.name == *name && labels.next().flatten() == state
    };
    status.series.iter().position(is_it).unwrap()
}

/// Gives so much memory to an engine: of what is free, and else of page cache.
fn with_engine(status: &mut Status, phase: EnginePhase, began: Moment, bytes: f64) {
    let free = place(status, "uma_memory_free_bytes", None);
    let clean = place(status, "uma_memory_page_cache_bytes", Some("clean"));
    let anonymous = place(status, "uma_memory_anonymous_bytes", None);
    let available = place(status, "uma_memory_available_bytes", None);
    let value = |place: usize| status.values[place].value().unwrap_or(0.0);
    let of_free = bytes.min((value(free) - 2.0 * GIB).max(0.0));
    let of_cache = (bytes - of_free).min(value(clean));
    let taken = of_free + of_cache;
    for (place, more) in
        [(free, -of_free), (clean, -of_cache), (available, -taken), (anonymous, taken)]
    {
        if let Reading::Value(value) = &mut status.values[place] {
            *value += more;
        }
    }
    let mut engine = EngineStatus {
        phase,
        since: began,
        began: began.uptime,
        reason: "its weights are read".into(),
        last_load_took: Some(LOAD_TAKES),
        scanned_at: status.at.uptime,
        ..engine(ENGINE, taken as u64)
    };
    engine.engine.model = Some("DeepSeek-R1-Distill-Qwen-7B".into());
    status.engines = Arc::new([engine]);
}

/// Feeds the hour before a status: the engine served until it ended.
fn feed_past(feed: &mut MemoryFeed, first: &Status) {
    let seconds = (STEP_SECONDS..=PAST.as_secs()).rev().step_by(STEP_SECONDS as usize);
    for ago in seconds.map(Duration::from_secs) {
        let mut status = Status { at: before(first.at, ago), ..first.clone() };
        if ago > ENDED {
            // What it has for requests comes and goes.
            let requests = 1.0 + (ago.as_secs_f64() / 150.0).sin() * 0.08;
            let began = before(first.at, 2 * PAST);
            with_engine(&mut status, EnginePhase::Serving, began, SERVES_WITH * requests);
        }
        feed.take(&status);
    }
}

/// A status of the recording, in which the engine loads since the first.
fn loading(mut status: Status, first: Moment) -> Status {
    let since = status.at.uptime.saturating_sub(first.uptime);
    let share = since.as_secs_f64() / LOAD_TAKES.as_secs_f64();
    with_engine(&mut status, EnginePhase::Loading, first, SERVES_WITH * share);
    status.started = before(first, 2 * PAST);
    status
}

/// What happened to the engine before the recording.
fn ended(first: Moment) -> RecentEvent {
    RecentEvent {
        at: before(first, ENDED).utc,
        kind: RecentEventKind::Event,
        level: RecentEventLevel::Warning,
        text: format!("{ENGINE}: serving → gone: its processes have ended"),
        id: None,
        rule: None,
        engine: Some(ENGINE.into()),
        times: 1,
    }
}

/// Replays the incident, with the shipped rules, until a while after the last decision.
fn replay(server: &Server) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(INCIDENT);
    let mut reader = SegmentReader::open(BufReader::new(File::open(path).unwrap())).unwrap();
    let rules = parse_rules(&shipped_rules(), Duration::from_millis(100)).unwrap();
    let mut feed = MemoryFeed::new(Arc::clone(&server.memory));
    let mut policy: Option<Policy> = None;
    let mut first: Option<Moment> = None;
    let mut last: Option<Moment> = None;
    while let Some(entry) = reader.next_entry().unwrap() {
        match entry {
            RecordingEntry::Begin(begin) => {
                policy = Some(Policy::new(begin.at, Mode::Observe, &rules, DecisionId(1)));
            }
            RecordingEntry::Step(step) => {
                let policy = policy.as_mut().unwrap();
                policy.step(step.at, &step.seen);
                last = Some(step.at);
                let status = policy.status(step.at);
                // The first step may have only a part of the sources.
                let is_known = |name: &str| {
                    let mut all = status.series.iter().zip(&status.values);
                    all.any(|(key, value)| *key.name == *name && value.value().is_some())
                };
                if !["uma_memory_free_bytes", "uma_memory_available_bytes"]
                    .into_iter()
                    .all(is_known)
                {
                    continue;
                }
                let first = *first.get_or_insert_with(|| {
                    feed_past(&mut feed, &status);
                    step.at
                });
                feed.take(&loading(status, first));
            }
            _ => {}
        }
    }
    let (first, last) = (first.unwrap(), last.unwrap());
    UPTIME_MS.store(last.uptime.as_millis() as u64, Ordering::Relaxed);
    let mut status = loading(policy.unwrap().status(last), first);
    status.happened = status.happened.iter().cloned().chain([ended(first)]).collect();
    server.status.store(Arc::new(status));
}

fn start() -> Server {
    let access = AccessControl::open(AccessFiles::default(), || moment(100)).unwrap();
    // A virtual machine, whose model is of no interest.
    let node = NodeNames { name: "node-1".into(), model: None };
    start_at(
        node,
        uptime,
        access,
        ClientLimits::default(),
        Queries { happened: Box::new(|_, _| Ok(Vec::new())), ..no_queries() },
    )
}

#[test]
fn the_pictured_incident_has_a_load_an_hour_of_past_and_marks() {
    let server = start();
    replay(&server);
    let picture = server.get("/api/v1/picture").json()["data"].clone();
    let engine = &picture["engines"][0];
    assert_eq!((&engine["name"], &engine["phase"]), (&json!(ENGINE), &json!("loading")));
    let (done, left) = (engine["progress"].as_f64(), engine["seconds_left"].as_f64());
    assert!((0.3..0.9).contains(&done.unwrap()) && left > Some(5.0), "{engine}");
    assert!(engine["memory_bytes"].as_f64() > Some(2.0 * GIB), "{engine}");
    let happened = picture["happened"].as_array().unwrap();
    for part in ["would drop", "serving → gone"] {
        let is_it = |one: &Value| one["text"].as_str().unwrap().contains(part);
        assert!(happened.iter().any(is_it), "{part}: {happened:#?}");
    }
    let memory = server.get("/api/v1/memory?since=1h").json()["data"].clone();
    let at = memory["at"].as_array().unwrap();
    let seconds = |at: &Value| at.as_i64().unwrap();
    assert!(seconds(&at[at.len() - 1]) - seconds(&at[0]) > 3500, "{}", at.len());
    assert!(at.len() > 700, "{}", at.len());
    let parts = memory["parts"].as_array().unwrap();
    let of_engine = parts.iter().find(|part| part["name"] == ENGINE).unwrap();
    let largest = of_engine["bytes"].as_array().unwrap().iter().filter_map(|bytes| bytes.as_f64());
    assert!(largest.fold(0.0, f64::max) > 0.9 * SERVES_WITH, "it served");
    server.end();
}

#[test]
fn the_pictures_of_the_manual_are_of_a_replayed_incident() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else {
        eprintln!("skipped: {FOLDER} is not set; docs/screenshots sets it");
        return;
    };
    let Some(mut browser) = Browser::start() else { return };
    let server = start();
    replay(&server);
    let url = format!("http://{}/", server.address);
    browser.run("open", json!({ "url": url, "width": 1280, "height": 1100 }));
    browser.run("picture", json!({ "path": folder.join("page.png") }));
    server.end();
}
