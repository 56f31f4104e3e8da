//! `umawarden rules check --now`: which rules hold on this node at this moment.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use promql_rules::{Labels, TracedValue, Value};
use serde::Serialize;
use serde_json::{Map, Value as Json};

use super::count;
use crate::config::settings::Settings;
use crate::daemon::now::{OBSERVED, RuleNow, rules_now};
use crate::model::{duration_text, measured_bytes_text, printable};
use crate::policy::rule::{Rule, RuleSet};

/// Alerts of one rule that are shown.
const MOST_ALERTS: usize = 5;

/// What the node is by the rules.
#[derive(Debug)]
pub(super) struct Now {
    rules: Vec<RuleLine>,
}

/// A rule that holds, or of which that is not known.
#[derive(Debug, Serialize)]
pub(super) struct RuleLine {
    rule: String,
    /// `null`: unknown.
    holds: Option<bool>,
    /// How long the condition must hold before the alert fires.
    for_seconds: f64,
    #[serde(skip)]
    hold_for: Duration,
    /// The steps of its remedy.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    steps: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    alerts: Vec<Alert>,
    #[serde(skip)]
    is_bytes: bool,
    /// Why it is unknown.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unknown: Vec<String>,
    /// What it reads that a few seconds do not show.
    #[serde(skip_serializing_if = "Option::is_none")]
    needs_daemon: Option<Arc<str>>,
}

/// One element of a condition.
#[derive(Debug, Serialize)]
struct Alert {
    labels: Map<String, Json>,
    value: f64,
}

impl Alert {
    fn new(labels: &Labels, value: f64) -> Self {
        let text = |text: &str| Json::String(text.to_owned());
        let labels = labels.iter().map(|(name, value)| (name.to_string(), text(value)));
        Self { labels: labels.collect(), value }
    }
}

impl Now {
    /// Observes this node for a few seconds.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub(super) fn observe(settings: &Settings, rules: &RuleSet) -> anyhow::Result<Self> {
        let found = rules_now(settings, rules)?;
        let all = rules.groups.iter().flat_map(|group| &group.rules);
        Ok(Self { rules: all.zip(found).map(|(rule, now)| RuleLine::new(rule, now)).collect() })
    }

    /// The rules that hold, and those of which that is not known.
    pub(super) fn lines(&self) -> impl Iterator<Item = &RuleLine> {
        self.rules.iter().filter(|line| line.holds != Some(false))
    }

    pub(super) fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let count_of = |holds| self.rules.iter().filter(|line| line.holds == holds).count();
        let [holding, rest] = [Some(true), Some(false)].map(count_of);
        let seconds = OBSERVED.as_secs();
        writeln!(out, "\nnow, by {seconds} s of this node: {holding} true, {rest} false")?;
        let (of_daemon, known): (Vec<_>, Vec<_>) =
            self.lines().partition(|line| line.needs_daemon.is_some());
        known.into_iter().try_for_each(|line| line.print(out))?;
        if !of_daemon.is_empty() {
            let names = of_daemon.iter().map(|line| &*line.rule).collect::<Vec<_>>();
            let number = count(of_daemon.len(), "rule");
            writeln!(
                out,
                "  {number} of which only a daemon knows (umawarden explain): {}",
                names.join(", ")
            )?;
        }
        Ok(())
    }
}

impl RuleLine {
    fn new(rule: &Rule, now: RuleNow) -> Self {
        let steps = rule.remedy.iter().flat_map(|remedy| &remedy.steps);
        let mut line = Self {
            rule: now.rule.to_string(),
            holds: None,
            for_seconds: rule.hold_for.as_secs_f64(),
            hold_for: rule.hold_for,
            steps: steps.map(|step| step.name().to_owned()).collect(),
            alerts: Vec::new(),
            is_bytes: false,
            unknown: Vec::new(),
            needs_daemon: None,
        };
        let condition = match now.explained {
            Ok(explained) => explained.condition,
            Err(unseen) => {
                line.needs_daemon = Some(unseen);
                return line;
            }
        };
        line.is_bytes = condition.is_bytes;
        line.holds = condition.yields;
        match condition.value {
            TracedValue::Known(Value::Scalar(value)) => {
                line.holds = Some(true);
                line.alerts = vec![Alert::new(&Labels::from([]), value)];
            }
            TracedValue::Known(Value::Vector(samples)) => {
                line.holds = Some(!samples.is_empty());
                let alerts = samples.iter().map(|sample| Alert::new(&sample.labels, sample.value));
                line.alerts = alerts.collect();
            }
            TracedValue::Unknown(why) if line.holds.is_none() => line.unknown = why,
            TracedValue::Failed(why) => line.unknown = vec![why],
            TracedValue::Unknown(_) | TracedValue::Range(_) => {}
        }
        line
    }

    fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let Self { rule, hold_for, steps, alerts, unknown, .. } = self;
        if self.holds.is_none() {
            return writeln!(out, "  {rule}: unknown: {}", printable(&unknown.join("; ")));
        }
        let when = match hold_for.is_zero() {
            true => "fires at once".to_owned(),
            false => format!("fires after {}", duration_text(*hold_for)),
        };
        let acts = match steps.as_slice() {
            [] => String::new(),
            steps => format!(", its remedy: {}", steps.join(", ")),
        };
        writeln!(out, "  {rule}: true, {when}{acts}")?;
        for Alert { labels, value } in alerts.iter().take(MOST_ALERTS) {
            let value = match self.is_bytes {
                true => measured_bytes_text(*value),
                false => value.to_string(),
            };
            let labels = labels.iter().map(|(name, value)| format!("{name}={value}"));
            let labels = labels.collect::<Vec<_>>().join(", ");
            writeln!(out, "    {{{}}} {value}", printable(&labels))?;
        }
        match alerts.len().saturating_sub(MOST_ALERTS) {
            0 => Ok(()),
            more => writeln!(out, "    and {more} more"),
        }
    }
}
