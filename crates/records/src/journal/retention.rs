//! Deletes the oldest entries, in small steps.

use std::time::Duration;

use rusqlite::{Connection, TransactionBehavior};

use super::file::DatabaseFailure;

/// The limits of age and size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Older entries are deleted. Counted back from the newest entry.
    pub max_age: Duration,
    /// Above this size of the database, in bytes, the oldest entries are deleted. The write-ahead
    /// log, at most about 1 MiB, comes on top. An empty database has about 72 KiB.
    pub max_bytes: u64,
}

/// Rows that one step deletes from one table.
const STEP_ROWS: u32 = 256;
/// Pages that one step returns to the file system.
const STEP_PAGES: u32 = 256;
/// The number of boots whose position in the kernel log is kept.
const BOOTS: u32 = 64;
/// Tables with a time; the decisions' outcomes and aim checks go with them.
const TABLES: [&str; 5] = ["events", "decisions", "alerts", "notes", "operator_commands"];

/// The WHERE condition of deletable rows of a table: orders stay while they are in force.
fn may_go(table: &str, now_ms: i64) -> String {
    match table {
        "operator_commands" => format!("until_ms <= {now_ms}"),
        _ => "TRUE".to_owned(),
    }
}

/// Performs one step. Returns whether there is more to do. `age_from_ms` is the instant from which
/// age is counted, in milliseconds since 1970; `None` leaves age alone.
pub(super) fn step(
    connection: &mut Connection,
    retention: Retention,
    age_from_ms: Option<i64>,
) -> Result<bool, DatabaseFailure> {
    let failed = |error: rusqlite::Error| DatabaseFailure::new("deleting old entries", &error);
    let now_ms = age_from_ms.unwrap_or(0);
    if let Some(from) = age_from_ms {
        let age = i64::try_from(retention.max_age.as_millis()).unwrap_or(i64::MAX);
        let cutoff = from.saturating_sub(age);
        for table in TABLES {
            if delete_oldest(connection, table, cutoff, now_ms).map_err(failed)? > 0 {
                return Ok(true);
            }
        }
    }
    let pages = PageCounts::read(connection).map_err(failed)?;
    if pages.used_bytes() > retention.max_bytes
        && let Some(table) = table_with_oldest(connection, now_ms).map_err(failed)?
        && delete_oldest(connection, table, i64::MAX, now_ms).map_err(failed)? > 0
    {
        return Ok(true);
    }
    if pages.free == 0 {
        return Ok(false);
    }
    give_back(connection).map_err(failed)?;
    Ok(pages.free > i64::from(STEP_PAGES))
}

struct PageCounts {
    count: i64,
    free: i64,
    bytes: i64,
}

impl PageCounts {
    fn read(connection: &Connection) -> rusqlite::Result<Self> {
        connection.query_row(
            "SELECT page_count, freelist_count, page_size
             FROM pragma_page_count, pragma_freelist_count, pragma_page_size",
            [],
            |row| Ok(Self { count: row.get(0)?, free: row.get(1)?, bytes: row.get(2)? }),
        )
    }

    fn used_bytes(&self) -> u64 {
        u64::try_from((self.count - self.free).saturating_mul(self.bytes)).unwrap_or(0)
    }
}

fn table_with_oldest(
    connection: &Connection,
    now_ms: i64,
) -> rusqlite::Result<Option<&'static str>> {
    let mut oldest: Option<(i64, &'static str)> = None;
    for table in TABLES {
        let sql = format!("SELECT min(utc_ms) FROM {table} WHERE {}", may_go(table, now_ms));
        let first: Option<i64> = connection.query_row(&sql, [], |row| row.get(0))?;
        if let Some(first) = first
            && oldest.is_none_or(|(least, _)| first < least)
        {
            oldest = Some((first, table));
        }
    }
    Ok(oldest.map(|(_, table)| table))
}

fn delete_oldest(
    connection: &mut Connection,
    table: &str,
    before_ms: i64,
    now_ms: i64,
) -> rusqlite::Result<usize> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let chosen = format!(
        "SELECT id FROM {table} WHERE utc_ms < ?1 AND {} ORDER BY utc_ms, id LIMIT {STEP_ROWS}",
        may_go(table, now_ms)
    );
    if table == "decisions" {
        for belonging in ["outcomes", "aim_checks"] {
            let sql = format!("DELETE FROM {belonging} WHERE decision IN ({chosen})");
            transaction.execute(&sql, [before_ms])?;
        }
    }
    let deleted =
        transaction.execute(&format!("DELETE FROM {table} WHERE id IN ({chosen})"), [before_ms])?;
    transaction.commit()?;
    Ok(deleted)
}

/// Returns free pages at the end of the file to the file system. Also deletes old boots, and
/// outcomes of decisions that were never stored.
fn give_back(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute(
        &format!(
            "DELETE FROM kernel_log_cursor WHERE id <=
             (SELECT id FROM kernel_log_cursor ORDER BY id DESC LIMIT 1 OFFSET {BOOTS})"
        ),
        [],
    )?;
    connection.execute(
        "DELETE FROM last_events
         WHERE boot_id NOT IN (SELECT boot_id FROM kernel_log_cursor)",
        [],
    )?;
    for table in ["outcomes", "aim_checks"] {
        connection.execute(
            &format!("DELETE FROM {table} WHERE decision < (SELECT min(id) FROM decisions)"),
            [],
        )?;
    }
    // One page a row: the pragma continues only while rows are read.
    connection
        .prepare(&format!("PRAGMA incremental_vacuum({STEP_PAGES})"))?
        .query([])
        .and_then(|mut rows| while_some(&mut rows))?;
    // An active reader only delays the truncation.
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
}

fn while_some(rows: &mut rusqlite::Rows<'_>) -> rusqlite::Result<()> {
    while rows.next()?.is_some() {}
    Ok(())
}
