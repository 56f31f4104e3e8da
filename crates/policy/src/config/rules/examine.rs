//! What is no mistake in writing and yet cannot be meant: rules that never fire, remedies that
//! never act, rules that undo each other's work.
//!
//! Only findings that hold for all values on a node are reported.

use std::sync::Arc;

use promql_rules::template::Template;
use promql_rules::{Effort, ExprError, Facts, Threshold, did_you_mean};

use super::always::{Always, Machines};
use crate::config::catalogue::{LoadedCatalogue, Scoped};
use crate::config::decode::Findings;
use crate::config::mistake::{Mistake, SourceText};
use crate::config::yaml::{self, Content, YamlNode};
use crate::model::Mode;
use crate::policy::rule::{Query, ReclaimFrom, Remedy, RemedyStep, Rule, RuleSet};

/// What a rule may read.
type ScopedCatalogue<'k> = Scoped<'k, LoadedCatalogue<'k>>;

/// A text that is for Prometheus too may name them; here they are empty.
const LABELS_OF_TARGETS: [&str; 2] = ["instance", "job"];

/// What was found in rules that can be loaded.
#[derive(Debug, Default)]
pub struct Examined {
    /// Each at its place, file by file.
    pub findings: Vec<Mistake>,
    /// What may well be meant, and should be known: each at its place, file by file.
    pub remarks: Vec<Mistake>,
    /// Whether there were so many rules that not each could be compared with each.
    pub is_partial: bool,
}

/// Examines rules that were read from these files without a mistake.
pub fn examine(files: &[SourceText], rules: &RuleSet) -> Examined {
    let known = LoadedCatalogue::new(rules);
    let machines = Machines::for_rules(rules);
    let mut groups = rules.groups.iter();
    let mut all_findings: Vec<Findings<'_>> = Vec::new();
    let mut remarks = Vec::new();
    let mut acting: Vec<Acting<'_>> = Vec::new();
    for source in files {
        let mut findings = Findings::new(source);
        let mut written = Vec::new();
        if let Ok(root) = yaml::parse(source) {
            for (node, group) in groups_of(&root).iter().zip(groups.by_ref()) {
                written.extend(entries(node, "rules").iter().cloned().zip(&group.rules));
            }
        }
        if written.is_empty() {
            findings
                .add(0..0, "there are no rules in this file")
                .hint("write groups: [{name: …, rules: [{alert: …, expr: …}]}], or leave it out");
        }
        for (node, rule) in written {
            let placed = LocatedRule { rule, node };
            let facts = one_rule(&placed, &known, &mut findings);
            remarks.extend(always(&placed, &machines, &mut findings));
            acting.extend(Acting::of(placed, facts, all_findings.len()));
        }
        all_findings.push(findings);
    }
    let is_partial = !together(&acting, &mut all_findings);
    let findings = all_findings.into_iter().flat_map(Findings::into_mistakes).collect();
    Examined { findings, remarks, is_partial }
}

/// The groups of a file, or of the spec of an object.
pub(super) fn groups_of(root: &YamlNode) -> &[Arc<YamlNode>] {
    entries(value(root, "spec").map_or(root, |spec| spec), "groups")
}

/// The entries of the list under a key.
pub(super) fn entries<'n>(node: &'n YamlNode, key: &str) -> &'n [Arc<YamlNode>] {
    match value(node, key).map(|node| &node.content) {
        Some(Content::List(entries)) => entries,
        _ => &[],
    }
}

pub(super) fn value<'n>(node: &'n YamlNode, key: &str) -> Option<&'n Arc<YamlNode>> {
    let Content::Map(pairs) = &node.content else { return None };
    pairs.iter().find(|(name, _)| name.text() == Some(key)).map(|(_, value)| value)
}

/// A rule and where it is written.
struct LocatedRule<'r> {
    rule: &'r Rule,
    node: Arc<YamlNode>,
}

impl LocatedRule<'_> {
    fn expr(&self) -> &YamlNode {
        value(&self.node, "expr").unwrap_or(&self.node)
    }

    fn aim(&self) -> &YamlNode {
        let remedy = value(&self.node, "remedy").unwrap_or(&self.node);
        value(remedy, "aim").unwrap_or(remedy)
    }

    fn alert(&self) -> &YamlNode {
        value(&self.node, "alert").unwrap_or(&self.node)
    }
}

/// What follows from a rule's two expressions.
struct RuleFacts {
    expr: Facts,
    aim: Option<Facts>,
}

