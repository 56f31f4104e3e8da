//! Bounds the memory of responses that clients have not read: in total, and for one address.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::{Body, Bytes, HttpBody as _, to_bytes};
use axum::response::Response;

use super::admission::ConnectionOrigin;
use crate::access::network;

/// Smaller responses do not count: connections are bounded, and the socket buffers as much.
const SMALL_BYTES: u64 = 16 << 10;
/// Limits for one address and for all.
const OF_ADDRESS_BYTES: u64 = 4 << 20;
const OF_ALL_BYTES: u64 = 32 << 20;

/// Waiting bytes by address. A single response may exceed the limit.
#[derive(Debug, Default)]
pub(super) struct UnreadLimit {
    waiting: Mutex<UnreadBytes>,
}

#[derive(Debug, Default)]
struct UnreadBytes {
    bytes: u64,
    of: BTreeMap<IpAddr, u64>,
}

/// The body of a response, which counts until it is dropped.
struct CountedBody {
    body: Bytes,
    bytes: u64,
    address: IpAddr,
    unread: Arc<UnreadLimit>,
}

impl AsRef<[u8]> for CountedBody {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

impl Drop for CountedBody {
    fn drop(&mut self) {
        self.unread.give_back(self.address, self.bytes);
    }
}

impl UnreadLimit {
    /// The response, counted until it is read. `None` if too much waits already.
    pub(super) async fn count(
        self: &Arc<Self>,
        arrival: Option<&ConnectionOrigin>,
        response: Response,
    ) -> Option<Response> {
        let bytes = response.body().size_hint().exact().unwrap_or(0);
        let Some(ConnectionOrigin::Network { address, .. }) = arrival else {
            return Some(response);
        };
        if bytes < SMALL_BYTES {
            return Some(response);
        }
        let address = network(*address);
        if !self.take(address, bytes) {
            return None;
        }
        let unread = Arc::clone(self);
        let mut counted = CountedBody { body: Bytes::new(), bytes, address, unread };
        let (head, body) = response.into_parts();
        // Responses are complete before they are sent.
        counted.body = to_bytes(body, usize::MAX).await.ok()?;
        Some(Response::from_parts(head, Body::from(Bytes::from_owner(counted))))
    }

    fn take(&self, address: IpAddr, bytes: u64) -> bool {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let own = waiting.of.get(&address).copied().unwrap_or(0);
        let fits = |before: u64, most: u64| before == 0 || before.saturating_add(bytes) <= most;
        if !fits(own, OF_ADDRESS_BYTES) || !fits(waiting.bytes, OF_ALL_BYTES) {
            return false;
        }
        waiting.bytes = waiting.bytes.saturating_add(bytes);
        waiting.of.insert(address, own.saturating_add(bytes));
        true
    }

    fn give_back(&self, address: IpAddr, bytes: u64) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.bytes = waiting.bytes.saturating_sub(bytes);
        if let Some(own) = waiting.of.get_mut(&address) {
            *own = own.saturating_sub(bytes);
            if *own == 0 {
                waiting.of.remove(&address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn address(last: u8) -> IpAddr {
        Ipv4Addr::new(10, 0, 0, last).into()
    }

    #[test]
    fn unread_bytes_are_bounded_per_address_and_in_total_and_given_back() {
        let unread = UnreadLimit::default();
        let mib = 1 << 20;
        assert!((0..4).all(|_| unread.take(address(1), mib)));
        assert!(!unread.take(address(1), mib));
        assert!((2..9).all(|other| unread.take(address(other), 4 * mib)));
        assert!(!unread.take(address(9), 1), "all together have no more");
        unread.give_back(address(1), mib);
        assert!(unread.take(address(9), mib) && !unread.take(address(1), mib));
        (1..9).for_each(|given| unread.give_back(address(given), 4 * mib));
        unread.give_back(address(9), mib);
        assert!(unread.waiting.lock().unwrap().of.is_empty());
        assert!(unread.take(address(1), 100 * mib), "one that is alone may be as long as it is");
        assert!(!unread.take(address(1), mib) && !unread.take(address(2), mib));
    }
}
