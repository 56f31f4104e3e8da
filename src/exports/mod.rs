//! The HTTP server: metrics, API, pages, orders.
//!
//! It responds from the [`Status`] snapshot and the [`Queries`] of the journal. It reads nothing of
//! the node, and cannot block the loop that does.
//!
//! A page is a handler and its row in the table of `routes`, which has its role. A metric needs
//! nothing here: it is exported once [`crate::model::METRICS`] and a source have it.

mod admission;
mod api;
mod cluster;
mod control;
mod engines;
mod exposition;
mod gate;
mod host;
mod identity;
mod lease;
mod listen;
mod negotiation;
mod order;
mod orders;
mod page;
mod page_request;
mod picture;
mod probes;
mod reboot;
mod received;
mod routes;
mod samples;
mod selection;
mod server;
mod stall;
mod unread;
mod verdict;

#[cfg(test)]
mod tests;

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use jiff::Timestamp;
use tokio::sync::{mpsc, oneshot};

use crate::access::AccessControl;
use crate::model::{DecisionId, OrderedBy, RecentEvent, RuleId};
use crate::policy::memory_ring::MemoryRing;
use crate::policy::status::Status;
use crate::samples::LiveSamples;

pub use control::address as control_address;
pub use lease::{LeaseOrder, LeaseReply, LeaseSender};
pub use listen::{bind, passed_by_systemd};
pub use order::{
    LONGEST, OrderDone, OrderKind, OrderPeriod, OrderRefused, OrderRequest, OrderSender, RuleChoice,
};
pub use received::AlertInbox;
pub use routes::{access_table, check_telemetry_path};
pub use server::serve;

/// Reads a request's URI and the headers that choose a format, as the routes do.
#[cfg(feature = "fuzzing")]
pub fn read_request(query: &str, accept: &[u8]) -> Result<PageRequest, String> {
    let uri = format!("/api/v1/events?{query}").parse::<hyper::Uri>();
    let mut headers = hyper::HeaderMap::new();
    if let Ok(value) = hyper::header::HeaderValue::from_bytes(accept) {
        headers.insert(hyper::header::ACCEPT, value.clone());
        headers.insert(hyper::header::ACCEPT_ENCODING, value);
    }
    negotiation::format(&headers);
    negotiation::accepts_gzip(&headers);
    if let Ok(uri) = &uri {
        let named: Vec<(String, String)> =
            axum::extract::Query::try_from_uri(uri).map_or(Vec::new(), |query| query.0);
        let mut named = named.iter().filter(|(parameter, _)| parameter == "name[]");
        let selection = selection::NameSelection::of(uri);
        assert!(named.all(|(_, name)| selection.takes(name)), "selected names are exported");
    }
    let uri = uri.map_err(|error| error.to_string())?;
    page_request::parse(&uri, page_request::Filter::Rule, Timestamp::UNIX_EPOCH)
}

/// Reads the body of a silence, an approval or denial, or a reboot, as the control socket does.
#[cfg(feature = "fuzzing")]
pub fn read_order(which: u8, body: &[u8]) -> Option<(OrderKind, Option<String>, String)> {
    let read = match which % 3 {
        0 => order::silence(body),
        1 => order::reply(body)
            .map(|(lasts, words)| (OrderKind::Approve { decision: DecisionId(1), lasts }, words)),
        _ => order::reboot(body),
    };
    read.ok().map(|(kind, words)| (kind, words.name, words.comment))
}

/// This build's version, as in `uma_build_info`.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The state that the server uses.
#[derive(Debug)]
pub struct Served {
    /// The latest snapshot, replaced after every step.
    pub status: Arc<ArcSwap<Status>>,
    /// The path of the metrics: see [`check_telemetry_path`].
    pub telemetry_path: String,
    /// Names of the node, for people.
    pub node: NodeNames,
    /// The memory of the last hour. It is locked for moments only.
    pub memory: Arc<Mutex<MemoryRing>>,
    /// Queries of the journal.
    pub queries: Queries,
    /// The queue of explanations by the loop.
    pub explain: ExplainSender,
    /// The samples that queries read.
    pub samples: Arc<LiveSamples>,
    /// The queue of `POST /-/reload`.
    pub reload: ReloadSender,
    /// The file of the control socket.
    pub control_socket: PathBuf,
    /// The queue of orders.
    pub orders: OrderSender,
    /// The queue of the ledger of leases, if this node has one.
    pub leases: Option<LeaseSender>,
    /// The queue of posted alerts.
    pub received: Arc<AlertInbox>,
    /// Why the last reload failed, if it did.
    pub reload_failure: Arc<ArcSwapOption<ReloadFailure>>,
    /// Access control over the network.
    pub access: Arc<AccessControl>,
    /// A random id, by which this run recognises its own responses.
    pub instance: Arc<str>,
    /// The clock of [`crate::model::Moment::uptime`].
    pub uptime: fn() -> Duration,
    /// Timeouts and numbers of connections.
    pub limits: ClientLimits,
}

