//! `umawarden history`.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use jiff::Timestamp;
use promql_rules::did_you_mean;
use serde::Serialize;

use super::json_time::{OutcomeObject, TimedObject};
use super::order_text::order_text;
use super::storage::{StorageArguments, may_be_read};
use super::style::{Screen, StyledRow, Tone};
use super::text::append;
use super::{Exit, engines, last_boot};
use crate::cli::output::{self, errln};
use crate::journal::{JournalEnd, JournalReader, ReadError, TimelineItem, TimelineQuery};
use crate::model::{
    AimCheck, AlertChange, AlertState, Decision, DecisionRecord, EventKind, Evidence, HoldReason,
    Mode, Moment, Outcome, OutcomeResult, ProgramEvent, Reading, counted, duration_text, instant,
    measured_bytes_text,
};

/// Arguments of `umawarden history`.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct HistoryArguments {
    #[command(flatten)]
    storage: StorageArguments,
    /// One JSON object a line.
    #[arg(long)]
    json: bool,
    /// Only what happened from then on: 2h or -2h (ago), 2026-11-21, 2026-11-21T10:00 (UTC),
    /// RFC 3339, 10:00 (the last time it was that, UTC), or seconds since 1970.
    #[arg(long, value_name = "TIME", value_parser = past, allow_hyphen_values = true)]
    since: Option<Timestamp>,
    /// Only what happened before then.
    #[arg(long, value_name = "TIME", value_parser = past, allow_hyphen_values = true)]
    until: Option<Timestamp>,
    /// Only these kinds; may be repeated or given with commas.
    #[arg(long, value_name = "KIND", value_delimiter = ',', value_parser = kinds())]
    kind: Vec<String>,
    /// Only what this rule did: the alert's name, or group/alert.
    #[arg(long, value_name = "RULE")]
    rule: Option<String>,
    /// Only the newest N entries; 0 for all.
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    limit: usize,
    /// Go on with what is recorded from now on, until Ctrl-C.
    #[arg(long, short, conflicts_with_all = ["until", "which_boot"])]
    follow: bool,
    #[command(flatten)]
    last_boot: last_boot::LastBootArguments,
}

/// Between two queries of the journal.
const FOLLOWED_EVERY: Duration = Duration::from_millis(500);

/// Outcomes of one step are on disk within this time.
const SETTLES: Duration = Duration::from_secs(1);

const AFTER_HELP: &str = "\
Kinds: decision, outcome, alert, note, operator (what people ordered); of engines engine_phase, \
engine_stuck, engine_restart, engine_died, engine_release, engine_load; of memory and the machine \
lease, unaccounted_baseline, memory_verdict, reboot_checked, unclean_boot. All others are faults \
in the kernel log.

It only reads, and may be used while the daemon runs, by whoever may read its directory (mode \
0750, of the user that runs the daemon, mostly root). The oldest entry comes first.

Times, of --since and --until too, are UTC. With --json each line has `time`, RFC 3339 with \
milliseconds, and, but for kernel events, `uptime_seconds`, the same instant since the boot; an \
outcome has `took_seconds`. (`at`, `ended` and `took` say the same to the nanosecond.) Kernel \
events have the keys of `umawarden dmesg --json`, where `utc` is the record's own time, and \
boot_id; under --path.kmsg=FILE that is the boot's id, a colon and FILE.

After a crash, --last-boot shows the last seconds of the boot before this one from the black box, \
and says whether that boot ended in order: it did if umawarden was stopped and the next boot began \
within 15 minutes; it did not if the records just stop. Where umawarden was stopped long before, \
that is not known.

Exit codes: 0 fine, also when there is nothing to show; 2 there is no readable journal.

