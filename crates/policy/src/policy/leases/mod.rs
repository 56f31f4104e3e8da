//! Who may take memory: starts that reserve it, one after the other.
//!
//! A gate that only looks lets two starts in at the same moment, and the transients of both add up.
//! A lease reserves memory until its engine has it. It is granted in the order of priority and
//! arrival, and while fewer than `at_once` others are starting.
//!
//! Held memory is neither free nor page cache; what is mapped of a checkpoint is not taken yet.
//! What it has grown by counts as taken by the leases together: who has taken what cannot be seen.
//! A lease that ends may have taken all of its memory, so that the others keep the rest reserved.
//!
//! A start over several nodes waits on all of them, and is granted only when its requester says so:
//! see [`gang`].

pub mod gang;
#[cfg(test)]
mod gang_tests;
mod node;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::gate::{check_gate, shares};
use crate::model::{
    GateReason, HOST_POOL, Lease, LeaseCall, LeaseChange, LeaseEnd, LeaseHolder, LeaseNews,
    LeaseRequest, LeaseShare, LeaseState, MemoryPools, Reading,
};
pub(super) use node::Leases;

/// Who has not requested for so long has gone.
const SEEN_WITHIN: Duration = Duration::from_secs(10);

/// Once all nodes have granted memory, its start goes on where the network is down for a while.
const RENEWED_WITHIN: Duration = Duration::from_secs(120);

/// A start that has taken nothing for so long is stuck, and lets others begin. Its memory stays
/// reserved. Longer than the pauses of a load, shorter than a person waits.
const STUCK_AFTER: Duration = Duration::from_secs(60);

/// Less than this is noise, and no progress.
const PROGRESS: u64 = 64 << 20;

/// Smaller changes of held memory are not noted: the ledger would be written at every sample.
const NOTED: u64 = 1 << 20;

/// All but this part is all, once nothing more is taken: figures of needs are rounded.
const ALL_PART: u64 = 16;

/// Nothing more is taken when there was no progress for so long.
const SETTLED_AFTER: Duration = Duration::from_secs(10);

/// In one of so many minutes nobody waits behind another start that waits. It is the same minute
/// for all starts and, by UTC, on all nodes: so those behind several starts, or on several nodes,
/// are not held up for ever by starts that never fit.
const MINUTES: i64 = 5;

/// Those of the same priority also pass a start that waits for less than this.
const PASSED_FOR: Duration = Duration::from_secs(60);

/// The most requests; further ones are refused.
pub const MOST_LEASES: usize = 4096;

/// Changes that are kept for a reader.
const MOST_NEWS: usize = 64;

/// A request is repeated more often than it is noted.
const NOTED_EVERY: Duration = Duration::from_secs(3);

/// Requests that are checked at a time: the first ones, and that of the caller.
const MOST_CHECKED: usize = 8;

/// Names that a reason lists.
const MOST_NAMED: usize = 4;

/// All leases of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseBook {
    leases: Vec<Lease>,
    /// What the leases have taken of each pool, by the pool's name.
    #[serde(default, rename = "taken")]
    pools: BTreeMap<Arc<str>, LeasedMemory>,
    /// The last changes, oldest first.
    #[serde(default)]
    news: VecDeque<LeaseNews>,
}

/// What the leases together have taken of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct LeasedMemory {
    /// Held memory that they have not taken, in bytes.
    base: u64,
    /// Held memory at the last time, in bytes.
    held: u64,
    /// When that was sampled, on the uptime clock. Others may come with an older sample.
    sampled: Duration,
    /// What they had taken at the last progress, in bytes.
    progress: u64,
}

impl LeasedMemory {
    /// What they have taken of what they reserve, in bytes.
    fn taken(self) -> u64 {
        self.held.saturating_sub(self.base)
    }

    /// A new sample, while so much is reserved.
    fn sample(&mut self, (held, sampled): (u64, Duration), need: u64) {
        if sampled < self.sampled || held.abs_diff(self.held) < NOTED {
            return;
        }
        // What others give back is not taken once more when they take it again.
        let base = self.base.min(held).max(held.saturating_sub(need));
        let progress = self.progress.min(held - base);
        *self = Self { base, held, sampled, progress };
    }
}

