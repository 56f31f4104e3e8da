//! The checker on forbidden sequences of decisions: each one violates one invariant.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use umawarden::model::{
    Action, AimCheck, AlertChange, AlertState, Decision, DecisionId, DecisionRecord, Evidence,
    Grade, Grades, HoldReason, Mode, Moment, Observation, OperatorCommand, OperatorOrder, Outcome,
    OutcomeResult, Pause, Reading, Readings, RuleId, RuleSelector, Schema, SeriesKey, Source,
};
use umawarden::policy::guard::{
    AtMost, BreakerLimit, Glob, GuardRails, MaintenanceWindow, Protected, WrittenWindow,
};
use umawarden::policy::{CommandResult, Doubt, Step};

use super::checker::{Checker, Clock, Violation};
use super::process::Loaded;

const RULES: &str = "
groups:
- name: g
  interval: 1s
  rules:
  - alert: Full
    expr: uma_memory_free_bytes < 100
    for: 1s
    remedy:
      aim: uma_memory_free_bytes > 50
      steps:
      - drop_caches: {}
      - compact_memory: {}
      - reclaim: {cgroup: /system.slice/database.service, bytes: 1GiB}
      cooldown: 10s
      at_most: {times: 3, per: 1h}
  - alert: Other
    expr: uma_memory_free_bytes < 100
    remedy:
      steps: [drop_caches: {}]
      cooldown: 0s
      at_most: {times: 100, per: 1h}
  - alert: Asking
    expr: uma_memory_free_bytes < 100
    remedy:
      steps: [drop_caches: {}]
      cooldown: 0s
      require_approval: true
      inhibited_by: [Never]
  - alert: Setting
    expr: uma_memory_free_bytes < 100
    remedy:
      steps: [set_sysctl: {vm.swappiness: 10, for: 1h}]
      cooldown: 10s
      at_most: {times: 99, per: 1h}
  - alert: Never
    expr: uma_memory_free_bytes < 0
";

/// A checker and the state for feeding it a sequence of decisions.
struct Sequence {
    checker: Checker,
    clock: Clock,
    loaded: Loaded,
    next: u64,
    seen: Vec<Observation>,
    step: Step,
}

fn rule(alert: &str) -> RuleId {
    RuleId { group: Arc::from("g"), alert: Arc::from(alert) }
}

fn pages() -> Action {
    Action::DropCaches { what: umawarden::model::CacheKind::PageCache, sync: false }
}

impl Sequence {
    fn new(rails: GuardRails) -> Self {
        let utc = Timestamp::from_second(1_790_000_000).unwrap();
        let at = Moment { uptime: Duration::from_secs(5_000), utc };
        let loaded = Loaded::new(Mode::Enforce, &[("r.yaml", RULES.to_owned())], rails);
        let mut sequence = Self {
            checker: Checker::default(),
            clock: Clock { now: Duration::from_secs(9_000), boot: 1, at },
            loaded,
            next: 1,
            seen: Vec::new(),
            step: Step::default(),
        };
        sequence.start();
        sequence
    }

    /// A process starts, reads the past, and all rules but one fire.
    fn start(&mut self) {
        self.checker.begin(Mode::Enforce, &self.loaded.rules);
        self.seen.push(Observation::Past(Box::default()));
        for alert in ["Full", "Other", "Asking"] {
            self.change(alert, AlertState::Inactive, AlertState::Pending);
        }
        self.step().unwrap();
        self.pass(1);
        for alert in ["Full", "Other", "Asking"] {
            self.change(alert, AlertState::Pending, AlertState::Firing);
            self.hold(alert, HoldReason::Unknown);
        }
        self.step().unwrap();
        self.pass(1);
    }

    fn pass(&mut self, seconds: u64) {
        let time = Duration::from_secs(seconds);
        self.clock.now += time;
        self.clock.at.uptime += time;
        self.clock.at.utc += time;
    }

    fn reboot(&mut self) {
        self.clock.boot += 1;
        self.clock.at.uptime = Duration::from_secs(20);
        self.pass(10);
    }

