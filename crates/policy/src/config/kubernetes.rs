//! `kubernetes`: what the cluster is to know of this node, and what is done to it.

use std::sync::Arc;
use std::time::Duration;

use super::decode::{self, Advice, Findings, Table, each, list};
use super::guard_rails::NamedAlert;
use super::measure::{daemon_set, node_name, path};
use super::yaml::{Content, YamlNode};
use crate::model::{DrainMode, KubernetesAccess, KubernetesSettings, NodeCondition};

const KEYS: [&str; 8] = [
    "node",
    "kubeconfig",
    "daemon_set",
    "conditions",
    "events",
    "extended_resource",
    "drain",
    "drain_for",
];

const ADVICE: [Advice; 2] = [
    (&["taint", "taint_node", "cordon", "cordon_node"], "these are steps of a rule's remedy"),
    (&["evict", "eviction"], "it is called drain: evict"),
];

const MINUTE: Duration = Duration::from_secs(60);
const MOST_CONDITIONS: usize = 16;
const MOST_ALERTS: usize = 100;

/// Reads the section, and which alerts it names.
pub(super) fn read(
    node: &YamlNode,
    findings: &mut Findings<'_>,
) -> Option<(KubernetesSettings, Vec<NamedAlert>)> {
    if let Some(text) = node.text() {
        let on = matches!(text, "true" | "on" | "yes");
        decode::wrong_kind(node, "kubernetes", decode::MAPPING, findings).hint(match on {
            true => "write kubernetes: {}",
            false => "leave the section out where there is no Kubernetes",
        });
        return None;
    }
    let table = Table::read_advised(node, "kubernetes", &KEYS, &ADVICE, findings)?;
    let usual = KubernetesSettings::default();
    let name = table.value_optional("node", node_name, findings);
    let kubeconfig = table.value_optional("kubeconfig", path, findings);
    let daemon_set = table.value_optional("daemon_set", daemon_set, findings);
    let conditions =
        table.read_or("conditions", (usual.conditions, Vec::new()), conditions, findings);
    let boolean = |key: &'static str, usual, findings: &mut Findings<'_>| {
        table.read_or(key, usual, |node, all| decode::boolean(node, key, all), findings)
    };
    let events = boolean("events", usual.events, findings);
    let extended_resource = boolean("extended_resource", usual.extended_resource, findings);
    let drain = table.choice_or("drain", usual.drain, &DrainMode::CHOICES, findings);
    let bounds = MINUTE..=MINUTE * 60 * 24;
    let drain_for = table.duration_or("drain_for", usual.drain_for, bounds, findings);
    let (conditions, named) = conditions?;
    let settings = KubernetesSettings {
        access: KubernetesAccess { node: name?, kubeconfig: kubeconfig? },
        daemon_set: daemon_set?,
        conditions,
        events: events?,
        extended_resource: extended_resource?,
        drain: drain?,
        drain_for: drain_for?,
    };
    Some((settings, named))
}

/// `true` for the usual ones, `false` for none, or alerts by condition.
fn conditions(
    node: &YamlNode,
    findings: &mut Findings<'_>,
) -> Option<(Vec<NodeCondition>, Vec<NamedAlert>)> {
    let Content::Map(written) = &node.content else {
        let is_on = decode::boolean(node, "conditions", findings)?;
        let usual = if is_on { KubernetesSettings::default_conditions() } else { Vec::new() };
        return Some((usual, Vec::new()));
    };
    if written.len() > MOST_CONDITIONS {
        let message = format!("conditions has at most {MOST_CONDITIONS} entries");
        findings.add(node.span.clone(), message);
        return None;
    }
    let (mut all, mut named) = (Some(Vec::new()), Vec::new());
    for (kind, key, alerts) in decode::pairs(node, "conditions", findings)? {
        let is_kind = |kind: &str| {
            kind.len() <= 63
                && kind.starts_with(|c: char| c.is_ascii_uppercase())
                && kind.chars().all(|c| c.is_ascii_alphanumeric())
        };
        if !is_kind(kind) || OF_KUBELET.contains(&kind) {
            findings
                .add(key.span.clone(), format!("\"{kind}\" cannot be a condition of ours"))
                .hint(
                    "write one word in capitals, such as UnifiedMemoryLeaked; Ready and the \
                       pressures of the kubelet are its own",
                );
            all = None;
            continue;
        }
        match alert_names(alerts, findings) {
            Some(its) => {
                let alerts = its.iter().map(|one| Arc::clone(&one.alert)).collect();
                named.extend(its);
                if let Some(all) = &mut all {
                    all.push(NodeCondition { kind: kind.into(), alerts });
                }
            }
            None => all = None,
        }
    }
    Some((all?, named))
}

