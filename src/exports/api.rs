//! `/api/v1/…`: JSON in the envelope of Prometheus' API.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use hyper::{StatusCode, Uri, header};
use promql_rules::did_you_mean;
use serde_json::{Map, Value, json};

use super::page_request::{self, Filter};
use super::routes::Site;
use super::{Page, PageQuery, PageRequest, Queries, QueryError, VERSION};
use crate::model::{Reading, ShippedPart};
use crate::policy::status::{AlertStatus, RuleState, RuleStatus, Status};

/// Version, mode, sources, rules with their alerts, and series without a value.
pub(super) async fn status(State(site): State<Site>) -> Response {
    let status = site.served.status.load_full();
    let uptime = (site.served.uptime)().saturating_sub(status.started.uptime);
    let values = status.values.iter().filter(|reading| reading.sample().is_some());
    success(&json!({
        "version": VERSION,
        "mode": status.mode.name(),
        "enforce": *status.enforced,
        "started": status.started.utc.to_string(),
        "uptime_seconds": uptime.as_secs_f64(),
        "sampled": status.at.utc.to_string(),
        "series": values.count(),
        "unsupported": names_of(&status, Reading::Unsupported),
        "failed": names_of(&status, Reading::Failed),
        "sources": status.sources.iter().map(|source| json!({
            "source": source.source.name(),
            "up": source.up,
            "detail": source.detail,
            "took_seconds": source.took.as_secs_f64(),
        })).collect::<Vec<_>>(),
        "rules": status.rules.iter().map(rule_in_status).collect::<Vec<_>>(),
        "guard": status.guard.as_ref(),
        "shipped_rules_off": status.shipped_off.iter().map(|rule| json!({
            "rule": rule.id.to_string(),
            "part": rule.part.map(ShippedPart::name),
        })).collect::<Vec<_>>(),
        "reload_failure": site.served.reload_failure.load().as_ref().map(|failure| json!({
            "time": format!("{:.3}", failure.at),
            "error": failure.why,
        })),
        "web_reload_failure": site.served.access.failure().map(|failure| json!({
            "time": format!("{:.3}", failure.at),
            "error": failure.why,
        })),
    }))
}

fn names_of(status: &Status, absence: Reading<f64>) -> Vec<String> {
    let series = status.series.iter().zip(&status.values);
    series.filter(|(_, reading)| **reading == absence).map(|(key, _)| key.to_string()).collect()
}

fn rule_in_status(rule: &RuleStatus) -> Value {
    json!({
        "group": rule.rule.group,
        "alert": rule.rule.alert,
        "file": rule.file,
        "overridden": rule.overridden,
        "expr": rule.expr,
        "mode": rule.mode.name(),
        "state": rule.state.name(),
        "unknown": rule.unknown,
        "idle": rule.is_idle,
        "remedy": rule.remedy,
        "alerts": rule.alerts.iter().map(alert_json).collect::<Vec<_>>(),
    })
}

/// Rules in the form of Prometheus, for Grafana and others.
pub(super) async fn rules(State(site): State<Site>) -> Response {
    let status = site.served.status.load_full();
    let same_group = |a: &RuleStatus, b: &RuleStatus| a.rule.group == b.rule.group;
    let groups: Vec<Value> = status
        .rules
        .chunk_by(same_group)
        .map(|group| {
            let first = group.first();
            let rules = group.iter().map(|rule| rule_as_prometheus(rule, &status));
            json!({
                "name": first.map(|rule| &rule.rule.group),
                "file": first.map(|rule| &rule.file),
                "interval": first.map(|rule| rule.interval.as_secs_f64()),
                "limit": 0,
                "rules": rules.collect::<Vec<_>>(),
                "lastEvaluation": status.at.utc.to_string(),
            })
        })
        .collect();
    success(&json!({ "groups": groups }))
}

fn rule_as_prometheus(rule: &RuleStatus, status: &Status) -> Value {
    let mut shown = json!({
        "state": rule.state.name(),
        "name": rule.rule.alert,
        "query": rule.expr,
        "duration": rule.hold_for.as_secs_f64(),
        "keepFiringFor": rule.keep_firing_for.as_secs_f64(),
        "labels": texts(&rule.labels),
        "annotations": texts(&rule.annotations),
        "alerts": rule.alerts.iter().map(alert_json).collect::<Vec<_>>(),
        "health": if rule.state == RuleState::Unknown { "unknown" } else { "ok" },
        "lastEvaluation": status.at.utc.to_string(),
        "type": "alerting",
    });
    if !rule.unknown.is_empty() {
        shown["lastError"] = rule.unknown.join("; ").into();
    }
    shown
}

/// Pending and firing alerts, in the form of Prometheus.
pub(super) async fn alerts(State(site): State<Site>) -> Response {
    let status = site.served.status.load_full();
    let alerts: Vec<Value> =
        status.rules.iter().flat_map(|rule| &rule.alerts).map(alert_json).collect();
    success(&json!({ "alerts": alerts }))
}

fn texts<T: AsRef<str>>(pairs: &[(Arc<str>, T)]) -> Value {
    let pairs = pairs.iter().map(|(name, text)| (name.to_string(), json!(text.as_ref())));
    Value::Object(pairs.collect::<Map<_, _>>())
}

