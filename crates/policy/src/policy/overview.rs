//! The picture of a node for people, made of a status.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::happened::merged;
use super::memory_parts::{PartsReader, shown};
use super::status::{ApprovalStatus, EngineStatus, SilenceStatus, Status};
use super::well::{self, NodeHealthInputs, Reasons, alert_text};
use crate::model::{
    ApprovalPicture, ClusterStatus, EnginePhase, EnginePicture, Lease, LeaseState, MachineInfo,
    MemoryPicture, Moment, NodeHealth, NodeHealthLevel, NodeMemory, NodePicture, NodeState,
    Picture, Queue, Reading, RecentEvent, RestartState, RestartStatus, RuleSelector, SeriesKey,
    SilencePicture, WaitKind, WaitingStart, mode_text, seconds_text,
};

/// Entries of each list; a longer one is no picture any more.
const MOST: usize = 64;

/// An engine that is gone is shown for so long; its end stays in what happened.
const GONE_SHOWN: Duration = Duration::from_secs(60);

/// Reasons that are shown.
const MOST_REASONS: usize = 12;

/// What a picture needs beside the status.
#[derive(Clone, Copy, Debug)]
pub struct PictureContext<'a> {
    /// Name of the node.
    pub node: &'a str,
    /// Version of the program.
    pub version: &'a str,
    /// The machine's model, as its firmware names it.
    pub model: Option<&'a str>,
    /// The uptime clock.
    pub now: Duration,
    /// The age at which a status is no longer current.
    pub stale_after: Duration,
    /// What happened before this run.
    pub earlier: &'a [RecentEvent],
    /// Configuration that could not be used, one sentence each.
    pub failures: &'a [String],
}

/// The picture of a status.
pub fn picture(status: &Status, about: &PictureContext<'_>) -> Picture {
    let mut engines_memory = Vec::new();
    let memory = memory(status, &mut engines_memory);
    let machine = MachineInfo {
        model: about.model.map(str::to_owned),
        memory_bytes: memory.total_bytes,
        gpu: gpu(status),
    };
    let node = status.cluster.as_ref().map_or(about.node, |cluster| &*cluster.names.node);
    let well = well(status, about, memory.total_bytes.is_some());
    Picture {
        node: node.to_owned(),
        version: about.version.to_owned(),
        mode: status.mode,
        mode_text: mode_text(status.mode, &status.enforced),
        at: status.at.utc,
        uptime_seconds: about.now.saturating_sub(status.started.uptime).as_secs_f64(),
        nodes: status
            .cluster
            .as_deref()
            .map(|cluster| nodes(cluster, well.level))
            .unwrap_or_default(),
        well,
        machine,
        memory,
        engines: status
            .engines
            .iter()
            .filter(|engine| !is_long_gone((engine.phase, engine.since.uptime), status.at.uptime))
            .take(MOST)
            .map(|engine| engine_picture(engine, status.at, &engines_memory))
            .collect(),
        happened: merged(&status.happened, about.earlier),
        waiting: waiting(status),
        approvals: status
            .guard
            .approvals
            .iter()
            .take(MOST)
            .map(|asked| approval(asked, status))
            .collect(),
        silences: status.guard.silences.iter().take(MOST).map(silence).collect(),
    }
}

fn memory(status: &Status, engines: &mut Vec<(Arc<str>, u64)>) -> MemoryPicture {
    let mut reader = PartsReader::default();
    let read = reader.read(status, |name, bytes| engines.push((Arc::clone(name), bytes)));
    let Some(levels) = read else {
        let remarks = vec!["memory is unknown: /proc/meminfo was not read".to_owned()];
        return MemoryPicture { remarks, ..MemoryPicture::default() };
    };
    let mut remarks = Vec::new();
    if !levels.is_whole {
        remarks.push("some counters are unknown: the kernel's part has what they count".to_owned());
    }
    let may_have_driver = !status.assessment.is_driver_absent;
    if !engines.is_empty() && may_have_driver && !reader.knows_driver(status) {
        remarks.push(
            "the driver does not report how much it holds for each engine: that is in the \
             unaccounted part"
                .to_owned(),
        );
    }
    MemoryPicture {
        total_bytes: Some(levels.total),
        parts: shown(&levels, engines.clone()),
        reserve_bytes: levels.reserve,
        available_bytes: levels.available,
        remarks,
    }
}

/// The names of the GPUs, each once.
fn gpu(status: &Status) -> Option<String> {
    let of = |key: &SeriesKey| {
        (*key.name == *"uma_gpu_info").then_some(())?;
        let (_, name) = key.labels.iter().find(|(label, _)| **label == *"name")?;
        (!name.is_empty() && **name != *"unknown").then(|| name.to_string())
    };
    let series = status.series.iter().zip(&status.values);
    let known = series.filter(|(_, reading)| reading.sample().is_some());
    let mut names: Vec<String> = known.filter_map(|(key, _)| of(key)).collect();
    names.dedup();
    (!names.is_empty()).then(|| names.join(", "))
}

