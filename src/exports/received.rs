//! Alerts posted by an Alertmanager, and those of them that fire.
//!
//! A post is accepted whole or not at all, and confirmed once it is in a bounded queue. The loop
//! takes long posts in parts. The sender waits for no rule and no disk, and the loop for no post.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use hyper::header::{CONNECTION, HeaderValue, RETRY_AFTER};
use hyper::{HeaderMap, StatusCode};
use serde_json::json;
use tokio::sync::Semaphore;

use super::api::{answer, error, success};
use super::order::Caller;
use super::orders::{OrderRefusal, authenticated, read_body};
use super::routes::{Site, body_bytes};
use crate::model::{OrderedBy, ReceivedAlert, ReceivedAlerts, author, counted, remote_author};
use crate::parse::alertmanager::{self, MOST_BYTES, PostError};

/// Posts in the queue. The loop takes them within milliseconds.
const MOST_WAITING: usize = 1_024;
/// Their memory, which is several times the posted size. One post always fits.
const MOST_WAITING_BYTES: usize = 8 << 20;
/// Longer posts are split.
const MOST_ALERTS_A_PART: usize = 50;

/// Bodies that are read concurrently, in units of [`UNIT_BYTES`].
const READING_UNITS: u32 = 64;
const UNIT_BYTES: u64 = 64 << 10;
/// How long a body waits to be read.
const READING_WAIT: Duration = Duration::from_secs(5);

/// The Retry-After of a refused post.
const RETRY_AFTER_SECONDS: &str = "5";

/// The queue of posts.
pub struct AlertInbox {
    inside: Mutex<InboxState>,
    /// Wakes the loop.
    wake: Box<dyn Fn() + Send + Sync>,
    reading: Semaphore,
    refused: [AtomicU64; 3],
}

#[derive(Default)]
struct InboxState {
    waiting: VecDeque<PostPart>,
    /// Posts whose last part is waiting, and their memory.
    posts: usize,
    bytes: usize,
    is_closed: bool,
}

/// A post, or a part of a long one.
struct PostPart {
    post: ReceivedAlerts,
    /// Alerts that it counts for, at least one. Each KiB of labels counts for one more.
    weight: usize,
    /// The memory of the whole post, in its last part.
    ends: Option<usize>,
}

/// Why a post was refused, for the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WhyRefused {
    Malformed,
    TooLarge,
    Busy,
}

impl fmt::Debug for AlertInbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AlertInbox")
    }
}

impl AlertInbox {
    /// An empty queue. `wake` is called for each new post.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        Self {
            inside: Mutex::default(),
            wake: Box::new(wake),
            reading: Semaphore::new(READING_UNITS as usize),
            refused: [const { AtomicU64::new(0) }; 3],
        }
    }

    /// Takes posts and parts, oldest first: at least one if any waits, and at most this many alerts
    /// beyond it. A post without alerts counts for one, each KiB of labels for one more. Returns
    /// whether more wait. Never blocks: while another thread has the lock it takes nothing, and the
    /// loop is woken again.
    pub fn take(&self, most_alerts: usize, to: impl FnMut(ReceivedAlerts)) -> bool {
        match self.inside.try_lock() {
            Ok(mut inside) => inside.take(most_alerts, to),
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner().take(most_alerts, to),
            Err(TryLockError::WouldBlock) => false,
        }
    }

    /// Whether the queue is empty. Never blocks.
    pub fn is_empty(&self) -> bool {
        self.inside.try_lock().is_ok_and(|inside| inside.waiting.is_empty())
    }

    /// Accepts no more posts. Accepted posts can still be taken, since they were confirmed.
    pub fn close(&self) {
        self.lock().is_closed = true;
    }

    /// Like [`AlertInbox::take`] after [`AlertInbox::close`], but may block for a moment.
    pub fn take_rest(&self, most_alerts: usize, to: impl FnMut(ReceivedAlerts)) -> bool {
        self.lock().take(most_alerts, to)
    }

    /// Refused posts: malformed, too large, queue full.
    pub fn refused(&self) -> [u64; 3] {
        [0, 1, 2].map(|index: usize| self.refused[index].load(Ordering::Relaxed))
    }

    fn lock(&self) -> MutexGuard<'_, InboxState> {
        // No code under this lock can panic half-way.
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, why: WhyRefused) {
        self.refused[why as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Adds a post. An error says why the queue is closed or full.
    fn push(&self, post: ReceivedAlerts, bytes: usize) -> Result<(), &'static str> {
        let parts = parts(post, bytes);
        let mut inside = self.lock();
        if inside.is_closed {
            return Err("umawarden is shutting down");
        }
        let is_full = inside.posts >= MOST_WAITING
            || (inside.bytes + bytes > MOST_WAITING_BYTES && inside.posts > 0);
        if is_full {
            return Err("too many posts are waiting; post it again");
        }
        inside.posts += 1;
        inside.bytes += bytes;
        inside.waiting.extend(parts);
        drop(inside);
        (self.wake)();
        Ok(())
    }
}

