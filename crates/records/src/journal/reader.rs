//! Reads the journal, with or without a daemon that writes it.

use std::fmt::Write;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use rusqlite::types::Value;
use rusqlite::{Connection, ErrorCode, OpenFlags, Row, params_from_iter};

use super::Note;
use super::file::{
    APPLICATION_ID, FILE_NAME, FORMATS, is_newer, newer_format, refuse_other_than_files,
};
use super::timeline::from_json;
use crate::model::{AimCheck, DecisionRecord, Event, OperatorCommand, Outcome};

/// Why the journal cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// There is no such file.
    #[error("there is no journal at {}", .0.display())]
    Missing(PathBuf),
    /// The file is not a journal.
    #[error("{} is not a journal of umawarden", .0.display())]
    NotAJournal(PathBuf),
    /// The path is not a regular file.
    #[error("cannot read the journal {}: {source}", path.display())]
    NoFile {
        /// Path of the database, or of its log.
        path: PathBuf,
        /// The kind of file.
        source: std::io::Error,
    },
    /// A newer program wrote it.
    #[error("{0}")]
    Newer(String),
    /// Reading failed.
    #[error("reading the journal {}", path.display())]
    Failed {
        /// Path of the database.
        path: PathBuf,
        /// The error of SQLite.
        source: rusqlite::Error,
    },
}

/// The order of rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// The latest entry first; pages go back in time.
    #[default]
    NewestFirst,
    /// The earliest entry first; pages go forward.
    OldestFirst,
}

/// A page of rows in the requested order.
#[derive(Clone, Debug, PartialEq)]
pub struct Page<T> {
    /// At most the requested number of rows.
    pub rows: Vec<T>,
    /// Give it as `before_id` (newest first) or `after_id` (oldest first) for the next page;
    /// `None` at the end.
    pub next: Option<i64>,
    /// Omitted rows of unknown meaning.
    pub unreadable: usize,
}

/// Selects kernel events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventQuery {
    /// Only those with a greater number.
    pub after_id: Option<i64>,
    /// Only those with a smaller number.
    pub before_id: Option<i64>,
    /// Only those from then on.
    pub since: Option<Timestamp>,
    /// Only those before then.
    pub until: Option<Timestamp>,
    /// Only these kinds; empty: all.
    pub kinds: Vec<String>,
    /// The order of rows.
    pub order: Order,
    /// The limit of rows.
    pub limit: usize,
}

/// Selects decisions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DecisionQuery {
    /// Only those with a greater number.
    pub after_id: Option<i64>,
    /// Only those with a smaller number.
    pub before_id: Option<i64>,
    /// Only those from then on.
    pub since: Option<Timestamp>,
    /// Only those before then.
    pub until: Option<Timestamp>,
    /// Only this rule's: `group/alert`, or the alert's name alone.
    pub rule: Option<String>,
    /// Only `act` or only `hold`.
    pub decision: Option<String>,
    /// The order of rows.
    pub order: Order,
    /// The limit of rows.
    pub limit: usize,
}

/// Selects orders of people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OrderQuery {
    /// Only those with a greater number.
    pub after_id: Option<i64>,
    /// Only those with a smaller number.
    pub before_id: Option<i64>,
    /// Only those from then on.
    pub since: Option<Timestamp>,
    /// Only those before then.
    pub until: Option<Timestamp>,
    /// The order of rows.
    pub order: Order,
    /// The limit of rows.
    pub limit: usize,
}

/// An order of a person in the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredOrder {
    /// Its number in the journal.
    pub id: i64,
    /// The order that a person gave.
    pub command: OperatorCommand,
}

/// A kernel event in the journal.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredEvent {
    /// Its number in the journal.
    pub id: i64,
    /// The boot that it belongs to.
    pub boot_id: String,
    /// The stored event.
    pub event: Event,
}

/// A note in the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredNote {
    /// Its number in the journal.
    pub id: i64,
    /// The stored note.
    pub note: Note,
}

