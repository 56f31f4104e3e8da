//! The series of all nodes: this node's own, mirrored, and what the others said. Rules with scope
//! cluster read them, and no others do.
//!
//! A node that has not said anything for too long is unknown: all its series are `Failed`, with the
//! reason. Each node's share is bounded, so that a misbehaving one costs the others nothing.

mod fleet;
mod mirror;
mod of_policy;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use promql_rules::store::{SeriesId, SeriesStore, stale_marker};

use self::fleet::{ACTED, CLAIMED, FleetCells};
use self::mirror::Mirror;
use super::counters::{Cell, Counters};
use super::engines::ranks::ended::ENDED;
use super::engines::ranks::{OtherRanks, START};
use super::evidence;
use super::rule::{RuleGroup, RuleScope};
use crate::model::{
    ClusterNames, ClusterReadings, ClusterStatus, FleetAction, MOST_NODES, MOST_PEERS,
    MOST_SERIES_OF_A_NODE, Moment, NodeHealthLevel, NodeMemory, NodeNews, NodeReadings, NodeStatus,
    Reading, Rejection, Schema, SeriesKey, Wanted, series_of_node,
};

/// Requested of each node even if no rule reads them. People see them, and they distinguish a
/// series that is absent there from an unknown one.
const ALWAYS_WANTED: [&str; 8] =
    [TOTAL, AVAILABLE, HEALTH, "uma_scrape_collector_success", START, ENDED, CLAIMED, ACTED];

const TOTAL: &str = "uma_memory_total_bytes";
const AVAILABLE: &str = "uma_memory_available_bytes";
const HEALTH: &str = "uma_node_health";

/// New series of a node until the store is rebuilt.
const MOST_FRESH: usize = 2 * MOST_SERIES_OF_A_NODE;

/// A rebuild loses the past of ranges, so it is done at most once in this time.
const RENEWED_AFTER: Duration = Duration::from_secs(600);

/// All nodes.
#[derive(Debug, Default)]
pub(super) struct Cluster {
    names: Option<ClusterNames>,
    /// Since when it is in it, on the uptime clock.
    joined: Option<Duration>,
    store: SeriesStore,
    /// In a declared world all series are in one store, and this node may have a name.
    declared: Option<Option<Arc<str>>>,
    wanted: Arc<[Wanted]>,
    /// Longest ranges of rules, by metric, in milliseconds.
    reaches: Vec<(Arc<str>, i64)>,
    mirror: Mirror,
    nodes: BTreeMap<Arc<str>, RemoteNode>,
    /// Series of nodes that have gone, the oldest first; new nodes reuse them.
    retired: VecDeque<(Arc<str>, ClusterNodeCells)>,
    refused: Option<[Cell; Rejection::ALL.len()]>,
    /// This node's own series for the fleet's limit.
    fleet: Option<[FleetCells; FleetAction::ALL.len()]>,
    /// When the store was built, and whether a rebuild is due.
    renewed: Duration,
    is_worn: bool,
    status: Option<Arc<ClusterStatus>>,
}

/// Another node.
#[derive(Debug)]
struct RemoteNode {
    schema: Arc<Schema>,
    ids: Vec<SeriesId>,
    /// Its memory: total and available.
    memory: [Option<SeriesId>; 2],
    /// Whether it is well: a series for each level.
    levels: LevelIds,
    /// Its new series since the store was built.
    fresh: usize,
    answered: Option<Moment>,
    /// Why it has not answered since.
    why: Option<Arc<str>>,
    is_silent: bool,
    took: Duration,
    /// The URL of its page, as it was known last.
    url: Option<Arc<str>>,
    cells: Option<ClusterNodeCells>,
}

/// The series of each level, in the order of [`NodeHealthLevel::ALL`].
type LevelIds = [Option<SeriesId>; NodeHealthLevel::ALL.len()];

/// The series about one node.
#[derive(Clone, Copy, Debug)]
struct ClusterNodeCells {
    up: Cell,
    age: Cell,
    took: Cell,
    series: Cell,
    failures: Cell,
}

/// This node's own counters and series.
pub(super) type OwnSeries<'a> = (&'a mut Counters, &'a mut SeriesStore);

