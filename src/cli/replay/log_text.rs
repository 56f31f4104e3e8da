//! Feeds a kernel log as text to the policy, as if it were read while it was written.

use std::collections::BTreeMap;
use std::io::BufRead;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::SourceItem;
use super::source::Sink;
use crate::cli::log_input::{LogInput, ReadAs, utc_from};
use crate::config::guard_rails::default_guard_rails;
use crate::config::settings::limits::DEFAULT_INTERVAL;
use crate::config::shipped::shipped_rules;
use crate::model::{
    AssessmentLimits, DecisionId, FORGET_RECEIVED_AFTER, KernelRecord, METRICS, Mode, Moment,
    Observation, Reading, Readings, Schema, SeriesKey, Source,
};
use crate::recording::{
    RecordedRules, RecordedStep, RecordingEntry, RuleText, SegmentBegin, StepResult,
};
use kernel_faults::dmesg::Message;

/// The clock starts this long before the first record, so that its counter is seen to increase.
const LEAD: Duration = Duration::from_secs(1);

/// A stamp that goes back by more begins another boot.
const NEW_BOOT: Duration = Duration::from_secs(10);

/// A step at this interval for this long after a record. Then time jumps.
const PACES: [(Duration, Duration); 4] = [
    (Duration::from_secs(2), DEFAULT_INTERVAL),
    (Duration::from_secs(60), Duration::from_secs(1)),
    (SILENCE, Duration::from_secs(10)),
    (Duration::from_secs(60 * 60), Duration::from_secs(60)),
];

/// The silence after the end of the log.
const SILENCE: Duration = Duration::from_secs(5 * 60);

/// Later times, thousands of years after a boot, are invalid.
const LATEST: Duration = Duration::from_secs(1 << 38);

/// The distance of lines without any time.
const UNTIMED: Duration = Duration::from_millis(1);

const RECORDS_A_STEP: usize = 1024;

pub(super) fn read<R: BufRead>(log: LogInput<R>, name: &str, sink: Sink<'_>) -> anyhow::Result<()> {
    sink(SourceItem::Log)?;
    let mut player = LogPlayer::new(sink);
    let read_as = log.read("umawarden replay", &mut |message| player.message(message))?;
    player.finish()?;
    match read_as {
        ReadAs::Log | ReadAs::Text => Ok(()),
        ReadAs::Bytes => sink(SourceItem::Bytes(name.to_owned())),
    }
}

struct LogPlayer<'s> {
    sink: Sink<'s>,
    /// The current time; `None` before the first record.
    at: Option<Moment>,
    last_position: Duration,
    last_record: Duration,
    records: u64,
    seen: Vec<Observation>,
    unknown: Vec<Readings>,
    is_undated: bool,
    is_of_local_time: bool,
}

impl<'s> LogPlayer<'s> {
    fn new(sink: Sink<'s>) -> Self {
        Self {
            sink,
            at: None,
            last_position: Duration::ZERO,
            last_record: Duration::ZERO,
            records: 0,
            seen: Vec::new(),
            unknown: unknown(),
            is_undated: false,
            is_of_local_time: false,
        }
    }

    fn message(&mut self, message: Message) -> anyhow::Result<()> {
        let position = message.position.unwrap_or(self.last_position + UNTIMED).min(LATEST);
        if self.at.is_some() && position + NEW_BOOT < self.last_position {
            self.quiet_down()?;
            self.at = None;
            let text = "the log's clock goes back: another boot, begun anew".to_owned();
            (self.sink)(SourceItem::Remark(text))?;
        }
        let position = if self.at.is_some() { position.max(self.last_position) } else { position };
        if message.utc.is_none() && !std::mem::replace(&mut self.is_undated, true) {
            let text = "the log has no wall time: the boot is shown as the start of 1970";
            (self.sink)(SourceItem::Remark(text.to_owned()))?;
        }
        if utc_from(&message).is_some() && !std::mem::replace(&mut self.is_of_local_time, true) {
            let text = "the log's times have no zone: interpreted as those of this machine";
            (self.sink)(SourceItem::Remark(text.to_owned()))?;
        }
        let utc = message.utc.unwrap_or_else(|| after_epoch(position));
        let now = Moment { uptime: position.saturating_add(LEAD), utc };
        match self.at {
            None => self.begin(now)?,
            Some(at) if now.uptime.saturating_sub(at.uptime) >= DEFAULT_INTERVAL => {
                self.step(at)?;
                self.pass_time(now.uptime)?;
            }
            Some(_) => {}
        }
        self.at = Some(now);
        (self.last_position, self.last_record) = (position, now.uptime);
        self.records += 1;
        let record = record(self.records, now, message);
        self.seen.push(Observation::KernelRecord(record));
        if self.seen.len() >= RECORDS_A_STEP { self.step(now) } else { Ok(()) }
    }

