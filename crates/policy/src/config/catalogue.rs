//! What rules may read: the series that this build exports.

use promql_rules::{KnownSeries, did_you_mean};

use crate::model::{CLUSTER_LABEL, EXPORTED_NODE_LABEL, METRICS, NODE_LABEL, metric};
use crate::policy::rule::{RuleScope, RuleSet};

/// The table of all series, as the rule language sees it.
#[derive(Clone, Copy, Debug)]
pub struct Catalogue;

impl KnownSeries for Catalogue {
    fn labels(&self, name: &str) -> Option<Vec<&str>> {
        metric(name).map(|metric| metric.labels.to_vec())
    }

    fn names(&self) -> Vec<&str> {
        METRICS.iter().map(|metric| metric.name).collect()
    }

    fn values(&self, name: &str, label: &str) -> Option<&[&str]> {
        metric(name)?.values(label)
    }

    fn may_lack(&self, name: &str, label: &str) -> bool {
        metric(name).is_some_and(|metric| metric.optional.contains(&label))
    }

    fn has_other_labels(&self, name: &str) -> bool {
        metric(name).is_some_and(|metric| metric.is_of_others)
    }

    fn bounds(&self, name: &str) -> Option<(f64, f64)> {
        metric(name).map(|metric| (metric.least, metric.most))
    }

    fn hint(&self, name: &str) -> Option<String> {
        Some(did_you_mean(&as_named_here(name), self.names()).unwrap_or_else(|| {
            "rules read the series that this node itself exports, uma_…: see its /metrics"
                .to_owned()
        }))
    }
}

/// The name that node_exporter's `node_memory_MemFree_bytes` would have here.
fn as_named_here(name: &str) -> String {
    let Some(rest) = name.strip_prefix("node_") else { return name.to_owned() };
    let mut own = "uma_".to_owned();
    for character in rest.chars() {
        if character.is_ascii_uppercase() && !own.ends_with('_') {
            own.push('_');
        }
        own.push(character.to_ascii_lowercase());
    }
    own.replace("_mem_", "_")
}

/// Up to so many rules are distinguished: each selector holds all their names.
const MOST_RULES: usize = 500;

/// The same once it is known which rules are loaded together.
#[derive(Clone, Debug)]
pub struct LoadedCatalogue<'r> {
    groups: Vec<&'r str>,
    alerts: Vec<&'r str>,
}

impl<'r> LoadedCatalogue<'r> {
    /// Of these rules and no others.
    pub fn new(rules: &'r RuleSet) -> Self {
        let groups = rules.groups.iter().map(|group| &*group.name).collect();
        let alerts = rules.groups.iter().flat_map(|group| &group.rules);
        Self { groups, alerts: alerts.map(|rule| &*rule.id.alert).collect() }
    }
}

impl KnownSeries for LoadedCatalogue<'_> {
    fn labels(&self, name: &str) -> Option<Vec<&str>> {
        Catalogue.labels(name)
    }

    fn names(&self) -> Vec<&str> {
        Catalogue.names()
    }

    fn values(&self, name: &str, label: &str) -> Option<&[&str]> {
        match (name, label) {
            _ if self.alerts.len() > MOST_RULES => metric(name)?.values(label),
            ("uma_rule_state", "rule") => Some(&self.alerts),
            ("uma_rule_state", "group") => Some(&self.groups),
            _ => metric(name)?.values(label),
        }
    }

    fn may_lack(&self, name: &str, label: &str) -> bool {
        Catalogue.may_lack(name, label)
    }

    fn has_other_labels(&self, name: &str) -> bool {
        Catalogue.has_other_labels(name)
    }

    fn bounds(&self, name: &str) -> Option<(f64, f64)> {
        Catalogue.bounds(name)
    }

    fn hint(&self, name: &str) -> Option<String> {
        Catalogue.hint(name)
    }
}

/// The catalogue for rules of a scope. For rules of the cluster, series have the label of their
/// node.
#[derive(Clone, Copy, Debug)]
pub struct Scoped<'k, K>(pub &'k K, pub RuleScope);