impl Cluster {
    /// Sets the name of this node in its cluster; `None`: it is in none.
    pub(super) fn set_names(&mut self, names: Option<ClusterNames>) {
        if self.names != names {
            (self.names, self.joined) = (names, None);
            self.store = self.store.successor();
            (self.mirror, self.nodes) = (Mirror::default(), BTreeMap::new());
            self.status = None;
            self.reach();
        }
    }

    /// Uses one store, in which all series are declared.
    pub(super) fn declare(&mut self, node: Option<Arc<str>>) {
        self.declared = Some(node);
    }

    /// What rules with scope cluster read, if there is anything to read.
    pub(super) fn store(&self) -> Option<&SeriesStore> {
        self.names.as_ref().map(|_| &self.store)
    }

    /// The parts of engines on other nodes, if there is a cluster.
    pub(super) fn ranks(&self) -> Option<OtherRanks> {
        Some(OtherRanks::read(self.store()?, |node| self.is_other(node)))
    }

    /// Whether rules with scope cluster have nothing to read.
    pub(super) fn is_idle(&self) -> bool {
        self.names.is_none() && self.declared.is_none()
    }

    /// Whether that is another node than this one.
    pub(super) fn is_other(&self, node: &str) -> bool {
        let declared = || self.declared.as_ref()?.as_ref();
        let own = self.names.as_ref().map(|names| &names.node).or_else(declared);
        own.is_some_and(|own| **own != *node)
    }

    /// Takes other rules.
    pub(super) fn replace_rules(&mut self, groups: &[RuleGroup]) {
        let groups = groups.iter().filter(|group| group.scope == RuleScope::Cluster);
        let rules: Vec<_> = groups.flat_map(|group| &group.rules).collect();
        let always = ALWAYS_WANTED.map(|name| Wanted { name: name.into(), labels: Vec::new() });
        let read = rules.iter().flat_map(|rule| evidence::wanted(rule));
        let mut wanted: Vec<Wanted> = always.into_iter().chain(read).collect();
        wanted.sort();
        wanted.dedup();
        let all = wanted.clone();
        wanted.retain(|one| !all.iter().any(|other| other != one && other.covers(one)));
        if *self.wanted != *wanted {
            self.wanted = wanted.into();
            self.mirror = Mirror::default();
        }
        self.reaches = rules.iter().flat_map(|rule| evidence::reads(rule)).collect();
        self.reach();
    }

    fn reach(&mut self) {
        for (name, range_ms) in &self.reaches {
            self.store.retain(name, *range_ms);
        }
    }

    /// What is to be asked of other nodes.
    pub(super) fn wanted(&self) -> &Arc<[Wanted]> {
        &self.wanted
    }

    /// Takes in what other nodes said.
    pub(super) fn observe(&mut self, at: Moment, readings: &ClusterReadings, own: OwnSeries<'_>) {
        if self.names.is_none() {
            return;
        }
        let (counters, store) = own;
        self.status = None;
        for report in &readings.nodes {
            if !self.is_other(&report.node) {
                continue;
            }
            self.count_refused(report, (counters, store));
            if let NodeNews::Gone = report.news {
                self.forget(at, &report.node, counters);
                continue;
            }
            if !self.nodes.contains_key(&report.node) {
                if self.nodes.len() >= MOST_NODES {
                    continue;
                }
                let has_series = self.nodes.len() < MOST_PEERS;
                let cells =
                    has_series.then(|| self.cells(&report.node, (&mut *counters, &mut *store)));
                self.nodes.insert(Arc::clone(&report.node), RemoteNode::new(cells));
            }
            self.take_report(at, report, counters);
        }
    }

    /// The series about a node.
    fn cells(&mut self, node: &Arc<str>, (counters, store): OwnSeries<'_>) -> ClusterNodeCells {
        if let Some(place) = self.retired.iter().position(|(name, _)| name == node) {
            self.retired.remove(place);
        } else if self.retired.len() >= MOST_PEERS
            && let Some((_, cells)) = self.retired.pop_front()
        {
            return cells.reused(node, counters, store);
        }
        ClusterNodeCells::new(node, counters, store)
    }

