//! How many requests an engine works on, out of what it tells.

use serde_json::Value;

/// The sum over all series of these metrics in an exposition; `None` if there is none.
pub fn metric_sum(text: &str, names: &[&str]) -> Option<u64> {
    let values = text.lines().filter_map(|line| {
        let (series, value) = line.trim_end().rsplit_once(' ')?;
        let name = series.split('{').next()?;
        if !names.contains(&name) {
            return None;
        }
        whole(value.parse().ok()?)
    });
    values.reduce(u64::saturating_add)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded above")]
fn whole(value: f64) -> Option<u64> {
    (value.is_finite() && (0.0..1e15).contains(&value)).then_some(value as u64)
}

/// Of SGLang's `/v1/loads`: running and waiting, of all ranks.
pub fn sglang_requests(text: &str) -> Option<u64> {
    let told: Value = serde_json::from_str(text).ok()?;
    let loads = told.get("loads")?.as_array()?;
    let of = |load: &Value, name: &str| load.get(name).and_then(Value::as_u64);
    let sums = loads.iter().filter_map(|load| {
        let running = of(load, "num_running_reqs")?;
        Some(running.saturating_add(of(load, "num_waiting_reqs").unwrap_or(0)))
    });
    sums.reduce(u64::saturating_add)
}

/// Of ComfyUI's `/queue`.
pub fn comfy_requests(text: &str) -> Option<u64> {
    let told: Value = serde_json::from_str(text).ok()?;
    let of = |name: &str| told.get(name)?.as_array().map(|queue| queue.len() as u64);
    Some(of("queue_running")?.saturating_add(of("queue_pending")?))
}
