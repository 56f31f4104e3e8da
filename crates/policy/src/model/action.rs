//! The things that can be done.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use strum::{IntoStaticStr, VariantNames};

use super::names::named;
use super::{
    DecisionId, EngineTarget, Grade, READ_AHEAD, RebootAct, Supervisor, Sysctl, Taint, Target,
    bytes_text, duration_text,
};

named! {
    /// What `drop_caches` drops.
    pub enum CacheKind {
        /// Clean, unmapped page cache (1).
        PageCache = "pagecache",
        /// Page cache, and reclaimable kernel objects, which runs every driver's shrinkers (3).
        All = "all",
    }
}

named! {
    /// What emptying an engine's caches may cost besides time. Nothing of it is done unless a rule
    /// allows it by name.
    pub enum CachePermission {
        /// Prefixes that were computed are lost: SGLang's `/flush_cache`, which it does only
        /// without requests.
        DropPrefixCache = "drop_prefix_cache",
        /// An engine with requests is paused for seconds, and computes them again: SGLang's
        /// `/pause_generation` with mode `retract`, `/flush_cache`, `/continue_generation`.
        RetractRequests = "retract_requests",
        /// Models go, with the requests that they work on or until they are loaded again:
        /// llama-server as a router, Triton.
        UnloadModels = "unload_models",
        /// An engine that was paused on purpose may resume: SGLang before 0.5.21 does not report
        /// a pause.
        Unpause = "unpause",
    }

    /// Whether `evict_checkpoint` reads ahead of the engine what it will want next.
    pub enum Prefetch {
        /// Nothing is read ahead.
        Off = "off",
        /// Once the engine was seen to read forward and everything.
        Auto = "auto",
        /// From its second step forward on.
        On = "on",
    }
}

impl Prefetch {
    /// After so many bytes that were read for nothing, no more is read ahead of an engine.
    pub const MOST_UNUSED_BYTES: u64 = 256 << 20;
}

impl Default for Prefetch {
    /// An act whose record does not name it has none.
    fn default() -> Self {
        Self::Off
    }
}

/// One thing to do, as decided, with everything that it needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, IntoStaticStr, VariantNames)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Action {
    /// Write to `vm.drop_caches`.
    DropCaches {
        /// What to drop.
        what: CacheKind,
        /// Write dirty pages back before.
        sync: bool,
    },
    /// Write to `vm.compact_memory`.
    CompactMemory,
    /// Take memory back from a control group.
    Reclaim {
        /// Its path below the root of its hierarchy; empty where the engine's is not known.
        cgroup: String,
        /// The engine whose control group it is, where the rule names one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        engine: Option<String>,
        /// Memory to reclaim, in bytes.
        bytes: u64,
    },
    /// Put what a loading engine has read of its model files out of memory, behind its readers,
    /// until it no longer loads.
    EvictCheckpoint {
        /// Its name.
        engine: String,
        /// How much of what was read last stays.
        behind_bytes: u64,
        /// How much memory shall stay free even where the engine takes half of all memory at once.
        /// What is mapped goes as far as that needs it, what is not goes at once.
        #[serde(default, skip_serializing_if = "super::is_default")]
        floor_bytes: u64,
        /// Whether what it will want next is read ahead of it.
        #[serde(default, skip_serializing_if = "super::is_default")]
        prefetch: Prefetch,
        /// It ends after that time at the latest.
        for_at_most: Duration,
    },
    /// Have an engine give back memory that it only keeps.
    EmptyCache {
        /// Its name.
        engine: String,
        /// What that may cost.
        #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
        allow: BTreeSet<CachePermission>,
    },
    /// Change settings of the kernel for a while.
    SetSysctl {
        /// What to set.
        values: BTreeMap<Sysctl, u32>,
        /// They are undone after that time at the latest.
        for_at_most: Duration,
    },
    /// Read less ahead from block devices for a while.
    ThrottleReadahead {
        /// How much, in KiB.
        kib: u32,
        /// Names of disks: `nvme0n1`.
        devices: Vec<String>,
        /// Paths, whose disks are meant.
        of: Vec<String>,
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
    /// Put back what an act has changed for a while. The policy decides it by itself.
    Undo {
        /// The act.
        decision: DecisionId,
        /// What ends it.
        why: UndoReason,
        /// The grade of the act.
        #[serde(default = "Grade::of_old_undos", skip_serializing_if = "Grade::is_drop")]
        grade: Grade,
    },
    /// A line in the log and in the journal.
    Notify {
        /// The line.
        message: String,
    },
    /// End an engine: SIGTERM, a grace, SIGKILL.
    StopEngine {
        /// Its name; `None`: the one whose growth eats the memory.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        engine: Option<String>,
        /// Time between the two signals; none, and only SIGKILL is sent.
        grace_ms: u64,
        /// Not when as much memory is free by the time that it comes to it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        unless_free_bytes: Option<u64>,
        /// The decision that has scheduled the reboot which it makes way for: then it is part of
        /// that reboot, and no act of its rule.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        for_reboot: Option<DecisionId>,
    },
    /// Start a container again that has ended. The policy decides it by itself.
    StartContainer {
        /// The end that was seen, by its mark: after another one it is left alone.
        ended: Arc<str>,
    },
    /// Start a systemd unit again that has ended. The policy decides it by itself.
    StartUnit {
        /// The end that was seen, by its mark: after another one it is left alone.
        ended: Arc<str>,
    },
    /// Something on the way to a reboot. A remedy schedules one; the policy decides the rest by
    /// itself.
    Reboot(Box<RebootAct>),
}