fn aim_of(rule: &Rule) -> Option<&Query> {
    rule.remedy.as_ref().and_then(|remedy| remedy.aim.as_ref())
}

/// Finds what is wrong with one rule alone.
fn one_rule(
    placed: &LocatedRule<'_>,
    known: &LoadedCatalogue<'_>,
    findings: &mut Findings<'_>,
) -> RuleFacts {
    let rule = placed.rule;
    let known = &Scoped(known, rule.scope);
    query("expr", &rule.expr, placed.expr(), (known, "this rule never fires"), findings);
    texts(placed, known, findings);
    let expr = rule.expr.expr.facts(known);
    let aim = aim_of(rule).map(|aim| {
        query("aim", aim, placed.aim(), (known, "it is never met"), findings);
        aim.expr.facts(known)
    });
    let met = aim
        .as_ref()
        .is_some_and(|aim| expr.is_possible() && expr.implies(aim, &mut Effort::default()));
    if met {
        let when = match rule.keep_firing_for.is_zero() {
            true => "never acts",
            false => "acts at most while keep_firing_for lasts",
        };
        let message = format!("this aim is met whenever expr holds: the remedy {when}");
        findings
            .add(placed.aim().span.clone(), message)
            .hint("aim at what expr does not say yet, or remove aim: then it is that expr ends");
    } else {
        weak_aim(placed, findings);
    }
    reboots_for(placed, findings);
    RuleFacts { expr, aim }
}

/// Finds an aim that a value meets which the alert still has, where both are comparisons of one
/// expression with numbers.
fn weak_aim(placed: &LocatedRule<'_>, findings: &mut Findings<'_>) {
    let rule = placed.rule;
    let Some(aim) = aim_of(rule) else { return };
    let (Some(given), Some(wanted)) = (rule.expr.expr.threshold(), aim.expr.threshold()) else {
        return;
    };
    if !given.overlaps(&wanted) {
        return;
    }
    let number = |query: &Query, threshold: &Threshold| {
        query.text.get(threshold.span.clone()).unwrap_or_default().to_owned()
    };
    let [alert, least] = [number(&rule.expr, &given), number(aim, &wanted)];
    let message = format!(
        "this aim is weaker than expr: at {} {least} it is met, and at {} {alert} the alert still \
         holds",
        wanted.symbol(),
        given.symbol()
    );
    let hint = format!(
        "aim at {} {alert} or further, or remove aim: then it is that expr ends",
        given.opposite()
    );
    findings.add(placed.aim().span.clone(), message).hint(hint);
}

/// Finds conditions that are true on every machine. Where the remedy acts that cannot be meant; an
/// alert alone may be there to show that alerts arrive.
fn always(
    placed: &LocatedRule<'_>,
    machines: &Machines,
    findings: &mut Findings<'_>,
) -> Option<Mistake> {
    let Always { values, on_gib } = machines.always(placed.rule)?;
    let machine =
        on_gib.map_or("any machine".to_owned(), |gib| format!("a machine with {gib} GiB"));
    let span = placed.expr().span.clone();
    let remedy = placed.rule.remedy.as_ref().filter(|_| placed.rule.mode != Some(Mode::Observe));
    let acting = remedy.and_then(|remedy| remedy.steps.iter().find(|step| touches(step)));
    let Some(step) = acting else {
        let message = format!("this alert always fires: expr is true on {machine} ({values})");
        return Some(findings.source().mistake(span, message));
    };
    let message = format!(
        "expr is true on {machine}, idle or busy ({values}): {} would act at once",
        step.name()
    );
    findings.add(span, message).hint(
        "compare with a number that a machine in trouble reaches and a healthy one does not; of a \
         quotient, 0.1 is ten percent",
    );
    None
}

/// What says that only a reboot helps, or that something hangs. A rule that reads none of it
/// reboots for what may well pass.
const REBOOT_READS: [&str; 3] =
    ["uma_memory_verdict", "uma_kernel_events_total", "uma_gpu_driver_responsive"];