Examples:
  umawarden history --since 2h                    what happened in two hours
  umawarden history --since 2026-11-21T03:00 --until 2026-11-21T04:00
  umawarden history --rule PageCacheEatsReserve   what one rule decided and did
  umawarden history --follow --since 10m          and what happens from now on
  umawarden history --last-boot                   the seconds before a crash
  umawarden history --kind oom_kill,xid --json | jq -r '[.time, .comm] | @tsv'
  umawarden history --kind decision --json | jq -r .reason | sort | uniq -c";

/// Runs the command.
pub fn execute(arguments: &HistoryArguments) -> anyhow::Result<Exit> {
    let dir = arguments.storage.folder()?;
    may_be_read(&dir)?;
    if arguments.last_boot.is_asked() {
        return last_boot::execute(&arguments.last_boot, &dir, arguments.json);
    }
    let reader = JournalReader::open(&dir).map_err(no_journal)?;
    if reader.may_lack_newest() {
        errln!(
            "umawarden: {} is read-only and the journal was not closed: its newest entries may be \
             missing here; copy the directory to a writable file system to see them",
            dir.display()
        );
    }
    let limit = (arguments.limit > 0).then_some(arguments.limit);
    let query = TimelineQuery {
        since: arguments.since,
        until: arguments.until,
        kinds: arguments.kind.clone(),
        rule: arguments.rule.clone(),
        limit,
    };
    // Before the entries are shown, so that none is left out.
    let end =
        arguments.follow.then(|| reader.end(Timestamp::MAX).map_err(no_journal)).transpose()?;
    let shown = match show(&reader, &query, arguments.json)? {
        HistoryOutput::All(count) => count,
        HistoryOutput::ReaderLeft => return Ok(Exit::Fine),
    };
    if shown == 0 {
        let all = TimelineQuery { limit, ..TimelineQuery::default() };
        let which = if query == all { "" } else { " that matches" };
        errln!("The journal in {} holds nothing{which} yet.", dir.display());
        if let Some(rule) = &arguments.rule {
            warn_if_unknown(&reader, rule)?;
        }
    } else if Some(shown) == limit {
        let newest = if shown == 1 { "entry".to_owned() } else { format!("{shown} entries") };
        errln!("Shown: the newest {newest}; --limit 0 shows all.");
    }
    match end {
        Some(end) => follow(reader, end, (&dir, &query), arguments.json),
        None => Ok(Exit::Fine),
    }
}

/// Shows what is recorded after that, until the reader of the output is gone or a signal ends it.
/// The journal is opened anew where it was replaced.
fn follow(
    mut reader: JournalReader,
    mut end: JournalEnd,
    (dir, query): (&Path, &TimelineQuery),
    json: bool,
) -> anyhow::Result<Exit> {
    let query = TimelineQuery { limit: None, ..query.clone() };
    loop {
        std::thread::sleep(FOLLOWED_EVERY);
        if reader.is_replaced() {
            // While there is none, a daemon may be about to make it.
            match JournalReader::open(dir) {
                Ok(new) => (reader, end) = (new, JournalEnd::default()),
                Err(ReadError::Missing(_)) => continue,
                Err(error) => return Err(no_journal(error)),
            }
        }
        let mut to = output::stdout();
        let mut printer = Printer::new(json);
        let settled = Timestamp::now().saturating_sub(SETTLES).unwrap_or(Timestamp::MIN);
        let newer = reader
            .newer(&query, (&mut end, settled), |time, item| printer.print(&mut to, time, &item));
        newer.map_err(no_journal)?;
        printer.end()?;
        to.flush()?;
        if output::is_reader_gone() {
            return Ok(Exit::Fine);
        }
    }
}

/// An unknown rule would otherwise look like a quiet one.
fn warn_if_unknown(reader: &JournalReader, rule: &str) -> anyhow::Result<()> {
    let known = reader.rules().map_err(no_journal)?;
    let alert_of = |id: &'_ str| id.split_once('/').map_or(0, |(group, _)| group.len() + 1);
    let names = || known.iter().flat_map(|id| [id.as_str(), &id[alert_of(id)..]]);
    if names().any(|name| name == rule) {
        return Ok(());
    }
    let hint = did_you_mean(rule, names()).unwrap_or_else(|| match known.is_empty() {
        true => "no rule has alerted or decided yet".to_owned(),
        false => format!("rules in it: {}", known.join(", ")),
    });
    errln!("No rule \"{rule}\" has alerted or decided in it: {hint}");
    Ok(())
}

