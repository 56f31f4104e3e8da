//! Engines are stopped in order before the machine is rebooted.

use super::*;
use crate::model::{EngineKind, EngineProcess, EnginesRule, ProcessId};
use crate::policy::guard::{Glob, Protected};

/// One that lives, under that number.
pub(super) fn engine(name: &str, pid: u32) -> EngineSeen {
    let id = ProcessId { pid, start_ticks: 7 };
    let process = EngineProcess::holding(id, name, 0);
    EngineSeen::new(name.into(), EngineKind::Vllm, id, vec![process], "test".into())
}

/// A node on which engines run, told to reboot by a person.
pub(super) fn ordered(engines: &[&str], rails: impl FnOnce(&mut GuardRails)) -> Node {
    let mut all = default_guard_rails();
    all.reboot.engines = EnginesRule::Drain;
    rails(&mut all);
    let mut node = Node::under(all, Mode::Enforce, of_this_boot(Vec::new()));
    let numbered = engines.iter().zip(100..);
    node.engines = numbered.map(|(name, pid)| engine(name, pid)).collect();
    node.wait(5);
    node.reboot(&[]).unwrap();
    node.wait(115);
    assert_eq!((node.acts(), node.stops.len()), (vec!["reboot"], 0), "not before it is due");
    node
}

pub(super) fn waits_for(node: &mut Node) -> String {
    node.status().waits_for.as_deref().unwrap_or_default().to_owned()
}

#[test]
fn one_engine_after_the_other_is_stopped_and_then_the_machine_is_rebooted() {
    let mut node = ordered(&["a", "b"], |_| {});
    node.result = None;
    node.wait(10);
    assert_eq!((node.stops.clone(), node.stage()), (vec!["a".to_owned()], RebootStage::Draining));
    assert!(node.acts().is_empty(), "the first has not ended");
    // Whether it has ended is not known: 900 s later that is looked at.
    node.result = Some(OutcomeResult::Done);
    node.wait(900);
    assert_eq!(node.stops, ["a", "b"]);
    assert_eq!(node.acts(), ["perform_reboot"]);
    assert!(node.holds.is_empty(), "{:?}", node.holds);
}

#[test]
fn what_was_seen_before_a_stop_had_ended_says_nothing() {
    let mut node = ordered(&["a"], |_| {});
    node.wait(3);
    node.looks = false;
    node.wait(5);
    assert_eq!(node.stops, ["a"], "nobody has looked again");
    assert!(node.acts().is_empty(), "it may run");
    node.looks = true;
    node.wait(3);
    assert_eq!((node.stops.len(), node.acts()), (1, vec!["perform_reboot"]));
}

#[test]
fn a_stop_that_fails_holds_and_spares_the_others() {
    let mut node = ordered(&["a", "b"], |_| {});
    node.engines_end = false;
    node.result = Some(OutcomeResult::Failed("process 100 (vllm) goes on".to_owned()));
    node.wait(3_600);
    assert_eq!(node.stops, ["a", "a", "a"]);
    assert!(node.acts().is_empty());
    assert_eq!((node.stage(), &*node.holds), (RebootStage::Waiting, &[HoldReason::EnginesRun][..]));
    let expected = "engine a was told to end 3 times and runs: process 100 (vllm) goes on";
    assert_eq!(waits_for(&mut node), expected);
    assert!(node.policy.reboots.is_leaving(), "nothing is started again meanwhile");
    // It ends after all, or somebody ends it.
    node.engines.retain(|seen| *seen.name != *"a");
    (node.engines_end, node.result) = (true, Some(OutcomeResult::Done));
    node.wait(10);
    assert_eq!(node.stops, ["a", "a", "a", "b"]);
    assert_eq!(node.acts(), ["perform_reboot"]);
}

#[test]
fn one_that_is_started_again_each_time_holds_it_too() {
    let mut node = ordered(&["a"], |_| {});
    node.engines_end = false;
    node.wait(600);
    assert_eq!((node.stops.len(), node.acts().len()), (3, 0));
    let waits_for = waits_for(&mut node);
    assert!(waits_for.ends_with("3 times and runs: it ended, and runs again"), "{waits_for}");
}

#[test]
fn a_stop_that_was_not_even_tried_is_tried_again_later_and_costs_nothing() {
    let mut node = ordered(&["a"], |_| {});
    node.engines_end = false;
    node.result = Some(OutcomeResult::NotDone("the disk is full".to_owned()));
    node.wait(50);
    assert_eq!(node.stops.len(), 1, "not without a pause");
    assert_eq!(waits_for(&mut node), "engine a could not be stopped: the disk is full");
    node.wait(250);
    assert_eq!(node.stops.len(), 5);
    (node.engines_end, node.result) = (true, Some(OutcomeResult::Done));
    node.wait(70);
    assert_eq!((node.stops.len(), node.acts()), (6, vec!["perform_reboot"]));
}

#[test]
fn one_that_is_protected_holds_it_before_any_other_is_stopped() {
    let mut node = ordered(&["a", "b"], |rails| {
        let processes = vec![Glob::try_from("b".to_owned()).unwrap()];
        rails.protect = Protected { processes, ..Protected::default() };
    });
    node.wait(600);
    assert_eq!((node.stops.len(), node.acts().len()), (0, 0));
    assert_eq!(waits_for(&mut node), "engine b runs, and is protected");
}

#[test]
fn what_ends_while_an_engine_is_stopped_is_called_off_and_so_is_what_a_person_calls_off() {
    let mut node = seen_by(|settings| settings.engines = EnginesRule::Drain);
    node.engines = vec![engine("a", 100), engine("b", 101)];
    node.wedge();
    node.wait(100);
    node.result = None;
    node.wait(30);
    assert_eq!((node.acts(), node.stage()), (vec!["reboot"], RebootStage::Draining));
    node.order(OperatorOrder::CancelReboot).unwrap();
    node.wait(1_000);
    assert_eq!((node.acts(), node.stops.len()), (vec!["call_off_reboot"], 1));
    assert!(!node.policy.reboots.is_leaving(), "engines may be started again");
}

#[test]
fn over_a_driver_that_is_stuck_each_engine_is_told_once_and_holds_nothing() {
    let mut node = seen_by(|settings| settings.engines = EnginesRule::Drain);
    node.engines = vec![engine("a", 100), engine("b", 101)];
    node.engines_end = false;
    node.wedge();
    node.wait(100);
    assert_eq!(node.acts(), ["reboot"]);
    node.result = Some(OutcomeResult::Failed("in state D".to_owned()));
    node.wait(30);
    assert_eq!(node.stops, ["a", "b"]);
    assert_eq!(node.acts(), ["perform_reboot"]);
}

#[test]
fn nobody_is_stopped_where_a_person_says_that_engines_do_not_matter() {
    let mut all = default_guard_rails();
    all.reboot.engines = EnginesRule::Drain;
    let mut node = Node::under(all, Mode::Enforce, of_this_boot(Vec::new()));
    node.engines = vec![engine("a", 100)];
    node.wait(5);
    node.reboot(&[RebootForce::Engines]).unwrap();
    node.wait(130);
    assert_eq!((node.acts(), node.stops.len()), (vec!["reboot", "perform_reboot"], 0));
}
