//! Which rules a configuration can enforce, so that nothing else acts.

use std::collections::{BTreeMap, BTreeSet};

use super::episode::Pair;
use super::readiness::PromotionReadiness;
use crate::config::edit::Changes;
use crate::model::{Grade, Grades, Mode, RuleId};
use crate::policy::rule::{OverrideKey, Rule, RuleSet};

#[derive(Clone, Copy, Debug)]
pub(super) struct RulesInForce<'r> {
    pub(super) rules: &'r RuleSet,
    /// The node's mode.
    pub(super) mode: Mode,
}

impl RulesInForce<'_> {
    /// The rules with a remedy.
    pub(super) fn acting(&self) -> impl Iterator<Item = &Rule> {
        let all = self.rules.groups.iter().flat_map(|group| &group.rules);
        all.filter(|rule| rule.remedy.is_some())
    }

    fn enforced(&self) -> &Grades {
        &self.rules.guard_rails.enforced
    }

    /// Whether that grade of a rule is carried out.
    pub(super) fn carries_out(&self, rule: &Rule, grade: Grade) -> bool {
        rule.mode.unwrap_or(self.mode) == Mode::Enforce && self.enforced().has(grade)
    }

    /// The key of a rule in the configuration, which has at most one entry for each.
    fn key(&self, rule: &RuleId) -> String {
        let own = self.rules.overridden.get(rule);
        own.map_or_else(|| rule.to_string(), |own| own.name.to_string())
    }
}

/// The grades of a rule's steps, the mildest first.
pub(super) fn grades(rule: &Rule) -> BTreeSet<Grade> {
    let steps = rule.remedy.iter().flat_map(|remedy| &remedy.steps);
    steps.map(|step| step.grade()).collect()
}

/// What a person wants.
#[derive(Clone, Debug, Default)]
pub(super) struct PromotionRequest {
    /// Only these; empty: all.
    pub(super) rules: BTreeSet<RuleId>,
    /// These whatever their readiness is.
    pub(super) forced: BTreeSet<RuleId>,
}

/// What to change, and what not.
#[derive(Clone, Debug, Default)]
pub(super) struct PromotionPlan {
    pub(super) changes: Changes,
    /// Rules that are enforced, with these grades.
    pub(super) promoted: BTreeMap<RuleId, BTreeSet<Grade>>,
    /// Rules that observe from now on, so that a grade does not let them act.
    pub(super) pinned: BTreeSet<RuleId>,
    /// Rules that are left out, and why.
    pub(super) left_out: Vec<(RuleId, String)>,
}

/// The readiness of the rules' grades.
pub(super) struct ReadinessByGrade<'v>(pub(super) &'v BTreeMap<Pair, PromotionReadiness>);

impl ReadinessByGrade<'_> {
    fn of(&self, rule: &RuleId, grade: Grade) -> PromotionReadiness {
        self.0.get(&(rule.clone(), grade)).copied().unwrap_or(PromotionReadiness::NotEnoughSeen)
    }

    /// Whether that grade of a rule may be enforced beside another one: a notice costs nothing.
    fn allows(&self, rule: &RuleId, grade: Grade) -> bool {
        match self.of(rule, grade) {
            PromotionReadiness::Ready | PromotionReadiness::Enforced => true,
            PromotionReadiness::NotEnoughSeen => grade == Grade::Notice,
            PromotionReadiness::WouldHaveBeenWrong => false,
        }
    }
}

/// What a plan rests on.
#[derive(Clone, Copy)]
struct PlanBasis<'b> {
    in_force: &'b RulesInForce<'b>,
    readiness: &'b ReadinessByGrade<'b>,
    wanted: &'b PromotionRequest,
}