    fn count_refused(&mut self, report: &NodeReadings, (counters, store): OwnSeries<'_>) {
        let cells = self.refused.get_or_insert_with(|| {
            Rejection::ALL.map(|reason| {
                let labels = [("reason", reason.name())];
                counters.cell(store, &SeriesKey::new("uma_cluster_refused_series_total", &labels))
            })
        });
        for (reason, count) in &report.refused {
            let place = Rejection::ALL.iter().position(|known| known == reason);
            if let Some(cell) = place.and_then(|place| cells.get(place)) {
                #[expect(clippy::cast_precision_loss, reason = "exact up to 2^53")]
                counters.add(*cell, *count as f64);
            }
        }
    }

    fn take_report(&mut self, at: Moment, report: &NodeReadings, counters: &mut Counters) {
        let (Some(node), Some(names)) = (self.nodes.get_mut(&report.node), &self.names) else {
            return;
        };
        node.took = report.took;
        node.url = report.url.clone().or(node.url.take());
        let taken = match &report.news {
            NodeNews::Answered { schema, values } => {
                let taken = node.take(at, schema, values, &mut self.store);
                if taken.is_err() {
                    let keys = unknown_here(&self.wanted, schema, &node.schema);
                    let keys = keys.map(|key| series_of_node(&key, &names.cluster, &report.node));
                    node.doubt(at, keys.collect(), &mut self.store);
                }
                taken
            }
            NodeNews::Silent { why, schema } => {
                // What it would say is not known, even if it never said anything.
                let known = match node.answered {
                    None => node.change_schema(at, schema, &mut self.store),
                    Some(_) => Ok(()),
                };
                known.and(Err(Arc::clone(why)))
            }
            NodeNews::Gone => Ok(()),
        };
        self.is_worn |= self.store.refused() > 0;
        match taken {
            Ok(()) => {
                node.why = None;
                node.is_silent = false;
                self.store.set_silent(&report.node, None);
            }
            Err(why) => {
                self.is_worn |= node.fresh > MOST_FRESH;
                if let Some(cells) = node.cells {
                    counters.add(cells.failures, 1.0);
                }
                let is_first = node.why.replace(why).is_none();
                if is_first && node.answered.is_none() {
                    node.fall_silent(at, &report.node, &mut self.store);
                }
            }
        }
    }

    fn forget(&mut self, at: Moment, name: &Arc<str>, counters: &mut Counters) {
        let Some(node) = self.nodes.remove(name) else { return };
        self.store.set_silent(name, None);
        node.end(at, &mut self.store);
        if let Some(cells) = node.cells {
            cells.all().into_iter().for_each(|cell| counters.retire(cell));
            self.retired.push_back((Arc::clone(name), cells));
        }
    }

    /// Advances the time: a node that is silent for too long is unknown, and this node's own series
    /// are mirrored if a rule is due.
    pub(super) fn advance(&mut self, at: Moment, own: &SeriesStore, is_due: bool) {
        let Some(names) = &self.names else { return };
        self.joined.get_or_insert(at.uptime);
        for (name, node) in &mut self.nodes {
            let silent = node
                .answered
                .is_none_or(|answered| at.uptime.saturating_sub(answered.uptime) > names.known_for);
            if silent && !node.is_silent {
                node.fall_silent(at, name, &mut self.store);
                self.status = None;
            }
        }
        if self.is_worn && at.uptime.saturating_sub(self.renewed) >= RENEWED_AFTER {
            self.renew(at);
        }
        if let (Some(names), true) = (&self.names, is_due) {
            self.mirror.show(at, own, &self.wanted, names, &mut self.store);
        }
    }

    /// Begins a store that holds what is there now, and nothing that has gone.
    fn renew(&mut self, at: Moment) {
        let new = self.store.successor();
        let old = std::mem::replace(&mut self.store, new);
        self.reach();
        self.mirror = Mirror::default();
        (self.renewed, self.is_worn) = (at.uptime, false);
        for (name, node) in &mut self.nodes {
            node.fresh = 0;
            let before = std::mem::take(&mut node.ids);
            node.settle(&mut self.store);
            for (id, before) in node.ids.iter().zip(before) {
                let reading = old.latest_read(before).unwrap_or(Reading::Failed);
                self.store.append(*id, at.timeline_ms(), reading);
            }
            let why = node.why.clone().filter(|_| node.is_silent);
            self.store.set_silent(name, why.as_ref());
        }
    }

