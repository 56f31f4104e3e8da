//! Loads of engines, from the journal.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::cli::history::no_journal;
use crate::journal::{EventQuery, JournalReader, Order};
use crate::model::{
    EventKind, LoadReceipt, ProgramEvent, Release, ReleaseEnd, measured_seconds_text, printable,
};

/// Events of loads and of releases that are searched.
const MOST: usize = 2_000;

/// A load in the journal.
#[derive(Clone, Debug)]
pub(crate) struct StoredLoad {
    /// The number of its event.
    pub(super) id: i64,
    /// When it was recorded.
    pub(super) at: Option<Timestamp>,
    /// The engine's name.
    pub(crate) engine: String,
    pub(super) pid: u32,
    pub(crate) receipt: LoadReceipt,
    /// How its memory came back, if it has ended.
    pub(super) release: Option<Release>,
}

impl StoredLoad {
    pub(super) fn json(&self) -> Value {
        let Self { id, at, engine, pid, receipt, release } = self;
        let mut object = json!(receipt);
        let release = release.as_ref().map(|release| {
            json!({
                "end": release.end,
                "seconds": release.seconds,
                "owned_bytes": release.owned.to_return(),
                "outstanding_bytes": release.outstanding.to_return(),
            })
        });
        if let Some(fields) = object.as_object_mut() {
            let more = json!({
                "number": id, "recorded": at, "engine": engine, "pid": pid,
                "need_bytes": receipt.need_bytes(), "release": release,
            });
            fields.extend(more.as_object().cloned().unwrap_or_default());
        }
        object
    }
}

/// All loads, the newest first. Rows that cannot be read are left out.
///
/// # Errors
/// The journal cannot be read.
pub(crate) fn newest(reader: &JournalReader) -> anyhow::Result<Vec<StoredLoad>> {
    let query = EventQuery {
        kinds: vec!["engine_load".to_owned(), "engine_release".to_owned()],
        order: Order::NewestFirst,
        limit: MOST,
        ..EventQuery::default()
    };
    let mut releases: Vec<(String, String, u32, Release)> = Vec::new();
    let mut loads = Vec::new();
    for stored in reader.events(&query).map_err(no_journal)?.rows {
        match stored.event.kind {
            // The newest release of a process is its last.
            EventKind::Program(ProgramEvent::EngineRelease { engine, pid, release }) => {
                releases.push((stored.boot_id, engine, pid, *release));
            }
            EventKind::Program(ProgramEvent::EngineLoad { engine, pid, receipt }) => {
                let boot = &stored.boot_id;
                let is_its = |(of_boot, of, its, _): &(String, String, u32, Release)| {
                    of_boot == boot && *of == engine && *its == pid
                };
                // Those before this load are of an earlier process with its number.
                let newest = releases.iter().position(is_its);
                let release = newest.map(|place| releases.remove(place).3);
                releases.retain(|one| !is_its(one));
                let at = stored.event.utc;
                loads.push(StoredLoad {
                    id: stored.id,
                    at,
                    engine,
                    pid,
                    receipt: *receipt,
                    release,
                });
            }
            _ => {}
        }
    }
    Ok(loads)
}

/// The newest load with that number, fingerprint or name.
///
/// # Errors
/// There is none.
pub(super) fn find<'a>(loads: &'a [StoredLoad], which: &str) -> anyhow::Result<&'a StoredLoad> {
    let number: Option<i64> = which.parse().ok();
    let by_number = number.and_then(|number| loads.iter().find(|load| load.id == number));
    let by_name = || loads.iter().find(|load| load.engine == which);
    let has_prefix = |load: &&StoredLoad| load.receipt.fingerprint.starts_with(which);
    let by_fingerprint = || loads.iter().find(has_prefix).filter(|_| which.len() >= 4);
    by_number.or_else(by_name).or_else(by_fingerprint).ok_or_else(|| {
        anyhow::anyhow!(
            "no load is {}: give its number, four or more digits of its fingerprint, or the \
             engine's name; `umawarden loads --limit 0` lists all",
            printable(which)
        )
    })
}

/// How the memory of an engine came back, in a few words.
pub(super) fn release_text(release: Option<&Release>) -> String {
    match release.map(|release| (release.end, release.seconds)) {
        None => "-".to_owned(),
        Some((ReleaseEnd::Unknown, _)) => "unknown".to_owned(),
        Some((end, seconds)) => format!("{} {}", end.name(), measured_seconds_text(seconds)),
    }
}
