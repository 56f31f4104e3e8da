use super::*;
use crate::model::{Mode, RuleId};
use crate::policy::status::AlertStatus;

fn at(seconds: u64) -> Moment {
    let utc = Timestamp::from_second(1_800_000_000 + i64::try_from(seconds).unwrap());
    Moment { uptime: Duration::from_secs(seconds), utc: utc.unwrap() }
}

fn severity(name: &str) -> Vec<(Arc<str>, Arc<str>)> {
    vec![("severity".into(), name.into())]
}

fn alert(severity_name: &str) -> AlertStatus {
    AlertStatus {
        labels: severity(severity_name),
        annotations: vec![("summary".into(), "it is\u{7} bad".to_owned())],
        state: AlertState::Firing,
        active_since: at(0),
        value: 1.0,
    }
}

fn rule(name: &str, state: RuleState, alerts: Vec<AlertStatus>) -> RuleStatus {
    RuleStatus {
        rule: RuleId { group: "g".into(), alert: name.into() },
        file: "f".to_owned(),
        overridden: None,
        is_idle: false,
        interval: Duration::from_secs(1),
        expr: "x".into(),
        hold_for: Duration::ZERO,
        keep_firing_for: Duration::ZERO,
        labels: severity("critical"),
        annotations: Vec::new(),
        mode: Mode::Observe,
        state,
        unknown: Vec::new(),
        alerts,
        remedy: None,
    }
}

fn fires(name: &str) -> RuleStatus {
    rule(name, RuleState::Firing, vec![alert("critical")])
}

fn quiet(name: &str) -> RuleStatus {
    rule(name, RuleState::Inactive, Vec::new())
}

fn reports() -> Reports {
    Reports::new("gpu-1".to_owned(), Duration::ZERO)
}

/// What is due after these rules, all of which is taken.
fn step(reports: &mut Reports, seconds: u64, rules: &[RuleStatus]) -> Vec<HealthEvent> {
    reports.update(at(seconds), rules, false);
    let due = reports.due();
    reports.taken();
    due
}

fn xid(pid: u32) -> Event {
    let kind = KernelEvent::Xid {
        xid: 79,
        pci: "000f:01:00".to_owned(),
        gpu_instance: None,
        compute_instance: None,
        pid: Some(pid),
        process: None,
        recovery: None,
    };
    Event { kind: kind.into(), utc: Some(at(7).utc), seq: Some(1) }
}

fn oom(constraint: Option<OomConstraint>) -> Event {
    let kind = KernelEvent::OomKill {
        pid: 1,
        comm: "python3".to_owned(),
        constraint,
        memcg: None,
        oom_memcg: None,
        trigger_comm: None,
        anon_rss_bytes: None,
        driver: false,
        manual: false,
        container: None,
    };
    Event { kind: kind.into(), utc: Some(at(7).utc), seq: Some(1) }
}

#[test]
fn a_critical_alert_is_reported_once_and_when_it_is_over() {
    let mut reports = reports();
    assert_eq!(step(&mut reports, 1, &[quiet("Low")]), [], "it was never unhealthy");
    let due = step(&mut reports, 2, &[fires("Low")]);
    assert_eq!(due.len(), 1);
    let event = &due[0];
    assert_eq!((&*event.check_name, &*event.message), ("Low", "it is bad"));
    assert_eq!((&*event.agent, &*event.node_name), ("umawarden", "gpu-1"));
    assert!(!event.is_healthy && !event.is_fatal);
    assert_eq!(event.generated_timestamp, Some(at(2).utc.into()));
    assert_eq!(step(&mut reports, 3, &[fires("Low")]), []);
    let unknown = rule("Low", RuleState::Unknown, Vec::new());
    assert_eq!(step(&mut reports, 4, &[unknown]), [], "it is as it was");
    let over = step(&mut reports, 5, &[quiet("Low")]);
    assert!(over[0].is_healthy && over[0].check_name == "Low");
    let warning = rule("Low", RuleState::Firing, vec![alert("warning")]);
    assert_eq!(step(&mut reports, 6, &[warning]), []);
}

#[test]
fn a_rule_that_goes_ends_its_check_and_only_the_present_state_is_sent_after_an_outage() {
    let mut reports = reports();
    step(&mut reports, 1, &[fires("Low"), fires("High")]);
    reports.update(at(2), &[quiet("Low")], false);
    assert_eq!(reports.due().len(), 2, "nobody took it");
    reports.update(at(3), &[fires("Low")], false);
    let due = reports.due();
    assert_eq!(due.len(), 1);
    assert!(due[0].is_healthy && due[0].check_name == "High");
}

