//! A step of a remedy as its rule states it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use promql_rules::Labels;
use promql_rules::template::Template;
use serde::{Serialize, Serializer};

use crate::model::{
    Action, CacheKind, CachePermission, Grade, Prefetch, RebootAct, RebootPlan, Sysctl, Taint,
    Target,
};

/// One thing to try, with templates where a rule file takes them. [`Self::action`] is what it comes
/// to for an alert. Text and JSON are those of the action with its templates as written.
#[derive(Clone, Debug, PartialEq, strum::VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum RemedyStep {
    /// Write to `vm.drop_caches`.
    DropCaches {
        /// What to drop.
        what: CacheKind,
        /// Write dirty pages back before.
        sync: bool,
    },
    /// Write to `vm.compact_memory`.
    CompactMemory,
    /// Reclaim memory from a control group.
    Reclaim {
        /// The control group.
        from: ReclaimFrom,
        /// Memory to reclaim, in bytes.
        bytes: u64,
    },
    /// Evict what a loading engine has read of its model files, behind its readers.
    EvictCheckpoint {
        /// The engine's name.
        engine: Template,
        /// How much of what was read last stays.
        behind_bytes: u64,
        /// How much memory shall stay free; 0: no mapped page is evicted for it.
        floor_bytes: u64,
        /// Whether what it will want next is read ahead of it.
        prefetch: Prefetch,
        /// It ends after that time at the latest.
        for_at_most: Duration,
    },
    /// Have an engine give back memory that it keeps without using it.
    EmptyCache {
        /// The engine's name.
        engine: Template,
        /// What that may cost.
        allow: BTreeSet<CachePermission>,
    },
    /// Change settings of the kernel for a while.
    SetSysctl {
        /// The new values.
        values: BTreeMap<Sysctl, u32>,
        /// They are undone after that time at the latest.
        for_at_most: Duration,
    },
    /// Read less ahead from block devices for a while.
    ThrottleReadahead {
        /// The new read-ahead, in KiB.
        kib: u32,
        /// Names of disks: `nvme0n1`.
        devices: Vec<String>,
        /// Paths, whose disks are meant.
        of: Vec<Template>,
        /// It is undone after that time at the latest.
        for_at_most: Duration,
    },
    /// Put a taint on this machine's Kubernetes node for a while.
    TaintNode {
        /// Key, value and effect of the taint.
        taint: Taint,
        /// It is removed after that time at the latest.
        for_at_most: Duration,
    },
    /// Mark this machine's Kubernetes node as unschedulable for a while.
    CordonNode {
        /// It is undone after that time at the latest.
        for_at_most: Duration,
    },
    /// Write a line to the log and to the journal.
    Notify {
        /// The line.
        message: Template,
    },
    /// End an engine: SIGTERM, a grace, SIGKILL.
    StopEngine {
        /// Its name; it must be one that is started again afterwards. `None`: the engine whose
        /// growth eats the memory.
        engine: Option<Template>,
        /// Milliseconds between the two signals; 0: only SIGKILL is sent.
        grace_ms: u64,
    },
    /// Schedule a reboot. How and when is the configuration's business.
    Reboot {
        /// The reason, for people.
        why: Option<Template>,
    },
}

/// Whose control group is reclaimed from.
#[derive(Clone, Debug, PartialEq)]
pub enum ReclaimFrom {
    /// The one at this path below the root of its hierarchy.
    Cgroup(Template),
    /// The one of the engine of this name.
    Engine(Template),
}

