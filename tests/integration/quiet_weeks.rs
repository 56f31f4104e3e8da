//! A week of healthy machines under the shipped rules: whom they call, and what they do in vain.

mod machine;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use umawarden::config::mistake::SourceText;
use umawarden::config::rules::parse_rules;
use umawarden::config::shipped::shipped_rules;
use umawarden::model::{
    Action, AlertState, DecisionRecord, Mode, Moment, Observation, Outcome, OutcomeResult,
    Readings, Schema, Source,
};
use umawarden::policy::{Policy, Step};

use machine::{Kind, Machine, seconds};

const DAY: f64 = 86_400.0;
const WEEK: f64 = 7.0 * DAY;

/// More pages a week than this, and nobody reads them.
const MOST_PAGES: usize = 2;

/// A Spark: 121 GiB, and an engine of 70 GiB that is started three times a day.
const SPARK: Kind = Kind {
    total: 121.0,
    reserve: 1.0,
    others: 6.0,
    engine: 70.0,
    dip: 6.5,
    starts: &[8.0, 14.0, 20.0],
    is_superchip: false,
    evicts: 1.2,
    backup_pressure: 0.25,
};

/// The nodes of a pair that keep 13 of 121 and 6 of 119 GiB, and are started once a day.
const HEAD: Kind = Kind { engine: 102.0, dip: 8.0, starts: &[8.0], ..SPARK };
const WORKER: Kind = Kind { total: 119.0, others: 5.0, engine: 107.0, dip: 4.5, ..HEAD };

/// A GH200: the engine is in the GPU's memory, and the CPUs' is full of cache.
const GH200: Kind = Kind {
    total: 480.0,
    reserve: 2.0,
    others: 20.0,
    engine: 88.0,
    dip: 300.0,
    is_superchip: true,
    ..SPARK
};

/// A Jetson with 61 GiB, whose engine reads its model through the cache and captures no graphs.
const ORIN: Kind =
    Kind { total: 61.0, reserve: 0.3, others: 4.0, engine: 35.0, dip: 22.0, evicts: 0.0, ..SPARK };

/// What a week has brought.
#[derive(Debug, Default)]
struct Tally {
    /// Alerts that began to fire, by severity and rule.
    fired: BTreeMap<(String, String), usize>,
    /// Acts that change the machine, by rule.
    acts: BTreeMap<String, usize>,
    /// Those that could win nothing.
    in_vain: Vec<String>,
}

impl Tally {
    fn pages(&self) -> usize {
        let pages = self.fired.iter().filter(|((severity, _), _)| severity == "critical");
        pages.map(|(_, count)| count).sum()
    }

    fn count(&mut self, step: &Step) {
        for change in step.alerts.iter().filter(|change| change.to == AlertState::Firing) {
            let severity = change.labels.get("severity").map_or("", |severity| severity);
            let key = (severity.to_owned(), change.rule.alert.to_string());
            *self.fired.entry(key).or_default() += 1;
        }
    }

    /// A drop helps where an engine loads and there is cache; nothing else does on a healthy node.
    fn act(&mut self, act: &DecisionRecord, machine: &mut Machine) {
        let rule = act.rule.alert.to_string();
        match act.action {
            Action::Notify { .. } => return,
            Action::DropCaches { .. } => {
                let is_loading = machine.is_loading();
                let share = machine.drop_caches();
                if !is_loading || share < 1.0 / 64.0 {
                    self.in_vain.push(format!("{rule} at {:?}: {share}", act.at.uptime));
                }
            }
            _ => self.in_vain.push(format!("{rule} at {:?}: {:?}", act.at.uptime, act.action)),
        }
        *self.acts.entry(rule).or_default() += 1;
    }
}

fn moment(at: f64) -> Moment {
    let uptime = seconds(at);
    Moment { uptime, utc: Timestamp::UNIX_EPOCH + uptime }
}

fn done(act: &DecisionRecord, at: Moment) -> Observation {
    Observation::Outcome(Outcome {
        decision: act.id,
        action: act.action.name().to_owned(),
        result: OutcomeResult::Done,
        ended: at,
        took: Duration::ZERO,
        effect: None,
    })
}

/// Without it nothing is evaluated.
fn measured() -> Observation {
    Observation::Readings(Readings {
        source: Source::Meminfo,
        schema: Arc::new(Schema { series: Vec::new() }),
        values: Vec::new(),
        took: Duration::ZERO,
        error: None,
    })
}

/// The shipped rules that do not compare nodes.
fn of_a_node() -> Vec<SourceText> {
    shipped_rules().into_iter().filter(|file| !file.name.ends_with("cluster.yaml")).collect()
}

/// A policy with these rules.
fn policy(files: &[SourceText]) -> Policy {
    let rules = parse_rules(files, Duration::from_millis(100)).expect("shipped rules");
    Policy::rehearsing(moment(0.0), Mode::Enforce, &rules)
}

/// Runs machines: up to ten samples a second where seconds count, one a minute otherwise.
fn run(
    until: f64,
    mut policy: Policy,
    machines: &mut [Machine],
    observe: impl Fn(&[Machine], &mut Vec<Observation>),
) -> Tally {
    let (mut tally, mut at) = (Tally::default(), 0.0);
    let mut ended: Vec<DecisionRecord> = Vec::new();
    while at < until {
        let now = moment(at);
        machines.iter_mut().for_each(|machine| machine.run_until(at));
        let mut seen: Vec<_> = ended.drain(..).map(|act| done(&act, now)).collect();
        observe(machines, &mut seen);
        seen.push(measured());
        let step = policy.step(now, &seen);
        tally.count(&step);
        for act in step.decisions.into_iter().filter(DecisionRecord::is_act) {
            tally.act(&act, &mut machines[0]);
            ended.push(act);
        }
        at += step_at(machines, at);
    }
    tally
}

