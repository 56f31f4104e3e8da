use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

/// As Alertmanager 0.28 writes it.
const REAL: &str = include_str!("../../../../../tests/fixtures/alertmanager/webhook.json");

fn read(value: &Value) -> Result<ReceivedAlerts, PostError> {
    post(value.to_string().as_bytes())
}

fn one(labels: &Value) -> (BTreeMap<Arc<str>, Arc<str>>, u64) {
    let alert = json!({"status": "firing", "startsAt": "2026-11-22T10:00:00Z", "labels": labels});
    let mut read = read(&json!({"version": "4", "alerts": [alert]})).unwrap();
    (read.alerts.remove(0).labels.clone(), read.unusable_labels)
}

fn names(labels: &BTreeMap<Arc<str>, Arc<str>>) -> Vec<&str> {
    labels.keys().map(|name| &**name).collect()
}

#[test]
fn a_real_post_is_read_alert_by_alert() {
    let read = post(REAL.as_bytes()).unwrap();
    let found: Vec<_> = read
        .alerts
        .iter()
        .map(|alert| (alert.name(), alert.status, alert.ends_at.is_some(), &*alert.fingerprint))
        .collect();
    let [firing, resolved] = [ReceivedStatus::Firing, ReceivedStatus::Resolved];
    let expected = [
        ("NodeMemoryLow", firing, false, "b1a6f4f8a3c1c2d0"),
        ("NodeMemoryLow", resolved, true, "0f3a9e7d5c2b1a08"),
    ];
    assert_eq!(found, expected);
    assert_eq!(&*read.alerts[0].labels["instance"], "spark-1:9100");
    assert_eq!((read.unusable_labels, read.truncated), (0, 0));
}

#[test]
fn unknown_fields_an_empty_post_and_a_truncated_one_are_fine() {
    assert_eq!(read(&json!({"alerts": []})).unwrap(), ReceivedAlerts::default());
    let future = json!({"version": "4", "alerts": [], "truncatedAlerts": 7, "new": {"a": [1]}});
    assert_eq!(read(&future).unwrap().truncated, 7);
}

#[test]
fn a_zero_end_is_no_end() {
    let ends = |ends: &str| {
        let alert = json!({"status": "firing", "labels": {}, "endsAt": ends,
            "startsAt": "2026-11-22T12:00:00.123456789+02:00"});
        read(&json!({"alerts": [alert]})).unwrap().alerts.remove(0)
    };
    let alert = ends("0001-01-01T00:00:00Z");
    assert_eq!(alert.ends_at, None);
    assert_eq!(alert.starts_at, "2026-11-22T10:00:00.123456789Z".parse().unwrap());
    assert!(ends("2026-11-22T10:00:00Z").ends_at.is_some());
    assert_eq!(alert.name(), "(no alertname)");
}

#[test]
fn malformed_input_is_reported_with_its_position() {
    let alert = |key: &str, value: Value| {
        let mut alert = json!({"status": "firing", "startsAt": "2026-11-22T10:00:00Z",
            "labels": {}});
        alert[key] = value;
        json!({"version": "4", "alerts": [alert]}).to_string()
    };
    for (body, found) in [
        (String::new(), "must be a JSON object"),
        ("[]".to_owned(), "must be a JSON object"),
        ("{\"alerts\":[}".to_owned(), "not JSON: expected value at line 1 column 12"),
        ("{}".to_owned(), "missing field `alerts`"),
        ("{\"alerts\": null}".to_owned(), "alerts: invalid type: null"),
        ("{\"alerts\": [], \"version\": \"5\"}".to_owned(), "this is version \"5\""),
        (alert("status", json!("pending")), "alerts[0].status: unknown variant `pending`"),
        (alert("startsAt", json!("yesterday")), "alerts[0].startsAt: "),
        (alert("startsAt", Value::Null), "alerts[0].startsAt: invalid type: null"),
        (alert("labels", json!({"a": 1})), "alerts[0].labels.a: invalid type: integer"),
        (alert("labels", json!(["a"])), "alerts[0].labels: invalid type: sequence"),
    ] {
        let error = post(body.as_bytes()).unwrap_err();
        let PostError::Malformed(text) = &error else { panic!("{error:?}") };
        assert!(text.contains(found), "{body}: {text}");
    }
    assert!(matches!(post(b"{\"alerts\": \"\xff\"}"), Err(PostError::Malformed(_))));
    let long = alert("startsAt", json!("x".repeat(100_000)));
    assert!(post(long.as_bytes()).unwrap_err().to_string().len() < 2_000);
}

