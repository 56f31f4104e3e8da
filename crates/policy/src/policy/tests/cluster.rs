//! This node among others: what they say, what they do not say, and what a liar can do.

use promql_rules::store::MAX_SERIES_OF_CLUSTER;

use super::*;
use crate::model::{
    ClusterNames, ClusterReadings, EnginePhase, EngineRank, EngineReadings, EngineSeen, EventKind,
    NodeHealthLevel, NodeNews, NodeReadings, ProgramEvent, Rejection, series_of_node,
};
use crate::policy::overview::{self, PictureContext};

const IMBALANCE: &str = "
groups:
- name: own
  interval: 100ms
  rules:
  - alert: Low
    expr: uma_memory_free_bytes < 10
- name: all
  scope: cluster
  interval: 100ms
  rules:
  - alert: Imbalance
    expr: min by (cluster) (uma_memory_free_bytes) < 0.9 * max by (cluster) (uma_memory_free_bytes)
    remedy: {steps: [{notify: {message: 'uneven'}}], cooldown: 0s}
  - alert: Lowest
    expr: uma_memory_free_bytes < on(cluster) group_left 0.5 * max by (cluster) (uma_memory_free_bytes)
    remedy: {steps: [{notify: {message: 'low on {{ $labels.node }}'}}], cooldown: 0s}
";

const LOW: usize = 0;
const ALL: usize = 1;
const LOWEST: usize = 2;

fn names() -> ClusterNames {
    ClusterNames { cluster: "c".into(), node: "here".into(), known_for: Duration::from_secs(5) }
}

fn among(yaml: &str) -> World {
    let mut world = World::new(yaml, Mode::Enforce);
    world.policy.set_cluster(Some(names()));
    world
}

fn schema(node: &str, keys: &[SeriesKey]) -> Arc<Schema> {
    let [cluster, node] = ["c", node].map(Arc::from);
    let series = keys.iter().map(|key| series_of_node(key, &cluster, &node)).collect();
    Arc::new(Schema { series })
}

fn news(node: &str, news: NodeNews) -> Observation {
    let nodes = vec![NodeReadings::new(node.into(), news, Duration::ZERO)];
    Observation::Cluster(Box::new(ClusterReadings { nodes }))
}

fn says(node: &str, free: Reading<f64>) -> Observation {
    let schema = schema(node, &[SeriesKey::new(FREE, &[])]);
    news(node, NodeNews::Answered { schema, values: vec![free] })
}

fn silent(node: &str) -> Observation {
    let schema = schema(node, &[SeriesKey::new(FREE, &[])]);
    news(node, NodeNews::Silent { why: "connection refused".into(), schema })
}

fn unknown(world: &mut World, rule: usize) -> String {
    world.policy.status(world.at).rules[rule].unknown.join("; ")
}

#[test]
fn without_a_cluster_its_rules_are_idle_and_others_are_not() {
    let mut world = World::new(IMBALANCE, Mode::Enforce);
    world.free = Reading::Value(5.0);
    world.seen.push(says("there", Reading::Value(100.0)));
    assert!(decisions(&world.run(Duration::from_secs(1))).is_empty());
    let rules = world.policy.status(world.at).rules;
    assert_eq!(rules[LOW].state, RuleState::Firing);
    assert!(!rules[LOW].is_idle && rules[ALL].is_idle);
    assert_eq!(rules[ALL].state, RuleState::Inactive);
    assert!(world.policy.status(world.at).cluster.is_none());
}

#[test]
fn series_of_peers_are_compared_and_invisible_to_local_rules() {
    let mut world = among(IMBALANCE);
    world.seen.push(says("there", Reading::Value(95.0)));
    world.tick();
    assert_eq!(world.state(ALL), RuleState::Inactive);
    world.seen.push(says("there", Reading::Value(5.0)));
    let step = world.tick();
    assert_eq!(world.state(ALL), RuleState::Firing);
    assert_eq!(world.state(LOW), RuleState::Inactive, "it reads this node alone");
    let act = decisions(std::slice::from_ref(&step))[0].clone();
    assert_eq!(&*act.rule.alert, "Imbalance");
    let because: Vec<&str> = act.because.iter().map(|evidence| &*evidence.series).collect();
    assert_eq!(
        because,
        [
            r#"uma_memory_free_bytes{cluster="c",node="here"}"#,
            r#"uma_memory_free_bytes{cluster="c",node="there"}"#
        ]
    );
    // It names the other node, so that it is the other node that acts.
    assert_eq!(world.state(LOWEST), RuleState::Firing);
    assert!(decisions(&[step]).iter().all(|decision| &*decision.rule.alert != "Lowest"));
}

