//! Behaviour of the journal on real files; `tests/integration/journal.rs` has what needs a
//! process of its own, or a disk of its own.

mod orders;
mod past;
mod reading;
mod reboots;
mod round_trip;
mod writing;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::{Journal, JournalEntry, Note, Retention};
use crate::model::{
    Action, AimCheck, AlertChange, AlertState, CacheKind, Decision, DecisionId, DecisionRecord,
    Event, Evidence, HoldReason, KernelEvent, Mode, Moment, OperatorCommand, OperatorOrder,
    Outcome, OutcomeResult, Pool, ProgramEvent, Reading, RuleId, RuleSelector, Target,
};

const PATIENCE: Duration = Duration::from_secs(30);
const BOOT: &str = "8b1a9953-c461-4129-9f2c-0d1b6f1b6c35";
const KEEP_ALL: Retention =
    Retention { max_age: Duration::from_secs(30 * 86_400), max_bytes: 256 << 20 };

fn moment(seconds: i64) -> Moment {
    Moment {
        uptime: Duration::from_secs(seconds.unsigned_abs()),
        utc: Timestamp::from_second(1_700_000_000 + seconds).unwrap(),
    }
}

fn event(seq: u64) -> Event {
    Event {
        utc: Some(moment(seq.min(1 << 30).cast_signed()).utc),
        seq: Some(seq),
        kind: KernelEvent::NvNoMemory {
            function: "nvCheckOkFailedNoLog".to_owned(),
            gpu: None,
            pool: Pool::Any,
            location: Some("mem_desc.c:1359".to_owned()),
        }
        .into(),
    }
}

fn unclean_boot() -> ProgramEvent {
    ProgramEvent::UncleanBoot {
        ended_boot_id: "before".to_owned(),
        last_record: Some(moment(0).utc),
        gap_seconds: Some(12.5),
        memory_free_bytes: Some(1e9),
        memory_available_bytes: None,
        memory_unaccounted_bytes: None,
        memory_pressure_full: Some(0.97),
        loop_age_seconds: None,
        last_event: Some("hung_task".to_owned()),
        firing: vec!["HungTask".to_owned()],
    }
}

fn log(events: Vec<Event>, resume_seq: u64) -> JournalEntry {
    JournalEntry::KernelLog { boot_id: Arc::from(BOOT), events, resume_seq }
}

fn rule(alert: &str) -> RuleId {
    RuleId { group: Arc::from("memory"), alert: Arc::from(alert) }
}

fn evidence(gib: f64) -> Vec<Evidence> {
    let value = Reading::Value(gib * f64::from(1 << 30));
    vec![Evidence { series: "uma_memory_free_bytes".to_owned(), value }]
}

fn decision(id: u64) -> DecisionRecord {
    DecisionRecord {
        id: DecisionId(id),
        at: moment(id.cast_signed()),
        rule: rule("PageCacheEatsReserve"),
        mode: Mode::Observe,
        decision: if id.is_multiple_of(2) {
            Decision::Act
        } else {
            Decision::Hold(HoldReason::Budget)
        },
        step: 0,
        action: Action::DropCaches { what: CacheKind::PageCache, sync: false },
        target: Target::Node,
        approved: None,
        goes_ahead: None,
        because: evidence(1.2),
    }
}

fn outcome(id: u64) -> Outcome {
    Outcome {
        decision: DecisionId(id),
        action: "drop_caches".to_owned(),
        result: OutcomeResult::Done,
        ended: moment(id.cast_signed()),
        took: Duration::from_millis(410),
        effect: None,
    }
}

fn aim_check(id: u64) -> AimCheck {
    AimCheck {
        decision: DecisionId(id),
        at: moment(id.cast_signed()),
        aim_met: Some(true),
        has_aim: true,
        died_in: None,
        before: evidence(1.2),
        after: evidence(6.5),
    }
}

fn alert(seconds: i64) -> AlertChange {
    AlertChange {
        at: moment(seconds),
        rule: rule("PageCacheEatsReserve"),
        labels: BTreeMap::from([("severity".into(), "warning".into())]),
        from: AlertState::Pending,
        to: AlertState::Firing,
        value: Reading::Value(f64::INFINITY),
        annotations: BTreeMap::from([("summary".into(), "full".to_owned())]),
    }
}

fn note(seconds: i64) -> Note {
    Note { at: moment(seconds), text: "start".to_owned() }
}

fn order(seconds: i64, order: OperatorOrder) -> OperatorCommand {
    OperatorCommand {
        at: moment(seconds),
        author: "root (uid 0)".to_owned(),
        comment: "a load".to_owned(),
        order,
        refused: None,
    }
}

/// A silence of every rule, for so long.
fn silence(seconds: i64, id: u64, lasts: i64) -> OperatorCommand {
    let until = moment(seconds + lasts).utc;
    order(seconds, OperatorOrder::Silence { id, rules: RuleSelector::All, until })
}

/// Waits until everything recorded before has been tried.
fn settle(journal: &Journal) {
    journal.last_boot_id(PATIENCE).unwrap();
}
