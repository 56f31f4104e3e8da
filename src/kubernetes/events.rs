//! What happened, as Events of the node and of its engines' pods.
//!
//! The same text about the same object is one Event whose count grows, and an object gets 25 Events
//! at once and one in five minutes: so does the kubelet
//! (k8s.io/client-go/tools/record/events_cache.go). The requests of a node have a bound, too: a
//! fault that all nodes of a cluster report meets one API server.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::conditions::second;
use crate::model::{
    Lease, LeaseState, Pod, RecentEvent, RecentEventKind, RecentEventLevel, bytes_text,
};
use crate::policy::status::Status;

/// Events that wait for the API server.
const MOST_WAITING: usize = 256;

/// Known Events. The server forgets each after an hour.
const MOST_KNOWN: usize = 512;
const KNOWN_FOR: Duration = Duration::from_secs(3_600);

/// Between two updates of one Event.
const UPDATED_EVERY: Duration = Duration::from_secs(60);

/// Until a refused Event is tried again: it takes a person to give a right.
const REFUSED_FOR: Duration = Duration::from_secs(300);

/// The bucket of each object, and of all requests of the node.
const MOST_AT_ONCE: f64 = 25.0;
const REFILLED_EVERY: Duration = Duration::from_secs(300);

/// Between two requests of a node whose bucket is empty: 100 requests a second of 1,000 nodes.
const REQUESTED_EVERY: Duration = Duration::from_secs(10);

/// The namespace of Events of nodes, which are in none.
const NODE_NAMESPACE: &str = "default";

/// The object of an Event.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum InvolvedObject {
    Node,
    Pod { namespace: String, name: String, uid: String },
}

impl InvolvedObject {
    fn of(pod: &Pod) -> Self {
        let Pod { namespace, name, uid, .. } = pod;
        let [namespace, name, uid] = [namespace, name, uid].map(|text| text.to_string());
        Self::Pod { namespace, name, uid }
    }

    fn namespace(&self) -> &str {
        match self {
            Self::Node => NODE_NAMESPACE,
            Self::Pod { namespace, .. } => namespace,
        }
    }

    fn reference(&self, node: &str) -> Value {
        match self {
            // The kubelet names itself so; `kubectl describe node` finds these.
            Self::Node => json!({"apiVersion": "v1", "kind": "Node", "name": node, "uid": node}),
            Self::Pod { namespace, name, uid } => json!({
                "apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": name, "uid": uid,
            }),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    object: InvolvedObject,
    reason: String,
    text: String,
}

/// An Event that is to be written.
#[derive(Clone, Debug)]
struct PendingEvent {
    key: Key,
    is_warning: bool,
    times: u64,
    at: Timestamp,
    /// Until when it is not tried again, if it was refused.
    refused_until: Option<Duration>,
}

/// An Event that the server has.
#[derive(Clone, Debug)]
struct KnownEvent {
    name: String,
    count: u64,
    written: Duration,
}

/// A request to write one.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Request {
    pub(super) namespace: String,
    /// The Event that is changed; `None`: a new one.
    pub(super) name: Option<String>,
    pub(super) body: Value,
    count: u64,
}

/// What is left of a limit that is filled again over time.
#[derive(Clone, Copy, Debug)]
struct EventBucket {
    left: f64,
    since: Duration,
}

impl EventBucket {
    fn full(now: Duration) -> Self {
        Self { left: MOST_AT_ONCE, since: now }
    }

    /// Whether there is one to take, where one is added `every` so often.
    fn has_one(&mut self, every: Duration, now: Duration) -> bool {
        let passed = now.saturating_sub(self.since).div_duration_f64(every);
        (self.left, self.since) = ((self.left + passed).min(MOST_AT_ONCE), now);
        self.left >= 1.0
    }
}

/// Events that wait and that are known.
#[derive(Debug)]
pub(super) struct EventBook {
    node: String,
    waiting: VecDeque<PendingEvent>,
    known: HashMap<Key, KnownEvent>,
    buckets: HashMap<InvolvedObject, EventBucket>,
    requests: EventBucket,
    /// The entries that have been taken, and those of earlier runs. A clock that is set back gives
    /// new ones an earlier time, so that times are compared, and not ordered.
    seen: HashSet<(RecentEventKind, String, Timestamp)>,
    /// How often each text has been taken.
    taken: HashMap<(RecentEventKind, String), u64>,
    /// What was said last of each start.
    starts: HashMap<Arc<str>, Key>,
    /// Entries before it are of earlier runs.
    since: Timestamp,
    /// The time of the last snapshot.
    read: Option<Timestamp>,
    dropped: u64,
}

impl EventBook {
    /// Of what happens from then on.
    pub(super) fn new(node: String, since: Timestamp) -> Self {
        Self {
            node,
            waiting: VecDeque::new(),
            known: HashMap::new(),
            buckets: HashMap::new(),
            requests: EventBucket::full(Duration::ZERO),
            seen: HashSet::new(),
            taken: HashMap::new(),
            starts: HashMap::new(),
            since,
            read: None,
            dropped: 0,
        }
    }

