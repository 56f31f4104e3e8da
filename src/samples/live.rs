//! The samples of the running daemon, shared by the thread that takes them and by queries.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use promql_rules::did_you_mean;
use promql_rules::store::{LOOKBACK_MS, SeriesStore};

use super::history::StoreFiller;
use super::{
    History, INTERVAL, KEPT, KEPT_BYTES, ListRequest, MAX_SAMPLES, QueryFailure, QueryResult,
    QueryTime, SampleQuery, TargetLabels, TooManySamples, evaluate,
};
use crate::model::{METRICS, Reading, SeriesKey, metric};
use crate::policy::status::Status;

/// How often a query that waits for the past checks whether it was canceled.
const CHECK: Duration = Duration::from_millis(100);

/// What is known of the time before this process began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PastState {
    /// No query has needed it.
    Unread,
    /// A query needs it.
    Wanted,
    /// It is being read from the flight recorder.
    Reading,
    /// It was read, as far as the flight recorder has it.
    Read,
    /// It cannot be read, for that reason.
    Unavailable(String),
}

/// Samples of this node.
#[derive(Debug)]
pub struct LiveSamples {
    state: Mutex<LiveState>,
    changed: Condvar,
    target: TargetLabels,
    no_labels: TargetLabels,
}

#[derive(Debug)]
struct LiveState {
    history: History,
    past: PastState,
}

impl LiveSamples {
    /// Without samples. `past` is unread, or unavailable.
    pub fn new(target: TargetLabels, past: PastState) -> Self {
        let history = History::new(INTERVAL, KEPT, KEPT_BYTES);
        let state = Mutex::new(LiveState { history, past });
        Self { state, changed: Condvar::new(), target, no_labels: TargetLabels::default() }
    }

    fn state(&self) -> MutexGuard<'_, LiveState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a frame.
    pub fn take(&self, status: &Status) {
        if !status.values.is_empty() {
            let at_ms = status.at.utc.as_millisecond();
            self.state().history.push(at_ms, &status.series, &status.values);
        }
    }

    /// Waits for so long, or until a query needs the past. Returns whether one does; the past then
    /// counts as being read.
    pub fn wait(&self, duration: Duration) -> bool {
        let is_idle = |state: &mut LiveState| state.past != PastState::Wanted;
        let waited = self.changed.wait_timeout_while(self.state(), duration, is_idle);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let is_wanted = state.past == PastState::Wanted;
        if is_wanted {
            state.past = PastState::Reading;
        }
        is_wanted
    }

    /// The time of the oldest frame, in milliseconds since 1970.
    pub fn oldest_ms(&self) -> Option<i64> {
        self.state().history.oldest_ms()
    }

    /// The estimated memory of all frames, in bytes.
    pub fn size(&self) -> usize {
        self.state().history.size()
    }

    /// Adds the past, as far as it could be read.
    pub fn put_past(&self, older: History, failure: Option<String>) {
        let mut state = self.state();
        state.history.put_before(older);
        state.past = failure.map_or(PastState::Read, PastState::Unavailable);
        drop(state);
        self.changed.notify_all();
    }

    /// Evaluates a query. It may wait for the past for at most `patience`, and ends early once
    /// `is_canceled`. `now` has the newest values.
    ///
    /// # Errors
    /// The expression fails, a bound is passed, or the query was canceled.
    pub fn query(
        &self,
        query: &SampleQuery,
        now: &Status,
        patience: Duration,
        is_canceled: &AtomicBool,
    ) -> Result<QueryResult, QueryFailure> {
        let reads = query.expr.reads();
        let start_ms = query.when.first_ms();
        let reach_ms = reads.iter().map(|(_, reach_ms)| *reach_ms).max();
        let mut warnings = Vec::new();
        if let Some(reach_ms) = reach_ms {
            let needed_ms = start_ms.saturating_sub(reach_ms);
            warnings.extend(self.reach(needed_ms, now, patience, is_canceled));
        }
        let wanted: Vec<(Arc<str>, i64)> = reads
            .iter()
            .map(|(name, reach)| {
                (Arc::clone(name), start_ms.saturating_sub((*reach).max(LOOKBACK_MS)))
            })
            .collect();
        let target = if query.has_target_labels { &self.target } else { &self.no_labels };
        let store = self.store(&wanted, query.when, target, now)?;
        warnings.extend(wanted.iter().filter_map(|(name, _)| remark(name, now)));
        let found = evaluate(&query.expr, &store, query.when, is_canceled)?;
        Ok(query.limited(QueryResult { found, warnings }))
    }

