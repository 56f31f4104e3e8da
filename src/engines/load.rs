//! What an engine works on, out of what it tells.

use serde_json::Value;

use crate::model::{EngineKind, EngineLoad, Reading};

/// An exposition's values of those metrics, each with its line.
fn samples<'t>(text: &'t str, names: &[&str]) -> impl Iterator<Item = (&'t str, f64)> {
    text.lines().filter_map(|line| {
        let (series, value) = line.trim_end().rsplit_once(' ')?;
        let name = series.split('{').next()?;
        names.contains(&name).then(|| Some((series, value.parse().ok()?)))?
    })
}

/// The sum over all series of these metrics in an exposition; `None` if there is none.
pub fn metric_sum(text: &str, names: &[&str]) -> Option<u64> {
    let values = samples(text, names).filter_map(|(_, value)| whole(value));
    values.reduce(u64::saturating_add)
}

/// The greatest share, from 0 to 1, over all series of a metric; `None` if there is none.
fn greatest_share(text: &str, name: &str) -> Option<f64> {
    samples(text, &[name]).filter_map(|(_, value)| share(value)).reduce(f64::max)
}

fn share(value: f64) -> Option<f64> {
    // A pool may be filled a little beyond its end.
    (0.0..=2.0).contains(&value).then_some(value.min(1.0))
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded above")]
fn whole(value: f64) -> Option<u64> {
    (value.is_finite() && (0.0..1e15).contains(&value)).then_some(value as u64)
}

/// What an engine of that kind tells in its metrics.
pub fn load_in_metrics(kind: EngineKind, text: &str) -> EngineLoad {
    let sum = |names: &[&str]| Reading::from(metric_sum(text, names));
    match kind {
        EngineKind::Vllm => EngineLoad {
            running: sum(&["vllm:num_requests_running"]),
            waiting: sum(&["vllm:num_requests_waiting"]),
            kv_cache_usage: greatest_share(text, "vllm:kv_cache_usage_perc").into(),
            is_sleeping: vllm_sleeps(text).into(),
            ..EngineLoad::default()
        },
        EngineKind::Sglang => EngineLoad {
            running: sum(&["sglang:num_running_reqs"]),
            waiting: sum(&["sglang:num_queue_reqs"]),
            kv_cache_usage: greatest_share(text, "sglang:token_usage").into(),
            kv_cache_available_tokens: sum(&[
                "sglang:kv_available_tokens",
                "sglang:kv_evictable_tokens",
            ]),
            ..EngineLoad::default()
        },
        EngineKind::LlamaServer => EngineLoad {
            running: sum(&["llamacpp:requests_processing"]),
            waiting: sum(&["llamacpp:requests_deferred"]),
            kv_cache_usage: greatest_share(text, "llamacpp:kv_cache_usage_ratio").into(),
            ..EngineLoad::default()
        },
        EngineKind::Lmdeploy => EngineLoad {
            running: sum(&["lmdeploy:num_requests_running"]),
            waiting: sum(&["lmdeploy:num_requests_waiting"]),
            kv_cache_usage: greatest_share(text, "lmdeploy:gpu_cache_usage_perc").into(),
            ..EngineLoad::default()
        },
        EngineKind::Tgi => EngineLoad {
            running: sum(&["tgi_batch_current_size"]),
            waiting: sum(&["tgi_queue_size"]),
            ..EngineLoad::default()
        },
        _ => EngineLoad::default(),
    }
}

/// One series for each state; of several engines any that is not awake.
fn vllm_sleeps(text: &str) -> Option<bool> {
    let awake = samples(text, &["vllm:engine_sleep_state"])
        .filter(|(series, _)| series.contains("sleep_state=\"awake\""));
    awake.map(|(_, value)| value == 0.0).reduce(|one, other| one || other)
}

/// SGLang's `/v1/loads`: of all ranks.
pub fn sglang_loads(text: &str) -> Option<EngineLoad> {
    let told: Value = serde_json::from_str(text).ok()?;
    let loads = told.get("loads")?.as_array()?;
    let sum = |of: &dyn Fn(&Value) -> Option<u64>| {
        Reading::from(loads.iter().filter_map(of).reduce(u64::saturating_add))
    };
    let number = |load: &Value, name: &str| load.get(name).and_then(Value::as_u64);
    let running = sum(&|load| number(load, "num_running_reqs"));
    running.value()?;
    let usage = loads.iter().filter_map(|load| share(load.get("token_usage")?.as_f64()?));
    Some(EngineLoad {
        running,
        waiting: sum(&|load| number(load, "num_waiting_reqs")),
        kv_cache_usage: usage.reduce(f64::max).into(),
        kv_cache_available_tokens: sum(&|load| {
            let used = number(load, "num_used_tokens")?;
            Some(number(load, "max_total_num_tokens")?.saturating_sub(used))
        }),
        is_sleeping: Reading::Unsupported,
    })
}

/// The version that SGLang tells in `/v1/loads`: `0.5.23`, perhaps with something behind it.
pub fn sglang_version(text: &str) -> Option<[u32; 3]> {
    let told: Value = serde_json::from_str(text).ok()?;
    let mut parts = told.get("version")?.as_str()?.splitn(3, '.');
    let mut next = || {
        let part = parts.next()?;
        let digits = part.bytes().take_while(u8::is_ascii_digit).count();
        part.get(..digits)?.parse().ok()
    };
    Some([next()?, next()?, next()?])
}

/// ComfyUI's `/queue`.
pub fn comfy_queue(text: &str) -> Option<EngineLoad> {
    let told: Value = serde_json::from_str(text).ok()?;
    let of = |name: &str| told.get(name)?.as_array().map(|queue| queue.len() as u64);
    let running = Reading::Value(of("queue_running")?);
    let waiting = Reading::Value(of("queue_pending")?);
    Some(EngineLoad { running, waiting, ..EngineLoad::default() })
}
