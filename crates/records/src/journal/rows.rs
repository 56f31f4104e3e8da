//! Writes entries as rows, and answers the queries of a starting daemon.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};

use super::entry::{EventRow, JournalRecord, OperatorRow};
use super::file::DatabaseFailure;
use super::timeline::from_json;
use super::{OperatorMemory, RebootRow, ResumePoint};
use crate::model::SYSLOG_SEQ_BASE;

/// The number of kept rows about reboots: each reboot has about eight.
const MOST_REBOOT_ROWS: u32 = 4_000;

/// The number of boots whose uptime is kept.
const MOST_BOOTS: u32 = 1_000;

/// Writes all entries in one transaction. `latest_ms` is the time of the newest entry so far, in
/// milliseconds since 1970: events without a time of their own get it.
pub(super) fn write<'a>(
    connection: &mut Connection,
    records: impl Iterator<Item = &'a JournalRecord>,
    latest_ms: &mut i64,
) -> Result<(), DatabaseFailure> {
    let failed = |error: rusqlite::Error| DatabaseFailure::new("writing to the journal", &error);
    let transaction =
        connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
    let mut latest = *latest_ms;
    for record in records {
        insert(&transaction, record, &mut latest)?;
    }
    transaction.commit().map_err(failed)?;
    *latest_ms = latest;
    Ok(())
}

fn insert(
    transaction: &Transaction<'_>,
    record: &JournalRecord,
    latest_ms: &mut i64,
) -> Result<(), DatabaseFailure> {
    let failed = |error: rusqlite::Error| DatabaseFailure::new("writing to the journal", &error);
    match record {
        JournalRecord::KernelLog { boot_id, events, resume_seq } => {
            for event in events {
                *latest_ms = event.utc_ms.unwrap_or(*latest_ms);
                insert_event(transaction, boot_id, event, *latest_ms).map_err(failed)?;
            }
            move_cursor(transaction, boot_id, *resume_seq).map_err(failed)
        }
        JournalRecord::Event { boot_id, event } => {
            *latest_ms = event.utc_ms.unwrap_or(*latest_ms);
            match event.is_once {
                true => insert_event_once(transaction, boot_id, event, *latest_ms),
                false => insert_event(transaction, boot_id, event, *latest_ms),
            }
            .map_err(failed)?;
            insert_reboot(transaction, record)
        }
        JournalRecord::Decision { utc_ms, .. } => {
            *latest_ms = *utc_ms;
            match insert_decision(transaction, record)? {
                InsertOutcome::New => insert_reboot(transaction, record),
                InsertOutcome::Before => Ok(()),
            }
        }
        JournalRecord::Alive { boot_id, uptime_ms } => {
            note_alive(transaction, boot_id, *uptime_ms).map_err(failed)
        }
        JournalRecord::Outcome { decision, utc_ms, json } => {
            *latest_ms = *utc_ms;
            let sql = "INSERT INTO outcomes (decision, utc_ms, json) VALUES (?1, ?2, ?3)
                ON CONFLICT (decision) DO UPDATE SET utc_ms = ?2, json = ?3";
            execute(transaction, sql, params![row_id(*decision)?, utc_ms, json]).map_err(failed)?;
            insert_reboot(transaction, record)
        }
        JournalRecord::AimCheck { decision, utc_ms, json } => {
            *latest_ms = *utc_ms;
            let position = next_position(transaction).map_err(failed)?;
            let sql = "INSERT INTO aim_checks (decision, utc_ms, json, position)
                VALUES (?1, ?2, ?3, ?4)
                ON CONFLICT (decision) DO UPDATE SET utc_ms = ?2, json = ?3, position = ?4";
            let values = params![row_id(*decision)?, utc_ms, json, position];
            execute(transaction, sql, values).map_err(failed)
        }
        JournalRecord::Alert { utc_ms, rule, json } => {
            *latest_ms = *utc_ms;
            let sql = "INSERT INTO alerts (utc_ms, rule, alert, json) VALUES (?1, ?2, ?3, ?4)";
            execute(transaction, sql, params![utc_ms, rule.to_string(), rule.alert, json])
                .map_err(failed)
        }
        JournalRecord::Note { utc_ms, json } => {
            *latest_ms = *utc_ms;
            let sql = "INSERT INTO notes (utc_ms, json) VALUES (?1, ?2)";
            execute(transaction, sql, params![utc_ms, json]).map_err(failed)
        }
        JournalRecord::Operator(row) => {
            *latest_ms = row.utc_ms;
            insert_operator(transaction, row)?;
            insert_reboot(transaction, record)
        }
    }
}