/// Finds rules that reboot for something else than what a reboot is for.
fn reboots_for(placed: &LocatedRule<'_>, findings: &mut Findings<'_>) {
    let rule = placed.rule;
    if !rule.remedy.as_ref().is_some_and(Remedy::reboots) {
        return;
    }
    let read = rule.expr.expr.reads();
    let reads = |name: &str| read.iter().any(|(metric, _)| **metric == *name);
    if !REBOOT_READS.iter().any(|name| reads(name)) {
        findings
            .add(
                placed.expr().span.clone(),
                "this rule reboots, and expr asks for no lasting trouble",
            )
            .hint("add uma_memory_verdict{verdict=~\"leaked|wedged\"} == 1, which is proved");
    }
    if rule.hold_for.is_zero() && !reads(REBOOT_READS[0]) {
        findings
            .add(placed.expr().span.clone(), "this rule reboots at once: it has no for")
            .hint("add for: 5m, so that a moment's trouble reboots nothing");
    }
}

/// Finds labels in texts that nothing which the rule yields has.
fn texts(placed: &LocatedRule<'_>, known: &ScopedCatalogue<'_>, findings: &mut Findings<'_>) {
    let rule = placed.rule;
    let Some(labels) = rule.expr.expr.labels(known) else { return };
    let mut check = |what: &str, node: Option<&Arc<YamlNode>>, template: &Template| {
        // A label of the group has no node in the rule.
        let Some(node) = node else { return };
        let is_there = |used: &str| labels.iter().any(|label| **label == *used);
        let mut used = template.labels().into_iter();
        let wrong = used.find(|used| !is_there(used) && !LABELS_OF_TARGETS.contains(used));
        let Some(used) = wrong else { return };
        let message = format!("{what}: $labels.{used} is always empty: expr yields no such label");
        let there = labels.iter().map(|label| &**label);
        let hint = did_you_mean(used, there).unwrap_or_else(|| match labels.is_empty() {
            true => "expr yields no labels".to_owned(),
            false => format!("labels that expr yields: {}", labels.join(", ")),
        });
        findings.add(node.span.clone(), message).hint(hint);
    };
    for (key, templates) in [("labels", &rule.labels), ("annotations", &rule.annotations)] {
        for (name, template) in templates {
            let node = value(&placed.node, key).and_then(|node| value(node, name));
            check(&format!("{key}.{name}"), node, template);
        }
    }
    let steps = value(&placed.node, "remedy").map_or(&[][..], |node| entries(node, "steps"));
    for (node, step) in steps.iter().zip(rule.remedy.iter().flat_map(|remedy| &remedy.steps)) {
        let (key, template) = match step {
            RemedyStep::Notify { message } => ("message", message),
            RemedyStep::Reclaim { from: ReclaimFrom::Cgroup(path), .. } => ("cgroup", path),
            _ => continue,
        };
        check(key, value(node, step.name()).and_then(|node| value(node, key)), template);
    }
}

/// Finds what one expression can never yield, and values in it that no series has.
fn query(
    what: &str,
    query: &Query,
    node: &YamlNode,
    (known, consequence): (&ScopedCatalogue<'_>, &str),
    findings: &mut Findings<'_>,
) {
    let mut add = |error: ExprError, message: String| {
        let place = node.span_of(findings.source(), error.span);
        let noted = findings.add(place, message);
        if let Some(hint) = error.hint {
            noted.hint(hint);
        }
    };
    let never = query.expr.never(known);
    let last = never.len();
    for (number, never) in (1..).zip(never) {
        let message = match never.whole && number == last {
            true => format!("{what}: {}: {consequence}", never.why.message),
            false => format!("{what}: {}", never.why.message),
        };
        add(never.why, message);
    }
    for idle in query.expr.idle_values(known) {
        let message = format!("{what}: {}", idle.message);
        add(idle, message);
    }
}

/// A rule whose remedy touches the node.
struct Acting<'r> {
    placed: LocatedRule<'r>,
    remedy: &'r Remedy,
    facts: RuleFacts,
    /// Its file, by number.
    file: usize,
}

impl<'r> Acting<'r> {
    /// Rules that only notify conflict with none. Rules with windows or inhibitions are not
    /// compared.
    fn of(placed: LocatedRule<'r>, facts: RuleFacts, file: usize) -> Option<Self> {
        let remedy = placed.rule.remedy.as_ref()?;
        let acts = remedy.steps.iter().any(touches) && placed.rule.mode != Some(Mode::Observe);
        let rails = &remedy.rails;
        let gives_way = [&rails.only_in, &rails.never_in, &rails.inhibited_by];
        let always = gives_way.iter().all(|names| names.is_empty());
        (acts && always).then_some(Self { placed, remedy, facts, file })
    }

