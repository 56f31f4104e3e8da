//! What others may read: metrics, API, pages.
//!
//! Everything is answered from the [`Status`] snapshot and from the two [`Queries`]; nothing here
//! reads the node, and nothing here can hold up the loop that does.
//!
//! To add a page: a handler, and its row in the table of `routes`, which says who may use it. A
//! metric needs nothing here: it is exported as soon as [`crate::model::METRICS`] and a source know
//! it.

mod access;
mod api;
mod cluster;
mod control;
mod engines;
mod exposition;
mod gate;
mod held_back;
mod host;
mod landing;
mod listen;
mod negotiation;
mod order;
mod orders;
mod page_request;
mod probes;
mod reboot;
mod received;
mod routes;
mod selection;
mod server;
mod stall;
mod unread;
mod verdict;

#[cfg(test)]
mod tests;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use jiff::Timestamp;
use tokio::sync::{mpsc, oneshot};

use crate::door::Door;
use crate::model::OrderedBy;
use crate::policy::status::Status;

pub use control::address as control_address;
pub use listen::bind;
pub use order::{
    LONGEST, Lasts, OrderDone, OrderRefused, OrderRequest, OrderSender, RuleChoice, Wish,
};
pub use received::AlertInbox;
pub use routes::{access_table, check_telemetry_path};
pub use server::serve;

/// Reads a request's address and the headers that choose a form, as the routes do.
#[cfg(fuzzing)]
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
        let selection = selection::Selection::of(uri);
        assert!(named.all(|(_, name)| selection.takes(name)), "what is asked for is given");
    }
    let uri = uri.map_err(|error| error.to_string())?;
    page_request::parse(&uri, page_request::Filter::Rule, Timestamp::UNIX_EPOCH)
}

/// Reads the body of a silence, an approval or a reboot, as the control socket does.
#[cfg(fuzzing)]
pub fn read_order(which: u8, body: &[u8]) -> Option<(Wish, Option<String>, String)> {
    let read = match which % 3 {
        0 => order::silence(body),
        1 => order::approval(crate::model::DecisionId(1), body),
        _ => order::reboot(body),
    };
    read.ok().map(|(wish, words)| (wish, words.name, words.comment))
}

/// This build's version, as in `uma_build_info`.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// All that the server answers from.
#[derive(Debug)]
pub struct Served {
    /// The latest snapshot; the daemon replaces it after every step.
    pub status: Arc<ArcSwap<Status>>,
    /// Where the metrics are: see [`check_telemetry_path`].
    pub telemetry_path: String,
    /// How to read the journal.
    pub queries: Queries,
    /// Where `POST /-/reload` is sent.
    pub reload: ReloadSender,
    /// Where orders are taken.
    pub control_socket: PathBuf,
    /// Where they are sent.
    pub orders: OrderSender,
    /// Where posted alerts go.
    pub received: Arc<AlertInbox>,
    /// Why the last reload failed, if it did.
    pub reload_failure: Arc<ArcSwapOption<ReloadFailure>>,
    /// Who comes in over the network.
    pub door: Arc<Door>,
    /// By what this run of the program knows itself among those who answer.
    pub instance: Arc<str>,
    /// The clock of [`crate::model::Moment::uptime`].
    pub uptime: fn() -> Duration,
    /// What clients may take.
    pub limits: Limits,
}

/// What clients may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections at once. Beyond that, whoever has been connected the longest without a request
    /// under way is cut off.
    pub connections: usize,
    /// Connections of one address at once, or of one network of IPv6 (/64). Beyond that, its own
    /// idle ones are cut off, and new ones where none is idle.
    pub connections_of_address: usize,
    /// From the opening of a connection, or the last response, to the end of the next request's
    /// header. Also how long an idle connection is kept.
    pub request_header: Duration,
    /// For one TLS handshake.
    pub handshake: Duration,
    /// From the first byte that a client does not take at once to the end of that response.
    pub response: Duration,
    /// For one answer of the journal.
    pub query: Duration,
    /// For one reload.
    pub reload: Duration,
    /// For one order.
    pub order: Duration,
    /// How old the snapshot may be while the node still counts as watched.
    pub snapshot_age: Duration,
}

impl Default for Limits {
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

/// Where a reload is asked for. Requests are served one at a time.
pub type ReloadSender = mpsc::Sender<ReloadRequest>;

/// Somebody wants the configuration and the rules to be read again.
#[derive(Debug)]
pub struct ReloadRequest {
    /// Who.
    pub by: OrderedBy,
    /// Takes a summary for people, or the whole text of what is wrong.
    pub answer: oneshot::Sender<Result<String, String>>,
}

/// The last reload has failed: what was in force before still is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReloadFailure {
    /// When.
    pub at: Timestamp,
    /// What is wrong, with every mistake.
    pub why: String,
}

/// Reads one page of the journal. It may block: it is called on a thread of its own.
pub type Query = Box<dyn Fn(PageRequest) -> Result<Page, QueryError> + Send + Sync>;

/// How to read the journal.
pub struct Queries {
    /// Kernel events, one JSON object each.
    pub events: Query,
    /// Decisions with their outcomes, one JSON object each.
    pub decisions: Query,
    /// What people ordered, one JSON object each.
    pub orders: Query,
}

impl fmt::Debug for Queries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Queries")
    }
}

/// Which entries of the journal are wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageRequest {
    /// At most so many entries.
    pub limit: usize,
    /// Where to begin, and in which order.
    pub start: Start,
    /// Not older than this.
    pub since: Option<Timestamp>,
    /// Older than this.
    pub until: Option<Timestamp>,
    /// Only events of these kinds, of [`crate::model::EventKind::KINDS`]; none: all.
    pub kinds: Vec<String>,
    /// Only decisions of this rule: `group/alert`, or the alert's name alone.
    pub rule: Option<String>,
}

impl PageRequest {
    /// The newest entries.
    pub fn newest(limit: usize) -> Self {
        Self {
            limit,
            start: Start::Newest,
            since: None,
            until: None,
            kinds: Vec::new(),
            rule: None,
        }
    }
}

/// Where a page begins, and in which order it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// The newest entry; newest first.
    Newest,
    /// The entry before this id; newest first.
    Before(u64),
    /// The entry after this id; oldest first.
    After(u64),
}

/// One page of the journal.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page {
    /// The entries, each with its `id`, in the order that was asked for.
    pub items: Vec<serde_json::Value>,
    /// Whether there are more in this direction.
    pub more: bool,
}

/// Why the journal did not answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// The journal is down: full or broken disk, no permission.
    #[error("the journal is not available: {0}")]
    Unavailable(String),
    /// It is up but could not answer.
    #[error("reading the journal failed: {0}")]
    Failed(String),
}
