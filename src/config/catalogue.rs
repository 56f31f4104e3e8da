//! What rules may read: the series that this build exports.

use crate::model::{METRICS, metric};
use crate::policy::promql::KnownSeries;
use crate::policy::rule::RuleSet;

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

    fn has_other_labels(&self, name: &str) -> bool {
        metric(name).is_some_and(|metric| metric.is_of_others)
    }

    fn bounds(&self, name: &str) -> Option<(f64, f64)> {
        metric(name).map(|metric| (metric.least, metric.most))
    }
}

/// More rules than these are not told apart: each selector would hold all their names.
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

    fn has_other_labels(&self, name: &str) -> bool {
        Catalogue.has_other_labels(name)
    }

    fn bounds(&self, name: &str) -> Option<(f64, f64)> {
        Catalogue.bounds(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::promql::parse;

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
    fn what_prometheus_knows_of_its_own_alerts_is_not_told_apart_by_node() {
        let by = ["instance".into()];
        let expr = parse("uma_memory_free_bytes < 1 and on () ALERTS").unwrap();
        let error = expr.by(&by, &Catalogue).unwrap_err();
        assert_eq!(error.message, "ALERTS has the labels that its own rules have left");
    }
}