impl RemedyStep {
    /// The action that it comes to for an alert with these labels and this value. Without an alert
    /// its texts stay as written.
    pub fn action(&self, alert: Option<(&Labels, f64)>) -> Action {
        let fill = |text: &Template| fill(text, alert);
        match self {
            Self::DropCaches { what, sync } => Action::DropCaches { what: *what, sync: *sync },
            Self::CompactMemory => Action::CompactMemory,
            Self::Reclaim { from: ReclaimFrom::Cgroup(path), bytes } => {
                Action::Reclaim { cgroup: fill(path), engine: None, bytes: *bytes }
            }
            Self::Reclaim { from: ReclaimFrom::Engine(engine), bytes } => {
                Action::Reclaim { cgroup: String::new(), engine: Some(fill(engine)), bytes: *bytes }
            }
            Self::EvictCheckpoint { engine, behind_bytes, floor_bytes, prefetch, for_at_most } => {
                Action::EvictCheckpoint {
                    engine: fill(engine),
                    behind_bytes: *behind_bytes,
                    floor_bytes: *floor_bytes,
                    prefetch: *prefetch,
                    for_at_most: *for_at_most,
                }
            }
            Self::EmptyCache { engine, allow } => {
                Action::EmptyCache { engine: fill(engine), allow: allow.clone() }
            }
            Self::SetSysctl { values, for_at_most } => {
                Action::SetSysctl { values: values.clone(), for_at_most: *for_at_most }
            }
            Self::ThrottleReadahead { kib, devices, of, for_at_most } => {
                Action::ThrottleReadahead {
                    kib: *kib,
                    devices: devices.clone(),
                    of: of.iter().map(fill).collect(),
                    for_at_most: *for_at_most,
                }
            }
            Self::TaintNode { taint, for_at_most } => {
                Action::TaintNode { taint: taint.clone(), for_at_most: *for_at_most }
            }
            Self::CordonNode { for_at_most } => Action::CordonNode { for_at_most: *for_at_most },
            Self::Notify { message } => Action::Notify { message: fill(message) },
            Self::StopEngine { engine, grace_ms } => Action::StopEngine {
                engine: engine.as_ref().map(fill),
                grace_ms: *grace_ms,
                unless_free_bytes: None,
                for_reboot: None,
            },
            Self::Reboot { why } => {
                let why = why.as_ref().map(fill).unwrap_or_default();
                let plan = RebootPlan { why, ..RebootPlan::default() };
                Action::Reboot(Box::new(RebootAct::Schedule(plan)))
            }
        }
    }

    fn as_written(&self) -> Action {
        self.action(None)
    }

    /// The `action` label and the key in rule files.
    pub fn name(&self) -> &'static str {
        self.as_written().name()
    }

    /// The settings that it changes for a while; those of paths are named by the paths as written.
    pub fn settings(&self) -> Option<Target> {
        match self {
            Self::SetSysctl { .. }
            | Self::ThrottleReadahead { .. }
            | Self::TaintNode { .. }
            | Self::CordonNode { .. } => Some(self.as_written().target()),
            _ => None,
        }
    }

    /// The name of the one engine that it is for. Such a step costs no other engine anything.
    pub fn engine(&self) -> Option<&Template> {
        match self {
            Self::EvictCheckpoint { engine, .. }
            | Self::EmptyCache { engine, .. }
            | Self::StopEngine { engine: Some(engine), .. }
            | Self::Reclaim { from: ReclaimFrom::Engine(engine), .. } => Some(engine),
            _ => None,
        }
    }

    /// The grade of what it does.
    pub fn grade(&self) -> Grade {
        self.as_written().grade()
    }

    /// Whether it only informs people.
    pub fn is_notice(&self) -> bool {
        matches!(self, Self::Notify { .. })
    }

    /// Whether it stops an engine.
    pub fn stops_engine(&self) -> bool {
        matches!(self, Self::StopEngine { .. })
    }

    /// Whether it reboots the machine.
    pub fn reboots(&self) -> bool {
        matches!(self, Self::Reboot { .. })
    }
}

/// A text for an alert with these labels and this value; without an alert, as written.
pub(in crate::policy) fn fill(text: &Template, alert: Option<(&Labels, f64)>) -> String {
    match alert {
        Some((labels, value)) => text.render(labels, value),
        None => text.as_written().to_string(),
    }
}

impl fmt::Display for RemedyStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_written().fmt(f)
    }
}

impl Serialize for RemedyStep {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.as_written().serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_step_is_shown_as_written_and_filled_for_an_alert() {
        let engine = Template::parse("{{ $labels.engine }}").unwrap();
        let step = RemedyStep::Reclaim { from: ReclaimFrom::Engine(engine), bytes: 7 };
        let written = r#"{"reclaim":{"cgroup":"","engine":"{{ $labels.engine }}","bytes":7}}"#;
        assert_eq!(serde_json::to_string(&step).unwrap(), written);
        let shown = "reclaim 7 B from the control group of engine {{ $labels.engine }}";
        assert_eq!(step.to_string(), shown);
        let labels: Labels = Arc::new([(Arc::from("engine"), Arc::from("llm"))]);
        let filled =
            Action::Reclaim { cgroup: String::new(), engine: Some("llm".into()), bytes: 7 };
        assert_eq!(step.action(Some((&labels, 1.0))), filled);
    }
}
