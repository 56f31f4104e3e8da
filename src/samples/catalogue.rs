//! Lists of series, label names, label values and metrics.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::{ListRequest, Parameters};
use crate::model::{METRICS, Metric, MetricKind, SeriesKey};

/// The label of a metric's name.
const NAME: &str = "__name__";

/// What is listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CatalogueListing {
    /// Series, each with all labels.
    Series,
    /// The names of labels.
    Labels,
    /// The values of a label.
    Values(String),
}

/// The `data` of a response, and what the reader should know about it.
pub type Listings = (Value, Vec<String>);

impl CatalogueListing {
    /// Lists the requested ones of these series.
    pub fn of(&self, series: &BTreeSet<SeriesKey>, listed: &ListRequest) -> Listings {
        let series = series.iter().filter(|key| listed.selects(key));
        let texts: BTreeSet<&str> = match self {
            Self::Series => {
                let all = series.map(|key| {
                    let labels = key.labels.iter();
                    let labels = labels.map(|(name, value)| (name.to_string(), json!(&**value)));
                    let name = (NAME.to_owned(), json!(&*key.name));
                    Value::Object(std::iter::once(name).chain(labels).collect())
                });
                return limited(all.collect(), listed.limit);
            }
            Self::Labels => {
                let labels = series.flat_map(|key| key.labels.iter().map(|(name, _)| &**name));
                let labels: BTreeSet<&str> = labels.collect();
                let name = Some(NAME).filter(|_| !labels.is_empty());
                labels.into_iter().chain(name).collect()
            }
            Self::Values(name) if name == NAME => series.map(|key| &*key.name).collect(),
            Self::Values(wanted) => {
                let labels = series.flat_map(|key| key.labels.iter());
                labels.filter(|(name, _)| **name == **wanted).map(|(_, value)| &**value).collect()
            }
        };
        limited(texts.into_iter().map(Value::from).collect(), listed.limit)
    }
}

/// As in Prometheus, a cut list has a warning.
fn limited(mut list: Vec<Value>, limit: usize) -> Listings {
    if limit == 0 || list.len() <= limit {
        return (list.into(), Vec::new());
    }
    list.truncate(limit);
    (list.into(), vec!["results truncated due to limit".to_owned()])
}

/// Type and help of metrics, by name. Of `metric` alone if that parameter is there.
///
/// # Errors
/// A parameter is no number.
pub fn metadata(parameters: &Parameters) -> Result<Value, String> {
    let limit = parameters.count("limit")?;
    let wanted = parameters.get("metric");
    let mut found: BTreeMap<&str, Value> = BTreeMap::new();
    for metric in METRICS.iter().filter(|metric| !metric.is_of_others) {
        let (name, kind) = family(metric);
        if wanted.is_some_and(|wanted| wanted != name) || limit > 0 && found.len() >= limit {
            continue;
        }
        let entry = json!([{ "type": kind, "help": metric.summary(), "unit": "" }]);
        found.entry(name).or_insert(entry);
    }
    Ok(Value::Object(found.into_iter().map(|(name, entry)| (name.to_owned(), entry)).collect()))
}

/// The name and the type under which a scrape as text declares a metric.
fn family(metric: &'static Metric) -> (&'static str, &'static str) {
    match metric.kind {
        MetricKind::Gauge | MetricKind::Info => (metric.name, "gauge"),
        MetricKind::Counter => (metric.name, "counter"),
        MetricKind::Histogram => {
            (metric.name.rsplit_once('_').map_or(metric.name, |(name, _)| name), "histogram")
        }
    }
}