pub(super) fn no_journal(error: ReadError) -> anyhow::Error {
    match &error {
        ReadError::Missing(_) => anyhow::anyhow!(
            "{error}: give the daemon's directory with --storage.path (under systemd mostly \
             /var/lib/umawarden), or start `umawarden run` to begin a journal"
        ),
        ReadError::NotAJournal(_) => {
            anyhow::anyhow!("{error}: give the daemon's directory with --storage.path")
        }
        ReadError::Newer(_) | ReadError::NoFile { .. } => error.into(),
        ReadError::Failed { source, .. } => anyhow::anyhow!(
            "{error}: {source} (check the permissions of the file and its directory, and the disk)"
        ),
    }
}

fn kinds() -> PossibleValuesParser {
    PossibleValuesParser::new(TimelineItem::KINDS.into_iter().chain(EventKind::KINDS))
}

/// An instant of the past, for a flag.
pub(super) fn past(text: &str) -> Result<Timestamp, String> {
    instant(text, Timestamp::now())
}

enum HistoryOutput {
    All(usize),
    /// The reader of our output (like `head`) has closed it.
    ReaderLeft,
}

/// Prints entries.
struct Printer {
    json: bool,
    screen: Screen,
    count: usize,
    unreadable: u64,
    written: std::io::Result<()>,
}

impl Printer {
    fn new(json: bool) -> Self {
        Self { json, screen: Screen::of_output(), count: 0, unreadable: 0, written: Ok(()) }
    }

    /// Returns whether the output takes more.
    fn print(&mut self, to: &mut impl Write, time: Timestamp, item: &TimelineItem) -> bool {
        self.count += 1;
        if *item == TimelineItem::Unreadable {
            self.unreadable += 1;
            return true;
        }
        self.written = if self.json {
            write_json(to, time, item)
        } else {
            writeln!(to, "{}", row(time, item).shown(self.screen))
        };
        self.written.is_ok() && !output::is_reader_gone()
    }

    /// Reports what could not be shown. Returns the number of entries.
    fn end(self) -> std::io::Result<usize> {
        self.written?;
        if self.unreadable > 0 && !output::is_reader_gone() {
            errln!(
                "umawarden: not shown: {} of another version of umawarden's",
                counted(self.unreadable, "line")
            );
        }
        Ok(self.count)
    }
}

fn show(
    reader: &JournalReader,
    query: &TimelineQuery,
    json: bool,
) -> anyhow::Result<HistoryOutput> {
    let mut to = output::stdout();
    let mut printer = Printer::new(json);
    let read = reader.timeline(query, |time, item| printer.print(&mut to, time, &item));
    read.map_err(no_journal)?;
    to.flush()?;
    let count = printer.end()?;
    Ok(if output::is_reader_gone() { HistoryOutput::ReaderLeft } else { HistoryOutput::All(count) })
}