/// Inserts the additional row of a reboot.
fn insert_reboot(
    transaction: &Transaction<'_>,
    record: &JournalRecord,
) -> Result<(), DatabaseFailure> {
    let failed = |error: rusqlite::Error| DatabaseFailure::new("writing to the journal", &error);
    let Some(row) = record.reboot() else { return Ok(()) };
    let json =
        serde_json::to_string(&row).map_err(|error| DatabaseFailure::Refused(error.to_string()))?;
    execute(transaction, "INSERT INTO reboots (json) VALUES (?1)", params![json])
        .map_err(failed)?;
    let forget = format!(
        "DELETE FROM reboots WHERE id <=
         (SELECT id FROM reboots ORDER BY id DESC LIMIT 1 OFFSET {MOST_REBOOT_ROWS})"
    );
    execute(transaction, &forget, params![]).map_err(failed)?;
    match row.boot() {
        Some(boot) => note_alive(transaction, &boot.boot_id, boot.uptime_ms).map_err(failed),
        None => Ok(()),
    }
}

fn note_alive(
    transaction: &Transaction<'_>,
    boot_id: &str,
    uptime_ms: i64,
) -> rusqlite::Result<()> {
    let known = transaction
        .prepare_cached("UPDATE boots SET uptime_ms = max(uptime_ms, ?2) WHERE boot_id = ?1")?
        .execute(params![boot_id, uptime_ms])?;
    if known > 0 {
        return Ok(());
    }
    execute(
        transaction,
        "INSERT INTO boots (boot_id, uptime_ms) VALUES (?1, ?2)",
        params![boot_id, uptime_ms],
    )?;
    let forget = format!(
        "DELETE FROM boots WHERE id <=
         (SELECT id FROM boots ORDER BY id DESC LIMIT 1 OFFSET {MOST_BOOTS})"
    );
    execute(transaction, &forget, params![])
}

/// Whether a row was written, or was there already.
enum InsertOutcome {
    New,
    Before,
}

fn insert_operator(
    transaction: &Transaction<'_>,
    row: &OperatorRow,
) -> Result<(), DatabaseFailure> {
    let failed = |error: rusqlite::Error| DatabaseFailure::new("writing to the journal", &error);
    let silence = row.silence.map(row_id).transpose()?;
    let decision = row.decision.map(row_id).transpose()?;
    let position = next_position(transaction).map_err(failed)?;
    if let Some(given) = &row.instead_of {
        let sql = "DELETE FROM operator_commands WHERE utc_ms = ?1 AND json = ?2";
        execute(transaction, sql, params![row.utc_ms, given]).map_err(failed)?;
    }
    execute(
        transaction,
        "INSERT INTO operator_commands
         (utc_ms, word, silence, decision, rule, alert, until_ms, json, position)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        params![
            row.utc_ms,
            row.word,
            silence,
            decision,
            row.rule,
            row.alert,
            row.until_ms,
            row.json,
            position
        ],
    )
    .map_err(failed)?;
    let sql = match row.word {
        "silence" => {
            "INSERT INTO meta (key, value) VALUES ('last_silence', ?1)
             ON CONFLICT (key) DO UPDATE SET value = max(value, ?1)"
        }
        "end_silence" => {
            "UPDATE operator_commands SET until_ms = 0 WHERE word = 'silence' AND silence = ?1"
        }
        _ => return Ok(()),
    };
    execute(transaction, sql, params![silence]).map_err(failed)
}

