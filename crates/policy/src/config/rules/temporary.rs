//! Steps that change a setting of the kernel, or of the Kubernetes node, for a while.

use std::collections::BTreeMap;
use std::time::Duration;

use promql_rules::did_you_mean;
use promql_rules::template::Template;

use super::alert::template;
use super::remedy::is_empty;
use crate::config::decode::{self, Findings, Table};
use crate::config::measure::duration_within;
use crate::config::yaml::{Content, YamlNode};
use crate::model::{Sysctl, Taint, TaintEffect};
use crate::policy::rule::RemedyStep;

/// A checkpoint that has not been loaded by then is not loading.
const DEFAULT_FOR: Duration = Duration::from_secs(1_800);

const SHORTEST_FOR: Duration = Duration::from_secs(1);
const LONGEST_FOR: Duration = Duration::from_secs(86_400);

/// A node that has leaked may wait for weeks for the reboot that frees it.
const LONGEST_FOR_NODE: Duration = Duration::from_secs(30 * 86_400);

/// The kernel's own default is 128; a step of this name that reads more ahead is none.
const MOST_READ_AHEAD_KIB: u32 = 128;

/// Devices, and paths, of one step.
const MOST_PLACES: usize = 64;

/// Reads `set_sysctl`.
pub(super) fn set_sysctl(node: &YamlNode, findings: &mut Findings<'_>) -> Option<RemedyStep> {
    const EXAMPLE: &str = "write set_sysctl: {vm.min_free_kbytes: 2097152, for: 20m}";
    if !matches!(&node.content, Content::Map(pairs) if !pairs.is_empty()) {
        findings.add(node.span.clone(), "set_sysctl needs at least one setting").hint(EXAMPLE);
        return None;
    }
    let mut values = Some(BTreeMap::new());
    let mut for_at_most = Some(DEFAULT_FOR);
    for (name, key, value) in decode::pairs(node, "set_sysctl", findings)? {
        if name == "for" {
            for_at_most = time_limit(value, findings);
            continue;
        }
        match sysctl(name, key, value, findings) {
            Some((sysctl, value)) => {
                if let Some(values) = &mut values {
                    values.insert(sysctl, value);
                }
            }
            None => values = None,
        }
    }
    let values = values?;
    if values.is_empty() {
        findings.add(node.span.clone(), "set_sysctl sets nothing").hint(EXAMPLE);
        return None;
    }
    Some(RemedyStep::SetSysctl { values, for_at_most: for_at_most? })
}

fn sysctl(
    name: &str,
    key: &YamlNode,
    value: &YamlNode,
    findings: &mut Findings<'_>,
) -> Option<(Sysctl, u32)> {
    let names = Sysctl::ALL.map(Sysctl::name);
    let Some(sysctl) = Sysctl::named(name) else {
        let hint = did_you_mean(name, names)
            .unwrap_or_else(|| format!("settings that may be changed: {}", names.join(", ")));
        findings.add(key.span.clone(), format!("set_sysctl does not change \"{name}\"")).hint(hint);
        return None;
    };
    let read = |text: &str| {
        let range = sysctl.range();
        let value: Option<u32> = text.parse().ok().filter(|value| range.contains(value));
        value.ok_or_else(|| {
            let (least, most) = (range.start(), range.end());
            format!("\"{text}\" is no whole number from {least} to {most}, which the kernel takes")
        })
    };
    decode::value(value, name, read, findings).map(|value| (sysctl, value))
}

fn time_limit(node: &YamlNode, findings: &mut Findings<'_>) -> Option<Duration> {
    limit_within(node, LONGEST_FOR, findings)
}

fn time_limit_of_node(node: &YamlNode, findings: &mut Findings<'_>) -> Option<Duration> {
    limit_within(node, LONGEST_FOR_NODE, findings)
}

