//! The rule files inside the binary.

use std::collections::BTreeSet;

use super::mistake::SourceText;
use super::rules::parse_rules;
use super::settings::limits::DEFAULT_INTERVAL;
use crate::model::{RuleId, ShippedRule};
use crate::policy::rule::{Rule, RuleSet};

/// Used where neither the configuration file nor a flag names rule files.
pub fn shipped_rules() -> Vec<SourceText> {
    vec![
        SourceText::new("shipped:memory.yaml", include_str!("../../../../rules/memory.yaml")),
        SourceText::new("shipped:kernel.yaml", include_str!("../../../../rules/kernel.yaml")),
        SourceText::new("shipped:guard.yaml", include_str!("../../../../rules/guard.yaml")),
        SourceText::new("shipped:engines.yaml", include_str!("../../../../rules/engines.yaml")),
        SourceText::new("shipped:cluster.yaml", include_str!("../../../../rules/cluster.yaml")),
        SourceText::new("shipped:leak.yaml", include_str!("../../../../rules/leak.yaml")),
        SourceText::new(
            "shipped:kubernetes.yaml",
            include_str!("../../../../rules/kubernetes.yaml"),
        ),
    ]
}

/// Whether a file of that name is inside the binary.
pub fn is_shipped(name: &str) -> bool {
    name.starts_with("shipped:")
}

/// The shipped rules that are not among those. A loaded rule of the same group and name replaces
/// the shipped one.
pub fn shipped_off(loaded: &RuleSet) -> Vec<ShippedRule> {
    // A test reads them.
    let Ok(shipped) = parse_rules(&shipped_rules(), DEFAULT_INTERVAL) else { return Vec::new() };
    let ids: BTreeSet<&RuleId> = all(loaded).map(|rule| &rule.id).collect();
    let off = all(&shipped).filter(|rule| !ids.contains(&rule.id));
    off.map(|rule| ShippedRule { id: rule.id.clone(), part: rule.part() }).collect()
}

fn all(rules: &RuleSet) -> impl Iterator<Item = &Rule> {
    rules.groups.iter().flat_map(|group| &group.rules)
}
