//! Names of what decisions work on, for reports over days.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::model::{Action, DecisionRecord, Target};

/// Labels of alerts that name what a notice is about, the most specific first.
const SUBJECTS: [&str; 8] =
    ["engine", "who", "container", "unit", "process", "comm", "node", "device"];

/// Names of processes, and patterns of files, that are kept of a target.
const MOST_PARTS: usize = 4;

pub(super) type AlertLabels = BTreeMap<Arc<str>, Arc<str>>;

/// The label by which alerts of its rule name what a decision works on: the engine. A notice is
/// about what its alert names, if only one alert of its rule fires.
pub(super) fn subject<'f>(
    decision: &DecisionRecord,
    firing: &'f BTreeSet<AlertLabels>,
) -> Option<(&'f Arc<str>, &'f Arc<str>)> {
    let mut alerts = firing.iter();
    match (&decision.action, &decision.target, alerts.next(), alerts.next()) {
        (_, Target::Engine(engine), ..) => {
            let mut named = firing.iter().filter_map(|labels| labels.get_key_value("engine"));
            named.find(|(_, name)| **name == engine.name)
        }
        (Action::Notify { .. }, Target::Node, Some(labels), None) => {
            SUBJECTS.iter().find_map(|name| labels.get_key_value(*name))
        }
        _ => None,
    }
}

/// What a decision works on, by a name that outlives its processes.
pub(super) fn target_name(decision: &DecisionRecord, firing: &BTreeSet<AlertLabels>) -> String {
    match subject(decision, firing) {
        Some((label, value)) if matches!(decision.target, Target::Node) => {
            format!("{label} {value}")
        }
        _ => decision.target.to_string(),
    }
}

/// What else the journal knows of the target: its kind, container, unit, processes and files.
pub(super) fn target_parts(decision: &DecisionRecord) -> Vec<String> {
    let Target::Engine(engine) = &decision.target else { return Vec::new() };
    let mut parts = vec![engine.kind.name().to_owned()];
    parts.extend(engine.pod.as_ref().map(|pod| pod.to_string()));
    let container = engine.container_name.as_ref().or(engine.container.as_ref());
    parts.extend(container.map(|name| format!("container {name}")));
    parts.extend(engine.unit.as_ref().map(|unit| format!("unit {unit}")));
    let list = |what: &str, names: Vec<&str>| {
        let more = names.len().saturating_sub(MOST_PARTS);
        let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
        let shown = names.get(..names.len() - more).unwrap_or_default();
        (!shown.is_empty()).then(|| format!("{what} {}{rest}", shown.join(", ")))
    };
    parts.extend(list("processes", engine.comms.iter().map(|name| &**name).collect()));
    if matches!(decision.action, Action::EvictCheckpoint { .. }) {
        parts.extend(list("files", engine.model_files.iter().map(|name| &**name).collect()));
    }
    parts
}