/// Removes a command whose author was informed that it failed.
pub(super) fn take_back(connection: &Connection, row: &OperatorRow) -> Result<(), DatabaseFailure> {
    let failed = |error: rusqlite::Error| DatabaseFailure::new("taking a command back", &error);
    let sql = "DELETE FROM operator_commands WHERE id =
        (SELECT max(id) FROM operator_commands WHERE utc_ms = ?1 AND json = ?2)";
    connection
        .prepare_cached(sql)
        .and_then(|mut delete| delete.execute(params![row.utc_ms, row.json]))
        .map_err(failed)?;
    Ok(())
}

fn insert_event(
    transaction: &Transaction<'_>,
    boot_id: &str,
    event: &EventRow,
    utc_ms: i64,
) -> rusqlite::Result<()> {
    execute(
        transaction,
        "INSERT INTO events (boot_id, seq, utc_ms, kind, json) VALUES (?1, ?2, ?3, ?4, ?5)
         ON CONFLICT (boot_id, seq) DO NOTHING",
        params![boot_id, event.seq.map(u64::cast_signed), utc_ms, event.kind, event.json],
    )?;
    // Events that may be forged are stored for display, and not for state that lasts until a
    // reboot.
    if event.seq.is_some_and(|seq| seq >= SYSLOG_SEQ_BASE) {
        return Ok(());
    }
    execute(
        transaction,
        "INSERT INTO last_events (boot_id, kind, utc_ms) VALUES (?1, ?2, ?3)
         ON CONFLICT (boot_id, kind) DO UPDATE SET utc_ms = max(utc_ms, ?3)",
        params![boot_id, event.kind, utc_ms],
    )
}

/// An event without a sequence number, by which a repetition could be recognised.
fn insert_event_once(
    transaction: &Transaction<'_>,
    boot_id: &str,
    event: &EventRow,
    utc_ms: i64,
) -> rusqlite::Result<()> {
    let first = transaction
        .prepare_cached(
            "INSERT INTO last_events (boot_id, kind, utc_ms) VALUES (?1, ?2, ?3)
             ON CONFLICT (boot_id, kind) DO NOTHING",
        )?
        .execute(params![boot_id, event.kind, utc_ms])?;
    if first == 0 {
        return Ok(());
    }
    execute(
        transaction,
        "INSERT INTO events (boot_id, utc_ms, kind, json) VALUES (?1, ?2, ?3, ?4)",
        params![boot_id, utc_ms, event.kind, event.json],
    )
}

fn move_cursor(
    transaction: &Transaction<'_>,
    boot_id: &str,
    resume_seq: u64,
) -> rusqlite::Result<()> {
    // Not an upsert: that would use up a number at every move.
    let moved = transaction
        .prepare_cached("UPDATE kernel_log_cursor SET resume_seq = ?2 WHERE boot_id = ?1")?
        .execute(params![boot_id, resume_seq.cast_signed()])?;
    if moved > 0 {
        return Ok(());
    }
    execute(
        transaction,
        "INSERT INTO kernel_log_cursor (boot_id, resume_seq) VALUES (?1, ?2)",
        params![boot_id, resume_seq.cast_signed()],
    )
}

fn insert_decision(
    transaction: &Transaction<'_>,
    record: &JournalRecord,
) -> Result<InsertOutcome, DatabaseFailure> {
    let failed = |error: rusqlite::Error| DatabaseFailure::new("writing to the journal", &error);
    let JournalRecord::Decision { id, utc_ms, rule, decision, json } = record else {
        return Ok(InsertOutcome::Before);
    };
    let row = row_id(*id)?;
    let known: Option<String> = transaction
        .prepare_cached("SELECT json FROM decisions WHERE id = ?1")
        .and_then(|mut select| select.query_row([row], |row| row.get(0)).optional())
        .map_err(failed)?;
    match known {
        // An intent that was reported as failed, and written later.
        Some(known) if known == *json => return Ok(InsertOutcome::Before),
        Some(_) => {
            let text = format!("decision {id} is in the journal already, and is another one");
            return Err(DatabaseFailure::Refused(text));
        }
        None => {}
    }
    let position = next_position(transaction).map_err(failed)?;
    execute(
        transaction,
        "INSERT INTO decisions (id, utc_ms, rule, alert, decision, json, position)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        params![row, utc_ms, rule.to_string(), rule.alert, decision.name(), json, position],
    )
    .and_then(|()| {
        execute(
            transaction,
            "INSERT INTO meta (key, value) VALUES ('last_decision', ?1)
             ON CONFLICT (key) DO UPDATE SET value = max(value, ?1)",
            params![row],
        )
    })
    .map_err(failed)?;
    Ok(InsertOutcome::New)
}

