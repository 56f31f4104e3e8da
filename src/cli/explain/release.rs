//! How the memory of engines that died came back, as the journal tells it.

use std::io::{self, Write};
use std::path::Path;

use jiff::Timestamp;
use serde_json::json;

use crate::cli::history::printable;
use crate::journal::{JournalReader, TimelineItem, TimelineQuery};
use crate::model::{EventKind, HeldMemory, ProgramEvent, Release, ReleaseEnd, bytes_text};

/// Releases that are shown.
const SHOWN: usize = 5;

/// Those among which the engine's own are looked for.
const LOOKED_THROUGH: usize = 1_000;

/// One that was journalled.
struct Told {
    at: Timestamp,
    engine: String,
    pid: u32,
    release: Release,
}

/// Writes the newest releases up to then, the newest last; of that engine, or of all where the name
/// is empty.
///
/// # Errors
/// The journal cannot be read, holds none, or the answer cannot be written.
pub(super) fn write(
    dir: &Path,
    engine: &str,
    at: Option<Timestamp>,
    is_json: bool,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let told = newest(dir, engine, at)?;
    if told.is_empty() {
        let of = if engine.is_empty() { "no engine" } else { engine };
        anyhow::bail!(
            "nothing is known of how {of} gave memory back: the journal has no event \
             engine_release of it up to then; `umawarden history --kind engine_release` lists all"
        );
    }
    for (place, one) in told.iter().enumerate() {
        if is_json {
            json(one, out)?;
        } else {
            let between = if place > 0 { "\n" } else { "" };
            write!(out, "{between}")?;
            text(one, out)?;
        }
    }
    Ok(())
}

fn newest(dir: &Path, engine: &str, at: Option<Timestamp>) -> anyhow::Result<Vec<Told>> {
    let reader = JournalReader::open(dir)?;
    let query = TimelineQuery {
        until: at,
        kinds: vec!["engine_release".to_owned()],
        limit: Some(LOOKED_THROUGH),
        ..TimelineQuery::default()
    };
    let mut told = Vec::new();
    reader.timeline(&query, |at, item| {
        if let TimelineItem::Event(stored) = item
            && let EventKind::Program(ProgramEvent::EngineRelease { engine: of, pid, release }) =
                stored.event.kind
            && (engine.is_empty() || of == engine)
        {
            told.push(Told { at, engine: of, pid, release: *release });
        }
        true
    })?;
    let excess = told.len().saturating_sub(SHOWN);
    told.drain(..excess);
    Ok(told)
}

fn text(told: &Told, out: &mut impl Write) -> io::Result<()> {
    let Told { at, engine, pid, release } = told;
    writeln!(out, "{} (pid {pid}), told at {at:.3}", printable(engine))?;
    writeln!(out, "  {}", verdict(release))?;
    writeln!(out, "  {:<22} {:>10} {:>12}", "", "held", "outstanding")?;
    for (kind, held, outstanding) in kinds(&release.held, &release.outstanding) {
        writeln!(out, "  {kind:<22} {:>10} {:>12}", amount(held), amount(outstanding))?;
    }
    for orphan in &release.orphans {
        writeln!(out, "  left behind: {}", printable(&orphan.to_string()))?;
    }
    if !release.curve.is_empty() {
        writeln!(out, "  {:>10} {:>14} {:>10}", "after", "outstanding", "free")?;
    }
    for point in &release.curve {
        let outstanding = amount(point.outstanding.to_return());
        let after = format!("{:.1} s", point.seconds);
        writeln!(out, "  {after:>10} {outstanding:>14} {:>10}", amount(point.free))?;
    }
    Ok(())
}

fn verdict(release: &Release) -> String {
    let seconds = release.seconds;
    match release.end {
        ReleaseEnd::Returned => format!("all of it came back within {seconds:.1} s"),
        ReleaseEnd::Stayed => {
            format!("not all of it came back: nothing since {seconds:.1} s after its end")
        }
        ReleaseEnd::Overtaken => format!(
            "not all of it was back when the next engine began, {seconds:.1} s after its end: from \
             then on nobody can tell whose memory is whose"
        ),
        ReleaseEnd::Unknown => {
            let why = release.why_unknown.map_or("", |why| why.meaning());
            let since = if why.is_empty() { "" } else { ", since " };
            format!(
                "what it held is unknown{since}{why}; nothing comes back any more since \
                 {seconds:.1} s after its end"
            )
        }
    }
}

type Kind = (&'static str, Option<u64>, Option<u64>);

fn kinds(held: &HeldMemory, outstanding: &HeldMemory) -> [Kind; 4] {
    [
        ("in no counter (driver)", held.unaccounted, outstanding.unaccounted),
        ("shared memory", held.shmem, outstanding.shmem),
        ("of orphans", Some(held.orphans), Some(outstanding.orphans)),
        // It is no loss: it goes when memory is wanted.
        ("page cache", held.page_cache, outstanding.page_cache),
    ]
}

fn amount(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "unknown".to_owned(), bytes_text)
}

fn json(told: &Told, out: &mut impl Write) -> io::Result<()> {
    let Told { at, engine, pid, release } = told;
    let object = json!({
        "engine": engine,
        "pid": pid,
        "time": at,
        "sentence": verdict(release),
        "release": release,
    });
    serde_json::to_writer(&mut *out, &object)?;
    writeln!(out)
}