    /// What both do to the node.
    fn shared(&self, other: &Self) -> Option<&'r RemedyStep> {
        let theirs = |own: &&RemedyStep| {
            touches(own) && other.remedy.steps.iter().any(|step| is_the_same_work(step, own))
        };
        self.remedy.steps.iter().find(theirs)
    }

    /// A setting that both change for a while, and to what each does.
    fn contested(&self, other: &Self) -> Option<(String, &'r RemedyStep, &'r RemedyStep)> {
        let own = self.remedy.steps.iter();
        own.flat_map(|own| other.remedy.steps.iter().map(move |theirs| (own, theirs)))
            .find_map(|(own, theirs)| Some((shared_setting(own, theirs)?, own, theirs)))
    }

    /// The same in every detail.
    fn repeated(&self, other: &Self) -> Option<&'r RemedyStep> {
        let mut own = self.remedy.steps.iter().filter(|step| touches(step));
        own.find(|step| other.remedy.steps.contains(step))
    }
}

/// Two changes of different settings have nothing to do with each other.
fn is_the_same_work(step: &RemedyStep, other: &RemedyStep) -> bool {
    let is_temporary = step.settings().is_some();
    step.name() == other.name() && (!is_temporary || shared_setting(step, other).is_some())
}

/// A setting that both change for a while.
fn shared_setting(step: &RemedyStep, other: &RemedyStep) -> Option<String> {
    step.settings()?.shared_setting(&other.settings()?).map(str::to_owned)
}

fn touches(step: &RemedyStep) -> bool {
    !step.is_notice()
}

/// Finds rules that undo or repeat each other's work; false where there were too many to compare.
fn together(acting: &[Acting<'_>], findings: &mut [Findings<'_>]) -> bool {
    let mut effort = Effort::default();
    for (position, later) in acting.iter().enumerate() {
        for earlier in &acting[..position] {
            if effort.is_spent() {
                return false;
            }
            let same_scope = earlier.placed.rule.scope == later.placed.rule.scope;
            let possible = earlier.facts.expr.is_possible() && later.facts.expr.is_possible();
            if same_scope && possible {
                pair(earlier, later, &mut effort, findings);
            }
        }
    }
    true
}

fn pair(
    earlier: &Acting<'_>,
    later: &Acting<'_>,
    effort: &mut Effort,
    findings: &mut [Findings<'_>],
) {
    let Some(action) = later.shared(earlier) else { return };
    let (line, _) = findings[earlier.file].source().position(earlier.placed.alert().span.start);
    let file = &findings[earlier.file].source().name;
    let other = format!("{} ({file}:{line})", earlier.placed.rule.id);
    let findings = &mut findings[later.file];
    if let (Some(aim), Some(other_aim)) = (&later.facts.aim, &earlier.facts.aim)
        && let Some(why) = fight([&later.facts.expr, &earlier.facts.expr], [aim, other_aim], effort)
    {
        let message = format!("this rule and {other} fight, both with {}: {why}", action.name());
        findings
            .add(later.placed.aim().span.clone(), message)
            .hint("let one of them act alone, or give both aims that can be met together");
        return;
    }
    if let Some((setting, own, theirs)) = later.contested(earlier) {
        let always = later.facts.expr.implies(&earlier.facts.expr, effort)
            || earlier.facts.expr.implies(&later.facts.expr, effort);
        if always {
            let message = format!(
                "this rule and {other} both change {setting}, and one of them never holds \
                 without the other: {own} and {theirs}"
            );
            findings
                .add(later.placed.alert().span.clone(), message)
                .hint("the first to fire holds the setting until it is undone: keep one of them");
            return;
        }
    }
    let Some(action) = later.repeated(earlier) else { return };
    let same = later.facts.expr.implies(&earlier.facts.expr, effort)
        && earlier.facts.expr.implies(&later.facts.expr, effort);
    if same {
        let message = format!("this rule and {other} hold at the same times, and both {action}");
        findings
            .add(later.placed.alert().span.clone(), message)
            .hint("keep one of them: neither's cooldown and at_most bound the other's acts");
    }
}

/// Why two rules' aims cannot be pursued together.
fn fight(exprs: [&Facts; 2], aims: [&Facts; 2], effort: &mut Effort) -> Option<&'static str> {
    if !aims.iter().all(|aim| aim.is_possible()) {
        return None;
    }
    if aims[0].implies(exprs[1], effort) && aims[1].implies(exprs[0], effort) {
        return Some("whenever the aim of one is met, the other's expr holds");
    }
    let apart = aims[0].excludes(aims[1], effort) && !exprs[0].excludes(exprs[1], effort);
    apart.then_some("their aims can never both be met")
}
