//! A remedy's own guard rails.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::config::decode::{self, Findings, Table};
use crate::config::guard_rails::{at_most, breaker, named, names};
use crate::config::yaml::{Content, YamlNode};
use crate::policy::guard::{
    AtMost, ByEngine, DEFAULT_APPROVAL_EXPIRES, LONGEST_APPROVAL_EXPIRES, Rails,
};

/// A round of steps has been tried by then and its effect is over. A dip comes back within seconds,
/// and a driver that gives memory back does so in 2 to 5 s.
const DEFAULT_COOLDOWN: Duration = Duration::from_secs(30);

/// Three or four evictions carried a whole load of a model where it was measured; what needs more
/// than five such loads an hour is not cured by this remedy, but costs everybody else's cache.
pub(super) const DEFAULT_AT_MOST: AtMost = AtMost { times: 20, per: Duration::from_secs(3_600) };

const LONGEST_COOLDOWN: Duration = Duration::from_secs(86_400);

/// Less than this is no time for a person.
const SHORTEST_APPROVAL_EXPIRES: Duration = Duration::from_secs(10);

/// The longest time in which a person may deny what goes ahead otherwise.
const LONGEST_DENIAL: Duration = Duration::from_secs(86_400);

/// Reads them from the remedy's mapping. Whoever knows the steps says what counts by engine.
pub(in crate::config) fn read(table: &Table<'_>, findings: &mut Findings<'_>) -> Option<Rails> {
    let cooldown = table.duration_or(
        "cooldown",
        DEFAULT_COOLDOWN,
        Duration::ZERO..=LONGEST_COOLDOWN,
        findings,
    );
    let at_most = table.read_or(
        "at_most",
        DEFAULT_AT_MOST,
        |node, findings| at_most(node, "at_most", "at_most: {times: 20, per: 1h}", findings),
        findings,
    );
    let approval = table.read_or("require_approval", (None, false), approval, findings);
    let breaker = table.read_optional("breaker", breaker, findings);
    let only_in = names(table, "only_in", findings);
    let never_in = names(table, "never_in", findings);
    let inhibited_by = names(table, "inhibited_by", findings);
    // A list that allows nothing is more likely a mistake than intended.
    if let (Some(key), Some([])) = (table.key("only_in"), only_in.as_deref()) {
        findings.add(key.span.clone(), "only_in names no window").hint("remove it");
        return None;
    }
    let (approval, unless_denied) = approval?;
    Some(Rails {
        cooldown: cooldown?,
        at_most: Some(at_most?),
        by_engine: ByEngine::Nothing,
        approval,
        unless_denied,
        breaker: breaker?,
        only_in: only_in?,
        never_in: never_in?,
        inhibited_by: inhibited_by?,
    })
}

/// How long people have for their answer, and whether the act goes ahead without one.
fn approval(node: &YamlNode, findings: &mut Findings<'_>) -> Option<(Option<Duration>, bool)> {
    if !matches!(node.content, Content::Map(_)) {
        if node.text().is_none() {
            decode::wrong_kind(node, "require_approval", "true or a mapping", findings)
                .hint("write require_approval: {expires: 10m}");
            return None;
        }
        let wanted = decode::boolean(node, "require_approval", findings)?;
        return Some((wanted.then_some(DEFAULT_APPROVAL_EXPIRES), false));
    }
    let keys = ["expires", "unless_denied_within"];
    let table = Table::read(node, "require_approval", &keys, findings)?;
    if let (Some(_), Some(key)) = (table.get("expires"), table.key("unless_denied_within")) {
        findings
            .add(key.span.clone(), "require_approval has expires and unless_denied_within")
            .hint("keep expires to wait for a yes, or unless_denied_within to wait for a no");
        return None;
    }
    if table.get("unless_denied_within").is_some() {
        let (key, least) = ("unless_denied_within", SHORTEST_APPROVAL_EXPIRES);
        let within = table.duration_or(key, least, least..=LONGEST_DENIAL, findings)?;
        return Some((Some(within), true));
    }
    let bounds = SHORTEST_APPROVAL_EXPIRES..=LONGEST_APPROVAL_EXPIRES;
    let expires = table.duration_or("expires", DEFAULT_APPROVAL_EXPIRES, bounds, findings)?;
    Some((Some(expires), false))
}

/// What a name in a remedy refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReferenceKind {
    Window,
    Alert,
    /// A series with the state of rules, which a remedy that acts reads.
    Series,
}

/// A name in a remedy, to be looked up when everything has been read.
#[derive(Clone, Debug)]
pub(super) struct NameUse {
    pub(super) kind: ReferenceKind,
    pub(super) name: Arc<str>,
    pub(super) span: Range<usize>,
}

/// The names that a rule's remedy uses.
pub(super) fn uses(rule: &Table<'_>) -> Vec<NameUse> {
    let Some(Content::Map(pairs)) = rule.get("remedy").map(|remedy| &remedy.content) else {
        return Vec::new();
    };
    let used = pairs.iter().flat_map(|(key, value)| {
        let kind = match key.text() {
            Some("only_in" | "never_in") => ReferenceKind::Window,
            Some("inhibited_by") => ReferenceKind::Alert,
            _ => return Vec::new(),
        };
        let one =
            |(name, node): (Arc<str>, &YamlNode)| NameUse { kind, name, span: node.span.clone() };
        named(value).into_iter().map(one).collect()
    });
    used.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::mistake::SourceText;
    use crate::config::rules::parse_rules;

    fn rails(approval: &str) -> Result<Rails, String> {
        let text = format!(
            "groups: [{{name: g, rules: [{{alert: A, expr: uma_memory_free_bytes < 1, remedy: \
             {{steps: [{{compact_memory: {{}}}}], require_approval: {approval}}}}}]}}]"
        );
        let rules = parse_rules(&[SourceText::new("f", text)], Duration::from_secs(1));
        let rules = rules.map_err(|mistakes| mistakes.to_string())?;
        Ok(rules.groups[0].rules[0].remedy.clone().unwrap().rails)
    }

    #[test]
    fn people_approve_or_deny() {
        for (written, seconds, unless_denied) in [
            ("{expires: 10m}", 600, false),
            ("{unless_denied_within: 10m}", 600, true),
            ("{unless_denied_within: 10s}", 10, true),
            ("{unless_denied_within: 1d}", 86_400, true),
        ] {
            let rails = rails(written).unwrap();
            let time = Some(Duration::from_secs(seconds));
            assert_eq!((rails.approval, rails.unless_denied), (time, unless_denied), "{written}");
        }
        for (written, expected) in [
            ("{unless_denied_within: 9s}", "unless_denied_within"),
            ("{unless_denied_within: 2d}", "unless_denied_within"),
            ("{unless_denied_within: soon}", "unless_denied_within"),
            ("{unless_denied: 10m}", "unknown key"),
            ("{expires: 1h, unless_denied_within: 10m}", "has expires and unless_denied_within"),
        ] {
            let mistake = rails(written).unwrap_err();
            assert!(mistake.contains(expected), "{written}: {mistake}");
        }
    }
}