impl PlanBasis<'_> {
    fn is_forced(&self, rule: &Rule) -> bool {
        self.wanted.forced.contains(&rule.id)
    }

    fn is_named(&self, rule: &Rule) -> bool {
        self.wanted.rules.contains(&rule.id) || self.is_forced(rule)
    }

    fn is_selected(&self, rule: &Rule) -> bool {
        let all = self.wanted.rules.is_empty() && self.wanted.forced.is_empty();
        all || self.is_named(rule)
    }

    /// Grades that are not carried out.
    fn pending(&self, rule: &Rule) -> BTreeSet<Grade> {
        let is_pending = |grade: &Grade| !self.in_force.carries_out(rule, *grade);
        grades(rule).into_iter().filter(is_pending).collect()
    }

    fn is_ready(&self, rule: &Rule, grade: Grade) -> bool {
        self.is_forced(rule) || self.readiness.of(&rule.id, grade) == PromotionReadiness::Ready
    }

    /// Why a rule cannot act with these grades beside those that it carries out. The error is
    /// `None` where that goes without saying.
    fn obstacle(&self, rule: &Rule, new: &BTreeSet<Grade>) -> Result<(), Option<String>> {
        let pending = self.pending(rule);
        if !pending.iter().any(|grade| self.is_ready(rule, *grade)) {
            let why = "no grade of it is ready".to_owned();
            return Err(self.is_named(rule).then_some(why));
        }
        let overridden = self.in_force.rules.overridden.get(&rule.id);
        let says_observe = rule.mode == Some(Mode::Observe)
            && overridden.is_some_and(|own| own.keys.contains(&OverrideKey::Mode));
        if says_observe && !self.is_named(rule) {
            return Err(Some("the configuration has it observe: name it".to_owned()));
        }
        // What acts, or should before something severer does.
        let most = new.iter().max();
        let bad = |grade: &&Grade| {
            let matters = new.contains(grade) || most.is_some_and(|most| *grade < most);
            matters && !self.is_forced(rule) && !self.readiness.allows(&rule.id, **grade)
        };
        let Some(grade) = pending.iter().find(bad) else { return Ok(()) };
        let readiness = self.readiness.of(&rule.id, *grade).text();
        let what = if new.contains(grade) { "would act as well" } else { "comes before" };
        Err(Some(format!("its grade {grade} {what}: {readiness}")))
    }
}

impl PromotionPlan {
    /// Plans for this readiness. Rules come one after another: what the first one needs is in force
    /// for the next.
    pub(super) fn new(
        in_force: &RulesInForce<'_>,
        readiness: &ReadinessByGrade<'_>,
        wanted: &PromotionRequest,
    ) -> Self {
        let basis = PlanBasis { in_force, readiness, wanted };
        let mut plan = Self::default();
        for rule in in_force.acting().filter(|rule| basis.is_selected(rule)) {
            let pending = basis.pending(rule);
            if pending.is_empty() {
                continue;
            }
            if let Err(Some(why)) = plan.add(rule, &pending, basis) {
                plan.left_out.push((rule.id.clone(), why));
            }
        }
        plan
    }

    fn has(&self, grade: Grade, basis: PlanBasis<'_>) -> bool {
        basis.in_force.enforced().has(grade) || self.changes.grades.contains(&grade)
    }

    /// Adds a rule. The error says why not, unless that goes without saying.
    fn add(
        &mut self,
        rule: &Rule,
        pending: &BTreeSet<Grade>,
        basis: PlanBasis<'_>,
    ) -> Result<(), Option<String>> {
        let acts = |grade: &Grade| self.has(*grade, basis) || basis.is_ready(rule, *grade);
        let new: BTreeSet<Grade> = pending.iter().copied().filter(acts).collect();
        basis.obstacle(rule, &new)?;
        let missing = new.iter().copied().filter(|grade| !self.has(*grade, basis));
        let missing: Vec<Grade> = missing.collect();
        let pins = self.pins(rule, &missing, basis)?;
        self.changes.grades.extend(&missing);
        let name = basis.in_force.key(&rule.id);
        match rule.mode.unwrap_or(basis.in_force.mode) {
            Mode::Observe => self.changes.modes.insert(name, Mode::Enforce),
            Mode::Enforce => self.changes.modes.remove(&name),
        };
        for pin in pins {
            self.changes.modes.insert(basis.in_force.key(&pin), Mode::Observe);
            self.pinned.insert(pin);
        }
        self.pinned.remove(&rule.id);
        self.promoted.insert(rule.id.clone(), new);
        Ok(())
    }