    /// Takes what has happened since the last call.
    pub(super) fn take(&mut self, status: &Status, now: Duration) {
        let read = self.read.replace(status.at.utc);
        if read.is_some_and(|read| status.at.utc < read) {
            self.since = self.since.min(status.at.utc);
        }
        // The newest is first.
        for entry in status.happened.iter().rev().filter(|entry| is_for_people(entry)) {
            let is_new = self.seen.insert((entry.kind, entry.text.clone(), entry.at));
            if !is_new || entry.at < self.since {
                continue;
            }
            let taken = self.taken.insert((entry.kind, entry.text.clone()), entry.times);
            let times = entry.times - taken.filter(|taken| *taken < entry.times).unwrap_or(0);
            let pod = pod_of(entry, status).map(|pod| InvolvedObject::of(&pod));
            for object in [Some(InvolvedObject::Node), pod].into_iter().flatten() {
                let key = Key { object, reason: reason(entry), text: entry.text.clone() };
                let is_warning = entry.level != RecentEventLevel::Info;
                let at = entry.at;
                self.add(PendingEvent { key, is_warning, times, at, refused_until: None }, now);
            }
        }
        self.take_leases(status, now);
        if self.seen.len() > MOST_KNOWN {
            let is_shown = |text: &str, at: Option<Timestamp>| {
                let mut entries = status.happened.iter().filter(|entry| entry.text == text);
                entries.any(|entry| at.is_none_or(|at| entry.at == at))
            };
            self.seen.retain(|(_, text, at)| is_shown(text, Some(*at)));
            self.taken.retain(|(_, text), _| is_shown(text, None));
        }
    }

    /// What pods that start wait for.
    fn take_leases(&mut self, status: &Status, now: Duration) {
        let mut starts = HashMap::new();
        for lease in status.leases.iter() {
            let Some(pod) = &lease.request.pod else { continue };
            let (reason, text) = start_text(lease, &self.node);
            let key = Key { object: InvolvedObject::of(pod), reason: reason.to_owned(), text };
            if self.starts.get(&lease.request.id) != Some(&key) {
                let at = status.at.utc;
                let (key, is_warning) = (key.clone(), false);
                self.add(PendingEvent { key, is_warning, times: 1, at, refused_until: None }, now);
            }
            starts.insert(Arc::clone(&lease.request.id), key);
        }
        self.starts = starts;
    }

    fn add(&mut self, event: PendingEvent, now: Duration) {
        let key = &event.key;
        if let Some(waiting) = self.waiting.iter_mut().find(|waiting| waiting.key == *key) {
            waiting.times += event.times;
            waiting.at = event.at;
            return;
        }
        if !self.known.contains_key(key) && !self.admits(&key.object, now) {
            self.dropped += 1;
            return;
        }
        if self.waiting.len() >= MOST_WAITING {
            self.waiting.pop_front();
            self.dropped += 1;
        }
        self.waiting.push_back(event);
    }

    fn admits(&mut self, object: &InvolvedObject, now: Duration) -> bool {
        if self.buckets.len() > MOST_KNOWN {
            self.buckets.retain(|_, bucket| now.saturating_sub(bucket.since) < KNOWN_FOR);
        }
        let bucket = self.buckets.entry(object.clone()).or_insert_with(|| EventBucket::full(now));
        let admits = bucket.has_one(REFILLED_EVERY, now);
        if admits {
            bucket.left -= 1.0;
        }
        admits
    }

    /// The next request, if one is due. New Events come before counts of known ones, and those that
    /// were refused last. A namespace that refuses all of them must not use up the node's requests.
    pub(super) fn next(&mut self, now: Duration) -> Option<Request> {
        self.known.retain(|_, known| now.saturating_sub(known.written) < KNOWN_FOR);
        if !self.requests.has_one(REQUESTED_EVERY, now) {
            return None;
        }
        let is_due = |waiting: &PendingEvent| {
            let known = self.known.get(&waiting.key);
            waiting.refused_until.is_none_or(|until| now >= until)
                && known.is_none_or(|known| now.saturating_sub(known.written) >= UPDATED_EVERY)
        };
        let order = |waiting: &PendingEvent| {
            (waiting.refused_until.is_some(), self.known.contains_key(&waiting.key))
        };
        let due = self.waiting.iter().enumerate().filter(|(_, waiting)| is_due(waiting));
        let (place, _) = due.min_by_key(|(_, waiting)| order(waiting))?;
        self.requests.left -= 1.0;
        let waiting = self.waiting.remove(place)?;
        let request = self.request(&waiting);
        self.waiting.push_front(waiting);
        Some(request)
    }

