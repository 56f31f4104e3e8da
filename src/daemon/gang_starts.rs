//! Reserves memory on all nodes for restarts of engines that span nodes, as a start by hand does
//! with `umawarden gate --peers`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::Builder;

use super::peers::Peers;
use crate::config::settings::Settings;
use crate::model::{
    Access, ClusterSettings, GANG_LEASE, GangReading, GangStart, LeaseCall, LeaseRequest,
    LeaseStage, LeaseState, PeerGate, RESTART_LEASE, RestartState, RestartStatus,
};
use crate::policy::leases::gang::{LeaseGang, MemberCall, MemberResponse};
use crate::policy::leases::{LeaseBook, LeaseContext};

/// Why a node cannot be called.
const NO_PEER: &str = "the configuration has no address of it (cluster)";

/// The restarts, by the names of their containers or units.
#[derive(Default)]
pub(super) struct GangStarts {
    cluster: Option<ClusterSettings>,
    each: BTreeMap<Arc<str>, GangLease>,
}

/// The reservation of one restart.
struct GangLease {
    after: Arc<str>,
    own: LeaseRequest,
    gang: LeaseGang,
    /// What is called on this node.
    called: Option<MemberCall>,
    /// What is requested of the others, by node.
    shared: BTreeMap<Arc<str>, Arc<LeaseRequest>>,
    peers: Peers,
    /// Why it is not reserved here yet.
    reasons: Vec<Arc<str>>,
}

impl GangStarts {
    pub(super) fn new(settings: &Settings) -> Self {
        Self { cluster: settings.cluster.clone(), each: BTreeMap::new() }
    }

    /// Whether a lease of that id is one of these.
    pub(super) fn has(&self, id: &str) -> bool {
        self.each.values().any(|one| *one.own.id == *id)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.each.is_empty()
    }

    /// Whether one takes memory, which is to go on without delay.
    pub(super) fn is_taking(&self) -> bool {
        self.each.values().any(|one| one.gang.is_taking())
    }

    /// Begins what restarts want, and gives back what none wants any longer. `node` is the name of
    /// this node in the order of nodes.
    pub(super) fn update(&mut self, restarts: &[RestartStatus], node: &str) {
        let of = |name: &Arc<str>| restarts.iter().find(|one| one.seen.target.name == *name);
        let is_over = |(name, lease): &(Arc<str>, GangLease)| match of(name) {
            Some(one) if one.state == RestartState::Starting => false,
            Some(one) => one.gang.as_ref().is_none_or(|gang| gang.after != lease.after),
            None => true,
        };
        let (over, kept): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.each).into_iter().partition(is_over);
        self.each.extend(kept);
        for (_, lease) in over {
            // A peer may hang. Without the thread its lease ends within two minutes.
            let _ = Builder::new().name("peers-end".to_owned()).spawn(move || drop(lease.peers));
        }
        for restart in restarts {
            let name = &restart.seen.target.name;
            let Some(gang) = restart.gang.as_ref().filter(|_| !self.each.contains_key(name)) else {
                continue;
            };
            // Without a thread it is tried again.
            if let Ok(lease) = self.begin(name, restart.since.utc_ms(), gang, node) {
                self.each.insert(Arc::clone(name), lease);
            }
        }
    }

    fn begin(
        &self,
        name: &Arc<str>,
        requested_ms: i64,
        gang: &GangStart,
        node: &str,
    ) -> std::io::Result<GangLease> {
        let id = format!("{RESTART_LEASE}{name}");
        let request = |id: String, who: &Arc<str>| LeaseRequest {
            requested_ms,
            spans_nodes: true,
            ..LeaseRequest::new(id.into(), Arc::clone(who), gang.need.clone())
        };
        let of = |(other, engine): &(Arc<str>, Arc<str>)| {
            // There it is no restart of that node's own.
            (Arc::clone(other), Arc::new(request(format!("{GANG_LEASE}{name}@{node}"), engine)))
        };
        let shared: BTreeMap<_, _> = gang.nodes.iter().map(of).collect();
        let nodes = shared.keys().cloned().collect();
        let peers = match &self.cluster {
            Some(cluster) => Peers::of_nodes(cluster, &gang.need, nodes)?,
            // Without a cluster no rank on another node is known.
            None => Peers::start(&[], &Access::default(), &gang.need)?,
        };
        Ok(GangLease {
            after: Arc::clone(&gang.after),
            own: request(id, name),
            gang: LeaseGang::after(requested_ms),
            called: None,
            peers,
            shared,
            reasons: Vec::new(),
        })
    }

    /// Goes on with the ledger of this node.
    pub(super) fn advance(
        &mut self,
        book: &mut LeaseBook,
        node: &Arc<str>,
        context: &LeaseContext<'_>,
    ) {
        for lease in self.each.values_mut() {
            lease.advance(book, node, context);
        }
    }

    /// How far they have come.
    pub(super) fn readings(&mut self) -> Vec<GangReading> {
        let of = |(name, lease): (&Arc<str>, &mut GangLease)| GangReading {
            restart: Arc::clone(name),
            after: Arc::clone(&lease.after),
            is_complete: lease.gang.is_complete(),
            reasons: lease.all_reasons(),
        };
        self.each.iter_mut().map(of).collect()
    }
}

impl GangLease {
    fn advance(&mut self, book: &mut LeaseBook, node: &Arc<str>, context: &LeaseContext<'_>) {
        let (call, turn) = match self.called {
            Some(called) if self.gang.is_complete() => (LeaseCall::Keep, called.turn),
            Some(called) => (called.call, called.turn),
            None => (LeaseCall::Wait, 0),
        };
        let request = LeaseRequest { turn, ..self.own.clone() };
        let (state, refusal) = match book.call(&request, call, context) {
            Ok(state) => (state, None),
            Err(why) => (None, Some(why.into())),
        };
        self.reasons = match &state {
            Some(LeaseState::Waiting { reasons, .. }) => reasons.clone(),
            _ => refusal.into_iter().collect(),
        };
        let stage = state.as_ref().map_or(LeaseStage::Ended, LeaseState::stage);
        let mut answers = vec![Some(MemberResponse { node: Arc::clone(node), turn, stage })];
        answers.extend(self.peers.leases());
        let calls = self.gang.advance(context.now, &answers);
        self.called = calls.first().copied();
        let shared = &self.shared;
        let of =
            |peer: &str| shared.get(peer).map_or_else(|| Arc::new(self.own.clone()), Arc::clone);
        self.peers.call(of, calls.get(1..).unwrap_or_default());
    }

    fn all_reasons(&mut self) -> Vec<Arc<str>> {
        let mut all = self.reasons.clone();
        for answer in self.peers.take() {
            let node = answer.node;
            match answer.gate {
                PeerGate::Open => {}
                PeerGate::Closed { reasons, .. } => {
                    all.extend(reasons.iter().map(|why| format!("{node}: {why}").into()));
                }
                PeerGate::Unknown { why } => all.push(format!("{node}: {why}").into()),
            }
        }
        let refused = self.peers.refusals();
        all.extend(
            refused.map(|(node, why)| format!("nothing is reserved on {node}: {why}").into()),
        );
        let unknown = self.peers.without_address();
        all.extend(unknown.map(|node| format!("nothing is reserved on {node}: {NO_PEER}").into()));
        all
    }
}