/// Actions of one lane are done one at a time, and none of them holds up another lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// Whatever does something about memory.
    Ordinary,
    /// What stops engines.
    Brake,
    /// What has a supervisor start something: it may not answer.
    Start,
    /// What an API server of Kubernetes is asked for: it may not answer.
    Kubernetes,
    /// What leads to a reboot: what hangs in another lane is often why.
    Reboot,
}

impl Lane {
    /// Whether an action of this lane is not decided while one of `other` is under way.
    pub fn waits_for(self, other: Self) -> bool {
        match self {
            Self::Ordinary | Self::Reboot => !matches!(other, Self::Start | Self::Kubernetes),
            Self::Brake => other == Self::Brake,
            Self::Kubernetes => other == Self::Kubernetes,
            Self::Start => other != Self::Kubernetes,
        }
    }
}

impl Action {
    /// Whether it only takes from one engine what that can spare: page cache, and memory that it
    /// keeps and does not use.
    pub fn takes_from_engine(&self) -> bool {
        matches!(
            self,
            Self::EvictCheckpoint { .. }
                | Self::EmptyCache { .. }
                | Self::Reclaim { engine: Some(_), .. }
        )
    }

    /// The `action` label; of a remedy's step, the key in rule files too.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Reboot(act) => act.name(),
            other => other.into(),
        }
    }

    /// Whether it stops what takes the machine down: it waits for no other action, and for no disk.
    pub fn is_brake(&self) -> bool {
        self.lane() == Lane::Brake
    }

    /// Who does it.
    pub fn lane(&self) -> Lane {
        match self {
            Self::StopEngine { .. } => Lane::Brake,
            Self::StartContainer { .. } | Self::StartUnit { .. } => Lane::Start,
            Self::Reboot(_) => Lane::Reboot,
            Self::TaintNode { .. }
            | Self::CordonNode { .. }
            | Self::Undo { grade: Grade::Cordon, .. } => Lane::Kubernetes,
            _ => Lane::Ordinary,
        }
    }

    /// What it does on the way to a reboot, if it does.
    pub fn reboot(&self) -> Option<&RebootAct> {
        match self {
            Self::Reboot(act) => Some(act),
            _ => None,
        }
    }

    /// Whether it starts again what has ended, and the mark of that end.
    pub fn starts_after(&self) -> Option<&Arc<str>> {
        match self {
            Self::StartContainer { ended } | Self::StartUnit { ended } => Some(ended),
            _ => None,
        }
    }

    /// Whether it only notifies people.
    pub fn is_notice(&self) -> bool {
        matches!(self, Self::Notify { .. })
    }

    /// How long it may stay done, if it is to be undone.
    pub fn for_at_most(&self) -> Option<Duration> {
        match self {
            Self::SetSysctl { for_at_most, .. }
            | Self::ThrottleReadahead { for_at_most, .. }
            | Self::TaintNode { for_at_most, .. }
            | Self::CordonNode { for_at_most } => Some(*for_at_most),
            _ => None,
        }
    }

    /// Whether it puts back what another action has done.
    pub fn is_undo(&self) -> bool {
        match self {
            Self::Undo { .. } => true,
            Self::Reboot(act) => {
                matches!(**act, RebootAct::CallOff { .. } | RebootAct::ReleaseSlot(_))
            }
            _ => false,
        }
    }

    /// What it works on, whether or not there is such a thing. An undo works on what its act has
    /// worked on, which is not known here.
    pub fn target(&self) -> Target {
        match self {
            Self::SetSysctl { values, .. } => {
                Target::settings(values.keys().map(|sysctl| sysctl.name().to_owned()))
            }
            Self::ThrottleReadahead { devices, of, .. } => {
                let places = devices.iter().chain(of);
                Target::settings(places.map(|place| format!("{READ_AHEAD} of {place}")))
            }
            Self::TaintNode { taint, .. } => Target::settings([format!("the taint {taint}")]),
            Self::CordonNode { .. } => Target::settings(["unschedulable".to_owned()]),
            Self::Reclaim { cgroup, .. } => Target::Cgroup { path: Arc::from(cgroup.as_str()) },
            Self::EvictCheckpoint { engine, .. } | Self::EmptyCache { engine, .. } => {
                Target::Engine(Box::new(EngineTarget {
                    name: Arc::from(engine.as_str()),
                    ..EngineTarget::default()
                }))
            }
            // Without a name the policy chooses.
            Self::StopEngine { engine, .. } => Target::Engine(Box::new(EngineTarget {
                name: engine.as_deref().unwrap_or_default().into(),
                ..EngineTarget::default()
            })),
            Self::DropCaches { .. }
            | Self::CompactMemory
            | Self::Undo { .. }
            | Self::Notify { .. }
            | Self::Reboot(_) => Target::Node,
            // Which one is for the policy to choose.
            Self::StartContainer { .. } => Target::held(Supervisor::Docker, "", ""),
            Self::StartUnit { .. } => Target::held(Supervisor::Systemd, "", ""),
        }
    }

    /// All names, for series that start at 0: those of the variants, then those of the acts of a
    /// reboot but for its first, which is `reboot` as well.
    pub const NAMES: [&'static str; Self::VARIANTS.len() + RebootAct::NAMES.len() - 1] = {
        let mut names = ["reboot"; Self::VARIANTS.len() + RebootAct::NAMES.len() - 1];
        let mut at = 0;
        while at < names.len() {
            names[at] = match at < Self::VARIANTS.len() {
                true => Self::VARIANTS[at],
                false => RebootAct::NAMES[at - Self::VARIANTS.len() + 1],
            };
            at += 1;
        }
        names
    };
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DropCaches { what, sync } => {
                write!(f, "drop_caches {what}{}", if *sync { " after sync" } else { "" })
            }
            Self::CompactMemory => f.write_str("compact_memory"),
            Self::Reclaim { cgroup, engine, bytes } => {
                write!(f, "reclaim {} from ", bytes_text(*bytes))?;
                match engine {
                    Some(engine) if cgroup.is_empty() => {
                        write!(f, "the control group of engine {engine}")
                    }
                    Some(engine) => write!(f, "{cgroup}, the control group of engine {engine}"),
                    None => f.write_str(cgroup),
                }
            }
            Self::EvictCheckpoint { engine, behind_bytes, floor_bytes, prefetch, for_at_most } => {
                let behind = bytes_text(*behind_bytes);
                write!(f, "evict_checkpoint of {engine}, keeping the last {behind}")?;
                evicting(f, *floor_bytes, *prefetch)?;
                write!(f, ", for at most {}", duration_text(*for_at_most))
            }
            Self::EmptyCache { engine, allow } => {
                write!(f, "empty_cache of {engine}")?;
                for (number, permission) in allow.iter().enumerate() {
                    let before = if number == 0 { ", which may " } else { " and " };
                    write!(f, "{before}{}", permission.name())?;
                }
                Ok(())
            }
            Self::SetSysctl { values, for_at_most } => {
                f.write_str("set_sysctl")?;
                for (sysctl, value) in values {
                    write!(f, " {sysctl}={value}")?;
                }
                write!(f, " for at most {}", duration_text(*for_at_most))
            }
            Self::ThrottleReadahead { kib, devices, of, for_at_most } => {
                write!(f, "throttle_readahead {kib} KiB of")?;
                for place in devices.iter().chain(of) {
                    write!(f, " {place}")?;
                }
                write!(f, " for at most {}", duration_text(*for_at_most))
            }
            Self::TaintNode { taint, for_at_most } => {
                write!(f, "taint_node {taint} for at most {}", duration_text(*for_at_most))
            }
            Self::CordonNode { for_at_most } => {
                write!(f, "cordon_node for at most {}", duration_text(*for_at_most))
            }
            Self::Undo { decision, why, .. } => write!(f, "undo #{decision}: {}", why.meaning()),
            Self::Notify { message } => write!(f, "notify {message:?}"),
            Self::StopEngine { engine, grace_ms, for_reboot, .. } => {
                f.write_str("stop_engine")?;
                engine.iter().try_for_each(|engine| write!(f, " {engine}"))?;
                match grace_ms {
                    0 => f.write_str(" at once")?,
                    ms => write!(f, " with {} to end", duration_text(Duration::from_millis(*ms)))?,
                }
                for_reboot.iter().try_for_each(|reboot| write!(f, ", for the reboot #{reboot}"))
            }
            Self::StartContainer { .. } => f.write_str("start_container"),
            Self::StartUnit { .. } => f.write_str("start_unit"),
            Self::Reboot(act) => act.fmt(f),
        }
    }
}

fn evicting(f: &mut fmt::Formatter<'_>, floor_bytes: u64, prefetch: Prefetch) -> fmt::Result {
    if floor_bytes > 0 {
        write!(f, " and {} free", bytes_text(floor_bytes))?;
    }
    if prefetch != Prefetch::Off {
        write!(f, ", prefetch {prefetch}")?;
    }
    Ok(())
}

/// What ends a temporary setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UndoReason {
    /// The alert that it was made for.
    AlertEnded,
    /// Its time.
    TimedOut,
    /// The rule has gone, or has another mode.
    RuleChanged,
}

impl UndoReason {
    /// What it says, for people.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::AlertEnded => "its alert has ended",
            Self::TimedOut => "its time is over",
            Self::RuleChanged => "its rule has gone, or has another mode",
        }
    }
}
