//! Decodes entries.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::de::DeserializeOwned;

use super::columns::Columns;
use super::encode::{
    BEGIN, CLUSTER, ENGINE_HEALTH, ENGINES, EVENT, GAP, GPU, HELD, HOLDERS, LEASES, LOAD_READING,
    LOGGED_IN, OPERATOR, OUTCOME, PAST, PAUSE, READINGS, RECEIVED_ALERTS, RECORD, RECORD_MALFORMED,
    RECORDS_LOST, RELOAD, SAMPLE, SAMPLE_FAILED, SAMPLE_UNSUPPORTED, SAMPLE_VALUE, STEP,
};
use super::entry::{RecordedStep, RecordingEntry, StepResult};
use super::wire::{Bytes, Malformed};
use super::{MAX_COLUMNS, MAX_OBSERVATIONS, MAX_VALUES_A_STEP};
use crate::model::{
    KernelRecord, Moment, Observation, Reading, Readings, Schema, SeriesKey, Source,
};

/// The most labels of one series.
const MAX_LABELS: usize = 64;

/// The state of a decoder within a segment.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    last: Option<Moment>,
    schemas: Vec<(Source, Arc<Schema>, Columns)>,
    columns: usize,
}

impl Decoder {
    /// Takes the next entry of a block.
    pub(super) fn entry(&mut self, from: &mut Bytes<'_>) -> Result<RecordingEntry, Malformed> {
        match from.byte()? {
            BEGIN => {
                self.last = None;
                Ok(RecordingEntry::Begin(json(from)?))
            }
            STEP => Ok(RecordingEntry::Step(self.step(from)?)),
            RELOAD => {
                let at = self.moment(from)?;
                let (rules, ended) = json(from)?;
                Ok(RecordingEntry::Reload { at, rules, ended })
            }
            GAP => Ok(RecordingEntry::Gap { steps: from.number()? }),
            _ => Err(Malformed("an entry of an unknown kind")),
        }
    }

    fn step(&mut self, from: &mut Bytes<'_>) -> Result<RecordedStep, Malformed> {
        let at = self.moment(from)?;
        let count = from.count(MAX_OBSERVATIONS)?;
        let (mut seen, mut left) = (Vec::with_capacity(count.min(16)), MAX_VALUES_A_STEP);
        for _ in 0..count {
            let observation = self.observation(at, from, left)?;
            let takes = match &observation {
                Observation::Readings(readings) => readings.values.len(),
                Observation::Cluster(readings) => readings.values(),
                _ => 1,
            };
            left = left.checked_sub(takes).ok_or(Malformed("a step has too many values"))?;
            seen.push(observation);
        }
        let said = match from.bytes()? {
            b"" => StepResult::default(),
            text => parse(text)?,
        };
        Ok(RecordedStep { at, seen, said })
    }

    fn moment(&mut self, from: &mut Bytes<'_>) -> Result<Moment, Malformed> {
        let (uptime, utc) = (from.signed()?, from.signed()?);
        let (uptime, utc) = match self.last {
            None => (uptime, i128::from(utc)),
            Some(last) => {
                let before = i64::try_from(last.uptime.as_nanos()).unwrap_or(i64::MAX);
                let both = i128::from(uptime) + i128::from(utc);
                (before.wrapping_add(uptime), last.utc.as_nanosecond() + both)
            }
        };
        let uptime = u64::try_from(uptime).map_err(|_| Malformed("a time before the boot"))?;
        let at = Moment { uptime: Duration::from_nanos(uptime), utc: timestamp(utc)? };
        self.last = Some(at);
        Ok(at)
    }

    fn observation(
        &mut self,
        at: Moment,
        from: &mut Bytes<'_>,
        left: usize,
    ) -> Result<Observation, Malformed> {
        match from.byte()? {
            RECORD => Ok(Observation::KernelRecord(record(at, from)?)),
            RECORDS_LOST => Ok(Observation::KernelRecordsLost(from.number()?)),
            RECORD_MALFORMED => Ok(Observation::KernelRecordMalformed),
            READINGS => Ok(Observation::Readings(self.readings(from, left)?)),
            SAMPLE => sample(from),
            OUTCOME => Ok(Observation::Outcome(json(from)?)),
            OPERATOR => Ok(Observation::Operator(json(from)?)),
            PAUSE => Ok(Observation::Pause(json(from)?)),
            PAST => Ok(Observation::Past(Box::new(json(from)?))),
            EVENT => Ok(Observation::Event(json(from)?)),
            ENGINES => Ok(Observation::Engines(Box::new(json(from)?))),
            ENGINE_HEALTH => Ok(Observation::EngineHealth(Box::new(json(from)?))),
            LEASES => Ok(Observation::Leases(Box::new(json(from)?))),
            LOAD_READING => Ok(Observation::LoadReading(Box::new(json(from)?))),
            LOGGED_IN => Ok(Observation::LoggedIn(Box::new(json(from)?))),
            CLUSTER => Ok(Observation::Cluster(Box::new(json(from)?))),
            HOLDERS => Ok(Observation::Holders(Box::new(json(from)?))),
            HELD => Ok(Observation::Restarts(Box::new(json(from)?))),
            RECEIVED_ALERTS => Ok(Observation::ReceivedAlerts(Box::new(json(from)?))),
            GPU => Ok(Observation::Gpu(Box::new(json(from)?))),
            _ => Err(Malformed("an observation of an unknown kind")),
        }
    }

