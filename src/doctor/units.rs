//! What systemd would do with engines when they die, and before.

use std::collections::BTreeSet;
use std::time::Duration;

use super::containers::LOADS_WITHIN;
use super::systemctl::{Told, ToldUnit};
use super::time_span::time_span;
use super::{Facts, Finding, Known, Verdict, known};
use crate::engines::{facts, recognise};
use crate::model::{EngineKind, duration, duration_text};
use crate::parse::process::printable;

/// What systemd takes where a unit does not say (system.conf(5)).
const USUAL_START: Duration = Duration::from_secs(90);
const USUAL_LIMIT_INTERVAL: Duration = Duration::from_secs(10);

/// A guess: an engine that dies in its start does so within this time, five times.
const LEAST_LIMIT_INTERVAL: Duration = Duration::from_secs(300);

/// How long `umawarden gate` waits where it is not told.
const GATE_WAITS: Duration = Duration::from_secs(300);

/// Longer files, and more of a file's lines, are no units.
const MOST_LINES: usize = 4096;

/// A unit that runs an engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnitFacts {
    /// Its name.
    pub name: String,
    /// What it runs.
    pub engine: Option<EngineKind>,
    /// Whether `umawarden launch` runs that.
    pub is_launched: bool,
    /// `ExecStartPre=` and `ExecCondition=`.
    pub before_start: Vec<String>,
    /// Units that it is ordered after, or needs.
    pub named: BTreeSet<String>,
    /// `Restart=`.
    pub restart: Option<String>,
    /// `RestartSec=`.
    pub restart_after: Option<Duration>,
    /// `StartLimitIntervalSec=`.
    pub limit_interval: Option<Duration>,
    /// `StartLimitBurst=`.
    pub limit_burst: Option<u32>,
    /// `TimeoutStartSec=`.
    pub start_takes: Option<Duration>,
    /// `KillMode=`.
    pub kill_mode: Option<String>,
    /// `Type=`.
    pub kind: Option<String>,
}

/// Reads a unit's file and its drop-ins, in their order. `None`: it runs no engine.
pub fn unit(name: &str, files: &[String]) -> Option<UnitFacts> {
    let mut unit = UnitFacts { name: printable(name.as_bytes()), ..UnitFacts::default() };
    let mut runs = Vec::new();
    for line in files.iter().flat_map(|text| joined(text)).take(MOST_LINES) {
        let Some((key, value)) = line.split_once('=') else { continue };
        let (key, value) = (key.trim(), value.trim());
        match key {
            "ExecStart" => put(&mut runs, value),
            "ExecStartPre" | "ExecCondition" => put(&mut unit.before_start, value),
            "After" | "Requires" | "Wants" | "BindsTo" | "Requisite" | "PartOf" => {
                unit.named.extend(value.split_ascii_whitespace().map(str::to_owned));
            }
            "Restart" => unit.restart = some(value),
            "RestartSec" => unit.restart_after = time_span(value),
            "StartLimitBurst" => unit.limit_burst = value.parse().ok(),
            "StartLimitIntervalSec" | "StartLimitInterval" => {
                unit.limit_interval = time_span(value)
            }
            "TimeoutStartSec" | "TimeoutSec" => unit.start_takes = time_span(value),
            "KillMode" => unit.kill_mode = some(value),
            "Type" => unit.kind = some(value),
            _ => {}
        }
    }
    let runs: Vec<Vec<String>> = runs.iter().map(|line| words(line)).collect();
    unit.is_launched = runs.iter().any(|line| is_of(line, "launch"));
    unit.engine = runs.iter().find_map(|line| engine(line));
    unit.engine.is_some().then_some(unit)
}

