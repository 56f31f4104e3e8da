//! The step that has an engine give back memory that it only keeps.

use std::collections::BTreeSet;

use super::evict::{engine, engine_of_alert};
use super::remedy::is_empty;
use crate::config::decode::{self, Findings, Table};
use crate::config::yaml::YamlNode;
use crate::engines::ENGINES;
use crate::model::CachePermission;
use crate::policy::rule::RemedyStep;

const EXAMPLE: &str = "write empty_cache: {engine: deepseek, allow: [drop_prefix_cache]}";

/// Permissions that people may expect, and that no rule can give.
const NEVER: (&[&str], &str) = (
    &["abort", "pause", "pause_generation", "collective_rpc"],
    "it would end requests, or run code: retract_requests pauses SGLang and has its requests \
     computed again",
);

/// Reads `empty_cache`.
pub(super) fn empty_cache(node: &YamlNode, findings: &mut Findings<'_>) -> Option<RemedyStep> {
    if is_empty(node) {
        let (engine, allow) = (engine_of_alert()?, BTreeSet::new());
        return Some(RemedyStep::EmptyCache { engine, allow });
    }
    if node.text().is_some() {
        decode::wrong_kind(node, "empty_cache", decode::MAPPING, findings).hint(EXAMPLE);
        return None;
    }
    let table = Table::read(node, "empty_cache", &["engine", "allow"], findings)?;
    let engine = table.read_or("engine", engine_of_alert()?, engine, findings);
    let allow = table.read_or("allow", BTreeSet::new(), permissions, findings);
    Some(RemedyStep::EmptyCache { engine: engine?, allow: allow? })
}

fn permissions(node: &YamlNode, findings: &mut Findings<'_>) -> Option<BTreeSet<CachePermission>> {
    if node.text().is_some() {
        decode::wrong_kind(node, "allow", "a list", findings).hint(EXAMPLE);
        return None;
    }
    let entries = decode::list(node, "allow", findings)?;
    let allowed = decode::each(entries, findings, permission)?;
    Some(allowed.into_iter().collect())
}

fn permission(node: &YamlNode, findings: &mut Findings<'_>) -> Option<CachePermission> {
    let written = node.text().unwrap_or_default();
    let mut never = ENGINES.iter().flat_map(|facts| facts.never_called).chain([&NEVER]);
    if let Some((_, why)) = never.find(|(names, _)| names.contains(&written)) {
        findings.add(node.span.clone(), format!("{written} is never done")).hint((*why).to_owned());
        return None;
    }
    decode::choice(node, "allow", &CachePermission::CHOICES, findings)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::rules::remedy::tests::{step_of, template};

    #[test]
    fn the_accepted_costs_of_empty_cache_are_read_by_name() {
        use CachePermission::{DropPrefixCache, RetractRequests, Unpause};
        let of_alert = "{{ $labels.engine }}";
        for (step, engine, allow) in [
            ("empty_cache: {}", of_alert, [].as_slice()),
            ("empty_cache: {engine: deepseek}", "deepseek", &[]),
            ("empty_cache: {allow: []}", of_alert, &[]),
            ("empty_cache: {allow: [unpause, unpause]}", of_alert, &[Unpause]),
            (
                "empty_cache: {engine: '{{ $labels.engine }}', allow: [retract_requests, \
                 drop_prefix_cache]}",
                of_alert,
                &[DropPrefixCache, RetractRequests],
            ),
        ] {
            let allow = allow.iter().copied().collect();
            let expected = RemedyStep::EmptyCache { engine: template(engine), allow };
            assert_eq!(step_of(step), Ok(expected));
        }
        for (step, expected) in [
            ("empty_cache: deepseek", "empty_cache must be a mapping"),
            ("empty_cache: [a]", "must be"),
            ("empty_cache: {engine: ''}", "it has no name"),
            ("empty_cache: {engine: '{{ $label }}'}", "engine: "),
            ("empty_cache: {alow: []}", "unknown key \"alow\""),
            ("empty_cache: {allow: drop_prefix_cache}", "allow must be a list"),
            ("empty_cache: {allow: [drop_prefix]}", "allow cannot be \"drop_prefix\""),
            ("empty_cache: {allow: [{a: b}]}", "allow"),
            ("empty_cache: {allow: [sleep]}", "sleep is never done"),
            ("empty_cache: {allow: [wake_up]}", "on GB10 the whole host"),
            ("empty_cache: {allow: [release_memory_occupation]}", "SGLang's server ends"),
            ("empty_cache: {allow: [abort]}", "abort is never done"),
        ] {
            let mistakes = step_of(step).expect_err(step);
            assert!(mistakes.contains(expected), "{step}\n{mistakes}");
        }
    }
}