    /// Writes the state of each node.
    pub(super) fn publish(&self, at: Moment, counters: &mut Counters) {
        for node in self.nodes.values() {
            let Some(cells) = node.cells else { continue };
            counters.set(cells.up, f64::from(!node.is_silent));
            let age = node.answered.map(|answered| at.uptime.saturating_sub(answered.uptime));
            // Whole seconds: what stays the same costs nothing.
            let age = age.map_or(Reading::Failed, |age| Reading::Value(age.as_secs() as f64));
            counters.set_reading(cells.age, age);
            counters.set(cells.took, node.took.as_secs_f64());
            counters.set(cells.series, node.ids.len() as f64);
        }
    }

    /// The state of all nodes; the same `Arc` until another node reports. `own` has the series of
    /// this node: its memory is known without a rule that reads it.
    pub(super) fn status(&mut self, own: &SeriesStore) -> Option<Arc<ClusterStatus>> {
        let names = self.names.as_ref()?;
        if self.status.is_none() {
            let nodes = self.nodes.iter().map(|(name, node)| node.status(name, &self.store));
            let [total, available] = [TOTAL, AVAILABLE].map(|name| own.latest_of(name, &[]));
            self.status = Some(Arc::new(ClusterStatus {
                names: names.clone(),
                memory: NodeMemory { total, available },
                nodes: nodes.collect(),
            }));
        }
        self.status.clone()
    }
}

fn memory([total, available]: [Option<SeriesId>; 2], store: &SeriesStore) -> NodeMemory {
    let read = |id: Option<SeriesId>| {
        let value = id.and_then(|id| store.latest(id).value()).filter(|value| !value.is_nan());
        value.map_or(Reading::Failed, Reading::Value)
    };
    NodeMemory { total: read(total), available: read(available) }
}

/// Which of these are all memory, and what is available.
fn memory_ids<'k>(keys: impl Iterator<Item = (&'k SeriesKey, SeriesId)>) -> [Option<SeriesId>; 2] {
    let mut found = [None; 2];
    for (key, id) in keys {
        for (place, name) in [TOTAL, AVAILABLE].into_iter().enumerate() {
            if *key.name == *name {
                found[place] = Some(id);
            }
        }
    }
    found
}

/// The level of a node, if it reports one.
fn level(ids: LevelIds, store: &SeriesStore) -> Option<NodeHealthLevel> {
    let is_set = |id: SeriesId| matches!(store.latest(id), Reading::Value(value) if value > 0.0);
    // Of a node that reports several, the worst.
    let mut set = NodeHealthLevel::ALL.into_iter().zip(ids).rev();
    set.find(|(_, id)| id.is_some_and(is_set)).map(|(level, _)| level)
}

/// Which of these are the levels.
fn level_ids<'k>(keys: impl Iterator<Item = (&'k SeriesKey, SeriesId)>) -> LevelIds {
    let mut found = LevelIds::default();
    for (key, id) in keys.filter(|(key, _)| *key.name == *HEALTH) {
        let label = key.labels.iter().find(|(name, _)| **name == *"level");
        let place = label.and_then(|(_, level)| {
            NodeHealthLevel::NAMES.into_iter().position(|known| *known == **level)
        });
        if let Some(place) = place {
            found[place] = Some(id);
        }
    }
    found
}

/// Wanted series that the node offers and that are not known here.
fn unknown_here(
    wanted: &[Wanted],
    report: &Schema,
    known: &Schema,
) -> impl Iterator<Item = SeriesKey> {
    let is_in = |schema: &Schema, wanted: &Wanted| {
        schema.series.iter().any(|key| wanted.is(&key.name, &key.labels))
    };
    let is_unknown = move |wanted: &&Wanted| is_in(report, wanted) && !is_in(known, wanted);
    wanted.iter().filter(is_unknown).map(Wanted::series)
}

impl RemoteNode {
    fn new(cells: Option<ClusterNodeCells>) -> Self {
        Self {
            schema: Arc::default(),
            ids: Vec::new(),
            memory: [None; 2],
            levels: LevelIds::default(),
            fresh: 0,
            answered: None,
            why: None,
            is_silent: false,
            took: Duration::ZERO,
            url: None,
            cells,
        }
    }

    fn take(
        &mut self,
        at: Moment,
        schema: &Arc<Schema>,
        values: &[Reading<f64>],
        store: &mut SeriesStore,
    ) -> Result<(), Arc<str>> {
        self.change_schema(at, schema, store)?;
        self.answered = Some(at);
        for (id, value) in self.ids.iter().zip(values) {
            store.append(*id, at.timeline_ms(), or_ended(*value));
        }
        Ok(())
    }

