//! Results as the JSON of Prometheus' API, written without a tree in between.

use std::fmt::Write as _;
use std::sync::Arc;

use serde_json::Value;

use super::{EvaluationResult, ResultSeries};

/// The response to a query.
#[derive(Clone, Debug, PartialEq)]
pub struct QueryResult {
    /// The result.
    pub found: EvaluationResult,
    /// What the reader should know about it.
    pub warnings: Vec<String>,
}

/// The `data` of a response, as JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Data(pub String);

impl QueryResult {
    /// The result as JSON.
    pub fn data(&self) -> Data {
        let mut out = String::new();
        match &self.found {
            EvaluationResult::Scalar(at_ms, value) => {
                out.push_str("{\"resultType\":\"scalar\",\"result\":");
                point(&mut out, *at_ms, *value);
            }
            EvaluationResult::Vector(at_ms, samples) => {
                out.push_str("{\"resultType\":\"vector\",\"result\":[");
                for (position, sample) in samples.iter().enumerate() {
                    open(&mut out, position, sample.name.as_ref(), &sample.labels);
                    out.push_str(",\"value\":");
                    point(&mut out, *at_ms, sample.value);
                    out.push('}');
                }
                out.push(']');
            }
            EvaluationResult::Matrix(series) => {
                out.push_str("{\"resultType\":\"matrix\",\"result\":[");
                for (position, series) in series.iter().enumerate() {
                    matrix_series(&mut out, position, series);
                }
                out.push(']');
            }
            EvaluationResult::Text(at_ms, text) => {
                out.push_str("{\"resultType\":\"string\",\"result\":[");
                time(&mut out, *at_ms);
                // Writing to a string does not fail.
                let _ = write!(out, ",{}]", Value::from(&**text));
            }
        }
        out.push('}');
        Data(out)
    }
}

impl Data {
    /// The whole body of a successful response.
    pub fn envelope(&self, warnings: &[String]) -> String {
        let mut out = format!("{{\"status\":\"success\",\"data\":{}", self.0);
        if !warnings.is_empty() {
            let list = warnings.iter().map(|text| Value::from(text.as_str())).collect::<Vec<_>>();
            out.push_str(&format!(",\"warnings\":{}", Value::from(list)));
        }
        out.push('}');
        out
    }
}

fn matrix_series(out: &mut String, position: usize, series: &ResultSeries) {
    open(out, position, series.name.as_ref(), &series.labels);
    out.push_str(",\"values\":[");
    for (position, (at_ms, value)) in series.points.iter().enumerate() {
        if position > 0 {
            out.push(',');
        }
        point(out, *at_ms, *value);
    }
    out.push_str("]}");
}

/// Begins an element of a result, with its labels.
fn open(
    out: &mut String,
    position: usize,
    name: Option<&Arc<str>>,
    labels: &[(Arc<str>, Arc<str>)],
) {
    out.push_str(if position > 0 { ",{\"metric\":{" } else { "{\"metric\":{" });
    let name = name.map(|name| ("__name__", &**name));
    let labels = labels.iter().map(|(name, value)| (&**name, &**value));
    for (position, (name, value)) in name.into_iter().chain(labels).enumerate() {
        if position > 0 {
            out.push(',');
        }
        // Writing to a string does not fail.
        let _ = write!(out, "{}:{}", Value::from(name), Value::from(value));
    }
    out.push('}');
}

/// `1435781430.781`: seconds, with milliseconds if there are any.
fn time(out: &mut String, at_ms: i64) {
    let sign = if at_ms < 0 { "-" } else { "" };
    let (seconds, ms) = (at_ms.unsigned_abs() / 1000, at_ms.unsigned_abs() % 1000);
    // Writing to a string does not fail.
    let _ = match ms {
        0 => write!(out, "{sign}{seconds}"),
        ms => write!(out, "{sign}{seconds}.{ms:03}"),
    };
}

/// `[1435781430.781,"1"]`: the value is a text, since JSON has neither infinities nor NaN.
fn point(out: &mut String, at_ms: i64, value: f64) {
    out.push('[');
    time(out, at_ms);
    out.push_str(",\"");
    // Writing to a string does not fail.
    let _ = match value {
        f64::INFINITY => out.write_str("+Inf"),
        f64::NEG_INFINITY => out.write_str("-Inf"),
        other => write!(out, "{other}"),
    };
    out.push_str("\"]");
}
