//! `guard_rails`: what holds all remedies back.
//!
//! A rule test may have the same block, so that nothing here depends on the configuration file.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use promql_rules::did_you_mean;

use super::decode::{self, Findings, Table};
use super::fleet;
use super::measure::duration_within;
use super::mistake::Mistake;
use super::yaml::{Content, YamlNode};
use crate::model::{Grade, Grades, RebootSettings};
use crate::policy::guard::{
    AtMost, BreakerLimit, DAY_MINUTES, Glob, GuardRails, MOST_TIMES, MaintenanceWindow, Protected,
    WrittenWindow, time_zone,
};

/// The keys of the block.
pub const KEYS: [&str; 7] =
    ["budget", "breaker", "fleet", "protect", "maintenance_windows", "never_in", "inhibited_by"];

/// One action a minute on average: three rules at their own default budgets, and no more.
pub const DEFAULT_BUDGET: AtMost = AtMost { times: 60, per: Duration::from_secs(3_600) };

/// What has not helped three times in a row will not help the fourth time either. An hour later the
/// machine may be doing something else.
pub const DEFAULT_BREAKER: BreakerLimit =
    BreakerLimit { misses: 3, reset_after: Some(Duration::from_secs(3_600)) };

const LONGEST_PER: Duration = Duration::from_secs(30 * 86_400);
const MOST_WINDOWS: usize = 100;
const MOST_PATTERNS: usize = 1_000;
const LONGEST_NAME: usize = 255;

const DAYS: [&str; 7] =
    ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"];

/// Where nothing is written.
pub fn default_guard_rails() -> GuardRails {
    GuardRails {
        budget: Some(DEFAULT_BUDGET),
        breaker: Some(DEFAULT_BREAKER),
        protect: Protected::usual(),
        fleet: fleet::usual_limits(),
        ..GuardRails::default()
    }
}

/// A name of an alert that must exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedAlert {
    /// Name of the alert.
    pub alert: Arc<str>,
    /// The mistake, at the name, if no rule has that alert.
    pub unknown: Mistake,
}

impl NamedAlert {
    /// An alert that is named at that node.
    pub fn at(alert: Arc<str>, node: &YamlNode, findings: &Findings<'_>) -> Self {
        let text = format!("no rule has the alert \"{alert}\"");
        let unknown = findings.source().mistake(node.span.clone(), text);
        Self { alert, unknown }
    }

    /// The mistake, unless one of the rules has that alert.
    pub fn check<'a>(&self, mut alerts: impl Iterator<Item = &'a str> + Clone) -> Option<Mistake> {
        if alerts.clone().any(|alert| *alert == *self.alert) {
            return None;
        }
        let hint = did_you_mean(&self.alert, alerts.by_ref())
            .unwrap_or_else(|| "name an alert of the rules that are loaded".to_owned());
        Some(self.unknown.clone().hint(hint))
    }
}

/// Reads the block, and which alerts it names. `has_cluster`: whether this node is in one.
pub fn read(
    node: &YamlNode,
    has_cluster: bool,
    findings: &mut Findings<'_>,
) -> Option<(GuardRails, Vec<NamedAlert>)> {
    let table = Table::read(node, "guard_rails", &KEYS, findings)?;
    if let Some(node) = table.get("fleet").filter(|_| !has_cluster) {
        findings
            .add(node.span.clone(), "fleet bounds the nodes of a cluster, and there is no cluster")
            .hint("write cluster, which names the other nodes, or remove fleet");
    }
    read_table(&table, findings)
}