fn well(status: &Status, about: &PictureContext<'_>, has_memory: bool) -> NodeHealth {
    let mut reasons = Reasons::with_texts();
    let age = about.now.saturating_sub(status.at.uptime);
    if age > about.stale_after {
        reasons.add(NodeHealthLevel::Unknown, || {
            format!("no sample was taken for {}", seconds_text(age))
        });
    } else if !has_memory {
        reasons.add(NodeHealthLevel::Unknown, || "memory was not sampled".to_owned());
    }
    let facts = NodeHealthInputs {
        guard: &status.guard,
        reboot: &status.reboot,
        rules: &status.rules,
        assessment: &status.assessment,
        engines: &status.engines,
        restarts: &status.restarts,
    };
    // First, since the list is cut: it says why nothing is done.
    facts.of_guard(&mut reasons);
    for failure in about.failures {
        reasons.add(NodeHealthLevel::Warning, || failure.clone());
    }
    facts.of_rest(status.sources.iter(), &mut reasons);
    let (level, mut texts) = reasons.sorted();
    let more = texts.len().saturating_sub(MOST_REASONS);
    texts.truncate(MOST_REASONS);
    if more > 0 {
        texts.push(format!("and {more} more"));
    }
    NodeHealth { level, reasons: texts, notes: well::notes(&status.rules) }
}

/// Whether an engine in this phase since then has been gone for long.
fn is_long_gone((phase, since): (EnginePhase, Duration), now: Duration) -> bool {
    phase == EnginePhase::Gone && now.saturating_sub(since) > GONE_SHOWN
}

fn engine_picture(status: &EngineStatus, at: Moment, memory: &[(Arc<str>, u64)]) -> EnginePicture {
    let seen = &status.engine;
    let is_gone = status.phase == EnginePhase::Gone;
    let bytes = memory.iter().find(|(name, _)| *name == seen.name).map(|(_, bytes)| *bytes);
    let load = status.health.as_ref().map(|health| health.load).filter(|_| !is_gone);
    let queue = load.and_then(|load| {
        let (waiting, running) = (load.waiting.value(), load.running.value());
        (waiting.is_some() || running.is_some()).then_some(Queue { waiting, running })
    });
    let (progress, seconds_left) = progress(status, at).unzip();
    EnginePicture {
        name: seen.name.to_string(),
        kind: seen.kind,
        model: seen.model.as_deref().map(str::to_owned),
        pod: seen.pod.as_ref().map(|pod| format!("{}/{}", pod.namespace, pod.name)),
        phase: status.phase,
        since: status.since.utc,
        progress,
        seconds_left,
        memory_bytes: bytes,
        queue,
        kv_cache_used: load.and_then(|load| load.kv_cache_usage.value()),
        note: Some(note(status, at)),
    }
}

/// How far an engine is on its way, and how long it still takes, if it takes as long as last time.
fn progress(status: &EngineStatus, at: Moment) -> Option<(f64, f64)> {
    let is_on_its_way = matches!(status.phase, EnginePhase::Starting | EnginePhase::Loading);
    let usual = status.last_load_took?;
    if !is_on_its_way || status.is_stuck || usual.is_zero() {
        return None;
    }
    let left = usual.checked_sub(at.uptime.saturating_sub(status.began))?.as_secs_f64();
    Some((1.0 - left / usual.as_secs_f64(), left))
}

fn note(status: &EngineStatus, at: Moment) -> String {
    if let Some(lost) = &status.lost_rank {
        return format!("it cannot go on: {lost}");
    }
    if status.is_stuck {
        return format!("stuck: {}", status.reason);
    }
    let age = at.uptime.saturating_sub(status.began);
    let is_on_its_way = matches!(status.phase, EnginePhase::Starting | EnginePhase::Loading);
    match status.last_load_took.filter(|usual| is_on_its_way && age > *usual) {
        Some(usual) => {
            format!("{}; it takes longer than last time ({})", status.reason, seconds_text(usual))
        }
        None => status.reason.to_string(),
    }
}

fn waiting(status: &Status) -> Vec<WaitingStart> {
    let leases = status.leases.iter().filter_map(|lease| waiting_lease(lease, status.at));
    let held = status.restarts.iter().filter(|held| held.state == RestartState::Waiting);
    leases.chain(held.map(waiting_restart)).take(MOST).collect()
}

