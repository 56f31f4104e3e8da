//! The acts, orders and reboots of earlier runs, for the guard rails.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use rusqlite::{OptionalExtension, Row, params};
use serde::Deserialize;

use super::reader::{JournalReader, ReadError};
use super::reboots::{BootDuration, RebootRow, past_reboots};
use super::timeline::from_json;
use crate::model::{
    AimCheck, AlertChange, AlertState, DecisionId, DecisionRecord, EnginePhase, Event, EventKind,
    FleetAction, Mode, Moment, OperatorCommand, OperatorOrder, Outcome, OutcomeResult, PastAct,
    PastLoad, PastRanks, PastReboots, PastReceived, ProgramEvent, RestartState, RuleId,
    RuleSelector,
};

/// Deferred restarts of earlier runs, by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PastRestarts {
    /// Their last known states.
    pub states: BTreeMap<Arc<str>, RestartState>,
    /// The ranks of those that are one of an engine that spans nodes.
    pub ranks: BTreeMap<Arc<str>, PastRanks>,
}

/// An act of an earlier run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredAct {
    /// The id of the decision.
    pub id: DecisionId,
    /// The rule that decided the act.
    pub rule: RuleId,
    /// The mode in which it was decided.
    pub mode: Mode,
    /// Position in the remedy's steps, from 0.
    pub step: usize,
    /// Whether it was only a notice.
    pub is_notice: bool,
    /// Time of the decision.
    pub at: Moment,
    /// Whether its outcome is known.
    pub has_ended: bool,
    /// Whether its aim was met; `None` if that was not measured.
    pub aim_met: Option<bool>,
    /// The decision whose approval it used; an act that was not done has used none.
    pub approved: Option<DecisionId>,
    /// The mark of the end before a restart, if it was one.
    pub started_after: Option<Arc<str>>,
    /// The phase in which the restarted workload died, if it did.
    pub died_in: Option<EnginePhase>,
    /// The engine that it acted on, if any.
    pub engine: Option<Arc<str>>,
    /// The action, if the fleet's limit may bound it.
    pub fleet_action: Option<FleetAction>,
    /// Whether it only reclaimed memory that the engine can spare.
    pub takes_from_engine: bool,
    /// Its number in the order of storing, independent of clocks.
    pub position: i64,
    /// Whether a person has reset the breaker of its rule since.
    pub is_forgiven: bool,
}

impl StoredAct {
    /// The act on this boot's uptime clock, for the guard rails.
    pub fn on_uptime_clock(self, uptime_ms: i64) -> PastAct {
        PastAct {
            id: self.id,
            rule: self.rule,
            mode: self.mode,
            step: self.step,
            is_notice: self.is_notice,
            uptime_ms,
            utc: self.at.utc,
            has_ended: self.has_ended,
            aim_met: self.aim_met,
            approved: self.approved,
            started_after: self.started_after,
            died_in: self.died_in,
            engine: self.engine,
            fleet_action: self.fleet_action,
            takes_from_engine: self.takes_from_engine,
            is_forgiven: self.is_forgiven,
        }
    }
}

/// A breaker reset by a person.
struct BreakerReset {
    position: i64,
    rules: RuleSelector,
}

/// The part of a decision that guard rails need. An unknown action counts as one.
#[derive(Deserialize)]
struct WrittenAct {
    at: Moment,
    rule: RuleId,
    mode: Mode,
    #[serde(default)]
    step: usize,
    #[serde(default)]
    action: serde_json::Value,
    #[serde(default)]
    target: serde_json::Value,
    #[serde(default)]
    approved: Option<DecisionId>,
}

impl WrittenAct {
    /// The engine that it acted on.
    fn engine(&self) -> Option<Arc<str>> {
        let is_engine = self.target.get("kind").is_some_and(|kind| kind == "engine");
        let target = self.target.get("name").filter(|_| is_engine);
        let reclaim = || self.action.get("reclaim")?.get("engine");
        let name = target.or_else(reclaim)?.as_str().filter(|name| !name.is_empty())?;
        Some(Arc::from(name))
    }

