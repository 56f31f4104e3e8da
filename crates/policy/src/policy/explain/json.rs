//! Explanations as JSON.

use std::collections::BTreeMap;

use promql_rules::{Labels, Sample, Traced, TracedRange, TracedValue, Value};
use serde_json::{Value as Json, json};

use super::Explanation;
use crate::model::{Reading, as_number};
use crate::policy::guard::Rail;

impl Explanation {
    /// The rule, its condition and its remedy. Without `has_rails` the guard rails are left out:
    /// those of the past are unknown.
    pub fn json(&self, has_rails: bool) -> Json {
        let remedy = self.remedy.as_ref().map(|remedy| {
            let steps = remedy.steps.iter().map(ToString::to_string);
            let rails = remedy.rails.iter().filter(|_| has_rails).map(rail_json);
            json!({
                "aim_met": remedy.aim_met,
                "aim": remedy.aim.as_ref().map(part_json),
                "steps": steps.collect::<Vec<_>>(),
                "step": remedy.step,
                "under_way": remedy.under_way,
                "guard_rails": rails.collect::<Vec<_>>(),
            })
        });
        json!({
            "rule": self.rule.rule.to_string(),
            "expr": self.rule.expr,
            "state": self.rule.state,
            "mode": self.rule.mode,
            "unknown": self.rule.unknown,
            "condition": part_json(&self.condition),
            "remedy": remedy,
        })
    }
}

/// A guard rail, and whether it holds.
pub fn rail_json(rail: &Rail) -> Json {
    let used = rail.used.map(|(used, _)| used);
    json!({
        "reason": rail.reason,
        "holds": rail.holds,
        "left_seconds": rail.left.map(|left| left.as_secs_f64()),
        "used": used,
        "at_most": rail.used.map(|(_, most)| most),
        "detail": rail.detail,
    })
}

/// A part of an expression with its value, and its own parts.
pub fn part_json(part: &Traced) -> Json {
    let (key, value) = match &part.value {
        TracedValue::Known(Value::Scalar(number)) => ("scalar", number_json(*number)),
        TracedValue::Known(Value::Vector(samples)) => {
            ("vector", samples.iter().map(sample_json).collect())
        }
        TracedValue::Range(ranges) => ("range", ranges.iter().map(range_json).collect()),
        TracedValue::Unknown(reasons) => ("unknown", json!(reasons)),
        TracedValue::Failed(error) => ("error", json!(error)),
    };
    let parts: Vec<Json> = part.parts.iter().map(part_json).collect();
    let mut object = json!({ "expr": part.text, key: value, "parts": parts });
    if let Some(decided_by) = part.decided_by {
        object["not_needed"] = json!(decided_by);
    }
    object
}

fn sample_json(sample: &Sample) -> Json {
    json!({
        "name": sample.name,
        "labels": labels_json(&sample.labels),
        "value": number_json(sample.value),
    })
}

fn range_json(range: &TracedRange) -> Json {
    json!({
        "labels": labels_json(&range.labels),
        "count": range.count,
        "first": number_json(range.first),
        "last": number_json(range.last),
        "least": number_json(range.least),
        "greatest": number_json(range.greatest),
    })
}

fn labels_json(labels: &Labels) -> Json {
    let map: BTreeMap<&str, &str> =
        labels.iter().map(|(name, value)| (&**name, &**value)).collect();
    json!(map)
}

/// As everywhere in JSON here.
fn number_json(number: f64) -> Json {
    as_number::serialize(&Reading::Value(number), serde_json::value::Serializer).unwrap_or_default()
}