/// A decision with its outcome and effect.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredDecision {
    /// The stored decision.
    pub decision: DecisionRecord,
    /// The outcome of the action, if it has one.
    pub outcome: Option<Outcome>,
    /// The effect, once measured.
    pub aim_check: Option<AimCheck>,
}

/// A read-only view of a journal. Cheap to open; holds no lock between queries.
#[derive(Debug)]
pub struct JournalReader {
    pub(super) connection: Connection,
    path: PathBuf,
    /// Device and inode of the file.
    identity: Option<(u64, u64)>,
    without_log: bool,
}

impl JournalReader {
    /// Opens the journal in a directory.
    pub fn open(dir: &Path) -> Result<Self, ReadError> {
        let path = std::path::absolute(dir.join(FILE_NAME)).unwrap_or_else(|_| dir.join(FILE_NAME));
        if let Err(error) = path.metadata()
            && matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
        {
            return Err(ReadError::Missing(path));
        }
        refuse_other_than_files(&path)
            .map_err(|(path, source)| ReadError::NoFile { path, source })?;
        let log = path.with_file_name(format!("{FILE_NAME}-wal"));
        let log_holds_some = || log.metadata().is_ok_and(|metadata| metadata.len() > 0);
        match Self::open_as(&path, "mode=ro") {
            // Reading a database with a log needs one more file, which cannot be made in a
            // read-only directory or on a full disk. A database without a log is complete in
            // itself.
            Err(ReadError::Failed { source, .. }) if is_read_only(&source) || !log_holds_some() => {
                let mut reader = Self::open_as(&path, "mode=ro&immutable=1")?;
                reader.without_log = log_holds_some();
                Ok(reader)
            }
            opened => opened,
        }
    }

    fn open_as(path: &Path, parameters: &str) -> Result<Self, ReadError> {
        let failed = |source: rusqlite::Error| match source.sqlite_error_code() {
            Some(ErrorCode::NotADatabase) => ReadError::NotAJournal(path.to_owned()),
            _ => ReadError::Failed { path: path.to_owned(), source },
        };
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
            | OpenFlags::SQLITE_OPEN_URI
            | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection =
            Connection::open_with_flags(uri(path, parameters), flags).map_err(failed)?;
        connection.busy_timeout(Duration::from_secs(2)).map_err(failed)?;
        connection
            .execute_batch(
                "PRAGMA query_only = ON; PRAGMA cache_size = -256; PRAGMA mmap_size = 0;
                 PRAGMA trusted_schema = OFF",
            )
            .map_err(failed)?;
        let pragmas = "SELECT application_id, user_version
            FROM pragma_application_id, pragma_user_version";
        let (application, format): (i64, i64) = connection
            .query_row(pragmas, [], |row| Ok((row.get(0)?, row.get(1)?)))
            .map_err(failed)?;
        if application != APPLICATION_ID {
            return Err(ReadError::NotAJournal(path.to_owned()));
        }
        if is_newer(format, FORMATS) {
            return Err(ReadError::Newer(newer_format(&connection, path, format, FORMATS)));
        }
        let identity = path.metadata().ok().map(|metadata| (metadata.dev(), metadata.ino()));
        Ok(Self { connection, path: path.to_owned(), identity, without_log: false })
    }

    /// Whether the newest entries may be missing, since the directory is read-only and the last
    /// writer did not close the journal.
    pub fn may_lack_newest(&self) -> bool {
        self.without_log
    }

    /// Whether there is another file, or none, at its path.
    pub fn is_replaced(&self) -> bool {
        let now = self.path.metadata().ok().map(|metadata| (metadata.dev(), metadata.ino()));
        now != self.identity
    }

    /// Kernel events.
    pub fn events(&self, query: &EventQuery) -> Result<Page<StoredEvent>, ReadError> {
        let mut filter = Filter::default();
        filter.ids("id", query.after_id, query.before_id);
        filter.times("utc_ms", query.since, query.until);
        filter.any_of("kind", &query.kinds);
        let sql = filter.sql("SELECT id, boot_id, json FROM events", "id", query.order);
        self.page(&sql, filter, query.limit, |row| {
            let (id, boot_id, json): (i64, String, String) =
                (row.get(0)?, row.get(1)?, row.get(2)?);
            let event = from_json(&json);
            Ok((id, event.map(|event| StoredEvent { id, boot_id, event })))
        })
    }

