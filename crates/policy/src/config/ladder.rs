//! Ladders of which a severe step is carried out and a milder one before it is not.

use std::collections::BTreeSet;
use std::fmt;

use crate::model::{Grade, Mode, RuleId};
use crate::policy::rule::{RemedyStep, Rule, RuleSet};

/// A step that is carried out although milder ones before it are passed over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokenLadder {
    /// The rule whose remedy has the steps.
    pub rule: RuleId,
    /// The step, from 1, its name and its grade.
    pub severe: (usize, &'static str, Grade),
    /// The milder steps before it that are only reported.
    pub passed: Vec<(usize, &'static str, Grade)>,
}

impl BrokenLadder {
    /// What to do.
    pub fn remedy(&self) -> String {
        let grades: BTreeSet<Grade> = self.passed.iter().map(|(.., grade)| *grade).collect();
        let grades: Vec<&str> = grades.into_iter().map(Grade::name).collect();
        format!(
            "add {} to enforce, or write rules: {{{}: {{mode: observe}}}}",
            grades.join(", "),
            self.rule
        )
    }
}

impl fmt::Display for BrokenLadder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |(number, name, grade): &(usize, &str, Grade)| {
            format!("step {number} {name} (grade {grade})")
        };
        let passed: Vec<String> = self.passed.iter().map(text).collect();
        let (rule, severe) = (&self.rule, text(&self.severe));
        write!(
            f,
            "{rule} carries out {severe}, and only reports what is milder before it: {}",
            passed.join(", ")
        )
    }
}

/// The broken ladders of these rules on a node with that mode; of each rule the first one.
pub fn broken_ladders(rules: &RuleSet, of_node: Mode) -> Vec<BrokenLadder> {
    let all = rules.groups.iter().flat_map(|group| &group.rules);
    all.filter_map(|rule| broken(rule, rules, of_node)).collect()
}

fn broken(rule: &Rule, rules: &RuleSet, of_node: Mode) -> Option<BrokenLadder> {
    let enforced = &rules.guard_rails.enforced;
    if rule.mode_in_force(of_node, enforced) == Mode::Observe {
        return None;
    }
    let named =
        |(at, step): (usize, &RemedyStep)| (at.saturating_add(1), step.name(), step.grade());
    let steps: Vec<_> = rule.remedy.as_ref()?.steps.iter().enumerate().map(named).collect();
    let carried_out = steps.iter().filter(|(.., grade)| enforced.has(*grade));
    let mut ladders = carried_out.filter_map(|severe| {
        let before = steps.iter().take_while(|step| step.0 < severe.0);
        let passed = before.filter(|(.., grade)| *grade < severe.2 && !enforced.has(*grade));
        let passed: Vec<_> = passed.copied().collect();
        let rule = rule.id.clone();
        (!passed.is_empty()).then_some(BrokenLadder { rule, severe: *severe, passed })
    });
    ladders.next()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::mistake::SourceText;
    use crate::config::rules::parse_rules;
    use crate::config::settings::limits::DEFAULT_INTERVAL;
    use crate::config::shipped::shipped_rules;

    fn texts(texts: &[SourceText], enforced: &[Grade], mode: Mode) -> Vec<String> {
        let mut rules = parse_rules(texts, DEFAULT_INTERVAL).expect("rules");
        rules.guard_rails.enforced = enforced.iter().copied().collect();
        let ladders = broken_ladders(&rules, mode);
        ladders.iter().map(|ladder| format!("{ladder}; {}", ladder.remedy())).collect()
    }

    const LADDER: &str = "
groups:
- name: g
  rules:
  - alert: Low
    expr: uma_memory_free_bytes < 10
    remedy:
      steps:
      - empty_cache: {engine: llm}
      - drop_caches: {what: pagecache}
      - stop_engine: {}
      - notify: {message: low}
";

    fn of_ladder(enforced: &[Grade], mode: Mode) -> Vec<String> {
        texts(&[SourceText::new("r.yaml", LADDER)], enforced, mode)
    }

    #[test]
    fn a_severe_step_without_the_milder_ones_before_it_is_named_with_the_remedy() {
        let found = of_ladder(&[Grade::Stop, Grade::Evict], Mode::Enforce);
        let expected = "g/Low carries out step 3 stop_engine (grade stop), and only reports what \
                        is milder before it: step 2 drop_caches (grade drop); add drop to \
                        enforce, or write rules: {g/Low: {mode: observe}}";
        assert_eq!(found, [expected]);
        let both = of_ladder(&[Grade::Stop], Mode::Enforce);
        assert!(
            both[0].contains("step 1 empty_cache (grade evict), step 2 drop_caches"),
            "{both:?}"
        );
        assert!(both[0].contains("add evict, drop to enforce"), "{both:?}");
    }

    #[test]
    fn whole_ladders_and_what_only_observes_are_fine() {
        for grades in [
            vec![],
            vec![Grade::Notice],
            vec![Grade::Evict],
            vec![Grade::Evict, Grade::Drop],
            Grade::ALL.to_vec(),
        ] {
            assert_eq!(of_ladder(&grades, Mode::Enforce), Vec::<String>::new(), "{grades:?}");
        }
        assert_eq!(of_ladder(&[Grade::Stop], Mode::Observe), Vec::<String>::new());
    }

    #[test]
    fn the_shipped_rules_reboot_nothing_in_silence() {
        let found = texts(&shipped_rules(), &[Grade::Reboot], Mode::Enforce);
        let named = |rule: &str| found.iter().any(|text| text.starts_with(rule));
        assert!(named("leak/MemoryLeaked") && named("leak/DriverWedged"), "{found:?}");
        for grades in [vec![Grade::Notice], vec![Grade::Notice, Grade::Evict], vec![Grade::Stop]] {
            assert_eq!(texts(&shipped_rules(), &grades, Mode::Enforce), Vec::<String>::new());
        }
    }
}
