//! `umawarden rules check --now`: which rules hold on this node at this moment.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use promql_rules::{Labels, TracedValue, Value};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

use super::count;
use crate::cli::control::ControlClient;
use crate::cli::progress::Progress;
use crate::cli::style::fitted;
use crate::config::settings::Settings;
use crate::daemon::now::{OBSERVED, RuleNow, rules_now};
use crate::model::{duration_text, measured_bytes_text};
use crate::policy::rule::{Rule, RuleSet};

/// Alerts of one rule that are shown.
const MOST_ALERTS: usize = 5;

/// What the node is by the rules.
#[derive(Debug)]
pub(super) struct RulesNow {
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
    alerts: Vec<ConditionElement>,
    #[serde(skip)]
    is_bytes: bool,
    /// Why it is unknown.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unknown: Vec<String>,
    /// What it reads that a few seconds do not show.
    #[serde(skip_serializing_if = "Option::is_none")]
    needs_daemon: Option<Arc<str>>,
    /// Its state in the daemon, where that is how it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    daemon_state: Option<String>,
    #[serde(skip)]
    expr: Arc<str>,
}

/// What the daemon has of its rules.
#[derive(Debug, Default, Deserialize)]
struct DaemonRules {
    rules: Vec<RuleOfDaemon>,
}

#[derive(Debug, Deserialize)]
struct RuleOfDaemon {
    group: String,
    alert: String,
    expr: String,
    state: String,
    unknown: Vec<String>,
    alerts: Vec<AlertOfDaemon>,
}

#[derive(Debug, Deserialize)]
struct AlertOfDaemon {
    labels: Map<String, Json>,
    /// As text, since JSON has no infinities.
    value: String,
}

#[derive(Debug, Serialize)]
struct ConditionElement {
    labels: Map<String, Json>,
    value: f64,
}

impl ConditionElement {
    fn new(labels: &Labels, value: f64) -> Self {
        let text = |text: &str| Json::String(text.to_owned());
        let labels = labels.iter().map(|(name, value)| (name.to_string(), text(value)));
        Self { labels: labels.collect(), value }
    }
}

impl RulesNow {
    /// Observes this node for a few seconds.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub(super) fn observe(settings: &Settings, rules: &RuleSet) -> anyhow::Result<Self> {
        let mut progress = Progress::things("rules check", "seconds", OBSERVED.as_secs());
        let mut observed = 0;
        let found = rules_now(settings, rules, &mut |elapsed| {
            let seconds = elapsed.as_secs().min(OBSERVED.as_secs());
            progress.advance(seconds - observed);
            observed = seconds;
        })?;
        drop(progress);
        let all = rules.groups.iter().flat_map(|group| &group.rules);
        let mut lines: Vec<RuleLine> =
            all.zip(found).map(|(rule, now)| RuleLine::new(rule, now)).collect();
        if lines.iter().any(|line| line.needs_daemon.is_some()) {
            let known = of_daemon(settings);
            lines.iter_mut().for_each(|line| line.take(&known));
        }
        Ok(Self { rules: lines })
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
            let text = format!(
                "  {number} of which only a daemon knows, and none has them: start one with these \
                 rules: {}",
                names.join(", ")
            );
            writeln!(out, "{}", fitted(&text))?;
        }
        Ok(())
    }
}