    fn change(&mut self, alert: &str, from: AlertState, to: AlertState) {
        self.step.alerts.push(AlertChange {
            at: self.clock.at,
            rule: rule(alert),
            labels: [(Arc::from("alertname"), Arc::from(alert))].into(),
            from,
            to,
            value: Reading::Value(40.0),
            annotations: [].into(),
        });
    }

    fn decide(&mut self, alert: &str, decision: Decision, step: usize) -> &mut DecisionRecord {
        let mut actions = vec![pages(), Action::CompactMemory];
        let cgroup = "/system.slice/database.service".to_owned();
        actions.push(Action::Reclaim { cgroup, engine: None, bytes: 1 << 30 });
        let action = actions.swap_remove(step);
        let evidence =
            Evidence { series: "uma_memory_free_bytes".to_owned(), value: Reading::Value(40.0) };
        let id = DecisionId(self.next);
        self.next += 1;
        self.step.decisions.push(DecisionRecord {
            id,
            at: self.clock.at,
            rule: rule(alert),
            mode: Mode::Enforce,
            decision,
            step,
            target: action.target(),
            action,
            approved: None,
            goes_ahead: None,
            because: vec![evidence],
        });
        self.step.decisions.last_mut().unwrap()
    }

    fn act(&mut self, alert: &str, step: usize) -> &mut DecisionRecord {
        self.decide(alert, Decision::Act, step)
    }

    /// A rule fires, and changes a setting for a while.
    fn set(&mut self) {
        self.change("Setting", AlertState::Inactive, AlertState::Firing);
        let rules = self.loaded.rules.groups.iter().flat_map(|group| &group.rules);
        let own = rules.filter(|own| own.id == rule("Setting")).find_map(|own| own.remedy.as_ref());
        let action = own.unwrap().steps[0].action(None);
        let decision = self.act("Setting", 0);
        (decision.target, decision.action) = (action.target(), action);
    }

    fn hold(&mut self, alert: &str, reason: HoldReason) -> DecisionId {
        self.decide(alert, Decision::Hold(reason), 0).id
    }

    /// The checker gets all decisions since the last step.
    fn step(&mut self) -> Result<(), Violation> {
        let (seen, step) = (std::mem::take(&mut self.seen), std::mem::take(&mut self.step));
        self.checker.step(&self.clock, &seen, &step)
    }

    /// The last act ends, and has met its aim or not.
    fn end(&mut self, aim_met: bool) {
        let decision = DecisionId(self.next - 1);
        self.pass(1);
        self.outcome(decision, OutcomeResult::Done);
        let (at, aim_met) = (self.clock.at, Some(aim_met));
        self.step.aim_checks.push(AimCheck {
            decision,
            at,
            has_aim: true,
            died_in: None,
            aim_met,
            before: Vec::new(),
            after: Vec::new(),
        });
        self.step().unwrap();
    }

    fn outcome(&mut self, decision: DecisionId, result: OutcomeResult) {
        let outcome = Outcome {
            decision,
            action: "drop_caches".to_owned(),
            result,
            ended: self.clock.at,
            took: Duration::ZERO,
            effect: None,
        };
        self.checker.kept(&outcome);
        self.seen.push(Observation::Outcome(outcome));
    }

    fn order(&mut self, order: OperatorOrder) {
        let (author, comment) = ("a".to_owned(), String::new());
        let command = OperatorCommand { at: self.clock.at, author, comment, order, refused: None };
        self.seen.push(Observation::Operator(command.clone()));
        self.step.answers.push(CommandResult { command, refused: None });
    }

    fn until(&self) -> Timestamp {
        self.clock.at.utc + SignedDuration::from_secs(100)
    }

    #[track_caller]
    fn breaks(&mut self, invariant: &str) {
        let found = self.step().expect_err("the checker has seen nothing");
        assert_eq!(found.invariant, invariant, "{}", found.what);
    }
}

fn sequence() -> Sequence {
    Sequence::new(GuardRails::default())
}

#[test]
fn a_correct_sequence_breaks_nothing() {
    let mut sequence = sequence();
    sequence.act("Full", 0);
    sequence.step().unwrap();
    sequence.end(false);
    sequence.act("Full", 1);
    sequence.step().unwrap();
    sequence.end(true);
    sequence.pass(10);
    sequence.act("Full", 0);
    sequence.step().unwrap();
}

