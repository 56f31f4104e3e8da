use proptest::prelude::*;

use super::series::MOST_SHOWN;
use super::*;
use crate::config::mistake::SourceText;
use crate::config::rules::parse_rules;
use crate::model::{
    DecisionId, EarlierRuns, EventKind, Mode, Observation, ProgramEvent, Readings, Schema,
    SeriesKey, Source,
};
use crate::policy::status::RuleState;
use crate::policy::{Policy, Step};

const RULES: &str = "groups:\n- name: g\n  interval: 1s\n  rules:\n  \
    - {alert: Low, expr: 'ALERTS{alertname=\"Low\", node=~\"a.*\"} == 1'}\n  \
    - {alert: Many, expr: 'count by (team) (ALERTS) > 1'}\n";

struct ReceivedWorld {
    policy: Policy,
    at: Moment,
    schema: Arc<Schema>,
}

impl ReceivedWorld {
    fn new() -> Self {
        let at = Moment {
            uptime: Duration::from_secs(1_000),
            utc: "2026-11-22T10:00:00Z".parse().unwrap(),
        };
        let source = SourceText::new("test.yaml", RULES);
        let rules = parse_rules(&[source], Duration::from_secs(1)).unwrap();
        let key = SeriesKey::new("uma_memory_free_bytes", &[]);
        Self {
            policy: Policy::new(at, Mode::Observe, &rules, DecisionId(1)),
            at,
            schema: Arc::new(Schema { series: vec![key] }),
        }
    }

    fn step(&mut self, mut seen: Vec<Observation>) -> Step {
        seen.push(Observation::Readings(Readings {
            source: Source::Meminfo,
            schema: Arc::clone(&self.schema),
            values: vec![crate::model::Reading::Value(1.0)],
            took: Duration::ZERO,
            error: None,
        }));
        self.policy.step(self.at, &seen)
    }

    fn pass(&mut self, seconds: u64) -> Vec<String> {
        let mut turns = Vec::new();
        for _ in 0..seconds {
            self.at.uptime += Duration::from_secs(1);
            self.at.utc += Duration::from_secs(1);
            turns.extend(changes(&self.step(Vec::new())));
        }
        turns
    }

    fn post(&mut self, alerts: Vec<ReceivedAlert>) -> Vec<String> {
        self.at.uptime += Duration::from_secs(1);
        self.at.utc += Duration::from_secs(1);
        let alerts = alerts.into_iter().map(Arc::new).collect();
        let post = ReceivedAlerts { alerts, ..ReceivedAlerts::default() };
        changes(&self.step(vec![Observation::ReceivedAlerts(Box::new(post))]))
    }

    fn state(&mut self, rule: usize) -> RuleState {
        self.policy.status(self.at).rules[rule].state
    }

    fn value(&mut self, series: &str) -> f64 {
        let status = self.policy.status(self.at);
        let place = status.series.iter().position(|key| key.to_string() == series).unwrap();
        status.values[place].value().unwrap()
    }

    fn firing(&mut self) -> usize {
        self.policy.status(self.at).received.len()
    }
}

fn changes(step: &Step) -> Vec<String> {
    let events = step.events.iter().filter_map(|event| match &event.kind {
        EventKind::Program(ProgramEvent::ReceivedAlert { to, alert }) => {
            Some(format!("{} {}", alert.fingerprint, to.name()))
        }
        _ => None,
    });
    events.collect()
}

fn alert(fingerprint: &str, status: ReceivedStatus, start: i64) -> ReceivedAlert {
    let labels = [("alertname", "Low"), ("node", "a1"), ("fingerprint", fingerprint)];
    let labels = labels.map(|(name, value)| (Arc::from(name), Arc::from(value)));
    ReceivedAlert {
        by: None,
        fingerprint: fingerprint.into(),
        status,
        starts_at: jiff::Timestamp::from_second(1_700_000_000 + start).unwrap(),
        ends_at: None,
        labels: labels.into(),
    }
}

fn firing(fingerprint: &str, start: i64) -> ReceivedAlert {
    alert(fingerprint, ReceivedStatus::Firing, start)
}

fn resolved(fingerprint: &str, start: i64) -> ReceivedAlert {
    alert(fingerprint, ReceivedStatus::Resolved, start)
}

