//! Conditions that are true on every machine.

use std::collections::BTreeSet;
use std::sync::Arc;

use promql_rules::{EvalTime, Evaluated, Value};

use super::machines::{MachineSample, machines, metrics};
use crate::model::measured_bytes_text;
use crate::policy::rule::{Rule, RuleScope, RuleSet};

/// Smaller machines are not judged by themselves: a number that suits a large one is often always
/// above what they have.
const LARGE_GIB: f64 = 100.0;

/// Where a condition is true, whatever the machine does.
#[derive(Debug)]
pub(super) struct Always {
    /// Its values, for people.
    pub(super) values: String,
    /// The memory of the machines on which it is, in GiB; `None` for all machines.
    pub(super) on_gib: Option<f64>,
}

/// The machines that conditions are tried on.
pub(super) struct Machines {
    all: Vec<MachineSample>,
    /// The metrics that they have.
    known: BTreeSet<String>,
}

impl Machines {
    /// Machines with what these rules read.
    pub(super) fn for_rules(rules: &RuleSet) -> Self {
        let all = rules.groups.iter().flat_map(|group| &group.rules);
        let read = all.flat_map(|rule| rule.expr.expr.reads()).map(|(name, _)| name);
        Self { all: machines(&read.collect::<BTreeSet<Arc<str>>>()), known: metrics() }
    }

    /// Where a condition is always true; `None` where it is false or unknown at times on each kind
    /// of machine, or reads what these machines do not have.
    pub(super) fn always(&self, rule: &Rule) -> Option<Always> {
        let read = rule.expr.expr.reads();
        let is_known = read.iter().all(|(name, _)| self.known.contains(&**name));
        if rule.scope != RuleScope::Node || !is_known {
            return None;
        }
        let all = self.all.iter().map(|machine| values(rule, machine, machine.at));
        if let Some(values) = all.collect::<Option<Vec<_>>>() {
            return Some(Always { values: self.range(rule, &values.concat())?, on_gib: None });
        }
        let kinds = self.all.chunk_by(|one, other| one.gib == other.gib);
        let mut large = kinds.filter(|kind| kind.iter().all(|machine| machine.gib >= LARGE_GIB));
        let (kind, values) = large.find_map(|kind| {
            // Few are true at the first try: only those are tried at all times.
            let at_once = kind.iter().all(|machine| values(rule, machine, machine.at).is_some());
            let times = self.all.iter().map(|machine| machine.at).filter(|_| at_once);
            let each =
                times.flat_map(|at| kind.iter().map(move |machine| values(rule, machine, at)));
            Some((kind.first()?, each.collect::<Option<Vec<_>>>().filter(|_| at_once)?))
        })?;
        Some(Always { values: self.range(rule, &values.concat())?, on_gib: Some(kind.gib) })
    }

    /// Values for people.
    fn range(&self, rule: &Rule, values: &[f64]) -> Option<String> {
        let MachineSample { store, at, .. } = self.all.last()?;
        let is_bytes = rule.expr.expr.trace(&rule.expr.text, store, *at, true).is_bytes;
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let shown = |value: f64| match is_bytes {
            true => measured_bytes_text(value),
            false => format!("{}", (value * 1_000.0).round() / 1_000.0),
        };
        Some(match least == most {
            true => shown(least),
            false => format!("{} to {}", shown(least), shown(most)),
        })
    }
}