#[test]
fn what_an_earlier_run_may_have_left_unhealthy_is_reported_healthy_once() {
    let mut reports = reports();
    let rules = [quiet("Low"), rule("Dark", RuleState::Unknown, Vec::new())];
    assert_eq!(step(&mut reports, 119, &rules), []);
    let due = step(&mut reports, 120, &rules);
    assert_eq!(due.len(), 1);
    assert!(due[0].is_healthy && due[0].check_name == "Low");
    assert_eq!(step(&mut reports, 121, &rules), []);
}

#[test]
fn without_a_right_to_repair_nothing_that_is_sent_has_any_effect() {
    let mut reports = reports();
    for event in [xid(1), oom(Some(OomConstraint::None))] {
        reports.fault(&event);
    }
    let mut due = step(&mut reports, 1, &[fires("DriverWedged"), fires("MemoryLeaked")]);
    due.extend(step(&mut reports, 2, &[quiet("DriverWedged")]));
    assert_eq!(due.len(), 6);
    for event in due {
        assert!(!event.is_fatal, "{event:?}");
        assert_eq!(event.recommended_action, ACTION_NONE);
        assert_eq!(event.processing_strategy, STRATEGY_STORE_ONLY);
        let skipped = |overrides: Option<BehaviourOverrides>| overrides.unwrap().skip;
        assert!(skipped(event.quarantine_overrides) && skipped(event.drain_overrides));
    }
}

#[test]
fn with_that_right_only_what_a_reboot_ends_asks_for_one_and_not_while_ours_is_to_come() {
    let mut reports = reports();
    let rules = [fires("DriverWedged"), fires("Low")];
    reports.update(at(1), &rules, false);
    let due = reports.due();
    assert!(due.iter().all(|event| !event.is_fatal), "{due:?}");
    assert!(due.iter().all(|event| event.processing_strategy == STRATEGY_STORE_ONLY));
    reports.update(at(2), &rules, true);
    let due = reports.due();
    reports.taken();
    let asks = |event: &HealthEvent| {
        event.is_fatal
            && event.recommended_action == ACTION_RESTART_BM
            && event.processing_strategy == STRATEGY_EXECUTE_REMEDIATION
    };
    let asking: Vec<&str> =
        due.iter().filter(|event| asks(event)).map(|event| &*event.check_name).collect();
    assert_eq!(asking, ["DriverWedged"]);
    reports.update(at(3), &rules, false);
    assert_eq!(reports.due(), [], "it was taken already");
    reports.fault(&xid(1));
    let over = step(&mut reports, 4, &[quiet("DriverWedged"), fires("Low")]);
    let (ended, fault) = (&over[0], &over[1]);
    assert!(ended.is_healthy && !ended.is_fatal && ended.recommended_action == ACTION_NONE);
    assert_eq!(ended.processing_strategy, STRATEGY_EXECUTE_REMEDIATION, "it ends what it acts on");
    assert_eq!(fault.processing_strategy, STRATEGY_STORE_ONLY);
    reports.update(at(5), &rules, false);
    assert!(reports.due().iter().all(|event| !event.is_fatal));
}

#[test]
fn faults_of_the_kernel_have_codes_and_forged_or_private_ones_are_left_out() {
    let mut reports = reports();
    assert!(is_reported(&xid(1)) && is_reported(&oom(Some(OomConstraint::None))));
    assert!(!is_reported(&oom(Some(OomConstraint::Memcg))) && !is_reported(&oom(None)));
    let forged = Event { seq: Some(crate::model::SYSLOG_SEQ_BASE), ..xid(1) };
    assert!(!is_reported(&forged));
    reports.fault(&xid(7));
    let due = reports.due();
    let event = &due[0];
    assert_eq!((&*event.check_name, &*event.component_class), ("KernelXid", "GPU"));
    assert_eq!(event.error_code, ["XID_79"]);
    let entity = &event.entities_impacted[0];
    assert_eq!((&*entity.entity_type, &*entity.entity_value), ("PCI", "000f:01:00"));
}

#[test]
fn the_newest_faults_wait_and_what_is_being_sent_stays() {
    let mut reports = reports();
    reports.fault(&xid(0));
    assert_eq!(reports.due().len(), 1);
    for pid in 1..=300 {
        reports.fault(&xid(pid));
    }
    assert_eq!(reports.take_dropped(), 300 - MOST_FAULTS as u64);
    reports.taken();
    let mut left = Vec::new();
    while let due = reports.due()
        && !due.is_empty()
    {
        assert!(due.len() <= MOST_EVENTS);
        left.extend(due);
        reports.taken();
    }
    assert_eq!(left.len(), MOST_FAULTS);
    assert!(left[0].message.contains("45"), "{}", left[0].message);
}
