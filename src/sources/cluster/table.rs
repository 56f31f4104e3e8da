//! What one node says, against what it may say.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use crate::model::{
    MOST_SERIES_OF_A_NODE, NodeNews, NodeReadings, Reading, Refusal, Schema, SeriesKey, Wanted,
    metric, series_of_node,
};

/// No label of anybody's is longer.
const LONGEST_LABEL: usize = 256;

/// What tells whether a source of a node is down.
const SOURCE_UP: &str = "uma_source_up";

/// One answer, as far as it is wanted.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// `None`: a value that cannot be, or two.
    samples: BTreeMap<SeriesKey, Option<f64>>,
    refused: [u64; Refusal::ALL.len()],
}

impl Told {
    /// Takes a series of the node, without those of its labels that whoever asked has given it.
    pub(super) fn take(
        &mut self,
        name: &str,
        labels: &[(&str, &str)],
        value: f64,
        wanted: &[Wanted],
    ) {
        let is_long =
            labels.iter().any(|(name, value)| name.len().max(value.len()) > LONGEST_LABEL);
        if is_long {
            return self.refuse(Refusal::TooLong);
        }
        let key = SeriesKey::new(name, labels);
        if !wanted.iter().any(|wanted| wanted.is(&key.name, &key.labels)) {
            return;
        }
        if let Some(before) = self.samples.get_mut(&key) {
            *before = None;
            return self.refuse(Refusal::Twice);
        }
        if self.samples.len() >= MOST_SERIES_OF_A_NODE {
            return self.refuse(Refusal::TooMany);
        }
        let is_possible = match metric(name) {
            Some(metric) => metric.allows(value),
            None => value.is_finite(),
        };
        if !is_possible {
            self.refuse(Refusal::Impossible);
        }
        self.samples.insert(key, Some(value).filter(|_| is_possible));
    }

    fn refuse(&mut self, reason: Refusal) {
        if let Some(place) = Refusal::ALL.iter().position(|known| *known == reason) {
            self.refused[place] += 1;
        }
    }

    fn refusals(&self) -> Vec<(Refusal, u64)> {
        let all = Refusal::ALL.into_iter().zip(self.refused);
        all.filter(|(_, count)| *count > 0).collect()
    }

    /// Whether nothing that is wanted was told.
    pub(super) fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// Why none of it is believed, if that is so.
    fn doubt(&self) -> Option<String> {
        let of = |reason: Refusal| {
            let place = Refusal::ALL.iter().position(|known| *known == reason);
            place.and_then(|place| self.refused.get(place)).is_some_and(|count| *count > 0)
        };
        if of(Refusal::TooMany) {
            return Some(format!("it tells of more than {MOST_SERIES_OF_A_NODE} series"));
        }
        of(Refusal::TooLong).then(|| format!("it has labels of more than {LONGEST_LABEL} bytes"))
    }

    /// Whether that source of the node is down.
    fn is_down(&self, source: &str) -> bool {
        let up = SeriesKey::new(SOURCE_UP, &[("source", source)]);
        matches!(self.samples.get(&up), Some(Some(up)) if *up == 0.0)
    }
}

/// The series of one node that are known.
#[derive(Debug)]
pub(super) struct NodeTable {
    cluster: Arc<str>,
    node: Arc<str>,
    wanted: Arc<[Wanted]>,
    schema: Arc<Schema>,
    /// As the node calls them.
    keys: Vec<SeriesKey>,
    places: HashMap<SeriesKey, usize>,
}

impl NodeTable {
    pub(super) fn new(cluster: &Arc<str>, node: &Arc<str>, wanted: &Arc<[Wanted]>) -> Self {
        Self {
            cluster: Arc::clone(cluster),
            node: Arc::clone(node),
            wanted: Arc::clone(wanted),
            schema: Arc::default(),
            keys: Vec::new(),
            places: HashMap::new(),
        }
    }

    /// From now on other series are wanted.
    pub(super) fn want(&mut self, wanted: &Arc<[Wanted]>) {
        if !Arc::ptr_eq(&self.wanted, wanted) {
            *self = Self::new(&self.cluster, &self.node, wanted);
        }
    }

    /// What an answer comes to.
    pub(super) fn answered(&mut self, told: &Told, took: Duration) -> NodeReadings {
        let refused = told.refusals();
        if let Some(doubt) = told.doubt() {
            return NodeReadings { refused, ..self.silent(&doubt, took) };
        }
        let unknown = self.unknown_of(told);
        if self.keys.len() > 2 * MOST_SERIES_OF_A_NODE {
            *self = Self::new(&self.cluster, &self.node, &self.wanted);
        }
        let is_new = |key: &&SeriesKey| !self.places.contains_key(*key);
        let fresh: Vec<SeriesKey> =
            told.samples.keys().chain(&unknown).filter(is_new).cloned().collect();
        self.add(fresh);
        let value = |key: &SeriesKey| match told.samples.get(key) {
            Some(Some(value)) => Reading::Value(*value),
            Some(None) => Reading::Failed,
            // What is not told is not there, unless nobody can tell.
            None => {
                match metric(&key.name).is_some_and(|metric| told.is_down(metric.source.name())) {
                    true => Reading::Failed,
                    false => Reading::Unsupported,
                }
            }
        };
        let values = self.keys.iter().map(value).collect();
        let news = NodeNews::Answered { schema: Arc::clone(&self.schema), values };
        NodeReadings { node: Arc::clone(&self.node), news, took, refused }
    }

    /// That there was no answer. What would be in it is unknown, known or not.
    pub(super) fn silent(&mut self, why: &str, took: Duration) -> NodeReadings {
        let is_unknown = |wanted: &&Wanted| {
            wanted.name.as_ref() != SOURCE_UP
                && !self.keys.iter().any(|key| wanted.is(&key.name, &key.labels))
        };
        let unknown = self.wanted.iter().filter(is_unknown).map(Wanted::series).collect();
        self.add(unknown);
        let news = NodeNews::Silent { why: shown(why).into(), schema: Arc::clone(&self.schema) };
        NodeReadings { node: Arc::clone(&self.node), news, took, refused: Vec::new() }
    }

    /// What is wanted, is not told, and comes from a source that is down.
    fn unknown_of(&self, told: &Told) -> Vec<SeriesKey> {
        let is_told = |wanted: &Wanted| {
            let mut keys = told.samples.keys().chain(&self.keys);
            keys.any(|key| wanted.is(&key.name, &key.labels))
        };
        let is_unknown = |wanted: &&Wanted| {
            let source = metric(&wanted.name).map(|metric| metric.source.name());
            source.is_some_and(|source| told.is_down(source)) && !is_told(wanted)
        };
        self.wanted.iter().filter(is_unknown).map(Wanted::series).collect()
    }

    fn add(&mut self, keys: Vec<SeriesKey>) {
        if keys.is_empty() {
            return;
        }
        for key in keys {
            if !self.places.contains_key(&key) {
                self.places.insert(key.clone(), self.keys.len());
                self.keys.push(key);
            }
        }
        let series = self.keys.iter().map(|key| series_of_node(key, &self.cluster, &self.node));
        self.schema = Arc::new(Schema { series: series.collect() });
    }
}

/// Within bounds, and without what a terminal would obey.
pub(super) fn shown(text: &str) -> String {
    let printable = |c: char| if c.is_control() { ' ' } else { c };
    text.chars().take(300).map(printable).collect()
}