fn write_json(to: &mut impl Write, time: Timestamp, item: &TimelineItem) -> std::io::Result<()> {
    fn object<T: Serialize>(
        to: &mut impl Write,
        time: Timestamp,
        (kind, at): (&'static str, Moment),
        entry: &T,
    ) -> std::io::Result<()> {
        Ok(serde_json::to_writer(to, &TimedObject::new(time, entry).of_kind(kind).at(at))?)
    }
    match item {
        TimelineItem::Event(stored) => {
            let object = TimedObject::new(time, &stored.event).in_boot(&stored.boot_id);
            serde_json::to_writer(&mut *to, &object)?;
        }
        TimelineItem::Decision(decision) => object(to, time, ("decision", decision.at), decision)?,
        TimelineItem::Outcome { outcome, decision, aim_check } => {
            let rule = decision.as_ref().map(|decision| &decision.rule);
            let entry = OutcomeObject::new(rule, outcome, aim_check.as_ref());
            object(to, time, ("outcome", outcome.ended), &entry)?;
        }
        TimelineItem::Alert(change) => object(to, time, ("alert", change.at), change)?,
        TimelineItem::Note(note) => object(to, time, ("note", note.at), note)?,
        TimelineItem::Operator(command) => object(to, time, ("operator", command.at), command)?,
        TimelineItem::Unreadable => return Ok(()),
    }
    writeln!(to)
}

/// An entry for people.
fn row(time: Timestamp, item: &TimelineItem) -> StyledRow {
    let (kind, text) = match item {
        TimelineItem::Event(stored) => {
            let mut text = event_text(&stored.event.kind);
            if stored.event.is_claimed() {
                text.push_str(" (only syslog(2) shows it: it may be forged)");
            }
            (stored.event.kind.kind(), text)
        }
        TimelineItem::Decision(decision) => ("decision", decision_text(decision)),
        TimelineItem::Outcome { outcome, decision, aim_check } => {
            ("outcome", outcome_text(outcome, decision.as_ref(), aim_check.as_ref()))
        }
        TimelineItem::Alert(change) => ("alert", alert_text(change)),
        TimelineItem::Note(note) => ("note", note.text.clone()),
        TimelineItem::Operator(command) => ("operator", order_text(command)),
        TimelineItem::Unreadable => ("unreadable", String::new()),
    };
    StyledRow::new(tone(item), &format!("{time:.3}  {kind:<18}  "), &text)
}

/// Faults and failures stand out, then what was done and what began.
fn tone(item: &TimelineItem) -> Tone {
    match item {
        TimelineItem::Event(stored) => match &stored.event.kind {
            EventKind::Kernel(_) => Tone::Bad,
            EventKind::Program(ProgramEvent::EngineDied { report }) if report.is_failure => {
                Tone::Bad
            }
            EventKind::Program(ProgramEvent::EngineStuck { stuck: true, .. })
            | EventKind::Program(ProgramEvent::EngineRankLost { .. }) => Tone::Bad,
            EventKind::Program(_) => Tone::Plain,
        },
        TimelineItem::Alert(change) if change.to == AlertState::Firing => Tone::Warn,
        TimelineItem::Decision(decision) if decision.is_act() => Tone::Warn,
        TimelineItem::Outcome { outcome, .. } => match &outcome.result {
            OutcomeResult::Done => Tone::Good,
            OutcomeResult::Skipped => Tone::Plain,
            OutcomeResult::NotDone(_) | OutcomeResult::Failed(_) | OutcomeResult::TimedOut => {
                Tone::Bad
            }
        },
        TimelineItem::Operator(command) if command.refused.is_some() => Tone::Bad,
        TimelineItem::Operator(_) => Tone::Strong,
        TimelineItem::Alert(_) | TimelineItem::Decision(_) | TimelineItem::Note(_) => Tone::Plain,
        TimelineItem::Unreadable => Tone::Faint,
    }
}

pub(super) fn event_text(event: &EventKind) -> String {
    match event {
        EventKind::Kernel(event) => event.to_string(),
        EventKind::Program(event) => engines::event_text(event),
    }
}

pub(super) fn decision_text(decision: &DecisionRecord) -> String {
    let what = match (decision.decision, decision.mode) {
        (Decision::Act, Mode::Enforce) => decision.deed(),
        (Decision::Act, Mode::Observe) => format!("would {}", decision.deed()),
        (Decision::Hold(HoldReason::NotEnforced), _) => decision.unenforced().unwrap_or_default(),
        (Decision::Hold(HoldReason::Announced), _) => decision.announced().unwrap_or_default(),
        (Decision::Hold(reason), _) => format!("holds {} ({})", decision.deed(), reason.name()),
    };
    let because: Vec<String> = decision.because.iter().map(evidence_text).collect();
    let because =
        if because.is_empty() { String::new() } else { format!(", as {}", because.join(", ")) };
    format!("#{} {}: {what}{because}", decision.id, decision.rule)
}

pub(super) fn outcome_text(
    outcome: &Outcome,
    decision: Option<&DecisionRecord>,
    aim_check: Option<&AimCheck>,
) -> String {
    let mut text = format!("#{}", outcome.decision);
    if let Some(decision) = decision {
        append(&mut text, format_args!(" {}", decision.rule));
    }
    let took = duration_text(outcome.took);
    let action = &outcome.action;
    match &outcome.result {
        OutcomeResult::Done if outcome.took.as_millis() == 0 => {
            append(&mut text, format_args!(": {action} done"));
        }
        OutcomeResult::Done => append(&mut text, format_args!(": {action} done in {took}")),
        OutcomeResult::Skipped => append(&mut text, format_args!(": {action} skipped (observe)")),
        OutcomeResult::NotDone(why) => {
            append(&mut text, format_args!(": {action} not done: {why}"));
        }
        OutcomeResult::Failed(why) => append(&mut text, format_args!(": {action} failed: {why}")),
        OutcomeResult::TimedOut => append(&mut text, format_args!(": {action} not over in {took}")),
    }
    if let Some(effect) = &outcome.effect {
        append(&mut text, format_args!(": {effect}"));
    }
    let Some(aim_check) = aim_check else { return text };
    for after in &aim_check.after {
        let before = aim_check.before.iter().find(|before| before.series == after.series);
        let before = before.map_or("?".to_owned(), value_text);
        append(&mut text, format_args!("; {} {before} → {}", after.series, value_text(after)));
    }
    text.push_str("; ");
    text.push_str(aim_text(aim_check));
    text
}

/// A remedy without an aim of its own has the end of the rule's condition as its aim.
pub(super) fn aim_text(aim_check: &AimCheck) -> &'static str {
    match (aim_check.aim_met, aim_check.has_aim) {
        (Some(true), true) => "aim met",
        (Some(false), true) => "aim missed",
        (None, true) => "whether the aim is met is unknown",
        (Some(true), false) => "the rule's condition has ended",
        (Some(false), false) => "the rule's condition still holds",
        (None, false) => "whether the rule's condition still holds is unknown",
    }
}