#[test]
fn an_alert_that_names_this_node_is_acted_on_here() {
    let mut world = among(IMBALANCE);
    world.free = Reading::Value(20.0);
    world.seen.push(says("there", Reading::Value(100.0)));
    let step = world.tick();
    let acts: Vec<String> = acts(&[step]).into_iter().map(ToString::to_string).collect();
    assert!(acts.iter().any(|act| act.contains("low on here")), "{acts:?}");
}

#[test]
fn a_silent_peer_is_unknown_and_not_absent() {
    let mut world = among(IMBALANCE);
    world.seen.push(silent("there"));
    world.tick();
    assert_eq!(world.state(ALL), RuleState::Unknown);
    assert!(unknown(&mut world, ALL).contains("there does not answer: connection refused"));
    let up = "uma_cluster_peer_up{peer=\"there\"}";
    let age = "uma_cluster_peer_last_answer_age_seconds{peer=\"there\"}";
    assert_eq!((world.value(up), world.value(age)), (Some(0.0), None));
    world.seen.push(says("there", Reading::Value(95.0)));
    world.tick();
    assert_eq!((world.state(ALL), world.value(up)), (RuleState::Inactive, Some(1.0)));
    // A question that is not answered is none the worse, three are.
    for _ in 0..5 {
        world.seen.push(silent("there"));
        world.run(Duration::from_millis(900));
        assert_eq!(world.state(ALL), RuleState::Inactive);
    }
    world.run(Duration::from_secs(1));
    assert_eq!((world.state(ALL), world.value(up)), (RuleState::Unknown, Some(0.0)));
    let status = world.policy.status(world.at).cluster.unwrap();
    assert_eq!(status.nodes[0].unknown.as_deref(), Some("connection refused"));
    assert!(world.value(age).unwrap() >= 5.0);
}

#[test]
fn this_nodes_memory_is_known_without_a_rule_about_the_cluster() {
    let rules = IMBALANCE.split("- name: all").next().unwrap();
    let mut world = among(rules);
    let series = ["uma_memory_total_bytes", "uma_memory_available_bytes"];
    let series = series.map(|name| SeriesKey::new(name, &[]));
    world.seen.push(Observation::Readings(Readings {
        source: Source::Vmstat,
        schema: Arc::new(Schema { series: series.into() }),
        values: [120.0, 30.0].map(Reading::Value).into(),
        took: Duration::ZERO,
        error: None,
    }));
    world.seen.push(says("there", Reading::Value(95.0)));
    world.tick();
    let memory = world.policy.status(world.at).cluster.unwrap().memory;
    assert_eq!((memory.total.value(), memory.available.value()), (Some(120.0), Some(30.0)));
}

#[test]
fn a_stopped_poller_is_detected() {
    let mut world = among(IMBALANCE);
    world.seen.push(says("there", Reading::Value(95.0)));
    world.run(Duration::from_secs(5));
    assert_eq!(world.state(ALL), RuleState::Inactive);
    world.run(Duration::from_secs(1));
    assert!(unknown(&mut world, ALL).contains("it has not been asked for too long"));
}

#[test]
fn removed_peers_and_ended_series_are_absent() {
    let mut world = among(IMBALANCE);
    world.seen.push(silent("there"));
    world.seen.push(says("third", Reading::Value(100.0)));
    world.tick();
    assert_eq!(world.state(ALL), RuleState::Unknown);
    world.seen.push(news("there", NodeNews::Gone));
    world.tick();
    assert_eq!(world.state(ALL), RuleState::Inactive);
    assert_eq!(world.value("uma_cluster_peer_up{peer=\"there\"}"), None);
    world.seen.push(says("third", Reading::Unsupported));
    world.free = Reading::Value(5.0);
    world.tick();
    assert_eq!(world.state(ALL), RuleState::Inactive, "there is nothing to compare with");
    world.seen.push(says("third", Reading::Failed));
    world.tick();
    assert_eq!(world.state(ALL), RuleState::Unknown);
}

