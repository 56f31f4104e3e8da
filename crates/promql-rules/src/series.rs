//! Names of series, and selections of them.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The label that names a node's cluster.
pub const CLUSTER_LABEL: &str = "cluster";
/// The label that names a node.
pub const NODE_LABEL: &str = "node";
/// Replaces a series' own label `node`, such as a NUMA node, among series of several nodes.
pub const EXPORTED_NODE_LABEL: &str = "exported_node";

/// The identity of one series: a metric's name and its label set.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SeriesKey {
    /// The metric's name.
    pub name: Arc<str>,
    /// Label names and values, sorted by name; never contains `__name__` or an empty value.
    pub labels: Arc<[(Arc<str>, Arc<str>)]>,
}

impl SeriesKey {
    /// A key from a name and labels in any order; empty label values are left out.
    pub fn new(name: &str, labels: &[(&str, &str)]) -> Self {
        let mut labels: Vec<(Arc<str>, Arc<str>)> = labels
            .iter()
            .filter(|(_, value)| !value.is_empty())
            .map(|(name, value)| (Arc::from(*name), Arc::from(*value)))
            .collect();
        labels.sort();
        Self { name: Arc::from(name), labels: labels.into() }
    }
}

impl std::fmt::Display for SeriesKey {
    /// As in PromQL: `name{label="value"}`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)?;
        if self.labels.is_empty() {
            return Ok(());
        }
        for (position, (name, value)) in self.labels.iter().enumerate() {
            let opening = if position == 0 { '{' } else { ',' };
            write!(f, "{opening}{name}={value:?}")?;
        }
        f.write_str("}")
    }
}

/// A selection of series of other nodes: by name, with at least these labels.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wanted {
    /// The metric.
    pub name: Arc<str>,
    /// Required labels, sorted by name.
    pub labels: Vec<(Arc<str>, Arc<str>)>,
}

impl Wanted {
    /// Whether it selects all series that the other one selects.
    pub fn covers(&self, other: &Self) -> bool {
        self.is(&other.name, &other.labels)
    }

    /// Whether it selects a series, which may have further labels.
    pub fn is(&self, name: &str, labels: &[(Arc<str>, Arc<str>)]) -> bool {
        *self.name == *name && self.labels.iter().all(|wanted| labels.contains(wanted))
    }

    /// The selected series, with its known labels.
    pub fn series(&self) -> SeriesKey {
        SeriesKey { name: Arc::clone(&self.name), labels: self.labels.clone().into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_prints_as_in_promql() {
        let key = SeriesKey::new("uma_zone_free_bytes", &[("zone", "DMA32"), ("node", "0")]);
        assert_eq!(key.to_string(), r#"uma_zone_free_bytes{node="0",zone="DMA32"}"#);
        assert_eq!(SeriesKey::new("x", &[("empty", "")]).to_string(), "x");
    }

    #[test]
    fn a_wanted_series_has_at_least_its_labels() {
        let pair = |name: &str, value: &str| (Arc::from(name), Arc::from(value));
        let wanted = Wanted { name: "a".into(), labels: vec![pair("x", "1")] };
        assert!(wanted.is("a", &[pair("w", "0"), pair("x", "1")]));
        assert!(!wanted.is("a", &[pair("x", "2")]));
        assert!(!wanted.is("b", &[pair("x", "1")]));
    }
}
