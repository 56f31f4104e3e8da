//! The other nodes of a simulated cluster: they answer, fall silent, report falsely, come, go, and
//! bear other names.

use std::sync::Arc;
use std::time::Duration;

use umawarden::model::{
    ClusterNames, ClusterReadings, NodeNews, NodeReadings, Observation, Reading, Rejection, Schema,
    SeriesKey, metric, series_of_node,
};

use super::chance::Chance;

/// The name of this node.
pub const HERE: &str = "here";

/// The maximum of other nodes here.
const MAX_NODES: usize = 7;

/// Series of a node that reports different ones each time.
const ODD_SERIES: u64 = 50;

const METRICS: [&str; 3] =
    ["uma_memory_total_bytes", "uma_memory_available_bytes", "uma_memory_free_bytes"];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Well,
    /// It does not answer.
    Silent,
    /// Even its silence is not reported.
    Unreported,
    /// One of its values is impossible.
    FalseValues,
    /// Some of its values are unknown, or absent.
    Gaps,
    /// It reports different series each time.
    Odd,
    /// It is gone each time, and returns under another name.
    Changes,
}

const FATES: [Fate; 12] = [
    Fate::Well,
    Fate::Well,
    Fate::Well,
    Fate::Well,
    Fate::Silent,
    Fate::Silent,
    Fate::Unreported,
    Fate::FalseValues,
    Fate::Gaps,
    Fate::Gaps,
    Fate::Odd,
    Fate::Changes,
];

struct Neighbour {
    name: Arc<str>,
    schema: Arc<Schema>,
    free: f64,
    fate: Fate,
}

pub struct Neighbours {
    names: Option<ClusterNames>,
    nodes: Vec<Neighbour>,
    /// Nodes that have gone since the last query.
    gone: Vec<Arc<str>>,
    total: f64,
    fresh: u64,
    chance: Chance,
}

impl Neighbours {
    /// `is_there`: whether there is a cluster at all.
    pub fn new(is_there: bool, total: f64, beat: Duration, mut chance: Chance) -> Self {
        let known_for = beat * *chance.one_of(&[3, 10]);
        let known_for = known_for.clamp(Duration::from_secs(5), Duration::from_secs(180));
        let names = ClusterNames { cluster: "lab".into(), node: HERE.into(), known_for };
        let mut neighbours = Self {
            names: is_there.then_some(names),
            nodes: Vec::new(),
            gone: Vec::new(),
            total,
            fresh: 0,
            chance,
        };
        for number in 1..=3 {
            neighbours.add(&format!("node-{number}"));
        }
        neighbours
    }

    pub fn names(&self) -> Option<&ClusterNames> {
        self.names.as_ref()
    }

    fn add(&mut self, name: &str) {
        let name: Arc<str> = name.into();
        let keys = METRICS.map(|metric| SeriesKey::new(metric, &[]));
        let free = self.total * self.chance.share();
        let schema = schema(&name, &keys);
        self.nodes.push(Neighbour { name, schema, free, fate: Fate::Well });
    }

    /// One of them changes.
    pub fn turn(&mut self, chance: &mut Chance) {
        let index = chance.whole(0..=self.nodes.len().max(1) as u64 - 1) as usize;
        let fate = *chance.one_of(&FATES);
        match chance.whole(0..=5) {
            0 if self.nodes.len() < MAX_NODES => {
                let number = chance.whole(1..=5);
                // Another node may even bear this node's name.
                let name = match number {
                    5 => HERE.to_owned(),
                    _ => format!("node-{number}"),
                };
                if !self.nodes.iter().any(|node| *node.name == *name) {
                    self.gone.retain(|gone| **gone != *name);
                    self.add(&name);
                }
            }
            1 if self.nodes.len() > 1 => {
                let node = self.nodes.swap_remove(index);
                self.gone.push(node.name);
            }
            2 => {
                // It is queried elsewhere from now on.
                if let Some(node) = self.nodes.get_mut(index) {
                    let keys = METRICS.map(|metric| SeriesKey::new(metric, &[]));
                    node.schema = schema(&node.name, &keys);
                    node.fate = Fate::Well;
                    node.free = self.total * chance.share();
                }
            }
            _ => {
                if let Some(node) = self.nodes.get_mut(index) {
                    node.fate = fate;
                }
            }
        }
    }