#[test]
fn no_peer_reports_series_of_this_node() {
    let mut world = among(IMBALANCE);
    world.seen.push(says("here", Reading::Value(1e6)));
    world.seen.push(says("there", Reading::Value(100.0)));
    world.tick();
    assert_eq!(world.state(ALL), RuleState::Inactive);
    assert_eq!(world.policy.status(world.at).cluster.unwrap().nodes.len(), 1);
}

#[test]
fn a_peer_with_changing_series_harms_no_other() {
    let mut world = among(IMBALANCE);
    for round in 0..200 {
        let keys: Vec<SeriesKey> = (0..100)
            .map(|number| SeriesKey::new(FREE, &[("x", &format!("{round}-{number}"))]))
            .collect();
        let values = vec![Reading::Value(100.0); keys.len()];
        world.seen.push(news("liar", NodeNews::Answered { schema: schema("liar", &keys), values }));
        world.seen.push(says("there", Reading::Value(100.0)));
        world.run(Duration::from_secs(1));
    }
    assert!(unknown(&mut world, ALL).contains("other series each time"));
    world.seen.push(news("liar", NodeNews::Gone));
    world.tick();
    assert_eq!(world.state(ALL), RuleState::Inactive);
    assert!(MAX_SERIES_OF_CLUSTER[0] > 150 * 64);
}

#[test]
fn unsupported_series_stay_so_when_slots_are_reused() {
    let mut world = among(IMBALANCE);
    world.free = Reading::Unsupported;
    world.tick();
    assert_eq!(world.state(ALL), RuleState::Unknown, "no node has it");
    let replaced = |world: &World| world.policy.store.replaced();
    let before = replaced(&world);
    for number in 0..200 {
        let name = format!("n{number}");
        let schema = schema(&name, &[SeriesKey::new("uma_memory_total_bytes", &[])]);
        let values = vec![Reading::Value(1e9)];
        world.seen.push(news(&name, NodeNews::Answered { schema, values }));
        world.tick();
        world.seen.push(news(&name, NodeNews::Gone));
        world.tick();
    }
    assert!(replaced(&world) > before);
    assert_eq!(world.state(ALL), RuleState::Unknown, "still no node has it");
}

#[test]
fn refused_peer_data_is_unknown_and_not_absent() {
    let rule = "  - {alert: Stalled, expr: 'uma_pressure_ratio{share=\"full\"} < 0'}\n";
    let mut world = among(&format!("{IMBALANCE}{rule}"));
    let odd = |name: &str, round: usize| {
        let key = |number: usize| {
            let labels = [("share", "full"), ("resource", &*format!("{round}-{number}"))];
            SeriesKey::new(name, &labels)
        };
        let schema = schema("odd", &(0..100).map(key).collect::<Vec<_>>());
        let values = vec![Reading::Value(100.0); schema.series.len()];
        news("odd", NodeNews::Answered { schema, values })
    };
    // It is believed no new series any more, but those that are known. The store is new once.
    for round in 0..8 {
        world.seen.push(says("odd", Reading::Value(100.0)));
        world.tick();
        world.seen.push(odd(FREE, round));
        world.tick();
    }
    world.seen.push(says("odd", Reading::Value(100.0)));
    world.tick();
    assert_eq!((world.state(ALL), world.state(3)), (RuleState::Inactive, RuleState::Inactive));
    for round in 0..20 {
        world.seen.push(odd("uma_pressure_ratio", round));
        world.run(Duration::from_secs(1));
    }
    assert_eq!(world.state(3), RuleState::Unknown);
    assert!(unknown(&mut world, 3).contains("other series each time"));
    // Series that it does not report once accepted again are absent.
    world.seen.push(says("odd", Reading::Value(100.0)));
    world.tick();
    assert_eq!((world.state(ALL), world.state(3)), (RuleState::Inactive, RuleState::Inactive));
    assert_eq!(world.policy.status(world.at).cluster.unwrap().nodes[0].series, 1);
}

