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

/// A node with running engines and a reboot ordered by a person.
pub(super) fn ordered(engines: &[&str], rails: impl FnOnce(&mut GuardRails)) -> RebootWorld {
    let mut all = default_guard_rails();
    all.reboot.engines = EnginesRule::Drain;
    rails(&mut all);
    let mut node = RebootWorld::under(all, Mode::Enforce, of_this_boot(Vec::new()));
    let numbered = engines.iter().zip(100..);
    node.engines = numbered.map(|(name, pid)| engine(name, pid)).collect();
    node.wait(5);
    node.reboot(&[]).unwrap();
    node.wait(115);
    assert_eq!((node.acts(), node.stops.len()), (vec!["reboot"], 0), "not before it is due");
    node
}

pub(super) fn waits_for(node: &mut RebootWorld) -> String {
    node.status().waits_for.as_deref().unwrap_or_default().to_owned()
}

#[test]
fn engines_are_stopped_one_by_one_before_the_reboot() {
    let mut node = ordered(&["a", "b"], |_| {});
    node.result = None;
    node.wait(10);
    assert_eq!((node.stops.clone(), node.stage()), (vec!["a".to_owned()], RebootStage::Draining));
    assert!(node.acts().is_empty(), "the first has not ended");
    // Whether it has ended is not known: 900 s later that is checked.
    node.result = Some(OutcomeResult::Done);
    node.wait(900);
    assert_eq!(node.stops, ["a", "b"]);
    assert_eq!(node.acts(), ["perform_reboot"]);
    assert!(node.holds.is_empty(), "{:?}", node.holds);
}

#[test]
fn samples_from_before_the_end_of_a_stop_are_ignored() {
    let mut node = ordered(&["a"], |_| {});
    node.wait(3);
    node.samples = false;
    node.wait(5);
    assert_eq!(node.stops, ["a"], "without a new sample");
    assert!(node.acts().is_empty(), "it may run");
    node.samples = true;
    node.wait(3);
    assert_eq!((node.stops.len(), node.acts()), (1, vec!["perform_reboot"]));
}

#[test]
fn a_failed_stop_blocks_the_reboot_and_spares_the_other_engines() {
    let mut node = ordered(&["a", "b"], |_| {});
    node.engines_end = false;
    node.result = Some(OutcomeResult::Failed("process 100 (vllm) goes on".to_owned()));
    node.wait(3_600);
    assert_eq!(node.stops, ["a", "a", "a"]);
    assert!(node.acts().is_empty());
    assert_eq!((node.stage(), &*node.holds), (RebootStage::Waiting, &[HoldReason::EnginesRun][..]));
    let expected = "engine a was asked to end 3 times and runs: process 100 (vllm) goes on";
    assert_eq!(waits_for(&mut node), expected);
    assert!(node.policy.reboots.is_leaving(), "nothing is started again until then");
    // It ends after all, or a person ends it.
    node.engines.retain(|seen| *seen.name != *"a");
    (node.engines_end, node.result) = (true, Some(OutcomeResult::Done));
    node.wait(10);
    assert_eq!(node.stops, ["a", "a", "a", "b"]);
    assert_eq!(node.acts(), ["perform_reboot"]);
}

#[test]
fn an_engine_that_is_restarted_each_time_blocks_the_reboot() {
    let mut node = ordered(&["a"], |_| {});
    node.engines_end = false;
    node.wait(600);
    assert_eq!((node.stops.len(), node.acts().len()), (3, 0));
    let waits_for = waits_for(&mut node);
    assert!(waits_for.ends_with("3 times and runs: it ended, and runs again"), "{waits_for}");
}

#[test]
fn an_unattempted_stop_is_retried_and_not_counted() {
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
fn a_protected_engine_blocks_the_reboot_before_any_stop() {
    let mut node = ordered(&["a", "b"], |rails| {
        let processes = vec![Glob::try_from("b".to_owned()).unwrap()];
        rails.protect = Protected { processes, ..Protected::default() };
    });
    node.wait(600);
    assert_eq!((node.stops.len(), node.acts().len()), (0, 0));
    assert_eq!(waits_for(&mut node), "engine b runs, and is protected");
}

#[test]
fn a_reboot_is_cancelled_during_a_stop_by_its_cause_or_a_person() {
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
fn with_a_stuck_driver_each_engine_is_stopped_once_and_blocks_nothing() {
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
fn no_engine_is_stopped_if_a_person_forces_engines() {
    let mut all = default_guard_rails();
    all.reboot.engines = EnginesRule::Drain;
    let mut node = RebootWorld::under(all, Mode::Enforce, of_this_boot(Vec::new()));
    node.engines = vec![engine("a", 100)];
    node.wait(5);
    node.reboot(&[RebootForce::Engines]).unwrap();
    node.wait(130);
    assert_eq!((node.acts(), node.stops.len()), (vec!["reboot", "perform_reboot"], 0));
}