fn alert_json(alert: &AlertStatus) -> Value {
    json!({
        "labels": texts(&alert.labels),
        "annotations": texts(&alert.annotations),
        "state": alert.state.name(),
        "activeAt": alert.active_since.utc.to_string(),
        "value": number(alert.value),
    })
}

/// As text, like in Prometheus: JSON has no infinities.
fn number(value: f64) -> String {
    match value {
        f64::INFINITY => "+Inf".to_owned(),
        f64::NEG_INFINITY => "-Inf".to_owned(),
        other => other.to_string(),
    }
}

/// Kernel events from the journal.
pub(super) async fn events(State(site): State<Site>, uri: Uri) -> Response {
    list(&site, &uri, Filter::Kind, "events", |queries| &queries.events).await
}

/// Decisions with their outcomes from the journal.
pub(super) async fn decisions(State(site): State<Site>, uri: Uri) -> Response {
    list(&site, &uri, Filter::Rule, "decisions", |queries| &queries.decisions).await
}

/// Orders of people from the journal.
pub(super) async fn orders(State(site): State<Site>, uri: Uri) -> Response {
    list(&site, &uri, Filter::None, "orders", |queries| &queries.orders).await
}

async fn list(
    site: &Site,
    uri: &Uri,
    filter: Filter,
    name: &'static str,
    which: fn(&Queries) -> &PageQuery,
) -> Response {
    let request = match page_request::parse(uri, filter, site.served.status.load().at.utc) {
        Ok(request) => request,
        Err(problem) => return error(StatusCode::BAD_REQUEST, "bad_data", &problem),
    };
    let rule = request.rule.clone();
    match read_journal(site, which, request, site.served.limits.query).await {
        Ok(page) if page.items.is_empty() => match unknown_rule(site, which, rule).await {
            Some(problem) => error(StatusCode::BAD_REQUEST, "bad_data", &problem),
            None => success(&json!({ name: page.items, "more": page.more })),
        },
        Ok(page) => success(&json!({ name: page.items, "more": page.more })),
        Err(problem @ QueryError::Unavailable(_)) => {
            error(StatusCode::SERVICE_UNAVAILABLE, "unavailable", &problem.to_string())
        }
        Err(problem) => error(StatusCode::INTERNAL_SERVER_ERROR, "internal", &problem.to_string()),
    }
}

/// The error for a rule that is neither loaded nor in the journal. Otherwise a typing mistake would
/// look like a quiet rule.
async fn unknown_rule(
    site: &Site,
    which: fn(&Queries) -> &PageQuery,
    rule: Option<String>,
) -> Option<String> {
    let rule = rule?;
    let status = site.served.status.load_full();
    let names: Vec<String> = status
        .rules
        .iter()
        .flat_map(|loaded| [loaded.rule.to_string(), loaded.rule.alert.to_string()])
        .collect();
    if names.contains(&rule) {
        return None;
    }
    let ever = PageRequest { rule: Some(rule.clone()), ..PageRequest::newest(1) };
    let page = read_journal(site, which, ever, site.served.limits.query).await.ok()?;
    page.items.is_empty().then(|| {
        let hint = did_you_mean(&rule, names.iter().map(String::as_str));
        let hint = hint.unwrap_or_else(|| "/api/v1/rules lists the loaded rules".to_owned());
        format!("parameter \"rule\": {rule:?} is neither loaded nor in the journal: {hint}")
    })
}

/// Queries the journal on a thread of its own. A query that misses its deadline keeps its slot
/// until it ends.
///
/// # Errors
/// The journal's error, or the deadline has passed.
pub(super) async fn read_journal(
    site: &Site,
    which: fn(&Queries) -> &PageQuery,
    request: PageRequest,
    deadline: Duration,
) -> Result<Page, QueryError> {
    query_journal(site, deadline, move |queries| which(queries)(request)).await
}

/// As [`read_journal`], with any query.
///
/// # Errors
/// The journal's error, or the deadline has passed.
pub(super) async fn query_journal<T: Send + 'static>(
    site: &Site,
    deadline: Duration,
    query: impl FnOnce(&Queries) -> Result<T, QueryError> + Send + 'static,
) -> Result<T, QueryError> {
    let late =
        || QueryError::Unavailable(format!("no response within {} s", deadline.as_secs_f64()));
    let queries = Arc::clone(&site.queries);
    let served = Arc::clone(&site.served);
    let answer = async move {
        let turn = queries.acquire_owned().await;
        tokio::task::spawn_blocking(move || {
            let _turn = turn;
            query(&served.queries)
        })
        .await
    };
    match tokio::time::timeout(deadline, answer).await {
        Ok(Ok(page)) => page,
        Ok(Err(failure)) => Err(QueryError::Failed(failure.to_string())),
        Err(_) => Err(late()),
    }
}

/// A success in the envelope.
pub(super) fn success(data: &Value) -> Response {
    answer(StatusCode::OK, &json!({ "status": "success", "data": data }))
}

/// An error in the envelope.
pub(super) fn error(status: StatusCode, kind: &str, problem: &str) -> Response {
    answer(status, &json!({ "status": "error", "errorType": kind, "error": problem }))
}

pub(super) fn answer(status: StatusCode, body: &Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}
