//! From raw records to observations: the resume position, lost records, and the time of each
//! record.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::{ReadClock, ResumeFrom};
use crate::model::{KernelRecord, Observation, SYSLOG_SEQ_BASE};
use kernel_faults::kmsg::{Record, parse_record};

/// Sequence numbers per microsecond of the syslog(2) ring: a line gets `SYSLOG_SEQ_BASE +
/// microseconds since boot * 1000 + n`, where `n` counts the lines of a microsecond. A line gets
/// the same number after a restart within the boot. The number fits a signed 64-bit integer.
pub(super) const SYSLOG_SEQ_PER_USEC: u64 = 1000;

/// A writer that copies the ring into a FIFO starts with its oldest record at every start; records
/// of an earlier run are dropped. Such a writer replays them fast and without a pause. One that
/// pauses this long, or takes longer, has new numbers.
const REPEATS_PAUSE: Duration = Duration::from_secs(5);
const REPEATS_TAKE: Duration = Duration::from_secs(60);

/// Converts raw records to observations.
#[derive(Debug)]
pub(super) struct Intake {
    /// Older records are dropped until a record with this number or a later one arrives.
    resuming_from: Option<u64>,
    /// The last position of an earlier run in the syslog ring: records up to this time are dropped.
    resuming_after_usec: Option<u64>,
    /// The sequence number of the next record if no record is lost.
    next_seq: Option<u64>,
    /// Whether the kernel assigns the numbers. If so, an unparsable record uses up a number, and no
    /// number repeats.
    is_device: bool,
    /// Records dropped as handled by an earlier run, until the first new record.
    dropped: Option<DroppedRecords>,
    /// Whether records are older than the start of this reader.
    backlog: bool,
}

/// Records with numbers below the resume position; times on the uptime clock.
#[derive(Clone, Copy, Debug)]
struct DroppedRecords {
    records: u64,
    highest: u64,
    first: Duration,
    last: Duration,
}

impl Intake {
    pub(super) fn new(resume: Option<ResumeFrom>) -> Self {
        Self {
            resuming_from: resume.map(|resume| resume.seq),
            resuming_after_usec: None,
            next_seq: None,
            is_device: false,
            dropped: None,
            backlog: true,
        }
    }

    /// Begins a log with sequence numbers.
    pub(super) fn begin(&mut self, is_device: bool) {
        self.is_device = is_device;
        self.dropped = None;
        self.backlog = true;
        if let Some(key) = self.resuming_from.and_then(|seq| seq.checked_sub(SYSLOG_SEQ_BASE)) {
            self.resuming_from = None;
            self.resuming_after_usec = Some(key / SYSLOG_SEQ_PER_USEC);
        }
    }

    /// Begins another log: all its records are new, whatever their numbers.
    pub(super) fn restart(&mut self) {
        self.resuming_from = None;
        self.resuming_after_usec = None;
        self.next_seq = None;
        self.dropped = None;
    }

    /// Called at the end of a file. Returns whether the file differs from the one that an earlier
    /// run read, since it ends before that run's position. Later additions to a file that was read
    /// to its end are new, whatever their numbers.
    pub(super) fn is_another_log(&mut self) -> bool {
        let Some(dropped) = self.dropped.take() else { return false };
        let wanted = self.resuming_from.take();
        wanted.is_some_and(|wanted| dropped.highest.saturating_add(1) < wanted)
    }

    /// The reader failed. The next reader continues at the same position.
    pub(super) fn interrupted(&mut self) {
        self.resuming_from = self.resume_point();
        self.next_seq = None;
    }

    /// The first sequence number that is still wanted, if known.
    pub(super) fn resume_point(&self) -> Option<u64> {
        self.resuming_from.or(self.next_seq)
    }

    pub(super) fn backlog_ended(&mut self) {
        self.backlog = false;
    }

    /// Adds a record with its continuation lines.
    pub(super) fn take(&mut self, raw: &[u8], clock: &ReadClock, out: &mut Vec<Observation>) {
        match parse_record(raw) {
            // The limit also keeps the number after it out of the reserved range.
            Ok(record) if record.seq.saturating_add(1) < SYSLOG_SEQ_BASE => {
                self.accept(record, clock, out)
            }
            _ => self.malformed(out),
        }
    }

    /// Counts an unparsable record.
    pub(super) fn malformed(&mut self, out: &mut Vec<Observation>) {
        if self.is_device {
            self.next_seq = self.next_seq.map(|seq| seq + 1);
        }
        out.push(Observation::KernelRecordMalformed);
    }

    /// Adds a record with a number of this program, or `None` for an unparsable line.
    pub(super) fn take_unnumbered(
        &mut self,
        seq: u64,
        record: Option<KernelRecord>,
        out: &mut Vec<Observation>,
    ) {
        self.resuming_from = None;
        self.next_seq = Some(seq.saturating_add(1));
        out.push(record.map_or(Observation::KernelRecordMalformed, Observation::KernelRecord));
    }

    fn accept(&mut self, record: Record<'_>, clock: &ReadClock, out: &mut Vec<Observation>) {
        let seq = record.seq;
        let next = self.next_seq.replace(seq.saturating_add(1));
        if self.was_handled(seq, clock.at.uptime, out)
            || self.resuming_after_usec.is_some_and(|usec| record.usec <= usec)
        {
            return;
        }
        self.resuming_after_usec = None;
        self.dropped = None;
        let due = self.resuming_from.take().max(next).unwrap_or(seq);
        // A number below the expected one is no loss: files and FIFOs may hold any order.
        if let Some(lost @ 1..) = seq.checked_sub(due) {
            out.push(Observation::KernelRecordsLost(lost));
        }
        let utc = if self.backlog { time_of(record.usec, clock) } else { clock.at.utc };
        out.push(Observation::KernelRecord(KernelRecord {
            seq,
            facility: record.facility,
            level: record.level,
            usec: record.usec,
            caller: record.caller.map(str::to_owned),
            utc,
            text: record.text.into_owned(),
            dictionary: record.dictionary,
        }));
    }

    /// Whether an earlier run has handled the record of this number.
    fn was_handled(&mut self, seq: u64, now: Duration, out: &mut Vec<Observation>) -> bool {
        if self.resuming_from.is_none_or(|wanted| seq >= wanted) {
            return false;
        }
        let mut dropped = self.dropped.unwrap_or(DroppedRecords {
            records: 0,
            highest: seq,
            first: now,
            last: now,
        });
        let counts_anew = now.saturating_sub(dropped.last) >= REPEATS_PAUSE
            || now.saturating_sub(dropped.first) >= REPEATS_TAKE;
        if counts_anew && !self.is_device {
            let records = dropped.records;
            tracing::warn!(records, seq, "kernel log renumbered by its writer, records lost");
            out.push(Observation::KernelRecordsLost(records));
            self.restart();
            self.next_seq = Some(seq.saturating_add(1));
            return false;
        }
        dropped.records += 1;
        dropped.highest = dropped.highest.max(seq);
        dropped.last = now;
        self.dropped = Some(dropped);
        true
    }
}

/// The wall time of a record that the kernel stamped `usec` microseconds after boot, from the
/// present offset between the clocks. It is never in the future.
pub(super) fn time_of(usec: u64, clock: &ReadClock) -> Timestamp {
    let now = i64::try_from(clock.monotonic.as_micros()).unwrap_or(i64::MAX);
    let then = i64::try_from(usec).unwrap_or(i64::MAX);
    let ago = SignedDuration::from_micros(now.saturating_sub(then).max(0));
    clock.at.utc.checked_sub(ago).unwrap_or(clock.at.utc)
}
