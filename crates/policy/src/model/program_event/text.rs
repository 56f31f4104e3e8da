//! Events of the program in words, for people.

use std::fmt;
use std::sync::Arc;

use super::super::{HOST_POOL, LeaseChange, LeaseEnd, Pod, bytes_text};
use super::ProgramEvent;

/// One line without the kind.
impl fmt::Display for ProgramEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UncleanBoot { ended_boot_id, last_record, .. } => {
                write!(f, "boot {ended_boot_id} did not end in order")?;
                last_record.map_or(Ok(()), |last| write!(f, ", last seen at {last:.0}"))
            }
            Self::EnginePhase { engine, from, to, reason, pod, .. } => {
                write!(f, "{engine}{}: ", of_pod(pod))?;
                if let Some(from) = from {
                    write!(f, "{from} → ")?;
                }
                write!(f, "{to}: {reason}")
            }
            Self::EngineStuck { engine, stuck, reason, pod, .. } => {
                let is = if *stuck { "stuck" } else { "no longer stuck" };
                write!(f, "{engine}{} is {is}: {reason}", of_pod(pod))
            }
            Self::EngineRankLost { engine, reason, memory_bytes, .. } => {
                write!(f, "{engine} cannot go on: {reason}")?;
                memory_bytes.map_or(Ok(()), |bytes| {
                    write!(f, "; its processes on this node hold {}", bytes_text(bytes))
                })
            }
            Self::EngineRestart { .. } => self.fmt_restart(f),
            Self::EngineDied { report } => {
                f.write_str(&report.sentence())?;
                if let Some(cause) = report.cause_text() {
                    write!(f, "; {cause}")?;
                }
                match report.advice.first() {
                    Some(advice) => write!(f, "; what to do: {advice}"),
                    None => Ok(()),
                }
            }
            Self::EngineRelease { engine, release, .. } => {
                write!(f, "memory of {engine}: {release}")
            }
            Self::EngineLoad { engine, receipt, .. } => write!(f, "load of {engine}: {receipt}"),
            Self::UnaccountedBaseline { pool, bytes } => {
                let bytes = bytes_text(*bytes);
                write!(f, "while no engine runs, {bytes}")?;
                if **pool != *HOST_POOL {
                    write!(f, " of {pool}")?;
                }
                f.write_str(" are in no counter of the kernel")
            }
            Self::Lease { .. } => self.fmt_lease(f),
            Self::MemoryAssessed { state, before, evidence, .. } => {
                write!(f, "memory is {state}, was {before}: {}", evidence.join("; "))
            }
            Self::RebootChecked { decision, ended_boot_id, result, reason } => {
                let meaning = result.meaning();
                write!(f, "reboot #{decision} out of boot {ended_boot_id}: {meaning}: {reason}")
            }
            Self::JournalLost { .. } => f.write_str(
                "the journal was lost, and with it what was counted of reboots: none is done \
                 until that cannot matter any more, or umawarden reboot --clear",
            ),
            Self::ReceivedAlert { to, alert } => {
                write!(f, "{alert} {}, began at {}", to.words(), alert.starts_at)?;
                match &alert.by {
                    Some(by) => write!(f, "; reported by {}", by.escape_debug()),
                    None => Ok(()),
                }
            }
        }
    }
}

/// ` (pod NAMESPACE/NAME)`, or nothing.
fn of_pod(pod: &Option<Arc<Pod>>) -> String {
    pod.as_ref().map(|pod| format!(" ({pod})")).unwrap_or_default()
}

impl ProgramEvent {
    fn fmt_restart(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::EngineRestart { engine, to, reason, ranks, .. } = self else { return Ok(()) };
        write!(f, "{engine}: {}: {reason}", to.meaning())?;
        match ranks.as_ref().filter(|_| to.is_up()).map(|ranks| ranks.nodes()) {
            Some(nodes) if !nodes.is_empty() => {
                let nodes: Vec<&str> = nodes.iter().map(|(node, _)| &**node).collect();
                write!(f, "; it spans nodes, with ranks on {}", nodes.join(", "))
            }
            _ => Ok(()),
        }
    }

    fn fmt_lease(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Lease { who, need_bytes, change, by, .. } = self else { return Ok(()) };
        let bytes = bytes_text(*need_bytes);
        let is_called = match change {
            LeaseChange::Granted => {
                write!(f, "{bytes} are reserved for {who}")?;
                true
            }
            LeaseChange::Ended(end) => {
                write!(f, "{bytes} are no longer reserved for {who}: {}", end.meaning())?;
                *end == LeaseEnd::Withdrawn
            }
        };
        match by.as_ref().filter(|_| is_called) {
            Some(by) => write!(f, "; called by {by}"),
            None => Ok(()),
        }
    }
}
