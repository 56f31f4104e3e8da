use proptest::prelude::*;

use super::remedy::tests::template;
use super::*;
use crate::config::mistake::Mistake;
use crate::config::shipped::shipped_rules;
use crate::model::{CacheKind, Mode, Sysctl};
use crate::policy::guard::AtMost;
use crate::policy::rule::{ReclaimFrom, Remedy, RemedyStep, Rule};

const INTERVAL: Duration = Duration::from_millis(100);

fn rules(text: &str) -> RuleSet {
    parse_rules(&[SourceText::new("f.yaml", text)], INTERVAL).unwrap_or_else(|e| panic!("{e}"))
}

fn mistakes(text: &str) -> Vec<Mistake> {
    parse_rules(&[SourceText::new("f.yaml", text)], INTERVAL).expect_err("mistakes").0
}

fn one_mistake(text: &str) -> Mistake {
    let mut found = mistakes(text);
    assert_eq!(found.len(), 1, "{text}\n{found:#?}");
    found.remove(0)
}

/// A file with one rule, to which lines are added.
fn rule_text(more: &str) -> String {
    let mut text =
        "groups:\n- name: g\n  rules:\n  - alert: A\n    expr: uma_memory_free_bytes < 1\n"
            .to_owned();
    for line in more.lines() {
        text += &format!("    {line}\n");
    }
    text
}

pub(super) fn rule(more: &str) -> Rule {
    rules(&rule_text(more)).groups.remove(0).rules.remove(0)
}

fn remedy(more: &str) -> Remedy {
    rule(&format!("remedy:\n  steps: [compact_memory: {{}}]\n{more}")).remedy.expect("a remedy")
}

fn step(text: &str) -> RemedyStep {
    let text = format!("remedy:\n  steps:\n  - {text}");
    rule(&text).remedy.expect("a remedy").steps.remove(0)
}

fn step_mistake(text: &str) -> Mistake {
    one_mistake(&rule_text(&format!("remedy:\n  steps:\n  - {text}")))
}

/// The example of the documentation.
const EXAMPLE: &str = r#"
groups:
- name: memory
  interval: 100ms
  rules:
  - alert: PageCacheEatsReserve
    expr: uma_memory_free_bytes < uma_memory_reserve_bytes + 2 * 1024^3 and on() uma_memory_page_cache_bytes{state="clean"} > 8 * 1024^3
    for: 300ms
    keep_firing_for: 2s
    labels: {severity: warning}
    annotations: {summary: "Page cache leaves {{ $value | humanize1024 }}B free"}
    remedy:
      aim: uma_memory_free_bytes > uma_memory_reserve_bytes + 6 * 1024^3
      steps:
      - drop_caches: {what: pagecache}
      - compact_memory: {}
      cooldown: 5s
      at_most: {times: 20, per: 1h}
"#;

#[test]
fn a_whole_rule_is_read() {
    let set = rules(EXAMPLE);
    let group = &set.groups[0];
    assert_eq!((&*group.name, group.interval), ("memory", Duration::from_millis(100)));
    assert_eq!(group.file, PathBuf::from("f.yaml"));
    let rule = &group.rules[0];
    assert_eq!(rule.id.to_string(), "memory/PageCacheEatsReserve");
    assert!(rule.expr.text.ends_with("> 8 * 1024^3"));
    assert_eq!(rule.hold_for, Duration::from_millis(300));
    assert_eq!(rule.keep_firing_for, Duration::from_secs(2));
    assert_eq!(&*rule.labels[0].0, "severity");
    assert_eq!(&*rule.annotations[0].0, "summary");
    assert_eq!(rule.mode, None);
    let remedy = rule.remedy.as_ref().expect("a remedy");
    assert!(remedy.aim.as_ref().is_some_and(|aim| aim.text.contains("6 * 1024^3")));
    let drop_caches = RemedyStep::DropCaches { what: CacheKind::PageCache, sync: false };
    assert_eq!(remedy.steps, [drop_caches, RemedyStep::CompactMemory]);
    assert_eq!(remedy.rails.cooldown, Duration::from_secs(5));
    assert_eq!(remedy.rails.at_most, Some(AtMost { times: 20, per: Duration::from_secs(3_600) }));
}

