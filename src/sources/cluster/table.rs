//! The samples of one node, checked against the series table.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use crate::model::{
    MOST_SERIES_OF_A_NODE, NodeNews, NodeReadings, Reading, Rejection, Schema, SeriesKey, Wanted,
    metric, series_of_node,
};

/// The length limit of label names and values.
const MAX_LABEL_BYTES: usize = 256;

/// The series that shows whether a source of a node is down.
const COLLECTOR_SUCCESS: &str = "uma_scrape_collector_success";

/// The wanted samples of one response.
#[derive(Debug, Default)]
pub(super) struct NodeSamples {
    /// `None`: an impossible value, or two values.
    samples: BTreeMap<SeriesKey, Option<f64>>,
    refused: [u64; Rejection::ALL.len()],
}

impl NodeSamples {
    /// Adds a sample without the labels that the scraper has added.
    pub(super) fn take(
        &mut self,
        name: &str,
        labels: &[(&str, &str)],
        value: f64,
        wanted: &[Wanted],
    ) {
        let is_long =
            labels.iter().any(|(name, value)| name.len().max(value.len()) > MAX_LABEL_BYTES);
        if is_long {
            return self.refuse(Rejection::TooLong);
        }
        let key = SeriesKey::new(name, labels);
        if !wanted.iter().any(|wanted| wanted.is(&key.name, &key.labels)) {
            return;
        }
        if let Some(before) = self.samples.get_mut(&key) {
            *before = None;
            return self.refuse(Rejection::Twice);
        }
        if self.samples.len() >= MOST_SERIES_OF_A_NODE {
            return self.refuse(Rejection::TooMany);
        }
        let is_possible = match metric(name) {
            Some(metric) => metric.allows(value),
            None => value.is_finite(),
        };
        if !is_possible {
            self.refuse(Rejection::Impossible);
        }
        self.samples.insert(key, Some(value).filter(|_| is_possible));
    }

    fn refuse(&mut self, reason: Rejection) {
        if let Some(index) = Rejection::ALL.iter().position(|known| *known == reason) {
            self.refused[index] += 1;
        }
    }

    fn refusals(&self) -> Vec<(Rejection, u64)> {
        let all = Rejection::ALL.into_iter().zip(self.refused);
        all.filter(|(_, count)| *count > 0).collect()
    }

    /// Whether the response has no wanted sample.
    pub(super) fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// Why the whole response is rejected, if it is.
    fn doubt(&self) -> Option<String> {
        let of = |reason: Rejection| {
            let index = Rejection::ALL.iter().position(|known| *known == reason);
            index.and_then(|index| self.refused.get(index)).is_some_and(|count| *count > 0)
        };
        if of(Rejection::TooMany) {
            return Some(format!("it has more than {MOST_SERIES_OF_A_NODE} series"));
        }
        of(Rejection::TooLong)
            .then(|| format!("it has labels of more than {MAX_LABEL_BYTES} bytes"))
    }

    /// Whether this source of the node is down.
    fn is_down(&self, source: &str) -> bool {
        let up = SeriesKey::new(COLLECTOR_SUCCESS, &[("collector", source)]);
        matches!(self.samples.get(&up), Some(Some(up)) if *up == 0.0)
    }
}

/// The known series of one node.
#[derive(Debug)]
pub(super) struct NodeTable {
    cluster: Arc<str>,
    node: Arc<str>,
    wanted: Arc<[Wanted]>,
    schema: Arc<Schema>,
    /// Keys with the labels of the node itself.
    keys: Vec<SeriesKey>,
    indices: HashMap<SeriesKey, usize>,
}

impl NodeTable {
    pub(super) fn new(cluster: &Arc<str>, node: &Arc<str>, wanted: &Arc<[Wanted]>) -> Self {
        Self {
            cluster: Arc::clone(cluster),
            node: Arc::clone(node),
            wanted: Arc::clone(wanted),
            schema: Arc::default(),
            keys: Vec::new(),
            indices: HashMap::new(),
        }
    }

    /// Replaces the wanted series.
    pub(super) fn want(&mut self, wanted: &Arc<[Wanted]>) {
        if !Arc::ptr_eq(&self.wanted, wanted) {
            *self = Self::new(&self.cluster, &self.node, wanted);
        }
    }

    /// The readings from a response.
    pub(super) fn accept(&mut self, response: &NodeSamples, took: Duration) -> NodeReadings {
        let refused = response.refusals();
        if let Some(doubt) = response.doubt() {
            return NodeReadings { refused, ..self.silent(&doubt, took) };
        }
        let unknown = self.unknown_of(response);
        if self.keys.len() > 2 * MOST_SERIES_OF_A_NODE {
            *self = Self::new(&self.cluster, &self.node, &self.wanted);
        }
        let is_new = |key: &&SeriesKey| !self.indices.contains_key(*key);
        let fresh: Vec<SeriesKey> =
            response.samples.keys().chain(&unknown).filter(is_new).cloned().collect();
        self.add(fresh);
        let value = |key: &SeriesKey| match response.samples.get(key) {
            Some(Some(value)) => Reading::Value(*value),
            Some(None) => Reading::Failed,
            // A missing sample is unsupported, unless its source is down.
            None => {
                match metric(&key.name).is_some_and(|metric| response.is_down(metric.source.name()))
                {
                    true => Reading::Failed,
                    false => Reading::Unsupported,
                }
            }
        };
        let values = self.keys.iter().map(value).collect();
        let news = NodeNews::Answered { schema: Arc::clone(&self.schema), values };
        NodeReadings { refused, ..NodeReadings::new(Arc::clone(&self.node), news, took) }
    }

    /// The readings without a response: all wanted series are unknown.
    pub(super) fn silent(&mut self, why: &str, took: Duration) -> NodeReadings {
        let is_unknown = |wanted: &&Wanted| {
            wanted.name.as_ref() != COLLECTOR_SUCCESS
                && !self.keys.iter().any(|key| wanted.is(&key.name, &key.labels))
        };
        let unknown = self.wanted.iter().filter(is_unknown).map(Wanted::series).collect();
        self.add(unknown);
        let news = NodeNews::Silent { why: shown(why).into(), schema: Arc::clone(&self.schema) };
        NodeReadings::new(Arc::clone(&self.node), news, took)
    }

    /// Wanted series without a sample whose source is down.
    fn unknown_of(&self, response: &NodeSamples) -> Vec<SeriesKey> {
        let is_reported = |wanted: &Wanted| {
            let mut keys = response.samples.keys().chain(&self.keys);
            keys.any(|key| wanted.is(&key.name, &key.labels))
        };
        let is_unknown = |wanted: &&Wanted| {
            let source = metric(&wanted.name).map(|metric| metric.source.name());
            source.is_some_and(|source| response.is_down(source)) && !is_reported(wanted)
        };
        self.wanted.iter().filter(is_unknown).map(Wanted::series).collect()
    }

    fn add(&mut self, keys: Vec<SeriesKey>) {
        if keys.is_empty() {
            return;
        }
        for key in keys {
            if !self.indices.contains_key(&key) {
                self.indices.insert(key.clone(), self.keys.len());
                self.keys.push(key);
            }
        }
        let series = self.keys.iter().map(|key| series_of_node(key, &self.cluster, &self.node));
        self.schema = Arc::new(Schema { series: series.collect() });
    }
}

/// Limits the length, and replaces control characters, which a terminal would execute.
pub(super) fn shown(text: &str) -> String {
    let printable = |c: char| if c.is_control() { ' ' } else { c };
    text.chars().take(300).map(printable).collect()
}