    /// Every rule that has decided or alerted, as `group/alert`; at most a thousand.
    pub fn rules(&self) -> Result<Vec<String>, ReadError> {
        let sql = "SELECT rule FROM decisions UNION SELECT rule FROM alerts ORDER BY 1 LIMIT 1000";
        let read = || -> rusqlite::Result<Vec<String>> {
            let mut select = self.connection.prepare_cached(sql)?;
            select.query_map([], |row| row.get(0))?.collect()
        };
        read().map_err(|error| self.failed(error))
    }

    /// Decisions, each with its outcome and effect.
    pub fn decisions(&self, query: &DecisionQuery) -> Result<Page<StoredDecision>, ReadError> {
        let mut filter = Filter::default();
        filter.ids("d.id", query.after_id, query.before_id);
        filter.times("d.utc_ms", query.since, query.until);
        if let Some(rule) = &query.rule {
            filter.rule("d.rule", "d.alert", rule);
        }
        if let Some(decision) = &query.decision {
            filter.any_of("d.decision", std::slice::from_ref(decision));
        }
        let select = "SELECT d.id, d.json, o.json, a.json FROM decisions d
            LEFT JOIN outcomes o ON o.decision = d.id
            LEFT JOIN aim_checks a ON a.decision = d.id";
        let sql = filter.sql(select, "d.id", query.order);
        self.page(&sql, filter, query.limit, |row| {
            let decision: String = row.get(1)?;
            let (outcome, aim_check): (Option<String>, Option<String>) = (row.get(2)?, row.get(3)?);
            let record = from_json(&decision).map(|decision| StoredDecision {
                decision,
                outcome: outcome.and_then(|json| from_json(&json)),
                aim_check: aim_check.and_then(|json| from_json(&json)),
            });
            Ok((row.get(0)?, record))
        })
    }

    /// Notes: start, stop, reload, reboots.
    pub fn notes(&self, order: Order, limit: usize) -> Result<Page<StoredNote>, ReadError> {
        let filter = Filter::default();
        let sql = filter.sql("SELECT id, json FROM notes", "id", order);
        self.page(&sql, filter, limit, |row| {
            let (id, json): (i64, String) = (row.get(0)?, row.get(1)?);
            let note = from_json(&json);
            Ok((id, note.map(|note| StoredNote { id, note })))
        })
    }

    /// Orders of people.
    pub fn orders(&self, query: &OrderQuery) -> Result<Page<StoredOrder>, ReadError> {
        let mut filter = Filter::default();
        filter.ids("id", query.after_id, query.before_id);
        filter.times("utc_ms", query.since, query.until);
        let sql = filter.sql("SELECT id, json FROM operator_commands", "id", query.order);
        self.page(&sql, filter, query.limit, |row| {
            let (id, json): (i64, String) = (row.get(0)?, row.get(1)?);
            let command = from_json(&json);
            Ok((id, command.map(|command| StoredOrder { id, command })))
        })
    }

    fn page<T>(
        &self,
        sql: &str,
        filter: Filter,
        limit: usize,
        convert: impl Fn(&Row<'_>) -> rusqlite::Result<(i64, Option<T>)>,
    ) -> Result<Page<T>, ReadError> {
        let read = || -> rusqlite::Result<Page<T>> {
            let mut page = Page { rows: Vec::new(), next: None, unreadable: 0 };
            let mut values = filter.values;
            // One more than requested shows whether there is a next page.
            values.push(Value::Integer(i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1)));
            let mut select = self.connection.prepare_cached(sql)?;
            let mut rows = select.query(params_from_iter(values))?;
            let mut last = None;
            while let Some(row) = rows.next()? {
                if page.rows.len() + page.unreadable == limit {
                    page.next = last;
                    break;
                }
                let (id, converted) = convert(row)?;
                last = Some(id);
                match converted {
                    Some(converted) => page.rows.push(converted),
                    None => page.unreadable += 1,
                }
            }
            Ok(page)
        };
        read().map_err(|error| self.failed(error))
    }