#[test]
fn an_act_beyond_the_budget_is_detected_over_restarts_and_reboots() {
    for between in [
        |_: &mut Sequence| {},
        Sequence::start,
        |sequence: &mut Sequence| {
            sequence.reboot();
            sequence.start();
        },
    ] {
        let mut sequence = sequence();
        for _ in 0..3 {
            sequence.act("Full", 0);
            sequence.step().unwrap();
            sequence.end(true);
            sequence.pass(60);
        }
        between(&mut sequence);
        sequence.act("Full", 0);
        sequence.breaks("never more than at_most in any window");
    }
}

#[test]
fn an_act_after_the_budgets_window_breaks_nothing_and_one_a_second_before_does() {
    for (seconds, is_fine) in [(3_600, true), (3_599, false)] {
        let mut sequence = sequence();
        for _ in 0..2 {
            sequence.act("Full", 0);
            sequence.step().unwrap();
            sequence.end(true);
            sequence.pass(10);
        }
        sequence.act("Full", 0);
        sequence.step().unwrap();
        sequence.end(true);
        sequence.pass(seconds - 1 - 22);
        sequence.act("Full", 0);
        assert_eq!(sequence.step().is_ok(), is_fine, "{seconds}");
    }
}

#[test]
fn the_budget_of_all_remedies_together_is_counted() {
    let budget = Some(AtMost { times: 1, per: Duration::from_secs(100) });
    let mut sequence = Sequence::new(GuardRails { budget, ..GuardRails::default() });
    sequence.act("Full", 0);
    sequence.step().unwrap();
    sequence.end(true);
    sequence.act("Other", 0);
    sequence.breaks("never more than the budget of all in any window");
}

#[test]
fn an_act_within_the_cooldown_is_detected_after_a_restart_too() {
    for between in [|_: &mut Sequence| {}, Sequence::start] {
        let mut sequence = sequence();
        sequence.act("Full", 0);
        sequence.step().unwrap();
        sequence.end(true);
        sequence.pass(5);
        between(&mut sequence);
        sequence.act("Full", 0);
        sequence.breaks("a remedy has its cooldown between rounds");
    }
}

#[test]
fn a_lasting_setting_has_its_cooldown_from_its_outcome_and_not_from_a_later_reload() {
    // Seconds from the reload to the next act, and the violation.
    let still_set = "one remedy at a time changes a setting";
    for (seconds, invariant) in [(4, "a remedy has its cooldown between rounds"), (8, still_set)] {
        let mut sequence = sequence();
        sequence.set();
        sequence.step().unwrap();
        sequence.pass(5);
        sequence.outcome(DecisionId(sequence.next - 1), OutcomeResult::Done);
        sequence.step().unwrap();
        sequence.pass(3);
        let changed = RULES.replace("times: 99", "times: 98");
        sequence.loaded = Loaded::new(Mode::Enforce, &[("r.yaml", changed)], GuardRails::default());
        let (clock, rules) = (sequence.clock, &sequence.loaded.rules);
        sequence.checker.reload(&clock, Mode::Enforce, rules, &[]).unwrap();
        sequence.pass(seconds);
        sequence.set();
        sequence.breaks(invariant);
    }
}

#[test]
fn two_actions_at_once_are_detected() {
    let mut sequence = sequence();
    sequence.act("Full", 0);
    sequence.act("Other", 0);
    sequence.breaks("never two actions at once");
}

#[test]
fn an_act_before_the_outcome_of_the_last_is_detected() {
    let mut sequence = sequence();
    sequence.act("Full", 0);
    sequence.step().unwrap();
    sequence.pass(60);
    sequence.act("Full", 1);
    sequence.breaks("each act waits for the last outcome");
}

#[test]
fn a_next_step_after_a_met_aim_is_detected() {
    let mut sequence = sequence();
    sequence.act("Full", 0);
    sequence.step().unwrap();
    sequence.end(true);
    sequence.act("Full", 1);
    sequence.breaks("a next step follows a missed aim");
}

#[test]
fn an_act_without_evidence_is_detected() {
    let mut sequence = sequence();
    sequence.act("Full", 0).because.clear();
    sequence.breaks("nothing is done without evidence");
}