/// The conditions that the kubelet and the cloud's controller set:
/// <https://kubernetes.io/docs/reference/node/node-status/#condition>.
const OF_KUBELET: [&str; 5] =
    ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable"];

fn alert_names(node: &YamlNode, findings: &mut Findings<'_>) -> Option<Vec<NamedAlert>> {
    let entries = list(node, "the alerts of a condition", findings)?;
    if entries.is_empty() || entries.len() > MOST_ALERTS {
        let message = format!("a condition has 1 to {MOST_ALERTS} alerts");
        findings.add(node.span.clone(), message);
        return None;
    }
    each(entries, findings, |entry, findings| {
        let alert = decode::text(entry, "an alert", findings)?;
        Some(NamedAlert::at(alert.into(), entry, findings))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::mistake::SourceText;
    use crate::config::settings::{FileSettings, parse_settings};
    use crate::model::DaemonSetName;

    fn read(text: &str) -> Result<FileSettings, String> {
        parse_settings(&SourceText::new("f", text)).map_err(|mistakes| mistakes.to_string())
    }

    #[test]
    fn an_empty_section_reports_and_changes_nothing() {
        let settings = read("kubernetes: {}").unwrap().kubernetes.unwrap();
        assert_eq!(settings, KubernetesSettings::default());
        assert!(settings.events && !settings.extended_resource);
        assert_eq!(settings.drain, DrainMode::None);
        let kinds: Vec<&str> = settings.conditions.iter().map(|one| &*one.kind).collect();
        assert_eq!(kinds, ["UnifiedMemoryPressure", "UnifiedMemoryLeaked", "GpuDriverWedged"]);
    }

    #[test]
    fn everything_can_be_set() {
        let text = "kubernetes:\n  node: gb-1.example\n  kubeconfig: /etc/k\n  daemon_set: \
                    gpu/umawarden\n  conditions: {Tight: [MemoryLeaked, A]}\n  events: false\n  \
                    extended_resource: true\n  drain: evict\n  drain_for: 5m\n";
        let file = read(text).unwrap();
        let expected = KubernetesSettings {
            access: KubernetesAccess {
                node: Some("gb-1.example".to_owned()),
                kubeconfig: Some("/etc/k".into()),
            },
            daemon_set: Some(DaemonSetName {
                namespace: "gpu".to_owned(),
                name: "umawarden".to_owned(),
            }),
            conditions: vec![NodeCondition {
                kind: "Tight".into(),
                alerts: vec!["MemoryLeaked".into(), "A".into()],
            }],
            events: false,
            extended_resource: true,
            drain: DrainMode::Evict,
            drain_for: MINUTE * 5,
        };
        assert_eq!(file.kubernetes, Some(expected));
        let named: Vec<&str> = file.named_alerts.iter().map(|one| &*one.alert).collect();
        assert_eq!(named, ["MemoryLeaked", "A"]);
        let off = read("kubernetes: {conditions: false}").unwrap().kubernetes.unwrap();
        assert!(off.conditions.is_empty());
    }

    #[test]
    fn mistakes_say_what_to_write() {
        for (text, part) in [
            ("kubernetes: true", "write kubernetes: {}"),
            ("kubernetes: {node: GB_1}", "is no name of a node"),
            ("kubernetes: {daemon_set: umawarden}", "write it as in umawarden/umawarden"),
            ("kubernetes: {daemon_set: a/B}", "is no DaemonSet"),
            ("kubernetes: {conditions: {Ready: [A]}}", "cannot be a condition of ours"),
            ("kubernetes: {conditions: {low memory: [A]}}", "cannot be a condition of ours"),
            ("kubernetes: {conditions: {Tight: []}}", "1 to 100 alerts"),
            ("kubernetes: {drain: all}", "write one of: none, cordon, evict"),
            ("kubernetes: {drain_for: 1s}", "drain_for"),
            ("kubernetes: {taint: true}", "steps of a rule's remedy"),
        ] {
            let mistakes = read(text).expect_err(text);
            assert!(mistakes.contains(part), "{text}: {mistakes}");
        }
    }
}