fn limit_within(node: &YamlNode, most: Duration, findings: &mut Findings<'_>) -> Option<Duration> {
    let read = |text: &str| duration_within(text, SHORTEST_FOR, most);
    decode::value(node, "for", read, findings)
}

/// Reads `throttle_readahead`.
pub(super) fn throttle_readahead(
    node: &YamlNode,
    findings: &mut Findings<'_>,
) -> Option<RemedyStep> {
    const EXAMPLE: &str = "write throttle_readahead: {kib: 8, of: [/models], for: 20m}";
    if !matches!(&node.content, Content::Map(pairs) if !pairs.is_empty()) {
        findings
            .add(node.span.clone(), "throttle_readahead needs kib, and devices or of")
            .hint(EXAMPLE);
        return None;
    }
    let keys = ["kib", "devices", "of", "for"];
    let table = Table::read(node, "throttle_readahead", &keys, findings)?;
    let kib = match table.get("kib") {
        Some(node) => decode::value(node, "kib", kib, findings),
        None => {
            findings.add(table.span(), "throttle_readahead needs kib").hint(EXAMPLE);
            None
        }
    };
    let devices = places(&table, "devices", findings, device);
    let of = places(&table, "of", findings, path);
    let for_at_most = table.read_or("for", DEFAULT_FOR, time_limit, findings);
    let (devices, of) = (devices?, of?);
    if devices.is_empty() && of.is_empty() {
        findings
            .add(table.span(), "throttle_readahead names neither devices nor of")
            .hint("devices: [nvme0n1] names disks, of: [/models] the disks below these paths");
        return None;
    }
    Some(RemedyStep::ThrottleReadahead { kib: kib?, devices, of, for_at_most: for_at_most? })
}

/// Reads `taint_node`.
pub(super) fn taint_node(node: &YamlNode, findings: &mut Findings<'_>) -> Option<RemedyStep> {
    const EXAMPLE: &str = "write taint_node: {key: umawarden.dev/memory-leaked, for: 1d}";
    if !matches!(&node.content, Content::Map(pairs) if !pairs.is_empty()) {
        findings.add(node.span.clone(), "taint_node needs a key").hint(EXAMPLE);
        return None;
    }
    let table = Table::read(node, "taint_node", &["key", "value", "effect", "for"], findings)?;
    let Some(key) = table.get("key") else {
        findings.add(table.span(), "taint_node needs a key").hint(EXAMPLE);
        return None;
    };
    let key = decode::value(key, "key", taint_key, findings);
    let value = table.value_optional("value", label_value, findings);
    let effects = &TaintEffect::CHOICES;
    let effect = table.choice_or("effect", TaintEffect::default(), effects, findings);
    let for_at_most = table.read_or("for", DEFAULT_FOR, time_limit_of_node, findings);
    let taint = Taint { key: key?, value: value?, effect: effect? };
    Some(RemedyStep::TaintNode { taint, for_at_most: for_at_most? })
}

/// Reads `cordon_node`.
pub(super) fn cordon_node(node: &YamlNode, findings: &mut Findings<'_>) -> Option<RemedyStep> {
    if is_empty(node) {
        return Some(RemedyStep::CordonNode { for_at_most: DEFAULT_FOR });
    }
    let table = Table::read(node, "cordon_node", &["for"], findings)?;
    let for_at_most = table.read_or("for", DEFAULT_FOR, time_limit_of_node, findings)?;
    Some(RemedyStep::CordonNode { for_at_most })
}

/// A name of Kubernetes, with a DNS name before a slash or without:
/// <https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/>.
fn taint_key(text: &str) -> Result<String, String> {
    let (prefix, name) = text.split_once('/').map_or((None, text), |(of, name)| (Some(of), name));
    let is_lower = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
    let is_prefix =
        |prefix: &str| !prefix.is_empty() && prefix.len() <= 253 && prefix.chars().all(is_lower);
    if !is_label(name) || prefix.is_some_and(|prefix| !is_prefix(prefix)) {
        return Err(format!("\"{text}\" is no name of Kubernetes, such as umawarden.dev/loads"));
    }
    let of_kubernetes = |prefix: &str| {
        ["kubernetes.io", "k8s.io"].iter().any(|own| {
            prefix.strip_suffix(own).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        })
    };
    if prefix.is_some_and(of_kubernetes) {
        return Err(format!("\"{text}\" is reserved for Kubernetes: begin it with umawarden.dev/"));
    }
    Ok(text.to_owned())
}