/// What time it is, what memory there is, and who lives.
pub struct LeaseContext<'c> {
    /// On the uptime clock.
    pub now: Duration,
    /// The same in milliseconds of UTC.
    pub utc_ms: i64,
    /// Pools of the node, as sampled last.
    pub memory: &'c MemoryPools,
    /// When that was sampled, on the uptime clock.
    pub sampled: Duration,
    /// How many may start at the same time.
    pub at_once: u32,
    /// Whether a process is known to have ended.
    pub has_ended: &'c dyn Fn(LeaseHolder) -> bool,
}

/// The request that is made now, if one is.
#[derive(Clone, Copy)]
struct Caller<'c> {
    id: &'c str,
    call: LeaseCall,
}

impl LeaseBook {
    /// All leases, in the order in which they are granted.
    pub fn leases(&self) -> &[Lease] {
        &self.leases
    }

    /// The lease of that id.
    pub fn get(&self, id: &str) -> Option<&Lease> {
        self.leases.iter().find(|lease| *lease.request.id == *id)
    }

    /// Takes a request or its repetition, and all that time has brought. Returns the lease's state;
    /// `None` if it has ended.
    ///
    /// # Errors
    /// There are too many.
    pub fn call(
        &mut self,
        request: &LeaseRequest,
        call: LeaseCall,
        context: &LeaseContext<'_>,
    ) -> Result<Option<LeaseState>, String> {
        let (id, now) = (&*request.id, context.now);
        if self.get(id).is_some_and(|known| known.request.turn > request.turn) {
            self.advance(context);
        } else {
            match call {
                LeaseCall::Wait => {
                    self.release(id, now);
                    self.request(now, request)?;
                }
                LeaseCall::Take => self.request(now, request)?,
                LeaseCall::Renew | LeaseCall::Keep => {}
            }
            self.renew(id, call, now);
            self.advance_for(context, Some(Caller { id, call }));
        }
        Ok(self.get(id).map(|lease| lease.state.clone()))
    }

    /// The requester of a granted lease has sent another request.
    fn renew(&mut self, id: &str, call: LeaseCall, now: Duration) {
        let lease = self.leases.iter_mut().find(|lease| *lease.request.id == *id);
        let Some(LeaseState::Granted { renew_by, .. }) = lease.map(|lease| &mut lease.state) else {
            return;
        };
        let lasts = match call {
            LeaseCall::Keep => return *renew_by = None,
            LeaseCall::Renew => RENEWED_WITHIN,
            LeaseCall::Take | LeaseCall::Wait => SEEN_WITHIN,
        };
        if renew_by.is_some_and(|then| now + lasts >= then + NOTED_EVERY) {
            *renew_by = Some(now + lasts);
        }
    }

    /// Takes a request, or its repetition.
    ///
    /// # Errors
    /// There are too many.
    pub fn request(&mut self, now: Duration, request: &LeaseRequest) -> Result<(), String> {
        if let Some(known) = self.leases.iter_mut().find(|own| own.request.id == request.id) {
            known.request.turn = request.turn;
            known.request.holder = request.holder.or(known.request.holder);
            match &mut known.state {
                LeaseState::Waiting { seen, .. } if now.saturating_sub(*seen) >= NOTED_EVERY => {
                    *seen = now;
                    let (holder, requested_ms) = (known.request.holder, known.request.requested_ms);
                    known.request = LeaseRequest { holder, requested_ms, ..request.clone() };
                }
                LeaseState::Granted { renew_by, .. } if !request.spans_nodes => *renew_by = None,
                LeaseState::Waiting { .. } | LeaseState::Granted { .. } => {}
            }
            return Ok(());
        }
        if self.leases.len() >= MOST_LEASES {
            return Err(format!("{MOST_LEASES} starts wait already"));
        }
        let state = LeaseState::waiting(now);
        self.leases.push(Lease { request: request.clone(), since: now, state });
        Ok(())
    }

    /// Has a granted lease wait again, at its place.
    fn release(&mut self, id: &str, now: Duration) {
        let Some(lease) = self.get(id).filter(|lease| lease.is_granted()).cloned() else { return };
        self.end(id, LeaseEnd::Withdrawn);
        self.leases.push(Lease { state: LeaseState::waiting(now), ..lease });
    }

