//! Journal queries of the HTTP server.

use std::path::Path;

use jiff::Timestamp;
use serde_json::Value;

use crate::exports::{Page, PageRequest, Queries, QueryError, Start};
use crate::journal::{DecisionQuery, EventQuery, JournalReader, Order, OrderQuery, ReadError};
use crate::model::Moment;

/// Queries of the journal in this folder. Each opens it anew, since it may be created or replaced.
pub(super) fn queries(folder: &Path) -> Queries {
    let [events_of, decisions_of, orders_of] = [(); 3].map(|()| folder.to_owned());
    Queries {
        events: Box::new(move |request| events(&events_of, request)),
        decisions: Box::new(move |request| decisions(&decisions_of, request)),
        orders: Box::new(move |request| orders(&orders_of, request)),
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

fn page_start(start: Start) -> (Order, Option<i64>, Option<i64>) {
    let id = |id: u64| Some(i64::try_from(id).unwrap_or(i64::MAX));
    match start {
        Start::Newest => (Order::NewestFirst, None, None),
        Start::Before(before) => (Order::NewestFirst, id(before), None),
        Start::After(after) => (Order::OldestFirst, None, id(after)),
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
