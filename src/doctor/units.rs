//! How systemd starts and restarts engines.

use std::collections::BTreeSet;
use std::time::Duration;

use super::containers::LOADS_WITHIN;
use super::script::{OpenScript, ScriptReader, Scripts};
use super::systemctl::{SystemdState, UnitState};
use super::time_span::time_span;
use super::{AdviceTable, DoctorFacts, Fact, Finding, Severity, StartedEngine, known};
use crate::engines::{LaunchCommand, facts, recognise};
use crate::model::{EngineKind, duration, duration_text};
use crate::parse::process::printable;

/// Defaults of systemd (system.conf(5)).
const USUAL_START: Duration = Duration::from_secs(90);
const USUAL_LIMIT_INTERVAL: Duration = Duration::from_secs(10);

/// A guess: an engine that dies during its start does so five times within this time.
const LEAST_LIMIT_INTERVAL: Duration = Duration::from_secs(300);

/// The default timeout of `umawarden gate`.
const GATE_WAITS: Duration = Duration::from_secs(300);

/// A node reaches it once GPUs are reset and configured: nvidia-mig-manager.service is ordered
/// before it, and what uses GPUs after it (github.com/NVIDIA/mig-parted, deployments/systemd).
const GPU_RESET: &str = "nvidia-gpu-reset.target";

/// Units have fewer lines.
const MOST_LINES: usize = 4096;

/// What of a unit's scripts is named.
const MOST_UNSEEN: usize = 8;

