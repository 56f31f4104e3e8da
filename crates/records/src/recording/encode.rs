//! Encodes entries.

use std::sync::Arc;

use super::columns::Columns;
use super::entry::{RecordedStep, RecordingEntry, SegmentBegin};
use super::wire::{put_bytes, put_number, put_signed};
use super::{MAX_COLUMNS, MAX_OBSERVATIONS, MAX_VALUES_A_STEP};
use crate::model::{
    KernelRecord, Moment, Observation, Reading, Readings, Schema, SeriesKey, Source,
};

pub(super) const BEGIN: u8 = 1;
pub(super) const STEP: u8 = 2;
pub(super) const RELOAD: u8 = 3;
pub(super) const GAP: u8 = 4;

pub(super) const RECORD: u8 = 1;
pub(super) const RECORDS_LOST: u8 = 2;
pub(super) const RECORD_MALFORMED: u8 = 3;
pub(super) const READINGS: u8 = 4;
pub(super) const OUTCOME: u8 = 5;
pub(super) const SAMPLE: u8 = 6;
pub(super) const OPERATOR: u8 = 7;
pub(super) const PAUSE: u8 = 8;
pub(super) const PAST: u8 = 9;
pub(super) const EVENT: u8 = 10;
pub(super) const ENGINES: u8 = 11;
pub(super) const ENGINE_HEALTH: u8 = 12;
pub(super) const HELD: u8 = 13;
pub(super) const GPU: u8 = 14;
pub(super) const HOLDERS: u8 = 15;
pub(super) const LOGGED_IN: u8 = 16;
pub(super) const RECEIVED_ALERTS: u8 = 17;
pub(super) const CLUSTER: u8 = 18;
pub(super) const LEASES: u8 = 19;
pub(super) const LOAD_READING: u8 = 20;

pub(super) const SAMPLE_UNSUPPORTED: u8 = 0;
pub(super) const SAMPLE_FAILED: u8 = 1;
pub(super) const SAMPLE_VALUE: u8 = 2;

/// The state of an encoder within a segment.
#[derive(Debug, Default)]
pub(super) struct Encoder {
    last: Option<Moment>,
    schemas: Vec<(Source, Arc<Schema>, Columns)>,
    columns: usize,
    /// Index in `schemas` of the last schema of each source.
    current: [Option<usize>; Source::ALL.len()],
}

/// An entry that does not fit into the segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EncodeRefusal {
    /// A new segment is needed.
    Full,
    /// No segment has.
    TooLarge,
}

impl Encoder {
    /// Appends an entry; a refused entry changes nothing.
    pub(super) fn entry(
        &mut self,
        entry: &RecordingEntry,
        out: &mut Vec<u8>,
    ) -> Result<(), EncodeRefusal> {
        match entry {
            RecordingEntry::Begin(begin) => self.begin(begin, out),
            RecordingEntry::Step(step) => self.step(step, out)?,
            RecordingEntry::Reload { at, rules, ended } => {
                out.push(RELOAD);
                self.moment(*at, out);
                put_json(&(rules, ended), out);
            }
            RecordingEntry::Gap { steps } => {
                out.push(GAP);
                put_number(out, *steps);
            }
        }
        Ok(())
    }

    fn begin(&mut self, begin: &SegmentBegin, out: &mut Vec<u8>) {
        out.push(BEGIN);
        put_json(begin, out);
        self.last = None;
    }

    fn step(&mut self, step: &RecordedStep, out: &mut Vec<u8>) -> Result<(), EncodeRefusal> {
        let fresh = self.check(step)?;
        if self.columns + fresh > MAX_COLUMNS {
            let alone = self.schemas.is_empty();
            return Err(if alone { EncodeRefusal::TooLarge } else { EncodeRefusal::Full });
        }
        out.push(STEP);
        self.moment(step.at, out);
        put_number(out, step.seen.len() as u64);
        for observation in &step.seen {
            self.observation(step.at, observation, out);
        }
        if step.said.is_empty() {
            put_bytes(out, b"");
        } else {
            put_json(&step.said, out);
        }
        Ok(())
    }

