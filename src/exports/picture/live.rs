//! `GET /api/v1/live`: the picture as server-sent events, at most one a second.
//!
//! One task renders for all clients while there are any. A client that reads slowly skips
//! pictures: it has one at most that waits. One that does not read at all is disconnected, as
//! during any other response. An idle stream may be closed for the sake of other connections, and
//! the client connects again.
//!
//! The format: <https://html.spec.whatwg.org/multipage/server-sent-events.html>.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use hyper::header::{self, HeaderValue};
use hyper::{HeaderMap, StatusCode};
use tokio::sync::watch;

use super::super::api::error;
use super::super::routes::Site;

/// Clients at once. One address has fewer, as it has fewer connections.
pub(in crate::exports) const MOST_CLIENTS: usize = 128;

/// Time between two pictures.
const EVERY: Duration = Duration::from_secs(1);

/// A stream without a picture has a comment in this time, so that clients notice its end.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// When a refused client may try again, in seconds.
const RETRY_AFTER: u16 = 10;

/// When a client whose stream has ended connects again, in milliseconds.
const CONNECT_AGAIN: &str = "retry: 2000\n\n";

/// The pictures of all clients.
#[derive(Debug)]
pub(in crate::exports) struct PictureFeed {
    clients: AtomicUsize,
    is_rendering: AtomicBool,
    events: watch::Sender<Bytes>,
}

impl Default for PictureFeed {
    fn default() -> Self {
        Self {
            clients: AtomicUsize::new(0),
            is_rendering: AtomicBool::new(false),
            events: watch::Sender::new(Bytes::new()),
        }
    }
}

struct ClientPlace(Arc<PictureFeed>);

impl Drop for ClientPlace {
    fn drop(&mut self) {
        self.0.clients.fetch_sub(1, Ordering::AcqRel);
    }
}

impl PictureFeed {
    /// `None` if there are too many clients.
    fn enter(self: &Arc<Self>) -> Option<ClientPlace> {
        let more = |clients: usize| (clients < MOST_CLIENTS).then_some(clients + 1);
        let entered = self.clients.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        entered.is_ok().then(|| ClientPlace(Arc::clone(self)))
    }

    /// Starts the task that renders, unless it runs. It ends with the last client.
    fn render(self: &Arc<Self>, site: &Site) {
        if self.is_rendering.swap(true, Ordering::AcqRel) {
            return;
        }
        let (feed, site) = (Arc::clone(self), site.clone());
        tokio::spawn(async move {
            let mut ticks = tokio::time::interval(EVERY);
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                if feed.clients.load(Ordering::Acquire) == 0 {
                    feed.is_rendering.store(false, Ordering::Release);
                    // A client may have come since.
                    let has_any = feed.clients.load(Ordering::Acquire) > 0;
                    if !has_any || feed.is_rendering.swap(true, Ordering::AcqRel) {
                        return;
                    }
                }
                if let Some(event) = event(&site) {
                    feed.events.send_replace(event);
                }
            }
        });
    }
}

/// The picture as an event.
fn event(site: &Site) -> Option<Bytes> {
    let json = site.pictures.json(&site.served);
    let json = json.inspect_err(|problem| tracing::warn!(%problem, "live picture")).ok()?;
    Some([b"event: picture\ndata: ", &*json, b"\n\n"].concat().into())
}

struct LiveClient {
    first: Option<Bytes>,
    events: watch::Receiver<Bytes>,
    shutdown: watch::Receiver<bool>,
    _place: ClientPlace,
}

impl LiveClient {
    /// The next event or comment; `None` at the end of the server.
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        tokio::select! {
            biased;
            () = ended(&mut self.shutdown) => None,
            changed = self.events.changed() => {
                changed.ok()?;
                Some(self.events.borrow_and_update().clone())
            }
            () = tokio::time::sleep(HEARTBEAT) => Some(Bytes::from_static(b": still here\n\n")),
        }
    }
}

/// Waits for the end of the server.
async fn ended(shutdown: &mut watch::Receiver<bool>) {
    // The returned guard must not live across an await.
    let _ = shutdown.wait_for(|stop| *stop).await.is_ok();
}

/// The stream; 503 with too many clients.
pub(in crate::exports) async fn live(State(site): State<Site>) -> Response {
    let Some(place) = site.pictures.live.enter() else {
        let text = format!("{MOST_CLIENTS} clients have live pictures; /api/v1/picture has one");
        let mut refusal = error(StatusCode::SERVICE_UNAVAILABLE, "unavailable", &text);
        refusal.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(RETRY_AFTER));
        return refusal;
    };
    site.pictures.find_earlier(&site).await;
    let Some(now) = event(&site) else {
        return error(StatusCode::INTERNAL_SERVER_ERROR, "internal", "cannot write the picture");
    };
    let client = LiveClient {
        first: Some([CONNECT_AGAIN.as_bytes(), &*now].concat().into()),
        events: site.pictures.live.events.subscribe(),
        shutdown: site.shutdown.clone(),
        _place: place,
    };
    site.pictures.live.render(&site);
    let events = stream::unfold(client, |mut client| async move {
        let event = client.next().await?;
        Some((Ok::<_, Infallible>(event), client))
    });
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    // A proxy that buffers would keep events back.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    (headers, Body::from_stream(events)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_counted_and_bounded() {
        let feed = Arc::new(PictureFeed::default());
        let mut places: Vec<ClientPlace> =
            (0..MOST_CLIENTS).map(|_| feed.enter().unwrap()).collect();
        assert!(feed.enter().is_none());
        places.pop();
        assert!(feed.enter().is_some(), "a client that leaves makes way");
        assert_eq!(feed.clients.load(Ordering::Acquire), MOST_CLIENTS - 1);
        drop(places);
        assert_eq!(feed.clients.load(Ordering::Acquire), 0);
    }
}
