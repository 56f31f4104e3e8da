//! `/api/v1/reboot`: the state of reboots, and orders.

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use serde_json::{Value, json};

use super::api::success;
use super::order::{self, Caller, OrderKind};
use super::orders::order_of;
use super::routes::Site;
use crate::model::{PastReboot, RebootPlan, RebootStatus};

/// `GET`: the state.
pub(super) async fn reboot(State(site): State<Site>) -> Response {
    let status = site.served.status.load_full();
    success(&json!({ "reboot": shown(&status.reboot) }))
}

fn shown(status: &RebootStatus) -> Value {
    let budget = status.budget.iter().map(|left| {
        let per_seconds = left.budget.per.as_secs_f64();
        json!({ "times": left.budget.times, "per_seconds": per_seconds, "left": left.left })
    });
    let scheduled = status.scheduled.as_ref().map(|scheduled| {
        let plan = plan(&scheduled.plan);
        json!({ "decision": scheduled.decision, "rule": scheduled.rule, "plan": plan })
    });
    json!({
        "stage": status.stage,
        "meaning": status.stage.meaning(),
        "scheduled": scheduled,
        "waits_for": status.waits_for,
        "boot_id": status.boot_id,
        "budget": budget.collect::<Vec<Value>>(),
        "did_not_help": status.did_not_help,
        "is_given_up": status.is_given_up,
        "is_journal_lost": status.is_journal_lost,
        "holds_slot": status.holds_slot,
        "last": status.last.as_ref().map(last),
        "called_off": status.called_off,
    })
}

fn plan(plan: &RebootPlan) -> Value {
    json!({
        "why": plan.why,
        "ordered_by": plan.ordered_by,
        "force": plan.force,
        "boot_id": plan.boot_id,
        "due": plan.due.map(|due| due.utc),
        "due_uptime_seconds": plan.due.map(|due| due.uptime.as_secs_f64()),
        "verdict": plan.memory_state,
        "held_bytes": plan.held_bytes,
    })
}

#[expect(clippy::cast_precision_loss, reason = "milliseconds of uptime are far below 2^53")]
fn last(last: &PastReboot) -> Value {
    json!({
        "decision": last.decision,
        "rule": last.rule,
        "boot_id": last.boot_id,
        "utc": last.utc,
        "uptime_seconds": last.uptime_ms as f64 / 1_000.0,
        "plan": plan(&last.plan),
        "was_begun": last.was_begun,
        "result": last.result,
        "is_cleared": last.is_cleared,
    })
}

/// `POST`: orders a reboot.
pub(super) async fn order(
    State(site): State<Site>,
    Extension(caller): Extension<Caller>,
    body: Body,
) -> Response {
    order_of(&site, caller, body, order::reboot).await
}

/// `DELETE`: cancels the scheduled reboot.
pub(super) async fn cancel(
    State(site): State<Site>,
    Extension(caller): Extension<Caller>,
    body: Body,
) -> Response {
    order_of(&site, caller, body, |body| Ok((OrderKind::CancelReboot, order::attribution(body)?)))
        .await
}

/// `POST /api/v1/reboot/clear`: clears reboots that did not help.
pub(super) async fn clear(
    State(site): State<Site>,
    Extension(caller): Extension<Caller>,
    body: Body,
) -> Response {
    order_of(&site, caller, body, |body| Ok((OrderKind::ClearReboots, order::attribution(body)?)))
        .await
}