    /// The last changes, oldest first.
    pub fn news(&self) -> impl Iterator<Item = &LeaseNews> {
        self.news.iter()
    }

    /// Ends a lease, or a request. Returns whether it was there.
    pub fn end(&mut self, id: &str, end: LeaseEnd) -> bool {
        let Some(at) = self.leases.iter().position(|lease| *lease.request.id == *id) else {
            return false;
        };
        let lease = self.leases.remove(at);
        if lease.is_granted() {
            for share in lease.shares() {
                if let Some(pool) = self.pools.get_mut(&share.pool) {
                    let own = pool.taken().min(share.need_bytes);
                    pool.base = pool.base.saturating_add(own);
                    pool.progress = pool.progress.saturating_sub(own);
                }
            }
            self.record(lease, LeaseChange::Ended(end));
        }
        true
    }

    /// The same by a call over the API.
    pub fn end_by(&mut self, id: &str, by: &Arc<str>) -> bool {
        if let Some(lease) = self.leases.iter_mut().find(|lease| *lease.request.id == *id) {
            lease.request.by = Some(Arc::clone(by));
        }
        self.end(id, LeaseEnd::Withdrawn)
    }

    /// Ends leases of processes that are known to have ended.
    pub fn end_dead(&mut self, has_ended: impl Fn(LeaseHolder) -> bool) {
        let dead = self.leases.iter().filter(|lease| lease.request.holder.is_some_and(&has_ended));
        let dead: Vec<Arc<str>> = dead.map(|lease| Arc::clone(&lease.request.id)).collect();
        for id in dead {
            self.end(&id, LeaseEnd::ProcessEnded);
        }
    }

    /// Ends what is over, and grants what can be granted.
    pub fn advance(&mut self, context: &LeaseContext<'_>) {
        self.advance_for(context, None);
    }

    fn advance_for(&mut self, context: &LeaseContext<'_>, caller: Option<Caller<'_>>) {
        // After a reboot the clock begins anew, and nothing is taken.
        let is_ahead = |at: Duration| at > context.now;
        if self.leases.iter().any(|lease| is_ahead(lease.since))
            || self.pools.values().any(|pool| is_ahead(pool.sampled))
        {
            self.leases.retain(|lease| !is_ahead(lease.since));
            self.pools.clear();
        }
        if self.leases.is_empty() {
            let is_old =
                |pool: &LeasedMemory| context.now.saturating_sub(pool.sampled) >= SEEN_WITHIN;
            self.pools.retain(|_, pool| !is_old(pool));
            return;
        }
        self.count_taken(context);
        let ended = self
            .leases
            .iter()
            .filter_map(|lease| Some((Arc::clone(&lease.request.id), self.over(lease, context)?)));
        for (id, why) in ended.collect::<Vec<_>>() {
            self.end(&id, why);
        }
        self.leases.sort_by_cached_key(Lease::order);
        let first = self.leases.iter().filter(|lease| lease.is_granted()).count();
        // Those before it that wait.
        let mut before: Vec<Lease> = Vec::new();
        for at in first..self.leases.len() {
            let Some(lease) = self.leases.get(at) else { break };
            let caller = caller.filter(|caller| *caller.id == *lease.request.id);
            if at - first >= MOST_CHECKED && caller.is_none() {
                continue;
            }
            let priority = lease.request.priority;
            let now = (context.now, context.utc_ms);
            let blocks = |other: &&Lease| other.blocks(priority, now);
            let result = match before.iter().find(blocks) {
                Some(before) => {
                    Err(vec![GateReason::Behind { who: Arc::clone(&before.request.who) }])
                }
                None => self.check(lease, context),
            };
            let takes = caller.is_some_and(|caller| caller.call == LeaseCall::Take);
            let may_take = takes || !lease.request.spans_nodes;
            let Some(lease) = self.leases.get_mut(at) else { break };
            match result {
                Ok(mut state) if may_take => {
                    // Its requester may have ended: it must send one more request.
                    if let LeaseState::Granted { renew_by, .. } = &mut state
                        && !takes
                    {
                        *renew_by = Some(context.now + SEEN_WITHIN);
                    }
                    lease.state = state;
                    let lease = lease.clone();
                    self.record(lease, LeaseChange::Granted);
                }
                result => {
                    lease.wait(result.err().as_deref());
                    before.push(lease.clone());
                }
            }
        }
    }