/// A unit that runs an engine.
#[derive(Clone, Debug, Default)]
pub struct UnitFacts {
    /// With its suffix: `chat.service`.
    pub name: String,
    /// The engine that it runs.
    pub engine: Option<EngineKind>,
    /// Whether it runs the engine by `umawarden launch`.
    pub is_launched: bool,
    /// The engines that its commands start, through scripts too.
    pub starts: Vec<StartedEngine>,
    /// Whether the first of them runs in a container.
    pub is_container: bool,
    /// What of its commands and scripts is not evaluated, or cannot be read.
    pub unseen: Vec<String>,
    /// `ExecStartPre=` and `ExecCondition=`, and each `umawarden gate` of a script.
    pub before_start: Vec<String>,
    /// Units that it is ordered after.
    pub after: BTreeSet<String>,
    /// Units that it is ordered after or depends on.
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

/// Parses a unit's file and its drop-ins, in their order, and reads the scripts that it runs.
/// `None` if it runs no engine, and nothing that could not be read.
pub fn unit(
    name: &str,
    files: &[String],
    advice: &AdviceTable,
    open: &mut OpenScript<'_>,
) -> Option<UnitFacts> {
    let mut unit = UnitFacts { name: printable(name.as_bytes()), ..UnitFacts::default() };
    let (mut runs, mut environment, mut folder) = (Vec::new(), Vec::new(), None);
    for line in files.iter().flat_map(|text| joined(text)).take(MOST_LINES) {
        let Some((key, value)) = line.split_once('=') else { continue };
        let (key, value) = (key.trim(), value.trim());
        match key {
            "ExecStart" => append(&mut runs, value),
            "ExecStartPre" | "ExecCondition" => append(&mut unit.before_start, value),
            "Environment" => append(&mut environment, value),
            "WorkingDirectory" => folder = some(value.trim_start_matches('-')),
            "After" | "Requires" | "Wants" | "BindsTo" | "Requisite" | "PartOf" => {
                let names = value.split_ascii_whitespace().map(str::to_owned);
                if key == "After" {
                    unit.after.extend(names.clone());
                }
                unit.named.extend(names);
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
    let variables: Vec<(String, String)> = environment
        .iter()
        .flat_map(|line| words(line))
        .filter_map(|word| word.split_once('=').map(|(name, value)| (name.into(), value.into())))
        .collect();
    let first: Vec<String> = unit.before_start.clone();
    for line in first.iter().chain(&runs) {
        let line = words(line);
        let found =
            ScriptReader::new(&mut *open).unit_command(&line, &variables, folder.as_deref());
        unit.take(found, advice);
    }
    let runs: Vec<Vec<String>> = runs.iter().map(|line| words(line)).collect();
    unit.is_launched |= runs.iter().any(|line| is_of(line, "launch"));
    let of_scripts = unit.starts.first().map(|started| started.engine);
    unit.engine = runs.iter().find_map(|line| engine(line)).or(of_scripts);
    (unit.engine.is_some() || !unit.unseen.is_empty()).then_some(unit)
}

impl UnitFacts {
    /// Adds what its commands and their scripts run.
    fn take(&mut self, found: Scripts, advice: &AdviceTable) {
        self.unseen.extend(found.unread);
        for command in found.commands {
            let program =
                command.words.iter().position(|word| word.rsplit('/').next() == Some("umawarden"));
            let of_program = program.map_or(&[][..], |at| &command.words[at..]);
            if is_of(of_program, "gate") {
                self.before_start.push(of_program.join(" "));
                continue;
            }
            let Some(launch) = LaunchCommand::read(&command.words) else { continue };
            self.is_launched |= is_of(of_program, "launch");
            self.is_container |= self.starts.is_empty() && command.is_container;
            self.unseen.extend(command.unseen);
            let versions = advice.of_image(launch.image.as_deref());
            self.starts.push(StartedEngine::new(launch, versions));
        }
    }
}

/// Lines without comments, continuation lines joined.
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

/// An empty value resets the list.
fn append(values: &mut Vec<String>, value: &str) {
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

/// Whether it runs this subcommand of umawarden.
fn is_of(words: &[String], command: &str) -> bool {
    let program = words.first().and_then(|first| first.rsplit('/').next());
    program == Some("umawarden") && words.get(1).is_some_and(|word| word == command)
}

/// The engine that a command line runs, through wrappers too.
fn engine(words: &[String]) -> Option<EngineKind> {
    (0..words.len().min(64)).find_map(|from| {
        let word = words[from].rsplit('/').next().unwrap_or_default();
        // A name in the middle of a line may be an argument. A program has a subcommand or a path.
        let before = from.checked_sub(1).map(|before| words[before].as_str());
        let is_wrapped = before.is_none_or(|word| word == "--" || word.ends_with("env"));
        let is_program = is_wrapped || words[from].starts_with('/');
        let is_script = word.starts_with("python") || matches!(word, "sh" | "bash" | "env");
        let begins = is_program || is_script;
        begins.then(|| recognise("", &words[from..], None)).flatten().map(|(kind, _)| kind)
    })
}

pub(super) fn examine(facts: &DoctorFacts) -> Vec<Finding> {
    let (units, names) = match known("units", &facts.units, "no systemd units on this node") {
        Err(finding) => return vec![*finding],
        Ok(units) => units,
    };
    let mut findings: Vec<Finding> = units.iter().filter_map(unseen).collect();
    let systemd = match &facts.systemd {
        Fact::Is(systemd) => Some(systemd),
        Fact::Absent => None,
        Fact::Unknown(why) => {
            let text = format!("{why}; units are checked by their files alone");
            findings.push(Finding::new("systemd", Severity::Unknown, text));
            None
        }
    };
    for unit in units.iter().filter(|unit| unit.engine.is_some()) {
        let subject = format!("unit {}", unit.name);
        let of_one = match systemd
            .and_then(|systemd| Some((systemd, systemd.units.get(&unit.name)?)))
        {
            Some((systemd, own)) => examine_with_state(&unit.with_state(own), own, systemd, names),
            None => examine_one(unit, order(unit, &|name| is_file_of(names, name)), names),
        };
        findings.extend(of_one.into_iter().map(|finding| finding.of(&subject)));
    }
    if findings.is_empty() {
        let text = match units.iter().filter(|unit| unit.engine.is_some()).count() {
            0 => "no unit of this node runs an engine".to_owned(),
            some => format!("no fault in the {some} that run engines"),
        };
        findings.push(Finding::ok("units", text));
    }
    findings
}

/// What of a unit's scripts was not examined.
fn unseen(unit: &UnitFacts) -> Option<Finding> {
    let mut unseen = unit.unseen.clone();
    unseen.dedup();
    let more = unseen.len().saturating_sub(MOST_UNSEEN);
    unseen.truncate(MOST_UNSEEN);
    let mut text = unseen.join("; ");
    if more > 0 {
        text.push_str(&format!("; and {more} more"));
    }
    let subject = format!("unit {}", unit.name);
    let is_any = !text.is_empty();
    is_any.then(|| Finding::new("unit_script", Severity::Unknown, text).of(&subject))
}

/// An engine that starts before GPUs are reset and configured, on a node that has a target for it.
/// Docker's unit is ordered after it on DGX OS.
fn reset(unit: &UnitFacts, names: &BTreeSet<String>) -> Option<Finding> {
    let is_after = |name: &str| unit.after.contains(name);
    let is_ordered = is_after(GPU_RESET) || unit.is_container && is_after("docker.service");
    (names.contains(GPU_RESET) && !is_ordered).then(|| {
        let text = format!(
            "it is not ordered after {GPU_RESET}, which this node reaches at boot once its GPUs \
             are reset and configured: the engine may hold the GPU before, and a GPU in use cannot \
             be reset (documented: https://github.com/NVIDIA/mig-parted, deployments/systemd)"
        );
        Finding::new("gpu_reset", Severity::Warning, text)
            .fix(format!("[Unit] Wants={GPU_RESET}, After={GPU_RESET}"))
    })
}

fn examine_one(unit: &UnitFacts, order: Option<Finding>, names: &BTreeSet<String>) -> Vec<Finding> {
    let start = timeout(unit).or_else(|| notice(unit));
    [restart(unit), limit(unit), start, kill_mode(unit), order, reset(unit, names)]
        .into_iter()
        .flatten()
        .collect()
}

/// A unit whose state systemd has reported.
fn examine_with_state(
    unit: &UnitFacts,
    own: &UnitState,
    systemd: &SystemdState,
    names: &BTreeSet<String>,
) -> Vec<Finding> {
    let outdated = own.is_outdated.then(|| {
        let text = "its files have changed since systemd read them; the previous version is in \
            force";
        Finding::new("unit_outdated", Severity::Warning, text).fix("systemctl daemon-reload")
    });
    let state = &own.load_state;
    let mut findings = Vec::from_iter(outdated);
    match state.as_str() {
        "loaded" => {
            let is_there = |name: &str| {
                systemd.loads.get(name).is_none_or(|state| !matches!(state.as_str(), "not-found"))
            };
            findings.extend(examine_one(unit, order(unit, &is_there), names));
        }
        // A masked unit is never started, on purpose.
        "masked" => {}
        _ => {
            let text = format!("systemd cannot load it (LoadState={state}): it never starts");
            let fix = format!("systemd-analyze verify {} gives the reason", unit.name);
            findings.push(Finding::new("unit_load", Severity::Problem, text).fix(fix));
        }
    }
    findings
}

impl UnitFacts {
    /// The state in systemd, completed from its files.
    fn with_state(&self, state: &UnitState) -> Self {
        let UnitState { restart, restart_after, start_takes, limit_interval, limit_burst, .. } =
            state;
        Self {
            named: state.named.iter().cloned().collect(),
            restart: restart.clone().or_else(|| self.restart.clone()),
            restart_after: restart_after.or(self.restart_after),
            limit_interval: limit_interval.or(self.limit_interval),
            limit_burst: limit_burst.or(self.limit_burst),
            start_takes: start_takes.or(self.start_takes),
            kind: state.kind.clone().or_else(|| self.kind.clone()),
            kill_mode: state.kill_mode.clone().or_else(|| self.kill_mode.clone()),
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
    let fix = "`umawarden print unit --need SIZE -- COMMAND` prints a unit that waits for \
           memory";
    let hides = unit.engine.and_then(|kind| facts(kind).hides_killed_workers);
    let hides = hides.filter(|_| restart == "on-failure" && !unit.is_launched);
    if let Some(command) = hides {
        let text = format!(
            "{command} exits with 0 when its worker is killed: Restart=on-failure never restarts \
             it"
        );
        return Some(Finding::new("restart_policy", Severity::Problem, text).fix(fix));
    }
    if unit.is_launched || waits(unit).is_some() {
        return None;
    }
    let when = match unit.restart_after.filter(|after| *after >= Duration::from_secs(1)) {
        Some(after) => format!("after {}", duration_text(after)),
        None => "at once".to_owned(),
    };
    let text = format!(
        "Restart={restart} restarts it {when}, before the memory of its dead predecessor is \
         reclaimed, and it dies again"
    );
    Some(Finding::new("restart_policy", Severity::Warning, text).fix(fix))
}

fn limit(unit: &UnitFacts) -> Option<Finding> {
    restarts(unit)?;
    let interval = unit.limit_interval.unwrap_or(USUAL_LIMIT_INTERVAL);
    let is_unlimited = unit.limit_burst == Some(0);
    (interval < LEAST_LIMIT_INTERVAL || is_unlimited).then(|| {
        let is = match (interval.is_zero(), unit.limit_interval) {
            _ if is_unlimited => "StartLimitBurst=0 disables it".to_owned(),
            (true, _) => "StartLimitIntervalSec=0 disables it".to_owned(),
            (false, Some(_)) => {
                format!(
                    "{} is too short: an engine takes longer to die five times",
                    duration_text(interval)
                )
            }
            (false, None) => {
                "the default of 10 s is too short: an engine takes longer to die five times"
                    .to_owned()
            }
        };
        let text = format!("no effective start limit ({is}): it is restarted for ever");
        Finding::new("start_limit", Severity::Warning, text)
            .fix("[Unit] StartLimitIntervalSec=1h, StartLimitBurst=5")
    })
}

/// A gate before the start is part of the start.
fn timeout(unit: &UnitFacts) -> Option<Finding> {
    let gate = waits(unit)?;
    let mut given = gate.iter().zip(gate.iter().skip(1));
    let named = given.find(|(option, _)| *option == "--timeout").map(|(_, value)| value.as_str());
    let joined = gate.iter().find_map(|word| word.strip_prefix("--timeout="));
    let waits = named.or(joined).and_then(|text| duration(text).ok()).unwrap_or(GATE_WAITS);
    let start = unit.start_takes.unwrap_or(USUAL_START);
    // Both take 0 as infinite.
    let is_long_enough = start.is_zero() || (!waits.is_zero() && start > waits);
    (!is_long_enough).then(|| {
        let (start, waits) = (duration_text(start), duration_text(waits));
        let text = format!(
            "TimeoutStartSec is {start}, and its gate waits for up to {waits}: systemd stops the \
             start while the gate waits"
        );
        Finding::new("start_timeout", Severity::Problem, text)
            .fix("TimeoutStartSec=infinity: the gate has a timeout of its own")
    })
}

/// systemd waits until such a unit reports that it has started.
fn notice(unit: &UnitFacts) -> Option<Finding> {
    const UNTIL_UP: [&str; 4] = ["notify", "notify-reload", "forking", "dbus"];
    let kind = unit.kind.as_deref().filter(|kind| UNTIL_UP.contains(kind))?;
    let start = unit.start_takes.unwrap_or(USUAL_START);
    (!start.is_zero() && start < LOADS_WITHIN).then(|| {
        let text = format!(
            "TimeoutStartSec is {}, and with Type={kind} the start includes loading: systemd stops \
             it while it loads (a guess: up to {})",
            duration_text(start),
            duration_text(LOADS_WITHIN)
        );
        Finding::new("start_timeout", Severity::Warning, text).fix("TimeoutStartSec=15min")
    })
}

fn kill_mode(unit: &UnitFacts) -> Option<Finding> {
    let mode = unit.kill_mode.as_deref().filter(|mode| matches!(*mode, "process" | "none"))?;
    let text = format!("KillMode={mode} leaves its workers and their memory behind when it stops");
    Some(Finding::new("kill_mode", Severity::Problem, text).fix("KillMode=mixed"))
}

/// Whether a unit of this name, or its template, exists.
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
    // A name with a specifier is another name.
    let lacking = unit.named.iter().filter(is_file).filter(|name| !name.contains('%'));
    let lacking: Vec<String> = lacking
        .filter(|name| !is_known(name))
        .map(|name| printable(name.as_bytes()))
        .take(8)
        .collect();
    (!lacking.is_empty()).then(|| {
        let text = format!(
            "it is ordered after, or wants, units that do not exist here: {}; systemd ignores \
             them without an error",
            lacking.join(", ")
        );
        Finding::new("unit_order", Severity::Warning, text)
            .fix("name existing units: systemctl list-unit-files")
    })
}
