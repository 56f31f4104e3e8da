//! Prints the comparison as a table or JSON.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{AppliedProfile, ProfileComparison};
use crate::cli::output::{errln, outln};
use crate::cli::style::fitted;
use crate::model::bytes_text;
use crate::tune::{Profile, SettingRow, SettingState, ValueCertainty};

/// Prints each profile in a line, with its title, or all as one JSON object.
pub(super) fn profiles(profiles: &[Profile], is_json: bool) {
    if is_json {
        let entry = |profile: &Profile| json!({ "name": profile.name, "title": profile.title });
        let entries: Vec<Value> = profiles.iter().map(entry).collect();
        outln!("{}", json!({ "profiles": entries }));
        return;
    }
    for profile in profiles {
        outln!("{:<16} {}", profile.name, profile.title);
    }
}

/// The node's settings, those of the profile, and what was done.
pub(super) fn table(compared: &ProfileComparison<'_>, done: &AppliedProfile) {
    let ProfileComparison { profile, node, rows, warnings } = compared;
    let model = if node.model.is_empty() { "no name" } else { &node.model };
    let heading = format!(
        "Profile {}: {}. This node: {model}, {}.",
        profile.name,
        profile.title,
        bytes_text(node.memory_bytes)
    );
    outln!("{}\n", fitted(&heading));
    outln!("  {:<28} {:>8} {:>10}  {:<18}  known by", "setting", "now", "profile", "fits");
    for row in rows {
        let mark = if row.fits() { ' ' } else { '!' };
        let (name, value) = (row.advice.name.name(), row.advice.value);
        let (now, fits, known) = (now(row), fits(row), row.advice.source.name());
        outln!("{mark} {name:<28} {now:>8} {value:>10}  {fits:<18}  {known}");
        outln!("{}", fitted(&format!("    {}.", row.advice.why)));
        outln!("{}", fitted(&format!("    It costs: {}.", row.advice.trades)));
    }
    let sources: BTreeSet<ValueCertainty> = rows.iter().map(|row| row.advice.source).collect();
    let known: Vec<String> =
        sources.into_iter().map(|one| format!("{}, {}", one.name(), one.meaning())).collect();
    let marked = "!: does not fit; any value within the bounds fits, and stays";
    outln!("\n{}\n", fitted(&format!("{marked}. Known by: {}.", known.join("; "))));
    for warning in warnings {
        outln!("{}", fitted(&format!("warning: {warning}")));
    }
    let lasts = if done.persisted.is_some() { "" } else { ", until the next boot" };
    for (sysctl, value) in &done.applied {
        outln!("set: {sysctl} = {value}{lasts}");
    }
    for error in &done.failed {
        errln!("umawarden: {error}");
    }
    if let Some(persisted) = &done.persisted {
        outln!("written: {}", persisted.path.display());
        if let Some(kept) = &persisted.kept {
            outln!("replaced: what was there is kept as {}", kept.display());
        }
    }
    let differ = rows.iter().filter(|row| !row.fits()).count();
    match (differ, done.applied.len()) {
        (0, _) => outln!("Everything fits."),
        (differ, 0) => outln!("{differ} of {} do not fit: `--apply` sets them.", rows.len()),
        (differ, set) => outln!("{differ} of {} did not fit; {set} are set now.", rows.len()),
    }
}

/// The values that fit.
fn fits(row: &SettingRow<'_>) -> String {
    let [from, to] = row.bounds();
    if from == to { from.to_string() } else { format!("{from} to {to}") }
}

fn now(row: &SettingRow<'_>) -> String {
    match row.now {
        SettingState::Value(value) => value.to_string(),
        SettingState::InBytes => "in bytes".to_owned(),
        SettingState::Missing => "missing".to_owned(),
    }
}

/// The same as JSON.
pub(super) fn json(compared: &ProfileComparison<'_>, done: &AppliedProfile) -> Value {
    let settings = compared.rows.iter().map(|row| {
        let advice = row.advice;
        let (now, state) = match row.now {
            SettingState::Value(value) => (json!(value), "set"),
            SettingState::InBytes => (Value::Null, "set_in_bytes"),
            SettingState::Missing => (Value::Null, "missing"),
        };
        json!({
            "name": advice.name,
            "now": now,
            "state": state,
            "profile": advice.value,
            "accept": advice.accept,
            "fits": row.fits(),
            "why": advice.why,
            "source": advice.source,
            "trades": advice.trades,
        })
    });
    let applied: serde_json::Map<String, Value> =
        done.applied.iter().map(|(name, value)| (name.to_string(), json!(value))).collect();
    json!({
        "profile": compared.profile.name,
        "title": compared.profile.title,
        "model": compared.node.model,
        "memory_bytes": compared.node.memory_bytes,
        "fits": compared.rows.iter().all(SettingRow::fits),
        "settings": settings.collect::<Vec<_>>(),
        "warnings": compared.warnings,
        "applied": applied,
        "failed": done.failed,
        "persisted": done.persisted.as_ref().map(|persisted| &persisted.path),
        "kept": done.persisted.as_ref().and_then(|persisted| persisted.kept.as_ref()),
    })
}