impl InboxState {
    fn take(&mut self, most_alerts: usize, mut to: impl FnMut(ReceivedAlerts)) -> bool {
        let mut taken = 0;
        while let Some(part) = self.waiting.front() {
            if taken > 0 && taken + part.weight > most_alerts {
                return true;
            }
            taken += part.weight;
            let Some(PostPart { post, ends, .. }) = self.waiting.pop_front() else { break };
            self.posts -= usize::from(ends.is_some());
            self.bytes -= ends.unwrap_or(0);
            to(post);
        }
        false
    }
}

/// The memory of a post, estimated.
fn memory_bytes(post: &ReceivedAlerts) -> usize {
    let labels: usize = post.alerts.iter().map(|alert| alert.labels.len()).sum();
    256 + 640 * post.alerts.len() + 96 * labels + labels_bytes(&post.alerts)
}

fn labels_bytes(alerts: &[Arc<ReceivedAlert>]) -> usize {
    let labels = alerts.iter().flat_map(|alert| &alert.labels);
    labels.map(|(name, value)| name.len() + value.len()).sum()
}

impl PostPart {
    fn new(post: ReceivedAlerts) -> Self {
        let weight = post.alerts.len().max(1) + labels_bytes(&post.alerts) / 1_024;
        Self { post, weight, ends: None }
    }
}

/// The first part has the counts of the whole post.
fn parts(post: ReceivedAlerts, bytes: usize) -> Vec<PostPart> {
    let ReceivedAlerts { alerts, is_rest, unusable_labels, truncated } = post;
    let mut parts = Vec::with_capacity(alerts.len().div_ceil(MOST_ALERTS_A_PART).max(1));
    let mut alerts = alerts.into_iter();
    let first: Vec<_> = alerts.by_ref().take(MOST_ALERTS_A_PART).collect();
    let first = ReceivedAlerts { alerts: first, is_rest, unusable_labels, truncated };
    parts.push(PostPart::new(first));
    while alerts.len() > 0 {
        let alerts = alerts.by_ref().take(MOST_ALERTS_A_PART).collect();
        let post = ReceivedAlerts { alerts, is_rest: true, ..ReceivedAlerts::default() };
        parts.push(PostPart::new(post));
    }
    if let Some(last) = parts.last_mut() {
        last.ends = Some(bytes);
    }
    parts
}

/// `POST /api/v1/alerts/webhook`.
pub(super) async fn post(
    State(site): State<Site>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    match take(&site, caller, &headers, body).await {
        Ok(response) => response,
        Err(refusal) => *refusal,
    }
}

async fn take(
    site: &Site,
    caller: Caller,
    headers: &HeaderMap,
    body: Body,
) -> Result<Response, OrderRefusal> {
    let by = who(&authenticated(caller)?);
    let inbox = &site.served.received;
    if body_bytes(headers) > MOST_BYTES as u64 {
        let mut refusal = refuse(inbox, &PostError::TooLarge(alertmanager::too_long()));
        // The rest of the body is not read.
        refusal.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        return Err(refusal);
    }
    let turn = tokio::time::timeout(READING_WAIT, inbox.reading.acquire_many(units(headers)));
    let Ok(Ok(_turn)) = turn.await else {
        return Err(busy(inbox, "too many posts at once; post it again"));
    };
    let body = read_body(site, body, MOST_BYTES, &alertmanager::too_long()).await.inspect_err(
        |refusal| {
            if refusal.status() == StatusCode::PAYLOAD_TOO_LARGE {
                inbox.count(WhyRefused::TooLarge);
            }
        },
    )?;
    let mut post = alertmanager::post(&body).map_err(|wrong| refuse(inbox, &wrong))?;
    for alert in &mut post.alerts {
        // Not shared yet, so that nothing is copied.
        Arc::make_mut(alert).by = Some(Arc::clone(&by));
    }
    let (alerts, remarks) = (post.alerts.len(), remarks(&post));
    let bytes = memory_bytes(&post);
    inbox.push(post, bytes).map_err(|why| busy(inbox, why))?;
    let body = json!({
        "status": "success", "data": { "alerts": alerts }, "warnings": remarks,
    });
    Ok(answer(StatusCode::OK, &body))
}

