//! `guard_rails.fleet`: how many nodes of a cluster do the same at the same time.

use std::time::Duration;

use super::decode::{self, Findings, Table};
use super::measure::duration_within;
use super::yaml::YamlNode;
use crate::policy::guard::{FleetLimit, FleetLimits, FleetShare, LONGEST_FLEET_PER};

const KEYS: [&str; 2] = ["stop_engine", "drop_caches"];

const EXAMPLE: &str = "stop_engine: {nodes: 25%, per: 10m}; nodes: 100% is no limit";

/// Engines take minutes to load again.
const USUAL_PER: Duration = Duration::from_secs(600);

/// A rule that is wrong, or an engine of a new version, is wrong on all nodes alike: three of four
/// go on serving. Two nodes, as most have, do not wait for one another.
const USUAL_STOPS: FleetLimit =
    FleetLimit { nodes: FleetShare { nodes: 2, percent: 25 }, per: USUAL_PER };

/// Most nodes that a limit can name.
const MOST_NODES: u32 = 1_000;

/// Where nothing is written: engines come back only by a start, caches fill by themselves.
pub(super) const fn usual_limits() -> FleetLimits {
    FleetLimits { stop_engine: Some(USUAL_STOPS), drop_caches: None }
}

pub(super) fn read(node: &YamlNode, findings: &mut Findings<'_>) -> Option<FleetLimits> {
    let table = Table::read(node, "fleet", &KEYS, findings)?;
    let usual = usual_limits();
    let stop_engine = limit_of(&table, "stop_engine", usual.stop_engine, findings);
    let drop_caches = limit_of(&table, "drop_caches", usual.drop_caches, findings);
    Some(FleetLimits { stop_engine: stop_engine?, drop_caches: drop_caches? })
}

fn limit_of(
    table: &Table<'_>,
    key: &str,
    usual: Option<FleetLimit>,
    findings: &mut Findings<'_>,
) -> Option<Option<FleetLimit>> {
    let read = |node: &YamlNode, findings: &mut Findings<'_>| limit(node, key, findings).map(Some);
    table.read_or(key, usual, read, findings)
}

fn limit(node: &YamlNode, what: &str, findings: &mut Findings<'_>) -> Option<FleetLimit> {
    if node.text().is_some() {
        decode::wrong_kind(node, what, decode::MAPPING, findings).hint(format!("write {EXAMPLE}"));
        return None;
    }
    let table = Table::read(node, what, &["nodes", "per"], findings)?;
    if table.get("nodes").is_none() {
        findings.add(table.span(), format!("{what} needs nodes")).hint(format!("write {EXAMPLE}"));
        return None;
    }
    let nodes = table.value_or("nodes", USUAL_STOPS.nodes, share, findings);
    let per = |text: &str| duration_within(text, Duration::from_secs(1), LONGEST_FLEET_PER);
    let per = table.value_or("per", USUAL_PER, per, findings);
    Some(FleetLimit { nodes: nodes?, per: per? })
}

/// `3`, or `25%`.
fn share(text: &str) -> Result<FleetShare, String> {
    let within = |text: &str, most: u32| {
        text.parse().ok().filter(|number: &u32| (1..=most).contains(number))
    };
    let read = match text.strip_suffix('%') {
        Some(percent) => within(percent, 100).map(|percent| FleetShare { nodes: 1, percent }),
        None => within(text, MOST_NODES).map(|nodes| FleetShare { nodes, percent: 0 }),
    };
    read.ok_or_else(|| {
        format!("\"{text}\" is neither a number of nodes from 1 to {MOST_NODES} nor a share as 25%")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::mistake::{Mistakes, SourceText};
    use crate::config::settings::parse_settings;

    fn read_file(fleet: &str, rest: &str) -> Result<FleetLimits, String> {
        let text = format!("guard_rails:\n  fleet: {fleet}\n{rest}");
        match parse_settings(&SourceText::new("umawarden.yaml", text)) {
            Ok(file) => Ok(file.guard_rails.unwrap().fleet),
            Err(Mistakes(mistakes)) => Err(mistakes.iter().map(ToString::to_string).collect()),
        }
    }

    #[test]
    fn limits_are_numbers_of_nodes_or_shares_and_what_is_absent_has_its_default() {
        let cluster = "cluster: {peers: [spark-2]}\n";
        let read = |fleet: &str| read_file(fleet, cluster).unwrap();
        assert_eq!(read("{}"), usual_limits());
        let written = read("{stop_engine: {nodes: 3}, drop_caches: {nodes: 10%, per: 30s}}");
        let stops = FleetLimit { nodes: FleetShare { nodes: 3, percent: 0 }, per: USUAL_PER };
        let nodes = FleetShare { nodes: 1, percent: 10 };
        let drops = FleetLimit { nodes, per: Duration::from_secs(30) };
        assert_eq!(written, FleetLimits { stop_engine: Some(stops), drop_caches: Some(drops) });
        let json = serde_json::to_value(written).unwrap();
        assert_eq!(serde_json::from_value::<FleetLimits>(json).unwrap(), written);
    }

    #[test]
    fn mistakes_are_reported_and_a_limit_without_a_cluster_is_one() {
        let cluster = "cluster: {peers: [spark-2]}\n";
        for (fleet, found) in [
            ("{stop_engine: 1}", "stop_engine must be a mapping"),
            ("{stop_engine: {per: 1m}}", "stop_engine needs nodes"),
            ("{stop_engine: {nodes: 0}}", "neither a number of nodes"),
            ("{stop_engine: {nodes: 1001}}", "neither a number of nodes"),
            ("{stop_engine: {nodes: 101%}}", "neither a number of nodes"),
            ("{stop_engine: {nodes: 1, per: 2d}}", "1d"),
            ("{stop: {nodes: 1}}", "unknown key \"stop\" in fleet"),
        ] {
            let mistake = read_file(fleet, cluster).unwrap_err();
            assert!(mistake.contains(found), "{fleet}: {mistake}");
        }
        let mistake = read_file("{stop_engine: {nodes: 1}}", "").unwrap_err();
        assert!(mistake.contains("there is no cluster"), "{mistake}");
    }
}