    /// Which action it was, if one of the fleet's.
    fn fleet_action(&self) -> Option<FleetAction> {
        let read = serde_json::from_value(self.action.clone()).ok();
        read.and_then(|action| FleetAction::of(&action))
    }

    fn takes_from_engine(&self) -> bool {
        let is = |name: &str| self.action.get(name).is_some();
        is("evict_checkpoint") || is("empty_cache") || is("reclaim") && self.engine().is_some()
    }
}

/// Newest acts of one mode that are read.
const MOST_ACTS: usize = 10_000;

/// Newest acts of one rule that are read: no limit reaches further.
const MOST_ACTS_A_RULE: usize = 1_000;

/// Approval requests that may still be open.
const MOST_ASKED: i64 = 1_000;

/// Newest changes of a rule's alerts that are searched for its end.
const MOST_ENDS: i64 = 1_000;

/// Newest breaker resets that are read.
const MOST_RESETS: i64 = 1_000;

/// Newest changes of restarts that are searched for the last one of each.
const MOST_RESTARTS: i64 = 1_000;
/// Newest loads that are searched for those of each engine.
const MOST_LOADS: i64 = 1_000;
/// Received alerts that are remembered.
const MOST_RECEIVED: i64 = 2_000;

/// Newest events of any kind that are searched.
const MOST_EVENTS: i64 = 100_000;

impl JournalReader {
    /// The newest acts, in the order in which they were stored; with an id, only those stored
    /// before that decision.
    pub fn acts(&self, before: Option<DecisionId>) -> Result<Vec<StoredAct>, ReadError> {
        let sql = "SELECT d.id, d.utc_ms, d.rule, d.alert, d.json, o.json, a.json,
                 d.position AS act_position, coalesce(a.position, 0) AS judged_position
             FROM decisions d
             LEFT JOIN outcomes o ON o.decision = d.id
             LEFT JOIN aim_checks a ON a.decision = d.id
             WHERE d.decision = 'act' AND (?1 IS NULL OR coalesce(
                 d.position < (SELECT d.position FROM decisions d WHERE d.id = ?1), d.id < ?1))
             ORDER BY d.position DESC";
        let read = || -> rusqlite::Result<Vec<StoredAct>> {
            let resets = self.resets()?;
            let mut kept = Vec::new();
            let mut of_mode: BTreeMap<Mode, usize> = BTreeMap::new();
            let mut of_rule: BTreeMap<(RuleId, Mode), usize> = BTreeMap::new();
            let mut select = self.connection.prepare(sql)?;
            let mut rows = select.query([before.map(row_id)])?;
            while let Some(row) = rows.next()? {
                let Some(act) = stored_act(row, &resets)? else { continue };
                let in_mode = of_mode.entry(act.mode).or_default();
                let in_rule = of_rule.entry((act.rule.clone(), act.mode)).or_default();
                *in_rule += 1;
                if *in_rule <= MOST_ACTS_A_RULE && *in_mode < MOST_ACTS {
                    *in_mode += 1;
                    kept.push(act);
                }
                if of_mode.values().all(|count| *count >= MOST_ACTS) && of_mode.len() == 2 {
                    break;
                }
            }
            kept.reverse();
            Ok(kept)
        };
        read().map_err(|error| self.failed(error))
    }