/// Names of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeNames {
    /// Its name: of the cluster, or the host's.
    pub name: Arc<str>,
    /// The machine's model, as its firmware names it.
    pub model: Option<Arc<str>>,
}

/// The queue of explanations, which are made one at a time.
pub type ExplainSender = mpsc::Sender<ExplainRequest>;

/// A request to explain a rule by the present values.
#[derive(Debug)]
pub struct ExplainRequest {
    /// The rule to explain.
    pub rule: RuleId,
    /// Takes the explanation; `None` if the rule was not evaluated.
    pub answer: oneshot::Sender<Option<serde_json::Value>>,
}

/// Limits of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientLimits {
    /// Connections at once. Above it, the connection that is idle longest is closed.
    pub connections: usize,
    /// Connections of one address or IPv6 network (/64). Above it, its own idle connections are
    /// closed; if none is idle, new ones are.
    pub connections_of_address: usize,
    /// From the opening of a connection or the last response to the end of the next request's
    /// headers. Idle connections are kept as long.
    pub request_header: Duration,
    /// For one TLS handshake.
    pub handshake: Duration,
    /// From the first byte that a client does not read at once to the end of the response.
    pub response: Duration,
    /// For one query of the journal.
    pub query: Duration,
    /// For one reload.
    pub reload: Duration,
    /// For one order.
    pub order: Duration,
    /// The age up to which the snapshot counts as current.
    pub snapshot_age: Duration,
}

impl Default for ClientLimits {
    fn default() -> Self {
        Self {
            connections: 512,
            connections_of_address: 64,
            request_header: Duration::from_secs(30),
            handshake: Duration::from_secs(10),
            response: Duration::from_secs(30),
            query: Duration::from_secs(5),
            reload: Duration::from_secs(30),
            order: Duration::from_secs(15),
            snapshot_age: Duration::from_secs(10),
        }
    }
}

/// The queue of reloads, which are served one at a time.
pub type ReloadSender = mpsc::Sender<ReloadRequest>;

/// A request to reload configuration and rules.
#[derive(Debug)]
pub struct ReloadRequest {
    /// The sender, for the journal.
    pub by: OrderedBy,
    /// Takes a summary, or all mistakes.
    pub answer: oneshot::Sender<Result<String, String>>,
}

/// A failed reload. The previous configuration stays in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReloadFailure {
    /// When the reload failed.
    pub at: Timestamp,
    /// All mistakes.
    pub why: String,
}

/// Reads one page of the journal. May block, and is called on a thread of its own.
pub type PageQuery = Box<dyn Fn(PageRequest) -> Result<Page, QueryError> + Send + Sync>;

/// Explains a decision. May block, like [`PageQuery`].
pub type ExplainQuery =
    Box<dyn Fn(DecisionId) -> Result<Option<serde_json::Value>, QueryError> + Send + Sync>;

/// What happened before a time, the newest first, at most so many entries. May block, like
/// [`PageQuery`].
pub type HappenedQuery =
    Box<dyn Fn(Timestamp, usize) -> Result<Vec<RecentEvent>, QueryError> + Send + Sync>;

/// Queries of the journal.
pub struct Queries {
    /// Kernel events, one JSON object each.
    pub events: PageQuery,
    /// Decisions with their outcomes, one JSON object each.
    pub decisions: PageQuery,
    /// Orders of people, one JSON object each.
    pub orders: PageQuery,
    /// Entries of the past for the page, newest first.
    pub happened: HappenedQuery,
    /// The explanation of a decision; `None` if there is no such decision.
    pub explain: ExplainQuery,
}

impl fmt::Debug for Queries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Queries")
    }
}

/// Selects entries of the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageRequest {
    /// The most entries.
    pub limit: usize,
    /// The first entry, and the order.
    pub start: PageStart,
    /// Not before.
    pub since: Option<Timestamp>,
    /// Only entries before this time.
    pub until: Option<Timestamp>,
    /// Only events of these kinds, of [`crate::model::EventKind::KINDS`]; empty: all.
    pub kinds: Vec<String>,
    /// Only decisions of this rule: `group/alert`, or the alert's name alone.
    pub rule: Option<String>,
}

impl PageRequest {
    /// The newest entries.
    pub fn newest(limit: usize) -> Self {
        Self {
            limit,
            start: PageStart::Newest,
            since: None,
            until: None,
            kinds: Vec::new(),
            rule: None,
        }
    }
}

/// The first entry of a page, and the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageStart {
    /// The newest entry; newest first.
    Newest,
    /// The entry before this id; newest first.
    Before(u64),
    /// The entry after this id; oldest first.
    After(u64),
}

/// A part of the journal.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page {
    /// The entries, each with its `id`, in the requested order.
    pub items: Vec<serde_json::Value>,
    /// Whether there are more in this direction.
    pub more: bool,
}

/// Why the journal did not respond.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// The journal cannot be used: disk full or broken, no permission.
    #[error("the journal is not available: {0}")]
    Unavailable(String),
    /// The query failed.
    #[error("cannot read the journal: {0}")]
    Failed(String),
}