#[test]
fn a_rule_reads_received_alerts_until_they_are_resolved() {
    let mut world = ReceivedWorld::new();
    world.pass(2);
    assert_eq!(world.state(0), RuleState::Inactive, "nothing was posted: nothing fires");
    assert_eq!(world.post(vec![firing("a", 0)]), ["a firing"]);
    assert_eq!(world.state(0), RuleState::Firing);
    let series = "ALERTS{alertname=\"Low\",alertstate=\"firing\",fingerprint=\"a\",node=\"a1\"}";
    assert_eq!(world.value(series).to_bits(), 1f64.to_bits());
    // Longer than a rule reads a value back.
    assert_eq!(world.pass(600), [""; 0]);
    assert_eq!(world.state(0), RuleState::Firing);
    assert_eq!(world.post(vec![resolved("a", 0)]), ["a resolved"]);
    assert_eq!(world.state(0), RuleState::Inactive);
    assert_eq!((world.firing(), world.value("uma_received_alerts")), (0, 0.0));
}

#[test]
fn repeated_outdated_and_late_posts_change_nothing() {
    let mut world = ReceivedWorld::new();
    world.pass(1);
    assert_eq!(world.post(vec![firing("a", 10), firing("a", 10)]), ["a firing"]);
    assert_eq!(world.post(vec![firing("a", 10)]), [""; 0]);
    assert_eq!(world.post(vec![firing("a", 5)]), [""; 0], "an older start");
    assert_eq!(world.post(vec![resolved("a", 5)]), [""; 0], "the end of an older one");
    assert_eq!(world.firing(), 1);
    assert_eq!(world.post(vec![resolved("a", 10), resolved("a", 10)]), ["a resolved"]);
    assert_eq!(world.post(vec![firing("a", 10)]), [""; 0], "late");
    assert_eq!(world.post(vec![firing("a", 5)]), [""; 0], "later still");
    assert_eq!(world.post(vec![firing("a", 11)]), ["a firing"], "begun anew");
    assert_eq!(world.post(vec![firing("a", 12)]), ["a firing"], "its end was lost");
    assert_eq!(world.post(vec![resolved("a", 13)]), ["a resolved"], "its beginning was lost");
    let ignored = |reason| format!("uma_received_alerts_ignored_total{{reason=\"{reason}\"}}");
    assert_eq!(world.value(&ignored("repeated")), 3.0);
    assert_eq!(world.value(&ignored("outdated")), 4.0);
    assert_eq!(world.value("uma_received_posts_total"), 10.0);
}

#[test]
fn an_outdated_post_shortens_no_alert() {
    let mut world = ReceivedWorld::new();
    world.pass(1);
    world.post(vec![firing("a", 10)]);
    let ends_at = Some(world.at.utc + Duration::from_secs(30));
    assert_eq!(world.post(vec![ReceivedAlert { ends_at, ..firing("a", 5) }]), [""; 0]);
    assert_eq!(world.pass(60), [""; 0]);
    // A later report of the same start may end sooner.
    let ends_at = Some(world.at.utc + Duration::from_secs(30));
    world.post(vec![ReceivedAlert { ends_at, ..firing("a", 10) }]);
    assert_eq!(world.pass(60), ["a forgotten"]);
}

#[test]
fn an_end_received_before_its_start_stays_ended() {
    let mut world = ReceivedWorld::new();
    world.pass(1);
    assert_eq!(world.post(vec![resolved("a", 10)]), [""; 0]);
    assert_eq!(world.post(vec![firing("a", 10)]), [""; 0]);
    assert_eq!(world.firing(), 0);
    // Its evaluator was away, and repeats it unchanged.
    world.pass(RESOLVED_HOLDS.as_secs());
    assert_eq!(world.post(vec![firing("a", 10)]), ["a firing"]);
}

#[test]
fn unrepeated_alerts_expire() {
    let mut world = ReceivedWorld::new();
    world.policy.forget_received_after(Duration::from_secs(100));
    world.pass(1);
    world.post(vec![firing("a", 0), firing("b", 0)]);
    assert_eq!(world.pass(60), [""; 0]);
    assert_eq!(world.post(vec![firing("b", 0)]), [""; 0]);
    assert_eq!(world.pass(60), ["a forgotten"]);
    assert_eq!(world.state(0), RuleState::Firing);
    assert_eq!(world.pass(60), ["b forgotten"]);
    assert_eq!(world.state(0), RuleState::Inactive);
    assert_eq!(world.post(vec![firing("a", 0)]), ["a firing"], "and reported again, it fires");
}