    /// The newest breaker resets. An unreadable one resets nothing.
    fn resets(&self) -> rusqlite::Result<Vec<BreakerReset>> {
        let sql = "SELECT position, json FROM operator_commands WHERE word = 'reset_breaker'
            ORDER BY position DESC LIMIT ?";
        let mut select = self.connection.prepare(sql)?;
        let rows = select.query_map([MOST_RESETS], |row| {
            Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?))
        })?;
        let mut resets = Vec::new();
        for row in rows {
            let (position, json) = row?;
            let command: Option<OperatorCommand> = from_json(&json);
            if let Some(OperatorOrder::ResetBreaker { rules }) = command.map(|one| one.order) {
                resets.push(BreakerReset { position, rules });
            }
        }
        Ok(resets)
    }

    /// Decisions since a time that were held for an approval, or announced, oldest first. Each has
    /// its position.
    pub fn asked_for_approval(
        &self,
        since: Timestamp,
    ) -> Result<Vec<(i64, DecisionRecord)>, ReadError> {
        let sql = "SELECT position, json FROM decisions WHERE decision = 'hold' AND utc_ms >= ?
            AND json_extract(json, '$.reason') IN ('approval', 'announced')
            ORDER BY position DESC LIMIT ?";
        let read = || -> rusqlite::Result<Vec<(i64, DecisionRecord)>> {
            let since = since.as_millisecond();
            let mut select = self.connection.prepare(sql)?;
            let rows = select.query_map(params![since, MOST_ASKED], |row| {
                Ok((row.get(0)?, row.get::<_, String>(1)?))
            })?;
            let rows: Vec<(i64, String)> = rows.collect::<rusqlite::Result<_>>()?;
            let read = rows.iter().rev();
            Ok(read.filter_map(|(position, json)| Some((*position, from_json(json)?))).collect())
        };
        read().map_err(|error| self.failed(error))
    }

    /// Whether an alert of that rule has ended since a decision of the same boot.
    pub fn has_ended_since(&self, decision: &DecisionRecord) -> Result<bool, ReadError> {
        let sql = "SELECT json FROM alerts WHERE rule = ? ORDER BY id DESC LIMIT ?";
        let read = || -> rusqlite::Result<Vec<String>> {
            self.connection
                .prepare(sql)?
                .query_map(params![decision.rule.to_string(), MOST_ENDS], |row| row.get(0))?
                .collect()
        };
        let rows = read().map_err(|error| self.failed(error))?;
        let mut changes = rows.iter().filter_map(|json| from_json::<AlertChange>(json));
        Ok(changes.any(|change| {
            change.from == AlertState::Firing && change.at.uptime >= decision.at.uptime
        }))
    }

    /// The unaccounted memory while no engine ran in a boot, in bytes, by memory pool; of the
    /// newest events.
    pub fn unaccounted_baselines(
        &self,
        boot_id: &str,
    ) -> Result<BTreeMap<Arc<str>, u64>, ReadError> {
        let sql = "SELECT json FROM events WHERE boot_id = ?1
            AND kind = 'unaccounted_baseline' ORDER BY id DESC LIMIT ?2";
        let read = || -> rusqlite::Result<Vec<String>> {
            self.connection
                .prepare(sql)?
                .query_map(params![boot_id, MOST_ASKED], |row| row.get(0))?
                .collect()
        };
        let rows = read().map_err(|error| self.failed(error))?;
        let events = rows.iter().rev().filter_map(|json| from_json::<Event>(json));
        Ok(events
            .filter_map(|event| match event.kind {
                EventKind::Program(ProgramEvent::UnaccountedBaseline { pool, bytes }) => {
                    Some((pool, bytes))
                }
                _ => None,
            })
            .collect())
    }

    /// The last complete loads of engines, oldest first: at most `of_engine` of each. Behind them
    /// how an engine read in its very last load, if that was not complete. Unreadable ones are left
    /// out.
    pub fn loads(&self, of_engine: usize) -> Result<Vec<PastLoad>, ReadError> {
        let sql = "SELECT json FROM events WHERE kind = 'engine_load'
            AND id > (SELECT coalesce(max(id), 0) FROM events) - ?1
            ORDER BY id DESC LIMIT ?2";
        let read = || -> rusqlite::Result<Vec<String>> {
            self.connection
                .prepare(sql)?
                .query_map([MOST_EVENTS, MOST_LOADS], |row| row.get(0))?
                .collect()
        };
        let mut counts: BTreeMap<Arc<str>, usize> = BTreeMap::new();
        let mut loads = Vec::new();
        for json in read().map_err(|error| self.failed(error))? {
            let Some(Event {
                kind: EventKind::Program(ProgramEvent::EngineLoad { engine, receipt, .. }),
                ..
            }) = from_json(&json)
            else {
                continue;
            };
            let is_first = !counts.contains_key(&*engine);
            let count = counts.entry(Arc::from(&*engine)).or_default();
            let Some(load) = receipt.known(&engine) else { continue };
            if load.is_only_reading && is_first {
                loads.push(load);
            } else if !load.is_only_reading && *count < of_engine {
                *count += 1;
                loads.push(load);
            }
        }
        loads.reverse();
        Ok(loads)
    }

    /// The last known state of each restart, and the last known ranks, by name.
    pub fn restarts(&self) -> Result<PastRestarts, ReadError> {
        let sql = "SELECT json FROM events WHERE kind = 'engine_restart'
            AND id > (SELECT coalesce(max(id), 0) FROM events) - ?1
            ORDER BY id DESC LIMIT ?2";
        let read = || -> rusqlite::Result<Vec<String>> {
            self.connection
                .prepare(sql)?
                .query_map([MOST_EVENTS, MOST_RESTARTS], |row| row.get(0))?
                .collect()
        };
        let (mut states, mut ranks_of) = (BTreeMap::new(), BTreeMap::new());
        for json in read().map_err(|error| self.failed(error))? {
            let Some(Event {
                kind: EventKind::Program(ProgramEvent::EngineRestart { engine, to, ranks, .. }),
                ..
            }) = from_json(&json)
            else {
                continue;
            };
            let engine: Arc<str> = engine.into();
            // An unknown state replaces no known one.
            if to != RestartState::Unknown {
                states.entry(Arc::clone(&engine)).or_insert(to);
            }
            ranks_of.entry(engine).or_insert(ranks);
        }
        let ranks = ranks_of.into_iter().filter_map(|(name, ranks)| Some((name, *ranks?)));
        Ok(PastRestarts { states, ranks: ranks.collect() })
    }

    /// The last report of each received alert, oldest first; only the newest alerts.
    pub fn received(&self) -> Result<Vec<PastReceived>, ReadError> {
        let sql = "SELECT json FROM events WHERE id IN (
                SELECT max(id) FROM events WHERE kind = 'received_alert'
                AND json_valid(json)
                GROUP BY json_extract(json, '$.fingerprint'))
            ORDER BY id DESC LIMIT ?";
        let read = || -> rusqlite::Result<Vec<String>> {
            let mut select = self.connection.prepare(sql)?;
            select.query_map([MOST_RECEIVED], |row| row.get(0))?.collect()
        };
        let rows = read().map_err(|error| self.failed(error))?;
        let received = rows.iter().rev().filter_map(|json| match from_json(json)? {
            Event {
                kind: EventKind::Program(ProgramEvent::ReceivedAlert { to, alert }),
                utc,
                ..
            } => Some(PastReceived { to, alert, utc }),
            _ => None,
        });
        Ok(received.collect())
    }

    /// The known reboots, as of a boot id; `None`: the boot has none. An unreadable row may be a
    /// reboot: then the id is dropped, which prevents reboots.
    pub fn reboots(&self, boot_id: Option<&str>) -> Result<PastReboots, ReadError> {
        let Some(boot_id) = boot_id else { return Ok(PastReboots::default()) };
        let read = || -> rusqlite::Result<(Vec<Option<RebootRow>>, Vec<BootDuration>)> {
            let mut select = self.connection.prepare("SELECT json FROM reboots ORDER BY id")?;
            let rows = select.query_map([], |row| row.get::<_, String>(0))?;
            let rows = rows.map(|json| Ok(from_json(&json?))).collect::<rusqlite::Result<_>>()?;
            let mut select =
                self.connection.prepare("SELECT boot_id, uptime_ms FROM boots ORDER BY id")?;
            let boots = select.query_map([], |row| {
                let boot_id: String = row.get(0)?;
                Ok(BootDuration { boot_id: boot_id.into(), uptime_ms: row.get(1)? })
            })?;
            Ok((rows, boots.collect::<rusqlite::Result<_>>()?))
        };
        let (rows, boots) = read().map_err(|error| self.failed(error))?;
        let Some(rows) = rows.into_iter().collect::<Option<Vec<RebootRow>>>() else {
            tracing::error!(effect = "nothing is rebooted", "row about a reboot not understood");
            return Ok(PastReboots::default());
        };
        Ok(past_reboots(&rows, &boots, boot_id))
    }

    /// The time of the replacement of a damaged journal, whose entries are lost, if there was one.
    pub fn lost_before(&self) -> Result<Option<Timestamp>, ReadError> {
        let sql = "SELECT value FROM meta WHERE key = 'lost_before_utc_ms'";
        let read = self.connection.query_row(sql, [], |row| row.get::<_, i64>(0)).optional();
        let read = read.map_err(|error| self.failed(error))?;
        Ok(read.map(|ms| Timestamp::from_millisecond(ms).unwrap_or(Timestamp::MAX)))
    }
}