/// The same from a mapping that may hold more keys.
pub fn read_table(
    table: &Table<'_>,
    findings: &mut Findings<'_>,
) -> Option<(GuardRails, Vec<NamedAlert>)> {
    let budget = table.read_or(
        "budget",
        DEFAULT_BUDGET,
        |node, findings| at_most(node, "budget", "budget: {times: 60, per: 1h}", findings),
        findings,
    );
    let breaker = table.read_or("breaker", DEFAULT_BREAKER, breaker, findings);
    let fleet = table.read_or("fleet", fleet::usual_limits(), fleet::read, findings);
    let protect = table.read_or("protect", Protected::usual(), protect, findings);
    let windows = table.read_or("maintenance_windows", Vec::new(), windows, findings);
    let never_in = names(table, "never_in", findings);
    let inhibited_by = names(table, "inhibited_by", findings);
    let windows = windows?;
    for (name, node) in table.get("never_in").iter().flat_map(|node| named(node)) {
        check_window(&name, node, &windows, findings);
    }
    let alerts = table.get("inhibited_by").into_iter().flat_map(named);
    let alerts = alerts.map(|(alert, node)| NamedAlert::at(alert, node, findings)).collect();
    Some((
        GuardRails {
            budget: Some(budget?),
            breaker: Some(breaker?),
            protect: protect?,
            maintenance_windows: windows,
            never_in: never_in?,
            inhibited_by: inhibited_by?,
            reboot: RebootSettings::default(),
            enforced: Grades::default(),
            has_kubernetes: false,
            fleet: fleet?,
        },
        alerts,
    ))
}

/// Reads `enforce`: the grades that are enforced.
pub fn grades(node: &YamlNode, findings: &mut Findings<'_>) -> Option<Grades> {
    if !matches!(node.content, Content::List(_)) {
        decode::wrong_kind(node, "enforce", "a list of grades", findings)
            .hint("write enforce: [notice, evict, drop]");
        return None;
    }
    let entries = decode::list(node, "enforce", findings)?;
    let grades = decode::each(entries, findings, |entry, findings| {
        decode::choice(entry, "an entry of enforce", &Grade::CHOICES, findings)
    });
    Some(grades?.into_iter().collect())
}

/// Notes a window that does not exist.
fn check_window(
    name: &str,
    node: &YamlNode,
    windows: &[MaintenanceWindow],
    findings: &mut Findings<'_>,
) {
    if let Some((message, hint)) = unknown_window(name, windows) {
        findings.add(node.span.clone(), message).hint(hint);
    }
}

/// What to say of a window that does not exist.
pub fn unknown_window(name: &str, windows: &[MaintenanceWindow]) -> Option<(String, String)> {
    if windows.iter().any(|window| **window.name() == *name) {
        return None;
    }
    let known = windows.iter().map(|window| &**window.name());
    let hint = did_you_mean(name, known).unwrap_or_else(|| {
        "define it under guard_rails.maintenance_windows in the configuration".to_owned()
    });
    Some((format!("no maintenance window has the name \"{name}\""), hint))
}

/// A list of names; a single name needs no list.
pub fn names(table: &Table<'_>, key: &str, findings: &mut Findings<'_>) -> Option<Vec<Arc<str>>> {
    let Some(node) = table.get(key) else { return Some(Vec::new()) };
    if node.text().is_some() {
        return name(node, key, findings).map(|name| vec![name]);
    }
    let entries = decode::list(node, key, findings)?;
    let what = format!("an entry of {key}");
    decode::each(entries, findings, |node, findings| name(node, &what, findings))
}

/// The names in a list like that of [`names`], each with its node.
pub fn named(node: &YamlNode) -> Vec<(Arc<str>, &YamlNode)> {
    match &node.content {
        Content::List(entries) => {
            entries.iter().filter_map(|entry| Some((Arc::from(entry.text()?), &**entry))).collect()
        }
        _ => node.text().map(|text| (Arc::from(text), node)).into_iter().collect(),
    }
}

fn name(node: &YamlNode, what: &str, findings: &mut Findings<'_>) -> Option<Arc<str>> {
    let read = |text: &str| {
        if text.trim().is_empty() {
            Err("a name cannot be empty".to_owned())
        } else if text.len() > LONGEST_NAME || text.chars().any(char::is_control) {
            Err(format!("a name has at most {LONGEST_NAME} bytes and no control characters"))
        } else {
            Ok(Arc::from(text))
        }
    };
    decode::value(node, what, read, findings)
}

