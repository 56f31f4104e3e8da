//! The acts that the tests of the lanes perform.

use std::time::Duration;

use jiff::Timestamp;

use super::Act;
use crate::model::{Action, Decision, DecisionId, DecisionRecord, Mode, Moment, RuleId};

/// The decision of rule `g/A`, a minute after boot, to do that.
pub(super) fn decision(id: u64, action: Action) -> DecisionRecord {
    DecisionRecord {
        id: DecisionId(id),
        at: Moment { uptime: Duration::from_secs(60), utc: Timestamp::UNIX_EPOCH },
        rule: RuleId { group: "g".into(), alert: "A".into() },
        mode: Mode::Enforce,
        decision: Decision::Act,
        step: 0,
        target: action.target(),
        action,
        approved: None,
        goes_ahead: None,
        because: Vec::new(),
    }
}

/// The same as an act.
pub(super) fn act(id: u64, action: Action) -> Act {
    Act::of(decision(id, action)).unwrap()
}