    fn readings(&mut self, from: &mut Bytes<'_>, left: usize) -> Result<Readings, Malformed> {
        let position = from.count(self.schemas.len())?;
        if position == self.schemas.len() {
            let source = Source::ALL.get(usize::from(from.byte()?)).copied();
            let source = source.ok_or(Malformed("readings of an unknown source"))?;
            let left = MAX_COLUMNS.saturating_sub(self.columns);
            let schema = schema(from, left)?;
            let columns = Columns::new(schema.series.len());
            self.columns += columns.len().max(1);
            if self.columns > MAX_COLUMNS {
                return Err(Malformed("there are too many series"));
            }
            self.schemas.push((source, Arc::new(schema), columns));
        }
        let took = Duration::from_nanos(from.number()?);
        let error = match from.byte()? {
            0 => None,
            1 => Some(Arc::from(from.text()?)),
            _ => return Err(Malformed("a choice is neither yes nor no")),
        };
        let known = self.schemas.get_mut(position);
        let (source, schema, columns) = known.ok_or(Malformed("an unknown schema"))?;
        if columns.len() > left {
            return Err(Malformed("a step has too many values"));
        }
        let values = columns.decode(from)?.to_vec();
        Ok(Readings { source: *source, schema: Arc::clone(schema), values, took, error })
    }
}

fn timestamp(nanoseconds: i128) -> Result<Timestamp, Malformed> {
    Timestamp::from_nanosecond(nanoseconds).map_err(|_| Malformed("a time is out of bounds"))
}

fn record(at: Moment, from: &mut Bytes<'_>) -> Result<KernelRecord, Malformed> {
    let seq = from.number()?;
    let priority = from.number()?;
    let out_of_bounds = |_| Malformed("a priority is out of bounds");
    let facility = u16::try_from(priority >> 8).map_err(out_of_bounds)?;
    let level = (priority & 0xff) as u8;
    let usec = from.number()?;
    let utc = timestamp(at.utc.as_nanosecond() + i128::from(from.signed()?))?;
    let caller = match from.byte()? {
        0 => None,
        1 => Some(from.text()?.to_owned()),
        _ => return Err(Malformed("a choice is neither yes nor no")),
    };
    let (text, dictionary) = (from.text()?.to_owned(), from.text()?.to_owned());
    Ok(KernelRecord { seq, facility, level, usec, caller, utc, text, dictionary })
}

fn schema(from: &mut Bytes<'_>, most: usize) -> Result<Schema, Malformed> {
    let count = from.count(most)?;
    let mut series = Vec::new();
    for _ in 0..count {
        series.push(key(from)?);
    }
    Ok(Schema { series })
}

fn key(from: &mut Bytes<'_>) -> Result<SeriesKey, Malformed> {
    let name = from.text()?;
    let labels = from.count(MAX_LABELS)?;
    let mut pairs = Vec::new();
    for _ in 0..labels {
        pairs.push((from.text()?, from.text()?));
    }
    Ok(SeriesKey::new(name, &pairs))
}

fn sample(from: &mut Bytes<'_>) -> Result<Observation, Malformed> {
    let series = key(from)?;
    let value = match from.byte()? {
        SAMPLE_UNSUPPORTED => Reading::Unsupported,
        SAMPLE_FAILED => Reading::Failed,
        SAMPLE_VALUE => Reading::Value(f64::from_bits(u64::from_le_bytes(from.array()?))),
        _ => return Err(Malformed("a value of an unknown form")),
    };
    Ok(Observation::Sample { series, value })
}

fn json<T: DeserializeOwned>(from: &mut Bytes<'_>) -> Result<T, Malformed> {
    parse(from.bytes()?)
}

fn parse<T: DeserializeOwned>(text: &[u8]) -> Result<T, Malformed> {
    serde_json::from_slice(text).map_err(|_| Malformed("an entry is not what it should be"))
}
