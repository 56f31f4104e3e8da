//! From raw records to observations: where to begin, what was lost, and when it was.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::{ReadClock, ResumeFrom};
use crate::model::{KernelRecord, Observation, SYSLOG_SEQ_BASE};
use kernel_faults::kmsg::{Record, parse_record};

/// Numbers per microsecond of the syslog(2) ring: its lines bear
/// `SYSLOG_SEQ_BASE + microseconds since boot * 1000 + n`, where `n` counts the lines that share a
/// microsecond. The same line gets the same number after a restart within the boot, and the number
/// fits a signed 64-bit integer.
pub(super) const SYSLOG_SEQ_PER_USEC: u64 = 1000;

/// Whoever sends the ring into a FIFO begins with its oldest record at every start, and what an
/// earlier run has handled is dropped. He does not pause before he is past that, and is past it
/// soon: one who pauses for so long, or needs longer, counts anew.
const REPEATS_PAUSE: Duration = Duration::from_secs(5);
const REPEATS_TAKE: Duration = Duration::from_secs(60);

/// What stands between the raw record and the observation.
#[derive(Debug)]
pub(super) struct Intake {
    /// Until a record from here on has come, older ones are dropped.
    resuming_from: Option<u64>,
    /// Where the last run read the syslog ring: records up to this time are dropped.
    resuming_after_usec: Option<u64>,
    /// The sequence number that the next record bears if nothing is lost.
    next_seq: Option<u64>,
    /// Whether the kernel itself numbers: then a record that cannot be parsed has used up a number,
    /// and none comes twice.
    is_device: bool,
    /// What was dropped as handled by an earlier run, until the first record that was not.
    dropped: Option<Dropped>,
    /// Whether records are from before we began to read.
    backlog: bool,
}

/// Records that bear numbers from before the place to resume from; times on the uptime clock.
#[derive(Clone, Copy, Debug)]
struct Dropped {
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

    /// Begins with a log that has sequence numbers.
    pub(super) fn begin(&mut self, is_device: bool) {
        self.is_device = is_device;
        self.dropped = None;
        self.backlog = true;
        if let Some(key) = self.resuming_from.and_then(|seq| seq.checked_sub(SYSLOG_SEQ_BASE)) {
            self.resuming_from = None;
            self.resuming_after_usec = Some(key / SYSLOG_SEQ_PER_USEC);
        }
    }

    /// The log is another one now: what it holds is new, whatever its numbers.
    pub(super) fn begin_anew(&mut self) {
        self.resuming_from = None;
        self.resuming_after_usec = None;
        self.next_seq = None;
        self.dropped = None;
    }

    /// At the end of a file: whether it cannot be the one that an earlier run has read, since it
    /// ends before the place where that run was. What is added to a file that has been read to its
    /// end is new, whatever its numbers.
    pub(super) fn is_another_log(&mut self) -> bool {
        let Some(dropped) = self.dropped.take() else { return false };
        let wanted = self.resuming_from.take();
        wanted.is_some_and(|wanted| dropped.highest.saturating_add(1) < wanted)
    }

    /// The reader broke off; the next one goes on from the same place.
    pub(super) fn interrupted(&mut self) {
        self.resuming_from = self.resume_point();
        self.next_seq = None;
    }

    /// The first sequence number that is still wanted, if anything is known about it.
    pub(super) fn resume_point(&self) -> Option<u64> {
        self.resuming_from.or(self.next_seq)
    }

    pub(super) fn backlog_ended(&mut self) {
        self.backlog = false;
    }

    /// Takes one record with its continuation lines.
    pub(super) fn take(&mut self, raw: &[u8], clock: &ReadClock, out: &mut Vec<Observation>) {
        match parse_record(raw) {
            // So that the number after it is none of ours either.
            Ok(record) if record.seq.saturating_add(1) < SYSLOG_SEQ_BASE => {
                self.place(record, clock, out)
            }
            _ => self.malformed(out),
        }
    }

    /// Counts a record that cannot be read.
    pub(super) fn malformed(&mut self, out: &mut Vec<Observation>) {
        if self.is_device {
            self.next_seq = self.next_seq.map(|seq| seq + 1);
        }
        out.push(Observation::KernelRecordMalformed);
    }

    /// Takes a record that bears a number of our own, or `None` for a line that cannot be read.
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

    fn place(&mut self, record: Record<'_>, clock: &ReadClock, out: &mut Vec<Observation>) {
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
        // A number from before the one due is no loss: files and FIFOs may hold anything.
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

    /// Whether an earlier run has handled the record of that number.
    fn was_handled(&mut self, seq: u64, now: Duration, out: &mut Vec<Observation>) -> bool {
        if self.resuming_from.is_none_or(|wanted| seq >= wanted) {
            return false;
        }
        let mut dropped =
            self.dropped.unwrap_or(Dropped { records: 0, highest: seq, first: now, last: now });
        let counts_anew = now.saturating_sub(dropped.last) >= REPEATS_PAUSE
            || now.saturating_sub(dropped.first) >= REPEATS_TAKE;
        if counts_anew && !self.is_device {
            let records = dropped.records;
            tracing::warn!(
                records,
                seq,
                "dropped as handled before the start, but whoever writes them counts anew: lost"
            );
            out.push(Observation::KernelRecordsLost(records));
            self.begin_anew();
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

/// The wall time of a record that the kernel stamped `usec` microseconds after boot, by the offset
/// between the clocks now; never in the future.
pub(super) fn time_of(usec: u64, clock: &ReadClock) -> Timestamp {
    let now = i64::try_from(clock.monotonic.as_micros()).unwrap_or(i64::MAX);
    let then = i64::try_from(usec).unwrap_or(i64::MAX);
    let ago = SignedDuration::from_micros(now.saturating_sub(then).max(0));
    clock.at.utc.checked_sub(ago).unwrap_or(clock.at.utc)
}
