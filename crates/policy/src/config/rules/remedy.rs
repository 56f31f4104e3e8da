//! What to do while an alert fires.

use std::time::Duration;

use promql_rules::did_you_mean;
use promql_rules::template::Template;

use super::alert::{query, template};
use super::evict::engine;
use super::{empty, evict, rails, temporary};
use crate::config::decode::{self, Findings, Table};
use crate::config::measure::size_bytes;
use crate::config::yaml::{Content, YamlNode};
use crate::model::{CacheKind, Target};
use crate::policy::guard::Rails;
use crate::policy::rule::{Query, ReclaimFrom, Remedy, RemedyStep, RuleScope, counted_by_engine};

const WHICH_ENGINE: &str = "engine names one whose restarts are deferred (umawarden adopt); \
                            without it, the engine whose growth takes the memory is stopped";

const REBOOT_ADVICE: [decode::Advice; 1] = [(
    &["way", "delay", "at_most", "minimum_uptime", "logged_in", "engines", "lock", "sysrq"],
    "it belongs to reboot in the configuration",
)];

const MOST_STEPS: usize = 16;

/// The keys of steps in rule files.
const STEPS: &[&str] = <RemedyStep as strum::VariantNames>::VARIANTS;

/// Less than this is not worth an action.
const LEAST_RECLAIM_BYTES: u64 = 1 << 20;

const KEYS: [&str; 9] = [
    "aim",
    "steps",
    "cooldown",
    "at_most",
    "only_in",
    "never_in",
    "inhibited_by",
    "require_approval",
    "breaker",
];

/// The default: a stopping engine returns its requests within seconds, and a collapse leaves no
/// more time.
const DEFAULT_GRACE: Duration = Duration::from_secs(2);

/// An action is given up after 30 s; the end of a killed engine must fit in besides.
const LONGEST_GRACE: Duration = Duration::from_secs(20);

/// Reads a remedy; every part is read even if another is wrong.
pub(super) fn read(
    node: &YamlNode,
    scope: RuleScope,
    findings: &mut Findings<'_>,
) -> Option<Remedy> {
    if !matches!(node.content, Content::Map(_)) {
        decode::wrong_kind(node, "a remedy", decode::MAPPING, findings)
            .hint("write remedy: {steps: [{drop_caches: {}}, {compact_memory: {}}]}");
        return None;
    }
    let table = Table::read(node, "a remedy", &KEYS, findings)?;
    let aim = table.read_optional("aim", |node, findings| aim(node, scope, findings), findings);
    let steps = steps(&table, findings);
    let rails = rails::read(&table, findings);
    let (aim, steps) = (aim?, steps?);
    let rails = Rails { by_engine: counted_by_engine(&steps), ..rails? };
    Some(Remedy { aim, steps, rails })
}

/// An aim is met when it yields anything: one that compares nothing would end every remedy at once.
fn aim(node: &YamlNode, scope: RuleScope, findings: &mut Findings<'_>) -> Option<Query> {
    let query = query(node, "aim", scope, findings)?;
    if query.expr.is_condition() {
        return Some(query);
    }
    findings
        .add(node.span.clone(), "aim is met for all values: it compares nothing")
        .hint("write what shall be true: uma_memory_free_bytes > 4 * 1024^3");
    None
}

fn steps(table: &Table<'_>, findings: &mut Findings<'_>) -> Option<Vec<RemedyStep>> {
    let node = table.get("steps");
    let entries = match node {
        Some(node) if !matches!(node.content, Content::List(_)) => {
            decode::wrong_kind(node, "steps", "a list", findings)
                .hint("begin each step with a dash: - drop_caches: {}");
            return None;
        }
        Some(node) => decode::list(node, "steps", findings)?,
        None => &[],
    };
    if entries.is_empty() {
        let place = table.key("steps").map_or_else(|| table.span(), |key| key.span.clone());
        findings
            .add(place, "a remedy needs at least one step")
            .hint("add steps: [{drop_caches: {what: pagecache}}], or remove the remedy");
        return None;
    }
    if let Some(excess) = entries.get(MOST_STEPS) {
        let message = format!("a remedy has at most {MOST_STEPS} steps");
        findings.add(excess.span.clone(), message);
    }
    let steps = decode::each(entries, findings, step)?;
    temporary::set_twice(&steps, entries, findings);
    let reboot = steps.iter().position(RemedyStep::reboots);
    if let Some(after) = reboot.and_then(|reboot| entries.get(reboot + 1)) {
        findings
            .add(after.span.clone(), "a step comes after reboot")
            .hint("reboot is the last resort: let nothing come after it");
        return None;
    }
    let stop = steps.iter().position(RemedyStep::stops_engine);
    let after = stop.and_then(|stop| {
        let mut after = steps.iter().enumerate().skip(stop + 1);
        after.find(|(_, step)| !step.is_notice() && !step.reboots())
    });
    if let Some((place, step)) = after {
        findings
            .add(entries[place].span.clone(), format!("{} comes after stop_engine", step.name()))
            .hint("stop_engine is the last resort: let only notify or reboot come after it");
        return None;
    }
    Some(steps)
}