/// See `position` in `format_1.sql`.
fn next_position(transaction: &Transaction<'_>) -> rusqlite::Result<i64> {
    let sql = "INSERT INTO meta (key, value) VALUES ('last_position', 1)
        ON CONFLICT (key) DO UPDATE SET value = value + 1 RETURNING value";
    transaction.prepare_cached(sql)?.query_row([], |row| row.get(0))
}

fn execute(
    transaction: &Transaction<'_>,
    sql: &str,
    values: impl rusqlite::Params,
) -> rusqlite::Result<()> {
    transaction.prepare_cached(sql)?.execute(values).map(|_| ())
}

fn row_id(decision: u64) -> Result<i64, DatabaseFailure> {
    i64::try_from(decision)
        .map_err(|_| DatabaseFailure::Refused(format!("number {decision} is too large")))
}

/// The orders in force, the oldest first.
pub(super) fn operator_memory(
    connection: &Connection,
    now_ms: i64,
) -> Result<OperatorMemory, DatabaseFailure> {
    let failed =
        |error: rusqlite::Error| DatabaseFailure::new("reading what people ordered", &error);
    // Of several answers to one question the last one counts, even a lapsed one.
    let sql = "SELECT json FROM operator_commands AS given
        WHERE until_ms > ?1 AND (word = 'silence' OR word IN ('approve', 'deny') AND NOT EXISTS (
            SELECT 1 FROM operator_commands AS later WHERE later.word IN ('approve', 'deny')
            AND later.decision = given.decision AND later.id > given.id))
        ORDER BY id";
    let rows: Vec<String> = connection
        .prepare(sql)
        .and_then(|mut select| select.query_map([now_ms], |row| row.get(0))?.collect())
        .map_err(failed)?;
    // An unreadable order may forbid anything.
    let commands = rows
        .iter()
        .map(|json| {
            from_json(json).ok_or_else(|| {
                DatabaseFailure::Later(format!("an order in the journal is not understood: {json}"))
            })
        })
        .collect::<Result<Vec<_>, _>>()?;
    let last_silence = connection
        .query_row("SELECT value FROM meta WHERE key = 'last_silence'", [], |row| {
            row.get(0).map(i64::cast_unsigned)
        })
        .optional()
        .map_err(failed)?
        .unwrap_or_default();
    Ok(OperatorMemory { commands, last_silence })
}

/// The number of the newest decision ever stored; 0 if there was none.
pub(super) fn last_decision(connection: &Connection) -> Result<u64, DatabaseFailure> {
    connection
        .query_row("SELECT value FROM meta WHERE key = 'last_decision'", [], |row| {
            row.get(0).map(i64::cast_unsigned)
        })
        .optional()
        .map(Option::unwrap_or_default)
        .map_err(|error| DatabaseFailure::new("reading the last decision's number", &error))
}

/// The boot whose records were stored last.
pub(super) fn last_boot(connection: &Connection) -> Result<Option<String>, DatabaseFailure> {
    let sql = "SELECT boot_id FROM kernel_log_cursor ORDER BY id DESC LIMIT 1";
    connection
        .query_row(sql, [], |row| row.get(0))
        .optional()
        .map_err(|error| DatabaseFailure::new("reading the last boot", &error))
}