pub(super) fn alert_text(change: &AlertChange) -> String {
    let mut text = format!("{}: {} → {}", change.rule, change.from.name(), change.to.name());
    if let Reading::Value(value) = change.value {
        append(&mut text, format_args!(", value {value}"));
    }
    for (name, value) in &change.labels {
        append(&mut text, format_args!(" {name}={value:?}"));
    }
    text
}

fn evidence_text(evidence: &Evidence) -> String {
    format!("{} = {}", evidence.series, value_text(evidence))
}

/// A value of a series: bytes as sizes.
pub(super) fn number_text(series: &str, value: f64) -> String {
    let name = series.split('{').next().unwrap_or_default();
    if name.ends_with("_bytes") { measured_bytes_text(value) } else { format!("{value}") }
}

pub(super) fn value_text(evidence: &Evidence) -> String {
    match evidence.value {
        Reading::Value(value) => number_text(&evidence.series, value),
        Reading::Unsupported => "unsupported".to_owned(),
        Reading::Failed => "unknown".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_for_people() {
        for (bytes, text) in [
            (0.0, "0 B"),
            (1023.0, "1023 B"),
            (1536.0, "1.5 KiB"),
            (6.5 * 1024.0 * 1024.0 * 1024.0, "6.5 GiB"),
            (-2048.0, "-2.0 KiB"),
            (f64::INFINITY, "inf B"),
            (1e15, "909.5 TiB"),
        ] {
            assert_eq!(measured_bytes_text(bytes), text);
        }
    }
}