    /// Other rules that more grades would let act, and that must observe for that.
    fn pins(
        &self,
        promoted: &Rule,
        missing: &[Grade],
        basis: PlanBasis<'_>,
    ) -> Result<BTreeSet<RuleId>, Option<String>> {
        let mut pins = BTreeSet::new();
        for other in basis.in_force.acting().filter(|other| other.id != promoted.id) {
            let acts = other.mode.unwrap_or(basis.in_force.mode) == Mode::Enforce
                || self.promoted.contains_key(&other.id);
            let its = grades(other);
            let new: BTreeSet<Grade> =
                missing.iter().copied().filter(|grade| its.contains(grade)).collect();
            if !acts || new.is_empty() || self.pinned.contains(&other.id) {
                continue;
            }
            let is_fine = basis.is_selected(other)
                && new.iter().all(|grade| basis.is_ready(other, *grade))
                && basis.obstacle(other, &new).is_ok();
            if is_fine {
                continue;
            }
            let kept = its.iter().find(|grade| {
                let is_kept = basis.in_force.carries_out(other, **grade)
                    || self.promoted.get(&other.id).is_some_and(|own| own.contains(grade));
                **grade != Grade::Notice && is_kept
            });
            if let Some(kept) = kept {
                return Err(Some(format!(
                    "{} in enforce would let {} act as well, which is not ready for that and \
                     carries out {kept}",
                    names(missing),
                    other.id
                )));
            }
            pins.insert(other.id.clone());
        }
        Ok(pins)
    }
}

