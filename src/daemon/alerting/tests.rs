use super::current::{DECISION_LASTS, ENDED_IS_SENT, MOST_ALERTS};
use super::*;
use crate::model::{
    Action, AlertState, Decision, DecisionId, Evidence, HoldReason, Mode, RuleId, Target,
};
use crate::policy::status::{AlertStatus, RuleState, RuleStatus};

#[test]
fn a_node_is_named_by_kubernetes_before_its_host_name() {
    let named = |names: [&str; 2]| first_name(names.map(|name| Some(name.to_owned())));
    assert_eq!(named(["gpu-1", "pod-x7k2p"]), "gpu-1");
    assert_eq!(named(["", "spark"]), "spark");
    assert_eq!(named(["a\nb", ""]), "localhost");
    assert_eq!(first_name([None, Some("spark".to_owned())]), "spark");
}

fn at(seconds: u64) -> Moment {
    let utc = jiff::Timestamp::from_second(1_800_000_000 + i64::try_from(seconds).unwrap());
    Moment { uptime: Duration::from_secs(seconds), utc: utc.unwrap() }
}

fn rule(name: &str) -> RuleId {
    RuleId { group: "g".into(), alert: name.into() }
}

fn alert(name: &str, state: AlertState, summary: &str) -> AlertStatus {
    AlertStatus {
        labels: vec![("alertname".into(), name.into()), ("severity".into(), "warning".into())],
        annotations: vec![("summary".into(), summary.to_owned())],
        state,
        active_since: at(0),
        value: 1.0,
    }
}

fn rules(alerts: Vec<AlertStatus>) -> Vec<RuleStatus> {
    vec![RuleStatus {
        rule: rule("Low"),
        file: "f".to_owned(),
        overridden: None,
        is_idle: false,
        interval: Duration::from_secs(1),
        expr: "x".into(),
        hold_for: Duration::ZERO,
        keep_firing_for: Duration::ZERO,
        labels: Vec::new(),
        annotations: Vec::new(),
        mode: Mode::Observe,
        state: RuleState::Firing,
        unknown: Vec::new(),
        alerts,
        remedy: None,
    }]
}

fn current() -> CurrentAlerts {
    let common = [("instance", "spark-1"), ("severity", "info")];
    CurrentAlerts::new(common.map(|(name, text)| (name.into(), text.into())).into())
}

fn decision(decision: Decision, mode: Mode) -> DecisionRecord {
    DecisionRecord {
        id: DecisionId(7),
        at: at(1),
        rule: rule("Low"),
        mode,
        decision,
        step: 0,
        action: Action::CompactMemory,
        target: Target::Node,
        approved: None,
        goes_ahead: None,
        because: vec![Evidence { series: "x".to_owned(), value: Reading::Value(2.0) }],
    }
}

#[test]
fn firing_alerts_are_sent_until_they_end_and_their_end_for_a_while() {
    let mut current = current();
    let [pending, firing] = [AlertState::Pending, AlertState::Firing];
    assert!(!current.update(at(1), &rules(vec![alert("Low", pending, "a")])), "not sent");
    assert!(current.update(at(2), &rules(vec![alert("Low", firing, "a")])));
    assert!(!current.update(at(3), &rules(vec![alert("Low", firing, "b")])), "no news");
    let sent = current.outgoing();
    let labels: Vec<_> =
        sent[0].labels.iter().map(|(name, text)| format!("{name}={text}")).collect();
    assert_eq!(labels, ["alertname=Low", "instance=spark-1", "severity=warning"]);
    assert_eq!(sent[0].annotations["summary"], "b", "as it is now");
    assert_eq!((sent[0].starts_at, sent[0].ended_at), (at(2).utc, None));
    assert!(current.update(at(10), &rules(Vec::new())));
    assert_eq!(current.outgoing()[0].ended_at, Some(at(10).utc));
    assert_eq!(current.counts(), [0, 1, 0]);
    // A firing alert begins anew.
    assert!(current.update(at(20), &rules(vec![alert("Low", firing, "b")])));
    assert_eq!(current.outgoing()[0].starts_at, at(20).utc);
    current.update(at(30), &rules(Vec::new()));
    let over = 30 + ENDED_IS_SENT.as_secs();
    current.update(at(over - 1), &rules(Vec::new()));
    assert_eq!(current.counts(), [0, 1, 0]);
    current.update(at(over), &rules(Vec::new()));
    assert!(current.outgoing().is_empty());
}

#[test]
fn an_announced_act_is_sent_with_its_time_and_the_way_to_deny_it() {
    let mut current = current();
    let held = decision(Decision::Hold(HoldReason::Announced), Mode::Enforce);
    let held = DecisionRecord { goes_ahead: Some(at(600).utc), ..held };
    assert!(current.decide(at(1), &held));
    let sent = current.outgoing();
    assert_eq!(&*sent[0].labels["reason"], "announced");
    let summary = &sent[0].annotations["summary"];
    assert!(summary.contains("2027-01-15T08:10:00Z"), "{summary}");
    assert!(summary.ends_with("unless it is denied: umawarden deny 7"), "{summary}");
}

#[test]
fn a_firing_alert_has_an_end_time_unless_it_is_sent_again() {
    let mut current = current();
    current.update(at(2), &rules(vec![alert("Low", AlertState::Firing, "a")]));
    let settings = SendSettings {
        resend_every: Duration::from_secs(60),
        generator: "http://spark-1:9942/".to_owned(),
    };
    let json = body(&current.outgoing(), at(10), &settings);
    let expected = serde_json::json!([{
        "labels": {"alertname": "Low", "instance": "spark-1", "severity": "warning"},
        "annotations": {"summary": "a"},
        "startsAt": "2027-01-15T08:00:02.000Z",
        "endsAt": "2027-01-15T08:04:10.000Z",
        "generatorURL": "http://spark-1:9942/",
    }]);
    assert_eq!(json, expected);
    current.update(at(20), &[]);
    let json = body(&current.outgoing(), at(30), &settings);
    assert_eq!(json[0]["endsAt"], "2027-01-15T08:00:20.000Z");
}

