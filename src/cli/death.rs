//! Prints a report of a death.

use crate::model::{
    DeathMemory, DeathProof, DeathReport, Survivor, bytes_text, counted, printable, signal_name,
};

/// Proofs that are printed; `--json` has all.
const MOST_PROOFS: usize = 6;

/// The whole report; the first line summarises it.
pub(super) fn text(report: &DeathReport) -> String {
    let mut lines = vec![format!("{}.", report.sentence())];
    lines.extend(report.proofs.iter().take(MOST_PROOFS).map(|it| format!("  seen: {}", proof(it))));
    if let more @ 1.. = report.proofs.len().saturating_sub(MOST_PROOFS) {
        lines.push(format!("  seen: {more} more, with --json"));
    }
    for worker in &report.killed_workers {
        let before = match worker.seconds_before {
            Some(0) | None => String::new(),
            Some(seconds) => format!(", {} before the end", counted(seconds, "second")),
        };
        lines.push(format!("  killed: {worker} by {}{before}", worker.status));
    }
    lines.extend(report.orphans.iter().map(|orphan| format!("  left behind: {}", left(orphan))));
    lines.extend(report.memory.as_ref().and_then(memory).map(|it| format!("  memory: {it}")));
    lines.extend(report.health.iter().map(|health| format!("  its health check: {health}")));
    lines.extend(report.last_lines.iter().map(|line| format!("  it wrote: {line}")));
    lines.extend(report.not_known.iter().map(|what| format!("  not known: {what}")));
    lines.extend(report.cause_text().map(|cause| format!("  {cause}")));
    lines.extend(report.advice.iter().map(|advice| format!("  what to do: {advice}")));
    lines.iter().map(|line| printable(line).into_owned()).collect::<Vec<_>>().join("\n")
}

fn proof(proof: &DeathProof) -> String {
    match proof {
        DeathProof::Event { event, fits_by } => {
            format!(
                "{}: {}, by {fits_by}",
                event.kind.kind(),
                super::history::event_text(&event.kind)
            )
        }
        DeathProof::Process { pid, comm, status, reported_by } => {
            format!("{comm} (pid {pid}) ended with {status}, according to {reported_by}")
        }
        DeathProof::LogLine { line } => format!("its log: {line}"),
        DeathProof::RayletLine { pid, line } => {
            format!("the log of Ray's raylet, of pid {pid}: {line}")
        }
        DeathProof::Decision { decision, acted } => {
            let decision = decision.map_or_else(String::new, |id| format!(" {id}"));
            let acted = acted.map_or_else(String::new, |at| format!(" at {at:.0}"));
            format!("umawarden's decision{decision} to stop it was carried out{acted}")
        }
        DeathProof::Counter { name, by } => format!("{name} rose by {by}"),
        DeathProof::Docker { says } => format!("Docker says {says}"),
        DeathProof::Cri { says } => format!("the container runtime says {says}"),
    }
}

fn left(orphan: &Survivor) -> String {
    let Survivor { id, comm, bytes, is_killed } = orphan;
    let held = bytes.map_or_else(|| "what it holds is not known".to_owned(), held);
    let killed = if *is_killed {
        format!("; ended with {} by --kill-orphans", signal_name(libc::SIGKILL))
    } else {
        String::new()
    };
    format!("{comm} (pid {id}), {held}{killed}")
}

fn held(bytes: u64) -> String {
    format!("{} held", bytes_text(bytes))
}

fn memory(memory: &DeathMemory) -> Option<String> {
    let named = [
        ("total", memory.total_bytes),
        ("free", memory.free_bytes),
        ("available", memory.available_bytes),
        ("in no counter", memory.unaccounted_bytes),
        ("shared", memory.shmem_bytes),
        ("free swap", memory.swap_free_bytes),
        ("its own processes", memory.own_bytes),
    ];
    let known = named.into_iter().filter_map(|(name, bytes)| Some((name, bytes?)));
    let known: Vec<String> = known.map(|(name, it)| format!("{name} {}", bytes_text(it))).collect();
    (!known.is_empty()).then(|| known.join(", "))
}
