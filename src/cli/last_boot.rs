//! `umawarden history --last-boot`: prints the black box.

use std::fmt::Display;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::Exit;
use super::style::{fitted, is_too_wide, stacked};
use super::text::append;
use crate::cli::output::{self, errln};
use crate::journal::black_box::{
    BlackBoxRecord, BootId, EndOfBoot, Folder, Header, LastEvent, PreviousBoot, RecoveredRecords,
    Signal, recover,
};
use crate::model::{
    Moment, ProgramEvent, Reading, as_number, measured_bytes_text, printable, seconds_text,
};

/// For values that the black box does not have.
const OF_THE_JOURNAL: [&str; 5] = ["since", "until", "kind", "rule", "limit"];

/// Arguments for the black box.
#[derive(Debug, clap::Args)]
pub struct LastBootArguments {
    /// The last seconds of the previous boot, from the black box.
    #[arg(long, group = "which_boot", conflicts_with_all = OF_THE_JOURNAL)]
    last_boot: bool,
    /// The same of the boot whose id begins like this.
    #[arg(long, value_name = "ID", group = "which_boot", conflicts_with_all = OF_THE_JOURNAL)]
    boot: Option<String>,
    /// How many seconds of it; 0 for all.
    #[arg(long, value_name = "N", default_value_t = 60, requires = "which_boot")]
    seconds: usize,
    /// Where procfs is mounted; it has the id of this boot.
    // It requires neither of them, as it may come from the environment.
    #[arg(long = "path.procfs", value_name = "FOLDER", default_value = "/proc")]
    procfs: PathBuf,
}

impl LastBootArguments {
    /// Whether the black box is read, and not the journal.
    pub(super) fn is_asked(&self) -> bool {
        self.last_boot || self.boot.is_some()
    }
}

/// Prints a boot.
pub(super) fn execute(
    arguments: &LastBootArguments,
    storage: &Path,
    json: bool,
) -> anyhow::Result<Exit> {
    let folder = Folder::read(storage)?;
    let path = folder.path().display();
    anyhow::ensure!(
        folder.path().is_dir(),
        "there is no black box at {path}: give the daemon's directory with --storage.path (under \
         systemd mostly /var/lib/umawarden); it begins with `umawarden run`, unless \
         recording.black_box is 0"
    );
    for (path, why) in folder.unusable() {
        errln!("umawarden: {} is left out: {why}", path.display());
    }
    let current = current_boot(&arguments.procfs);
    let Some(index) = choose(&folder, arguments.boot.as_deref(), current)? else {
        errln!("The black box in {path} knows of no boot before this one yet.");
        return Ok(Exit::Fine);
    };
    let (path, header) = &folder.files()[index];
    let recovered = recover(path)?;
    let last = recovered.records.last();
    let running = header.boot_id == current && !current.is_empty();
    let end = (!running).then(|| folder.end_of(index, current, last, now()));
    let shown = LastBootView { header, end, recovered: &recovered, seconds: arguments.seconds };
    let mut to = output::stdout();
    let written = if json { shown.as_json(&mut to) } else { shown.as_table(&mut to) };
    written.and_then(|()| to.flush())?;
    Ok(Exit::Fine)
}

fn now() -> Moment {
    let uptime = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(uptime.tv_sec).unwrap_or(0);
    Moment { uptime: Duration::from_secs(seconds), utc: Timestamp::now() }
}

/// Empty if the kernel does not report it. Every boot then counts as a previous one.
fn current_boot(procfs: &Path) -> BootId {
    let id = std::fs::read_to_string(procfs.join("sys/kernel/random/boot_id"));
    BootId::new(id.unwrap_or_default().trim())
}

fn choose(
    folder: &Folder,
    requested: Option<&str>,
    current: BootId,
) -> anyhow::Result<Option<usize>> {
    let files = folder.files();
    let Some(requested) = requested else {
        let ended =
            |(_, header): &(PathBuf, Header)| header.boot_id != current || current.is_empty();
        return Ok(files.iter().rposition(ended));
    };
    let begins = |(_, header): &(PathBuf, Header)| header.boot_id.as_str().starts_with(requested);
    if let Some(index) = files.iter().rposition(begins) {
        return Ok(Some(index));
    }
    let known: Vec<&str> = files.iter().map(|(_, header)| header.boot_id.as_str()).collect();
    anyhow::bail!(
        "the black box in {} has no boot {requested:?}; it has {}",
        folder.path().display(),
        if known.is_empty() { "none".to_owned() } else { known.join(", ") }
    )
}

struct LastBootView<'a> {
    header: &'a Header,
    /// `None`: the boot is running.
    end: Option<PreviousBoot>,
    recovered: &'a RecoveredRecords,
    seconds: usize,
}