fn waiting_lease(lease: &Lease, at: Moment) -> Option<WaitingStart> {
    let LeaseState::Waiting { reasons, behind, is_grantable, .. } = &lease.state else {
        return None;
    };
    let reason = match is_grantable {
        true => "it waits for other nodes".to_owned(),
        false => reasons.join("; "),
    };
    Some(WaitingStart {
        who: lease.request.who.to_string(),
        needs_bytes: Some(lease.request.need.need_bytes),
        behind: behind.iter().map(ToString::to_string).collect(),
        since: before(at, lease.since),
        kind: WaitKind::Start,
        reason,
        seconds_left: None,
    })
}

fn waiting_restart(held: &RestartStatus) -> WaitingStart {
    WaitingStart {
        who: held.seen.target.to_string(),
        needs_bytes: held.seen.need.need_bytes,
        behind: Vec::new(),
        since: held.since.utc,
        kind: WaitKind::Restart,
        reason: held.reason.to_string(),
        seconds_left: held.wait.map(|wait| wait.as_secs_f64()),
    }
}

/// The wall clock at that uptime.
fn before(at: Moment, uptime: Duration) -> Timestamp {
    at.utc.checked_sub(at.uptime.saturating_sub(uptime)).unwrap_or(at.utc)
}

/// The nodes: those that are unknown, then by their level, the worst first, then by their available
/// memory. `own` is the level of this node.
fn nodes(cluster: &ClusterStatus, own: NodeHealthLevel) -> Vec<NodePicture> {
    let weakest = cluster.weakest();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a cast saturates, and bytes are far below 2^63"
    )]
    let bytes = |reading: Reading<f64>| reading.value().map(|bytes| bytes.max(0.0) as u64);
    let node = |name: &Arc<str>, memory: NodeMemory, state, note: Option<&Arc<str>>| NodePicture {
        name: name.to_string(),
        state,
        level: None,
        weakest: weakest == Some(&**name),
        available_bytes: bytes(memory.available),
        total_bytes: bytes(memory.total),
        note: note.map(ToString::to_string),
        url: None,
    };
    let own = NodePicture {
        level: Some(own),
        ..node(&cluster.names.node, cluster.memory, NodeState::Own, None)
    };
    let others = cluster.nodes.iter().map(|other| {
        let picture = match &other.unknown {
            None => NodePicture {
                level: other.level,
                ..node(&other.node, other.memory, NodeState::Answers, None)
            },
            Some(why) => {
                let memory = NodeMemory { total: Reading::Failed, available: Reading::Failed };
                node(&other.node, memory, NodeState::Unknown, Some(why))
            }
        };
        NodePicture { url: other.url.as_deref().map(str::to_owned), ..picture }
    });
    let mut nodes: Vec<NodePicture> = std::iter::once(own).chain(others).collect();
    nodes.sort_by_key(|node| {
        // An older version does not report its level.
        let level = node.level.unwrap_or(NodeHealthLevel::Unknown);
        (node.state != NodeState::Unknown, Reverse(level), node.available_bytes)
    });
    nodes
}

fn approval(status: &ApprovalStatus, of: &Status) -> ApprovalPicture {
    let asked = &status.asked;
    let rule = of.rules.iter().find(|rule| rule.rule == asked.rule);
    let why = rule.and_then(|rule| rule.alerts.first()).map(alert_text);
    let answer = match (&status.given_by, &status.denied_by) {
        (Some(by), _) => Some(format!("approved by {by}")),
        (None, Some(by)) => Some(format!("denied by {by}")),
        (None, None) => None,
    };
    ApprovalPicture {
        decision: asked.decision.0,
        rule: asked.rule.to_string(),
        what: format!("{} ({})", asked.action, asked.target),
        why: why.unwrap_or_else(|| asked.rule.alert.to_string()),
        lapses: status.lapses,
        goes_ahead: asked.goes_ahead.map(|due| due.utc),
        answer,
    }
}

fn silence(silence: &SilenceStatus) -> SilencePicture {
    let rules = match &silence.rules {
        RuleSelector::All => "all".to_owned(),
        RuleSelector::Alert(alert) => alert.to_string(),
        RuleSelector::Rule(rule) => rule.to_string(),
    };
    SilencePicture {
        id: silence.id,
        rules,
        until: silence.until,
        by: silence.author.clone(),
        why: silence.comment.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_engine_that_is_gone_leaves_the_picture() {
        let [since, soon, late] = [100, 130, 161].map(Duration::from_secs);
        assert!(is_long_gone((EnginePhase::Gone, since), late));
        assert!(!is_long_gone((EnginePhase::Gone, since), soon));
        assert!(!is_long_gone((EnginePhase::Ready, since), late));
    }
}