    fn record(&mut self, lease: Lease, change: LeaseChange) {
        let number = self.news.back().map_or(1, |last| last.number + 1);
        self.news.push_back(LeaseNews { number, lease, change });
        while self.news.len() > MOST_NEWS {
            self.news.pop_front();
        }
    }

    /// What is still reserved in each pool, in bytes, and for whom.
    pub fn reserved(&self) -> impl Iterator<Item = (&Arc<str>, u64, Vec<Arc<str>>)> {
        self.pools.iter().filter_map(|(pool, state)| {
            let rest = self.need(pool).saturating_sub(state.taken());
            let granted = self
                .leases
                .iter()
                .filter(|lease| lease.shares().iter().any(|share| share.pool == *pool));
            let by = granted.map(|lease| Arc::clone(&lease.request.who)).collect();
            Some((pool, rest, by)).filter(|_| rest > 0)
        })
    }

    /// What is granted of a pool, in bytes.
    fn need(&self, pool: &str) -> u64 {
        let shares = self.leases.iter().flat_map(Lease::shares);
        let own = shares.filter(|share| *share.pool == *pool).map(|share| share.need_bytes);
        own.fold(0, u64::saturating_add)
    }

    /// Counts what held memory has grown by as taken, as far as something is reserved.
    fn count_taken(&mut self, context: &LeaseContext<'_>) {
        let mut has_progress = false;
        for pool in &context.memory.pools {
            let Reading::Value(held) = pool.held() else { continue };
            let need = self.need(&pool.pool);
            let sampled = pool.read_at.unwrap_or(context.sampled);
            let first = LeasedMemory { base: held, held, sampled, progress: 0 };
            let state = self.pools.entry(Arc::clone(&pool.pool)).or_insert(first);
            state.sample((held, sampled), need);
            if state.taken() >= state.progress.saturating_add(PROGRESS) {
                state.progress = state.taken();
                has_progress = true;
            }
        }
        for lease in self.leases.iter_mut().filter(|_| has_progress) {
            if let LeaseState::Granted { progress, .. } = &mut lease.state {
                *progress = context.now;
            }
        }
    }

    /// Why a lease ends now, if it does.
    fn over(&self, lease: &Lease, context: &LeaseContext<'_>) -> Option<LeaseEnd> {
        if lease.request.holder.is_some_and(|holder| (context.has_ended)(holder)) {
            return Some(LeaseEnd::ProcessEnded);
        }
        let since = |then: Duration| context.now.saturating_sub(then);
        match &lease.state {
            LeaseState::Waiting { seen, .. } => {
                (since(*seen) >= SEEN_WITHIN).then_some(LeaseEnd::Withdrawn)
            }
            LeaseState::Granted { renew_by: Some(then), .. } if context.now >= *then => {
                Some(LeaseEnd::Withdrawn)
            }
            LeaseState::Granted { at, shares, progress, .. } => {
                let slack = if since(*progress) >= SETTLED_AFTER { ALL_PART } else { u64::MAX };
                let has_all = |share: &LeaseShare| {
                    let taken = self.pools.get(&share.pool).map_or(0, |state| state.taken());
                    let rest = self.need(&share.pool).saturating_sub(taken);
                    rest <= share.need_bytes / slack
                };
                if shares.iter().all(has_all) {
                    return Some(LeaseEnd::Taken);
                }
                (since(*at) >= lease.request.lasts).then_some(LeaseEnd::Expired)
            }
        }
    }

