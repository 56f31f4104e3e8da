//! Journal queries of the HTTP server.

use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwap;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::exports::{Page, PageRequest, PageStart, Queries, QueryError};
use crate::journal::{
    DecisionQuery, EventQuery, JournalReader, Order, OrderQuery, ReadError, TimelineItem,
    TimelineQuery,
};
use crate::model::{DecisionId, Moment, RecentEvent};
use crate::policy::explain::of_decision;
use crate::policy::happened;
use crate::policy::rule::RuleSet;

/// Entries of the journal that are read for what happened before a time.
const EARLIER: usize = 200;

/// Queries of the journal in this folder. Each opens it anew, since it may be created or replaced.
pub(super) fn queries(folder: &Path, rules: &Arc<ArcSwap<RuleSet>>) -> Queries {
    let [events_of, decisions_of, orders_of, happened_in, explained_in] =
        [(); 5].map(|()| folder.to_owned());
    let rules = Arc::clone(rules);
    Queries {
        events: Box::new(move |request| events(&events_of, request)),
        decisions: Box::new(move |request| decisions(&decisions_of, request)),
        orders: Box::new(move |request| orders(&orders_of, request)),
        happened: Box::new(move |until, most| happened_before(&happened_in, until, most)),
        explain: Box::new(move |decision| explain(&explained_in, &rules.load(), decision)),
    }
}

fn events(folder: &Path, request: PageRequest) -> Result<Page, QueryError> {
    let (order, before_id, after_id) = page_start(request.start);
    let query = EventQuery {
        after_id,
        before_id,
        since: request.since,
        until: request.until,
        kinds: request.kinds,
        order,
        limit: request.limit,
    };
    let page = open(folder)?.events(&query).map_err(failed)?;
    let items = page.rows.into_iter().map(|row| {
        let mut item = json(&row.event)?;
        if let Some(utc) = row.event.utc {
            insert(&mut item, "time", time(utc));
        }
        insert(&mut item, "id", row.id.into());
        insert(&mut item, "boot_id", row.boot_id.into());
        Ok(item)
    });
    Ok(Page { items: items.collect::<Result<_, _>>()?, more: page.next.is_some() })
}

fn decisions(folder: &Path, request: PageRequest) -> Result<Page, QueryError> {
    let (order, before_id, after_id) = page_start(request.start);
    let query = DecisionQuery {
        after_id,
        before_id,
        since: request.since,
        until: request.until,
        rule: request.rule,
        decision: None,
        order,
        limit: request.limit,
    };
    let page = open(folder)?.decisions(&query).map_err(failed)?;
    let items = page.rows.into_iter().map(|row| {
        let mut item = json(&row.decision)?;
        add_time(&mut item, "decision", row.decision.at);
        insert(&mut item, "outcome", json(&row.outcome)?);
        insert(&mut item, "aim_check", json(&row.aim_check)?);
        Ok(item)
    });
    Ok(Page { items: items.collect::<Result<_, _>>()?, more: page.next.is_some() })
}

fn orders(folder: &Path, request: PageRequest) -> Result<Page, QueryError> {
    let (order, before_id, after_id) = page_start(request.start);
    let query = OrderQuery {
        after_id,
        before_id,
        since: request.since,
        until: request.until,
        order,
        limit: request.limit,
    };
    let page = open(folder)?.orders(&query).map_err(failed)?;
    // A silence has an id of its own under the name of the journal's.
    let items = page.rows.into_iter().map(|row| {
        let mut item = serde_json::json!({ "id": row.id, "order": json(&row.command)? });
        add_time(&mut item, "operator", row.command.at);
        Ok(item)
    });
    Ok(Page { items: items.collect::<Result<_, _>>()?, more: page.next.is_some() })
}