    /// Whether a step is within bounds; the number of columns that it may add.
    fn check(&self, step: &RecordedStep) -> Result<usize, EncodeRefusal> {
        let (mut values, mut fresh) = (0, 0);
        for observation in &step.seen {
            match observation {
                Observation::Readings(readings) => {
                    if readings.values.len() != readings.schema.series.len() {
                        return Err(EncodeRefusal::TooLarge);
                    }
                    values += readings.values.len();
                    if self.known(readings).is_none() {
                        fresh += readings.values.len().max(1);
                    }
                }
                Observation::Cluster(readings) => values += readings.values(),
                _ => values += 1,
            }
        }
        let fits = values <= MAX_VALUES_A_STEP && step.seen.len() <= MAX_OBSERVATIONS;
        if fits { Ok(fresh) } else { Err(EncodeRefusal::TooLarge) }
    }

    fn moment(&mut self, at: Moment, out: &mut Vec<u8>) {
        let (uptime, utc) = difference(self.last, at);
        put_signed(out, uptime);
        put_signed(out, utc);
        self.last = Some(at);
    }

    fn observation(&mut self, at: Moment, observation: &Observation, out: &mut Vec<u8>) {
        match observation {
            Observation::KernelRecord(record) => {
                out.push(RECORD);
                put_record(at, record, out);
            }
            Observation::KernelRecordsLost(lost) => {
                out.push(RECORDS_LOST);
                put_number(out, *lost);
            }
            Observation::KernelRecordMalformed => out.push(RECORD_MALFORMED),
            Observation::Readings(readings) => {
                out.push(READINGS);
                self.readings(readings, out);
            }
            Observation::Sample { series, value } => {
                out.push(SAMPLE);
                put_key(series, out);
                match value {
                    Reading::Unsupported => out.push(SAMPLE_UNSUPPORTED),
                    Reading::Failed => out.push(SAMPLE_FAILED),
                    Reading::Value(value) => {
                        out.push(SAMPLE_VALUE);
                        out.extend_from_slice(&value.to_bits().to_le_bytes());
                    }
                }
            }
            Observation::Outcome(outcome) => {
                out.push(OUTCOME);
                put_json(outcome, out);
            }
            Observation::Operator(command) => put_tagged(OPERATOR, command, out),
            Observation::Event(event) => put_tagged(EVENT, event, out),
            Observation::Pause(pause) => put_tagged(PAUSE, pause, out),
            Observation::Past(past) => put_tagged(PAST, past, out),
            Observation::Engines(engines) => put_tagged(ENGINES, engines, out),
            Observation::EngineHealth(health) => put_tagged(ENGINE_HEALTH, health, out),
            Observation::Restarts(held) => put_tagged(HELD, held, out),
            Observation::Gpu(gpu) => put_tagged(GPU, gpu, out),
            Observation::Holders(holders) => put_tagged(HOLDERS, holders, out),
            Observation::LoggedIn(logged_in) => put_tagged(LOGGED_IN, logged_in, out),
            Observation::ReceivedAlerts(post) => put_tagged(RECEIVED_ALERTS, post, out),
            Observation::Cluster(readings) => put_tagged(CLUSTER, readings, out),
            Observation::Leases(readings) => put_tagged(LEASES, readings, out),
            Observation::LoadReading(tracked) => put_tagged(LOAD_READING, tracked, out),
        }
    }

    fn known(&self, readings: &Readings) -> Option<usize> {
        let current = self.current.get(source_number(readings.source)).copied().flatten();
        let is_current = |position: &usize| {
            self.schemas
                .get(*position)
                .is_some_and(|(_, schema, _)| Arc::ptr_eq(schema, &readings.schema))
        };
        current.filter(is_current).or_else(|| {
            self.schemas.iter().position(|(source, schema, _)| {
                *source == readings.source && *schema == readings.schema
            })
        })
    }

