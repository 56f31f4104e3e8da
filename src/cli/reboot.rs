//! `umawarden reboot`.

use std::collections::BTreeSet;
use std::time::Duration;

use clap::{ArgGroup, Args};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use super::control::{PlaceArguments, WordsArguments, left, tell};
use super::order_text::told_order;
use super::{Exit, history};
use crate::cli::output::outln;
use crate::config::measure::duration_within;
use crate::model::{
    DecisionId, RebootForce, RebootResult, RebootStage, RuleId, counted, duration_text,
};

/// A person may leave less time than the configuration.
const LONGEST_DELAY: Duration = Duration::from_secs(86_400);

/// Arguments of `umawarden reboot`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP, group = ArgGroup::new("what").required(true).multiple(true))]
pub struct RebootArguments {
    /// Show what is scheduled, what is left of the budget, and what came of the last reboot.
    #[arg(long, group = "what", conflicts_with_all = ["cancel", "clear", "why", "delay", "force"])]
    status: bool,

    /// Call off what is scheduled; --why may say why.
    #[arg(long, group = "what", conflicts_with_all = ["clear", "delay", "force"])]
    cancel: bool,

    /// Let rules reboot again, after two reboots that did not help, one that was called off, or a
    /// journal that was lost.
    #[arg(long, group = "what", conflicts_with_all = ["delay", "force"])]
    clear: bool,

    /// Why; told to everybody who is logged in, and kept in the journal.
    #[arg(long, group = "what", value_name = "TEXT")]
    why: Option<String>,

    /// How long everybody can see it and cancel it, from 0s to 1d [default: reboot.delay].
    #[arg(long, value_name = "DURATION", value_parser = delay)]
    delay: Option<Duration>,

    /// What does not matter: budget, uptime, users, engines, alerts, windows, slot.
    #[arg(long, value_name = "WHAT", value_delimiter = ',', value_parser = force)]
    force: Vec<RebootForce>,

    /// Your name, beside that of the user who runs this [default: under sudo, who called it].
    #[arg(long, value_name = "NAME")]
    author: Option<String>,

    /// Where the daemon is.
    #[command(flatten)]
    place: PlaceArguments,
}

const AFTER_HELP: &str = "\
The daemon reboots the machine in the configured way (reboot in the configuration), in enforce mode
alone: those who are logged in are told, it waits for its delay, and is done when nothing holds it:
budget, minimum uptime, people, engines, windows, alerts, the cluster's lock. What holds it when it
is due keeps it waiting; --status tells what. --force goes past those it names, and none goes past a
journal that cannot be read, a pause, or another reboot that is under way.

Exit codes: 0 done; 1 refused: something holds it, or nothing is scheduled; 2 no daemon answers,
this user may not give orders, or a value makes no sense.

  umawarden reboot --why 'the driver is stuck' --delay 5m
  umawarden reboot --why 'new kernel' --force users,engines
  umawarden reboot --status
  umawarden reboot --cancel --why 'not now'
  umawarden reboot --clear --why 'new driver'";

fn delay(text: &str) -> Result<Duration, String> {
    duration_within(text, Duration::ZERO, LONGEST_DELAY)
}

fn force(text: &str) -> Result<RebootForce, String> {
    RebootForce::named(text)
        .ok_or_else(|| format!("it is none of {}", RebootForce::NAMES.join(", ")))
}

/// Runs the command.
///
/// # Errors
/// No daemon answers, or it cannot do it.
pub fn execute(arguments: &RebootArguments) -> anyhow::Result<Exit> {
    let place = &arguments.place;
    if arguments.status {
        return show(arguments);
    }
    let words = WordsArguments {
        comment: arguments.why.clone().unwrap_or_default(),
        author: arguments.author.clone(),
    };
    let mut body = words.json();
    let (method, target) = match (arguments.cancel, arguments.clear) {
        (true, _) => ("DELETE", "/api/v1/reboot"),
        (_, true) => ("POST", "/api/v1/reboot/clear"),
        (false, false) => {
            if let Some(delay) = arguments.delay {
                body.insert("delay".to_owned(), duration_text(delay).into());
            }
            let force: BTreeSet<RebootForce> = arguments.force.iter().copied().collect();
            body.insert("force".to_owned(), json!(force));
            ("POST", "/api/v1/reboot")
        }
    };
    let reply = place.client()?.ask(method, target, Some(&body.into()))?;
    tell(reply, place.json, told_order)
}

