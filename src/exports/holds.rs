//! The holds on the status page: pause, silences, approvals, breakers, reboots.

use std::fmt::{self, Write as _};

use jiff::Timestamp;

use super::page::Escaped;
use crate::model::{RebootStatus, RuleSelector};
use crate::policy::status::{ApprovalStatus, GuardStatus, Status};

/// Writes nothing without a hold.
pub(super) fn page(html: &mut String, status: &Status) -> fmt::Result {
    let guard = status.guard.as_ref();
    if let Some(pause) = &guard.pause {
        write!(
            html,
            "<p class=firing>Paused by {}{}. {} <small>umawarden resume ends \
             it.</small></p>",
            Escaped(&pause.author),
            pause.since.map(|since| format!(" since {}", time(since))).unwrap_or_default(),
            Escaped(&pause.comment),
        )?;
    }
    if !guard.is_restored {
        html.push_str(
            "<p class=firing>The actions of earlier runs are unknown, since the journal cannot be \
             read: nothing is done.</p>",
        );
    }
    reboot(html, &status.reboot)?;
    approvals(html, guard)?;
    silences(html, guard)?;
    breakers(html, guard)
}

fn reboot(html: &mut String, status: &RebootStatus) -> fmt::Result {
    if let Some(scheduled) = &status.scheduled {
        let waits = status.waits_for.as_ref().map(|why| format!("; it waits: {why}"));
        write!(
            html,
            "<p class=firing>{}: {}{} <small>umawarden reboot --cancel prevents it.</small></p>",
            status.stage.meaning(),
            Escaped(&scheduled.plan.to_string()),
            Escaped(&waits.unwrap_or_default()),
        )?;
    }
    if status.is_given_up {
        write!(
            html,
            "<p class=firing>{} reboots in a row did not help: no rule reboots now. \
             <small>umawarden reboot --clear lets them.</small></p>",
            status.did_not_help,
        )?;
    }
    Ok(())
}

fn approvals(html: &mut String, guard: &GuardStatus) -> fmt::Result {
    if guard.approvals.is_empty() {
        return Ok(());
    }
    html.push_str(
        "<h2>Waiting for approval</h2><table>\
         <tr><th>Decision<th>Rule<th>Action<th>Goes ahead<th>Lapses<th>Answer</tr>",
    );
    for approval in &guard.approvals {
        let pending = &approval.asked;
        write!(
            html,
            "<tr><td><code>umawarden {} {}</code><td>{}<td>{}<td>{}<td>{}<td>{}</tr>",
            if pending.goes_ahead.is_some() { "deny" } else { "approve" },
            pending.decision,
            Escaped(&pending.rule.to_string()),
            Escaped(&pending.action.to_string()),
            pending.goes_ahead.map_or_else(|| "once approved".to_owned(), |due| time(due.utc)),
            time(approval.lapses),
            Escaped(&answer(approval)),
        )?;
    }
    html.push_str("</table>");
    Ok(())
}

fn answer(approval: &ApprovalStatus) -> String {
    match (&approval.given_by, &approval.denied_by) {
        (Some(by), _) => format!("approved by {by}"),
        (None, Some(by)) => format!("denied by {by}"),
        (None, None) => "none yet".to_owned(),
    }
}

fn silences(html: &mut String, guard: &GuardStatus) -> fmt::Result {
    if guard.silences.is_empty() {
        return Ok(());
    }
    html.push_str("<h2>Silences</h2><table><tr><th>Number<th>Rules<th>Until<th>By<th>Why</tr>");
    for silence in &guard.silences {
        let rules = match &silence.rules {
            RuleSelector::All => "all".to_owned(),
            RuleSelector::Alert(alert) => alert.to_string(),
            RuleSelector::Rule(rule) => rule.to_string(),
        };
        write!(
            html,
            "<tr><td>{}<td>{}<td>{}<td>{}<td>{}</tr>",
            silence.id,
            Escaped(&rules),
            time(silence.until),
            Escaped(&silence.author),
            Escaped(&silence.comment),
        )?;
    }
    html.push_str("</table>");
    Ok(())
}

fn breakers(html: &mut String, guard: &GuardStatus) -> fmt::Result {
    let mut open = guard.breakers.iter().filter(|breaker| breaker.is_open).peekable();
    if open.peek().is_none() {
        return Ok(());
    }
    html.push_str(
        "<h2>Stopped remedies</h2><table><tr><th>Rule<th>Mode<th>Engine<th>Missed its aim</tr>",
    );
    for breaker in open {
        write!(
            html,
            "<tr><td class=firing>{}<td>{}<td>{}<td>{} times</tr>",
            Escaped(&breaker.rule.to_string()),
            breaker.mode.name(),
            Escaped(breaker.engine.as_deref().unwrap_or("all")),
            breaker.misses,
        )?;
    }
    html.push_str("</table>");
    Ok(())
}

fn time(at: Timestamp) -> String {
    at.strftime("%F %T UTC").to_string()
}
