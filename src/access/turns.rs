//! Runs expensive work one at a time, client addresses in turn, so that a flood from one address
//! does not exclude others.
//!
//! It does not help against floods from as many addresses as the queue has slots. (An IPv6 /56 has
//! 256 networks, a /48 has 65,536.) Other clients are then asked to retry until a slot is free.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// Waiting requests of one address. Further ones are asked to retry.
pub(super) const WAITING_OF_ADDRESS: usize = 4;
/// Addresses with waiting requests.
pub(super) const WAITING_ADDRESSES: usize = 64;

#[derive(Debug, Default)]
pub(super) struct AccessTurns(Mutex<TurnQueue>);

#[derive(Debug, Default)]
struct TurnQueue {
    is_taken: bool,
    /// By address. The first address is next.
    waiting: VecDeque<(IpAddr, VecDeque<oneshot::Sender<AccessTurn>>)>,
}

/// The turn, until it is dropped. An empty one is void.
#[derive(Debug)]
pub(super) struct AccessTurn(Option<Arc<AccessTurns>>);

impl AccessTurns {
    /// Waits for the turn. `None` if too many requests or addresses are waiting.
    pub(super) async fn wait(self: &Arc<Self>, from: IpAddr) -> Option<AccessTurn> {
        let turn = {
            let mut queue = self.lock();
            if queue.is_taken {
                queue.enter(network(from))?
            } else {
                queue.is_taken = true;
                drop(queue);
                return Some(AccessTurn(Some(Arc::clone(self))));
            }
        };
        turn.await.ok()
    }

    fn lock(&self) -> MutexGuard<'_, TurnQueue> {
        // No code under this lock can panic half-way.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TurnQueue {
    fn enter(&mut self, from: IpAddr) -> Option<oneshot::Receiver<AccessTurn>> {
        let slot = match self.waiting.iter().position(|(address, _)| *address == from) {
            Some(slot) => slot,
            None => self.make_slot(from)?,
        };
        let (_, waiting) = self.waiting.get_mut(slot)?;
        if waiting.len() >= WAITING_OF_ADDRESS {
            waiting.retain(|one| !one.is_closed());
        }
        if waiting.len() >= WAITING_OF_ADDRESS {
            return None;
        }
        let (give, turn) = oneshot::channel();
        waiting.push_back(give);
        Some(turn)
    }

    fn make_slot(&mut self, from: IpAddr) -> Option<usize> {
        if self.waiting.len() >= WAITING_ADDRESSES {
            // A client that has disconnected needs no slot.
            self.waiting.retain(|(_, waiting)| waiting.iter().any(|one| !one.is_closed()));
        }
        if self.waiting.len() >= WAITING_ADDRESSES {
            return None;
        }
        self.waiting.push_back((from, VecDeque::new()));
        Some(self.waiting.len() - 1)
    }

    fn next(&mut self) -> Option<oneshot::Sender<AccessTurn>> {
        let (address, mut waiting) = self.waiting.pop_front()?;
        let next = waiting.pop_front();
        if !waiting.is_empty() {
            self.waiting.push_back((address, waiting));
        }
        next
    }
}

impl Drop for AccessTurn {
    fn drop(&mut self) {
        let Some(turns) = self.0.take() else { return };
        loop {
            let next = {
                let mut queue = turns.lock();
                let next = queue.next();
                queue.is_taken = next.is_some();
                next
            };
            let Some(next) = next else { return };
            match next.send(AccessTurn(Some(Arc::clone(&turns)))) {
                Ok(()) => return,
                // The client has disconnected: the next one is served.
                Err(mut unwanted) => unwanted.0 = None,
            }
        }
    }
}