/// The sender, for the journal.
fn who(by: &OrderedBy) -> Arc<str> {
    match by {
        OrderedBy::Local { uid } => author(None, None, *uid).into(),
        OrderedBy::Remote { credential, address } => {
            remote_author(None, credential, *address).into()
        }
    }
}

/// The units of a body while it is read. Without a length it counts as the longest.
fn units(headers: &HeaderMap) -> u32 {
    let most = MOST_BYTES as u64;
    let announced = match body_bytes(headers) {
        0 => most,
        announced => announced.min(most),
    };
    u32::try_from(announced.div_ceil(UNIT_BYTES)).unwrap_or(READING_UNITS).min(READING_UNITS)
}

fn refuse(inbox: &AlertInbox, wrong: &PostError) -> OrderRefusal {
    let (why, status) = match wrong {
        PostError::Malformed(_) => (WhyRefused::Malformed, StatusCode::BAD_REQUEST),
        PostError::TooLarge(_) => (WhyRefused::TooLarge, StatusCode::PAYLOAD_TOO_LARGE),
    };
    inbox.count(why);
    Box::new(error(status, "bad_data", &wrong.to_string()))
}

fn busy(inbox: &AlertInbox, why: &str) -> OrderRefusal {
    inbox.count(WhyRefused::Busy);
    let mut refusal = error(StatusCode::SERVICE_UNAVAILABLE, "unavailable", why);
    refusal.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER_SECONDS));
    Box::new(refusal)
}

/// What was omitted, for the response.
fn remarks(post: &ReceivedAlerts) -> Vec<String> {
    let mut remarks = Vec::new();
    if post.unusable_labels > 0 {
        let labels = counted(post.unusable_labels, "label");
        remarks.push(format!("{labels} omitted: the name is invalid in rules, or too long"));
    }
    if post.truncated > 0 {
        let alerts = counted(post.truncated, "alert");
        remarks.push(format!("{alerts} omitted by the Alertmanager (max_alerts)"));
    }
    remarks
}

