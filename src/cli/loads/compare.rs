//! Two loads side by side.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::read::{StoredLoad, release_text};
use super::show::{bytes, count, seconds};
use crate::model::{LoadReceipt, measured_bytes_text, printable, rounded_seconds_text};

type ReceiptAmount = (&'static str, fn(&LoadReceipt) -> Option<u64>);

const AMOUNTS: [ReceiptAmount; 9] = [
    ("took", |load| load.ready_bytes),
    ("peak", |load| load.peak_bytes),
    ("growth after ready", |load| load.growth_bytes),
    ("lowest free", |load| load.lowest_free_bytes),
    ("lowest available", |load| load.lowest_available_bytes),
    ("read", |load| load.read_bytes),
    ("evicted behind it", |load| load.evicted_bytes),
    ("read ahead of it", |load| load.prefetched_bytes),
    ("not used of that", |load| load.prefetch_unused_bytes),
];

/// One change between two starts.
struct ReceiptChange {
    what: &'static str,
    one: Option<String>,
    other: Option<String>,
}

/// What was started differently: parts of the configuration, and arguments that only one has.
fn changes(one: &StoredLoad, other: &StoredLoad) -> Vec<ReceiptChange> {
    let (before, after) = (&one.receipt.configuration, &other.receipt.configuration);
    let own = |text: Option<&str>| text.map(str::to_owned);
    let name = ("name", Some(&*one.engine), Some(&*other.engine));
    let parts = before.parts().into_iter().zip(after.parts());
    let parts = parts.map(|((what, one), (_, other))| (what, one, other));
    let mut changes: Vec<ReceiptChange> = std::iter::once(name)
        .chain(parts)
        .filter(|(_, one, other)| one != other)
        .map(|(what, one, other)| ReceiptChange { what, one: own(one), other: own(other) })
        .collect();
    let arguments = |text: Option<&str>| -> Option<Vec<String>> {
        Some(text?.lines().map(str::to_owned).collect())
    };
    let (one, other) =
        (arguments(before.arguments.as_deref()), arguments(after.arguments.as_deref()));
    if one != other {
        let only = |own: &Option<Vec<String>>, others: &Option<Vec<String>>| {
            Some(differing(own.as_ref()?, others.as_deref().unwrap_or_default()).join(" "))
        };
        let (mut one, mut other) = (only(&one, &other), only(&other, &one));
        let is_moved = [&one, &other].into_iter().all(|only| only.as_deref() == Some(""));
        for only in [&mut one, &mut other].into_iter().flatten().filter(|only| only.is_empty()) {
            *only = if is_moved { "(another order)" } else { "(none)" }.to_owned();
        }
        changes.push(ReceiptChange { what: "arguments", one, other });
    }
    changes
}

/// The arguments without those that both have at their begin and at their end.
fn differing<'a>(own: &'a [String], others: &[String]) -> Vec<&'a str> {
    let mut left: Vec<&String> = others.iter().collect();
    let mut only = Vec::new();
    let mut option = None;
    for argument in own {
        let place = left.iter().position(|other| *other == argument);
        match place {
            Some(place) => {
                left.remove(place);
                option = argument.starts_with('-').then_some(argument);
            }
            None => {
                // A value is shown with its option.
                only.extend(option.take().map(String::as_str));
                only.push(argument);
            }
        }
    }
    only
}

pub(super) fn text(one: &StoredLoad, other: &StoredLoad) -> String {
    let mut text = String::new();
    let mut row = |name: &str, one: &str, other: &str, change: &str| {
        let (one, other) = (printable(one), printable(other));
        let line = format!("{name:<20} {one:>22} {other:>22}  {change}");
        // Writing to a String cannot fail.
        writeln!(text, "{}", line.trim_end()).unwrap_or_default();
    };
    let heads = [one, other].map(|load| format!("#{}", load.id));
    row("", &heads[0], &heads[1], "difference");
    row("engine", &one.engine, &other.engine, "");
    let times =
        [one, other].map(|load| load.receipt.started.strftime("%Y-%m-%d %H:%M:%S").to_string());
    row("started (UTC)", &times[0], &times[1], "");
    let (before, after) = (&one.receipt, &other.receipt);
    row("end", before.end.name(), after.end.name(), "");
    let both = before.ready_after_seconds.zip(after.ready_after_seconds);
    let later = both.map(|(before, after)| {
        let sign = if after < before { "-" } else { "+" };
        format!("{sign}{}", rounded_seconds_text((after - before).abs()))
    });
    let ready = [before, after].map(|load| seconds(load.ready_after_seconds));
    row("ready after", &ready[0], &ready[1], &later.unwrap_or_default());
    for (name, of) in AMOUNTS {
        let (one, other) = (of(before), of(after));
        let more = one.zip(other).map(|(one, other)| signed(one, other));
        row(name, &bytes(one), &bytes(other), &more.unwrap_or_default());
    }
    let (stalls, more) = (before.stalls.zip(after.stalls), [before.stalls, after.stalls]);
    let change = stalls.map(|(one, other)| format!("{:+}", i128::from(other) - i128::from(one)));
    row("stalls", &count(more[0]), &count(more[1]), &change.unwrap_or_default());
    let releases = [one, other].map(|load| release_text(load.release.as_ref()));
    row("release", &releases[0], &releases[1], "");
    let fingerprints = [before, after].map(LoadReceipt::short_fingerprint);
    row("fingerprint", fingerprints[0], fingerprints[1], "");
    text.push('\n');
    text.push_str(&changes_text(&changes(one, other)));
    text
}

fn changes_text(changes: &[ReceiptChange]) -> String {
    if changes.is_empty() {
        return "Both were started with the same configuration.\n".to_owned();
    }
    let mut text = "Changed:\n".to_owned();
    for ReceiptChange { what, one, other } in changes {
        let shown = |side: &Option<String>| match side.as_deref() {
            None => "unknown".to_owned(),
            Some(known) => printable(known).into_owned(),
        };
        // Writing to a String cannot fail.
        writeln!(text, "  {what}: {} → {}", shown(one), shown(other)).unwrap_or_default();
    }
    text
}

#[expect(clippy::cast_precision_loss, reason = "shown with one digit after the point")]
fn signed(one: u64, other: u64) -> String {
    let sign = if other >= one { "+" } else { "" };
    format!("{sign}{}", measured_bytes_text(other as f64 - one as f64))
}

pub(super) fn json(one: &StoredLoad, other: &StoredLoad) -> Value {
    let changed: Vec<Value> = changes(one, other)
        .into_iter()
        .map(|ReceiptChange { what, one, other }| json!({"what": what, "a": one, "b": other}))
        .collect();
    json!({"a": one.json(), "b": other.json(), "changed": changed})
}