/// So many times in so long.
pub fn at_most(
    node: &YamlNode,
    what: &str,
    example: &str,
    findings: &mut Findings<'_>,
) -> Option<AtMost> {
    if node.text().is_some() {
        decode::wrong_kind(node, what, decode::MAPPING, findings).hint(format!("write {example}"));
        return None;
    }
    let table = Table::read(node, what, &["times", "per"], findings)?;
    let missing = |key: &str, findings: &mut Findings<'_>| {
        findings.add(table.span(), format!("{what} needs {key}")).hint(format!("write {example}"));
    };
    let times = match table.get("times") {
        Some(node) => decode::value(node, "times", times, findings),
        None => {
            missing("times", findings);
            None
        }
    };
    let per = match table.get("per") {
        Some(node) => {
            let read = |text: &str| duration_within(text, Duration::from_millis(1), LONGEST_PER);
            decode::value(node, "per", read, findings)
        }
        None => {
            missing("per", findings);
            None
        }
    };
    Some(AtMost { times: times?, per: per? })
}

fn times(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(0) => Err("0 would never act; use mode: observe for that".to_owned()),
        Ok(times) if times <= MOST_TIMES => Ok(times),
        _ => Err(format!("\"{text}\" is not a whole number from 1 to {MOST_TIMES}")),
    }
}

/// After how many misses a remedy is stopped, and for how long.
pub fn breaker(node: &YamlNode, findings: &mut Findings<'_>) -> Option<BreakerLimit> {
    if node.text().is_some() {
        decode::wrong_kind(node, "breaker", decode::MAPPING, findings)
            .hint("write breaker: {misses: 3, reset_after: 1h}; misses: 0 never stops it");
        return None;
    }
    let table = Table::read(node, "breaker", &["misses", "reset_after"], findings)?;
    let misses = |text: &str| match text.parse() {
        Ok(misses) if misses <= MOST_TIMES => Ok(misses),
        _ => Err(format!("\"{text}\" is not a whole number from 0 to {MOST_TIMES}")),
    };
    let misses = table.value_or("misses", DEFAULT_BREAKER.misses, misses, findings);
    let reset_after = |text: &str| {
        let after = duration_within(text, Duration::ZERO, LONGEST_PER)?;
        Ok(Some(after).filter(|after| !after.is_zero()))
    };
    let reset_after =
        table.value_or("reset_after", DEFAULT_BREAKER.reset_after, reset_after, findings);
    Some(BreakerLimit { misses: misses?, reset_after: reset_after? })
}

fn globs(node: &YamlNode, key: &str, findings: &mut Findings<'_>) -> Option<Vec<Glob>> {
    let entries = decode::list(node, key, findings)?;
    if entries.len() > MOST_PATTERNS {
        findings.add(node.span.clone(), format!("{key} has more than {MOST_PATTERNS} patterns"));
        return None;
    }
    let what = format!("an entry of {key}");
    decode::each(entries, findings, |node, findings| glob(node, &what, findings))
}

fn protect(node: &YamlNode, findings: &mut Findings<'_>) -> Option<Protected> {
    let keys = ["processes", "units", "containers", "namespaces", "pod_labels", "labels"];
    let table = Table::read(node, "protect", &keys, findings)?;
    let mut globs = |key: &str, default: Vec<Glob>| {
        table.read_or(key, default, |node, findings| globs(node, key, findings), findings)
    };
    let [processes, units, containers] =
        ["processes", "units", "containers"].map(|key| globs(key, Vec::new()));
    let namespaces = globs("namespaces", Protected::usual().namespaces);
    let mut pairs = |key: &str| {
        table.read_or(key, Vec::new(), |node, findings| labels(node, key, findings), findings)
    };
    let (pod_labels, labels) = (pairs("pod_labels"), pairs("labels"));
    Some(Protected {
        processes: processes?,
        units: units?,
        containers: containers?,
        namespaces: namespaces?,
        pod_labels: pod_labels?,
        labels: labels?,
    })
}

fn glob(node: &YamlNode, what: &str, findings: &mut Findings<'_>) -> Option<Glob> {
    decode::value(node, what, |text| Glob::try_from(text.to_owned()), findings)
}

fn labels(
    node: &YamlNode,
    key: &str,
    findings: &mut Findings<'_>,
) -> Option<Vec<(Arc<str>, Glob)>> {
    let mut labels = Some(Vec::new());
    for (name, _, value) in decode::pairs(node, key, findings)? {
        match (glob(value, &format!("{key}.{name}"), findings), &mut labels) {
            (Some(glob), Some(labels)) => labels.push((Arc::from(name), glob)),
            _ => labels = None,
        }
    }
    labels
}

