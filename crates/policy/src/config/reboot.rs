//! `reboot`: how the machine is rebooted, and what must be true before.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::decode::{self, Advice, Findings, Table, each, list, value};
use super::guard_rails::{NamedAlert, at_most};
use super::measure::{base_url, duration_within};
use super::yaml::{Content, YamlNode};
use crate::model::{
    EnginesRule, LoggedInRule, RebootBudget, RebootLock, RebootSettings, RebootWay,
};

const KEYS: [&str; 14] = [
    "way",
    "command",
    "sentinel_file",
    "delay",
    "at_most",
    "minimum_uptime",
    "logged_in",
    "warn_for",
    "engines",
    "blocked_by",
    "lock",
    "sysrq",
    "sysrq_after",
    "check_after",
];

const ADVICE: [Advice; 4] = [
    (&["mode"], "the node's mode, or the rule's, says whether anything is done"),
    (&["budget"], "it is called at_most: [{times: 1, per: 6h}]"),
    (&["windows", "never_in", "only_in"], "windows belong to guard_rails, or to the remedy"),
    (&["fleet_lock", "slot"], "it is called lock: {url: http://lock:8080}"),
];

const DEFAULT_SENTINEL: &str = "/run/reboot-required";
const DEFAULT_GROUP: &str = "default";
const DEFAULT_SYSRQ_AFTER: Duration = Duration::from_secs(600);

const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(86_400);

/// Long enough for a person to see it.
const SHORTEST_DELAY: Duration = Duration::from_secs(10);
const MOST_BUDGETS: usize = 8;
const MOST_ALERTS: usize = 100;
const MOST_ARGUMENTS: usize = 64;
const LONGEST: usize = 4_096;
const LONGEST_NAME: usize = 255;

#[derive(Clone, Copy)]
enum RebootWayName {
    Logind,
    Sentinel,
    Command,
}

/// Reads the block, and which alerts it names.
pub(super) fn read(
    node: &YamlNode,
    findings: &mut Findings<'_>,
) -> Option<(RebootSettings, Vec<NamedAlert>)> {
    let table = Table::read_advised(node, "reboot", &KEYS, &ADVICE, findings)?;
    let usual = RebootSettings::default();
    let way = way(&table, findings);
    let mut time = |key: &str, usual: Duration, least, most| {
        table.duration_or(key, usual, least..=most, findings)
    };
    let delay = time("delay", usual.delay, SHORTEST_DELAY, DAY);
    let uptime = time("minimum_uptime", usual.minimum_uptime, MINUTE * 5, DAY * 7);
    let warn_for = time("warn_for", usual.warn_for, SHORTEST_DELAY, DAY);
    let check_after = time("check_after", usual.check_after, SHORTEST_DELAY, DAY);
    let at_most = table.read_or("at_most", usual.at_most, budgets, findings);
    let users = &LoggedInRule::CHOICES;
    let logged_in = table.choice_or("logged_in", LoggedInRule::default(), users, findings);
    let engines = &EnginesRule::CHOICES;
    let engines = table.choice_or("engines", EnginesRule::default(), engines, findings);
    let sysrq_after = sysrq(&table, findings);
    let lock = table.read_optional("lock", lock, findings);
    let blocked_by = table.read_or("blocked_by", (Vec::new(), Vec::new()), alerts, findings);
    let (blocked_by, named) = blocked_by?;
    let settings = RebootSettings {
        way: way?,
        delay: delay?,
        at_most: at_most?,
        minimum_uptime: uptime?,
        logged_in: logged_in?,
        warn_for: warn_for?,
        engines: engines?,
        blocked_by,
        lock: lock?,
        sysrq_after: sysrq_after?,
        check_after: check_after?,
    };
    Some((settings, named))
}

fn way(table: &Table<'_>, findings: &mut Findings<'_>) -> Option<RebootWay> {
    let names = [
        ("logind", RebootWayName::Logind),
        ("sentinel", RebootWayName::Sentinel),
        ("command", RebootWayName::Command),
    ];
    let way = table.choice_or("way", RebootWayName::Logind, &names, findings)?;
    let mut idle = |key: &str, name: &str| {
        if let Some(found) = table.key(key) {
            findings
                .add(found.span.clone(), format!("{key} is given, and way is not {name}"))
                .hint(format!("write way: {name}, or remove {key}"));
        }
    };
    if !matches!(way, RebootWayName::Command) {
        idle("command", "command");
    }
    if !matches!(way, RebootWayName::Sentinel) {
        idle("sentinel_file", "sentinel");
    }
    match way {
        RebootWayName::Logind => Some(RebootWay::Logind),
        RebootWayName::Sentinel => {
            let file = match table.get("sentinel_file") {
                Some(node) => value(node, "sentinel_file", absolute, findings)?,
                None => DEFAULT_SENTINEL.into(),
            };
            Some(RebootWay::Sentinel { file })
        }
        RebootWayName::Command => command(table, findings),
    }
}

