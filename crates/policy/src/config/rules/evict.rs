//! The step that puts model files out of memory behind an engine that loads.

use std::time::Duration;

use promql_rules::template::Template;

use super::alert::template;
use super::remedy::is_empty;
use crate::config::decode::{self, Findings, Table};
use crate::config::measure::size_bytes;
use crate::config::yaml::YamlNode;
use crate::model::Prefetch;
use crate::policy::rule::RemedyStep;

/// The engine that the alert is about.
const DEFAULT_ENGINE: &str = "{{ $labels.engine }}";

/// What was read last may be read again at once: several threads share a shard, and readahead of
/// many devices is a few MiB each.
const DEFAULT_BEHIND_BYTES: u64 = 256 << 20;

/// With less, what is being read goes too.
const LEAST_BEHIND_BYTES: u64 = 64 << 20;

/// A checkpoint of 100 GiB at 1 GiB/s takes two minutes, one from a slow disk a few more.
const DEFAULT_FOR: Duration = Duration::from_secs(600);

const SHORTEST_FOR: Duration = Duration::from_secs(1);
const LONGEST_FOR: Duration = Duration::from_secs(86_400);

/// Reads `evict_checkpoint`.
pub(super) fn evict_checkpoint(node: &YamlNode, findings: &mut Findings<'_>) -> Option<RemedyStep> {
    if is_empty(node) {
        return Some(RemedyStep::EvictCheckpoint {
            engine: engine_of_alert()?,
            behind_bytes: DEFAULT_BEHIND_BYTES,
            floor_bytes: 0,
            prefetch: Prefetch::Auto,
            for_at_most: DEFAULT_FOR,
        });
    }
    if node.text().is_some() {
        decode::wrong_kind(node, "evict_checkpoint", decode::MAPPING, findings)
            .hint("write evict_checkpoint: {behind: 256MiB, for: 10m}");
        return None;
    }
    let keys = &["engine", "behind", "floor", "prefetch", "for"];
    let table = Table::read(node, "evict_checkpoint", keys, findings)?;
    let engine = table.read_or("engine", engine_of_alert()?, engine, findings);
    let behind = |text: &str| match size_bytes(text)? {
        bytes if bytes < LEAST_BEHIND_BYTES => Err(format!("{text} is less than 64MiB")),
        bytes => Ok(bytes),
    };
    let behind_bytes = table.value_or("behind", DEFAULT_BEHIND_BYTES, behind, findings);
    let floor_bytes = table.value_or("floor", 0, size_bytes, findings);
    let prefetch =
        |text: &str| Prefetch::named(text).ok_or_else(|| format!("{text} is not off, auto or on"));
    let prefetch = table.value_or("prefetch", Prefetch::Auto, prefetch, findings);
    let for_at_most = table.duration_or("for", DEFAULT_FOR, SHORTEST_FOR..=LONGEST_FOR, findings);
    Some(RemedyStep::EvictCheckpoint {
        engine: engine?,
        behind_bytes: behind_bytes?,
        floor_bytes: floor_bytes?,
        prefetch: prefetch?,
        for_at_most: for_at_most?,
    })
}

/// A name, or a template that gives one from the alert's labels.
pub(super) fn engine(node: &YamlNode, findings: &mut Findings<'_>) -> Option<Template> {
    template(node, "engine", findings)?;
    let text = node.text()?.trim();
    if text.is_empty() {
        findings
            .add(node.span.clone(), "engine: it has no name")
            .hint("write the engine's name, or leave engine out for the one of the alert");
        return None;
    }
    Template::parse(text).ok()
}

/// The name of the engine that the alert is about.
pub(super) fn engine_of_alert() -> Option<Template> {
    Template::parse(DEFAULT_ENGINE).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::rules::remedy::tests::{step_of, template};

    #[test]
    fn evict_checkpoint_is_read_with_its_engine() {
        let of_alert = "{{ $labels.engine }}";
        let seconds = Duration::from_secs;
        let expected = |engine, behind_bytes, floor_bytes, prefetch, for_at_most| {
            let engine = template(engine);
            RemedyStep::EvictCheckpoint { engine, behind_bytes, floor_bytes, prefetch, for_at_most }
        };
        let mib_256 = 256 << 20;
        for (step, expected) in [
            ("{}", expected(of_alert, mib_256, 0, Prefetch::Auto, seconds(600))),
            (
                "{behind: 1GiB, for: 90s}",
                expected(of_alert, 1 << 30, 0, Prefetch::Auto, seconds(90)),
            ),
            ("{engine: deepseek}", expected("deepseek", mib_256, 0, Prefetch::Auto, seconds(600))),
            ("{floor: 3GiB}", expected(of_alert, mib_256, 3 << 30, Prefetch::Auto, seconds(600))),
            ("{prefetch: off}", expected(of_alert, mib_256, 0, Prefetch::Off, seconds(600))),
            ("{prefetch: on}", expected(of_alert, mib_256, 0, Prefetch::On, seconds(600))),
        ] {
            assert_eq!(step_of(&format!("evict_checkpoint: {step}")), Ok(expected));
        }
        for (step, expected) in [
            ("evict_checkpoint: deepseek", "must be a mapping"),
            ("evict_checkpoint: {behind: 1MiB}", "1MiB is less than 64MiB"),
            ("evict_checkpoint: {behind: far}", "not a size"),
            ("evict_checkpoint: {floor: high}", "not a size"),
            ("evict_checkpoint: {prefetch: yes}", "yes is not off, auto or on"),
            ("evict_checkpoint: {for: 0s}", "for"),
            ("evict_checkpoint: {for: 2d}", "for"),
            ("evict_checkpoint: {engine: ''}", "it has no name"),
            ("evict_checkpoint: {engine: '{{ $label }}'}", "engine: "),
            ("evict_checkpoint: {behin: 1GiB}", "unknown key \"behin\""),
        ] {
            let mistakes = step_of(step).expect_err(step);
            assert!(mistakes.contains(expected), "{step}\n{mistakes}");
        }
    }
}