impl LastBootView<'_> {
    /// The records of the last seconds.
    fn records(&self) -> &[BlackBoxRecord] {
        let records = &self.recovered.records;
        let (Some(last), 1..) = (records.last(), self.seconds) else { return records };
        let reach = Duration::from_secs(self.seconds as u64);
        let Some(from) = last.at.uptime.checked_sub(reach) else { return records };
        &records[records.partition_point(|record| record.at.uptime <= from)..]
    }

    fn as_table(&self, to: &mut impl Write) -> std::io::Result<()> {
        writeln!(to, "{}", fitted(&self.headline()))?;
        if self.recovered.damaged > 0 {
            writeln!(to, "{} damaged records are left out.", self.recovered.damaged)?;
        }
        let records = self.records();
        let Some(last) = records.last() else { return Ok(()) };
        let is_narrow = is_too_wide(line(&TITLES).len());
        match is_narrow {
            true => writeln!(to)?,
            false => writeln!(to, "\n{}", line(&TITLES))?,
        }
        let mut before: Option<&BlackBoxRecord> = None;
        for record in records {
            let cells = cells(record, before, last);
            match is_narrow {
                true => writeln!(to, "{}", stacked(&TITLES, &cells))?,
                false => writeln!(to, "{}", fitted(line(&cells).trim_end()))?,
            }
            before = Some(record);
        }
        Ok(())
    }

    fn headline(&self) -> String {
        let boot = printable(self.header.boot_id.as_str());
        let Some(last) = self.recovered.records.last() else {
            return format!("Boot {boot}: no record of it is left.");
        };
        let Some(end) = &self.end else {
            return format!("Boot {boot} is this one, and still runs.");
        };
        let at = time(last.at.utc);
        let gap = match end.gap_ms {
            Some(gap) if gap >= 0 => format!("{} before the next boot began", span(gap)),
            Some(gap) => format!(
                "{} after the next boot began, as the wall clock says, which was set in between",
                span(gap)
            ),
            None => "and when the next boot began is not known".to_owned(),
        };
        match end.end {
            EndOfBoot::Clean => {
                format!("Boot {boot} ended in order: umawarden was stopped at {at}, {gap}.")
            }
            EndOfBoot::Unclean => format!(
                "Boot {boot} did not end in order: its last record is of {at}, {gap}. (Where \
                 umawarden itself was killed before that, only this is known.)"
            ),
            EndOfBoot::Unknown => format!(
                "How boot {boot} ended is not known: its last record is of {at}{}, {gap}, and \
                 nothing was recorded after that.",
                if last.closed { ", when umawarden was stopped in order" } else { "" }
            ),
        }
    }

    fn as_json(&self, to: &mut impl Write) -> std::io::Result<()> {
        let last = self.recovered.records.last();
        let mut object = Map::new();
        object.insert("kind".to_owned(), json!("boot"));
        object.insert("boot_id".to_owned(), json!(self.header.boot_id.as_str()));
        let end = self.end.map_or("running", |end| end.end.name());
        object.insert("end".to_owned(), json!(end));
        object.insert("last_record".to_owned(), json!(last.map(|record| time(record.at.utc))));
        let gap = self.end.and_then(|end| end.gap_ms);
        object.insert("gap_seconds".to_owned(), json!(gap.map(|ms| ms as f64 / 1000.0)));
        object.insert("records".to_owned(), json!(self.recovered.records.len()));
        object.insert("damaged_records".to_owned(), json!(self.recovered.damaged));
        serde_json::to_writer(&mut *to, &object)?;
        writeln!(to)?;
        for record in self.records() {
            serde_json::to_writer(&mut *to, &second(record, last.unwrap_or(record)))?;
            writeln!(to)?;
        }
        Ok(())
    }
}

/// Seconds to the last record, by uptime.
fn before_end(record: &BlackBoxRecord, last: &BlackBoxRecord) -> f64 {
    let before = last.at.uptime.saturating_sub(record.at.uptime).as_millis();
    // Avoids -0 and excess digits.
    if before == 0 { 0.0 } else { before as f64 / -1000.0 }
}

const TITLES: [&str; 10] = [
    "second",
    "free",
    "available",
    "reserve",
    "cache",
    "unaccounted",
    "mem some",
    "mem full",
    "io full",
    "remarks",
];

/// The width of each column but the last.
const WIDTHS: [usize; TITLES.len() - 1] = [9, 10, 10, 10, 10, 11, 9, 9, 9];

/// A line of the table.
fn line<T: Display>(cells: &[T; TITLES.len()]) -> String {
    let mut text = String::new();
    for (cell, width) in cells.iter().zip(WIDTHS) {
        append(&mut text, format_args!("{cell:>width$} "));
    }
    append(&mut text, format_args!(" {}", cells[TITLES.len() - 1]));
    text
}

fn cells(
    record: &BlackBoxRecord,
    before: Option<&BlackBoxRecord>,
    last: &BlackBoxRecord,
) -> [String; TITLES.len()] {
    let bytes = |signal| match record.get(signal) {
        Reading::Value(bytes) => measured_bytes_text(bytes),
        absent => word(absent).to_owned(),
    };
    let share = |signal| match record.get(signal) {
        Reading::Value(ratio) => format!("{:.1} %", ratio * 100.0),
        absent => word(absent).to_owned(),
    };
    [
        format!("{:.1} s", before_end(record, last)),
        bytes(Signal::Free),
        bytes(Signal::Available),
        bytes(Signal::Reserve),
        bytes(Signal::PageCache),
        bytes(Signal::Unaccounted),
        share(Signal::MemorySome),
        share(Signal::MemoryFull),
        share(Signal::IoFull),
        printable(&remarks(record, before)).into_owned(),
    ]
}