fn show(arguments: &RebootArguments) -> anyhow::Result<Exit> {
    let reply = arguments.place.client()?.ask("GET", "/api/v1/reboot", None)?;
    if reply.status != 200 {
        anyhow::bail!("{}", history::printable(&reply.problem));
    }
    let shown = reply.data.get("reboot").cloned().unwrap_or_default();
    if arguments.place.json {
        outln!("{shown}");
        return Ok(Exit::Fine);
    }
    for line in lines(&shown)? {
        outln!("{}", history::printable(&line));
    }
    Ok(Exit::Fine)
}

/// As much of where it stands as is told to people.
#[derive(Debug, Deserialize)]
struct Stands {
    stage: RebootStage,
    scheduled: Option<Scheduled>,
    waits_for: Option<String>,
    called_off: Option<String>,
    boot_id: Option<String>,
    budget: Vec<Left>,
    did_not_help: u32,
    is_given_up: bool,
    is_journal_lost: bool,
    holds_slot: bool,
    last: Option<Last>,
}

#[derive(Debug, Deserialize)]
struct Scheduled {
    decision: DecisionId,
    rule: RuleId,
    plan: Plan,
}

#[derive(Debug, Deserialize)]
struct Plan {
    why: String,
    ordered_by: Option<String>,
    due: Option<Timestamp>,
}

#[derive(Debug, Deserialize)]
struct Left {
    times: u32,
    per_seconds: f64,
    left: u32,
}

#[derive(Debug, Deserialize)]
struct Last {
    decision: DecisionId,
    utc: Timestamp,
    plan: Plan,
    result: Option<RebootResult>,
}

fn lines(shown: &Value) -> anyhow::Result<Vec<String>> {
    let status: Stands = serde_json::from_value(shown.clone()).map_err(|error| {
        anyhow::anyhow!("the daemon is of another version: its answer is not understood: {error}")
    })?;
    let mut lines = vec![status.stage.meaning().to_owned()];
    if let Some(scheduled) = &status.scheduled {
        let plan = &scheduled.plan;
        let by = plan.ordered_by.clone().unwrap_or_else(|| format!("rule {}", scheduled.rule));
        let why = if plan.why.is_empty() { "no reason was given" } else { &plan.why };
        lines.push(format!("  {why} (#{}, by {by})", scheduled.decision));
        let is_to_come = status.stage <= RebootStage::Scheduled;
        if let Some(due) = plan.due.filter(|_| is_to_come) {
            lines.push(format!("  due {} at {due:.0}", left(due)));
        }
    }
    if let Some(why) = &status.waits_for {
        lines.push(format!("  waits: {why}"));
    }
    if let Some(why) = &status.called_off {
        lines.push(format!("the one before was called off: {why}"));
    }
    for left in &status.budget {
        let per = Duration::try_from_secs_f64(left.per_seconds).unwrap_or_default();
        lines.push(format!("{} left of {} in {}", left.left, left.times, duration_text(per)));
    }
    if status.boot_id.is_none() {
        lines.push("which boot this is, or what was before, is not known: none is done".to_owned());
    }
    if status.is_journal_lost {
        lines.push(
            "a journal was lost, and with it what was counted: none is done while that could \
             matter, or until umawarden reboot --clear"
                .to_owned(),
        );
    }
    if status.holds_slot {
        lines.push("the cluster's slot is held".to_owned());
    }
    lines.extend(status.last.as_ref().map(last));
    if status.is_given_up {
        let times = counted(u64::from(status.did_not_help), "reboot");
        lines.push(format!(
            "{times} in a row did not help: rules reboot no more until umawarden reboot --clear"
        ));
    }
    Ok(lines)
}

fn last(last: &Last) -> String {
    let result = match last.result {
        Some(result) => result.meaning(),
        None => "it was not judged yet",
    };
    format!("last at {:.0} (#{}, {}): {result}", last.utc, last.decision, last.plan.why)
}
