//! All entries of the journal in the order of time, for people.

use std::cmp::Ordering;

use jiff::Timestamp;
use rusqlite::types::Value;
use rusqlite::{OptionalExtension, Row, params_from_iter};
use serde::de::DeserializeOwned;

use super::Note;
use super::reader::{Filter, JournalReader, ReadError, StoredEvent};
use crate::model::{AimCheck, AlertChange, DecisionRecord, EventKind, OperatorCommand, Outcome};

/// Selects entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TimelineQuery {
    /// Only those from then on.
    pub since: Option<Timestamp>,
    /// Only those before then.
    pub until: Option<Timestamp>,
    /// Only these kinds: of kernel events, and [`TimelineItem::KINDS`]; empty: all.
    pub kinds: Vec<String>,
    /// Only entries of this rule: `group/alert`, or the alert's name alone.
    pub rule: Option<String>,
    /// Only the newest of them; `None`: all.
    pub limit: Option<usize>,
}

/// One entry of the timeline.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "most of what a reader keeps are decisions")]
pub enum TimelineItem {
    /// A kernel event.
    Event(StoredEvent),
    /// A decision to act or to hold.
    Decision(DecisionRecord),
    /// The outcome of an action, with its effect if measured.
    Outcome {
        /// The result.
        outcome: Outcome,
        /// Its decision, unless that was deleted.
        decision: Option<DecisionRecord>,
        /// Its effect.
        aim_check: Option<AimCheck>,
    },
    /// An alert changed its state.
    Alert(AlertChange),
    /// A note of the daemon, such as a reload.
    Note(Note),
    /// An order of a person.
    Operator(OperatorCommand),
    /// A row of unknown meaning.
    Unreadable,
}

impl TimelineItem {
    /// The kinds in addition to those of events.
    pub const KINDS: [&'static str; 5] = ["decision", "outcome", "alert", "note", "operator"];
}

/// The parts of the timeline, in the order of cause and effect for what happened within one
/// millisecond: kind, columns, table.
const PARTS: [(&str, &str, &str); 6] = [
    ("event", "id, utc_ms, boot_id AS extra, json, NULL AS aim_check", "events"),
    ("operator", "id, utc_ms, NULL AS extra, json, NULL AS aim_check", "operator_commands"),
    ("alert", "id, utc_ms, NULL AS extra, json, NULL AS aim_check", "alerts"),
    ("decision", "id, utc_ms, NULL AS extra, json, NULL AS aim_check", "decisions"),
    (
        "outcome",
        "o.decision AS id, o.utc_ms AS utc_ms, d.json AS extra, o.json, a.json AS aim_check",
        "outcomes o LEFT JOIN decisions d ON d.id = o.decision
         LEFT JOIN aim_checks a ON a.decision = o.decision",
    ),
    ("note", "id, utc_ms, NULL AS extra, json, NULL AS aim_check", "notes"),
];

const OUTCOME: &str = "outcome";

/// Rows that are held at a time. While a pager waits for its reader no row of the database is held,
/// since that would keep the daemon's log from being cut.
const CHUNK: usize = 256;

/// How far the journal went once. What is recorded later is beyond it, whatever its time is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JournalEnd {
    /// Of each part the last id, and of outcomes the last time.
    last: [i64; PARTS.len()],
}

/// The position of an entry in the order of time.
#[derive(Clone, Copy, Debug)]
struct TimelinePosition {
    utc_ms: i64,
    rank: usize,
    id: i64,
}