/// `GET /api/v1/alerts/received`: firing alerts.
pub(super) async fn list(State(site): State<Site>) -> Response {
    success(&json!({ "alerts": *site.served.status.load().received }))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::model::ReceivedStatus;

    fn inbox() -> (AlertInbox, Arc<AtomicUsize>) {
        let woken = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&woken);
        (AlertInbox::new(move || _ = counted.fetch_add(1, Ordering::Relaxed)), woken)
    }

    fn numbered(number: u64) -> ReceivedAlerts {
        ReceivedAlerts { truncated: number, ..ReceivedAlerts::default() }
    }

    fn taken(inbox: &AlertInbox, most_alerts: usize) -> (Vec<u64>, bool) {
        let mut numbers = Vec::new();
        let more = inbox.take(most_alerts, |post| numbers.push(post.truncated));
        (numbers, more)
    }

    /// A post of numbered alerts.
    fn post_of(numbers: std::ops::Range<usize>) -> ReceivedAlerts {
        let alert = |number: usize| {
            Arc::new(ReceivedAlert {
                fingerprint: number.to_string().into(),
                status: ReceivedStatus::Firing,
                starts_at: jiff::Timestamp::UNIX_EPOCH,
                ends_at: None,
                labels: std::collections::BTreeMap::new(),
                by: None,
            })
        };
        let alerts = numbers.map(alert).collect();
        ReceivedAlerts { alerts, is_rest: false, unusable_labels: 3, truncated: 7 }
    }

    #[test]
    fn posts_are_taken_in_order_and_not_too_many_at_once() {
        let (inbox, woken) = inbox();
        for number in 0..5 {
            inbox.push(numbered(number), 100).unwrap();
        }
        assert_eq!(woken.load(Ordering::Relaxed), 5);
        assert_eq!(taken(&inbox, 2), (vec![0, 1], true));
        assert_eq!(taken(&inbox, 0), (vec![2], true));
        assert_eq!(taken(&inbox, 1000), (vec![3, 4], false));
        assert_eq!(taken(&inbox, 1000), (vec![], false));
    }

    #[test]
    fn a_post_beyond_the_bound_is_refused_and_no_other_is_lost() {
        let (inbox, _) = inbox();
        let most = MOST_WAITING as u64;
        for number in 0..most {
            inbox.push(numbered(number), 1).unwrap();
        }
        assert!(inbox.push(numbered(most), 1).is_err());
        let all: Vec<u64> = (0..most).collect();
        assert_eq!(taken(&inbox, usize::MAX), (all, false));
        inbox.push(numbered(0), MOST_WAITING_BYTES + 1).unwrap();
        assert!(inbox.push(numbered(1), 1).is_err(), "one always fits, and no more");
        assert_eq!(taken(&inbox, 1), (vec![0], false));
        inbox.push(numbered(2), 1).unwrap();
    }

    #[test]
    fn confirmed_posts_are_kept_at_the_end() {
        let (inbox, _) = inbox();
        inbox.push(numbered(1), 1).unwrap();
        inbox.push(post_of(0..120), 1).unwrap();
        inbox.close();
        assert_eq!(inbox.push(numbered(2), 1), Err("umawarden is shutting down"));
        let mut rest = Vec::new();
        while inbox.take_rest(50, |post| rest.push(post.alerts.len())) {}
        assert_eq!(rest, [0, 50, 50, 20]);
        assert!(inbox.is_empty());
    }

    #[test]
    fn a_long_post_is_taken_in_parts_in_its_order_and_counted_once() {
        let (inbox, woken) = inbox();
        inbox.push(post_of(0..1), 1).unwrap();
        inbox.push(post_of(1..2_001), 300_000).unwrap();
        inbox.push(post_of(2_001..2_100), 1).unwrap();
        assert_eq!(woken.load(Ordering::Relaxed), 3, "the loop is woken once for each");
        let (mut turns, mut numbers, mut begun) = (0, Vec::new(), Vec::new());
        loop {
            let mut alerts = 0;
            let more = inbox.take(100, |post| {
                alerts += post.alerts.len();
                numbers.extend(post.alerts.iter().map(|alert| alert.fingerprint.to_string()));
                match post.is_rest {
                    true => assert_eq!((post.unusable_labels, post.truncated), (0, 0)),
                    false => begun.push((post.unusable_labels, post.truncated)),
                }
            });
            turns += 1;
            assert!((1..=100).contains(&alerts), "{alerts} in one turn");
            if !more {
                break;
            }
        }
        assert_eq!(turns, 22);
        let expected: Vec<String> = (0..2_100).map(|number| number.to_string()).collect();
        assert_eq!(numbers, expected);
        assert_eq!(begun, [(3, 7); 3]);
        assert!(inbox.is_empty());
    }

    #[test]
    fn a_post_counts_until_its_last_part_is_taken() {
        let (inbox, _) = inbox();
        inbox.push(post_of(0..150), MOST_WAITING_BYTES).unwrap();
        for _ in 0..2 {
            assert!(inbox.push(post_of(0..1), 1).is_err());
            assert!(inbox.take(50, drop));
        }
        assert!(inbox.push(post_of(0..1), 1).is_err(), "one part is left");
        assert!(!inbox.take(50, drop));
        inbox.push(post_of(0..1), MOST_WAITING_BYTES).unwrap();
    }

    #[test]
    fn short_labels_weigh_more_than_they_are_long() {
        let mut post = post_of(0..1);
        let bare = memory_bytes(&post);
        let labels = (0..10).map(|number| (number.to_string().into(), "x".into()));
        Arc::make_mut(&mut post.alerts[0]).labels = labels.collect();
        assert_eq!(memory_bytes(&post) - bare, 10 * (96 + 2));
        assert!(memory_bytes(&post_of(0..2_000)) > 1 << 20);
    }

    #[test]
    fn alerts_with_long_labels_are_taken_in_smaller_parts() {
        let (inbox, _) = inbox();
        let mut post = post_of(0..100);
        for alert in &mut post.alerts {
            let long = (Arc::from("summary"), "\u{1}".repeat(4_000).into());
            Arc::make_mut(alert).labels = [long].into();
        }
        inbox.push(post, 1).unwrap();
        let mut parts = Vec::new();
        // The journal entry of a step is several times as long as the post.
        assert!(inbox.take(100, |post| parts.push(post.alerts.len())));
        assert_eq!(parts, [MOST_ALERTS_A_PART]);
        assert!(!inbox.take(100, |post| parts.push(post.alerts.len())));
        assert_eq!(parts, [MOST_ALERTS_A_PART; 2]);
    }

    #[test]
    fn posts_are_counted_and_not_their_parts() {
        let (inbox, _) = inbox();
        for _ in 0..MOST_WAITING {
            inbox.push(post_of(0..101), 1).unwrap();
        }
        assert!(inbox.push(post_of(0..1), 1).is_err());
    }

    #[test]
    fn a_body_takes_its_share_of_what_is_read_at_once() {
        let of = |length: Option<&str>| {
            let mut headers = HeaderMap::new();
            if let Some(length) = length {
                headers.insert(hyper::header::CONTENT_LENGTH, length.parse().unwrap());
            }
            units(&headers)
        };
        assert_eq!((of(Some("1")), of(Some("65536")), of(Some("65537"))), (1, 1, 2));
        assert_eq!((of(None), of(Some("99999999999"))), (16, 16));
    }
}