#[test]
fn a_rule_of_prometheus_needs_nothing_more() {
    let rule = rule("");
    assert_eq!((rule.hold_for, rule.keep_firing_for), (Duration::ZERO, Duration::ZERO));
    assert!(rule.labels.is_empty() && rule.annotations.is_empty() && rule.remedy.is_none());
}

#[test]
fn unset_limits_of_a_remedy_have_bounded_defaults() {
    let remedy = remedy("");
    assert!(remedy.aim.is_none());
    assert_eq!(remedy.rails.cooldown, Duration::from_secs(30));
    assert_eq!(remedy.rails.at_most, Some(AtMost { times: 20, per: Duration::from_secs(3_600) }));
}

#[test]
fn the_shipped_rules_are_fine() {
    let set = parse_rules(&shipped_rules(), INTERVAL).unwrap_or_else(|error| panic!("{error}"));
    let names: Vec<&str> = set.groups.iter().map(|group| &*group.name).collect();
    let expected = "memory brake kernel umawarden devices guard engines load cluster cluster_peers \
                    leak kubernetes";
    assert_eq!(names.join(" "), expected);
    for rule in set.groups.iter().flat_map(|group| &group.rules) {
        assert!(rule.annotations.iter().any(|(name, _)| &**name == "summary"), "{}", rule.id);
        assert!(rule.labels.iter().any(|(name, _)| &**name == "severity"), "{}", rule.id);
        assert_eq!(rule.mode, None, "{} must leave the mode to the node", rule.id);
    }
}

#[test]
fn shipped_rules_do_not_fire_on_a_machine_without_series() {
    use promql_rules::{EvalTime, Evaluated, Value};
    let store = promql_rules::store::SeriesStore::default();
    let now = EvalTime { timeline_ms: 600_000, utc_ms: 1_700_000_000_000 };
    let set = parse_rules(&shipped_rules(), INTERVAL).unwrap_or_else(|error| panic!("{error}"));
    for rule in set.groups.iter().flat_map(|group| &group.rules) {
        let aim = rule.remedy.as_ref().and_then(|remedy| remedy.aim.as_ref());
        for query in std::iter::once(&rule.expr).chain(aim) {
            let nothing = Ok(Evaluated::Known(Value::Vector(Vec::new())));
            assert_eq!(query.expr.evaluate(&store, now), nothing, "{}", rule.id);
        }
    }
}

#[test]
fn an_empty_file_holds_no_groups() {
    for text in ["", "groups:\n", "groups: []\n"] {
        assert!(rules(text).groups.is_empty(), "{text:?}");
    }
    assert!(rules("groups: [{name: g}]").groups[0].rules.is_empty());
}

#[test]
fn a_group_without_interval_has_that_of_the_configuration() {
    assert_eq!(rules("groups: [{name: g}]").groups[0].interval, INTERVAL);
    let slow = rules("groups: [{name: g, interval: 1m}]");
    assert_eq!(slow.groups[0].interval, Duration::from_secs(60));
    assert!(one_mistake("groups: [{name: g, interval: 1ms}]").message.contains("out of bounds"));
}

#[test]
fn group_labels_are_given_to_each_rule_unless_it_has_its_own() {
    let text = rule_text("labels: {a: own, c: own}")
        .replace("- name: g", "- name: g\n  labels: {a: group, b: group}");
    let rule = &rules(&text).groups[0].rules[0];
    let names: Vec<&str> = rule.labels.iter().map(|(name, _)| &**name).collect();
    assert_eq!(names, ["a", "b", "c"]);
    assert_eq!(rule.labels[0].1.render(&[], 0.0), "own");
}

#[test]
fn names_are_unique() {
    let one = SourceText::new("one.yaml", "groups: [{name: g}]");
    let two = SourceText::new("two.yaml", "groups: [{name: h}, {name: g}]");
    let error = parse_rules(&[one, two], INTERVAL).expect_err("twice").0.remove(0);
    assert_eq!((&*error.file, error.line), ("two.yaml", 1));
    assert_eq!(error.message, "group \"g\" exists already, at one.yaml:1:17");

    let twice = rule_text("") + "  - alert: A\n    expr: uma_memory_free_bytes > 1\n";
    let error = one_mistake(&twice);
    assert_eq!((error.line, error.column), (6, 12));
    assert_eq!(error.message, "this group has an alert \"A\" already, on line 4");
}

