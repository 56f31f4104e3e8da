//! How the memory of dead engines was reclaimed, from the journal.

use std::io::{self, Write};
use std::path::Path;

use jiff::Timestamp;
use serde_json::json;

use crate::journal::{JournalReader, TimelineItem, TimelineQuery};
use crate::model::{
    EventKind, ProgramEvent, Release, ReleaseEnd, ReleaseMemory, ReleasePoint, bytes_text,
    measured_seconds_text, printable,
};

/// Releases that are printed.
const SHOWN: usize = 5;

/// Releases that are searched for those of the engine.
const MAX_SEARCHED: usize = 1_000;

struct JournalledRelease {
    at: Timestamp,
    engine: String,
    pid: u32,
    release: Release,
}

/// Writes the newest releases until then, the newest last; of one engine, or of all if the name is
/// empty.
///
/// # Errors
/// The journal cannot be read, has none, or the output cannot be written.
pub(super) fn write(
    dir: &Path,
    engine: &str,
    at: Option<Timestamp>,
    is_json: bool,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let releases = newest(dir, engine, at)?;
    if releases.is_empty() {
        let of = if engine.is_empty() { String::new() } else { format!(" of {engine}") };
        anyhow::bail!(
            "the journal has no release of memory (event engine_release){of} up to then; \
             `umawarden history --kind engine_release` lists all"
        );
    }
    for (index, one) in releases.iter().enumerate() {
        if is_json {
            json(one, out)?;
        } else {
            let between = if index > 0 { "\n" } else { "" };
            write!(out, "{between}")?;
            text(one, out)?;
        }
    }
    Ok(())
}

fn newest(
    dir: &Path,
    engine: &str,
    at: Option<Timestamp>,
) -> anyhow::Result<Vec<JournalledRelease>> {
    let reader = JournalReader::open(dir)?;
    let query = TimelineQuery {
        until: at,
        kinds: vec!["engine_release".to_owned()],
        limit: Some(MAX_SEARCHED),
        ..TimelineQuery::default()
    };
    let mut releases = Vec::new();
    reader.timeline(&query, |at, item| {
        if let TimelineItem::Event(stored) = item
            && let EventKind::Program(ProgramEvent::EngineRelease { engine: of, pid, release }) =
                stored.event.kind
            && (engine.is_empty() || of == engine)
        {
            releases.push(JournalledRelease { at, engine: of, pid, release: *release });
        }
        true
    })?;
    let excess = releases.len().saturating_sub(SHOWN);
    releases.drain(..excess);
    Ok(releases)
}

fn text(one: &JournalledRelease, out: &mut impl Write) -> io::Result<()> {
    let JournalledRelease { at, engine, pid, release } = one;
    writeln!(out, "{} (pid {pid}), reported at {at:.3}", printable(engine))?;
    writeln!(out, "  {}", summary(release))?;
    writeln!(out, "  {:<22} {:>10} {:>12}", "", "owned", "outstanding")?;
    let (known, unknown): (Vec<ReleaseKind>, Vec<ReleaseKind>) =
        kinds(&release.owned, &release.outstanding)
            .into_iter()
            .partition(|(_, owned, outstanding)| owned.is_some() || outstanding.is_some());
    for (kind, owned, outstanding) in known {
        writeln!(out, "  {kind:<22} {:>10} {:>12}", amount(owned), amount(outstanding))?;
    }
    if !unknown.is_empty() {
        let unknown: Vec<&str> = unknown.iter().map(|(kind, ..)| *kind).collect();
        writeln!(out, "  unknown: {}", unknown.join(", "))?;
    }
    for orphan in &release.orphans {
        writeln!(out, "  left behind: {}", printable(&orphan.to_string()))?;
    }
    let known = |point: &&ReleasePoint| point.outstanding.to_return().is_some();
    if release.curve.iter().any(|point| known(&point)) {
        writeln!(out, "  {:>10} {:>14} {:>10}", "after", "outstanding", "free")?;
    }
    for point in release.curve.iter().filter(known) {
        let outstanding = amount(point.outstanding.to_return());
        let after = measured_seconds_text(point.seconds);
        writeln!(out, "  {after:>10} {outstanding:>14} {:>10}", amount(point.free))?;
    }
    Ok(())
}

fn summary(release: &Release) -> String {
    let lasted = measured_seconds_text(release.seconds);
    match release.end {
        ReleaseEnd::Returned => format!("all of it came back within {lasted}"),
        ReleaseEnd::Stayed => {
            format!("not all of it came back: nothing since {lasted} after its end")
        }
        ReleaseEnd::Overtaken => format!(
            "not all of it was back when the next engine began, {lasted} after its end: from \
             then on its memory cannot be distinguished"
        ),
        ReleaseEnd::Unknown => {
            let why = release.why_unknown.map_or("", |why| why.meaning());
            let since = if why.is_empty() { "" } else { ", since " };
            format!(
                "what it owned is unknown{since}{why}; nothing comes back any more since \
                 {lasted} after its end"
            )
        }
    }
}

type ReleaseKind = (&'static str, Option<u64>, Option<u64>);

fn kinds(owned: &ReleaseMemory, outstanding: &ReleaseMemory) -> [ReleaseKind; 4] {
    [
        ("in no counter (driver)", owned.unaccounted, outstanding.unaccounted),
        ("shared memory", owned.shmem, outstanding.shmem),
        ("of orphans", Some(owned.orphans), Some(outstanding.orphans)),
        // Not a loss: it is reclaimed on demand.
        ("page cache", owned.page_cache, outstanding.page_cache),
    ]
}

fn amount(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "unknown".to_owned(), bytes_text)
}

fn json(one: &JournalledRelease, out: &mut impl Write) -> io::Result<()> {
    let JournalledRelease { at, engine, pid, release } = one;
    let object = json!({
        "engine": engine,
        "pid": pid,
        "time": at,
        "sentence": summary(release),
        "release": release,
    });
    serde_json::to_writer(&mut *out, &object)?;
    writeln!(out)
}
