//! `GET /api/v1/gate`: whether the node can take an engine now. Read-only.

use axum::extract::{Query, State};
use axum::response::Response;
use hyper::{StatusCode, Uri};
use serde_json::{Value, json};

use super::api::{answer, error};
use super::routes::Site;
use crate::model::{GateReason, GateRequest, GateResponse, MemoryPools, pool_names, size_bytes};
use crate::policy::gate::check_gate;
use crate::policy::status::Status;

/// 200 if it can, 503 with the reasons if it cannot, 400 for an invalid query.
pub(super) async fn gate(State(site): State<Site>, uri: Uri) -> Response {
    let request = match pairs(&uri).and_then(|pairs| request(&pairs)) {
        Ok(request) => request,
        Err(text) => return error(StatusCode::BAD_REQUEST, "bad_data", &text),
    };
    let status = site.served.status.load_full();
    let memory = match fresh_memory(&site, &status) {
        Ok(memory) => memory,
        Err(refusal) => return *refusal,
    };
    let mut left = memory.clone();
    for reserved in status.reserved.iter() {
        left.reserve(&reserved.pool, reserved.bytes);
    }
    let mut result = check_gate(&request, &left);
    let is_short =
        |reason: &GateReason| matches!(reason.in_any_pool(), GateReason::TooLittle { .. });
    if !status.reserved.is_empty() && result.reasons.iter().any(is_short) {
        let bytes = status.reserved.iter().map(|one| one.bytes).fold(0, u64::saturating_add);
        let by = status.reserved.iter().flat_map(|one| one.by.iter().cloned()).collect();
        result.reasons.push(GateReason::Reserved { bytes, by });
    }
    response(&result, None)
}

/// The memory of the last sample.
pub(super) fn fresh_memory<'s>(
    site: &Site,
    status: &'s Status,
) -> Result<&'s MemoryPools, Box<Response>> {
    let age = (site.served.uptime)().saturating_sub(status.at.uptime);
    let is_fresh = age <= site.served.limits.snapshot_age;
    status.gate_memory.as_ref().filter(|_| is_fresh).ok_or_else(|| {
        let text = format!(
            "memory of this node is unknown: umawarden has taken no sample for {:.1} s; see \
             /api/v1/status",
            age.as_secs_f64()
        );
        Box::new(error(StatusCode::SERVICE_UNAVAILABLE, "unavailable", &text))
    })
}

/// The response of an open or a closed gate, and its lease, if there is one.
pub(super) fn response(result: &GateResponse, lease: Option<Value>) -> Response {
    let mut data = json!(result);
    if let Some(lease) = lease {
        data["lease"] = lease;
    }
    if result.is_open {
        return answer(StatusCode::OK, &json!({ "status": "success", "data": data }));
    }
    let reasons: Vec<String> = result.reasons.iter().map(ToString::to_string).collect();
    let body = json!({
        "status": "error",
        "errorType": "closed",
        "error": reasons.join("; "),
        "data": data,
    });
    answer(StatusCode::SERVICE_UNAVAILABLE, &body)
}

/// Leases and what they reserve.
pub(super) async fn leases(State(site): State<Site>) -> Response {
    let status = site.served.status.load_full();
    let data = json!({ "leases": status.leases, "reserved": status.reserved });
    answer(StatusCode::OK, &json!({ "status": "success", "data": data }))
}

const EXAMPLE: &str = "write it like /api/v1/gate?need=90GiB&contiguous=6GiB";

/// The parameters of a query.
pub(super) fn pairs(uri: &Uri) -> Result<Vec<(String, String)>, String> {
    let Query(pairs) = Query::try_from_uri(uri)
        .map_err(|error| format!("cannot parse the query: {error}; {EXAMPLE}"))?;
    Ok(pairs)
}

/// The requested memory.
pub(super) fn request(pairs: &[(String, String)]) -> Result<GateRequest, String> {
    let (mut need, mut contiguous, mut host_need, mut pools) = (None, None, None, None);
    for (name, value) in pairs {
        let slot = match name.as_str() {
            "need" => &mut need,
            "contiguous" => &mut contiguous,
            "host_need" => &mut host_need,
            "pool" if pools.is_none() => {
                let names = pool_names(value);
                pools = Some(names.map_err(|error| format!("parameter \"pool\": {error}"))?);
                continue;
            }
            "pool" => return Err(format!("duplicate parameter {name:?}; {EXAMPLE}")),
            other => return Err(format!("unknown parameter {other:?}; {EXAMPLE}")),
        };
        if slot.is_some() {
            return Err(format!("duplicate parameter {name:?}; {EXAMPLE}"));
        }
        let size = size_bytes(value).map_err(|error| format!("parameter {name:?}: {error}"))?;
        *slot = Some(size);
    }
    let need_bytes = need.ok_or_else(|| format!("parameter \"need\" is missing; {EXAMPLE}"))?;
    Ok(GateRequest {
        need_bytes,
        contiguous_bytes: contiguous,
        host_need_bytes: host_need.unwrap_or(0),
        pools: pools.unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_errors_have_an_example() {
        let of = |query: &str| request(&pairs(&format!("/api/v1/gate{query}").parse().unwrap())?);
        let request = of("?need=90GiB&contiguous=6GiB").unwrap();
        let expected = GateRequest { contiguous_bytes: Some(6 << 30), ..GateRequest::of(90 << 30) };
        assert_eq!(request, expected);
        let request = of("?need=180GiB&host_need=8GiB&pool=gpu0,gpu1").unwrap();
        assert_eq!((request.host_need_bytes, request.pools.len()), (8 << 30, 2));
        assert_eq!(of("?need=0").unwrap().need_bytes, 0);
        for nonsense in [
            "",
            "?",
            "?contiguous=6GiB",
            "?need=",
            "?need=much",
            "?need=-1GiB",
            "?need=1GiB&need=2GiB",
            "?need=1GiB&peers=all",
            "?need=1GiB&pool=gpu0&pool=gpu1",
            "?need=%ff",
        ] {
            let text = of(nonsense).unwrap_err();
            assert!(text.contains("write it like"), "{nonsense}: {text}");
        }
        let text = of("?need=999999999999999999999GiB").unwrap_err();
        assert!(text.contains("too large a size"), "{text}");
    }
}