#[test]
fn series_of_removed_nodes_are_reused() {
    let rule = "  - {alert: Up, expr: 'uma_cluster_peer_up{peer=\"n299\"} == 1'}\n";
    let mut world = among(&format!("{IMBALANCE}{rule}"));
    let up = |number: usize| format!("uma_cluster_peer_up{{peer=\"n{number}\"}}");
    for number in 0..300 {
        let name = format!("n{number}");
        world.seen.push(says(&name, Reading::Value(100.0)));
        world.tick();
        assert_eq!(world.value(&up(number)), Some(1.0));
        if number < 299 {
            world.seen.push(news(&name, NodeNews::Gone));
            world.tick();
            assert_eq!(world.value(&up(number)), None);
        }
    }
    // What shows this node's series among those of others follows.
    assert_eq!(world.state(3), RuleState::Firing);
    let keys = world.policy.status(world.at).series;
    let peers = keys.iter().filter(|key| &*key.name == "uma_cluster_peer_up").count();
    assert!(peers <= 2 * crate::model::MOST_PEERS, "{peers}");
    // One that comes back counts its failures anew.
    world.seen.push(says("n290", Reading::Value(100.0)));
    world.tick();
    let failures = |node: &str| format!("uma_cluster_peer_failures_total{{peer=\"{node}\"}}");
    assert_eq!(world.value(&failures("n290")), Some(0.0));
}

#[test]
fn a_worn_store_is_rebuilt_without_visible_change() {
    let mut world = among(IMBALANCE);
    let keys = |round: usize| -> Vec<SeriesKey> {
        (0..100)
            .map(|number| SeriesKey::new(FREE, &[("x", &format!("{round}-{number}"))]))
            .collect()
    };
    // It brings more than it may, and goes on as before once that is forgotten.
    for round in 0..4 {
        let schema = schema("odd", &keys(round));
        let values = vec![Reading::Value(100.0); 100];
        world.seen.push(news("odd", NodeNews::Answered { schema, values }));
        world.tick();
    }
    world.run(Duration::from_secs(6));
    assert_eq!(world.state(ALL), RuleState::Unknown);
    for _ in 0..610 {
        world.seen.push(says("there", Reading::Value(5.0)));
        world.at.uptime += Duration::from_millis(900);
        world.at.utc += Duration::from_millis(900);
        world.tick();
    }
    let schema = schema("odd", &keys(9));
    let values = vec![Reading::Value(100.0); 100];
    world.seen.push(news("odd", NodeNews::Answered { schema, values }));
    world.tick();
    assert_eq!(world.state(ALL), RuleState::Firing);
}

#[test]
fn the_picture_has_the_level_of_each_node_and_the_worst_first() {
    let mut world = among(IMBALANCE);
    let has_level = |node: &str, level: &str| {
        let schema = schema(node, &[SeriesKey::new("uma_node_health", &[("level", level)])]);
        news(node, NodeNews::Answered { schema, values: vec![Reading::Value(1.0)] })
    };
    world.seen.push(has_level("a", "well"));
    world.seen.push(has_level("b", "critical"));
    world.seen.push(says("of-an-older-version", Reading::Value(95.0)));
    world.seen.push(silent("silent"));
    world.tick();
    let status = world.policy.status(world.at);
    let about = PictureContext {
        node: "here",
        version: "",
        model: None,
        now: world.at.uptime,
        stale_after: Duration::from_secs(5),
        earlier: &[],
        failures: &[],
    };
    let picture = overview::picture(&status, &about);
    let levels: Vec<(&str, Option<NodeHealthLevel>)> =
        picture.nodes.iter().map(|node| (&*node.name, node.level)).collect();
    // The memory of this node is unknown here.
    assert_eq!(
        levels,
        [
            ("silent", None),
            ("b", Some(NodeHealthLevel::Critical)),
            ("here", Some(NodeHealthLevel::Unknown)),
            ("of-an-older-version", None),
            ("a", Some(NodeHealthLevel::Well)),
        ]
    );
}

