//! What systemd itself says of units: the answer of `systemctl show`, which has what files,
//! drop-ins and usual values come to together.

use std::collections::BTreeMap;
use std::time::Duration;

use super::time_span::time_span;

/// What is asked of units that run engines.
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

/// What names other units among them.
const NAMING: [&str; 7] =
    ["After", "Requires", "Wants", "BindsTo", "Requisite", "PartOf", "Upholds"];

/// What is asked of units that those name.
pub const OF_OTHERS: [&str; 2] = ["Id", "LoadState"];

/// What systemd says of one unit; `None` where it does not tell, or nothing that makes sense.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToldUnit {
    /// `LoadState=`: `loaded`, `not-found`, `masked`, `bad-setting`, `error`.
    pub load_state: String,
    /// Its files have changed since systemd has read them.
    pub is_outdated: bool,
    /// `Restart=`.
    pub restart: Option<String>,
    /// `RestartSec=`.
    pub restart_after: Option<Duration>,
    /// `TimeoutStartSec=`; as long as can be where there is none.
    pub start_takes: Option<Duration>,
    /// `StartLimitIntervalSec=`.
    pub limit_interval: Option<Duration>,
    /// `StartLimitBurst=`.
    pub limit_burst: Option<u32>,
    /// `KillMode=`.
    pub kill_mode: Option<String>,
    /// `Type=`.
    pub kind: Option<String>,
    /// Units that it is ordered after, or needs.
    pub named: Vec<String>,
}

/// What systemd says of all that is of interest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// Units that run engines, by name.
    pub units: BTreeMap<String, ToldUnit>,
    /// `LoadState=` of what those name.
    pub loads: BTreeMap<String, String>,
}

/// Reads an answer: for each name that was asked for a block of lines `PROPERTY=VALUE`, with an
/// empty line between them.
///
/// # Errors
/// It is no such answer.
pub fn told_units(answer: &str, names: &[String]) -> Result<BTreeMap<String, ToldUnit>, String> {
    let blocks: Vec<&str> =
        answer.split("\n\n").map(str::trim).filter(|block| !block.is_empty()).collect();
    if blocks.len() != names.len() {
        return Err(format!(
            "systemctl was asked for {} units and told of {}",
            names.len(),
            blocks.len()
        ));
    }
    let read = blocks.into_iter().map(one);
    names.iter().cloned().zip(read).map(|(name, unit)| Ok((name, unit?))).collect()
}

fn one(block: &str) -> Result<ToldUnit, String> {
    let lines = block.lines().filter_map(|line| line.split_once('='));
    let all: BTreeMap<&str, &str> = lines.map(|(key, value)| (key, value.trim())).collect();
    let text = |key: &str| all.get(key).filter(|value| !value.is_empty()).copied();
    let load_state = text("LoadState").ok_or("systemctl tells no LoadState of a unit")?;
    let is_word =
        |word: &&str| word.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    let word = |key: &str| text(key).filter(is_word).map(str::to_owned);
    let span = |key: &str| text(key).and_then(time_span);
    let named = NAMING.iter().filter_map(|key| text(key)).flat_map(str::split_ascii_whitespace);
    let mut named: Vec<String> = named.map(str::to_owned).collect();
    named.sort();
    named.dedup();
    Ok(ToldUnit {
        load_state: Some(load_state).filter(is_word).ok_or("LoadState is no word")?.to_owned(),
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
