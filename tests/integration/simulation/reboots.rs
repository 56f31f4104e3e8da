//! Simulated boots under virtual time: whatever fails, the machine is not rebooted too often, never
//! in a loop, and never while a guard rail forbids it; and no engine is stopped for a reboot
//! without a slot. The policy is the real one, and its past comes through the journal's own reading
//! of entries. The node, its disk, the services that reboot it, the cluster's lock and the people
//! are simulated. True time counts, which no clock of the node has, as far as the journal can know
//! the acts.

mod acts;
mod disk;
mod node;
mod seen;
mod truth;

use std::time::Duration;

use umawarden::config::guard_rails::default_guard_rails;
use umawarden::config::mistake::SourceText;
use umawarden::config::rules::parse_rules_under;
use umawarden::model::{EnginesRule, LoggedInRule, RebootBudget, RebootLock};
use umawarden::policy::rule::RuleSet;

use node::Node;
use truth::{Counts, Truth};

/// Between two steps of the policy.
const TICK: Duration = Duration::from_secs(180);

const RULES: &str = r#"
groups:
- name: leak
  interval: 4s
  rules:
  - alert: MemoryWithoutOwner
    expr: uma_memory_verdict{verdict="reclaimable"} == 1
    remedy:
      aim: uma_memory_verdict{verdict="clean"} == 1
      steps:
      - drop_caches: {what: all, sync: true}
      - compact_memory: {}
      cooldown: 1m
      at_most: {times: 1000, per: 1h}
      breaker: {misses: 100, reset_after: 1h}
  - alert: DriverWedged
    expr: uma_memory_verdict{verdict="wedged"} == 1
    remedy:
      steps: [{reboot: {why: "the driver is stuck"}}]
      cooldown: 0s
      at_most: {times: 1000, per: 1h}
      breaker: {misses: 100, reset_after: 1h}
  - alert: MemoryLeaked
    expr: uma_memory_verdict{verdict="leaked"} == 1
    remedy:
      steps: [{reboot: {why: "memory has leaked"}}]
      cooldown: 0s
      at_most: {times: 1000, per: 1h}
      breaker: {misses: 100, reset_after: 1h}
"#;

/// Faults of a run; each can be left out.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    /// Budgets are correct; otherwise they are broken on purpose.
    budget_holds: bool,
}

pub struct Settings {
    pub budgets: Vec<RebootBudget>,
    pub rules: RuleSet,
}

fn settings(faults: Faults) -> Settings {
    let hours = |hours: u64| Duration::from_secs(hours * 3_600);
    let budgets = vec![
        RebootBudget { times: 1, per: hours(6) },
        RebootBudget { times: 3, per: hours(7 * 24) },
    ];
    let mut rails = default_guard_rails();
    rails.budget = None;
    rails.reboot.at_most.clone_from(&budgets);
    if !faults.budget_holds {
        rails.reboot.at_most = vec![RebootBudget { times: 2, per: hours(6) }];
    }
    rails.reboot.logged_in = LoggedInRule::Hold;
    rails.reboot.engines = EnginesRule::Drain;
    rails.reboot.lock = Some(RebootLock {
        url: "http://lock".to_owned(),
        ca_file: None,
        group: "default".to_owned(),
        id: Some("node".to_owned()),
        drain: None,
    });
    rails.reboot.sysrq_after = Some(Duration::from_secs(300));
    let rules = parse_rules_under(&[SourceText::new("reboot.yaml", RULES)], TICK, rails).unwrap();
    Settings { budgets, rules }
}

#[derive(Clone)]
struct Ended {
    boots: u64,
    reboots: usize,
    counts: Counts,
    violation: Option<String>,
}

fn simulate(seed: u64, boots: u64, faults: Faults) -> Ended {
    let mut node = Node::new(seed, faults);
    let mut violation = None;
    while node.boots < boots && violation.is_none() {
        let reboots = node.truth.reboots.len();
        violation = node.live_through().err();
        let is_ours = node.truth.reboots.len() > reboots;
        node.boot_again();
        // The node knows already whether trouble returns before the assessment.
        if is_ours && node.boot.troubled_at < Duration::from_secs(450) {
            node.truth.reboots.last_mut().unwrap().1 = false;
        }
    }
    let Truth { reboots, counts, .. } = node.truth;
    Ended { boots: node.boots, reboots: reboots.len(), counts, violation }
}

/// Boots of each simulated machine.
const BOOTS: u64 = 100;

/// Machines, and those of the ordinary run: 10,000 boots where the simulation gets its time.
const MACHINES: u64 = 100;
const ORDINARY_MACHINES: u64 = 20;

#[test]
fn simulated_boots_never_exceed_the_budget_and_never_loop() {
    let faults = Faults { budget_holds: true };
    let gets_time = std::env::var_os("UMAWARDEN_SIMULATION_HOURS").is_some();
    let machines = if gets_time { MACHINES } else { ORDINARY_MACHINES };
    let (mut boots, mut reboots, mut counts) = (0, 0, Counts::default());
    // Each seed is a machine of its own: two run in parallel.
    let half = |first: u64| {
        let simulated = move |seed| (seed, simulate(seed, BOOTS, faults));
        move || (first..=machines).step_by(2).map(simulated).collect::<Vec<_>>()
    };
    let other = std::thread::spawn(half(2));
    let ended = [half(1)(), other.join().unwrap()].concat();
    for (seed, ended) in ended {
        assert!(ended.violation.is_none(), "seed {seed}: {}", ended.violation.unwrap());
        boots += ended.boots;
        reboots += ended.reboots;
        counts.add(ended.counts);
    }
    assert!(boots >= machines * BOOTS, "{boots}");
    eprintln!("{boots} boots, {reboots} reboots: {counts:?}");
    let enough = usize::try_from(machines / 5).unwrap();
    let Counts { refused, wedges, leaks, ordered, forced, stopped, .. } = counts;
    let Counts { called_off, cleared, lost, forgotten, .. } = counts;
    let all = [reboots / 20, refused, wedges / 5, leaks, ordered, forced, stopped];
    assert!(all.iter().all(|count| *count > enough), "too little happens: {counts:?}");
    let Counts { released, slots_lost, .. } = counts;
    assert!(released > enough && slots_lost > enough, "the lock is too calm: {counts:?}");
    let people = [called_off, cleared, lost, forgotten];
    assert!(people.iter().all(|count| *count > enough), "too little is done: {counts:?}");
}

#[test]
fn a_budget_broken_on_purpose_is_detected() {
    let faults = Faults { budget_holds: false };
    // How long a lost journal matters follows from it, and is broken with it.
    let found = (1..=100).filter_map(|seed| simulate(seed, 100, faults).violation);
    let expected = |found: &String| found.contains("reboots in") || found.contains("was lost");
    let mut found = found.inspect(|found| assert!(expected(found), "{found}"));
    assert!(found.any(|found| found.contains("reboots in")), "nothing was found");
}