/// Whether an action is part of a scheduled reboot, and so no act of its rule.
const FOLLOW_UPS: [&str; 5] = ["warn_users", "take_slot", "perform", "call_off", "release_slot"];

fn row_id(decision: DecisionId) -> i64 {
    i64::try_from(decision.0).unwrap_or(i64::MAX)
}

/// An unreadable row counts as a real act. An undo is no act, and neither are the steps of a
/// scheduled reboot, such as the stop of an engine for it.
fn stored_act(row: &Row<'_>, resets: &[BreakerReset]) -> rusqlite::Result<Option<StoredAct>> {
    let (id, utc_ms): (i64, i64) = (row.get(0)?, row.get(1)?);
    let (rule, alert): (String, String) = (row.get(2)?, row.get(3)?);
    let json: String = row.get(4)?;
    let (outcome, aim_check): (Option<String>, Option<String>) = (row.get(5)?, row.get(6)?);
    let (position, judged_position): (i64, i64) = (row.get(7)?, row.get(8)?);
    let outcome: Option<Outcome> = outcome.and_then(|json| from_json(&json));
    let aim_check: Option<AimCheck> = aim_check.and_then(|json| from_json(&json));
    let written = from_json(&json).unwrap_or_else(|| WrittenAct {
        at: Moment {
            uptime: std::time::Duration::MAX,
            utc: Timestamp::from_millisecond(utc_ms).unwrap_or(Timestamp::MAX),
        },
        rule: RuleId {
            group: Arc::from(rule.strip_suffix(&format!("/{alert}")).unwrap_or_default()),
            alert: Arc::from(alert),
        },
        mode: Mode::Enforce,
        step: 0,
        action: serde_json::Value::Null,
        target: serde_json::Value::Null,
        approved: None,
    });
    let follows = |act: &serde_json::Value| FOLLOW_UPS.iter().any(|name| act.get(name).is_some());
    let of = |action: &str| written.action.get(action);
    let makes_way = of("stop_engine").is_some_and(|stop| stop.get("for_reboot").is_some());
    if of("undo").is_some() || of("reboot").is_some_and(follows) || makes_way {
        return Ok(None);
    }
    let was_begun = outcome.as_ref().is_none_or(|outcome| outcome.result.is_begun());
    let was_not_done =
        outcome.as_ref().is_some_and(|outcome| matches!(outcome.result, OutcomeResult::NotDone(_)));
    let has_ended = outcome.is_some_and(|outcome| {
        // An action without an end in time may have hung the machine.
        outcome.result != OutcomeResult::TimedOut
    }) || aim_check.is_some();
    let forgives = |reset: &BreakerReset| {
        reset.position > position.max(judged_position) && reset.rules.selects(&written.rule)
    };
    // An act that was not begun has started nothing that could fail.
    let starts = ["start_container", "start_unit"]
        .into_iter()
        .filter(|_| was_begun)
        .find_map(|name| written.action.get(name)?.get("ended")?.as_str().map(Arc::from));
    Ok(Some(StoredAct {
        engine: written.engine(),
        takes_from_engine: written.takes_from_engine(),
        fleet_action: written.fleet_action(),
        position,
        started_after: starts,
        died_in: aim_check.as_ref().and_then(|aim_check| aim_check.died_in),
        is_forgiven: resets.iter().any(forgives),
        id: DecisionId(id.cast_unsigned()),
        is_notice: written.action.get("notify").is_some(),
        rule: written.rule,
        mode: written.mode,
        step: written.step,
        at: written.at,
        has_ended,
        aim_met: aim_check.and_then(|aim_check| aim_check.aim_met),
        approved: written.approved.filter(|_| !was_not_done),
    }))
}