    fn readings(&mut self, readings: &Readings, out: &mut Vec<u8>) {
        let known = self.known(readings);
        let position = known.unwrap_or(self.schemas.len());
        put_number(out, position as u64);
        if known.is_none() {
            out.push(source_number(readings.source) as u8);
            put_schema(&readings.schema, out);
            let columns = Columns::new(readings.schema.series.len());
            self.columns += columns.len().max(1);
            self.schemas.push((readings.source, Arc::clone(&readings.schema), columns));
        }
        if let Some(current) = self.current.get_mut(source_number(readings.source)) {
            *current = Some(position);
        }
        put_number(out, u64::try_from(readings.took.as_nanos()).unwrap_or(u64::MAX));
        match &readings.error {
            None => out.push(0),
            Some(error) => {
                out.push(1);
                put_bytes(out, error.as_bytes());
            }
        }
        if let Some((_, schema, columns)) = self.schemas.get_mut(position) {
            // The same `Arc` is recognised by its pointer.
            if !Arc::ptr_eq(schema, &readings.schema) {
                *schema = Arc::clone(&readings.schema);
            }
            columns.encode(&readings.values, out);
        }
    }
}

/// A source's number in recordings: its index in [`Source::ALL`], which only grows at its end
/// within a version of the format.
fn source_number(source: Source) -> usize {
    Source::ALL.iter().position(|known| *known == source).unwrap_or(Source::ALL.len())
}

/// Nanoseconds by which a moment differs from the one before, on both clocks.
fn difference(last: Option<Moment>, at: Moment) -> (i64, i64) {
    let uptime = |at: Moment| i64::try_from(at.uptime.as_nanos()).unwrap_or(i64::MAX);
    let utc = |at: Moment| i64::try_from(at.utc.as_nanosecond()).unwrap_or(i64::MAX);
    match last {
        None => (uptime(at), utc(at)),
        Some(last) => {
            let steps = uptime(at).wrapping_sub(uptime(last));
            // The clocks mostly advance together.
            (steps, utc(at).wrapping_sub(utc(last)).wrapping_sub(steps))
        }
    }
}

fn put_record(at: Moment, record: &KernelRecord, out: &mut Vec<u8>) {
    put_number(out, record.seq);
    put_number(out, u64::from(record.facility) << 8 | u64::from(record.level));
    put_number(out, record.usec);
    let nanoseconds = record.utc.as_nanosecond() - at.utc.as_nanosecond();
    put_signed(out, i64::try_from(nanoseconds).unwrap_or(i64::MIN));
    match &record.caller {
        None => out.push(0),
        Some(caller) => {
            out.push(1);
            put_bytes(out, caller.as_bytes());
        }
    }
    put_bytes(out, record.text.as_bytes());
    put_bytes(out, record.dictionary.as_bytes());
}

fn put_schema(schema: &Schema, out: &mut Vec<u8>) {
    put_number(out, schema.series.len() as u64);
    schema.series.iter().for_each(|key| put_key(key, out));
}

fn put_key(key: &SeriesKey, out: &mut Vec<u8>) {
    put_bytes(out, key.name.as_bytes());
    put_number(out, key.labels.len() as u64);
    for (name, value) in key.labels.iter() {
        put_bytes(out, name.as_bytes());
        put_bytes(out, value.as_bytes());
    }
}

/// The tag of an entry, and its JSON.
fn put_tagged<T: serde::Serialize>(tag: u8, value: &T, out: &mut Vec<u8>) {
    out.push(tag);
    put_json(value, out);
}

/// Rare data is JSON, in the form of `umawarden history` and the API.
fn put_json(value: &impl serde::Serialize, out: &mut Vec<u8>) {
    // These types have no maps with keys that are not text, so this cannot fail.
    let json = serde_json::to_vec(value).unwrap_or_default();
    put_bytes(out, &json);
}