#[test]
fn the_steps_are_read() {
    use CacheKind::{All, PageCache};
    let drop = |what, sync| RemedyStep::DropCaches { what, sync };
    assert_eq!(step("drop_caches: {what: pagecache}"), drop(PageCache, false));
    assert_eq!(step("drop_caches: {what: all, sync: true}"), drop(All, true));
    assert_eq!(step("drop_caches: {sync: yes}"), drop(PageCache, true));
    assert_eq!(step("drop_caches:"), drop(PageCache, false));
    assert_eq!(step("compact_memory: {}"), RemedyStep::CompactMemory);
    assert_eq!(step("compact_memory:"), RemedyStep::CompactMemory);
    assert_eq!(step("notify: {message: \"hey\"}"), RemedyStep::Notify { message: template("hey") });
}

#[test]
fn impossible_steps_are_refused() {
    for (text, message) in [
        ("drop_caches: 4", "does not take 4"),
        ("drop_caches: {what: 4}", "does not take 4"),
        ("drop_caches: {what: 3}", "does not take 3"),
        ("drop_caches: {what: everything}", "what cannot be \"everything\""),
        ("drop_caches: {what: all, snyc: true}", "unknown key \"snyc\""),
        ("drop_caches: [all]", "must be a mapping"),
        ("compact_memory: {hard: true}", "takes no settings"),
        ("compact_memory", "must be a mapping"),
        ("{}", "an empty step"),
        ("[]", "a step must be a mapping"),
        ("", "a step must be a mapping"),
        ("{[a]: b}", "a key must be text"),
        ("notify: {}", "needs a message"),
        ("notify: hello", "needs a message"),
        ("notify: {message: }", "needs a message"),
        ("dorp_caches: {}", "unknown step \"dorp_caches\""),
        ("reboot", "must be a mapping"),
        ("reboot: now", "must be a mapping"),
        ("reboot: {delay: 2m}", "unknown key \"delay\""),
        ("reboot: {why: \"{{ oops\"}", "why"),
        ("reboot: {}\n  - notify: {message: m}", "a step comes after reboot"),
    ] {
        let mistake = step_mistake(text);
        assert!(mistake.message.contains(message), "{text}: {mistake}");
    }
    assert_eq!(
        step_mistake("dorp_caches: {}").hint.as_deref(),
        Some("did you mean \"drop_caches\"?")
    );
    assert!(
        step_mistake("drop_caches: {}\n    notify: {message: m}").message.contains("two steps")
    );
}

#[test]
fn a_remedy_needs_steps_and_sane_bounds() {
    for (text, message) in [
        ("remedy:", "remedy is empty"),
        ("remedy: {cooldown: 1s}", "at least one step"),
        ("remedy: {steps: []}", "at least one step"),
        ("remedy: {steps: [{compact_memory: }], cooldown: -1s}", "not a duration"),
        ("remedy: {steps: [{compact_memory: }], at_most: {times: 0, per: 1h}}", "never act"),
        ("remedy: {steps: [{compact_memory: }], at_most: {times: 1.5, per: 1h}}", "whole number"),
        ("remedy: {steps: [{compact_memory: }], at_most: {times: 1, per: 0s}}", "out of bounds"),
        ("remedy: {steps: [{compact_memory: }], at_most: {times: 1}}", "needs per"),
        ("remedy: {steps: [{compact_memory: }], at_least: 1}", "unknown key \"at_least\""),
        ("mode: enfroce", "mode cannot be \"enfroce\""),
    ] {
        let mistake = one_mistake(&rule_text(text));
        assert!(mistake.message.contains(message), "{text}: {mistake}");
    }
    assert_eq!(rule("mode: enforce").mode, Some(Mode::Enforce));
}

#[test]
fn unsupported_prometheus_features_are_named() {
    for (text, message) in [
        ("groups: [{name: g, limit: 5}]", "limit is not supported"),
        ("groups: [{name: g, query_offset: 1m}]", "query_offset is not supported"),
        (
            "groups: [{name: g, rules: [{record: a:b, expr: uma_memory_free_bytes}]}]",
            "recording rules are not supported",
        ),
    ] {
        let mistake = one_mistake(text);
        assert!(mistake.message.contains(message) && mistake.hint.is_some(), "{mistake}");
    }
}

#[test]
fn ranges_beyond_one_hour_are_refused() {
    let past = |range: &str| {
        rule_text("").replace(
            "uma_memory_free_bytes <",
            &format!("rate(uma_memory_oom_kills_total[{range}]) <"),
        )
    };
    assert_eq!(rules(&past("1h")).groups.len(), 1);
    assert!(one_mistake(&past("61m")).message.contains("more than 1h of the past"));
}