pub(super) fn absolute(text: &str) -> Result<PathBuf, String> {
    if !text.starts_with('/') || text.ends_with('/') || text.len() > LONGEST {
        return Err(format!("\"{text}\" is no absolute path of a file"));
    }
    if text.chars().any(char::is_control) {
        return Err("a path has no control characters".to_owned());
    }
    Ok(text.into())
}

fn command(table: &Table<'_>, findings: &mut Findings<'_>) -> Option<RebootWay> {
    const EXAMPLE: &str = "write command: [scontrol, reboot, ASAP, node1]";
    let Some(node) = table.get("command") else {
        findings.add(table.span(), "way: command needs a command").hint(EXAMPLE);
        return None;
    };
    if node.text().is_some() {
        decode::wrong_kind(node, "command", "a list", findings).hint(EXAMPLE);
        return None;
    }
    let entries = list(node, "command", findings)?;
    let line = each(entries, findings, |entry, findings| {
        let read = |text: &str| match text.contains('\0') || text.len() > LONGEST {
            true => Err("an argument has no NUL, and at most 4096 characters".to_owned()),
            false => Ok(text.to_owned()),
        };
        value(entry, "an argument", read, findings)
    })?;
    let is_program = line.first().is_some_and(|program| !program.trim().is_empty());
    if !is_program || line.len() > MOST_ARGUMENTS {
        let message =
            format!("a command is a program and at most {} arguments", MOST_ARGUMENTS - 1);
        findings.add(node.span.clone(), message).hint(EXAMPLE);
        return None;
    }
    Some(RebootWay::Command { line })
}

/// One bound, or several.
fn budgets(node: &YamlNode, findings: &mut Findings<'_>) -> Option<Vec<RebootBudget>> {
    const EXAMPLE: &str = "at_most: [{times: 1, per: 6h}, {times: 3, per: 7d}]";
    let read = |node: &YamlNode, findings: &mut Findings<'_>| {
        let bound = at_most(node, "at_most", EXAMPLE, findings)?;
        Some(RebootBudget { times: bound.times, per: bound.per })
    };
    let Content::List(entries) = &node.content else {
        return read(node, findings).map(|bound| vec![bound]);
    };
    if entries.is_empty() || entries.len() > MOST_BUDGETS {
        findings
            .add(node.span.clone(), format!("at_most has 1 to {MOST_BUDGETS} bounds"))
            .hint(format!("write {EXAMPLE}"));
        return None;
    }
    each(entries, findings, |entry, findings| read(entry, findings))
}

/// After how long, if it is allowed.
fn sysrq(table: &Table<'_>, findings: &mut Findings<'_>) -> Option<Option<Duration>> {
    let names = [("never", false), ("allowed", true)];
    let allowed = table.choice_or("sysrq", false, &names, findings)?;
    match table.get("sysrq_after") {
        Some(node) => {
            let read = |text: &str| duration_within(text, MINUTE, MINUTE * 60);
            let after = value(node, "sysrq_after", read, findings)?;
            if !allowed {
                findings
                    .add(node.span.clone(), "sysrq_after is given, and sysrq is not allowed")
                    .hint("write sysrq: allowed, or remove sysrq_after");
                return None;
            }
            Some(Some(after))
        }
        None => Some(allowed.then_some(DEFAULT_SYSRQ_AFTER)),
    }
}

fn lock(node: &YamlNode, findings: &mut Findings<'_>) -> Option<RebootLock> {
    const EXAMPLE: &str = "write lock: {url: \"http://lock:8080\", group: default}";
    if node.text().is_some() {
        decode::wrong_kind(node, "lock", decode::MAPPING, findings).hint(EXAMPLE);
        return None;
    }
    let table = Table::read(node, "lock", &["url", "group", "id", "ca_file"], findings)?;
    let Some(url) = table.get("url") else {
        findings.add(table.span(), "lock needs a url").hint(EXAMPLE);
        return None;
    };
    let url = value(url, "url", base_url, findings);
    let group = table.value_or("group", DEFAULT_GROUP.to_owned(), name, findings);
    let id = table.value_optional("id", name, findings);
    let ca_file = match table.get("ca_file") {
        Some(node) if url.as_deref().is_some_and(|url| url.starts_with("http://")) => {
            let text = "ca_file is for https, and the url is plain http";
            findings.add(node.span.clone(), text).hint("write url: \"https://…\", or leave it out");
            return None;
        }
        Some(node) => value(node, "ca_file", absolute, findings).map(Some),
        None => Some(None),
    };
    Some(RebootLock { url: url?, ca_file: ca_file?, group: group?, id: id?, drain: None })
}