#[test]
fn refused_peer_data_is_counted() {
    let mut world = among(IMBALANCE);
    let Observation::Cluster(mut readings) = says("there", Reading::Failed) else { panic!() };
    readings.nodes[0].refused = vec![(Rejection::Impossible, 3)];
    world.seen.push(Observation::Cluster(readings));
    world.tick();
    let series = "uma_cluster_refused_series_total{reason=\"impossible\"}";
    assert_eq!(world.value(series), Some(3.0));
    assert_eq!(world.state(ALL), RuleState::Unknown);
}

#[test]
fn peers_are_asked_for_the_series_that_rules_read() {
    let mut yaml = IMBALANCE.to_owned();
    yaml.push_str("  - {alert: B, expr: 'max(uma_memory_contiguous_bytes{block=\"2MiB\",node!=\"x\"}) > 1'}\n");
    let world = among(&yaml);
    let wanted = world.policy.wanted_of_others();
    let wanted: Vec<String> =
        wanted.iter().map(|wanted| format!("{} {:?}", wanted.name, wanted.labels)).collect();
    assert_eq!(
        wanted,
        [
            "uma_engine_rank_ended_seconds []",
            "uma_engine_rank_start_seconds []",
            "uma_fleet_act_age_seconds []",
            "uma_fleet_claim_timestamp_seconds []",
            "uma_memory_available_bytes []",
            "uma_memory_contiguous_bytes [(\"block\", \"2MiB\")]",
            "uma_memory_free_bytes []",
            "uma_memory_total_bytes []",
            "uma_node_health []",
            "uma_scrape_collector_success []"
        ]
    );
}

const GANG: &str = "session_1/01000000";

/// A rank of the engine on the other node, in that phase.
fn rank_there(phase: EnginePhase) -> Observation {
    let labels = [
        ("engine", "vllm"),
        ("gang", GANG),
        ("phase", phase.name()),
        ("rank", "unknown"),
        ("uid", "0"),
    ];
    let schema = schema("there", &[SeriesKey::new("uma_engine_rank_start_seconds", &labels)]);
    news("there", NodeNews::Answered { schema, values: vec![Reading::Value(50.0)] })
}

/// Lets a second pass with these engines here and that rank there; whether a death was reported.
fn lives(world: &mut World, engines: &[EngineSeen], there: EnginePhase) -> bool {
    let mut has_died = false;
    for _ in 0..10 {
        let (read_at, engines) = (world.at.uptime, engines.to_vec());
        let readings = EngineReadings { read_at, engines, ..EngineReadings::default() };
        world.seen.push(Observation::Engines(Box::new(readings)));
        world.seen.push(rank_there(there));
        let is_death = |event: &Event| {
            matches!(event.kind, EventKind::Program(ProgramEvent::EngineDied { .. }))
        };
        has_died |= world.tick().events.iter().any(is_death);
    }
    has_died
}

/// Both nodes wait for each other's ends. Real Ray: the server of a gang was killed, and its report
/// said that the order was not known.
#[test]
fn a_rank_that_waits_to_be_reported_is_known_to_the_others() {
    let mut world = among(IMBALANCE);
    let engine = EngineSeen {
        rank: Some(EngineRank { gang: GANG.into(), rank: None, ranks: None }),
        uid: Some(0),
        ..release::engine("vllm", 10, Duration::ZERO)
    };
    assert!(!lives(&mut world, &[engine], EnginePhase::Ready));
    let ended = format!(
        "uma_engine_rank_ended_seconds{{engine=\"vllm\",gang=\"{GANG}\",killer=\"unknown\",\
         rank=\"unknown\",uid=\"0\"}}"
    );
    assert_eq!(world.value(&ended), None);
    for _ in 0..2 {
        assert!(!lives(&mut world, &[], EnginePhase::Stopping), "it waits for the other node");
    }
    assert!(world.value(&ended).is_some_and(|age| (1.0..2.5).contains(&age)));
    let has_died = (0..10).any(|_| lives(&mut world, &[], EnginePhase::Stopping));
    assert!(has_died && world.value(&ended).is_some());
}