#[test]
fn patterns_of_all_rules_together_are_bounded() {
    let matchers = vec!["state=~\"clean|d\""; 25].join(",");
    let expr = format!("'uma_memory_page_cache_bytes{{{matchers}}}'");
    let alerts = |count: usize| {
        let rule = |n| format!("  - {{alert: A{n}, expr: {expr}}}\n");
        format!("groups:\n- name: g\n  rules:\n{}", (0..count).map(rule).collect::<String>())
    };
    assert_eq!(rules(&alerts(40)).groups[0].rules.len(), 40);
    let mistake = one_mistake(&alerts(41));
    assert_eq!(mistake.line, 44);
    assert!(mistake.message.contains("more than 1000 regular expressions"), "{mistake}");
}

#[test]
fn names_become_labels_and_are_bounded() {
    let named = |name: &str| rule_text("").replace("alert: A", &format!("alert: {name:?}"));
    assert_eq!(rules(&named(&"a".repeat(255))).groups.len(), 1);
    for (name, part) in
        [(&*"a".repeat(256), "at most 255 bytes"), (" ", "empty"), ("a\nb", "control characters")]
    {
        let mistake = one_mistake(&named(name));
        assert!(mistake.message.contains(part) && mistake.line == 4, "{mistake}");
    }
}

#[test]
fn an_aim_that_cannot_be_missed_is_refused() {
    let aimed =
        |aim: &str| rule_text(&format!("remedy: {{steps: [compact_memory: {{}}], aim: '{aim}'}}"));
    for aim in [
        "uma_memory_free_bytes > 1",
        "(uma_memory_free_bytes > 1) + 1",
        "absent(uma_memory_page_cache_bytes)",
        "uma_memory_free_bytes unless uma_memory_total_bytes",
        "scalar(uma_memory_free_bytes) > bool 1",
    ] {
        assert_eq!(rules(&aimed(aim)).groups.len(), 1, "{aim}");
    }
    for aim in ["1", "uma_memory_free_bytes", "uma_memory_free_bytes > bool 1", "vector(1)"] {
        let mistake = one_mistake(&aimed(aim));
        assert!(mistake.message.starts_with("aim is met for all values"), "{mistake}");
    }
}

#[test]
fn likely_mistakes_are_reported_with_a_correction() {
    for (text, part) in [
        ("- alert: A\n  expr: 1\n".to_owned(), "write groups: ["),
        ("rules: [{alert: A, expr: 1}]".to_owned(), "write groups: ["),
        ("apiVersion: v1\nkind: PrometheusRule\nspec: {groups: []}".to_owned(), "Kubernetes"),
        (rule_text("action: drop_caches"), "write remedy: {steps:"),
        (rule_text("severity: warning"), "belongs to labels"),
        (rule_text("summary: low"), "belongs to annotations"),
        (rule_text("remedy: drop_caches"), "write remedy: {steps:"),
        (rule_text("remedy: [drop_caches: {}]"), "write remedy: {steps:"),
        (rule_text("remedy: {steps: drop_caches}"), "begin each step with a dash"),
        (
            rule_text("remedy: {steps: [notify: {message: a}], at_most: 3/h}"),
            "{times: 20, per: 1h}",
        ),
        (rule_text("").replace("    expr", "  expr"), "indent it as deep"),
        (rule_text("").replace("< 1", "< 2GiB"), "write 2 * 1024^3"),
        (rule_text("").replace("< 1", "< 500MB"), "write 500e6, or 500 * 1024^2"),
        (rule_text("").replace("< 1", "< 1.5k"), "write 1.5e3, or 1.5 * 1024^1"),
        (rule_text("").replace("< 1", "> 10%"), "10 percent is 0.1"),
        (
            rule_text("").replace("uma_memory_free_bytes", "node_memory_MemFree_bytes"),
            "uma_memory_free_bytes",
        ),
        (
            rule_text("").replace("uma_memory_free_bytes", "node_memory_Cached_bytes"),
            "uma_memory_cached_bytes",
        ),
        (rule_text("").replace("uma_memory_free_bytes", "up"), "see its /metrics"),
        (
            rule_text("")
                .replace("uma_memory_free_bytes", "sum(uma_memory_page_cache_bytes) by state"),
            "write (state)",
        ),
    ] {
        let found = mistakes(&text);
        let advised =
            |mistake: &Mistake| mistake.hint.as_ref().is_some_and(|hint| hint.contains(part));
        assert!(found.iter().any(advised), "{part}\n{found:#?}");
    }
}