#[test]
fn a_future_end_is_kept_and_a_past_end_is_a_clock_difference() {
    let mut world = ReceivedWorld::new();
    world.pass(1);
    let ahead = world.at.utc + Duration::from_secs(31);
    let behind = world.at.utc - Duration::from_secs(3_600);
    let with = |name, ends_at| ReceivedAlert { ends_at: Some(ends_at), ..firing(name, 0) };
    world.post(vec![with("a", ahead), with("b", behind)]);
    assert_eq!(world.pass(40), ["a forgotten"]);
    assert_eq!(world.firing(), 1);
}

#[test]
fn too_many_alerts_make_rules_unknown_until_some_end() {
    let mut world = ReceivedWorld::new();
    world.pass(1);
    let name = |number: usize| format!("{number:04}");
    let many: Vec<_> = (0..=MOST_SHOWN).map(|number| firing(&name(number), 0)).collect();
    assert_eq!(world.post(many).len(), MOST_SHOWN + 1);
    let ignored = "uma_received_alerts_ignored_total{reason=\"too_many\"}";
    assert_eq!((world.value(ignored), world.firing()), (1.0, MOST_SHOWN + 1));
    assert_eq!(world.state(0), RuleState::Unknown, "which of them fire is not known");
    world.post(vec![firing(&name(MOST_SHOWN), 0)]);
    assert_eq!(world.state(0), RuleState::Unknown, "repeated, it has no series either");
    world.post(vec![resolved("0000", 0)]);
    assert_eq!(world.state(0), RuleState::Firing, "it is within the bound, repeated or not");
    // Labels without number do not use the store up.
    world.post((1..=MOST_SHOWN).map(|number| resolved(&name(number), 0)).collect());
    for round in 0..10 {
        let names: Vec<_> = (0..MOST_SHOWN).map(|number| format!("{round}-{number}")).collect();
        world.post(names.iter().map(|name| firing(name, 0)).collect());
        assert_eq!(world.state(0), RuleState::Firing);
        world.post(names.iter().map(|name| resolved(name, 0)).collect());
        assert_eq!(world.state(0), RuleState::Inactive);
    }
    let status = world.policy.status(world.at);
    let series = status.series.iter().filter(|key| &*key.name == ALERTS).count();
    assert_eq!(series, 2 * MOST_SHOWN);
    assert!(world.policy.received.alerts.len() <= MOST_ALERTS);
}

#[test]
fn alerts_over_the_bound_make_rules_unknown_until_they_would_expire() {
    let mut world = ReceivedWorld::new();
    world.policy.forget_received_after(Duration::from_secs(1_000));
    world.pass(1);
    let many = |from: usize, to: usize| -> Vec<_> {
        (from..to).map(|number| firing(&format!("{number:05}"), 0)).collect()
    };
    world.post(many(0, MOST_ALERTS));
    assert_eq!(world.post(many(MOST_ALERTS, MOST_ALERTS + 1)), [""; 0]);
    assert_eq!(world.firing(), MOST_ALERTS);
    let all = many(0, MOST_ALERTS).into_iter();
    world.post(all.map(|alert| resolved(&alert.fingerprint, 0)).collect());
    assert_eq!((world.firing(), world.state(0)), (0, RuleState::Unknown));
    world.pass(1_001);
    assert_eq!(world.state(0), RuleState::Inactive);
}

#[test]
fn alerts_that_are_one_series_end_with_the_last_of_them() {
    let mut world = ReceivedWorld::new();
    world.pass(1);
    let same = |name: &str, status| ReceivedAlert {
        labels: firing("x", 0).labels,
        ..alert(name, status, 0)
    };
    let [on, off] = [ReceivedStatus::Firing, ReceivedStatus::Resolved];
    world.post(vec![same("a", on), same("b", on)]);
    world.post(vec![same("a", off)]);
    assert_eq!(world.state(0), RuleState::Firing);
    world.post(vec![same("b", off)]);
    assert_eq!(world.state(0), RuleState::Inactive);
}