    /// Whether a request can be granted now: its state then, else why not.
    fn check(
        &self,
        lease: &Lease,
        context: &LeaseContext<'_>,
    ) -> Result<LeaseState, Vec<GateReason>> {
        let starting = self.leases.iter().filter(|own| own.is_starting(context.now));
        let mut who: Vec<Arc<str>> = starting.map(|own| Arc::clone(&own.request.who)).collect();
        if who.len() >= context.at_once.max(1) as usize {
            who.truncate(MOST_NAMED);
            return Err(vec![GateReason::StartsAtOnce { who }]);
        }
        let mut memory = context.memory.clone();
        let reserved: Vec<_> = self.reserved().collect();
        for (pool, bytes, _) in &reserved {
            memory.reserve(pool, *bytes);
        }
        // What was taken since an older sample.
        for pool in &context.memory.pools {
            let newest = self.pools.get(&pool.pool).map_or(0, |state| state.held);
            if let Reading::Value(held) = pool.held() {
                memory.reserve(&pool.pool, newest.saturating_sub(held));
            }
        }
        let need = &lease.request.need;
        let response = check_gate(need, &memory);
        if response.is_open {
            return Ok(LeaseState::Granted {
                at: context.now,
                shares: shares(need, context.memory),
                progress: context.now,
                renew_by: lease.request.spans_nodes.then_some(context.now + SEEN_WITHIN),
            });
        }
        let mut reasons = response.reasons;
        // It would be open without the others.
        if !reserved.is_empty() && check_gate(need, context.memory).is_open {
            let bytes = reserved.iter().map(|(_, bytes, _)| bytes).sum();
            let mut by: Vec<Arc<str>> = reserved.into_iter().flat_map(|(.., by)| by).collect();
            by.truncate(MOST_NAMED);
            reasons.push(GateReason::Reserved { bytes, by });
        }
        Err(reasons)
    }
}

/// What is missing in a pool, if that is the reason.
fn missing_of(reason: &GateReason, pool: &str) -> Option<LeaseShare> {
    match reason {
        GateReason::InPool { pool, reason } => missing_of(reason, pool),
        GateReason::TooLittle { need_bytes, available_bytes, .. } => Some(LeaseShare {
            pool: pool.into(),
            need_bytes: need_bytes.saturating_sub(*available_bytes),
        }),
        _ => None,
    }
}

impl Lease {
    /// Whether it is granted, and makes progress.
    pub(super) fn is_starting(&self, now: Duration) -> bool {
        match &self.state {
            LeaseState::Granted { progress, .. } => now.saturating_sub(*progress) < STUCK_AFTER,
            LeaseState::Waiting { .. } => false,
        }
    }

    /// Whether all nodes of its start have granted it, and its requester has sent a request since.
    pub(super) fn is_confirmed(&self, now: Duration) -> bool {
        match &self.state {
            LeaseState::Granted { renew_by: Some(then), .. } => {
                then.saturating_sub(now) > SEEN_WITHIN
            }
            LeaseState::Granted { renew_by: None, .. } => true,
            LeaseState::Waiting { .. } => false,
        }
    }

    /// Granted ones first, then by priority and arrival. Starts over several nodes have the same
    /// order on each of them, or two could wait for each other.
    fn order(&self) -> (bool, i64, i64, Option<Arc<str>>) {
        let LeaseRequest { id, priority, requested_ms, spans_nodes, .. } = &self.request;
        let id = spans_nodes.then(|| Arc::clone(id));
        (!self.is_granted(), -i64::from(*priority), *requested_ms, id)
    }

    /// Whether this one, which waits, holds back one of that priority behind it.
    pub(super) fn blocks(&self, behind: i32, (now, utc_ms): (Duration, i64)) -> bool {
        let is_new = now.saturating_sub(self.since) < PASSED_FOR;
        let is_passed = is_new && self.request.priority <= behind;
        !is_passed && (utc_ms / 60_000).rem_euclid(MINUTES) != 0
    }

    /// It waits, for these reasons; `None`: only for other nodes.
    fn wait(&mut self, why: Option<&[GateReason]>) {
        let LeaseState::Waiting { reasons, behind, missing, is_grantable, .. } = &mut self.state
        else {
            return;
        };
        *is_grantable = why.is_none();
        let why = why.unwrap_or_default();
        *missing = why.iter().filter_map(|reason| missing_of(reason, HOST_POOL)).collect();
        *reasons = why.iter().map(|reason| reason.to_string().into()).collect();
        let names = why.iter().flat_map(|reason| match reason {
            GateReason::Reserved { by, .. } => by.as_slice(),
            GateReason::StartsAtOnce { who } => who.as_slice(),
            GateReason::Behind { who } => std::slice::from_ref(who),
            _ => &[],
        });
        *behind = names.cloned().collect();
        behind.dedup();
    }
}