/// What a daemon of this node knows; nothing without one.
fn of_daemon(settings: &Settings) -> DaemonRules {
    let reply =
        ControlClient::new(&settings.web.control_socket).request("GET", "/api/v1/status", None);
    let data = reply.ok().filter(|reply| reply.status == 200).map(|reply| reply.data);
    data.and_then(|data| serde_json::from_value(data).ok()).unwrap_or_default()
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
            daemon_state: None,
            expr: Arc::clone(&rule.expr.text),
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
                line.alerts = vec![ConditionElement::new(&Labels::from([]), value)];
            }
            TracedValue::Known(Value::Vector(samples)) => {
                line.holds = Some(!samples.is_empty());
                let alerts = samples
                    .iter()
                    .map(|sample| ConditionElement::new(&sample.labels, sample.value));
                line.alerts = alerts.collect();
            }
            TracedValue::Unknown(why) if line.holds.is_none() => line.unknown = why,
            TracedValue::Failed(why) => line.unknown = vec![why],
            TracedValue::Unknown(_) | TracedValue::Range(_) => {}
        }
        line
    }

    /// Takes what the daemon has of the same rule, if this program could not know it.
    fn take(&mut self, known: &DaemonRules) {
        let is_same = |other: &&RuleOfDaemon| {
            format!("{}/{}", other.group, other.alert) == self.rule && *other.expr == *self.expr
        };
        let same = known.rules.iter().find(is_same).filter(|_| self.needs_daemon.is_some());
        let Some(same) = same else { return };
        self.needs_daemon = None;
        self.daemon_state = Some(same.state.clone());
        self.holds = match same.state.as_str() {
            "firing" | "pending" => Some(true),
            "inactive" => Some(false),
            _ => None,
        };
        self.unknown.clone_from(&same.unknown);
        self.alerts = same
            .alerts
            .iter()
            .filter_map(|alert| {
                Some(ConditionElement {
                    labels: alert.labels.clone(),
                    value: alert.value.parse().ok()?,
                })
            })
            .collect();
    }

    fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let Self { rule, hold_for, steps, alerts, unknown, .. } = self;
        if self.holds.is_none() {
            return writeln!(
                out,
                "{}",
                fitted(&format!("  {rule}: unknown: {}", unknown.join("; ")))
            );
        }
        let when = match (&self.daemon_state, hold_for.is_zero()) {
            (Some(state), _) => format!("{state} in the daemon"),
            (None, true) => "fires at once".to_owned(),
            (None, false) => format!("fires after {}", duration_text(*hold_for)),
        };
        let acts = match steps.as_slice() {
            [] => String::new(),
            steps => format!(", its remedy: {}", steps.join(", ")),
        };
        writeln!(out, "{}", fitted(&format!("  {rule}: true, {when}{acts}")))?;
        for ConditionElement { labels, value } in alerts.iter().take(MOST_ALERTS) {
            let value = match self.is_bytes {
                true => measured_bytes_text(*value),
                false => value.to_string(),
            };
            let labels = labels.iter().map(|(name, value)| format!("{name}={value}"));
            let labels = labels.collect::<Vec<_>>().join(", ");
            writeln!(out, "{}", fitted(&format!("    {{{labels}}} {value}")))?;
        }
        match alerts.len().saturating_sub(MOST_ALERTS) {
            0 => Ok(()),
            more => writeln!(out, "    and {more} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn line(needs_daemon: Option<&str>) -> RuleLine {
        RuleLine {
            rule: "g/Logged".to_owned(),
            holds: needs_daemon.is_none().then_some(false),
            for_seconds: 0.0,
            hold_for: Duration::ZERO,
            steps: Vec::new(),
            alerts: Vec::new(),
            is_bytes: false,
            unknown: Vec::new(),
            needs_daemon: needs_daemon.map(Arc::from),
            daemon_state: None,
            expr: "a > 1".into(),
        }
    }

    fn daemon(expr: &str, state: &str) -> DaemonRules {
        let alert = json!({"labels": {"x": "1"}, "value": "5", "state": state});
        let rule = json!({
            "group": "g", "alert": "Logged", "expr": expr, "state": state,
            "unknown": ["a: failed"], "alerts": [alert], "file": "more than is read",
        });
        serde_json::from_value(json!({ "rules": [rule] })).unwrap()
    }

    #[test]
    fn a_daemon_with_the_same_rule_knows_what_seconds_do_not_show() {
        for (state, holds) in [
            ("firing", Some(true)),
            ("pending", Some(true)),
            ("inactive", Some(false)),
            ("unknown", None),
        ] {
            let mut line = line(Some("a"));
            line.take(&daemon("a > 1", state));
            assert_eq!((line.holds, &line.needs_daemon), (holds, &None), "{state}");
            let mut out = Vec::new();
            line.print(&mut out).unwrap();
            let text = String::from_utf8(out).unwrap();
            let wanted = match holds {
                None => "  g/Logged: unknown: a: failed\n".to_owned(),
                Some(_) => format!("  g/Logged: true, {state} in the daemon\n    {{x=\"1\"}} 5\n"),
            };
            assert_eq!(text, wanted);
        }
    }

    #[test]
    fn another_rule_of_the_same_name_and_what_is_known_here_are_not_the_daemons() {
        let mut other = line(Some("a"));
        other.take(&daemon("a > 2", "firing"));
        assert!(other.needs_daemon.is_some() && other.holds.is_none());
        let mut known = line(None);
        known.take(&daemon("a > 1", "firing"));
        assert_eq!(known.holds, Some(false));
    }
}
