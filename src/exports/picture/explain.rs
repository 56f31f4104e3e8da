//! `GET /api/v1/explain`: why a rule decides as it does, as a tree.

use std::time::Duration;

use axum::extract::{Query, State};
use axum::response::Response;
use hyper::{StatusCode, Uri};
use promql_rules::did_you_mean;
use serde_json::Value;
use tokio::sync::oneshot;

use super::super::api::{error, query_journal, success};
use super::super::routes::Site;
use super::super::{ExplainRequest, QueryError};
use crate::model::{DecisionId, RuleId};
use crate::policy::status::Status;

/// The loop explains at most so often on average, and so many times in a row.
const EVERY: Duration = Duration::from_millis(200);
const IN_A_ROW: u32 = 5;

/// How long a request waits for its turn and for the loop.
const TAKES: Duration = Duration::from_secs(5);

const EXAMPLE: &str = "write it like /api/v1/explain?decision=17 or ?rule=PageCacheEatsReserve";

/// What is to be explained.
enum ExplainTarget {
    Decision(DecisionId),
    Rule(String),
}

/// `decision=N`: by the values that were journalled with it; `rule=NAME`: by the present ones.
pub(in crate::exports) async fn explain(State(site): State<Site>, uri: Uri) -> Response {
    match wanted(&uri) {
        Err(text) => error(StatusCode::BAD_REQUEST, "bad_data", &text),
        Ok(ExplainTarget::Decision(decision)) => {
            let limit = site.served.limits.query;
            let read = query_journal(&site, limit, move |queries| (queries.explain)(decision));
            match read.await {
                Ok(Some(tree)) => success(&tree),
                Ok(None) => {
                    let text = format!("decision {decision} is not in the journal");
                    error(StatusCode::NOT_FOUND, "not_found", &text)
                }
                Err(problem @ QueryError::Unavailable(_)) => unavailable(&problem.to_string()),
                Err(problem) => {
                    let text = problem.to_string();
                    error(StatusCode::INTERNAL_SERVER_ERROR, "internal", &text)
                }
            }
        }
        Ok(ExplainTarget::Rule(name)) => {
            let status = site.served.status.load_full();
            match rule(&status, &name) {
                Err(text) => error(StatusCode::NOT_FOUND, "not_found", &text),
                Ok(rule) => now(&site, rule).await,
            }
        }
    }
}

/// The explanation by the present values.
async fn now(site: &Site, rule: RuleId) -> Response {
    match tokio::time::timeout(TAKES, by_the_loop(site, rule)).await {
        Ok(Some(tree)) => success(&tree),
        Ok(None) => unavailable("the rule was not evaluated, or umawarden is ending"),
        Err(_) => unavailable("no explanation within 5 s; try again"),
    }
}

fn unavailable(text: &str) -> Response {
    error(StatusCode::SERVICE_UNAVAILABLE, "unavailable", text)
}

/// Has the loop explain a rule. One request at a time, so that clients cannot occupy it.
async fn by_the_loop(site: &Site, rule: RuleId) -> Option<Value> {
    let mut spent = site.pictures.explaining.lock().await;
    let now = (site.served.uptime)();
    *spent = spend(*spent, now);
    if let Some(early) = spent.checked_sub(now) {
        tokio::time::sleep(early).await;
    }
    let (answer, answered) = oneshot::channel();
    site.served.explain.send(ExplainRequest { rule, answer }).await.ok()?;
    answered.await.ok().flatten()
}

/// Until when the time of the loop is spent after one more explanation.
fn spend(spent: Duration, now: Duration) -> Duration {
    spent.max(now.saturating_sub(EVERY * IN_A_ROW)) + EVERY
}

fn wanted(uri: &Uri) -> Result<ExplainTarget, String> {
    let Query(pairs) = Query::<Vec<(String, String)>>::try_from_uri(uri)
        .map_err(|error| format!("cannot parse the query: {error}; {EXAMPLE}"))?;
    match pairs.as_slice() {
        [(name, value)] if name == "decision" => {
            let number = value.parse().map_err(|_| format!("decisions have numbers; {EXAMPLE}"));
            number.map(|number| ExplainTarget::Decision(DecisionId(number)))
        }
        [(name, value)] if name == "rule" => Ok(ExplainTarget::Rule(value.clone())),
        _ => Err(format!("give one parameter; {EXAMPLE}")),
    }
}

/// The loaded rule of that name: `group/alert`, or the alert's name alone.
fn rule(status: &Status, name: &str) -> Result<RuleId, String> {
    let all = || status.rules.iter().map(|status| &status.rule);
    let mut meant = all().filter(|rule| *rule.alert == *name || rule.to_string() == name);
    match (meant.next(), meant.next()) {
        (Some(rule), None) => Ok(rule.clone()),
        (Some(_), Some(_)) => Err(format!("{name:?} is ambiguous: give group/alert")),
        (None, _) => {
            let hint = did_you_mean(name, all().map(|rule| &*rule.alert));
            let hint = hint.unwrap_or_else(|| "/api/v1/rules lists the loaded rules".to_owned());
            Err(format!("no rule {name:?} is loaded: {hint}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_person_does_not_wait_and_a_client_in_a_loop_does() {
        let now = Duration::from_secs(100);
        let mut spent = Duration::ZERO;
        let mut waits = Vec::new();
        for _ in 0..7 {
            spent = spend(spent, now);
            waits.push(spent.saturating_sub(now).as_millis());
        }
        assert_eq!(waits, [0, 0, 0, 0, 0, 200, 400]);
    }
}