/// The position after which the acts of a boot are: the last one if this boot is new.
pub(super) fn boot_begins_after(
    connection: &Connection,
    boot_id: &str,
) -> Result<i64, DatabaseFailure> {
    let failed = |error: rusqlite::Error| {
        DatabaseFailure::new("reading and writing where the boot begins", &error)
    };
    let sql = "SELECT p.value FROM meta b, meta p
        WHERE b.key = 'boot_id' AND b.value = ?1 AND p.key = 'boot_begins_after'";
    let known = connection.query_row(sql, [boot_id], |row| row.get(0)).optional();
    if let Some(known) = known.map_err(failed)? {
        return Ok(known);
    }
    let sql = "SELECT value FROM meta WHERE key = 'last_position'";
    let last: Option<i64> =
        connection.query_row(sql, [], |row| row.get(0)).optional().map_err(failed)?;
    let last = last.unwrap_or_default();
    let sql = "INSERT INTO meta (key, value) VALUES ('boot_id', ?1), ('boot_begins_after', ?2)
        ON CONFLICT (key) DO UPDATE SET value = excluded.value";
    connection.execute(sql, params![boot_id, last]).map_err(failed)?;
    Ok(last)
}

/// Records that earlier entries are lost. The row for reboots has no time yet: it does not rely on
/// the wall clock.
pub(super) fn note_loss(connection: &mut Connection) -> Result<(), DatabaseFailure> {
    let failed =
        |error: rusqlite::Error| DatabaseFailure::new("noting that a journal was lost", &error);
    let row = serde_json::to_string(&RebootRow::Lost { at: None });
    let row = row.map_err(|error| DatabaseFailure::Refused(error.to_string()))?;
    let sql = "INSERT INTO meta (key, value) VALUES ('lost_before_utc_ms', unixepoch() * 1000)
        ON CONFLICT (key) DO UPDATE SET value = excluded.value";
    let transaction =
        connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
    execute(&transaction, sql, params![]).map_err(failed)?;
    execute(&transaction, "INSERT INTO reboots (json) VALUES (?1)", params![row])
        .map_err(failed)?;
    transaction.commit().map_err(failed)
}

/// The position to resume reading the log of a boot.
pub(super) fn resume_point(
    connection: &Connection,
    boot_id: &str,
) -> Result<Option<ResumePoint>, DatabaseFailure> {
    let failed = |error: rusqlite::Error| {
        DatabaseFailure::new("reading the position in the kernel log", &error)
    };
    let sql = "SELECT resume_seq FROM kernel_log_cursor WHERE boot_id = ?1";
    let position: Option<i64> =
        connection.query_row(sql, [boot_id], |row| row.get(0)).optional().map_err(failed)?;
    let Some(position) = position else { return Ok(None) };
    // SQLite has no unsigned numbers: those above its largest are negative.
    let sql = if position >= 0 {
        "SELECT seq FROM events WHERE boot_id = ?1 AND (seq >= ?2 OR seq < 0)"
    } else {
        "SELECT seq FROM events WHERE boot_id = ?1 AND seq >= ?2 AND seq < 0"
    };
    let known: BTreeSet<u64> = connection
        .prepare(sql)
        .and_then(|mut select| {
            select
                .query_map(params![boot_id, position], |row| row.get(0).map(i64::cast_unsigned))?
                .collect()
        })
        .map_err(failed)?;
    let last_events = last_events(connection, boot_id).map_err(failed)?;
    Ok(Some(ResumePoint { resume_seq: position.cast_unsigned(), known, last_events }))
}

fn last_events(
    connection: &Connection,
    boot_id: &str,
) -> rusqlite::Result<BTreeMap<String, Timestamp>> {
    let sql = "SELECT kind, utc_ms FROM last_events WHERE boot_id = ?1";
    let mut select = connection.prepare(sql)?;
    let rows = select.query_map([boot_id], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let mut last = BTreeMap::new();
    for row in rows {
        let (kind, utc_ms): (String, i64) = row?;
        last.extend(Timestamp::from_millisecond(utc_ms).ok().map(|utc| (kind, utc)));
    }
    Ok(last)
}
