//! A fleet that has no server: nodes that read one another's claims late, with clocks that differ.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use proptest::prelude::*;

use super::super::fleet::{
    Fleet, FleetLimit, FleetLimits, FleetNode, FleetShare, FleetTurn, OtherNodes,
};
use crate::model::{FleetAction, HoldReason, Moment};

const STOP: FleetAction = FleetAction::StopEngine;
const KNOWN_FOR: Duration = Duration::from_secs(5);
const PER: Duration = Duration::from_secs(600);

fn limits(nodes: u32, percent: u32) -> FleetLimits {
    let limit = FleetLimit { nodes: FleetShare { nodes, percent }, per: PER };
    FleetLimits { stop_engine: Some(limit), drop_caches: None }
}

/// At that uptime, on a clock that is so many seconds wrong.
fn at(uptime: Duration, skew: i64) -> Moment {
    let utc = Timestamp::from_second(1_800_000_000 + skew).unwrap() + uptime;
    Moment { uptime, utc }
}

fn node(name: &str, turn: Option<FleetTurn>) -> FleetNode {
    FleetNode { name: name.into(), turns: [turn, turn] }
}

fn others(nodes: Vec<FleetNode>) -> Option<OtherNodes> {
    let own_name = "m".into();
    Some(OtherNodes { own_name, known_for: KNOWN_FOR, are_found: true, nodes })
}

fn fleet(nodes: Vec<FleetNode>) -> Fleet {
    let mut fleet = Fleet::default();
    fleet.set_others(others(nodes));
    fleet
}

const QUIET: Option<FleetTurn> = Some(FleetTurn { claimed: 0.0, acted: None });

#[test]
fn a_claim_waits_until_all_know_of_it_and_then_acts_again_without_one() {
    let now = |seconds| at(Duration::from_secs(seconds), 0);
    let mut fleet = fleet(vec![node("a", QUIET), node("b", QUIET)]);
    let hold = |fleet: &Fleet, seconds| fleet.hold(&limits(1, 0), STOP, now(seconds));
    assert_eq!(hold(&fleet, 100), Some(HoldReason::FleetTurn));
    fleet.claim(STOP, now(100));
    fleet.claim(STOP, now(105));
    assert_eq!(fleet.own_turn(STOP, now(105)).claimed, 1_800_000_100.0);
    assert_eq!(hold(&fleet, 110), Some(HoldReason::FleetTurn));
    assert_eq!(hold(&fleet, 111), None);
    fleet.acted(STOP, now(111).timeline_ms());
    let own = FleetTurn { claimed: 0.0, acted: Some(30.0) };
    assert_eq!(fleet.own_turn(STOP, now(141)), own);
    assert_eq!(hold(&fleet, 141), None, "it counts already");
    assert_eq!(hold(&fleet, 720), Some(HoldReason::FleetTurn));
    assert_eq!(fleet.own_turn(FleetAction::DropCaches, now(140)), QUIET.unwrap());
}

#[test]
fn a_claim_that_is_not_renewed_ends() {
    let mut fleet = fleet(vec![node("a", QUIET)]);
    fleet.claim(STOP, at(Duration::from_secs(10), 0));
    fleet.advance(at(Duration::from_secs(99), 0));
    assert!(fleet.own_turn(STOP, at(Duration::from_secs(99), 0)).claimed > 0.0);
    fleet.advance(at(Duration::from_secs(100), 0));
    assert_eq!(fleet.own_turn(STOP, at(Duration::from_secs(100), 0)).claimed, 0.0);
}

#[test]
fn nodes_that_acted_lately_or_claimed_before_come_first_and_unknown_ones_count() {
    let waited = at(Duration::from_secs(120), 0);
    let acted = |seconds: f64| Some(FleetTurn { claimed: 0.0, acted: Some(seconds) });
    let claimed =
        |seconds: f64| Some(FleetTurn { claimed: 1_800_000_000.0 + seconds, acted: None });
    let hold = |turns: &[Option<FleetTurn>], limits: FleetLimits| {
        let names = ["a", "b", "z"].into_iter();
        let mut fleet = fleet(names.zip(turns).map(|(name, turn)| node(name, *turn)).collect());
        fleet.claim(STOP, at(Duration::from_secs(100), 0));
        fleet.hold(&limits, STOP, waited)
    };
    let (limit, unknown) = (Some(HoldReason::FleetLimit), Some(HoldReason::FleetUnknown));
    for (turns, expected) in [
        ([QUIET, QUIET, QUIET], None),
        ([acted(599.0), QUIET, QUIET], limit),
        ([acted(600.0), QUIET, QUIET], None),
        ([acted(f64::NAN), QUIET, QUIET], limit),
        ([claimed(99.0), QUIET, QUIET], limit),
        ([claimed(100.0), QUIET, QUIET], limit),
        ([QUIET, QUIET, claimed(100.0)], None),
        ([claimed(101.0), QUIET, QUIET], None),
        ([None, QUIET, QUIET], unknown),
        ([None, acted(1.0), QUIET], limit),
    ] {
        assert_eq!(hold(&turns, limits(1, 0)), expected, "{turns:?}");
    }
    assert_eq!(hold(&[None, QUIET, QUIET], limits(2, 0)), None);
    assert_eq!(hold(&[None, acted(1.0), QUIET], limits(2, 0)), unknown);
    assert_eq!(hold(&[None, None, None], limits(1, 100)), None, "all may at once");
    assert_eq!(hold(&[acted(1.0), QUIET, QUIET], limits(0, 50)), None, "two of four");
    assert_eq!(hold(&[acted(1.0), acted(1.0), QUIET], limits(0, 50)), limit);
}