fn names(grades: &[Grade]) -> String {
    grades.iter().map(|grade| grade.name()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::mistake::SourceText;
    use crate::config::rules::parse_rules;
    use crate::config::settings::limits::DEFAULT_INTERVAL;

    /// A rule file with these rules, each with its steps.
    fn rule_file() -> String {
        let notify = "{notify: {message: m}}";
        let rules = [
            ("Evicts", "{empty_cache: {engine: a}}".to_owned()),
            ("Drops", format!("{{drop_caches: {{}}}}, {notify}")),
            ("AlsoDrops", format!("{{drop_caches: {{what: all}}}}, {notify}")),
            ("Both", "{empty_cache: {engine: a}}, {drop_caches: {}}".to_owned()),
            ("Stops", format!("{notify}, {{stop_engine: {{}}}}")),
        ];
        let mut text = "groups:\n- name: g\n  rules:\n".to_owned();
        for (alert, steps) in rules {
            text += &format!(
                "  - alert: {alert}\n    expr: uma_memory_free_bytes < 10\n    remedy: \
                 {{steps: [{steps}]}}\n"
            );
        }
        text + "  - {alert: Alerts, expr: uma_memory_free_bytes < 5}\n"
    }

    fn rules(enforced: Option<&[Grade]>) -> RuleSet {
        let mut rules = parse_rules(&[SourceText::new("r", rule_file())], DEFAULT_INTERVAL)
            .unwrap_or_else(|e| panic!("{e}"));
        if let Some(grades) = enforced {
            rules.guard_rails.enforced = grades.iter().copied().collect();
        }
        rules
    }

    fn id(alert: &str) -> RuleId {
        RuleId { group: "g".into(), alert: alert.into() }
    }

    fn plan(
        (rules, mode): (&RuleSet, Mode),
        readiness: &[(&str, Grade, PromotionReadiness)],
        (named, forced): (&[&str], &[&str]),
    ) -> PromotionPlan {
        let readiness =
            readiness.iter().map(|(rule, grade, readiness)| ((id(rule), *grade), *readiness));
        let wanted = PromotionRequest {
            rules: named.iter().map(|name| id(name)).collect(),
            forced: forced.iter().map(|name| id(name)).collect(),
        };
        PromotionPlan::new(
            &RulesInForce { rules, mode },
            &ReadinessByGrade(&readiness.collect()),
            &wanted,
        )
    }

    fn modes(plan: &PromotionPlan) -> Vec<(&str, Mode)> {
        plan.changes.modes.iter().map(|(rule, mode)| (rule.as_str(), *mode)).collect()
    }

    #[test]
    fn a_ready_rule_is_enforced_and_its_notices_with_it() {
        let rules = rules(None);
        let observe = (&rules, Mode::Observe);
        let found = plan(observe, &[("Drops", Grade::Drop, PromotionReadiness::Ready)], (&[], &[]));
        assert_eq!(modes(&found), [("g/Drops", Mode::Enforce)]);
        assert!(found.changes.grades.is_empty() && found.pinned.is_empty(), "{found:?}");
        let other =
            plan(observe, &[("Drops", Grade::Drop, PromotionReadiness::Ready)], (&["Evicts"], &[]));
        assert!(other.changes.is_empty(), "{other:?}");
        assert_eq!(other.left_out, [(id("Evicts"), "no grade of it is ready".to_owned())]);
    }

    #[test]
    fn a_severe_grade_that_is_not_ready_keeps_the_rule_back() {
        let rules = rules(None);
        let notice = [("Stops", Grade::Notice, PromotionReadiness::Ready)];
        let found = plan((&rules, Mode::Observe), &notice, (&[], &[]));
        assert!(found.changes.is_empty());
        assert!(found.left_out[0].1.contains("its grade stop would act as well"), "{found:?}");
        // Where the list has no stop, only the notice is carried out.
        let listed = self::rules(Some(&[Grade::Notice]));
        let found = plan((&listed, Mode::Observe), &notice, (&[], &[]));
        assert_eq!(modes(&found), [("g/Stops", Mode::Enforce)]);
        assert_eq!(found.promoted[&id("Stops")], [Grade::Notice].into_iter().collect());
    }

    #[test]
    fn what_would_have_been_wrong_is_enforced_only_by_force() {
        let rules = rules(None);
        let observe = (&rules, Mode::Observe);
        let wrong = [("Drops", Grade::Drop, PromotionReadiness::WouldHaveBeenWrong)];
        for named in [&[][..], &["Drops"]] {
            assert!(plan(observe, &wrong, (named, &[])).changes.is_empty());
        }
        let forced = plan(observe, &wrong, (&[], &["Drops"]));
        assert_eq!(modes(&forced), [("g/Drops", Mode::Enforce)]);
    }

    #[test]
    fn a_grade_that_would_let_others_act_has_them_observe() {
        let rules = rules(Some(&[Grade::Notice]));
        let ready = [("Drops", Grade::Drop, PromotionReadiness::Ready)];
        let found = plan((&rules, Mode::Enforce), &ready, (&[], &[]));
        assert_eq!(found.changes.grades, [Grade::Drop]);
        let observe = Mode::Observe;
        assert_eq!(modes(&found), [("g/AlsoDrops", observe), ("g/Both", observe)]);
        assert_eq!(found.pinned, [id("AlsoDrops"), id("Both")].into_iter().collect());
    }

    #[test]
    fn a_rule_that_is_not_named_does_not_begin_to_act() {
        let rules = rules(Some(&[Grade::Notice]));
        let ready =
            ["Drops", "AlsoDrops"].map(|rule| (rule, Grade::Drop, PromotionReadiness::Ready));
        let found = plan((&rules, Mode::Enforce), &ready, (&["Drops"], &[]));
        assert_eq!(modes(&found), ["g/AlsoDrops", "g/Both"].map(|rule| (rule, Mode::Observe)));
        let all = plan((&rules, Mode::Enforce), &ready, (&[], &[]));
        assert_eq!(modes(&all), [("g/Both", Mode::Observe)]);
        assert_eq!(all.promoted.len(), 2);
    }

    #[test]
    fn a_grade_is_not_added_if_a_rule_that_acts_would_do_more() {
        let rules = rules(Some(&[Grade::Evict]));
        let ready = [("Drops", Grade::Drop, PromotionReadiness::Ready)];
        let found = plan((&rules, Mode::Enforce), &ready, (&[], &[]));
        assert!(found.changes.is_empty(), "{found:?}");
        let why = &found.left_out[0].1;
        assert!(why.contains("g/Both act as well") && why.contains("carries out evict"), "{why}");
        // Unless that is ready, too.
        let both = [
            ("Drops", Grade::Drop, PromotionReadiness::Ready),
            ("Both", Grade::Drop, PromotionReadiness::Ready),
        ];
        let found = plan((&rules, Mode::Enforce), &both, (&[], &[]));
        assert_eq!(found.changes.grades, [Grade::Drop]);
        assert_eq!(modes(&found), [("g/AlsoDrops", Mode::Observe)]);
    }

    #[test]
    fn whoever_observes_by_the_configuration_is_enforced_only_by_name() {
        let mut rules = rules(None);
        let keys = [OverrideKey::Mode].into_iter().collect();
        let (name, place) = ("Drops".into(), "f:1".into());
        let own = crate::policy::rule::Overridden { name, place, keys };
        rules.overridden.insert(id("Drops"), own);
        for rule in rules.groups.iter_mut().flat_map(|group| &mut group.rules) {
            rule.mode = (rule.id == id("Drops")).then_some(Mode::Observe);
        }
        let ready = [("Drops", Grade::Drop, PromotionReadiness::Ready)];
        let found = plan((&rules, Mode::Observe), &ready, (&[], &[]));
        assert!(found.changes.is_empty() && found.left_out[0].1.contains("name it"), "{found:?}");
        // The configuration's own name for the rule.
        let named = plan((&rules, Mode::Observe), &ready, (&["Drops"], &[]));
        assert_eq!(modes(&named), [("Drops", Mode::Enforce)]);
    }
}
