//! A reboot that a file asks for, while the configuration changes.

use super::*;
use crate::model::RebootWay;

fn file(name: &str) -> RebootWay {
    RebootWay::Sentinel { file: name.into() }
}

/// The ways of what was called off.
fn called_off(node: &mut RebootWorld) -> Vec<RebootWay> {
    let of = |act: RebootAct| match act {
        RebootAct::CallOff { way, was_handed_over: true, .. } => Some(way),
        _ => None,
    };
    std::mem::take(&mut node.acts).into_iter().filter_map(of).collect()
}

fn handed_over() -> RebootWorld {
    let mut node = seen_by(|settings| settings.way = file("/run/one"));
    node.wedge();
    node.wait(130);
    assert_eq!(node.acts(), ["reboot", "perform_reboot"]);
    assert_eq!(node.stage(), RebootStage::HandedOver);
    node
}

#[test]
fn a_changed_way_removes_the_sentinel_and_counts_no_reboot() {
    for way in [RebootWay::Logind, file("/run/other")] {
        let mut node = handed_over();
        node.wait(600);
        assert!(node.acts().is_empty(), "not before its time");
        node.policy.reboots.set_settings(&RebootSettings { way, ..RebootSettings::default() });
        node.wait(3);
        assert_eq!(called_off(&mut node), [file("/run/one")]);
        assert_eq!(node.results, [RebootResult::CalledOff]);
        let called_off = node.status().called_off.clone().unwrap();
        assert!(called_off.contains("reboot.way is another now"), "{called_off}");
    }
}

#[test]
fn a_cancelled_reboot_is_withdrawn_from_its_executor() {
    let mut node = handed_over();
    let way = RebootWay::Command { line: vec!["/bin/true".to_owned()] };
    node.policy.reboots.set_settings(&RebootSettings { way, ..RebootSettings::default() });
    node.order(OperatorOrder::CancelReboot).unwrap();
    assert_eq!(called_off(&mut node), [file("/run/one")]);
}

#[test]
fn a_restart_with_another_way_removes_the_sentinel() {
    let mut begun = attempt(BOOT, MINUTE, None);
    (begun.was_begun, begun.way) = (None, Some(file("/run/one")));
    let past = of_this_boot(vec![begun]);
    let mut node = RebootWorld::with(RebootSettings::default(), Mode::Enforce, past);
    node.wedge();
    assert_eq!(called_off(&mut node), [file("/run/one")]);
    assert_eq!(node.results, [RebootResult::CalledOff]);
}