#[test]
fn without_a_cluster_or_a_limit_nothing_is_held() {
    let now = at(Duration::from_secs(100), 0);
    assert_eq!(Fleet::default().hold(&limits(1, 0), STOP, now), None);
    let mut begun = Fleet::default();
    let others = OtherNodes { are_found: false, ..others(Vec::new()).unwrap() };
    begun.set_others(Some(others));
    assert_eq!(begun.hold(&limits(2, 0), STOP, now), Some(HoldReason::FleetUnknown));
    assert_eq!(begun.hold(&limits(2, 0), FleetAction::DropCaches, now), None);
    let unknown = fleet(vec![node("a", None)]);
    assert_eq!(unknown.hold(&limits(1, 0), FleetAction::DropCaches, now), None);
}

/// One node of a fleet that wants to act from some time on.
struct Wants {
    fleet: Fleet,
    from: u64,
    skew: i64,
    acted: Option<u64>,
}

proptest! {
    /// Every node reads each other one at times of its own, at most `KNOWN_FOR` apart, or not at
    /// all; clocks are wrong by up to a minute.
    #[test]
    fn no_more_nodes_act_than_allowed_however_late_they_read_one_another(
        wants in prop::collection::vec((0_u64..60, -60_i64..60), 3..7),
        allowed in 1_u32..3,
        reads in prop::collection::vec(0_u64..5, 64),
        away in prop::collection::vec(0_u8..20, 64),
    ) {
        let names: Vec<Arc<str>> = (0..wants.len()).map(|at| format!("n{at}").into()).collect();
        let mut nodes: Vec<Wants> = wants
            .into_iter()
            .map(|(from, skew)| Wants { fleet: Fleet::default(), from, skew, acted: None })
            .collect();
        // What each node has read last of each other one, and when.
        let mut known: BTreeMap<(usize, usize), (u64, FleetTurn)> = BTreeMap::new();
        for second in 1_u64..200 {
            let moment = |node: &Wants| at(Duration::from_secs(second), node.skew);
            let published: Vec<FleetTurn> =
                nodes.iter().map(|node| node.fleet.own_turn(STOP, moment(node))).collect();
            for one in 0..nodes.len() {
                for (other, turn) in published.iter().enumerate().filter(|(at, _)| *at != one) {
                    let pair = one * 8 + other;
                    let is_due = (second + reads[pair]).is_multiple_of(5) && away[pair] > 0;
                    if is_due {
                        known.insert((one, other), (second, *turn));
                    }
                }
                let read = |other: &usize| {
                    let (when, turn) = known.get(&(one, *other))?;
                    (second - when <= KNOWN_FOR.as_secs()).then_some(*turn)
                };
                let list = (0..nodes.len()).filter(|other| *other != one).map(|other| {
                    FleetNode { name: Arc::clone(&names[other]), turns: [read(&other), None] }
                });
                let others = OtherNodes {
                    own_name: Arc::clone(&names[one]),
                    known_for: KNOWN_FOR,
                    are_found: true,
                    nodes: list.collect(),
                };
                let node = &mut nodes[one];
                let now = at(Duration::from_secs(second), node.skew);
                node.fleet.set_others(Some(others));
                node.fleet.advance(now);
                if second < node.from || node.acted.is_some() {
                    continue;
                }
                match node.fleet.hold(&limits(allowed, 0), STOP, now) {
                    Some(_) => node.fleet.claim(STOP, now),
                    None => {
                        node.fleet.acted(STOP, now.timeline_ms());
                        node.acted = Some(second);
                    }
                }
            }
        }
        let acted = nodes.iter().filter(|node| node.acted.is_some()).count();
        prop_assert!(acted <= allowed as usize, "{} of {} acted", acted, allowed);
        if away.iter().all(|chance| *chance > 0) {
            prop_assert_eq!(acted, allowed as usize, "nobody waits for ever");
        }
    }
}