#[test]
fn a_clock_set_back_ends_no_alert_before_its_begin() {
    let mut current = current();
    current.update(at(2_000), &rules(vec![alert("Low", AlertState::Firing, "a")]));
    let lasts = Duration::from_secs(240);
    let json = current.outgoing()[0].json(at(1_000).utc, lasts, "");
    assert_eq!(json["endsAt"], json["startsAt"]);
}

#[test]
fn a_refusal_of_one_post_does_not_delay_others() {
    let refused = |status| alertmanager::PostError::Refused { status, text: String::new() };
    assert!(refused(400).is_of_this_post());
    assert!(!refused(401).is_of_this_post() && !refused(503).is_of_this_post());
}

#[test]
fn ended_alerts_give_way_to_firing_ones_and_dropped_ones_are_counted() {
    let mut current = current();
    let firing = |from: usize, to: usize| {
        let names = (from..to).map(|number| format!("A{number}"));
        rules(names.map(|name| alert(&name, AlertState::Firing, "")).collect())
    };
    current.update(at(1), &firing(0, MOST_ALERTS));
    assert!(current.update(at(2), &firing(1, MOST_ALERTS + 2)));
    assert_eq!(current.counts(), [MOST_ALERTS - 1, 1, 2], "the end of A0 is not known yet");
    current.update(at(3), &firing(1, MOST_ALERTS + 2));
    assert_eq!(current.counts(), [MOST_ALERTS, 0, 1]);
    current.update(at(4), &firing(1, MOST_ALERTS + 2));
    assert_eq!(current.counts(), [MOST_ALERTS, 0, 1], "left out, not more each time");
}

#[test]
fn decisions_fire_for_a_while_and_a_repeated_one_is_the_same() {
    let mut current = current();
    assert!(current.decide(at(1), &decision(Decision::Act, Mode::Observe)));
    assert!(!current.decide(at(100), &decision(Decision::Act, Mode::Observe)));
    let held = Decision::Hold(HoldReason::Paused);
    assert!(current.decide(at(100), &decision(held, Mode::Enforce)));
    let sent = current.outgoing();
    let act = sent.iter().find(|one| &*one.labels["decision"] == "act").unwrap();
    assert_eq!(act.annotations["summary"], "g/Low: would compact_memory");
    assert_eq!(act.annotations["description"], "x = 2");
    assert_eq!(&*act.labels["alertname"], "UmawardenDecision");
    let hold = sent.iter().find(|one| &*one.labels["decision"] == "hold").unwrap();
    assert_eq!(&*hold.labels["reason"], "paused");
    // No rule has them.
    assert!(!current.update(at(101), &[]));
    assert!(current.update(at(100 + DECISION_LASTS.as_secs()), &[]));
    assert_eq!(current.counts(), [0, 2, 0]);
}

#[test]
fn only_the_configured_kinds_of_decisions_are_sent() {
    let (to, received) = sync_channel(1);
    let mut alerting = Alerting {
        health_reports: HealthReports::default(),
        which: SentDecisions::None,
        to: Some(to),
        tally: Arc::default(),
        servers: Vec::new(),
        inbox: Arc::new(AlertInbox::new(|| {})),
        posts_are_held: false,
        schema: Arc::new(Schema { series: Vec::new() }),
    };
    let hold = decision(Decision::Hold(HoldReason::Paused), Mode::Enforce);
    alerting.decided(&decision(Decision::Act, Mode::Enforce));
    assert!(received.try_recv().is_err());
    alerting.which = SentDecisions::Acts;
    alerting.decided(&hold);
    assert!(received.try_recv().is_err());
    alerting.decided(&decision(Decision::Act, Mode::Enforce));
    alerting.which = SentDecisions::All;
    alerting.decided(&hold);
    assert_eq!(alerting.tally.decisions_left_out.load(Ordering::Relaxed), 1, "the queue is full");
    assert_eq!(received.try_recv().unwrap().decision, Decision::Act);
    alerting.decided(&hold);
    assert_eq!(*received.try_recv().unwrap(), hold);
}

#[test]
fn every_counter_has_a_series_in_the_table() {
    let server = AlertmanagerServer {
        url: "http://a:9093".to_owned(),
        ca_file: None,
        credentials: None,
        timeout: Duration::from_secs(1),
    };
    let sending = AlertSending { to: vec![server.clone(), server], ..AlertSending::default() };
    let (to, _decisions) = sync_channel(1);
    let mut alerting = Alerting {
        health_reports: HealthReports::default(),
        which: SentDecisions::None,
        to: Some(to),
        tally: Arc::default(),
        servers: vec![Arc::default(), Arc::default()],
        inbox: Arc::new(AlertInbox::new(|| {})),
        posts_are_held: false,
        schema: Arc::new(Schema { series: series(&sending) }),
    };
    let fits = |alerting: &Alerting| {
        let readings = alerting.readings();
        assert_eq!(readings.values.len(), readings.schema.series.len());
        for key in &readings.schema.series {
            let metric = crate::model::metric(&key.name);
            let labels = key.labels.iter().map(|(name, _)| &**name);
            assert!(metric.is_some_and(|metric| labels.eq(metric.labels.iter().copied())), "{key}");
        }
    };
    fits(&alerting);
    (alerting.to, alerting.servers) = (None, Vec::new());
    alerting.schema = Arc::new(Schema { series: series(&AlertSending::default()) });
    fits(&alerting);
}