/// What happened before that time, the newest first, at most so many entries.
fn happened_before(
    folder: &Path,
    until: Timestamp,
    most: usize,
) -> Result<Vec<RecentEvent>, QueryError> {
    let query =
        TimelineQuery { until: Some(until), limit: Some(EARLIER), ..TimelineQuery::default() };
    let mut found = Vec::new();
    let take = |at: Timestamp, item: TimelineItem| {
        let now = Moment { uptime: std::time::Duration::ZERO, utc: at };
        found.extend(match &item {
            TimelineItem::Event(stored) => happened::of_event(&stored.event, now),
            TimelineItem::Decision(decision) => Some(happened::of_decision(decision)),
            TimelineItem::Outcome { outcome, .. } => happened::of_outcome(outcome),
            TimelineItem::Alert(change) => happened::of_alert(change),
            TimelineItem::Note(_) | TimelineItem::Operator(_) | TimelineItem::Unreadable => None,
        });
        true
    };
    open(folder)?.timeline(&query, take).map_err(failed)?;
    Ok(happened::folded(found, most))
}

/// The explanation of a decision by the values that were journalled with it; without its tree if
/// its rule is not loaded any more.
fn explain(
    folder: &Path,
    rules: &RuleSet,
    decision: DecisionId,
) -> Result<Option<Value>, QueryError> {
    let number = i64::try_from(decision.0).unwrap_or(i64::MAX);
    let query = DecisionQuery {
        after_id: Some(number.saturating_sub(1)),
        order: Order::OldestFirst,
        limit: 1,
        ..DecisionQuery::default()
    };
    let page = open(folder)?.decisions(&query).map_err(failed)?;
    let Some(row) = page.rows.into_iter().find(|row| row.decision.id == decision) else {
        return Ok(None);
    };
    let made = &row.decision;
    let explained = of_decision(made, rules).map(|explained| explained.json(false));
    let mut tree = explained.unwrap_or_else(|| json!({ "rule": made.rule.to_string() }));
    insert(&mut tree, "time", time(made.at.utc));
    insert(&mut tree, "text", happened::of_decision(made).text.into());
    insert(&mut tree, "decision", json(made)?);
    insert(&mut tree, "outcome", json(&row.outcome)?);
    insert(&mut tree, "aim_check", json(&row.aim_check)?);
    Ok(Some(tree))
}

fn page_start(start: PageStart) -> (Order, Option<i64>, Option<i64>) {
    let id = |id: u64| Some(i64::try_from(id).unwrap_or(i64::MAX));
    match start {
        PageStart::Newest => (Order::NewestFirst, None, None),
        PageStart::Before(before) => (Order::NewestFirst, id(before), None),
        PageStart::After(after) => (Order::OldestFirst, None, id(after)),
    }
}

fn open(folder: &Path) -> Result<JournalReader, QueryError> {
    JournalReader::open(folder).map_err(|error| match error {
        ReadError::Missing(_) | ReadError::NoFile { .. } | ReadError::Failed { .. } => {
            QueryError::Unavailable(error.to_string())
        }
        ReadError::NotAJournal(_) | ReadError::Newer(_) => failed(error),
    })
}

fn failed(error: ReadError) -> QueryError {
    QueryError::Failed(format!("{:#}", anyhow::Error::new(error)))
}

fn json(value: &impl serde::Serialize) -> Result<Value, QueryError> {
    serde_json::to_value(value).map_err(|error| QueryError::Failed(error.to_string()))
}

/// The fields of every line of `history --json`.
fn add_time(item: &mut Value, kind: &str, at: Moment) {
    insert(item, "kind", kind.into());
    insert(item, "time", time(at.utc));
    insert(item, "uptime_seconds", at.uptime.as_secs_f64().into());
}

/// With three digits, so that texts sort like times.
fn time(utc: Timestamp) -> Value {
    format!("{utc:.3}").into()
}

fn insert(item: &mut Value, key: &str, value: Value) {
    if let Value::Object(fields) = item {
        fields.insert(key.to_owned(), value);
    }
}