fn windows(node: &YamlNode, findings: &mut Findings<'_>) -> Option<Vec<MaintenanceWindow>> {
    let entries = decode::list(node, "maintenance_windows", findings)?;
    if let Some(excess) = entries.get(MOST_WINDOWS) {
        let message = format!("there are more than {MOST_WINDOWS} maintenance windows");
        findings.add(excess.span.clone(), message);
        return None;
    }
    let mut seen = BTreeSet::new();
    decode::each(entries, findings, |node, findings| {
        let window = window(node, findings)?;
        if !seen.insert(Arc::clone(window.name())) {
            let message = format!("there is a maintenance window \"{}\" already", window.name());
            findings.add(node.span.clone(), message).hint("give it another name");
            return None;
        }
        Some(window)
    })
}

fn window(node: &YamlNode, findings: &mut Findings<'_>) -> Option<MaintenanceWindow> {
    let what = "a maintenance window";
    let keys = ["name", "days", "from", "to", "time_zone"];
    let table = Table::read(node, what, &keys, findings)?;
    let Some(named) = table.get("name") else {
        findings.add(table.span(), format!("{what} needs a name")).hint("add name: …");
        return None;
    };
    let name = name(named, "name", findings);
    let days = table.read_or("days", BTreeSet::new(), days, findings);
    let mut time = |key: &str, default: u16| table.value_or(key, default, time_of_day, findings);
    let (from, to) = (time("from", 0), time("to", DAY_MINUTES));
    let zone = |text: &str| time_zone(text).map(|_| text.to_owned());
    let zone = table.value_or("time_zone", "UTC".to_owned(), zone, findings);
    let (from, to) = (from?, to?);
    if from == to || from == DAY_MINUTES {
        findings
            .add(table.span(), "this window never opens")
            .hint("a whole day is from: 00:00, to: 24:00; over midnight: from: 22:00, to: 06:00");
        return None;
    }
    let written = WrittenWindow { name: name?, days: days?, from, to, time_zone: zone? };
    match MaintenanceWindow::try_from(written) {
        Ok(window) => Some(window),
        Err(message) => {
            findings.add(table.span(), message);
            None
        }
    }
}

/// Minutes since midnight.
fn time_of_day(text: &str) -> Result<u16, String> {
    let wrong = || format!("\"{text}\" is no time of day; write it like 06:30, or 24:00");
    let (hours, minutes) = text.split_once(':').ok_or_else(wrong)?;
    let number = |digits: &str, most: u16| {
        let is_number =
            (1..=2).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit());
        digits.parse().ok().filter(|number: &u16| is_number && *number <= most)
    };
    let minutes = number(minutes, 59).filter(|_| minutes.len() == 2).ok_or_else(wrong)?;
    let of_day = number(hours, 24).ok_or_else(wrong)? * 60 + minutes;
    if of_day > DAY_MINUTES { Err(wrong()) } else { Ok(of_day) }
}

/// Days and spans of days, `[mon-fri, sunday]`, as numbers from Monday, 1.
fn days(node: &YamlNode, findings: &mut Findings<'_>) -> Option<BTreeSet<i8>> {
    let entries = decode::list(node, "days", findings)?;
    if entries.is_empty() {
        findings.add(node.span.clone(), "days is empty").hint("remove it for every day");
        return None;
    }
    let spans = decode::each(entries, findings, |node, findings| {
        let text = decode::text(node, "a day", findings)?;
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        match (day(first), day(last)) {
            (Some(first), Some(last)) => Some((first, last)),
            (None, _) | (_, None) => {
                findings
                    .add(node.span.clone(), format!("\"{text}\" is no day of the week"))
                    .hint("write days: [mon-fri, sunday]");
                None
            }
        }
    });
    let mut days = BTreeSet::new();
    for (first, last) in spans? {
        let length = (last + 7 - first) % 7;
        days.extend((0..=length).map(|day| (first - 1 + day) % 7 + 1));
    }
    Some(days)
}

fn day(text: &str) -> Option<i8> {
    let text = text.trim().to_ascii_lowercase();
    let index = DAYS.iter().position(|day| *day == text || day[..3] == text)?;
    i8::try_from(index + 1).ok()
}

#[cfg(test)]
mod tests;
