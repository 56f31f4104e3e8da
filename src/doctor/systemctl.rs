//! The state of units in systemd, from `systemctl show`. It includes files, drop-ins and defaults.

use std::collections::BTreeMap;
use std::time::Duration;

use super::time_span::time_span;

/// Properties of units that run engines.
pub const PROPERTIES: [&str; 17] = [
    "Id",
    "LoadState",
    "NeedDaemonReload",
    "Restart",
    "RestartUSec",
    "TimeoutStartUSec",
    "StartLimitIntervalUSec",
    "StartLimitBurst",
    "KillMode",
    "Type",
    "After",
    "Requires",
    "Wants",
    "BindsTo",
    "Requisite",
    "PartOf",
    "Upholds",
];

/// Properties that name other units.
const NAMING: [&str; 7] =
    ["After", "Requires", "Wants", "BindsTo", "Requisite", "PartOf", "Upholds"];

/// Properties of the named units.
pub const OF_OTHERS: [&str; 2] = ["Id", "LoadState"];

/// The state of one unit. Unreported or invalid properties are `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnitState {
    /// `LoadState=`: `loaded`, `not-found`, `masked`, `bad-setting`, `error`.
    pub load_state: String,
    /// Its files have changed since systemd read them.
    pub is_outdated: bool,
    /// `Restart=`.
    pub restart: Option<String>,
    /// `RestartSec=`.
    pub restart_after: Option<Duration>,
    /// `TimeoutStartSec=`; [`Duration::MAX`] if infinite.
    pub start_takes: Option<Duration>,
    /// `StartLimitIntervalSec=`.
    pub limit_interval: Option<Duration>,
    /// `StartLimitBurst=`.
    pub limit_burst: Option<u32>,
    /// `KillMode=`.
    pub kill_mode: Option<String>,
    /// `Type=`.
    pub kind: Option<String>,
    /// Units that it is ordered after or depends on.
    pub named: Vec<String>,
}

/// The state of all relevant units.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SystemdState {
    /// Units that run engines, by name.
    pub units: BTreeMap<String, UnitState>,
    /// `LoadState=` of the units that these name.
    pub loads: BTreeMap<String, String>,
}

/// Parses the output of `systemctl show`: for each name a block of lines `PROPERTY=VALUE`, with an
/// empty line between blocks.
///
/// # Errors
/// The output has another form.
pub fn unit_states(answer: &str, names: &[String]) -> Result<BTreeMap<String, UnitState>, String> {
    let blocks: Vec<&str> =
        answer.split("\n\n").map(str::trim).filter(|block| !block.is_empty()).collect();
    if blocks.len() != names.len() {
        return Err(format!(
            "systemctl show reported {1} units for {0} names",
            names.len(),
            blocks.len()
        ));
    }
    let read = blocks.into_iter().map(one);
    names.iter().cloned().zip(read).map(|(name, unit)| Ok((name, unit?))).collect()
}

fn one(block: &str) -> Result<UnitState, String> {
    let lines = block.lines().filter_map(|line| line.split_once('='));
    let all: BTreeMap<&str, &str> = lines.map(|(key, value)| (key, value.trim())).collect();
    let text = |key: &str| all.get(key).filter(|value| !value.is_empty()).copied();
    let load_state = text("LoadState").ok_or("systemctl show reported no LoadState of a unit")?;
    let is_word =
        |word: &&str| word.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    let word = |key: &str| text(key).filter(is_word).map(str::to_owned);
    let span = |key: &str| text(key).and_then(time_span);
    let named = NAMING.iter().filter_map(|key| text(key)).flat_map(str::split_ascii_whitespace);
    let mut named: Vec<String> = named.map(str::to_owned).collect();
    named.sort();
    named.dedup();
    Ok(UnitState {
        load_state: Some(load_state).filter(is_word).ok_or("LoadState is not a word")?.to_owned(),
        is_outdated: text("NeedDaemonReload") == Some("yes"),
        restart: word("Restart"),
        restart_after: span("RestartUSec"),
        start_takes: span("TimeoutStartUSec"),
        limit_interval: span("StartLimitIntervalUSec"),
        limit_burst: text("StartLimitBurst").and_then(|text| text.parse().ok()),
        kill_mode: word("KillMode"),
        kind: word("Type"),
        named,
    })
}