/// The values of a condition that is true there.
fn values(rule: &Rule, machine: &MachineSample, at: EvalTime) -> Option<Vec<f64>> {
    let at = EvalTime { timeline_ms: machine.at.timeline_ms, ..at };
    match rule.expr.expr.evaluate(&machine.store, at).ok()? {
        Evaluated::Known(Value::Scalar(value)) => Some(vec![value]),
        Evaluated::Known(Value::Vector(samples)) if !samples.is_empty() => {
            Some(samples.iter().map(|sample| sample.value).collect())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::mistake::SourceText;
    use crate::config::rules::parse_rules;
    use crate::config::shipped::shipped_rules;

    fn always(expr: &str) -> Option<Always> {
        let text = format!("groups: [{{name: g, rules: [{{alert: A, expr: '{expr}'}}]}}]");
        let rules = parse_rules(&[SourceText::new("f", text)], Duration::from_secs(1));
        let rules = rules.unwrap_or_else(|mistakes| panic!("{mistakes}"));
        Machines::for_rules(&rules).always(&rules.groups[0].rules[0])
    }

    #[test]
    fn what_is_true_on_every_machine_is_found_with_its_values() {
        for (expr, least) in [
            ("uma_memory_available_bytes / uma_memory_total_bytes < 10", "0."),
            ("uma_pool_available_bytes{pool=\"host\"} / uma_pool_total_bytes < 10", "0."),
            ("uma_memory_free_bytes < 1e15", ""),
            ("rate(uma_memory_oom_kills_total[5m]) >= 0", "0 to 0.411"),
            ("max_over_time(uma_memory_free_bytes[1s]) > 1", ""),
            ("uma_pressure_ratio{resource=\"memory\",share=\"full\",window=\"10s\"} < 20", "0 to"),
            ("vector(1) > 0", "1"),
            ("time() > bool 0", "1"),
            ("absent(uma_memory_free_bytes) or uma_memory_total_bytes > 1", ""),
        ] {
            let always = always(expr).unwrap_or_else(|| panic!("{expr}"));
            assert!(always.values.starts_with(least), "{expr}: {always:?}");
            assert_eq!(always.on_gib, None, "{expr}");
        }
    }

    #[test]
    fn what_is_true_on_one_kind_of_machine_is_found_with_its_size() {
        for (expr, gib) in [
            ("uma_memory_free_bytes < 200e9", 121.0),
            ("uma_memory_total_bytes > 300e9", 480.0),
            (
                "uma_memory_total_bytes > 8e9 and \
                 uma_memory_available_bytes / uma_memory_total_bytes * 100 < 1000",
                121.0,
            ),
        ] {
            assert_eq!(always(expr).and_then(|always| always.on_gib), Some(gib), "{expr}");
        }
    }

    #[test]
    fn what_is_false_at_times_on_each_machine_or_not_known_is_left_alone() {
        for expr in [
            "uma_memory_available_bytes / uma_memory_total_bytes < 0.1",
            "uma_memory_available_bytes / uma_memory_total_bytes < 0.9",
            "uma_memory_total_bytes < 100e9",
            "uma_memory_available_bytes < 20e9",
            "uma_gpu_driver_responsive == 1",
            "uma_scrape_collector_success == 1",
            "rate(uma_memory_oom_kills_total[5m]) == 0",
            "rate(uma_memory_oom_kills_total[5m]) > 0",
            "deriv(uma_memory_free_bytes[10s]) == 0",
            "uma_memory_verdict{verdict=\"leaked\"} == 1",
            "vector(time()) % 86400 > 6 * 3600",
            "vector(time()) % 604800 < 518400",
            // Engines are modelled by their phases alone.
            "absent(uma_engine_stuck)",
            "uma_engine_memory_bytes >= 0",
            "ALERTS >= 0 or vector(1)",
        ] {
            assert!(always(expr).is_none(), "{expr}");
        }
    }

    #[test]
    fn no_shipped_rule_is_always_true_and_many_are_judged() {
        let rules = parse_rules(&shipped_rules(), Duration::from_secs(1)).unwrap();
        let machines = Machines::for_rules(&rules);
        let all = || rules.groups.iter().flat_map(|group| &group.rules);
        assert!(all().all(|rule| machines.always(rule).is_none()));
        let is_known = |name: &str| machines.known.contains(name);
        let judged =
            all().filter(|rule| rule.expr.expr.reads().iter().all(|(name, _)| is_known(name)));
        assert!(judged.count() > 30);
    }
}