    /// The samples that a query reads.
    fn store(
        &self,
        wanted: &[(Arc<str>, i64)],
        when: QueryTime,
        target: &TargetLabels,
        now: &Status,
    ) -> Result<SeriesStore, QueryFailure> {
        let mut filler = StoreFiller::new(wanted, when.last_ms(), target);
        let mut filled = self.state().history.fill(&mut filler);
        let now_ms = now.at.utc.as_millisecond();
        if filled.is_ok() && filler.last_ms().is_none_or(|last_ms| last_ms < now_ms) {
            filler.choose(&now.series, now_ms);
            filled = filler.frame(now_ms, &now.values);
        }
        match filled {
            Ok(()) => Ok(filler.into_store()),
            Err(TooManySamples) => Err(QueryFailure::Execution(format!(
                "the query reads more than {MAX_SAMPLES} samples: choose a shorter range, or \
                 read fewer metrics"
            ))),
        }
    }

    /// Waits for the past if an instant before the oldest frame is needed. Returns a remark if it
    /// is missing nevertheless.
    fn reach(
        &self,
        needed_ms: i64,
        now: &Status,
        patience: Duration,
        is_canceled: &AtomicBool,
    ) -> Option<String> {
        let mut state = self.state();
        let kept_ms = i64::try_from(KEPT.as_millis()).unwrap_or(i64::MAX);
        let reachable_ms = now.at.utc.as_millisecond().saturating_sub(kept_ms);
        if state.history.oldest_ms().is_some_and(|oldest_ms| oldest_ms <= needed_ms) {
            return None;
        }
        if state.past == PastState::Unread && needed_ms < now.started.utc.as_millisecond() {
            state.past = PastState::Wanted;
            self.changed.notify_all();
        }
        let mut left = patience;
        while matches!(state.past, PastState::Wanted | PastState::Reading)
            && !left.is_zero()
            && !is_canceled.load(Ordering::Relaxed)
        {
            let waited = self.changed.wait_timeout(state, CHECK.min(left));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            left = left.saturating_sub(CHECK);
        }
        let oldest = state.history.oldest_ms().and_then(|ms| Timestamp::from_millisecond(ms).ok());
        let oldest = oldest.map(|oldest| format!("{oldest:.0}")).unwrap_or_default();
        match &state.past {
            PastState::Wanted | PastState::Reading => Some(
                "the flight recorder is still being read: samples from before the start of \
                 umawarden are missing; repeat the query"
                    .to_owned(),
            ),
            PastState::Unavailable(why) => {
                Some(format!("samples before {oldest} are missing: {why}"))
            }
            PastState::Unread | PastState::Read if needed_ms < reachable_ms => Some(format!(
                "queries reach back to {oldest}: umawarden query --recording reads older samples \
                 from the flight recorder"
            )),
            PastState::Unread | PastState::Read => None,
        }
    }

    /// The series that have a value within the times of a list, and a remark if samples of that
    /// time are missing. A list with a begin may wait for the past for at most `patience`, and ends
    /// early once `is_canceled`. `now` has the newest values.
    ///
    /// # Errors
    /// It was canceled.
    pub fn series(
        &self,
        listed: &ListRequest,
        now: &Status,
        patience: Duration,
        is_canceled: &AtomicBool,
    ) -> Result<(BTreeSet<SeriesKey>, Option<String>), QueryFailure> {
        let ListRequest { from_ms, to_ms, .. } = *listed;
        // Without a begin a list is of what is in memory: no client waits for a disk unasked.
        let has_begin = from_ms != i64::MIN;
        let remark = has_begin.then(|| self.reach(from_ms, now, patience, is_canceled)).flatten();
        if is_canceled.load(Ordering::Relaxed) {
            let text = "the list was ended before it was done: choose a later start";
            return Err(QueryFailure::Timeout(text.to_owned()));
        }
        let mut found = self.state().history.series(from_ms, to_ms);
        let now_ms = now.at.utc.as_millisecond();
        if now_ms >= from_ms && now_ms <= to_ms {
            let with_value = now.series.iter().zip(&now.values);
            let with_value = with_value.filter(|(_, reading)| reading.sample().is_some());
            found.extend(with_value.map(|(key, _)| key.clone()));
        }
        if listed.has_target_labels {
            found = found.iter().map(|key| self.target.apply(key)).collect();
        }
        Ok((found, remark))
    }
}

/// Why a metric has no samples now, if it has none.
fn remark(name: &str, now: &Status) -> Option<String> {
    if metric(name).is_none() {
        let hint = did_you_mean(name, METRICS.iter().map(|metric| metric.name));
        let hint = hint.map(|hint| format!(": {hint}")).unwrap_or_default();
        return Some(format!("umawarden has no metric \"{name}\"{hint}"));
    }
    let readings = now.series.iter().zip(&now.values).filter(|(key, _)| *key.name == *name);
    let mut is_failed = false;
    let mut is_unsupported = false;
    for (_, reading) in readings {
        match reading {
            Reading::Value(_) if reading.is_end() => {}
            Reading::Value(_) => return None,
            Reading::Failed => is_failed = true,
            Reading::Unsupported => is_unsupported = true,
        }
    }
    match (is_failed, is_unsupported) {
        (true, _) => Some(format!("{name} is unknown now: its reading failed")),
        (false, true) => Some(format!("{name} is not available on this machine")),
        (false, false) => None,
    }
}