#[test]
fn reading_ends_after_many_mistakes() {
    let rule = |n| format!("  - {{alert: A{n}, expr: uma_memory_fre_byts}}\n");
    let rules: String = (0..5000).map(rule).collect();
    let found = mistakes(&format!("groups:\n- name: g\n  rules:\n{rules}"));
    assert_eq!((found.len(), found[99].line), (100, 103));
    assert!(found[99].hint.as_ref().is_some_and(|hint| hint.contains("more than 100 mistakes")));
}

#[test]
fn all_mistakes_of_a_file_are_reported_together() {
    let text = rule_text("for: soon\nlabels: {1a: x, alertname: y}\nremedy: {aim: 1}\nmode: no")
        + "  - expr: uma_memory_free_bytes\n  - just text\n- rules: 5\n";
    let lines: Vec<usize> = mistakes(&text).iter().map(|mistake| mistake.line).collect();
    assert_eq!(lines, [6, 7, 7, 8, 8, 9, 10, 11, 12, 12]);
}

/// A shipped file with a few characters replaced, and its end cut off.
fn damaged() -> impl Strategy<Value = String> {
    let texts: Vec<String> = shipped_rules().into_iter().map(|source| source.text).collect();
    let character = prop_oneof![
        any::<char>(),
        prop::sample::select(b"{}[]:'\"-&*|>!\n #".to_vec()).prop_map(char::from)
    ];
    let edits = prop::collection::vec((any::<prop::sample::Index>(), character), 1..6);
    (prop::sample::select(texts), edits, any::<prop::sample::Index>(), any::<bool>()).prop_map(
        |(text, edits, end, cut)| {
            let mut text: Vec<char> = text.chars().collect();
            for (at, character) in edits {
                let at = at.index(text.len());
                text[at] = character;
            }
            if cut {
                text.truncate(end.index(text.len()));
            }
            text.into_iter().collect()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn damaged_files_are_read_or_refused_with_a_position(text in damaged()) {
        if let Err(mistakes) = parse_rules(&[SourceText::new("f", text.as_str())], INTERVAL) {
            prop_assert!((1..=100).contains(&mistakes.0.len()));
            for mistake in mistakes.0 {
                prop_assert!((1..=text.matches('\n').count() + 1).contains(&mistake.line));
                prop_assert!(mistake.to_string().chars().all(|c| c == '\n' || !c.is_control()));
            }
        }
    }

    #[test]
    fn no_text_makes_the_reader_panic_or_lose_a_rule(
        key in "(alert|expr|for|labels|annotations|remedy|mode|record|[a-z]{1,8})",
        value in "(\\{|\\[|'|\"|[a-z0-9{}:, $|]){0,20}",
    ) {
        let text = rule_text(&format!("{key}: {value}"));
        if let Ok(set) = parse_rules(&[SourceText::new("f", text)], INTERVAL) {
            prop_assert_eq!(set.groups.len(), 1);
            prop_assert_eq!(set.groups[0].rules.len(), 1);
        }
    }
}

const GUARDED: &str = "
groups:
- name: g
  rules:
  - alert: Low
    expr: uma_memory_free_bytes < 1
    remedy:
      steps: [{compact_memory: {}}]
      OWN
  - alert: Backup
    expr: uma_memory_free_bytes < 2
";

fn guarded(own: &str) -> Result<RuleSet, Mistakes> {
    let windows = "guard_rails: {maintenance_windows: [{name: nights}]}";
    let file = crate::config::settings::parse_settings(&SourceText::new("c.yaml", windows));
    let rails = file.unwrap().guard_rails.unwrap();
    let source = SourceText::new("rules.yaml", GUARDED.replace("OWN", own));
    parse_rules_under(&[source], Duration::from_secs(1), rails)
}

#[test]
fn a_remedys_own_guard_rails_are_read() {
    let own = "only_in: [nights]\n      never_in: nights\n      inhibited_by: [Backup]\n      \
               require_approval: {expires: 10m}\n      breaker: {misses: 2}";
    let rules = guarded(own).unwrap_or_else(|mistakes| panic!("{mistakes}"));
    let rails = &rules.groups[0].rules[0].remedy.as_ref().unwrap().rails;
    assert_eq!(rails.only_in, [Arc::from("nights")]);
    assert_eq!(rails.never_in, [Arc::from("nights")]);
    assert_eq!(rails.inhibited_by, [Arc::from("Backup")]);
    assert_eq!(rails.approval, Some(Duration::from_secs(600)));
    assert_eq!(rails.breaker.map(|breaker| breaker.misses), Some(2));
    assert_eq!(rules.guard_rails.maintenance_windows.len(), 1);
    let expires = |own| guarded(own).unwrap().groups[0].rules[0].remedy.clone().unwrap().rails;
    assert_eq!(expires("require_approval: true").approval, Some(Duration::from_secs(3_600)));
    assert_eq!(expires("require_approval: false").approval, None);
}

#[test]
fn names_in_guard_rails_of_a_remedy_must_exist() {
    for (own, expected, hint) in [
        ("only_in: [nigths]", "no maintenance window", "did you mean \"nights\"?"),
        ("never_in: [days]", "no maintenance window", "guard_rails.maintenance_windows"),
        ("only_in: []", "only_in names no window", "remove it"),
        ("inhibited_by: [Bakcup]", "no rule has the alert \"Bakcup\"", "\"Backup\"?"),
        ("inhibited_by: [Low]", "cannot inhibit itself", "other rules"),
        ("inhibited_by: [{a: b}]", "must be text", ""),
        ("require_approval: maybe", "neither true nor false", ""),
        ("require_approval: {expires: 1s}", "expires", ""),
        ("require_approval: {expire: 1m}", "unknown key \"expire\"", "\"expires\"?"),
        ("breaker: {misses: many}", "\"many\" is not a whole number", ""),
        ("only_within: [nights]", "unknown key \"only_within\"", ""),
    ] {
        let mistakes = guarded(own).expect_err(own).to_string();
        assert!(mistakes.contains(expected) && mistakes.contains(hint), "{own}\n{mistakes}");
        assert!(mistakes.contains("rules.yaml:"), "{mistakes}");
    }
    let source = SourceText::new("rules.yaml", GUARDED.replace("OWN", "only_in: [any]"));
    assert!(parse_rules(&[source], Duration::from_secs(1)).is_ok(), "without a configuration");
}

#[test]
fn reclaim_is_read_with_size_and_engine() {
    let rule = |step: &str| {
        let text = GUARDED.replace("OWN", "").replace("compact_memory: {}", step);
        parse_rules(&[SourceText::new("rules.yaml", text)], INTERVAL)
    };
    let wanted = |from| [RemedyStep::Reclaim { from, bytes: 2 << 30 }];
    for cgroup in ["/", "/a.slice/b.service", "{{ $labels.cgroup }}"] {
        let rules = rule(&format!("reclaim: {{cgroup: '{cgroup}', bytes: 2GiB}}")).unwrap();
        let steps = &rules.groups[0].rules[0].remedy.as_ref().unwrap().steps;
        assert_eq!(*steps, wanted(ReclaimFrom::Cgroup(template(cgroup))));
    }
    let rules = rule("reclaim: {engine: '{{ $labels.engine }}', bytes: 2GiB}").unwrap();
    let wanted = wanted(ReclaimFrom::Engine(template("{{ $labels.engine }}")));
    assert_eq!(rules.groups[0].rules[0].remedy.as_ref().unwrap().steps, wanted);
    for (step, expected) in [
        ("reclaim: {}", "reclaim needs cgroup (or engine) and bytes"),
        ("reclaim: {cgroup: /a}", "reclaim needs bytes"),
        ("reclaim: {bytes: 1GiB}", "reclaim needs cgroup or engine"),
        ("reclaim: {cgroup: /a, engine: b, bytes: 1GiB}", "not both"),
        ("reclaim: {engine: '', bytes: 1GiB}", "it has no name"),
        ("reclaim: {cgroup: /a, bytes: 1KiB}", "less than 1MiB"),
        ("reclaim: {cgroup: /a, bytes: all}", "not a size"),
        ("reclaim: {cgroup: a, bytes: 1GiB}", "no control group"),
        ("reclaim: {cgroup: /a/../b, bytes: 1GiB}", "no control group"),
        ("reclaim: {cgroup: /sys/fs/cgroup/a, bytes: 1GiB}", "hierarchy's root: /a"),
        ("reclaim: {cgroup: '{{ $label }}', bytes: 1GiB}", "cgroup: "),
        ("reclaim: {cgroup: /a, bytes: 1GiB, swap: 1}", "unknown key \"swap\""),
    ] {
        let mistakes = rule(step).expect_err(step).to_string();
        assert!(mistakes.contains(expected), "{step}\n{mistakes}");
    }
}

#[test]
fn temporary_settings_are_read() {
    let text = "set_sysctl: {vm.swappiness: 10, vm.min_free_kbytes: 2097152, for: 20m}";
    let values = [(Sysctl::Swappiness, 10), (Sysctl::MinFreeKbytes, 2_097_152)].into();
    let for_at_most = Duration::from_secs(1_200);
    assert_eq!(step(text), RemedyStep::SetSysctl { values, for_at_most });
    let throttled = |devices: &[&str], of: &[&str]| RemedyStep::ThrottleReadahead {
        kib: 8,
        devices: devices.iter().map(|name| (*name).to_owned()).collect(),
        of: of.iter().map(|path| template(path)).collect(),
        for_at_most: Duration::from_secs(1_800),
    };
    for (text, wanted) in [
        ("throttle_readahead: {kib: 8, of: /models}", throttled(&[], &["/models"])),
        (
            "throttle_readahead: {kib: 8, devices: [/dev/nvme0n1, dm-0]}",
            throttled(&["nvme0n1", "dm-0"], &[]),
        ),
        (
            "throttle_readahead: {kib: 8, of: ['{{ $labels.model }}']}",
            throttled(&[], &["{{ $labels.model }}"]),
        ),
    ] {
        assert_eq!(step(text), wanted);
    }
}

#[test]
fn implausible_temporary_settings_are_refused() {
    for (text, expected) in [
        ("set_sysctl: {}", "at least one setting"),
        ("set_sysctl: vm.swappiness", "at least one setting"),
        ("set_sysctl: {for: 1m}", "sets nothing"),
        ("set_sysctl: {vm.overcommit_memory: 1}", "does not change \"vm.overcommit_memory\""),
        ("set_sysctl: {vm.swapiness: 1}", "does not change \"vm.swapiness\""),
        ("set_sysctl: {vm.swappiness: 201}", "from 0 to 200"),
        ("set_sysctl: {vm.swappiness: -1}", "from 0 to 200"),
        ("set_sysctl: {vm.swappiness: 1.5}", "from 0 to 200"),
        ("set_sysctl: {vm.watermark_scale_factor: 0}", "from 1 to 3000"),
        ("set_sysctl: {vm.min_free_kbytes: 4294967296}", "from 128 to 2147483647"),
        ("set_sysctl: {vm.swappiness: 1, for: 0s}", "for: "),
        ("set_sysctl: {vm.swappiness: 1, for: 2d}", "for: "),
        ("throttle_readahead: {}", "needs kib"),
        ("throttle_readahead: {of: [/models]}", "needs kib"),
        ("throttle_readahead: {kib: 8}", "neither devices nor of"),
        ("throttle_readahead: {kib: 0, of: [/models]}", "from 1 to 128"),
        ("throttle_readahead: {kib: 8, of: [models]}", "no path from the root"),
        ("throttle_readahead: {kib: 8, devices: [../sda]}", "no device's name"),
        ("throttle_readahead: {kib: 8, device: sda}", "unknown key \"device\""),
        ("undo: {}", "unknown step \"undo\""),
        ("cordon_node: {for: 31d}", "for: "),
        ("taint_node: {key: a.b/c, for: 31d}", "for: "),
    ] {
        let mistakes = mistakes(&rule_text(&format!("remedy:\n  steps:\n  - {text}")));
        let all: Vec<&str> = mistakes.iter().map(|mistake| mistake.message.as_str()).collect();
        assert!(all.iter().any(|message| message.contains(expected)), "{text}\n{all:?}");
    }
    let twice = "remedy:\n  steps:\n  - set_sysctl: {vm.swappiness: 1}\n  \
        - set_sysctl: {vm.dirty_ratio: 1, vm.swappiness: 2}";
    let mistake = one_mistake(&rule_text(twice));
    assert_eq!(mistake.message, "two steps of one remedy change vm.swappiness");
}