/// Lines without comments, each with those that continue it.
fn joined(text: &str) -> Vec<String> {
    let (mut lines, mut open) = (Vec::new(), String::new());
    for line in text.lines() {
        let line = line.trim();
        if open.is_empty() && line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(part) = line.strip_suffix('\\') {
            open.push_str(part);
            open.push(' ');
            continue;
        }
        open.push_str(line);
        lines.push(std::mem::take(&mut open));
    }
    lines.extend((!open.is_empty()).then_some(open));
    lines
}

/// An empty value takes back what was there.
fn put(values: &mut Vec<String>, value: &str) {
    if value.is_empty() {
        values.clear();
    } else {
        values.push(value.to_owned());
    }
}

fn some(value: &str) -> Option<String> {
    (!value.is_empty()).then(|| value.to_owned())
}

/// The words of a command line, without its prefixes and quotes.
fn words(line: &str) -> Vec<String> {
    let line = line.trim_start_matches(['@', '-', ':', '+', '!']);
    let (mut words, mut word, mut quote) = (Vec::new(), String::new(), None);
    for character in line.chars() {
        match (quote, character) {
            (Some(open), character) if character == open => quote = None,
            (None, '"' | '\'') => quote = Some(character),
            (None, ' ' | '\t') => {
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
            }
            (_, character) => word.push(character),
        }
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}

/// Whether it runs that command of umawarden.
fn is_of(words: &[String], command: &str) -> bool {
    let program = words.first().and_then(|first| first.rsplit('/').next());
    program == Some("umawarden") && words.get(1).is_some_and(|word| word == command)
}

/// The engine that a line runs, whatever it is wrapped in.
fn engine(words: &[String]) -> Option<EngineKind> {
    (0..words.len().min(64)).find_map(|from| {
        let word = words[from].rsplit('/').next().unwrap_or_default();
        // A name in the middle of a line may be an argument: a program has a subcommand, or a path.
        let before = from.checked_sub(1).map(|before| words[before].as_str());
        let is_wrapped = before.is_none_or(|word| word == "--" || word.ends_with("env"));
        let is_program = is_wrapped || words[from].starts_with('/');
        let is_script = word.starts_with("python") || matches!(word, "sh" | "bash" | "env");
        let begins = is_program || is_script;
        begins.then(|| recognise("", &words[from..], None)).flatten().map(|(kind, _)| kind)
    })
}

pub(super) fn examine(facts: &Facts) -> Vec<Finding> {
    let (units, names) = match known("units", &facts.units, "there are no units of systemd here") {
        Err(finding) => return vec![*finding],
        Ok(units) => units,
    };
    let mut findings = Vec::new();
    let told = match &facts.systemd {
        Known::Is(told) => Some(told),
        Known::Absent => None,
        Known::Not(why) => {
            let says = format!("{why}; units are judged by their files alone");
            findings.push(Finding::new("systemd", Verdict::CannotTell, says));
            None
        }
    };
    for unit in units {
        let subject = format!("unit {}", unit.name);
        let of_one = match told.and_then(|told| Some((told, told.units.get(&unit.name)?))) {
            Some((told, own)) => examine_told(&unit.as_told(own), own, told),
            None => examine_one(unit, order(unit, &|name| is_file_of(names, name))),
        };
        findings.extend(of_one.into_iter().map(|finding| finding.of(&subject)));
    }
    if findings.is_empty() {
        let says = match units.len() {
            0 => "no unit of this node runs an engine".to_owned(),
            some => format!("nothing is wrong with those {some} that run engines"),
        };
        findings.push(Finding::ok("units", says));
    }
    findings
}

fn examine_one(unit: &UnitFacts, order: Option<Finding>) -> Vec<Finding> {
    [restart(unit), limit(unit), timeout(unit).or_else(|| notice(unit)), kill_mode(unit), order]
        .into_iter()
        .flatten()
        .collect()
}

/// One of which systemd itself has told.
fn examine_told(unit: &UnitFacts, own: &ToldUnit, told: &Told) -> Vec<Finding> {
    let outdated = own.is_outdated.then(|| {
        let says = "its files have changed since systemd has read them: what is in force is what \
                    they said before";
        Finding::new("unit_outdated", Verdict::Warning, says).fix("systemctl daemon-reload")
    });
    let state = &own.load_state;
    let mut findings = Vec::from_iter(outdated);
    match state.as_str() {
        "loaded" => {
            let is_there = |name: &str| {
                told.loads.get(name).is_none_or(|state| !matches!(state.as_str(), "not-found"))
            };
            findings.extend(examine_one(unit, order(unit, &is_there)));
        }
        // Nobody can start it, and nobody means to.
        "masked" => {}
        _ => {
            let says = format!("systemd cannot use it (LoadState={state}): it never starts");
            let fix = format!("systemd-analyze verify {} says why", unit.name);
            findings.push(Finding::new("unit_load", Verdict::Problem, says).fix(fix));
        }
    }
    findings
}

impl UnitFacts {
    /// What systemd itself says counts, and what it does not say, its files do.
    fn as_told(&self, told: &ToldUnit) -> Self {
        let ToldUnit { restart, restart_after, start_takes, limit_interval, limit_burst, .. } =
            told;
        Self {
            named: told.named.iter().cloned().collect(),
            restart: restart.clone().or_else(|| self.restart.clone()),
            restart_after: restart_after.or(self.restart_after),
            limit_interval: limit_interval.or(self.limit_interval),
            limit_burst: limit_burst.or(self.limit_burst),
            start_takes: start_takes.or(self.start_takes),
            kind: told.kind.clone().or_else(|| self.kind.clone()),
            kill_mode: told.kill_mode.clone().or_else(|| self.kill_mode.clone()),
            ..self.clone()
        }
    }
}

fn restarts(unit: &UnitFacts) -> Option<&str> {
    unit.restart.as_deref().filter(|restart| *restart != "no")
}

fn waits(unit: &UnitFacts) -> Option<Vec<String>> {
    unit.before_start.iter().map(|line| words(line)).find(|line| is_of(line, "gate"))
}

fn restart(unit: &UnitFacts) -> Option<Finding> {
    let restart = restarts(unit)?;
    let fix = "`umawarden print systemd-unit --need SIZE -- COMMAND` prints one that waits for \
               memory";
    let hides = unit.engine.and_then(|kind| facts(kind).hides_killed_workers);
    let hides = hides.filter(|_| restart == "on-failure" && !unit.is_launched);
    if let Some(command) = hides {
        let says = format!(
            "{command} ends with 0 when its worker is killed: Restart=on-failure never starts it \
             again"
        );
        return Some(Finding::new("restart_policy", Verdict::Problem, says).fix(fix));
    }
    if unit.is_launched || waits(unit).is_some() {
        return None;
    }
    let when = match unit.restart_after.filter(|after| *after >= Duration::from_secs(1)) {
        Some(after) => format!("after {}, whether or not", duration_text(after)),
        None => "at once, whether or not".to_owned(),
    };
    let says = format!(
        "Restart={restart} starts it again {when} its dead predecessor's memory is back, so that \
         it dies again"
    );
    Some(Finding::new("restart_policy", Verdict::Warning, says).fix(fix))
}

fn limit(unit: &UnitFacts) -> Option<Finding> {
    restarts(unit)?;
    let interval = unit.limit_interval.unwrap_or(USUAL_LIMIT_INTERVAL);
    let is_unlimited = unit.limit_burst == Some(0);
    (interval < LEAST_LIMIT_INTERVAL || is_unlimited).then(|| {
        let is = match (interval.is_zero(), unit.limit_interval) {
            _ if is_unlimited => "StartLimitBurst=0 is none".to_owned(),
            (true, _) => "StartLimitIntervalSec=0 is none".to_owned(),
            (false, Some(_)) => {
                format!("{} is too short for an engine to reach it", duration_text(interval))
            }
            (false, None) => {
                "10 s, which is usual, is too short for an engine to reach it".to_owned()
            }
        };
        let says = format!(
            "there is no start limit: {is}, for it takes longer to die five times; it is started \
             again for ever"
        );
        Finding::new("start_limit", Verdict::Warning, says)
            .fix("[Unit] StartLimitIntervalSec=1h, StartLimitBurst=5")
    })
}

/// A gate before the start counts as a part of it.
fn timeout(unit: &UnitFacts) -> Option<Finding> {
    let gate = waits(unit)?;
    let mut given = gate.iter().zip(gate.iter().skip(1));
    let named = given.find(|(option, _)| *option == "--timeout").map(|(_, value)| value.as_str());
    let joined = gate.iter().find_map(|word| word.strip_prefix("--timeout="));
    let waits = named.or(joined).and_then(|text| duration(text).ok()).unwrap_or(GATE_WAITS);
    let start = unit.start_takes.unwrap_or(USUAL_START);
    // 0 is for ever, for both.
    let is_long_enough = start.is_zero() || (!waits.is_zero() && start > waits);
    (!is_long_enough).then(|| {
        let (start, waits) = (duration_text(start), duration_text(waits));
        let says = format!(
            "its start may take {start}, and the gate before it waits for up to {waits}: systemd \
             ends it while it waits"
        );
        Finding::new("start_timeout", Verdict::Problem, says)
            .fix("TimeoutStartSec=infinity: the gate has a timeout of its own")
    })
}

/// A start that systemd waits for until the engine says that it is up.
fn notice(unit: &UnitFacts) -> Option<Finding> {
    const UNTIL_UP: [&str; 4] = ["notify", "notify-reload", "forking", "dbus"];
    let kind = unit.kind.as_deref().filter(|kind| UNTIL_UP.contains(kind))?;
    let start = unit.start_takes.unwrap_or(USUAL_START);
    (!start.is_zero() && start < LOADS_WITHIN).then(|| {
        let says = format!(
            "its start may take {}, and ends with Type={kind} when it is up: systemd ends it while \
             it loads (a guess: up to {})",
            duration_text(start),
            duration_text(LOADS_WITHIN)
        );
        Finding::new("start_timeout", Verdict::Warning, says).fix("TimeoutStartSec=15min")
    })
}

fn kill_mode(unit: &UnitFacts) -> Option<Finding> {
    let mode = unit.kill_mode.as_deref().filter(|mode| matches!(*mode, "process" | "none"))?;
    let says =
        format!("KillMode={mode} leaves its workers behind when it ends, with all of their memory");
    Some(Finding::new("kill_mode", Verdict::Problem, says).fix("KillMode=mixed"))
}

/// Whether there is a file of that name, or of its template.
fn is_file_of(names: &BTreeSet<String>, name: &str) -> bool {
    let template = name
        .split_once('@')
        .and_then(|(base, rest)| Some(format!("{base}@.{}", rest.rsplit_once('.')?.1)));
    names.contains(name) || template.is_some_and(|template| names.contains(&template))
}

fn order(unit: &UnitFacts, is_known: &dyn Fn(&str) -> bool) -> Option<Finding> {
    let is_file = |name: &&String| {
        [".target", ".service", ".socket"].iter().any(|ending| name.ends_with(ending))
    };
    // What holds a specifier is another name.
    let lacking = unit.named.iter().filter(is_file).filter(|name| !name.contains('%'));
    let lacking: Vec<String> = lacking
        .filter(|name| !is_known(name))
        .map(|name| printable(name.as_bytes()))
        .take(8)
        .collect();
    (!lacking.is_empty()).then(|| {
        let says = format!(
            "it is ordered after, or wants, what does not exist here: {}; systemd does not wait \
             for it, and says nothing",
            lacking.join(", ")
        );
        Finding::new("unit_order", Verdict::Warning, says)
            .fix("name units that exist: systemctl list-unit-files")
    })
}
