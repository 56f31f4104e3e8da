//! Who may take memory: starts that reserve it, one after the other.
//!
//! A gate that only looks lets two starts in at the same moment, and the transients of both add up.
//! A lease reserves memory until its engine has it. It is granted in the order of priority and
//! arrival, and while fewer than `at_once` others are starting.
//!
//! Held memory is neither free nor page cache; what is mapped of a checkpoint is not taken yet. All
//! growth of held memory counts as taken by the leases together: who has taken what cannot be seen.
//! A lease that ends may have taken all of its memory, so that the others keep the rest reserved.

mod node;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::gate::{check_gate, shares};
use crate::model::{
    GateReason, Lease, LeaseChange, LeaseEnd, LeaseHolder, LeaseNews, LeaseRequest, LeaseShare,
    LeaseState, MemoryPools, Reading,
};
pub(super) use node::Leases;

/// Who has not requested for so long has gone.
const SEEN_WITHIN: Duration = Duration::from_secs(10);

/// A start that has taken nothing for so long is stuck, and lets others begin. Its memory stays
/// reserved. Longer than the pauses of a load, shorter than a person waits.
const STUCK_AFTER: Duration = Duration::from_secs(60);

/// Less than this is noise, and no progress.
const PROGRESS: u64 = 64 << 20;

/// All but this part is all, once nothing more is taken: figures of needs are rounded.
const ALL_PART: u64 = 16;

/// Nothing more is taken when there was no progress for so long.
const SETTLED_AFTER: Duration = Duration::from_secs(10);

/// Others pass a request that does not fit for so long; then they wait behind it.
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
    /// By pool.
    #[serde(default)]
    pools: BTreeMap<Arc<str>, Taken>,
    /// The last changes, oldest first.
    #[serde(default)]
    news: VecDeque<LeaseNews>,
}

/// What the leases together have taken of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Taken {
    /// Held memory at the last time, in bytes.
    held: u64,
    /// What they have taken of what they reserve, in bytes.
    taken: u64,
    /// What was taken since the last progress, in bytes.
    small: u64,
}

/// What time it is, what memory there is, and who lives.
pub struct LeaseContext<'c> {
    /// On the uptime clock.
    pub now: Duration,
    /// The memory.
    pub memory: &'c MemoryPools,
    /// How many may start at the same time.
    pub at_once: u32,
    /// Whether a process is known to have ended.
    pub has_ended: &'c dyn Fn(LeaseHolder) -> bool,
    /// Whose reasons the caller wants.
    pub id: Option<&'c str>,
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

    /// Takes a request, or its repetition.
    ///
    /// # Errors
    /// There are too many.
    pub fn request(&mut self, now: Duration, request: LeaseRequest) -> Result<(), String> {
        if let Some(known) = self.leases.iter_mut().find(|own| own.request.id == request.id) {
            if let LeaseState::Waiting { seen, .. } = &mut known.state
                && now.saturating_sub(*seen) >= NOTED_EVERY
            {
                *seen = now;
                known.request = request;
            }
            return Ok(());
        }
        if self.leases.len() >= MOST_LEASES {
            return Err(format!("{MOST_LEASES} starts wait already"));
        }
        let state = LeaseState::Waiting { seen: now, reasons: Vec::new(), behind: Vec::new() };
        self.leases.push(Lease { request, since: now, state });
        Ok(())
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
                    pool.taken = pool.taken.saturating_sub(share.need_bytes);
                }
            }
            self.record(lease, LeaseChange::Ended(end));
        }
        true
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
        // After a reboot the clock begins anew, and nothing is taken.
        if self.leases.iter().any(|lease| lease.since > context.now) {
            self.leases.retain(|lease| lease.since <= context.now);
            self.pools.clear();
        }
        self.count_taken(context);
        let ended = self
            .leases
            .iter()
            .filter_map(|lease| Some((Arc::clone(&lease.request.id), self.over(lease, context)?)));
        for (id, why) in ended.collect::<Vec<_>>() {
            self.end(&id, why);
        }
        // Granted ones first; the order of arrival stays.
        self.leases.sort_by_key(|lease| (!lease.is_granted(), -i64::from(lease.request.priority)));
        let first = self.leases.iter().filter(|lease| lease.is_granted()).count();
        let mut passed: Option<Arc<str>> = None;
        for at in first..self.leases.len() {
            let Some(lease) = self.leases.get(at) else { break };
            let is_wanted = context.id == Some(&*lease.request.id);
            if at - first >= MOST_CHECKED && !is_wanted {
                continue;
            }
            let result = match &passed {
                Some(before) => Err(vec![GateReason::Behind { who: Arc::clone(before) }]),
                None => self.check(lease, context),
            };
            let is_long = context.now.saturating_sub(lease.since) >= PASSED_FOR;
            let who = Arc::clone(&lease.request.who);
            let Some(lease) = self.leases.get_mut(at) else { break };
            match result {
                Ok(state) => {
                    lease.state = state;
                    let lease = lease.clone();
                    self.record(lease, LeaseChange::Granted);
                }
                Err(reasons) => {
                    lease.wait(&reasons);
                    passed = passed.or(is_long.then_some(who));
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
            let rest = self.need(pool).saturating_sub(state.taken);
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

    /// Counts the growth of held memory as taken, as far as something is reserved.
    fn count_taken(&mut self, context: &LeaseContext<'_>) {
        let mut has_progress = false;
        for pool in &context.memory.pools {
            let Reading::Value(held) = pool.held() else { continue };
            let need = self.need(&pool.pool);
            let first = Taken { held, ..Taken::default() };
            let state = self.pools.entry(Arc::clone(&pool.pool)).or_insert(first);
            let grown = held.saturating_sub(state.held).min(need.saturating_sub(state.taken));
            state.held = held;
            state.taken = state.taken.saturating_add(grown);
            state.small = state.small.saturating_add(grown);
            if state.small >= PROGRESS {
                state.small = 0;
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
            LeaseState::Granted { at, shares, progress } => {
                let slack = if since(*progress) >= SETTLED_AFTER { ALL_PART } else { u64::MAX };
                let has_all = |share: &LeaseShare| {
                    let taken = self.pools.get(&share.pool).map_or(0, |state| state.taken);
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
        let need = &lease.request.need;
        let response = check_gate(need, &memory);
        if response.is_open {
            return Ok(LeaseState::Granted {
                at: context.now,
                shares: shares(need, context.memory),
                progress: context.now,
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

impl Lease {
    /// Whether it is granted, and makes progress.
    pub(super) fn is_starting(&self, now: Duration) -> bool {
        match &self.state {
            LeaseState::Granted { progress, .. } => now.saturating_sub(*progress) < STUCK_AFTER,
            LeaseState::Waiting { .. } => false,
        }
    }

    fn wait(&mut self, why: &[GateReason]) {
        let LeaseState::Waiting { reasons, behind, .. } = &mut self.state else { return };
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
