//! Refuses remedies that act on events which only syslog(2) shows: local users can forge these.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::rails::{NameUse, ReferenceKind};
use crate::config::decode::{Findings, Table};
use crate::policy::rule::{Rule, RuleGroup};

/// What syslog(2) shows of the kernel log.
const CLAIMED_EVENTS: &str = "uma_kernel_claimed_events_total";

/// Series through which a rule reads the state of another rule.
const RULE_SERIES: [&str; 6] = [
    "uma_actions_total",
    "uma_decisions_total",
    "uma_holds_total",
    "uma_node_health",
    "uma_rule_state",
    "uma_rules",
];

/// What to do about a remedy that acts on what may be forged.
pub(super) const FORGED: &str = "local users can forge what syslog(2) shows: leave notify alone in \
    the remedy, or read uma_kernel_events_total and give the program /dev/kmsg";

/// Refuses a rule that reads forgeable events and has a remedy that acts. Returns the series of
/// [`RULE_SERIES`] that a remedy that acts reads, to be checked once all rules are known.
pub(super) fn refuse_acting(
    rule: &Rule,
    table: &Table<'_>,
    findings: &mut Findings<'_>,
) -> Option<Vec<NameUse>> {
    let Some(remedy) = &rule.remedy else { return Some(Vec::new()) };
    let acts = remedy.steps.iter().any(|step| !step.is_notice());
    if !acts {
        return Some(Vec::new());
    }
    let aim = remedy.aim.as_ref().map(|aim| aim.expr.reads());
    let read = rule.expr.expr.reads().into_iter().chain(aim.into_iter().flatten());
    let read: BTreeSet<Arc<str>> = read.map(|(metric, _)| metric).collect();
    let span = table.key("remedy").map_or_else(|| table.span(), |key| key.span.clone());
    if read.contains(CLAIMED_EVENTS) {
        let message = format!("this remedy acts, and the rule reads {CLAIMED_EVENTS}");
        findings.add(span, message).hint(FORGED);
        return None;
    }
    let of_rules = read.into_iter().filter(|metric| RULE_SERIES.contains(&&**metric));
    let used = |metric| NameUse { kind: ReferenceKind::Series, name: metric, span: span.clone() };
    Some(of_rules.map(used).collect())
}

/// The mistake of a remedy that acts on that series of [`RULE_SERIES`] while a rule reads forgeable
/// events.
pub(super) fn acts_on_them(series: &str, groups: &[RuleGroup]) -> Option<String> {
    let reads =
        |rule: &&Rule| rule.expr.expr.reads().iter().any(|(metric, _)| **metric == *CLAIMED_EVENTS);
    let rule = &groups.iter().flat_map(|group| &group.rules).find(reads)?.id;
    Some(format!("this remedy acts on {series}, and the rule {rule} reads {CLAIMED_EVENTS}"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::config::mistake::SourceText;
    use crate::config::rules::parse_rules;

    const NOTIFIER: &str = "
groups:
- name: notices
  rules:
  - alert: Notifies
    expr: increase(uma_kernel_claimed_events_total[5m]) > 0
    remedy: {steps: [notify: {message: look}]}
";

    fn mistakes(expr: &str, aim: &str, others: &str) -> Option<String> {
        let acting = format!(
            "
- name: acts
  rules:
  - alert: Acts
    expr: {expr}
    remedy: {{aim: {aim}, steps: [drop_caches: {{}}]}}
"
        );
        let source = SourceText::new("rules.yaml", format!("{others}{acting}"));
        let read = parse_rules(&[source], Duration::from_secs(1));
        read.err().map(|mistakes| mistakes.to_string())
    }

    #[test]
    fn no_remedy_acts_on_forgeable_events_or_on_the_state_of_a_rule_that_reads_them() {
        let (fine, nothing) = ("uma_memory_free_bytes > 1", "groups:");
        let claimed = "uma_kernel_claimed_events_total > 0";
        let state = r#"'uma_rule_state{rule="Notifies",state="firing"} == 1'"#;
        assert_eq!(mistakes(fine, fine, NOTIFIER), None);
        assert_eq!(mistakes(state, fine, nothing), None, "no rule reads forgeable events");
        for (expr, aim, others, message) in [
            (claimed, fine, nothing, "the rule reads uma_kernel_claimed_events_total"),
            (fine, claimed, nothing, "the rule reads uma_kernel_claimed_events_total"),
            (state, fine, NOTIFIER, "acts on uma_rule_state, and the rule notices/Notifies reads"),
            (fine, "uma_decisions_total > 0", NOTIFIER, "acts on uma_decisions_total"),
        ] {
            let mistakes = mistakes(expr, aim, others).unwrap();
            assert!(mistakes.contains(message) && mistakes.contains("rules.yaml:"), "{mistakes}");
        }
    }
}
