//! How many nodes do the same at the same time, by what they read of one another.

use std::collections::BTreeSet;

use super::*;
use crate::model::{
    ClusterNames, ClusterReadings, EarlierRuns, FleetAction, NodeNews, NodeReadings, series_of_node,
};
use crate::policy::guard::{FleetLimit, FleetLimits, FleetShare};

const LOW: &str = "
groups:
- name: own
  interval: 100ms
  rules:
  - alert: Low
    expr: uma_memory_free_bytes < 10
    remedy: {steps: [{drop_caches: {what: pagecache}}], cooldown: 0s}
";

const CLAIMED: &str = "uma_fleet_claim_timestamp_seconds";
const ACTED: &str = "uma_fleet_act_age_seconds";

fn names(node: &str) -> ClusterNames {
    ClusterNames { cluster: "c".into(), node: node.into(), known_for: Duration::from_secs(2) }
}

/// A node whose memory is short, in a cluster in which one node may drop caches in a minute.
fn node(name: &str, mode: Mode) -> World {
    let mut world = short(LOW, mode);
    let nodes = FleetShare { nodes: 1, percent: 0 };
    let limit = FleetLimit { nodes, per: Duration::from_secs(60) };
    let mut set = rules(LOW);
    set.guard_rails.fleet = FleetLimits { stop_engine: None, drop_caches: Some(limit) };
    world.policy.replace_rules(world.at, mode, &set);
    world.policy.set_cluster(Some(names(name)));
    world
}

fn own(name: &str) -> String {
    format!("{name}{{action=\"{}\"}}", FleetAction::DropCaches)
}

/// What a node publishes, as another one reads it.
fn read(from: &str, world: &mut World) -> Observation {
    let [cluster, node] = ["c", from].map(Arc::from);
    let status = world.policy.status(world.at);
    let is_wanted = |key: &&SeriesKey| [CLAIMED, ACTED].contains(&&*key.name);
    let (mut series, mut values) = (Vec::new(), Vec::new());
    for (key, value) in status.series.iter().zip(status.values.iter()) {
        if is_wanted(&key) && value.sample().is_some() {
            series.push(series_of_node(key, &cluster, &node));
            values.push(*value);
        }
    }
    report(from, NodeNews::Answered { schema: Arc::new(Schema { series }), values })
}

fn report(from: &str, news: NodeNews) -> Observation {
    let nodes = vec![NodeReadings::new(from.into(), news, Duration::ZERO)];
    Observation::Cluster(Box::new(ClusterReadings { nodes }))
}

fn silent(from: &str) -> Observation {
    report(from, NodeNews::Silent { why: "no route".into(), schema: Arc::default() })
}

#[test]
fn of_nodes_in_the_same_trouble_one_acts_and_the_others_say_why_not() {
    let names = ["a", "b", "z"];
    let mut worlds = names.map(|name| node(name, Mode::Enforce));
    let mut steps: [Vec<Step>; 3] = Default::default();
    for _ in 0..100 {
        for (one, name) in names.iter().enumerate() {
            let step = worlds[one].tick();
            steps[one].push(step);
            let published = read(name, &mut worlds[one]);
            for (_, world) in worlds.iter_mut().enumerate().filter(|(other, _)| *other != one) {
                world.seen.push(published.clone());
            }
        }
    }
    let acted: Vec<usize> = steps.iter().map(|steps| acts(steps).len()).collect();
    assert_eq!(acted, [1, 0, 0], "the first by name of those that claim at the same time");
    let first = holds(&steps[0]);
    assert_eq!(first[..2], [HoldReason::FleetUnknown, HoldReason::FleetTurn], "{first:?}");
    for others in &steps[1..] {
        let reasons: BTreeSet<HoldReason> = holds(others).into_iter().collect();
        assert!(reasons.contains(&HoldReason::FleetLimit), "{reasons:?}");
    }
    assert!(worlds[0].value(&own(ACTED)).is_some());
    assert_eq!(worlds[0].value(&own(CLAIMED)), Some(0.0));
    assert!(worlds[1].value(&own(CLAIMED)).unwrap() > 0.0);
}

#[test]
fn an_unknown_node_holds_and_one_of_an_older_version_is_unknown() {
    let mut world = node("a", Mode::Enforce);
    world.seen.push(silent("b"));
    let steps = world.run(Duration::from_secs(10));
    assert_eq!(holds(&steps)[0], HoldReason::FleetUnknown);
    assert!(acts(&steps).is_empty());
    let old = NodeNews::Answered { schema: Arc::default(), values: Vec::new() };
    world.seen.push(report("b", old));
    assert!(acts(&world.run(Duration::from_secs(2))).is_empty());
    world.seen.push(report("b", NodeNews::Gone));
    assert_eq!(acts(&world.run(Duration::from_secs(1))).len(), 1, "it is alone");
}

#[test]
fn observe_mode_and_a_node_without_a_cluster_wait_for_nobody() {
    let mut observing = node("a", Mode::Observe);
    observing.seen.push(silent("b"));
    assert_eq!(acts(&observing.run(Duration::from_secs(1))).len(), 1);
    assert_eq!(observing.value(&own(ACTED)), None, "nothing was done");
    let mut alone = node("a", Mode::Enforce);
    alone.policy.set_cluster(None);
    assert_eq!(acts(&alone.run(Duration::from_secs(1))).len(), 1);
    assert_eq!(alone.value(&own(CLAIMED)), None);
}

#[test]
fn an_act_of_an_earlier_run_counts_and_is_unknown_until_the_journal_is_read() {
    let mut world = node("a", Mode::Enforce);
    world.free = Reading::Value(100.0);
    world.policy.await_past();
    world.tick();
    assert_eq!(world.value(&own(CLAIMED)), None, "it is not known what it did");
    let rule = RuleId { group: "own".into(), alert: "Low".into() };
    let act = PastAct {
        fleet_action: Some(FleetAction::DropCaches),
        ..past_act(&rule, Mode::Enforce, world.at, 30)
    };
    let past = EarlierRuns { acts: vec![act], ..EarlierRuns::default() };
    world.seen.push(Observation::Past(Box::new(past)));
    world.tick();
    assert_eq!(world.value(&own(ACTED)), Some(30.0));
    assert_eq!(world.value(&own(CLAIMED)), Some(0.0));
}