/// Seconds to the next sample. No busy time is shorter than half a minute.
fn step_at(machines: &[Machine], at: f64) -> f64 {
    let is_busy = |at: f64| machines.iter().any(|machine| machine.is_busy(at));
    match (is_busy(at), is_busy(at + 30.0) || is_busy(at + 60.0)) {
        // As the agent does: faster where memory falls.
        _ if machines.iter().any(|machine| machine.is_dipping(at)) => 0.1,
        (true, _) => 0.25,
        _ if machines.iter().any(|machine| machine.is_backed_up(at)) => 1.0,
        (false, true) => 1.0,
        (false, false) => 60.0,
    }
}

/// One machine, under all rules that do not compare nodes.
fn alone(until: f64, kind: Kind) -> Tally {
    run(until, policy(&of_a_node()), &mut [Machine::new(kind)], |machines, seen| {
        machines[0].observe(&[], seen);
        machines[0].observe_node(seen);
    })
}

fn assert_quiet(name: &str, tally: &Tally) {
    assert!(tally.pages() <= MOST_PAGES, "{name}: {tally:#?}");
    assert_eq!(tally.in_vain, [] as [&str; 0], "{name}: {tally:#?}");
}

#[test]
fn a_healthy_spark_pages_nobody_and_does_nothing_in_vain() {
    let tally = alone(WEEK, SPARK);
    assert_quiet("spark", &tally);
    // The week is one: what is no page is noticed all the same.
    let notices = |rule: &str| tally.fired.iter().filter(|((_, of), _)| of == rule).count();
    assert_eq!([notices("OomKillAtLimit"), notices("HungTask"), notices("XidOfProgram")], [1; 3]);
}

#[test]
fn a_healthy_gh200_pages_nobody_and_does_nothing_in_vain() {
    assert_quiet("gh200", &alone(WEEK, GH200));
}

#[test]
fn a_healthy_orin_pages_nobody_and_does_nothing_in_vain() {
    assert_quiet("orin", &alone(WEEK, ORIN));
}

#[test]
fn the_nodes_of_a_healthy_pair_page_nobody_and_do_nothing_in_vain() {
    assert_quiet("head", &alone(WEEK, HEAD));
    assert_quiet("worker", &alone(WEEK, WORKER));
}

/// Series that a healthy node lacks, or that the policy has of itself. A rule that reads another one
/// would be quiet for want of it.
const NOT_OF_MACHINES: [&str; 9] = [
    "uma_action_budget_left",
    "uma_kernel_event_last_timestamp_seconds",
    "uma_kubernetes_last_success_timestamp_seconds",
    "uma_paused",
    "uma_remedy_approval_pending",
    "uma_remedy_breaker_open",
    "uma_restart_waiting_seconds",
    "uma_lease_missing_bytes",
    "uma_lease_priority",
];

#[test]
fn a_machine_has_each_series_that_the_rules_of_a_node_read() {
    let mut machine = Machine::new(GH200);
    let mut seen = Vec::new();
    machine.observe(&[], &mut seen);
    // What a dead engine held is there between two engines alone.
    machine.run_until(3_600.0 * GH200.starts[0]);
    machine.observe(&[], &mut seen);
    machine.observe_node(&mut seen);
    let emitted: BTreeSet<String> = seen
        .iter()
        .filter_map(|observation| match observation {
            Observation::Sample { series, .. } => Some(series.name.to_string()),
            _ => None,
        })
        .collect();
    let files = of_a_node();
    let rules = parse_rules(&files, Duration::from_millis(100)).expect("shipped rules");
    let read = rules.groups.iter().flat_map(|group| &group.rules).flat_map(|rule| {
        let aim = rule.remedy.iter().filter_map(|remedy| remedy.aim.as_ref());
        aim.chain([&rule.expr]).flat_map(|query| query.expr.wanted()).collect::<Vec<_>>()
    });
    let missing: BTreeSet<String> = read
        .map(|wanted| wanted.name.to_string())
        .filter(|name| name.starts_with("uma_") && !emitted.contains(name))
        .filter(|name| !NOT_OF_MACHINES.contains(&name.as_str()))
        .collect();
    assert_eq!(missing, BTreeSet::new());
}

#[test]
fn a_healthy_pair_is_not_uneven_but_while_neither_has_an_engine() {
    let mut files = shipped_rules();
    files.retain(|file| file.name.ends_with("cluster.yaml"));
    let of_nodes = policy(&files);
    let mut pair = [Machine::new(HEAD), Machine::new(WORKER)];
    let tally = run(WEEK, of_nodes, &mut pair, |machines, seen| {
        for (machine, node) in machines.iter().zip(["a", "b"]) {
            machine.observe(&[("cluster", "c"), ("node", node)], seen);
        }
    });
    assert_quiet("pair", &tally);
    assert_eq!(tally.fired, BTreeMap::new());
}

/// The count sees what is not healthy.
#[test]
fn a_day_in_which_the_engine_takes_all_memory_pages() {
    let full = Kind { engine: 114.0, dip: 0.5, ..SPARK };
    assert!(alone(DAY, full).pages() > 0);
}
