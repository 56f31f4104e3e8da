//! What rules may read: the series that this build exports.

use crate::model::{METRICS, metric};
use crate::policy::promql::KnownSeries;

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

    fn bounds(&self, name: &str) -> Option<(f64, f64)> {
        metric(name).map(|metric| (metric.least, metric.most))
    }
}
