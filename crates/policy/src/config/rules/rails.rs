//! A remedy's own guard rails.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::config::decode::{self, Findings, Table};
use crate::config::guard_rails::{at_most, breaker, named, names};
use crate::config::yaml::{Content, Node};
use crate::policy::guard::{ByEngine, DEFAULT_APPROVAL_EXPIRES, LONGEST_APPROVAL_EXPIRES, Rails};
use crate::policy::rule::AtMost;

/// A round of steps has been tried by then and its effect is over: a dip comes back within seconds,
/// and a driver that gives memory back does so in 2 to 5 s.
const DEFAULT_COOLDOWN: Duration = Duration::from_secs(30);

/// Three or four evictions carried a whole load of a model where it was measured; what needs more
/// than five such loads an hour is not cured by this remedy, but costs everybody else's cache.
pub(super) const DEFAULT_AT_MOST: AtMost = AtMost { times: 20, per: Duration::from_secs(3_600) };

const LONGEST_COOLDOWN: Duration = Duration::from_secs(86_400);

/// Less than this is no time for a person.
const SHORTEST_APPROVAL_EXPIRES: Duration = Duration::from_secs(10);

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
    let approval = table.read_or("require_approval", None, approval, findings);
    let breaker = table.read_optional("breaker", breaker, findings);
    let only_in = names(table, "only_in", findings);
    let never_in = names(table, "never_in", findings);
    let inhibited_by = names(table, "inhibited_by", findings);
    // A list that allows nothing is more likely a mistake than intended.
    if let (Some(key), Some([])) = (table.key("only_in"), only_in.as_deref()) {
        findings.add(key.span.clone(), "only_in names no window").hint("remove it");
        return None;
    }
    Some(Rails {
        cooldown: cooldown?,
        at_most: Some(at_most?),
        by_engine: ByEngine::Nothing,
        approval: approval?,
        breaker: breaker?,
        only_in: only_in?,
        never_in: never_in?,
        inhibited_by: inhibited_by?,
    })
}

fn approval(node: &Node, findings: &mut Findings<'_>) -> Option<Option<Duration>> {
    if !matches!(node.content, Content::Map(_)) {
        if node.text().is_none() {
            decode::wrong_kind(node, "require_approval", "true or a mapping", findings)
                .hint("write require_approval: {expires: 10m}");
            return None;
        }
        let wanted = decode::boolean(node, "require_approval", findings)?;
        return Some(wanted.then_some(DEFAULT_APPROVAL_EXPIRES));
    }
    let table = Table::read(node, "require_approval", &["expires"], findings)?;
    let bounds = SHORTEST_APPROVAL_EXPIRES..=LONGEST_APPROVAL_EXPIRES;
    table.duration_or("expires", DEFAULT_APPROVAL_EXPIRES, bounds, findings).map(Some)
}

/// What a name in a remedy refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Window,
    Alert,
    /// A series with the state of rules, which a remedy that acts reads.
    Series,
}

/// A name in a remedy, to be looked up when everything has been read.
#[derive(Clone, Debug)]
pub(super) struct NameUse {
    pub(super) kind: Kind,
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
            Some("only_in" | "never_in") => Kind::Window,
            Some("inhibited_by") => Kind::Alert,
            _ => return Vec::new(),
        };
        let one = |(name, node): (Arc<str>, &Node)| NameUse { kind, name, span: node.span.clone() };
        named(value).into_iter().map(one).collect()
    });
    used.collect()
}
