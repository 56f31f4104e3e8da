//! How far remedies may go: grades of what they do, each of which is enforced by itself.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::names::named;
use super::{Action, Mode};

named! {
    /// What an action costs at worst. No grade includes another.
    pub enum Grade {
        /// People are notified.
        Notice = "notice",
        /// One engine gives up page cache, or memory that it does not use.
        Evict = "evict",
        /// The whole node: its caches, free blocks, control groups, and settings for a while.
        Drop = "drop",
        /// Kubernetes places no new pods on the node.
        Cordon = "cordon",
        /// Something that has ended is started again.
        Restart = "restart",
        /// An engine is stopped.
        Stop = "stop",
        /// The machine is rebooted, engines before it stopped.
        Reboot = "reboot",
    }
}

/// The grades that are enforced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grades(BTreeSet<Grade>);

impl Default for Grades {
    fn default() -> Self {
        Self(Grade::ALL.into_iter().collect())
    }
}

impl FromIterator<Grade> for Grades {
    fn from_iter<I: IntoIterator<Item = Grade>>(grades: I) -> Self {
        Self(grades.into_iter().collect())
    }
}

impl Grades {
    /// Whether that grade is enforced.
    pub fn has(&self, grade: Grade) -> bool {
        self.0.contains(&grade)
    }

    /// Whether each grade is enforced.
    pub fn are_all(&self) -> bool {
        self.0.len() == Grade::ALL.len()
    }

    /// Whether none is.
    pub fn are_none(&self) -> bool {
        self.0.is_empty()
    }

    /// Their names, the mildest first.
    pub fn names(&self) -> Vec<&'static str> {
        self.0.iter().map(|grade| grade.name()).collect()
    }
}

impl fmt::Display for Grades {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names().join(", "))
    }
}

/// A mode, and what is carried out in it where that is not everything.
pub fn mode_text(mode: Mode, enforced: &Grades) -> String {
    match mode {
        Mode::Enforce if !enforced.are_all() => format!("{} ({enforced})", mode.name()),
        _ => mode.name().to_owned(),
    }
}

impl Grade {
    /// What undos were of before they said it.
    pub(super) fn of_old_undos() -> Self {
        Self::Drop
    }

    /// Whether it is [`Grade::Drop`].
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    pub(super) fn is_drop(&self) -> bool {
        *self == Self::Drop
    }
}

impl Action {
    /// The grade of what it does. To undo an act is of the act's grade, and is always done.
    pub fn grade(&self) -> Grade {
        match self {
            Self::Notify { .. } => Grade::Notice,
            Self::EvictCheckpoint { .. }
            | Self::EmptyCache { .. }
            | Self::Reclaim { engine: Some(_), .. } => Grade::Evict,
            Self::DropCaches { .. }
            | Self::CompactMemory
            | Self::Reclaim { engine: None, .. }
            | Self::SetSysctl { .. }
            | Self::ThrottleReadahead { .. } => Grade::Drop,
            Self::TaintNode { .. } | Self::CordonNode { .. } => Grade::Cordon,
            Self::Undo { grade, .. } => *grade,
            Self::StartContainer { .. } | Self::StartUnit { .. } => Grade::Restart,
            Self::StopEngine { for_reboot: None, .. } => Grade::Stop,
            Self::StopEngine { for_reboot: Some(_), .. } => Grade::Reboot,
            // All of it is a part of the reboot.
            Self::Reboot(_) => Grade::Reboot,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::DecisionId;

    #[test]
    fn all_grades_are_enforced_unless_some_are_named() {
        let all = Grades::default();
        assert!(all.are_all() && Grade::ALL.into_iter().all(|grade| all.has(grade)));
        let some: Grades = [Grade::Drop, Grade::Notice].into_iter().collect();
        assert_eq!((some.to_string().as_str(), some.has(Grade::Evict)), ("notice, drop", false));
        assert_eq!(serde_json::to_string(&some).unwrap(), r#"["notice","drop"]"#);
    }

    #[test]
    fn what_one_engine_can_spare_is_of_another_grade_than_what_the_node_loses() {
        let reclaim = |engine: Option<&str>| Action::Reclaim {
            cgroup: "/a".to_owned(),
            engine: engine.map(str::to_owned),
            bytes: 1,
        };
        assert_eq!(reclaim(Some("llm")).grade(), Grade::Evict);
        assert_eq!(reclaim(None).grade(), Grade::Drop);
        let stop = |for_reboot| Action::StopEngine {
            engine: None,
            grace_ms: 0,
            unless_free_bytes: None,
            for_reboot,
        };
        assert_eq!(stop(None).grade(), Grade::Stop);
        assert_eq!(stop(Some(DecisionId(1))).grade(), Grade::Reboot);
        for action in [reclaim(Some("llm")), reclaim(None)] {
            assert_eq!(action.takes_from_engine(), action.grade() == Grade::Evict);
        }
    }
}