#[test]
fn an_act_of_a_rule_that_does_not_fire_is_detected() {
    let mut sequence = sequence();
    sequence.change("Full", AlertState::Firing, AlertState::Inactive);
    sequence.act("Full", 0);
    sequence.breaks("nothing is done without evidence");
}

#[test]
fn an_act_in_another_mode_is_detected() {
    let mut sequence = sequence();
    sequence.act("Full", 0).mode = Mode::Observe;
    sequence.breaks("the mode is obeyed");
}

#[test]
fn an_act_of_a_grade_that_is_not_enforced_is_detected() {
    let enforced = Grades::from_iter([Grade::Notice, Grade::Restart, Grade::Stop]);
    let mut sequence = Sequence::new(GuardRails { enforced, ..GuardRails::default() });
    sequence.act("Full", 0);
    // All its steps are of that grade, so that its rule only observes.
    sequence.breaks("the mode is obeyed");
}

#[test]
fn an_act_whose_aim_is_met_is_detected() {
    let mut sequence = sequence();
    sequence.act("Full", 0).because[0].value = Reading::Value(60.0);
    sequence.breaks("nothing is done once the aim is met");
}

#[test]
fn an_action_outside_every_step_is_detected() {
    let mut sequence = sequence();
    sequence.act("Full", 0).action = Action::CompactMemory;
    sequence.breaks("a decision is a step of its remedy");
}

#[test]
fn an_action_on_a_protected_process_is_detected() {
    let units = vec![Glob::try_from("data*.service".to_owned()).unwrap()];
    let protect = Protected { units, ..Protected::default() };
    let mut sequence = Sequence::new(GuardRails { protect, ..GuardRails::default() });
    for step in 0..2 {
        sequence.act("Full", step);
        sequence.step().unwrap();
        sequence.end(false);
    }
    sequence.act("Full", 2);
    sequence.breaks("nothing protected is touched");
}

#[test]
fn an_act_while_its_source_has_failed_is_detected() {
    let mut sequence = sequence();
    let schema = Schema { series: vec![SeriesKey::new("uma_memory_free_bytes", &[])] };
    sequence.seen.push(Observation::Readings(Readings {
        source: Source::Meminfo,
        schema: Arc::new(schema),
        values: vec![Reading::Failed],
        took: Duration::ZERO,
        error: Some(Arc::from("gone")),
    }));
    sequence.act("Full", 0);
    sequence.breaks("an unknown rule neither advances nor resolves");
}

#[test]
fn an_alert_that_ends_while_its_rule_is_unknown_is_detected() {
    let mut sequence = sequence();
    sequence.step.doubts.push(Doubt { rule: rule("Full"), reasons: vec!["blind".to_owned()] });
    sequence.change("Full", AlertState::Firing, AlertState::Inactive);
    sequence.breaks("an unknown rule neither advances nor resolves");
}

#[test]
fn an_alert_that_fires_too_early_is_detected() {
    let mut sequence = sequence();
    sequence.change("Full", AlertState::Firing, AlertState::Inactive);
    sequence.step().unwrap();
    sequence.change("Full", AlertState::Inactive, AlertState::Pending);
    sequence.change("Full", AlertState::Pending, AlertState::Firing);
    sequence.breaks("a condition must hold for a while");
}

#[test]
fn a_firing_rule_without_a_decision_is_detected() {
    let mut sequence = sequence();
    sequence.change("Full", AlertState::Firing, AlertState::Inactive);
    sequence.step().unwrap();
    sequence.pass(100);
    sequence.change("Full", AlertState::Inactive, AlertState::Pending);
    sequence.step().unwrap();
    sequence.pass(1);
    sequence.change("Full", AlertState::Pending, AlertState::Firing);
    // A rule may be evaluated late, but not that late.
    for _ in 0..4 {
        sequence.step().unwrap();
        sequence.pass(1);
    }
    sequence.breaks("every firing rule acts or gives its reason");
}