    /// From now on it has those series; others have ended. Not so where they are always others.
    fn change_schema(
        &mut self,
        at: Moment,
        schema: &Arc<Schema>,
        store: &mut SeriesStore,
    ) -> Result<(), Arc<str>> {
        if Arc::ptr_eq(&self.schema, schema) {
            return Ok(());
        }
        let fresh = schema.series.iter().filter(|key| !store.knows(key)).count();
        self.fresh = self.fresh.saturating_add(fresh);
        if fresh > 0 && self.fresh > MOST_FRESH {
            return Err("it reports other series each time".into());
        }
        let before = std::mem::take(&mut self.ids);
        self.schema = Arc::clone(schema);
        self.settle(store);
        for gone in before.iter().filter(|id| !self.ids.contains(id)) {
            store.end(*gone, at.timeline_ms());
        }
        Ok(())
    }

    /// It has such series besides, of which nothing is known; until it is believed again.
    fn doubt(&mut self, at: Moment, keys: Vec<SeriesKey>, store: &mut SeriesStore) {
        if keys.is_empty() {
            return;
        }
        let known = self.ids.len();
        let series = self.schema.series.iter().cloned().chain(keys).collect();
        self.schema = Arc::new(Schema { series });
        self.settle(store);
        for id in &self.ids[known..] {
            store.append(*id, at.timeline_ms(), Reading::Failed);
        }
    }

    fn settle(&mut self, store: &mut SeriesStore) {
        self.ids = self.schema.series.iter().map(|key| store.intern(key)).collect();
        let keys = || self.schema.series.iter().zip(self.ids.iter().copied());
        (self.memory, self.levels) = (memory_ids(keys()), level_ids(keys()));
    }

    fn fall_silent(&mut self, at: Moment, name: &Arc<str>, store: &mut SeriesStore) {
        self.is_silent = true;
        let why = self.why.get_or_insert_with(|| "it has not been asked for too long".into());
        let text = format!("{name} does not answer: {why}");
        store.set_silent(name, Some(&text.into()));
        for id in &self.ids {
            store.append(*id, at.timeline_ms(), Reading::Failed);
        }
    }

    fn end(&self, at: Moment, store: &mut SeriesStore) {
        for id in &self.ids {
            store.end(*id, at.timeline_ms());
        }
    }

    fn status(&self, name: &Arc<str>, store: &SeriesStore) -> NodeStatus {
        NodeStatus {
            node: Arc::clone(name),
            unknown: self.why.clone().filter(|_| self.is_silent),
            answered: self.answered,
            took: self.took,
            series: self.ids.len(),
            memory: memory(self.memory, store),
            level: level(self.levels, store),
            url: self.url.clone(),
        }
    }
}

/// What is there no more has ended, and is not unknown.
fn or_ended(reading: Reading<f64>) -> Reading<f64> {
    match reading {
        Reading::Unsupported => Reading::Value(stale_marker()),
        other => other,
    }
}

impl ClusterNodeCells {
    /// In the order of [`ClusterNodeCells::all`].
    const NAMES: [&str; 5] = [
        "uma_cluster_peer_up",
        "uma_cluster_peer_last_answer_age_seconds",
        "uma_cluster_peer_duration_seconds",
        "uma_cluster_peer_series",
        "uma_cluster_peer_failures_total",
    ];

    fn new(node: &str, counters: &mut Counters, store: &mut SeriesStore) -> Self {
        let key = |name| SeriesKey::new(name, &[("peer", node)]);
        let [up, age, took, series, failures] =
            Self::NAMES.map(|name| counters.cell(store, &key(name)));
        Self { up, age, took, series, failures }
    }

    /// The same series, which are those of another node from now on.
    fn reused(self, node: &str, counters: &mut Counters, store: &mut SeriesStore) -> Self {
        for (name, cell) in Self::NAMES.into_iter().zip(self.all()) {
            counters.reuse(cell, store, &SeriesKey::new(name, &[("peer", node)]));
        }
        self
    }

    fn all(&self) -> [Cell; 5] {
        [self.up, self.age, self.took, self.series, self.failures]
    }
}
