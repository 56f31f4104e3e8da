//! Explains from the journal: decisions, and the values at their time.

use std::path::Path;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use promql_rules::TracedValue;

use super::{DECISIONS, ReportSource, RuleReport, STALE_AFTER, StateSince};
use crate::config::reader::load_rules;
use crate::config::settings::{RuleSource, limits};
use crate::journal::{
    DecisionQuery, JournalReader, Order, ReadError, StoredAct, StoredDecision, TimelineItem,
    TimelineQuery,
};
use crate::model::{
    AlertChange, AlertState, DecisionId, DecisionRecord, EarlierRuns, HoldReason, Moment,
    Observation, RuleId,
};
use crate::policy::Policy;
use crate::policy::explain::sample;
use crate::policy::guard::{PastMoment, on_this_boots_clock};
use crate::policy::rule::RuleSet;
use crate::policy::status::RuleState;

/// Alert changes that are searched for the last one.
const CHANGES: usize = 1;

/// The largest adjustment of the wall clock within a boot.
const CLOCKS_DRIFT: SignedDuration = SignedDuration::from_secs(300);

/// The most series of a decision in the journal.
const MOST_EVIDENCE: usize = 24;

/// The journal, or why it cannot be used.
pub(super) struct OpenedJournal(Result<JournalReader, Option<ReadError>>);

/// The rules that explain entries of the journal.
pub(super) fn rules(source: &RuleSource) -> anyhow::Result<RuleSet> {
    let (rules, _remarks) = load_rules(source, limits::DEFAULT_INTERVAL)?;
    Ok(rules)
}

impl OpenedJournal {
    /// No journal.
    pub(super) fn none() -> Self {
        Self(Err(None))
    }

    pub(super) fn open(dir: &Path) -> Self {
        Self(JournalReader::open(dir).map_err(Some))
    }

    /// Why the explanation has nothing from it.
    pub(super) fn remark(&self) -> Option<String> {
        match &self.0 {
            Ok(_) | Err(None) | Err(Some(ReadError::Missing(_))) => None,
            Err(Some(error)) => Some(format!("without the journal: {error}")),
        }
    }

    /// Acts before a decision, for the guard rails. Unreadable ones are omitted.
    pub(super) fn past(&self, at: Moment, before: DecisionId) -> EarlierRuns {
        let acts = self.0.as_ref().ok().and_then(|reader| reader.acts(Some(before)).ok());
        let acts = acts.unwrap_or_default();
        let moment =
            |act: &StoredAct| PastMoment { at: act.at, is_this_boot: is_same_boot(act.at, at) };
        let moments: Vec<PastMoment> = acts.iter().map(moment).collect();
        let uptimes = on_this_boots_clock(at, &moments);
        let acts = acts.into_iter().zip(uptimes).map(|(act, uptime)| act.on_uptime_clock(uptime));
        EarlierRuns { acts: acts.collect(), ..EarlierRuns::default() }
    }

    /// The rule's newest decisions until then, in their latest state, the newest last.
    pub(super) fn decisions(
        &self,
        rule: &RuleId,
        until: Timestamp,
        most: usize,
    ) -> Vec<StoredDecision> {
        let query = DecisionQuery {
            rule: Some(rule.to_string()),
            // Including that millisecond.
            until: until.checked_add(Duration::from_millis(1)).ok(),
            order: Order::NewestFirst,
            limit: most,
            ..DecisionQuery::default()
        };
        let mut rows = self.rows(&query);
        rows.reverse();
        rows
    }

    pub(super) fn decision(&self, number: i64) -> Option<DecisionRecord> {
        let query = DecisionQuery {
            after_id: number.checked_sub(1),
            before_id: number.checked_add(1),
            limit: 1,
            ..DecisionQuery::default()
        };
        self.rows(&query).into_iter().next().map(|stored| stored.decision)
    }

    fn rows(&self, query: &DecisionQuery) -> Vec<StoredDecision> {
        let page = self.0.as_ref().ok().and_then(|reader| reader.decisions(query).ok());
        page.map(|page| page.rows).unwrap_or_default()
    }

    /// The last change of an alert of the rule until then.
    pub(super) fn last_change(&self, rule: &RuleId, until: Timestamp) -> Option<AlertChange> {
        let query = TimelineQuery {
            until: until.checked_add(Duration::from_millis(1)).ok(),
            kinds: vec!["alert".to_owned()],
            rule: Some(rule.to_string()),
            limit: Some(CHANGES),
            ..TimelineQuery::default()
        };
        let mut last = None;
        let reader = self.0.as_ref().ok()?;
        let read = reader.timeline(&query, |_, item| {
            if let TimelineItem::Alert(change) = item {
                last = Some(change);
            }
            true
        });
        read.ok().and(last)
    }

