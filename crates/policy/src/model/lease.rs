//! Leases: memory that is reserved for a start.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::names::named;
use super::{GateRequest, Pod, ProcessId, duration};

/// Ids of leases of deferred restarts begin so.
pub const RESTART_LEASE: &str = "restart-";

/// Ids of leases that a restart of an engine's first rank has on other nodes begin so.
pub const GANG_LEASE: &str = "gang-";

/// A request for a lease. The same id again is the same request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRequest {
    /// Chosen by the requester.
    pub id: Arc<str>,
    /// Who starts, for people.
    pub who: Arc<str>,
    /// Who called last over the API, if somebody did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Arc<str>>,
    /// Of two requests the one with the higher priority is granted first.
    #[serde(default)]
    pub priority: i32,
    /// The lease ends with its process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<LeaseHolder>,
    /// The memory.
    pub need: GateRequest,
    /// The longest time that it lasts.
    pub lasts: Duration,
    /// When it was requested first, in milliseconds since 1970, by the requester's clock. Nodes
    /// grant in this order, so that it must be the same on all of them.
    #[serde(default)]
    pub requested_ms: i64,
    /// Whether the start spans several nodes. Its memory is then granted only by
    /// [`LeaseCall::Take`], once all nodes can grant it.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub spans_nodes: bool,
    /// The pod that starts, as its requester says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Arc<Pod>>,
    /// Which of its calls this is; messages may overtake each other.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub turn: u64,
}

named! {
    /// What the requester of a start over several nodes wants of one node.
    pub enum LeaseCall {
        /// Wait for memory, and reserve nothing, or no longer.
        Wait = "wait",
        /// Reserve the memory, if that can be done now.
        Take = "take",
        /// Go on reserving it: all nodes have granted it, and the requester lives.
        Renew = "renew",
        /// Go on reserving it, also without the requester.
        Keep = "keep",
    }
}

named! {
    /// How far a request has come, for its requester.
    pub enum LeaseStage {
        /// It waits for memory, or for its turn.
        Waiting = "waiting",
        /// Memory could be reserved, and it waits for other nodes.
        Grantable = "grantable",
        /// Memory is reserved.
        Granted = "granted",
        /// There is no such lease any more.
        Ended = "ended",
    }
}

/// A process, as all readers of a ledger name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseHolder {
    /// Number and start time of the process.
    #[serde(flatten)]
    pub process: ProcessId,
    /// The device number of the procfs that its PID is of: it is that of one PID namespace.
    #[serde(default)]
    pub procfs: u64,
}

/// A request and its state. All times are on the uptime clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// The request, with what later calls of the requester have changed in it.
    #[serde(flatten)]
    pub request: LeaseRequest,
    /// When it was requested first.
    pub since: Duration,
    /// Whether it waits or is granted.
    #[serde(flatten)]
    pub state: LeaseState,
}

/// The state of a lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum LeaseState {
    /// Nothing is reserved for it yet.
    Waiting {
        /// When it was requested last. Who no longer requests has gone.
        seen: Duration,
        /// Why it is not granted.
        #[serde(default)]
        reasons: Vec<Arc<str>>,
        /// Leases that it waits for, by name.
        #[serde(default)]
        behind: Vec<Arc<str>>,
        /// What is missing in each pool, if that is why it waits.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        missing: Vec<LeaseShare>,
        /// Whether it could be granted, and waits for other nodes.
        #[serde(default, skip_serializing_if = "super::is_default")]
        is_grantable: bool,
    },
    /// Its memory is reserved.
    Granted {
        /// Time of the grant.
        at: Duration,
        /// Its part of each pool.
        shares: Vec<LeaseShare>,
        /// When more was last taken of what is reserved.
        progress: Duration,
        /// When it ends unless its requester calls before, if that must.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        renew_by: Option<Duration>,
    },
}

/// The part of a lease in one pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseShare {
    /// Name of the pool.
    pub pool: Arc<str>,
    /// The reserved memory, in bytes.
    pub need_bytes: u64,
}