/// One step: a mapping with its name as the only key.
fn step(node: &YamlNode, findings: &mut Findings<'_>) -> Option<RemedyStep> {
    if let Some(name) = node.text() {
        unknown_or_bare(node, name, findings);
        return None;
    }
    let pairs = decode::pairs(node, "a step", findings)?;
    if pairs.len() > 1 {
        findings
            .add(pairs[1].1.span.clone(), "two steps in one list entry")
            .hint("begin each step with a dash of its own");
    }
    if is_empty(node) {
        let known = format!("known steps: {}", STEPS.join(", "));
        findings.add(node.span.clone(), "an empty step").hint(known);
    }
    let &(name, key, value) = pairs.first()?;
    match name {
        "drop_caches" => drop_caches(value, findings),
        "compact_memory" => compact_memory(value, findings),
        "reclaim" => reclaim(value, findings),
        "evict_checkpoint" => evict::evict_checkpoint(value, findings),
        "empty_cache" => empty::empty_cache(value, findings),
        "set_sysctl" => temporary::set_sysctl(value, findings),
        "throttle_readahead" => temporary::throttle_readahead(value, findings),
        "taint_node" => temporary::taint_node(value, findings),
        "cordon_node" => temporary::cordon_node(value, findings),
        "notify" => notify(value, findings),
        "stop_engine" => stop_engine(value, findings),
        "reboot" => reboot(value, findings),
        _ => {
            unknown_or_bare(key, name, findings);
            None
        }
    }
}

fn unknown_or_bare(node: &YamlNode, name: &str, findings: &mut Findings<'_>) {
    if STEPS.contains(&name) {
        findings
            .add(node.span.clone(), format!("the step {name} must be a mapping"))
            .hint(format!("write {name}: {{}}"));
        return;
    }
    let hint = did_you_mean(name, STEPS.iter().copied())
        .unwrap_or_else(|| format!("known steps: {}", STEPS.join(", ")));
    findings.add(node.span.clone(), format!("unknown step \"{name}\"")).hint(hint);
}

pub(super) fn is_empty(node: &YamlNode) -> bool {
    match &node.content {
        Content::Null => true,
        Content::Map(pairs) => pairs.is_empty(),
        Content::Scalar(_) | Content::List(_) => false,
    }
}

fn drop_caches(node: &YamlNode, findings: &mut Findings<'_>) -> Option<RemedyStep> {
    if is_empty(node) {
        return Some(RemedyStep::DropCaches { what: CacheKind::PageCache, sync: false });
    }
    if node.text().is_some() {
        if let Some(kind) = cache_kind(node, findings) {
            decode::wrong_kind(node, "drop_caches", decode::MAPPING, findings)
                .hint(format!("write drop_caches: {{what: {kind}}}"));
        }
        return None;
    }
    let table = Table::read(node, "drop_caches", &["what", "sync"], findings)?;
    let what = table.read_or("what", CacheKind::PageCache, cache_kind, findings);
    let sync = table.read_or(
        "sync",
        false,
        |node, findings| decode::boolean(node, "sync", findings),
        findings,
    );
    Some(RemedyStep::DropCaches { what: what?, sync: sync? })
}

/// The kernel's numbers are refused: 4 silences its own log of drops for good, and `3` does not
/// show what it drops.
fn cache_kind(node: &YamlNode, findings: &mut Findings<'_>) -> Option<CacheKind> {
    let hint = match node.text().map(str::trim) {
        Some("1") => "write {what: pagecache}",
        Some("2" | "slab") => "kernel objects are dropped together with the cache: {what: all}",
        Some("3") => "write {what: all}",
        Some("4") => "it drops nothing, but silences the kernel's log of drops until the next boot",
        _ => return decode::choice(node, "what", &CacheKind::CHOICES, findings),
    };
    let written = node.text().unwrap_or_default();
    findings.add(node.span.clone(), format!("drop_caches does not take {written}")).hint(hint);
    None
}

fn compact_memory(node: &YamlNode, findings: &mut Findings<'_>) -> Option<RemedyStep> {
    if !is_empty(node) {
        findings
            .add(node.span.clone(), "compact_memory takes no settings")
            .hint("write compact_memory: {}");
        return None;
    }
    Some(RemedyStep::CompactMemory)
}