fn word(absent: Reading<f64>) -> &'static str {
    if absent == Reading::Failed { "failed" } else { "-" }
}

/// The notable values of a second.
fn remarks(record: &BlackBoxRecord, before: Option<&BlackBoxRecord>) -> String {
    let mut remarks = Vec::new();
    if record.missed > 0 {
        remarks.push(format!("{} s before this without a record", record.missed));
    }
    if let Some(age) = record.loop_age.filter(|age| *age >= Duration::from_secs(2)) {
        remarks.push(format!("the loop stalled for {:.1} s", age.as_secs_f64()));
    }
    if let Some(took) = record.write_took.filter(|took| *took >= Duration::from_millis(500)) {
        remarks.push(format!("the disk took {:.1} s before", took.as_secs_f64()));
    }
    let news = record
        .last_event
        .filter(|event| before.is_none_or(|before| before.last_event.as_ref() != Some(event)));
    if let Some(event) = news {
        let mut text = event.kind.as_str().to_owned();
        if !event.detail.is_empty() {
            append(&mut text, format_args!(" ({})", event.detail.as_str()));
        }
        remarks.push(text);
    }
    if record.rules.firing > 0 {
        remarks.push(format!("firing: {}", record.firing.as_str()));
    }
    if record.rules.unknown > 0 {
        remarks.push(format!("{} rules unknown", record.rules.unknown));
    }
    if record.closed {
        remarks.push("umawarden was stopped in order".to_owned());
    }
    remarks.join("; ")
}

#[derive(Serialize)]
struct JsonNumber(#[serde(with = "as_number")] Reading<f64>);

fn second(record: &BlackBoxRecord, last: &BlackBoxRecord) -> Value {
    let seconds = |duration: Option<Duration>| duration.map(|duration| duration.as_secs_f64());
    let firing: Vec<&str> = record.firing.as_str().split_whitespace().collect();
    let mut object = json!({
        "time": time(record.at.utc),
        "kind": "second",
        "seconds_to_end": before_end(record, last),
        "uptime_seconds": record.at.uptime.as_secs_f64(),
        "sequence": record.sequence,
        "closed": record.closed,
        "loop_age_seconds": seconds(record.loop_age),
        "write_seconds": seconds(record.write_took),
        "missed_seconds": record.missed,
    });
    if let Value::Object(object) = &mut object {
        for signal in Signal::ALL {
            object.insert(signal.name().to_owned(), json!(JsonNumber(record.get(*signal))));
        }
        object.insert("rules_firing".to_owned(), json!(record.rules.firing));
        object.insert("rules_pending".to_owned(), json!(record.rules.pending));
        object.insert("rules_unknown".to_owned(), json!(record.rules.unknown));
        object.insert("firing".to_owned(), json!(firing));
        object.insert("last_event".to_owned(), json!(record.last_event.map(event_object)));
    }
    object
}

fn event_object(event: LastEvent) -> Value {
    json!({
        "kind": event.kind.as_str(),
        "time": event.utc.map(time),
        "seq": event.seq,
        "detail": event.detail.as_str(),
    })
}

/// With milliseconds, as everywhere.
fn time(utc: Timestamp) -> String {
    format!("{utc:.3}")
}

/// Milliseconds for people: `13m20s`.
fn span(ms: i64) -> String {
    seconds_text(Duration::from_millis(ms.unsigned_abs()))
}

/// The event in one line.
pub(super) fn event_text(event: &ProgramEvent) -> String {
    let ProgramEvent::UncleanBoot {
        ended_boot_id,
        last_record,
        gap_seconds,
        memory_free_bytes,
        memory_available_bytes,
        memory_unaccounted_bytes,
        last_event,
        firing,
        ..
    } = event
    else {
        return String::new();
    };
    let mut text = format!("boot {ended_boot_id} did not end in order");
    if let Some(last) = last_record {
        append(&mut text, format_args!(", last seen at {}", time(*last)));
    }
    if let Some(gap) = gap_seconds.filter(|gap| *gap >= 0.0) {
        let gap = span((gap * 1000.0) as i64);
        append(&mut text, format_args!(", {gap} before this one began"));
    }
    for (name, bytes) in [
        ("free", memory_free_bytes),
        ("available", memory_available_bytes),
        ("unaccounted", memory_unaccounted_bytes),
    ] {
        if let Some(bytes) = bytes {
            append(&mut text, format_args!("; {name} {}", measured_bytes_text(*bytes)));
        }
    }
    if let Some(last) = last_event {
        append(&mut text, format_args!("; last event {last}"));
    }
    if !firing.is_empty() {
        append(&mut text, format_args!("; firing {}", firing.join(", ")));
    }
    text
}