fn label_value(text: &str) -> Result<String, String> {
    let wrong = || format!("\"{text}\" is no value: at most 63 letters, digits, - _ .");
    is_label(text).then(|| text.to_owned()).ok_or_else(wrong)
}

fn is_label(text: &str) -> bool {
    let is_inner = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let is_edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let mut chars = text.chars();
    text.len() <= 63
        && text.chars().all(is_inner)
        && is_edge(chars.next())
        && is_edge(text.chars().last())
}

fn kib(text: &str) -> Result<u32, String> {
    let kib = text.parse().ok().filter(|kib| (1..=MOST_READ_AHEAD_KIB).contains(kib));
    kib.ok_or_else(|| format!("\"{text}\" is no whole number from 1 to {MOST_READ_AHEAD_KIB}"))
}

/// A list, or one entry by itself.
fn places<T>(
    table: &Table<'_>,
    key: &str,
    findings: &mut Findings<'_>,
    read: impl Fn(&YamlNode, &mut Findings<'_>) -> Option<T>,
) -> Option<Vec<T>> {
    let Some(node) = table.get(key) else { return Some(Vec::new()) };
    if node.text().is_some() {
        return read(node, findings).map(|place| vec![place]);
    }
    let entries = decode::list(node, key, findings)?;
    if let Some(excess) = entries.get(MOST_PLACES) {
        findings.add(excess.span.clone(), format!("{key} has at most {MOST_PLACES} entries"));
        return None;
    }
    decode::each(entries, findings, read)
}

/// `nvme0n1`; `/dev/nvme0n1` is as good.
fn device(node: &YamlNode, findings: &mut Findings<'_>) -> Option<String> {
    let read = |text: &str| {
        let name = text.strip_prefix("/dev/").unwrap_or(text);
        let is_name = !name.is_empty()
            && name.len() <= 255
            && !matches!(name, "." | "..")
            && !name.chars().any(|character| character == '/' || character.is_control());
        is_name.then(|| name.to_owned()).ok_or_else(|| {
            format!("\"{text}\" is no device's name; write it as in /sys/block: nvme0n1, dm-0")
        })
    };
    decode::value(node, "devices", read, findings)
}

/// A path, or a template that gives one from the alert's labels.
fn path(node: &YamlNode, findings: &mut Findings<'_>) -> Option<Template> {
    template(node, "of", findings)?;
    let read = |text: &str| {
        let wrong = || format!("\"{text}\" is no path from the root: write /models");
        let is_path = text.starts_with('/') || text.contains("{{");
        Template::parse(text).ok().filter(|_| is_path).ok_or_else(wrong)
    };
    decode::value(node, "of", read, findings)
}

/// Finds settings that two steps of one remedy change: the second would always find them held.
pub(super) fn set_twice(
    steps: &[RemedyStep],
    entries: &[std::sync::Arc<YamlNode>],
    findings: &mut Findings<'_>,
) {
    for (number, (later, node)) in steps.iter().zip(entries).enumerate() {
        let Some(settings) = later.settings() else { continue };
        let mut earlier = steps.iter().take(number);
        let Some(setting) =
            earlier.find_map(|step| step.settings()?.shared_setting(&settings).map(str::to_owned))
        else {
            continue;
        };
        findings
            .add(node.span.clone(), format!("two steps of one remedy change {setting}"))
            .hint("a setting is held by the step that changed it until that is undone: keep one");
    }
}
