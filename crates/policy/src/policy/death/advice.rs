//! What to do about a death, the most important first.

use super::hits::{SIGKILL, SIGTERM};
use crate::engines::{Reason, facts};
use crate::model::{
    DeathReport, EnginePhase, Killer, OomConstraint, Pod, RankDeaths, Survivor, bytes_text,
    signal_name,
};

/// An orphan with less memory than this does not prevent a start.
const WORTH_REPORTING_BYTES: u64 = 64 << 20;

/// Memory that no counter names: with no engine there are one or two GiB.
const MUCH_UNACCOUNTED_BYTES: u64 = 8 << 30;

/// What to do.
pub(super) fn advice(
    report: &DeathReport,
    reason: Option<Reason>,
    is_pod_stopped: bool,
) -> Vec<String> {
    let mut lines = Vec::new();
    lines.extend(report.ranks.as_ref().and_then(RankDeaths::first_elsewhere).map(|first| {
        format!("find the cause on {}: `umawarden history` there reports that death", first.node)
    }));
    lines.extend(orphans(&report.orphans));
    lines.extend(reason.map(|reason| reason.cure().to_owned()));
    lines.extend(killer(report));
    lines.extend(report.who.pod.as_deref().filter(|_| is_pod_stopped).map(pod_stopped));
    if report.is_exit_code_a_lie() {
        lines.push(
            "the exit code 0 says that all was well: a restart policy \"on-failure\" never comes, \
             unless `umawarden launch` runs it, which ends with a failure then"
                .to_owned(),
        );
    }
    lines.extend(lingering(report));
    lines.dedup();
    lines
}

/// The runtime knows that a pod was stopped; why, only the API server knows.
fn pod_stopped(pod: &Pod) -> String {
    let Pod { namespace, name, .. } = pod;
    format!(
        "its whole pod was stopped: it was deleted, evicted or preempted, or its restartPolicy let \
         it end; `kubectl -n {namespace} get events --field-selector involvedObject.name={name}` \
         says which"
    )
}

fn orphans(orphans: &[Survivor]) -> Option<String> {
    let holds = |orphan: &&Survivor| {
        !orphan.is_killed && orphan.bytes.is_none_or(|bytes| bytes >= WORTH_REPORTING_BYTES)
    };
    let named: Vec<String> = orphans
        .iter()
        .filter(holds)
        .map(|orphan| match orphan.bytes {
            Some(bytes) => format!("{} (pid {}, {})", orphan.comm, orphan.id, bytes_text(bytes)),
            None => format!("{} (pid {})", orphan.comm, orphan.id),
        })
        .collect();
    let pids: Vec<String> = orphans.iter().filter(holds).map(|one| one.id.to_string()).collect();
    (!named.is_empty()).then(|| {
        format!(
            "end what outlived it before it is started again, for that keeps its memory: {}: \
             kill {}",
            named.join(", "),
            pids.join(" ")
        )
    })
}

fn killer(report: &DeathReport) -> Vec<String> {
    match &report.killer {
        Killer::KernelOom { manual: true, .. } => vec![
            "find who requested an OOM kill (Alt+SysRq+F, or f in /proc/sysrq-trigger): it does \
             not show that memory was short"
                .to_owned(),
        ],
        Killer::KernelOom { constraint: Some(OomConstraint::Memcg), cgroup, .. } => {
            let path = cgroup.as_deref().unwrap_or_default();
            let (space, limit) = (if path.is_empty() { "" } else { " " }, limit_of(path));
            vec![format!(
                "the limit of control group{space}{path} was too low for it: raise it ({limit}), \
                 or let the engine take less; on GB10 no such limit bounds what CUDA takes"
            )]
        }
        Killer::KernelOom { .. } | Killer::UserspaceOom { .. } => out_of_memory(report),
        Killer::Umawarden { rule, .. } => {
            let mut lines = vec![match rule {
                Some(rule) => {
                    format!("`umawarden explain {}` shows why it was stopped", rule.alert)
                }
                None => "`umawarden history` shows why it was stopped".to_owned(),
            }];
            lines.extend(less(report));
            lines
        }
        Killer::Signal { sender: Some(_), .. } => Vec::new(),
        // Its owner, most likely.
        Killer::Signal { .. } if !report.is_failure => Vec::new(),
        Killer::Signal { signal, sender: None } => vec![format!(
            "no watched program sent {}: find the sender (docker kill, systemctl, a health check, \
             a script, on Talos its OOM controller: talosctl dmesg); auditd or bpftrace's \
             killsnoop names the sender next time",
            signal_name(*signal)
        )],
        Killer::Itself { .. } | Killer::Unknown { .. } => {
            // Its log does not show who has sent these.
            let is_own_end = !matches!(report.exit.signal(), Some(SIGKILL | SIGTERM));
            if report.is_failure && is_own_end && report.cause.is_none() {
                vec!["read the last lines of its own log".to_owned()]
            } else {
                Vec::new()
            }
        }
    }
}

/// What sets the limit of a control group.
fn limit_of(path: &str) -> &'static str {
    let has = |part: &str| path.split('/').any(|name| name.starts_with(part));
    if has("kubepods") {
        "resources.limits.memory of its container"
    } else if has("lxc") {
        "lxc.cgroup2.memory.max of its container, `pct set ID --memory` on Proxmox"
    } else {
        "docker --memory, MemoryMax= of its unit"
    }
}

fn out_of_memory(report: &DeathReport) -> Vec<String> {
    let mut lines = Vec::new();
    if matches!(report.phase, Some(EnginePhase::Starting | EnginePhase::Loading)) {
        lines.push(
            "it died while it loaded: let it wait until the node can take it (`umawarden gate`, \
             `umawarden launch --need SIZE`), and keep the page cache of its checkpoint from \
             crowding it out (rule action evict_checkpoint)"
                .to_owned(),
        );
    }
    lines.extend(less(report));
    lines
}

/// How to configure it to take less.
fn less(report: &DeathReport) -> Option<String> {
    let how = facts(report.who.engine?).takes_less?;
    Some(format!("let it take less: {how}"))
}

/// Memory that is still held though it is dead.
fn lingering(report: &DeathReport) -> Option<String> {
    let held = report.memory?.unaccounted_bytes?;
    (held >= MUCH_UNACCOUNTED_BYTES).then(|| {
        format!(
            "{} were held by what no counter names when it died; the driver gives memory back some \
             seconds later: do not start it again before that (`umawarden gate --need SIZE`)",
            bytes_text(held)
        )
    })
}
