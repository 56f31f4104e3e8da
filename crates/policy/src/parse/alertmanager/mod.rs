//! What an Alertmanager posts to a webhook: its payload, version 4.
//!
//! The sender is not trusted. Only the alerts are kept, not the group, its status, annotations or
//! links. Labels beyond the limits are left out and counted. Their alert is kept: an alert that
//! fires is worth more than its longest label.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use jiff::Timestamp;
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::model::{ReceivedAlert, ReceivedAlerts, ReceivedStatus};

/// Longest body of a request.
pub const MOST_BYTES: usize = 1 << 20;
/// Alerts of a request that are kept.
pub const MOST_ALERTS: usize = 2_000;
/// More labels than these of one alert are left out.
pub const MOST_LABELS: usize = 32;
/// A label whose name is longer is left out.
pub const MOST_NAME_BYTES: usize = 128;
/// A label whose value is longer is left out.
pub const MOST_VALUE_BYTES: usize = 1_024;
/// All labels of one alert that are kept together; what goes beyond is left out.
pub const MOST_LABEL_BYTES: usize = 4_096;

/// The version that this reads.
const VERSION: &str = "4";
/// A longer fingerprint is none of Alertmanager's.
const MOST_FINGERPRINT_CHARS: usize = 64;
/// The name that says what an alert is comes before all others.
const ALERTNAME: &str = "alertname";
/// Says in the series that it fires.
const ALERTSTATE: &str = "alertstate";

/// Why nothing is taken of a post. To post the same again does not help.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// It is no such payload.
    #[error("{0}")]
    Malformed(String),
    /// It is too large.
    #[error("{0}")]
    TooLarge(String),
}

#[derive(Deserialize)]
struct AlertPost {
    version: Option<String>,
    alerts: Vec<Alert>,
    #[serde(default, rename = "truncatedAlerts")]
    truncated_alerts: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Alert {
    status: ReceivedStatus,
    labels: BTreeMap<String, String>,
    starts_at: Timestamp,
    ends_at: Option<Timestamp>,
    fingerprint: Option<String>,
}

/// Reads a post.
///
/// # Errors
/// It is no payload of that version, or too large; the text says where, and what to do.
pub fn post(body: &[u8]) -> Result<ReceivedAlerts, PostError> {
    if body.len() > MOST_BYTES {
        return Err(PostError::TooLarge(too_long()));
    }
    let post = read(body)?;
    if let Some(version) = post.version.filter(|version| version != VERSION) {
        let shown: String = version.chars().take(16).collect();
        let text =
            format!("version: this is version {shown:?}, and only version {VERSION:?} is read");
        return Err(PostError::Malformed(text));
    }
    if post.alerts.len() > MOST_ALERTS {
        let text = format!(
            "alerts: there are {}, and {MOST_ALERTS} are the most: group by more labels, or set \
             max_alerts of the webhook",
            post.alerts.len()
        );
        return Err(PostError::TooLarge(text));
    }
    let mut unusable_labels = 0;
    let alerts = post.alerts.into_iter().map(|alert| Arc::new(kept(alert, &mut unusable_labels)));
    let alerts = alerts.collect();
    let truncated = post.truncated_alerts;
    Ok(ReceivedAlerts { alerts, is_rest: false, unusable_labels, truncated })
}

/// The error for a body that is too long.
pub fn too_long() -> String {
    format!(
        "the body is longer than {} KiB: group by more labels, or set max_alerts of the webhook",
        MOST_BYTES >> 10
    )
}

fn read(body: &[u8]) -> Result<AlertPost, PostError> {
    let malformed = |text: String| PostError::Malformed(text);
    let text = std::str::from_utf8(body)
        .map_err(|error| malformed(format!("the body is not UTF-8: {error}")))?;
    if !text.trim_start().starts_with('{') {
        return Err(malformed("the body must be a JSON object".to_owned()));
    }
    serde_json::from_str::<IgnoredAny>(text)
        .map_err(|error| malformed(format!("the body is not JSON: {error}")))?;
    let mut json = serde_json::Deserializer::from_str(text);
    serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        match (error.into_inner(), path.as_str()) {
            (inner, ".") => malformed(shortened(&inner.to_string())),
            (inner, path) => malformed(shortened(&format!("{path}: {inner}"))),
        }
    })
}

/// An error may quote the body.
fn shortened(text: &str) -> String {
    const MOST_CHARS: usize = 300;
    match text.char_indices().nth(MOST_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

fn kept(alert: Alert, unusable: &mut u64) -> ReceivedAlert {
    let fingerprint = match alert.fingerprint.filter(|given| is_fingerprint(given)) {
        Some(given) => given,
        None => fingerprint(&alert.labels),
    };
    ReceivedAlert {
        by: None,
        fingerprint: fingerprint.into(),
        status: alert.status,
        starts_at: alert.starts_at,
        ends_at: alert.ends_at.filter(|ends_at| !is_zero(*ends_at)),
        labels: usable(alert.labels, unusable),
    }
}

/// Go writes a time that there is not as the first second of the year 1.
fn is_zero(time: Timestamp) -> bool {
    const YEAR_1: i64 = -62_135_596_800;
    time.as_second() <= YEAR_1
}

fn is_fingerprint(given: &str) -> bool {
    (1..=MOST_FINGERPRINT_CHARS).contains(&given.len())
        && given.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// As Prometheus makes it: FNV-1a over names and values, each followed by 0xff, which UTF-8 does
/// not contain.
fn fingerprint(labels: &BTreeMap<String, String>) -> String {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let texts = labels.iter().flat_map(|(name, value)| [name, value]);
    let bytes = texts.flat_map(|text| text.bytes().chain([0xff]));
    let hash = bytes.fold(OFFSET, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME));
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write!(text, "{hash:016x}");
    text
}

/// Those that a series can have, within bounds. An empty value is as good as none.
fn usable(
    mut labels: BTreeMap<String, String>,
    unusable: &mut u64,
) -> BTreeMap<Arc<str>, Arc<str>> {
    let first = labels.remove_entry(ALERTNAME);
    let mut kept = BTreeMap::new();
    let mut bytes = 0;
    for (name, value) in first.into_iter().chain(labels) {
        if value.is_empty() {
            continue;
        }
        let size = name.len() + value.len();
        let fits = kept.len() < MOST_LABELS
            && bytes + size <= MOST_LABEL_BYTES
            && value.len() <= MOST_VALUE_BYTES;
        if fits && is_label_name(&name) {
            bytes += size;
            kept.insert(Arc::from(name), Arc::from(value));
        } else {
            *unusable += 1;
        }
    }
    kept
}

/// What a rule can write, and no name that is kept for others.
fn is_label_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    (1..=MOST_NAME_BYTES).contains(&name.len())
        && name.bytes().all(is_plain)
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && !name.starts_with("__")
        && name != ALERTSTATE
}