impl JournalReader {
    /// Calls `each` with the time of an entry and the entry, the oldest first, until it says no.
    pub fn timeline(
        &self,
        query: &TimelineQuery,
        mut each: impl FnMut(Timestamp, TimelineItem) -> bool,
    ) -> Result<(), ReadError> {
        let failed = |error| self.failed(error);
        let mut left = query.limit.unwrap_or(usize::MAX);
        let mut after = match query.limit {
            Some(limit) => self.position_before_newest(query, limit).map_err(failed)?,
            None => None,
        };
        while left > 0 {
            let chunk = self.chunk(query, after, None, left.min(CHUNK)).map_err(failed)?;
            after = match chunk.last() {
                Some((position, _)) => Some(*position),
                None => break,
            };
            left -= chunk.len();
            for (position, item) in chunk {
                let time = Timestamp::from_millisecond(position.utc_ms).unwrap_or_default();
                if !each(time, item) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// How far the journal goes now. Outcomes count up to `settled`: a later one may still be
    /// followed by one of the same time.
    pub fn end(&self, settled: Timestamp) -> Result<JournalEnd, ReadError> {
        let mut end = JournalEnd::default();
        for (last, (kind, _, table)) in end.last.iter_mut().zip(PARTS) {
            let sql = format!("SELECT COALESCE(MAX({}), 0) FROM {table}", recorded(kind));
            let read = self.connection.prepare_cached(&sql);
            let read = read.and_then(|mut select| select.query_row([], |row| row.get(0)));
            *last = read.map_err(|error| self.failed(error))?;
            if kind == OUTCOME {
                *last = (*last).min(settled.as_millisecond());
            }
        }
        Ok(end)
    }

    /// Calls `each` with what was recorded after `end`, the oldest first, and moves `end` there.
    /// Returns early if `each` says no.
    pub fn newer(
        &self,
        query: &TimelineQuery,
        (end, settled): (&mut JournalEnd, Timestamp),
        mut each: impl FnMut(Timestamp, TimelineItem) -> bool,
    ) -> Result<(), ReadError> {
        let until = self.end(settled)?;
        let after = std::mem::replace(end, until.clone());
        if after == until {
            return Ok(());
        }
        let mut position = None;
        loop {
            let chunk = self.chunk(query, position, Some((&after, &until)), CHUNK);
            let chunk = chunk.map_err(|error| self.failed(error))?;
            let Some((last, _)) = chunk.last() else { return Ok(()) };
            position = Some(*last);
            for (position, item) in chunk {
                let time = Timestamp::from_millisecond(position.utc_ms).unwrap_or_default();
                if !each(time, item) {
                    return Ok(());
                }
            }
        }
    }

    fn chunk(
        &self,
        query: &TimelineQuery,
        after: Option<TimelinePosition>,
        between: Option<(&JournalEnd, &JournalEnd)>,
        limit: usize,
    ) -> rusqlite::Result<Vec<(TimelinePosition, TimelineItem)>> {
        let Some((sql, mut values)) = query.sql(after, between) else { return Ok(Vec::new()) };
        values.push(integer(limit));
        self.connection
            .prepare(&format!("{sql} ORDER BY utc_ms, rank, id LIMIT ?"))?
            .query_map(params_from_iter(values), |row| {
                Ok((TimelinePosition::read(row)?, item(row)?))
            })?
            .collect()
    }

    /// The last entry that is not among the newest so many, if there are more than those.
    fn position_before_newest(
        &self,
        query: &TimelineQuery,
        count: usize,
    ) -> rusqlite::Result<Option<TimelinePosition>> {
        let Some((sql, mut values)) = query.sql(None, None) else { return Ok(None) };
        values.push(integer(count));
        self.connection
            .prepare(&format!("{sql} ORDER BY utc_ms DESC, rank DESC, id DESC LIMIT 1 OFFSET ?"))?
            .query_row(params_from_iter(values), TimelinePosition::read)
            .optional()
    }
}

impl TimelinePosition {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let rank: u32 = row.get("rank")?;
        Ok(Self { utc_ms: row.get("utc_ms")?, rank: rank as usize, id: row.get("id")? })
    }

    /// Leaves out the entries of that part up to this position.
    fn resume_after(self, filter: &mut Filter, part: &str, rank: usize) {
        let (time, id) = time_and_id(part);
        let utc_ms = Value::Integer(self.utc_ms);
        match rank.cmp(&self.rank) {
            Ordering::Less => filter.require(format!("{time} > ?"), [utc_ms]),
            Ordering::Greater => filter.require(format!("{time} >= ?"), [utc_ms]),
            Ordering::Equal => {
                let id_value = Value::Integer(self.id);
                filter.require(format!("({time}, {id}) > (?, ?)"), [utc_ms, id_value]);
            }
        }
    }
}

fn integer(value: usize) -> Value {
    Value::Integer(i64::try_from(value).unwrap_or(i64::MAX))
}

impl TimelineQuery {
    /// Everything that matches beyond that position, unsorted; `None` if nothing can match. Sorting
    /// must be appended to the whole: then SQLite merges the tables' time indices, and reads no
    /// more rows than it returns.
    fn sql(
        &self,
        after: Option<TimelinePosition>,
        between: Option<(&JournalEnd, &JournalEnd)>,
    ) -> Option<(String, Vec<Value>)> {
        let mut parts = Vec::new();
        let mut values = Vec::new();
        for (rank, (kind, columns, table)) in PARTS.iter().enumerate() {
            let Some(mut filter) = self.filter(kind) else { continue };
            if let Some(position) = after {
                position.resume_after(&mut filter, kind, rank);
            }
            if let Some((after, until)) = between {
                let span = [after.last[rank], until.last[rank]].map(Value::Integer);
                let id = recorded(kind);
                filter.require(format!("{id} > ? AND {id} <= ?"), span);
            }
            parts.push(format!("SELECT {rank} AS rank, {columns} FROM {table}{}", filter.clause()));
            values.extend(filter.values);
        }
        (!parts.is_empty()).then(|| (parts.join(" UNION ALL "), values))
    }

    /// The conditions on one part; `None` if it is not selected.
    fn filter(&self, part: &str) -> Option<Filter> {
        let mut filter = Filter::default();
        filter.times(time_and_id(part).0, self.since, self.until);
        let of_rule = |filter: &mut Filter, rule: &str, alert: &str| {
            if let Some(name) = &self.rule {
                filter.rule(rule, alert, name);
            }
        };
        match part {
            "event" => {
                let kinds: Vec<String> = self
                    .kinds
                    .iter()
                    .filter(|kind| EventKind::KINDS.contains(&kind.as_str()))
                    .cloned()
                    .collect();
                if self.rule.is_some() || (kinds.is_empty() && !self.kinds.is_empty()) {
                    return None;
                }
                filter.any_of("kind", &kinds);
                return Some(filter);
            }
            "note" if self.rule.is_some() => return None,
            "note" => {}
            "operator" => {
                if let Some(name) = &self.rule {
                    filter.concerns_rule(name);
                }
            }
            "outcome" => of_rule(&mut filter, "d.rule", "d.alert"),
            _ => of_rule(&mut filter, "rule", "alert"),
        }
        (self.kinds.is_empty() || self.kinds.iter().any(|kind| kind == part)).then_some(filter)
    }
}

fn time_and_id(part: &str) -> (&'static str, &'static str) {
    if part == "outcome" { ("o.utc_ms", "o.decision") } else { ("utc_ms", "id") }
}

/// What grows with each row of a part. Outcomes have the number of their decision, which may be an
/// older one, so that their time counts.
fn recorded(part: &str) -> &'static str {
    let (time, id) = time_and_id(part);
    if part == OUTCOME { time } else { id }
}

fn item(row: &Row<'_>) -> rusqlite::Result<TimelineItem> {
    let (rank, id): (u32, i64) = (row.get("rank")?, row.get("id")?);
    let json: String = row.get("json")?;
    let (extra, aim_check): (Option<String>, Option<String>) =
        (row.get("extra")?, row.get("aim_check")?);
    let item = match PARTS.get(rank as usize).map(|(kind, ..)| *kind) {
        Some("event") => from_json(&json).map(|event| {
            TimelineItem::Event(StoredEvent { id, boot_id: extra.unwrap_or_default(), event })
        }),
        Some("decision") => from_json(&json).map(TimelineItem::Decision),
        Some("outcome") => from_json(&json).map(|outcome| TimelineItem::Outcome {
            outcome,
            decision: extra.and_then(|json| from_json(&json)),
            aim_check: aim_check.and_then(|json| from_json(&json)),
        }),
        Some("alert") => from_json(&json).map(TimelineItem::Alert),
        Some("operator") => from_json(&json).map(TimelineItem::Operator),
        Some("note") => from_json(&json).map(TimelineItem::Note),
        _ => None,
    };
    Ok(item.unwrap_or(TimelineItem::Unreadable))
}

/// `None`: a row of a newer or older program with unknown words.
pub(super) fn from_json<T: DeserializeOwned>(json: &str) -> Option<T> {
    serde_json::from_str(json).ok()
}