    pub(super) fn failed(&self, source: rusqlite::Error) -> ReadError {
        ReadError::Failed { path: self.path.clone(), source }
    }
}

/// Conditions of a query, and the values of its question marks, in their order.
#[derive(Debug, Default)]
pub(super) struct Filter {
    conditions: Vec<String>,
    pub(super) values: Vec<Value>,
}

impl Filter {
    fn ids(&mut self, column: &str, after: Option<i64>, before: Option<i64>) {
        self.compare(column, ">", after);
        self.compare(column, "<", before);
    }

    pub(super) fn times(
        &mut self,
        column: &str,
        since: Option<Timestamp>,
        until: Option<Timestamp>,
    ) {
        self.compare(column, ">=", since.map(Timestamp::as_millisecond));
        self.compare(column, "<", until.map(Timestamp::as_millisecond));
    }

    fn compare(&mut self, column: &str, how: &str, value: Option<i64>) {
        if let Some(value) = value {
            self.require(format!("{column} {how} ?"), [Value::Integer(value)]);
        }
    }

    /// Adds a condition with its values.
    pub(super) fn require<const N: usize>(&mut self, condition: String, values: [Value; N]) {
        self.conditions.push(condition);
        self.values.extend(values);
    }

    pub(super) fn any_of(&mut self, column: &str, words: &[String]) {
        if words.is_empty() {
            return;
        }
        let marks = vec!["?"; words.len()].join(", ");
        self.conditions.push(format!("{column} IN ({marks})"));
        self.values.extend(words.iter().cloned().map(Value::Text));
    }

    pub(super) fn rule(&mut self, rule: &str, alert: &str, name: &str) {
        self.require(format!("? IN ({rule}, {alert})"), [Value::Text(name.to_owned())]);
    }

    /// Only orders that concern a rule: by its name, by all of them, by one of its decisions.
    pub(super) fn concerns_rule(&mut self, name: &str) {
        let alert = name.rsplit_once('/').map_or(name, |(_, alert)| alert);
        let names_rule = "? IN (rule, alert) OR (rule IS NULL AND alert = ?)";
        let all = "word IN ('silence', 'reset_breaker') AND rule IS NULL AND alert IS NULL";
        let decided = "decision IN (SELECT id FROM decisions WHERE ? IN (rule, alert))";
        let values = [name, alert, name].map(|text| Value::Text(text.to_owned()));
        self.require(format!("({names_rule} OR ({all}) OR {decided})"), values);
    }

    /// ` WHERE …`, or nothing.
    pub(super) fn clause(&self) -> String {
        if self.conditions.is_empty() {
            String::new()
        } else {
            format!(" WHERE {}", self.conditions.join(" AND "))
        }
    }

    fn sql(&self, select: &str, by: &str, order: Order) -> String {
        let direction = match order {
            Order::NewestFirst => "DESC",
            Order::OldestFirst => "ASC",
        };
        format!("{select}{} ORDER BY {by} {direction} LIMIT ?", self.clause())
    }
}

fn is_read_only(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::CannotOpen | ErrorCode::PermissionDenied | ErrorCode::ReadOnly)
    )
}

/// Escapes a path for a URI.
fn uri(path: &Path, parameters: &str) -> String {
    let mut uri = String::from("file:");
    for byte in path.as_os_str().as_bytes() {
        if byte.is_ascii_alphanumeric() || b"/-_.~".contains(byte) {
            uri.push(char::from(*byte));
        } else {
            // Writing to a String cannot fail.
            write!(uri, "%{byte:02x}").unwrap_or_default();
        }
    }
    format!("{uri}?{parameters}")
}