    /// Whether it has entries well after the one time and until the other.
    pub(super) fn has_entries_between(&self, after: Timestamp, until: Timestamp) -> bool {
        let query = TimelineQuery {
            since: after.checked_add(STALE_AFTER).ok(),
            until: Some(until),
            limit: Some(1),
            ..TimelineQuery::default()
        };
        let mut has_any = false;
        let read = self.0.as_ref().ok().map(|reader| {
            reader.timeline(&query, |_, _| {
                has_any = true;
                true
            })
        });
        has_any || read.is_some_and(|read| read.is_err())
    }

    /// An error if neither the journal nor a recording can be used.
    pub(super) fn readable(&self, has_recording: bool) -> anyhow::Result<()> {
        let recording = if has_recording {
            "nothing is recorded of that time"
        } else {
            "there is no recording"
        };
        match &self.0 {
            Ok(_) => Ok(()),
            Err(None) => anyhow::bail!("nothing is known: {recording}"),
            Err(Some(error)) => anyhow::bail!(
                "nothing is known: {recording}, and {error}; give the daemon's directory with \
                 --storage.path (under systemd mostly /var/lib/umawarden)"
            ),
        }
    }

    /// Explains the rule's last decision until then. `begins` says why there is no more.
    pub(super) fn explain(
        &self,
        rules: &RuleSet,
        rule: &RuleId,
        until: Timestamp,
        begins: &str,
    ) -> anyhow::Result<RuleReport> {
        let may_lack = self.0.as_ref().is_ok_and(JournalReader::may_lack_newest);
        let decisions = self.decisions(rule, until, DECISIONS);
        let Some(last) = decisions.last().map(|record| &record.decision) else {
            anyhow::bail!(
                "nothing is known of {rule} at {until:.3}: {begins}, and the journal holds no \
                 decision of it up to then"
            );
        };
        let at = last.at;
        let mut policy = Policy::rehearsing(at, last.mode, rules);
        policy.resume(at, &self.past(at, last.id));
        // Nothing is decided here: the journal has the decision and its result.
        let seen: Vec<Observation> = last.because.iter().filter_map(sample).collect();
        policy.step(at, &seen);
        let is_cut = last.because.len() >= MOST_EVIDENCE;
        let mut explanation = policy
            .explain(rule, at, false)
            .ok_or_else(|| anyhow::anyhow!("rule {rule} cannot be evaluated"))?;
        let changed = self.last_change(rule, at.utc);
        let status = &mut explanation.rule;
        status.mode = last.mode;
        // A rule that decides is firing, or was when its state was last known.
        status.state = match changed.as_ref().map(|change| change.to) {
            _ if last.hold_reason() == Some(HoldReason::Unknown) => RuleState::Unknown,
            Some(AlertState::Inactive) => RuleState::Inactive,
            Some(AlertState::Pending) => RuleState::Pending,
            Some(AlertState::Firing) | None => RuleState::Firing,
        };
        if let (RuleState::Unknown, TracedValue::Unknown(reasons)) =
            (status.state, &explanation.condition.value)
        {
            status.unknown.clone_from(reasons);
        }
        let mut remarks = vec![format!(
            "{begins}: this is of {:.3}, when the rule decided last, and its text is that of now",
            at.utc
        )];
        if is_cut {
            let most =
                format!("the journal has only the first {MOST_EVIDENCE} series of a decision");
            remarks.push(format!("{most}: others are missing here"));
        }
        if may_lack {
            remarks
                .push("the journal was not closed: its newest entries may be missing".to_owned());
        }
        Ok(RuleReport {
            at: at.utc,
            source: ReportSource::Journal,
            explanation,
            since: changed.map(|change| StateSince::AtLeast(change.at.utc)),
            decisions,
            remarks,
        })
    }
}

/// Whether both clocks agree on the time between the two.
fn is_same_boot(before: Moment, after: Moment) -> bool {
    let Some(uptime) = after.uptime.checked_sub(before.uptime) else { return false };
    let utc = after.utc.duration_since(before.utc);
    let uptime = SignedDuration::try_from(uptime).unwrap_or(SignedDuration::MAX);
    utc.saturating_sub(uptime).abs() < CLOCKS_DRIFT
}
