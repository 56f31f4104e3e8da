//! The cluster's slot: taken before any engine is stopped, and released when it is not needed.

use super::drain::{engine, ordered, waits_for};
use super::*;
use crate::model::EnginesRule;

fn lock() -> RebootLock {
    RebootLock { url: "http://lock".into(), group: "default".into(), ..RebootLock::default() }
}

fn refused() -> Option<OutcomeResult> {
    Some(OutcomeResult::Failed("refused: failed_lock".to_owned()))
}

/// A node of a cluster with a lock, with a reboot ordered by a person.
fn of_cluster(engines: &[&str]) -> RebootWorld {
    ordered(engines, |rails| rails.reboot.lock = Some(lock()))
}

impl RebootWorld {
    pub(super) fn waits_until(&mut self, what: &str, mut is_so: impl FnMut(&Self) -> bool) {
        for _ in 0..60 {
            if is_so(self) {
                return;
            }
            self.wait(1);
        }
        panic!("not {what}: {:?} {:?}", self.stage(), self.acts);
    }
}

#[test]
fn the_clusters_slot_is_taken_first_and_released_when_the_node_is_well() {
    let mut node = seen_by(|settings| settings.lock = Some(lock()));
    node.wedge();
    node.wait(100);
    node.result = Some(OutcomeResult::Failed("refused: failed_lock".to_owned()));
    node.wait(20);
    assert_eq!(node.acts(), ["reboot", "take_reboot_slot"]);
    let waits_for = node.status().waits_for.clone().unwrap();
    assert!(waits_for.contains("failed_lock"), "{waits_for}");
    node.wait(10);
    assert!(node.acts().is_empty(), "not asked without a pause");
    node.result = Some(OutcomeResult::Done);
    node.wait(30);
    assert_eq!(node.acts(), ["take_reboot_slot", "perform_reboot"]);

    let attempts = vec![attempt("before", MINUTE * 60, None)];
    let past = PastReboots { slot: Some(lock()), ..of_this_boot(attempts) };
    let mut node = RebootWorld::with(RebootSettings::default(), Mode::Enforce, past);
    node.wedge();
    node.wait(600);
    assert_eq!(node.results, [RebootResult::DidNotHelp]);
    assert!(!node.acts().contains(&"release_reboot_slot"), "it is not well");
    node.is_wedged = false;
    node.wait(60);
    assert!(node.acts().contains(&"release_reboot_slot"));
    assert!(!node.status().holds_slot);
}

#[test]
fn no_engine_is_stopped_for_a_reboot_whose_slot_was_not_granted() {
    let mut node = of_cluster(&["a", "b"]);
    node.result = refused();
    node.wait(600);
    assert!(node.stops.is_empty(), "{:?}", node.stops);
    let acts = node.acts();
    assert!(acts.len() > 3 && acts.iter().all(|act| *act == "take_reboot_slot"), "{acts:?}");
    assert!(!node.policy.reboots.is_leaving(), "engines may be started");
    node.result = None;
    node.wait(600);
    assert_eq!((node.stops.len(), node.acts()), (0, vec!["take_reboot_slot"]), "no response");
    node.result = Some(OutcomeResult::Done);
    node.wait(900);
    assert_eq!(node.stops, ["a", "b"]);
    // It is asked again after each, for a server may have forgotten the grant.
    let again = ["take_reboot_slot", "take_reboot_slot", "take_reboot_slot", "perform_reboot"];
    assert_eq!(node.acts(), again);
}

#[test]
fn blocking_engines_are_checked_before_the_slot_is_requested() {
    let mut node = of_cluster(&["a"]);
    node.policy.reboots.settings.engines = EnginesRule::Hold;
    node.wait(600);
    assert!(node.acts().is_empty() && waits_for(&mut node).starts_with("engines run: a"));
}

#[test]
fn a_slot_lost_during_a_drain_blocks_the_reboot_and_frees_the_engines() {
    let mut node = of_cluster(&["a"]);
    node.waits_until("stopped", |node| node.stops.len() == 1);
    node.result = refused();
    node.wait(20);
    assert_eq!(node.acts(), ["take_reboot_slot", "take_reboot_slot"]);
    assert!(waits_for(&mut node).contains("engines are stopped for it: refused"));
    assert!(!node.policy.reboots.is_leaving());
    // Somebody has started it again.
    node.engines = vec![engine("a", 200)];
    node.result = Some(OutcomeResult::Done);
    node.wait(30);
    assert_eq!(node.stops, ["a", "a"]);
    assert_eq!(node.acts(), ["take_reboot_slot", "take_reboot_slot", "perform_reboot"]);
}

#[test]
fn the_slot_is_released_if_the_reboot_is_cancelled_during_a_drain() {
    let mut node = of_cluster(&["a", "b"]);
    node.waits_until("stopped", |node| node.stops.len() == 1);
    node.result = None;
    node.wait(5);
    node.order(OperatorOrder::CancelReboot).unwrap();
    node.result = Some(OutcomeResult::Done);
    node.wait(10);
    let acts = node.acts();
    assert_eq!(acts.last(), Some(&"call_off_reboot"), "it was asked again: {acts:?}");
    node.wait(900);
    assert_eq!(node.acts(), ["release_reboot_slot"]);
    assert_eq!((node.stops.len(), node.status().holds_slot), (1, false));

    let mut node = seen_by(|settings| settings.lock = Some(lock()));
    node.wedge();
    node.wait(100);
    node.result = None;
    node.waits_until("asked", |node| node.acts.len() == 2);
    node.is_wedged = false;
    node.result = Some(OutcomeResult::Done);
    node.wait(950);
    assert_eq!(
        node.acts(),
        ["reboot", "take_reboot_slot", "call_off_reboot", "release_reboot_slot"],
        "a silent server may have granted it"
    );
}