#[test]
fn oversized_input_has_its_own_error() {
    let alert = json!({"status": "firing", "startsAt": "2026-11-22T10:00:00Z", "labels": {}});
    let most = json!({"alerts": vec![alert.clone(); MOST_ALERTS]});
    assert_eq!(read(&most).unwrap().alerts.len(), MOST_ALERTS);
    let more = json!({"alerts": vec![alert; MOST_ALERTS + 1]});
    assert!(matches!(read(&more), Err(PostError::TooLarge(text)) if text.contains("max_alerts")));
    let long = format!("{{\"alerts\": [], \"x\": \"{}\"}}", "x".repeat(MOST_BYTES));
    assert!(matches!(post(long.as_bytes()), Err(PostError::TooLarge(_))));
}

#[test]
fn labels_that_no_series_can_have_are_left_out_and_counted() {
    let (labels, unusable) = one(&json!({
        "alertname": "A", "alertstate": "pending", "__name__": "x", "my.label": "1", "1a": "1",
        "": "1", "größe": "1", "ok_1": "$(reboot)\n\u{1b}[31m", "empty": "", "b": "x".repeat(1025),
        "c".repeat(129): "1",
    }));
    assert_eq!(names(&labels), ["alertname", "ok_1"]);
    assert_eq!(&*labels["ok_1"], "$(reboot)\n\u{1b}[31m", "a value is kept as it is");
    assert_eq!(unusable, 8);
}

#[test]
fn of_too_many_labels_the_name_is_kept() {
    let many: BTreeMap<String, String> =
        (0..100).map(|number| (format!("a{number:03}"), "x".repeat(40))).collect();
    let mut many = json!(many);
    many["alertname"] = json!("A");
    let (labels, unusable) = one(&many);
    assert_eq!((labels.len(), unusable), (MOST_LABELS, 101 - MOST_LABELS as u64));
    assert!(labels.contains_key("alertname"));
    let long: BTreeMap<String, String> =
        (0..10).map(|number| (format!("a{number}"), "x".repeat(1000))).collect();
    let (labels, unusable) = one(&json!(long));
    assert_eq!((labels.len(), unusable), (4, 6));
}

#[test]
fn a_fingerprint_that_is_missing_is_made_as_prometheus_makes_it() {
    let of = |labels: Value, given: Value| {
        let alert = json!({"status": "firing", "startsAt": "2026-11-22T10:00:00Z",
            "labels": labels, "fingerprint": given});
        read(&json!({"alerts": [alert]})).unwrap().alerts.remove(0).fingerprint.clone()
    };
    // From prometheus/common's own tests.
    assert_eq!(&*of(json!({}), Value::Null), "cbf29ce484222325");
    let labels = json!({"name": "garland, briggs", "fear": "love is not enough"});
    assert_eq!(&*of(labels.clone(), Value::Null), "507a62d79ee76c9a");
    assert_eq!(&*of(labels.clone(), json!("abc123")), "abc123");
    for useless in ["", "a b", "\u{1b}", &"a".repeat(65)] {
        assert_eq!(&*of(labels.clone(), json!(useless)), "507a62d79ee76c9a");
    }
}

proptest! {
    #[test]
    fn arbitrary_posts_are_within_bounds_or_refused(
        labels in prop::collection::btree_map(".{0,20}", ".{0,200}", 0..60),
        noise in ".{0,200}",
        fingerprint in prop::option::of(".{0,80}"),
    ) {
        let _refused = post(noise.as_bytes());
        let alert = json!({"status": "resolved", "startsAt": "2026-11-22T10:00:00Z",
            "labels": labels, "fingerprint": fingerprint});
        let read = read(&json!({"alerts": [alert]})).unwrap();
        let alert = &read.alerts[0];
        prop_assert!(alert.labels.len() <= MOST_LABELS);
        let bytes: usize = alert.labels.iter().map(|(name, value)| name.len() + value.len()).sum();
        prop_assert!(bytes <= MOST_LABEL_BYTES);
        prop_assert!(alert.labels.iter().all(|(name, value)| is_label_name(name)
            || name.is_empty() || value.is_empty()));
        prop_assert!(is_fingerprint(&alert.fingerprint));
        let empty = labels.values().filter(|value| value.is_empty()).count();
        prop_assert_eq!(alert.labels.len() + read.unusable_labels as usize + empty, labels.len());
        // What was kept reads back as it was.
        let text = serde_json::to_string(&read).unwrap();
        prop_assert_eq!(serde_json::from_str::<ReceivedAlerts>(&text).unwrap(), read.clone());
    }

    #[test]
    fn bytes_never_panic(body in prop::collection::vec(any::<u8>(), 0..300)) {
        let _refused = post(&body);
    }
}
