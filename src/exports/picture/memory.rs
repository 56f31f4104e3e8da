//! `GET /api/v1/memory`: the memory of the last hour, and what happened in it.

use std::sync::PoisonError;
use std::time::Duration;

use axum::extract::{Query, State};
use axum::response::Response;
use hyper::{StatusCode, Uri};
use serde_json::json;

use super::super::api::{error, query_journal, success};
use super::super::routes::Site;
use super::EARLIER_TAKES;
use crate::model::{MOST_PAST_HAPPENED, MemoryHistory, Moment, duration};
use crate::policy::happened;
use crate::policy::memory_ring::{POINTS, STEP_SECONDS};

/// All points, by part, and what happened. `since` is how far back: `10m`; by default, and at most,
/// an hour.
pub(in crate::exports) async fn memory(State(site): State<Site>, uri: Uri) -> Response {
    let since = match since(&uri) {
        Ok(since) => since,
        Err(text) => return error(StatusCode::BAD_REQUEST, "bad_data", &text),
    };
    let status = site.served.status.load_full();
    let uptime = (site.served.uptime)();
    let age = uptime.saturating_sub(status.at.uptime);
    let now = Moment { uptime, utc: status.at.utc.checked_add(age).unwrap_or(status.at.utc) };
    let history = {
        let ring = site.served.memory.lock().unwrap_or_else(PoisonError::into_inner);
        ring.history(now, since)
    };
    let read = query_journal(&site, EARLIER_TAKES, move |queries| {
        (queries.happened)(now.utc, MOST_PAST_HAPPENED)
    });
    // Without a journal there is what this run still knows.
    let journalled = read.await.unwrap_or_default();
    let first = now.utc.checked_sub(since).unwrap_or(now.utc);
    let happened = happened::past(&status.happened, journalled, first);
    success(&json!(MemoryHistory { happened, ..history }))
}

fn since(uri: &Uri) -> Result<Duration, String> {
    const EXAMPLE: &str = "write it like /api/v1/memory?since=10m";
    let all = Duration::from_secs(STEP_SECONDS * (POINTS as u64 + 1));
    let Query(pairs) = Query::<Vec<(String, String)>>::try_from_uri(uri)
        .map_err(|error| format!("cannot parse the query: {error}; {EXAMPLE}"))?;
    match pairs.as_slice() {
        [] => Ok(all),
        [(name, value)] if name == "since" => {
            let since = duration(value).map_err(|error| format!("parameter \"since\": {error}"))?;
            Ok(since.min(all))
        }
        [(name, _)] => Err(format!("unknown parameter {name:?}; {EXAMPLE}")),
        [..] => Err(format!("only \"since\" may be given, once; {EXAMPLE}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_past_is_an_hour_at_most() {
        let of = |query: &str| since(&format!("/api/v1/memory{query}").parse().unwrap());
        assert_eq!(of("?since=10m"), Ok(Duration::from_secs(600)));
        assert_eq!(of("?since=1000d"), of(""));
        for nonsense in ["?since=", "?since=x", "?since=1m&since=2m", "?until=1m", "?since=%ff"] {
            assert!(of(nonsense).is_err(), "{nonsense}");
        }
    }
}