impl<K: KnownSeries> KnownSeries for Scoped<'_, K> {
    fn labels(&self, name: &str) -> Option<Vec<&str>> {
        let own = self.0.labels(name)?;
        if self.1 == RuleScope::Node {
            return Some(own);
        }
        if self.0.has_other_labels(name) {
            // A series that this node has received is not one that others can receive from it.
            return None;
        }
        let renamed = own.into_iter().map(|label| match label {
            NODE_LABEL => EXPORTED_NODE_LABEL,
            other => other,
        });
        let mut labels: Vec<&str> = renamed.chain([CLUSTER_LABEL, NODE_LABEL]).collect();
        labels.sort_unstable();
        Some(labels)
    }

    fn names(&self) -> Vec<&str> {
        self.0.names()
    }

    fn may_lack(&self, name: &str, label: &str) -> bool {
        self.0.may_lack(name, label)
    }

    fn has_other_labels(&self, name: &str) -> bool {
        self.1 == RuleScope::Node && self.0.has_other_labels(name)
    }

    fn values(&self, name: &str, label: &str) -> Option<&[&str]> {
        match (self.1, label) {
            (RuleScope::Node, _) => self.0.values(name, label),
            (RuleScope::Cluster, NODE_LABEL | CLUSTER_LABEL) => None,
            (RuleScope::Cluster, EXPORTED_NODE_LABEL) => self.0.values(name, NODE_LABEL),
            // Another node has other rules.
            (RuleScope::Cluster, "rule" | "group") => None,
            (RuleScope::Cluster, _) => self.0.values(name, label),
        }
    }

    fn bounds(&self, name: &str) -> Option<(f64, f64)> {
        self.0.bounds(name)
    }

    fn hint(&self, name: &str) -> Option<String> {
        self.0.hint(name)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::mistake::{Mistake, SourceText};
    use crate::config::rules::parse_rules;
    use crate::policy::rule::RuleGroup;
    use promql_rules::parse;

    const UNEVEN: &str =
        "min by (cluster) (uma_memory_free_bytes) < max by (cluster) (uma_memory_free_bytes)";

    fn group(scope: &str, expr: &str) -> Result<RuleGroup, Mistake> {
        let text = format!("groups:\n- name: g\n{scope}  rules:\n  - alert: A\n    expr: {expr}\n");
        let rules = parse_rules(&[SourceText::new("f", text)], Duration::from_secs(1));
        match rules {
            Ok(mut rules) => Ok(rules.groups.remove(0)),
            Err(mut mistakes) => Err(mistakes.0.remove(0)),
        }
    }

    #[test]
    fn received_alerts_have_whatever_labels_they_have() {
        for fine in [
            "ALERTS{alertname=\"NodeDown\", team=~\"a|b\"} == 1",
            "count by (team, instance) (ALERTS{alertstate=\"firing\"}) > 2",
            "uma_memory_free_bytes < 1 and on () ALERTS{severity=\"critical\"}",
            "ALERTS * on (team) group_left (rack) ALERTS{rack!=\"\"}",
            "count_over_time(ALERTS{cluster=\"lab\"}[5m]) > 0 unless on (instance) ALERTS",
            "absent(ALERTS{alertname=\"Watchdog\"})",
        ] {
            let expr = parse(fine).unwrap();
            expr.check(&Catalogue).unwrap_or_else(|error| panic!("{fine}: {error}"));
            assert!(expr.never(&Catalogue).is_empty(), "{fine}");
        }
        let pending = parse("ALERTS{alertstate=\"pending\"}").unwrap();
        let error = pending.check(&Catalogue).unwrap_err().to_string();
        assert!(error.contains("values of alertstate: firing"), "{error}");
        let error = parse("ALERT").unwrap().check(&Catalogue).unwrap_err().to_string();
        assert!(error.contains("did you mean \"ALERTS\"?"), "{error}");
        assert!(parse("ALERTS > 1").unwrap().never(&Catalogue).len() == 1, "it is 1 or not there");
    }

    #[test]
    fn an_unknown_series_gets_the_name_that_it_has_here() {
        let hint = |text: &str| parse(text).unwrap().check(&Catalogue).unwrap_err().hint.unwrap();
        let own = "did you mean \"uma_memory_free_bytes\"?";
        assert_eq!(hint("uma_memory_fre_bytes"), own);
        assert_eq!(hint("node_memory_MemFree_bytes"), own);
        assert!(hint("up").contains("see its /metrics"));
    }

    #[test]
    fn prometheus_own_alert_series_are_not_distinguished_by_node() {
        let by = ["instance".into()];
        let expr = parse("uma_memory_free_bytes < 1 and on () ALERTS").unwrap();
        let error = expr.by(&by, &Catalogue).unwrap_err();
        assert_eq!(error.message, "ALERTS has the labels that its own rules have left");
    }

    #[test]
    fn a_group_says_whose_series_it_reads() {
        let scopes = |group: RuleGroup| (group.scope, group.rules[0].scope);
        let read = group("  scope: cluster\n", UNEVEN).unwrap();
        assert_eq!(scopes(read), (RuleScope::Cluster, RuleScope::Cluster));
        let read = group("", "uma_memory_free_bytes < 1").unwrap();
        assert_eq!(scopes(read), (RuleScope::Node, RuleScope::Node));
        // The series' own label is renamed in favour of the node's name.
        let numa = "sum by (node, exported_node) (uma_numa_memory_bytes) > 1";
        assert!(group("  scope: cluster\n", numa).is_ok());
        let alerts = "ALERTS{alertname=\"NodeDown\", team=\"a\"} == 1";
        assert!(group("", &format!("'{alerts}'")).is_ok());
        assert!(group("  scope: cluster\n", &format!("'{alerts}'")).is_err());
        let mistake = group("", UNEVEN).unwrap_err();
        assert!(mistake.message.contains("label \"cluster\""), "{mistake:?}");
        assert!(mistake.hint.unwrap().contains("add scope: cluster to the group"));
        let mistake = group("  scope: clutser\n", UNEVEN).unwrap_err();
        assert_eq!(mistake.hint.as_deref(), Some("did you mean \"cluster\"?"));
    }
}