#[test]
fn a_reboot_waiting_for_another_rail_does_not_keep_the_slot() {
    let alice = LoggedIn { user: "alice".into(), terminal: None, since: None };
    let mut node = of_cluster(&["a", "b"]);
    node.waits_until("stopped", |node| node.stops.len() == 1);
    node.users = Reading::Value(vec![alice]);
    node.wait(100);
    let acts = node.acts();
    assert!(!acts.contains(&"release_reboot_slot"), "she may go at once: {acts:?}");
    node.wait(30);
    assert_eq!(node.acts(), ["release_reboot_slot"]);
    assert!(!node.policy.reboots.is_leaving() && !node.status().holds_slot);
    node.wait(600);
    assert!(node.acts().is_empty());
    node.users = Reading::Value(Vec::new());
    node.wait(30);
    assert_eq!(node.acts()[0], "take_reboot_slot");
    assert_eq!(node.stops, ["a", "b"]);
}

#[test]
fn an_undrained_engine_releases_the_slot() {
    for result in [
        OutcomeResult::Failed("it goes on".to_owned()),
        OutcomeResult::NotDone("the disk is full".to_owned()),
    ] {
        let mut node = of_cluster(&["a"]);
        node.engines_end = false;
        node.waits_until("granted", |node| node.policy.reboots.is_leaving());
        node.wait(1);
        node.result = Some(result.clone());
        node.wait(5);
        // A stop fails while the slot is granted; then nothing comes of it any more.
        node.result = Some(OutcomeResult::Done);
        node.wait(1_000);
        assert!(node.acts.iter().any(|act| act.name() == "release_reboot_slot"), "{result:?}");
        assert!(!node.acts().contains(&"perform_reboot"));
        assert!(!node.status().holds_slot && node.stops.len() == 3, "{:?}", node.stops);
    }
}

fn scheduled(slot: Option<RebootLock>) -> PastReboots {
    let due = Some(Moment { uptime: MINUTE * 60, utc: Timestamp::UNIX_EPOCH });
    let memory_state = Some(crate::model::MemoryState::Wedged);
    let plan = RebootPlan { boot_id: BOOT.into(), due, memory_state, ..RebootPlan::default() };
    let scheduled = Some(ScheduledReboot { decision: DecisionId(3), rule: rule(), plan });
    PastReboots { scheduled, slot, is_slot_of_boot: true, ..of_this_boot(Vec::new()) }
}

fn draining() -> RebootSettings {
    let engines = EnginesRule::Drain;
    RebootSettings { lock: Some(lock()), engines, ..RebootSettings::default() }
}

#[test]
fn a_restart_requests_the_slot_again_or_releases_it() {
    let mut node = RebootWorld::with(draining(), Mode::Enforce, scheduled(Some(lock())));
    node.engines = vec![engine("a", 100)];
    (node.is_wedged, node.since) = (true, node.at.uptime.saturating_sub(MINUTE * 5));
    node.result = refused();
    node.wait(110);
    assert_eq!((node.acts()[0], node.stops.len()), ("take_reboot_slot", 0));
    node.result = Some(OutcomeResult::Done);
    node.wait(60);
    assert_eq!((node.stops.len(), node.acts().pop()), (1, Some("perform_reboot")));

    // Its cause does not show.
    let mut node = RebootWorld::with(draining(), Mode::Enforce, scheduled(Some(lock())));
    node.samples = false;
    node.wait(110);
    assert!(node.acts().is_empty() && node.status().holds_slot);
    node.wait(30);
    assert_eq!(node.acts(), ["release_reboot_slot"]);

    // It was called off, and what had helped against other things before says nothing of that.
    let mut past = PastReboots { scheduled: None, ..scheduled(Some(lock())) };
    past.attempts = vec![attempt("before", MINUTE * 600, Some(RebootResult::Helped))];
    let mut node = RebootWorld::with(draining(), Mode::Enforce, past);
    node.policy.reboots.is_called_off = true;
    node.wedge();
    assert_eq!(node.acts(), ["release_reboot_slot"]);
}

#[test]
fn a_slot_from_a_lost_journal_is_released_once_when_the_node_is_well() {
    let past = || PastReboots { is_slot_unknown: true, ..of_this_boot(Vec::new()) };
    let mut node = RebootWorld::with(draining(), Mode::Enforce, past());
    node.wait(590);
    assert!(node.acts().is_empty(), "it was not watched for long enough");
    node.wait(3_600);
    assert_eq!(node.acts(), ["release_reboot_slot"]);

    let mut node = RebootWorld::with(draining(), Mode::Enforce, past());
    node.policy.reboots.is_called_off = true;
    node.wedge();
    node.wait(3_600);
    assert!(node.acts().is_empty(), "it is not well");

    let mut node = RebootWorld::with(draining(), Mode::Observe, past());
    node.wait(3_600);
    assert!(node.acts().is_empty());

    let mut node = RebootWorld::with(draining(), Mode::Enforce, past());
    node.result = refused();
    node.wait(4 * 3_600);
    assert_eq!(node.acts(), vec!["release_reboot_slot"; 8], "not for ever");

    let known = RebootWorld::with(draining(), Mode::Enforce, of_this_boot(Vec::new()));
    let nowhere = RebootWorld::with(RebootSettings::default(), Mode::Enforce, past());
    for mut node in [known, nowhere] {
        node.wait(3_600);
        assert!(node.acts().is_empty());
    }
}