#[test]
fn a_restart_restores_alerts_and_reports_nothing_earlier() {
    let past = |to, alert: ReceivedAlert, world: &ReceivedWorld| PastReceived {
        to,
        alert: Arc::new(alert),
        utc: Some(world.at.utc - Duration::from_secs(30)),
    };
    let mut world = ReceivedWorld::new();
    world.policy.await_past();
    world.pass(2);
    assert_eq!(world.state(0), RuleState::Unknown);
    assert_eq!(world.post(vec![resolved("d", 0)]), [""; 0], "received before the past is known");
    let received = vec![
        past(ReceivedTurn::Firing, firing("a", 0), &world),
        past(ReceivedTurn::Resolved, resolved("b", 0), &world),
        past(ReceivedTurn::Forgotten, firing("c", 0), &world),
        past(ReceivedTurn::Firing, firing("d", 0), &world),
    ];
    let past = EarlierRuns { received, ..EarlierRuns::default() };
    let step = world.step(vec![Observation::Past(Box::new(past))]);
    assert_eq!(changes(&step), [""; 0], "that it fires on is no news");
    world.pass(1);
    assert_eq!((world.state(0), world.firing()), (RuleState::Firing, 1));
    assert_eq!(world.post(vec![firing("b", 0)]), [""; 0], "late, after the restart");
    assert_eq!(world.post(vec![firing("c", 0)]), ["c firing"], "no report of its end");
    world.post(vec![resolved("c", 0)]);
    assert_eq!(world.pass(FORGET_RECEIVED_AFTER.as_secs() - 10), [""; 0]);
    assert_eq!(world.pass(20), ["a forgotten"]);
}

#[test]
fn the_parts_of_a_post_count_as_one_post() {
    let mut world = ReceivedWorld::new();
    world.pass(2);
    let part = |alert: ReceivedAlert, is_rest| ReceivedAlerts {
        alerts: vec![Arc::new(alert)],
        is_rest,
        unusable_labels: 2,
        ..ReceivedAlerts::default()
    };
    let parts = [part(firing("a", 0), false), part(firing("b", 0), true)];
    let seen = parts.map(|part| Observation::ReceivedAlerts(Box::new(part)));
    assert_eq!(changes(&world.step(seen.into())), ["a firing", "b firing"]);
    let seen = vec![Observation::ReceivedAlerts(Box::new(part(firing("c", 0), true)))];
    assert_eq!(changes(&world.step(seen)), ["c firing"]);
    world.pass(1);
    assert_eq!((world.firing(), world.value("uma_received_alerts")), (3, 3.0));
    let (posts, labels) = ("uma_received_posts_total", "uma_received_labels_left_out_total");
    assert_eq!((world.value(posts), world.value(labels)), (1.0, 2.0));
}

#[test]
fn an_independent_model_finds_the_same_alerts() {
    let mut world = ReceivedWorld::new();
    world.pass(2);
    for round in 0..12 {
        let names: Vec<String> =
            (0..300).map(|number| format!("{}", round * 250 + number)).collect();
        world.post(names.iter().map(|name| firing(name, 0)).collect());
        world.post(names.iter().take(280).map(|name| resolved(name, 0)).collect());
        world.post(names.iter().take(10).map(|name| firing(name, 1)).collect());
        let received = &world.policy.received;
        let over = received.alerts.iter().filter(|(_, tracked)| !tracked.is_firing);
        let over: BTreeSet<(Duration, Arc<str>)> = over
            .map(|(fingerprint, tracked)| (tracked.reported.uptime, Arc::clone(fingerprint)))
            .collect();
        assert_eq!(received.over, over);
        assert!(received.alerts.len() <= MOST_ALERTS);
    }
    assert_eq!(world.policy.received.alerts.len(), MOST_ALERTS, "some gave way");
}

proptest! {
    /// In every order the last reported start and its status win, once late reports have arrived.
    #[test]
    fn the_newest_start_wins_in_any_order(
        starts in prop::collection::vec((0i64..5, any::<bool>()), 1..40),
    ) {
        let mut world = ReceivedWorld::new();
        world.pass(1);
        for (start, fires) in &starts {
            let post = if *fires { firing("a", *start) } else { resolved("a", *start) };
            world.post(vec![post]);
        }
        let newest = starts.iter().map(|(start, _)| *start).max().unwrap();
        let is_over = starts.iter().any(|(start, fires)| *start == newest && !fires);
        let fires = world.firing() == 1;
        // A start reported as ended never fires again by itself.
        prop_assert!(!(fires && is_over), "{starts:?}");
        prop_assert!(fires || is_over, "{starts:?}");
        let shown = world.policy.received.alerts.len();
        prop_assert_eq!(shown, 1);
    }
}