    fn finish(&mut self) -> anyhow::Result<()> {
        if self.at.is_none() {
            anyhow::bail!("there is nothing to replay in it: it is empty");
        }
        self.quiet_down()
    }

    /// The last step of the log, and the consequences of silence.
    fn quiet_down(&mut self) -> anyhow::Result<()> {
        let Some(at) = self.at else { return Ok(()) };
        self.step(at)?;
        self.pass_time(at.uptime + SILENCE)
    }

    fn begin(&mut self, first: Moment) -> anyhow::Result<()> {
        let utc = first.utc.checked_sub(SignedDuration::from_secs(1)).unwrap_or(first.utc);
        let at = Moment { uptime: first.uptime.saturating_sub(LEAD), utc };
        let file = |source: crate::config::mistake::SourceText| RuleText {
            name: source.name.to_string(),
            text: source.text,
        };
        let rules = RecordedRules {
            mode: Mode::Observe,
            evaluation_interval: DEFAULT_INTERVAL,
            files: shipped_rules().into_iter().map(file).collect(),
            guard_rails: serde_json::to_value(default_guard_rails()).unwrap_or_default(),
            overrides: serde_json::Value::Null,
            assessment: AssessmentLimits::default(),
            forget_received_after: FORGET_RECEIVED_AFTER,
            cluster: None,
        };
        let begin = SegmentBegin::of_process("log", at, DecisionId(1), rules);
        (self.sink)(SourceItem::Entry(Box::new(RecordingEntry::Begin(Box::new(begin)))))?;
        self.step(at)
    }

    /// Steps through silence, before `until`.
    fn pass_time(&mut self, until: Duration) -> anyhow::Result<()> {
        for (reach, pace) in PACES {
            let end = until.min(self.last_record + reach);
            while let Some(at) = self.at
                && at.uptime + pace < end
            {
                let utc = SignedDuration::try_from(pace).ok();
                let utc = utc.and_then(|pace| at.utc.checked_add(pace).ok()).unwrap_or(at.utc);
                let next = Moment { uptime: at.uptime + pace, utc };
                self.at = Some(next);
                self.step(next)?;
            }
        }
        Ok(())
    }

    fn step(&mut self, at: Moment) -> anyhow::Result<()> {
        let mut seen = std::mem::take(&mut self.seen);
        seen.extend(self.unknown.iter().cloned().map(Observation::Readings));
        let step = RecordedStep { at, seen, said: StepResult::default() };
        (self.sink)(SourceItem::Entry(Box::new(RecordingEntry::Step(step))))
    }
}

fn record(number: u64, at: Moment, message: Message) -> KernelRecord {
    let text = match &message.identifier {
        Some(identifier) if !message.from_kernel => format!("{identifier}: {}", message.text),
        _ => message.text,
    };
    let facility = match message.facility {
        _ if message.from_kernel => 0,
        Some(facility) if facility != 0 => facility,
        _ => 1,
    };
    KernelRecord {
        seq: number,
        facility,
        level: 6,
        usec: u64::try_from(at.uptime.as_micros()).unwrap_or(u64::MAX),
        caller: message.caller,
        utc: at.utc,
        text,
        dictionary: String::new(),
    }
}

/// A log without wall time is shown as if the boot were the start of 1970.
fn after_epoch(position: Duration) -> Timestamp {
    let since = SignedDuration::try_from(position).ok();
    since
        .and_then(|since| Timestamp::UNIX_EPOCH.checked_add(since).ok())
        .unwrap_or(Timestamp::UNIX_EPOCH)
}

/// Series that a kernel log does not have: those of sources that measure.
fn unknown() -> Vec<Readings> {
    let mut series: BTreeMap<Source, Vec<SeriesKey>> = BTreeMap::new();
    for metric in METRICS {
        let measured = !matches!(
            metric.source,
            Source::KernelLog
                | Source::Process
                | Source::Journal
                | Source::Daemon
                | Source::BlackBox
        );
        if measured {
            series.entry(metric.source).or_default().push(SeriesKey::new(metric.name, &[]));
        }
    }
    let readings = |(source, series): (Source, Vec<SeriesKey>)| Readings {
        source,
        values: vec![Reading::Failed; series.len()],
        schema: Arc::new(Schema { series }),
        took: Duration::ZERO,
        error: None,
    };
    series.into_iter().map(readings).collect()
}