    fn request(&self, waiting: &PendingEvent) -> Request {
        let PendingEvent { key, is_warning, times, at, .. } = waiting;
        let (at, namespace) = (second(*at), key.object.namespace().to_owned());
        if let Some(known) = self.known.get(key) {
            let count = known.count + times;
            let body = json!({"count": count, "lastTimestamp": at});
            return Request { namespace, name: Some(known.name.clone()), body, count };
        }
        let node = &self.node;
        let body = json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": "umawarden-", "namespace": namespace},
            "involvedObject": key.object.reference(node),
            "reason": key.reason,
            "message": key.text,
            "type": if *is_warning { "Warning" } else { "Normal" },
            "source": {"component": "umawarden", "host": node},
            "reportingComponent": "umawarden",
            "reportingInstance": node,
            "firstTimestamp": at,
            "lastTimestamp": at,
            "count": times,
        });
        Request { namespace, name: None, body, count: *times }
    }

    /// The request that was returned last has been carried out; of a new Event, its name.
    pub(super) fn written(&mut self, request: &Request, name: Option<String>, now: Duration) {
        let Some(waiting) = self.waiting.pop_front() else { return };
        let Some(name) = name.or_else(|| request.name.clone()) else { return };
        if self.known.len() >= MOST_KNOWN {
            self.known.clear();
        }
        self.known.insert(waiting.key, KnownEvent { name, count: request.count, written: now });
    }

    /// The Event that it was to change has expired: the next request writes a new one.
    pub(super) fn expired(&mut self) {
        if let Some(waiting) = self.waiting.front() {
            self.known.remove(&waiting.key);
        }
    }

    /// The request was refused for now. Others are not delayed by it.
    pub(super) fn refused(&mut self, now: Duration) {
        if let Some(waiting) = self.waiting.front_mut() {
            waiting.refused_until = Some(now.saturating_add(REFUSED_FOR));
        }
    }

    /// The request cannot be carried out, whenever: its namespace is being removed, or the server
    /// does not accept it as it is.
    pub(super) fn give_up(&mut self) {
        if self.waiting.pop_front().is_some() {
            self.dropped += 1;
        }
    }

    /// Events that were not written since the last call.
    pub(super) fn take_dropped(&mut self) -> u64 {
        std::mem::take(&mut self.dropped)
    }
}

/// Reason and text of an Event about a start. No figure that changes by the second: each text is an
/// Event of its own.
fn start_text(lease: &Lease, node: &str) -> (&'static str, String) {
    let need = bytes_text(lease.request.need.need_bytes);
    match &lease.state {
        LeaseState::Granted { .. } => ("MemoryReserved", format!("{node} has reserved {need}")),
        LeaseState::Waiting { behind, .. } if behind.is_empty() => {
            ("WaitsForMemory", format!("waits for {need} of memory on {node}"))
        }
        LeaseState::Waiting { behind, .. } => {
            let behind = behind.join(", ");
            ("WaitsForMemory", format!("waits for {need} of memory on {node}, after {behind}"))
        }
    }
}

/// Whether people of a cluster want to know: what needs attention, and the end of an alert.
fn is_for_people(entry: &RecentEvent) -> bool {
    entry.level != RecentEventLevel::Info || entry.kind == RecentEventKind::Alert
}

/// One word, as other Events have: the alert's name, or the kind.
fn reason(entry: &RecentEvent) -> String {
    let alert = entry.rule.as_deref().and_then(|rule| rule.rsplit('/').next());
    let alert: String =
        alert.unwrap_or_default().chars().filter(char::is_ascii_alphanumeric).collect();
    match (alert.is_empty(), entry.kind) {
        (false, _) => alert.chars().take(128).collect(),
        (true, RecentEventKind::Decision) => "Remedy".to_owned(),
        (true, _) => "UnifiedMemory".to_owned(),
    }
}

/// The pod of the engine that it is about.
fn pod_of(entry: &RecentEvent, status: &Status) -> Option<Pod> {
    let name = entry.engine.as_deref()?;
    let mut engines = status.engines.iter();
    let engine = engines.find(|engine| *engine.engine.name == *name)?;
    engine.engine.pod.as_deref().cloned()
}

#[cfg(test)]
pub(in crate::kubernetes) mod tests;