fn reclaim(node: &YamlNode, findings: &mut Findings<'_>) -> Option<RemedyStep> {
    const EXAMPLE: &str = "write reclaim: {cgroup: /system.slice/backup.service, bytes: 2GiB}, or \
                           engine: '{{ $labels.engine }}' instead of cgroup";
    let missing = |what: &str, place, findings: &mut Findings<'_>| {
        findings.add(place, format!("reclaim needs {what}")).hint(EXAMPLE);
    };
    if is_empty(node) || node.text().is_some() {
        missing("cgroup (or engine) and bytes", node.span.clone(), findings);
        return None;
    }
    let table = Table::read(node, "reclaim", &["cgroup", "engine", "bytes"], findings)?;
    let from = match (table.get("cgroup"), table.get("engine")) {
        (Some(node), None) => cgroup(node, findings).map(ReclaimFrom::Cgroup),
        (None, Some(node)) => engine(node, findings).map(ReclaimFrom::Engine),
        (None, None) => {
            missing("cgroup or engine", table.span(), findings);
            None
        }
        (Some(_), Some(engine)) => {
            let text = "reclaim takes a cgroup or an engine, not both";
            findings.add(engine.span.clone(), text).hint(EXAMPLE);
            None
        }
    };
    let bytes = match table.get("bytes") {
        Some(node) => {
            let read = |text: &str| match size_bytes(text)? {
                bytes if bytes < LEAST_RECLAIM_BYTES => Err(format!("{text} is less than 1MiB")),
                bytes => Ok(bytes),
            };
            decode::value(node, "bytes", read, findings)
        }
        None => {
            missing("bytes", table.span(), findings);
            None
        }
    };
    Some(RemedyStep::Reclaim { from: from?, bytes: bytes? })
}

/// A path, or a template that gives one from the alert's labels.
fn cgroup(node: &YamlNode, findings: &mut Findings<'_>) -> Option<Template> {
    let template = template(node, "cgroup", findings)?;
    let text = node.text()?;
    if text.contains("{{") {
        return Some(template);
    }
    let hint = match text.strip_prefix("/sys/fs/cgroup") {
        Some(below) => format!("write the path below the hierarchy's root: {below}"),
        None if Target::is_cgroup_path(text) => return Some(template),
        None => "it begins with / and leads nowhere else: /system.slice/backup.service".to_owned(),
    };
    findings.add(node.span.clone(), format!("cgroup: \"{text}\" is no control group")).hint(hint);
    None
}

fn notify(node: &YamlNode, findings: &mut Findings<'_>) -> Option<RemedyStep> {
    let missing = |place, findings: &mut Findings<'_>| {
        findings.add(place, "notify needs a message").hint("write notify: {message: \"…\"}");
        None
    };
    if is_empty(node) || node.text().is_some() {
        return missing(node.span.clone(), findings);
    }
    let table = Table::read(node, "notify", &["message"], findings)?;
    let Some(message) = table.get("message") else { return missing(table.span(), findings) };
    Some(RemedyStep::Notify { message: template(message, "message", findings)? })
}

fn stop_engine(node: &YamlNode, findings: &mut Findings<'_>) -> Option<RemedyStep> {
    let mut named = None;
    let grace = if is_empty(node) {
        DEFAULT_GRACE
    } else if node.text().is_some() {
        decode::wrong_kind(node, "stop_engine", decode::MAPPING, findings)
            .hint("write stop_engine: {grace: 5s}; 0s sends no SIGTERM before SIGKILL");
        return None;
    } else {
        let table = Table::read_advised(
            node,
            "stop_engine",
            &["engine", "grace"],
            &[(&["name", "pid", "container", "unit"], WHICH_ENGINE)],
            findings,
        )?;
        named = match table.get("engine") {
            Some(node) => Some(engine(node, findings)?),
            None => None,
        };
        table.duration_or("grace", DEFAULT_GRACE, Duration::ZERO..=LONGEST_GRACE, findings)?
    };
    let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
    Some(RemedyStep::StopEngine { engine: named, grace_ms })
}

/// How and when is the configuration's business: the rule only says why.
fn reboot(node: &YamlNode, findings: &mut Findings<'_>) -> Option<RemedyStep> {
    if node.text().is_some() {
        decode::wrong_kind(node, "reboot", decode::MAPPING, findings)
            .hint("write reboot: {why: \"memory has leaked\"}");
        return None;
    }
    if is_empty(node) {
        return Some(RemedyStep::Reboot { why: None });
    }
    let table = Table::read_advised(node, "reboot", &["why"], &REBOOT_ADVICE, findings)?;
    let why = match table.get("why") {
        Some(why) => Some(template(why, "why", findings)?),
        None => None,
    };
    Some(RemedyStep::Reboot { why })
}

#[cfg(test)]
pub(super) mod tests;