named! {
    /// Why a lease has ended.
    pub enum LeaseEnd {
        /// The engine is ready: the memory is the engine's.
        Ready = "ready",
        /// All of its memory has been taken.
        Taken = "taken",
        /// Its process has ended.
        ProcessEnded = "process_ended",
        /// Its time is over.
        Expired = "expired",
        /// It was given back, or is no longer requested.
        Withdrawn = "withdrawn",
    }
}

/// What has happened to a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "change", content = "end", rename_all = "snake_case")]
pub enum LeaseChange {
    /// It was granted.
    Granted,
    /// It has ended after it was granted.
    Ended(LeaseEnd),
}

/// What is still reserved of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReservedPool {
    /// Name of the pool.
    pub pool: Arc<str>,
    /// How much, in bytes.
    pub bytes: u64,
    /// Names of the starts for which it is reserved.
    pub by: Vec<Arc<str>>,
}

/// A report of the ledger.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseReadings {
    /// All leases, in the order in which they are granted.
    pub leases: Arc<[Lease]>,
    /// The bytes that all granted leases reserve in each pool.
    pub reserved: Vec<ReservedPool>,
    /// How many may start at the same time; 0 is 1.
    #[serde(default)]
    pub at_once: u32,
    /// What has happened since the last report, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub news: Vec<LeaseNews>,
    /// Restarts for which memory is reserved on other nodes too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gangs: Vec<GangReading>,
    /// Why the ledger cannot be read, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Arc<str>>,
}

/// How far the reservation of a restart over several nodes has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GangReading {
    /// The container or unit.
    pub restart: Arc<str>,
    /// The end after which it is to be started.
    pub after: Arc<str>,
    /// Whether memory is reserved on all nodes.
    pub is_complete: bool,
    /// What it waits for, or which nodes reserve nothing.
    pub reasons: Vec<Arc<str>>,
}

/// A change, with its number in the order of all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseNews {
    /// Its number, from 1 on.
    pub number: u64,
    /// The lease as it was then.
    pub lease: Lease,
    /// The grant, or the end of a granted lease.
    #[serde(flatten)]
    pub change: LeaseChange,
}

/// Reads how long a lease lasts at most.
///
/// # Errors
/// It is no duration from 1s to 1d.
pub fn lease_lasts(text: &str) -> Result<Duration, String> {
    let found = duration(text)?;
    match (1..=24 * 60 * 60).contains(&found.as_secs()) {
        true => Ok(found),
        false => Err(format!("{text} is out of bounds: from 1s to 1d")),
    }
}

impl LeaseRequest {
    /// A request for memory of one node, for ten minutes.
    pub fn new(id: Arc<str>, who: Arc<str>, need: GateRequest) -> Self {
        Self {
            id,
            who,
            by: None,
            priority: 0,
            holder: None,
            need,
            lasts: Duration::from_secs(600),
            requested_ms: 0,
            spans_nodes: false,
            pod: None,
            turn: 0,
        }
    }
}

impl LeaseState {
    /// How far it has come.
    pub fn stage(&self) -> LeaseStage {
        match self {
            Self::Waiting { is_grantable: false, .. } => LeaseStage::Waiting,
            Self::Waiting { is_grantable: true, .. } => LeaseStage::Grantable,
            Self::Granted { .. } => LeaseStage::Granted,
        }
    }

    /// A request that was made then.
    pub fn waiting(seen: Duration) -> Self {
        Self::Waiting {
            seen,
            reasons: Vec::new(),
            behind: Vec::new(),
            missing: Vec::new(),
            is_grantable: false,
        }
    }
}

impl Lease {
    /// Whether its memory is reserved.
    pub fn is_granted(&self) -> bool {
        matches!(self.state, LeaseState::Granted { .. })
    }

    /// Its parts, if it is granted.
    pub fn shares(&self) -> &[LeaseShare] {
        match &self.state {
            LeaseState::Granted { shares, .. } => shares,
            LeaseState::Waiting { .. } => &[],
        }
    }
}

impl LeaseEnd {
    /// The text for people.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Ready => "its engine is ready",
            Self::Taken => "all of it was taken",
            Self::ProcessEnded => "its process has ended",
            Self::Expired => "its time was over",
            Self::Withdrawn => "it was given back",
        }
    }
}
