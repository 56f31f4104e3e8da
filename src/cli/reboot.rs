//! `umawarden reboot`.

use std::collections::BTreeSet;
use std::time::Duration;

use clap::{ArgGroup, Args};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use super::Exit;
use super::control::{AttributionArguments, DaemonArguments, left, print_result};
use super::order_text::order_result;
use crate::cli::output::outln;
use crate::config::measure::duration_within;
use crate::model::{
    DecisionId, RebootForce, RebootResult, RebootStage, RuleId, counted, duration_text, printable,
};

/// The longest delay on the command line.
const LONGEST_DELAY: Duration = Duration::from_secs(86_400);

/// Arguments of `umawarden reboot`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP, group = ArgGroup::new("what").required(true).multiple(true))]
pub struct RebootArguments {
    /// Show the scheduled reboot, the remaining budget, and the result of the last one.
    #[arg(long, group = "what", conflicts_with_all = ["cancel", "clear", "why", "delay", "force"])]
    status: bool,

    /// Cancel the scheduled reboot; --why may give a reason.
    #[arg(long, group = "what", conflicts_with_all = ["clear", "delay", "force"])]
    cancel: bool,

    /// Let rules reboot again after two reboots that did not help, a cancelled one, or a lost
    /// journal.
    #[arg(long, group = "what", conflicts_with_all = ["delay", "force"])]
    clear: bool,

    /// The reason; sent to all logged-in users, and recorded in the journal.
    #[arg(long, group = "what", value_name = "TEXT")]
    why: Option<String>,

    /// How long everybody can see it and cancel it, from 0s to 1d [default: reboot.delay].
    #[arg(long, value_name = "DURATION", value_parser = delay)]
    delay: Option<Duration>,

    /// Conditions to ignore: budget, uptime, users, engines, alerts, windows, slot.
    #[arg(long, value_name = "WHAT", value_delimiter = ',', value_parser = force)]
    force: Vec<RebootForce>,

    /// Your name, in addition to that of the user who runs this [default: under sudo, its caller].
    #[arg(long, value_name = "NAME")]
    author: Option<String>,

    #[command(flatten)]
    daemon: DaemonArguments,
}

const AFTER_HELP: &str = "\
The daemon reboots the machine in the configured way (reboot in the configuration), in enforce \
mode alone: logged-in users are notified, the delay passes, and it is done once nothing holds it: \
budget, minimum uptime, users, engines, windows, alerts, the cluster's lock. --status shows what \
holds it. --force ignores the named conditions; a journal that cannot be read, a pause, and \
another reboot in progress cannot be ignored.

Exit codes: 0 done; 1 refused: something holds it, or nothing is scheduled; 2 no daemon responds, \
this user may not give orders, or a value is invalid.

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
        .ok_or_else(|| format!("must be one of {}", RebootForce::NAMES.join(", ")))
}

/// Runs the command.
///
/// # Errors
/// No daemon responds, or the order fails.
pub fn execute(arguments: &RebootArguments) -> anyhow::Result<Exit> {
    let daemon = &arguments.daemon;
    if arguments.status {
        return show(arguments);
    }
    let words = AttributionArguments {
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
    let reply = daemon.client()?.request(method, target, Some(&body.into()))?;
    print_result(reply, daemon.json, order_result)
}

fn show(arguments: &RebootArguments) -> anyhow::Result<Exit> {
    let reply = arguments.daemon.client()?.request("GET", "/api/v1/reboot", None)?;
    if reply.status != 200 {
        anyhow::bail!("{}", printable(&reply.problem));
    }
    let shown = reply.data.get("reboot").cloned().unwrap_or_default();
    if arguments.daemon.json {
        outln!("{shown}");
        return Ok(Exit::Fine);
    }
    for line in lines(&shown)? {
        outln!("{}", printable(&line));
    }
    Ok(Exit::Fine)
}

/// The part of the state that is printed.
#[derive(Debug, Deserialize)]
struct RebootView {
    stage: RebootStage,
    scheduled: Option<Scheduled>,
    waits_for: Option<String>,
    called_off: Option<String>,
    boot_id: Option<String>,
    budget: Vec<BudgetLeft>,
    did_not_help: u32,
    is_given_up: bool,
    is_journal_lost: bool,
    holds_slot: bool,
    last: Option<LastReboot>,
}

#[derive(Debug, Deserialize)]
struct Scheduled {
    decision: DecisionId,
    rule: RuleId,
    plan: PrintedPlan,
}

#[derive(Debug, Deserialize)]
struct PrintedPlan {
    why: String,
    ordered_by: Option<String>,
    due: Option<Timestamp>,
}

#[derive(Debug, Deserialize)]
struct BudgetLeft {
    times: u32,
    per_seconds: f64,
    left: u32,
}

#[derive(Debug, Deserialize)]
struct LastReboot {
    decision: DecisionId,
    utc: Timestamp,
    plan: PrintedPlan,
    result: Option<RebootResult>,
}

fn lines(shown: &Value) -> anyhow::Result<Vec<String>> {
    let status: RebootView = serde_json::from_value(shown.clone()).map_err(|error| {
        anyhow::anyhow!("the daemon has another version: cannot parse its response: {error}")
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
        lines.push(format!("the previous one was cancelled: {why}"));
    }
    for left in &status.budget {
        let per = Duration::try_from_secs_f64(left.per_seconds).unwrap_or_default();
        lines.push(format!("{} left of {} in {}", left.left, left.times, duration_text(per)));
    }
    if status.boot_id.is_none() {
        lines.push("this boot or the previous one is unknown: none is done".to_owned());
    }
    if status.is_journal_lost {
        lines.push(
            "a journal with counted reboots was lost: none is done while that could \
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

fn last(last: &LastReboot) -> String {
    let result = match last.result {
        Some(result) => result.meaning(),
        None => "not assessed yet",
    };
    format!("last at {:.0} (#{}, {}): {result}", last.utc, last.decision, last.plan.why)
}