/// The protocol's groups are so narrow.
fn name(text: &str) -> Result<String, String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if text.is_empty() || text.len() > LONGEST_NAME || !text.chars().all(is_plain) {
        return Err(format!("\"{text}\" is no name: letters, digits, . _ -"));
    }
    Ok(text.to_owned())
}

fn alerts(
    node: &YamlNode,
    findings: &mut Findings<'_>,
) -> Option<(Vec<Arc<str>>, Vec<NamedAlert>)> {
    let entries = list(node, "blocked_by", findings)?;
    if entries.len() > MOST_ALERTS {
        findings.add(node.span.clone(), format!("blocked_by names more than {MOST_ALERTS} alerts"));
        return None;
    }
    let named = each(entries, findings, |entry, findings| {
        let alert = decode::text(entry, "an alert", findings)?;
        Some(NamedAlert::at(alert.into(), entry, findings))
    })?;
    Some((named.iter().map(|one| Arc::clone(&one.alert)).collect(), named))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::mistake::SourceText;
    use crate::config::settings::parse_settings;

    fn read(text: &str) -> RebootSettings {
        parse_settings(&SourceText::new("f", text)).unwrap().reboot.unwrap()
    }

    #[test]
    fn a_reboot_is_configured_as_in_the_readme() {
        assert_eq!(read("reboot: {}"), RebootSettings::default());
        let all = read(
            "reboot:\n  way: command\n  command: [scontrol, reboot, ASAP, node1]\n  delay: 5m\n  \
             at_most: [{times: 2, per: 1d}]\n  minimum_uptime: 1h\n  logged_in: warn\n  warn_for: \
             1m\n  engines: drain\n  blocked_by: [A]\n  lock: {url: \"http://lock:8080/\", id: \
             n1}\n  sysrq: allowed\n  sysrq_after: 5m\n  check_after: 20m\n",
        );
        let lock = RebootLock {
            ca_file: None,
            url: "http://lock:8080".to_owned(),
            group: "default".to_owned(),
            id: Some("n1".to_owned()),
            drain: None,
        };
        let line = ["scontrol", "reboot", "ASAP", "node1"].map(str::to_owned).to_vec();
        let expected = RebootSettings {
            way: RebootWay::Command { line },
            delay: MINUTE * 5,
            at_most: vec![RebootBudget { times: 2, per: DAY }],
            minimum_uptime: MINUTE * 60,
            logged_in: LoggedInRule::Warn,
            warn_for: MINUTE,
            engines: EnginesRule::Drain,
            blocked_by: vec!["A".into()],
            lock: Some(lock),
            sysrq_after: Some(MINUTE * 5),
            check_after: MINUTE * 20,
        };
        assert_eq!(all, expected);
        let file = "/run/reboot-required".into();
        assert_eq!(read("reboot: {way: sentinel}").way, RebootWay::Sentinel { file });
        assert_eq!(read("reboot: {sysrq: allowed}").sysrq_after, Some(DEFAULT_SYSRQ_AFTER));
    }

    #[test]
    fn mistakes_are_reported_at_their_place_with_a_correction() {
        for (text, part) in [
            ("reboot: {way: sysrq}", "way cannot be \"sysrq\""),
            ("reboot: {way: command}", "way: command needs a command"),
            ("reboot: {way: command, command: reboot}", "write command: [scontrol"),
            ("reboot: {way: command, command: []}", "a command is a program"),
            ("reboot: {command: [a]}", "1:10: command is given, and way is not command"),
            ("reboot: {sentinel_file: /a}", "sentinel_file is given, and way is not sentinel"),
            ("reboot: {way: sentinel, sentinel_file: a}", "is no absolute path"),
            ("reboot: {delay: 0s}", "0s is out of bounds: from 10s to 1d"),
            ("reboot: {minimum_uptime: 1s}", "1s is out of bounds"),
            ("reboot: {at_most: []}", "at_most has 1 to 8 bounds"),
            ("reboot: {at_most: {times: 0, per: 1h}}", "0 would never act"),
            ("reboot: {sysrq_after: 5m}", "sysrq_after is given, and sysrq is not allowed"),
            ("reboot: {lock: {}}", "lock needs a url"),
            ("reboot: {lock: {url: \"http://a\", ca_file: /etc/ca.pem}}", "is for https"),
            ("reboot: {lock: {url: \"https://a\", ca_file: ca.pem}}", "absolute"),
            ("reboot: {lock: {url: \"a:80\"}}", "is no address"),
            ("reboot: {lock: {url: \"http://a\", group: \"a b\"}}", "is no name"),
            ("reboot: {mode: enforce}", "the node's mode, or the rule's, says"),
            ("reboot: {budget: 1}", "it is called at_most"),
        ] {
            let error = parse_settings(&SourceText::new("f", text)).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