/// The network of an address: whoever has an IPv6 address has at least a /64.
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let network = address.to_bits() >> 64 << 64;
            IpAddr::V6(Ipv6Addr::from_bits(network))
        }
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use super::*;

    type Waits<'t> = std::pin::Pin<Box<dyn Future<Output = Option<AccessTurn>> + 't>>;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    /// The state of a wait.
    fn poll(waits: &mut Waits<'_>) -> Poll<Option<AccessTurn>> {
        waits.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }

    fn begun(turns: &Arc<AccessTurns>, from: IpAddr) -> Waits<'_> {
        let mut waits: Waits<'_> = Box::pin(turns.wait(from));
        assert!(poll(&mut waits).is_pending());
        waits
    }

    fn have(waits: &mut Waits<'_>) -> Option<AccessTurn> {
        match poll(waits) {
            Poll::Ready(Some(turn)) => Some(turn),
            Poll::Ready(None) => panic!("sent away"),
            Poll::Pending => None,
        }
    }

    fn first(turns: &Arc<AccessTurns>) -> AccessTurn {
        let mut waits: Waits<'_> = Box::pin(turns.wait(address(1)));
        have(&mut waits).unwrap()
    }

    fn is_sent_away(turns: &Arc<AccessTurns>, from: IpAddr) -> bool {
        let mut waits: Waits<'_> = Box::pin(turns.wait(from));
        matches!(poll(&mut waits), Poll::Ready(None))
    }

    #[test]
    fn addresses_take_turns_even_if_many_requests_of_one_wait() {
        let turns = Arc::new(AccessTurns::default());
        let turn = first(&turns);
        let mut flood: Vec<_> =
            (0..WAITING_OF_ADDRESS).map(|_| begun(&turns, address(1))).collect();
        assert!(is_sent_away(&turns, address(1)), "so many of an address wait, and no more");
        let mut other = begun(&turns, address(2));
        let mut third = begun(&turns, address(3));
        drop(turn);
        let turn = have(&mut flood[0]).unwrap();
        assert!(have(&mut other).is_none(), "one at a time");
        drop(turn);
        let turn = have(&mut other).unwrap();
        assert!(have(&mut flood[1]).is_none());
        drop(turn);
        let turn = have(&mut third).unwrap();
        drop(turn);
        for waits in &mut flood[1..] {
            drop(have(waits).unwrap());
        }
        // Nobody waits any more.
        drop(first(&turns));
        assert!(turns.lock().waiting.is_empty());
    }

    #[test]
    fn a_disconnected_client_passes_its_turn_on_and_frees_its_slot() {
        let turns = Arc::new(AccessTurns::default());
        let turn = first(&turns);
        let gone = begun(&turns, address(2));
        let given_and_gone = begun(&turns, address(3));
        let mut stays = begun(&turns, address(4));
        drop(gone);
        drop(turn);
        // The turn is granted, and the client disconnects before it is polled.
        drop(given_and_gone);
        assert!(have(&mut stays).is_some());
        let turn = first(&turns);
        for _ in 0..3 * WAITING_OF_ADDRESS {
            drop(begun(&turns, address(2)));
        }
        for last in 0..=255 {
            drop(begun(&turns, address(last)));
        }
        let mut stays = begun(&turns, address(9));
        drop(turn);
        assert!(have(&mut stays).is_some());
    }

    #[test]
    fn waiting_addresses_are_bounded_and_an_ipv6_network_counts_as_one() {
        let turns = Arc::new(AccessTurns::default());
        let turn = first(&turns);
        let slots = u8::try_from(WAITING_ADDRESSES).unwrap();
        let waiting: Vec<_> = (0..slots).map(|last| begun(&turns, address(last))).collect();
        assert!(is_sent_away(&turns, address(200)));
        drop(waiting);
        let of_network = |last: u16| IpAddr::from([0x2001, 0xdb8, 0, 7, 1, 2, 3, last]);
        let waiting: Vec<_> = (0..4).map(|last| begun(&turns, of_network(last))).collect();
        assert!(is_sent_away(&turns, of_network(9)));
        let mapped: IpAddr = "::ffff:192.0.2.9".parse().unwrap();
        let v4: Vec<_> = (0..4).map(|_| begun(&turns, mapped)).collect();
        assert!(is_sent_away(&turns, address(9)));
        drop((waiting, v4, turn));
        drop(first(&turns));
    }
}