#[test]
fn an_act_while_paused_silenced_or_not_yet_restored_is_detected() {
    let mut paused = sequence();
    let (author, comment) = ("a".to_owned(), String::new());
    paused.seen.push(Observation::Pause(Some(Pause { author, comment, since: None })));
    paused.act("Full", 0);
    paused.breaks("nothing is done while paused");

    let mut silenced = sequence();
    let until = silenced.until();
    silenced.order(OperatorOrder::Silence { id: 1, rules: RuleSelector::All, until });
    silenced.step().unwrap();
    silenced.start();
    silenced.act("Full", 0);
    silenced.breaks("nothing is done while silenced");

    let mut unrestored = sequence();
    unrestored.checker.begin(Mode::Enforce, &unrestored.loaded.rules);
    unrestored.change("Other", AlertState::Inactive, AlertState::Pending);
    unrestored.change("Other", AlertState::Pending, AlertState::Firing);
    unrestored.act("Other", 0);
    unrestored.breaks("nothing is done before the past is known");
}

/// An act after its approval, and the decision that was approved.
fn approved_act() -> (Sequence, DecisionId) {
    let mut sequence = sequence();
    let question = sequence.hold("Asking", HoldReason::Approval);
    sequence.step().unwrap();
    let until = sequence.until();
    sequence.order(OperatorOrder::Approve { decision: question, until });
    sequence.act("Asking", 0).approved = Some(question);
    sequence.step().unwrap();
    (sequence, question)
}

#[test]
fn an_approval_that_was_not_given_or_was_used_is_detected() {
    let mut sequence = sequence();
    let question = sequence.hold("Asking", HoldReason::Approval);
    sequence.step().unwrap();
    sequence.act("Asking", 0).approved = Some(question);
    sequence.breaks("an approval covers one act alone");

    let (mut sequence, question) = approved_act();
    sequence.end(true);
    sequence.act("Asking", 0).approved = Some(question);
    sequence.breaks("an approval is used once");

    // An act that was not done has not used it.
    let (mut sequence, question) = approved_act();
    sequence.pass(1);
    let not_done = OutcomeResult::NotDone("paused".to_owned());
    sequence.outcome(DecisionId(sequence.next - 1), not_done);
    sequence.step().unwrap();
    sequence.act("Asking", 0).approved = Some(question);
    sequence.step().unwrap();
    sequence.pass(1);
    sequence.end(true);
    sequence.act("Asking", 0).approved = Some(question);
    sequence.breaks("an approval is used once");

    let mut sequence = self::sequence();
    sequence.act("Asking", 0);
    sequence.breaks("nothing is done without its approval");
}

#[test]
fn an_act_against_a_window_an_inhibitor_or_a_breaker_is_detected() {
    let always = WrittenWindow {
        name: Arc::from("always"),
        days: BTreeSet::new(),
        from: 0,
        to: 0,
        time_zone: "UTC".to_owned(),
    };
    let mut closed = Sequence::new(GuardRails {
        maintenance_windows: vec![MaintenanceWindow::try_from(always).unwrap()],
        never_in: vec![Arc::from("always")],
        ..GuardRails::default()
    });
    closed.act("Full", 0);
    closed.breaks("maintenance windows are respected");

    let mut inhibited = sequence();
    inhibited.step.doubts.push(Doubt { rule: rule("Never"), reasons: vec!["blind".to_owned()] });
    inhibited.act("Asking", 0);
    inhibited.breaks("nothing is done while an inhibitor fires");

    let breaker = Some(BreakerLimit { misses: 2, reset_after: None });
    let mut stopped = Sequence::new(GuardRails { breaker, ..GuardRails::default() });
    for _ in 0..2 {
        stopped.act("Other", 0);
        stopped.step().unwrap();
        stopped.end(false);
    }
    stopped.act("Other", 0);
    stopped.breaks("a remedy that does not help is stopped");
}

#[test]
fn a_repeated_sequence_number_and_a_hold_without_its_reason_are_detected() {
    let mut sequence = sequence();
    sequence.next -= 1;
    sequence.hold("Full", HoldReason::Unknown);
    sequence.breaks("no sequence number is repeated");

    for reason in [HoldReason::Busy, HoldReason::Cooldown, HoldReason::Paused] {
        let mut sequence = self::sequence();
        sequence.hold("Full", reason);
        sequence.breaks("a hold names its reason");
    }
}
