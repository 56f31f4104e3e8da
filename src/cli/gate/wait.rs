//! The wait for memory, for every command that waits.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::gang::Reservation;
use super::lease::StartLease;
use super::node::GateNode;
use super::prepare::Preparer;
use crate::daemon::clock;
use crate::daemon::peers::Peers;
use crate::model::{EnginePools, GateRequest, GateResponse, MemoryPools};
use crate::policy::gate::{SETTLES, check_gate, with_peers, with_turn};

/// Between two samples.
const TICK: Duration = Duration::from_millis(100);

/// The gate is not reported closed before the trend of memory is known.
const LEAST: Duration = SETTLES.saturating_add(TICK.saturating_mul(3));

/// What to wait for, and how long.
pub(crate) struct GateWait<'w> {
    /// The memory.
    pub(crate) request: GateRequest,
    /// The timeout; `None`: infinite.
    pub(crate) limit: Option<Duration>,
    /// Frees memory meanwhile, if requested.
    pub(crate) preparer: Option<&'w mut Preparer>,
    /// The peers that must be able to take it too, if any.
    pub(crate) peers: Option<&'w mut Peers>,
    /// The lease to take, if any.
    pub(crate) lease: Option<&'w mut StartLease>,
}

/// The result of one sample, for the progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitProgress<'l> {
    pub(crate) response: &'l GateResponse,
    /// The time waited so far.
    pub(crate) waited: Duration,
    /// Steps to free memory since the last sample, and their errors.
    pub(crate) news: &'l [String],
}

/// How the wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitEnd {
    /// The gate is open.
    Open,
    /// The timeout has passed.
    TimedOut,
    /// This node can never take it.
    Hopeless,
    /// The callback ended it.
    Stopped,
}

#[derive(Clone, Debug)]
pub(crate) struct WaitResult {
    pub(crate) ended: WaitEnd,
    /// The last response of the gate.
    pub(crate) response: GateResponse,
    /// The time waited.
    pub(crate) waited: Duration,
}

/// The pool of the only GPU that this process, and so the engine, may use.
fn visible_pool(memory: &MemoryPools) -> Option<Arc<str>> {
    if memory.engines != EnginePools::Gpus {
        return None;
    }
    let gpu: u32 = std::env::var("CUDA_VISIBLE_DEVICES").ok()?.trim().parse().ok()?;
    Some(Arc::clone(&memory.pool(&format!("gpu{gpu}"))?.pool))
}

impl GateWait<'_> {
    /// Waits until the gate opens or the timeout has passed. `report` is called for every sample,
    /// ten times a second, also for the last one, and may end the wait.
    pub(crate) fn run(
        mut self,
        node: &mut GateNode,
        mut report: impl FnMut(WaitProgress<'_>) -> ControlFlow<()>,
    ) -> WaitResult {
        let began = Instant::now();
        let limit = self.limit.map(|limit| limit.max(LEAST));
        let mut reservation = Reservation::default();
        loop {
            let sampled = clock::uptime();
            let memory = node.sample();
            if self.request.pools.is_empty() {
                self.request.pools.extend(visible_pool(&memory));
            }
            let mut response = check_gate(&self.request, &memory);
            let is_hopeless = response.is_hopeless;
            let is_preparing = self
                .preparer
                .as_mut()
                .is_some_and(|preparer| preparer.advance(&response, node.living()));
            let mut news =
                self.preparer.as_mut().map(|preparer| preparer.news()).unwrap_or_default();
            let mut have_responded = true;
            if let Some(peers) = &mut self.peers {
                response = with_peers(response, peers.take());
                have_responded = peers.have_responded();
            }
            // A start that never can has no turn.
            if !is_hopeless {
                self.reserve(&mut reservation, (&memory, sampled), (&mut response, &mut news));
            }
            let waited = began.elapsed();
            let goes_on = report(WaitProgress { response: &response, waited, news: &news });
            let ended = match (response.is_open && !is_preparing, goes_on) {
                (true, _) => Some(WaitEnd::Open),
                (false, ControlFlow::Break(())) => Some(WaitEnd::Stopped),
                (false, ControlFlow::Continue(())) if response.is_hopeless => {
                    Some(WaitEnd::Hopeless)
                }
                (false, ControlFlow::Continue(())) => {
                    let is_over = limit.is_some_and(|limit| waited >= limit) && have_responded;
                    // Steps in progress do not keep an open gate closed.
                    let open = if response.is_open { WaitEnd::Open } else { WaitEnd::TimedOut };
                    is_over.then_some(open)
                }
            };
            if let Some(ended) = ended {
                if let Some(lease) = self.lease.filter(|_| ended != WaitEnd::Open) {
                    lease.give_back();
                }
                return WaitResult { ended, response, waited };
            }
            let left = limit.map_or(TICK, |limit| limit.saturating_sub(waited));
            std::thread::sleep(if have_responded { TICK.min(left) } else { TICK });
        }
    }

    /// Requests the lease, if there is one.
    fn reserve(
        &mut self,
        reservation: &mut Reservation,
        memory: (&MemoryPools, Duration),
        (response, news): (&mut GateResponse, &mut Vec<String>),
    ) {
        let Some(lease) = self.lease.as_mut() else { return };
        let reserved = match &mut self.peers {
            None => Reservation::advance(lease, memory, response),
            Some(peers) => reservation.advance_with((lease, peers), memory, (response, news)),
        };
        match reserved {
            Ok(()) => reservation.has_begun = true,
            Err(why) if reservation.has_begun => {
                with_turn(
                    response,
                    &[format!("the ledger of leases cannot be used: {why}").into()],
                );
            }
            Err(why) => {
                news.push(format!("nothing is reserved for this start: {why}"));
                self.lease = None;
            }
        }
    }
}