    /// All are queried.
    pub fn query(&mut self, seen: &mut Vec<Observation>) {
        if self.names.is_none() {
            return;
        }
        let mut nodes: Vec<NodeReadings> = self.gone.drain(..).map(|name| gone(&name)).collect();
        let chance = &mut self.chance;
        for node in &mut self.nodes {
            let swing = self.total * chance.between(-0.05, 0.05);
            node.free = (node.free + swing).clamp(0.0, self.total).floor();
            if node.fate == Fate::Changes {
                nodes.push(gone(&node.name));
                self.fresh += 1;
                node.name = format!("stranger-{}", self.fresh).into();
                let keys = METRICS.map(|metric| SeriesKey::new(metric, &[]));
                node.schema = schema(&node.name, &keys);
            }
            if let Some(news) = node.news(self.total, chance, &mut self.fresh) {
                let took = Duration::from_millis(3);
                let refused = match chance.once_in(30) {
                    true => vec![(*chance.one_of(&Rejection::ALL), chance.whole(0..=9))],
                    false => Vec::new(),
                };
                let node = Arc::clone(&node.name);
                nodes.push(NodeReadings { refused, ..NodeReadings::new(node, news, took) });
            }
        }
        if !nodes.is_empty() {
            seen.push(Observation::Cluster(Box::new(ClusterReadings { nodes })));
        }
    }
}

impl Neighbour {
    fn news(&mut self, total: f64, chance: &mut Chance, fresh: &mut u64) -> Option<NodeNews> {
        let mut values = [total, (self.free * 1.2).floor(), self.free].map(Reading::Value).to_vec();
        let mut schema = Arc::clone(&self.schema);
        match self.fate {
            Fate::Well | Fate::Changes => {}
            Fate::Unreported => return None,
            Fate::Silent => {
                let why = "it refuses connections".into();
                return Some(NodeNews::Silent { why, schema });
            }
            Fate::FalseValues => {
                let false_values =
                    [f64::NAN, f64::INFINITY, -1.0, -1e300, 0.0, 1e300, 1e15, f64::MAX];
                let (index, value) = (chance.whole(0..=2) as usize, *chance.one_of(&false_values));
                // The client does not pass on impossible values.
                let is_possible = metric(METRICS[index]).is_some_and(|metric| metric.allows(value));
                values[index] = if is_possible { Reading::Value(value) } else { Reading::Failed };
            }
            Fate::Gaps => {
                let index = chance.whole(0..=2) as usize;
                values[index] = *chance.one_of(&[Reading::Failed, Reading::Unsupported]);
            }
            Fate::Odd => {
                *fresh += 1;
                let other = |number: u64| {
                    let x = format!("{fresh}-{number}");
                    SeriesKey::new(METRICS[2], &[("x", &x)])
                };
                let keys: Vec<SeriesKey> = (0..ODD_SERIES).map(other).collect();
                schema = self::schema(&self.name, &keys);
                values = vec![Reading::Value(self.free); keys.len()];
            }
        }
        Some(NodeNews::Answered { schema, values })
    }
}

fn gone(name: &Arc<str>) -> NodeReadings {
    NodeReadings::new(Arc::clone(name), NodeNews::Gone, Duration::ZERO)
}

fn schema(node: &Arc<str>, keys: &[SeriesKey]) -> Arc<Schema> {
    let cluster = Arc::from("lab");
    let series = keys.iter().map(|key| series_of_node(key, &cluster, node)).collect();
    Arc::new(Schema { series })
}
