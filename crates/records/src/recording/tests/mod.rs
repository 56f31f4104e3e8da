//! The parts of the format, each by itself.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use proptest::prelude::*;

use super::columns::Columns;
use super::decode::Decoder;
use super::encode::Encoder;
use super::wire::{Bytes, put_number, put_signed};
use super::{RecordedStep, RecordingEntry, SegmentBegin, StepResult};
use crate::model::{
    ClusterReadings, Event, GpuDriver, GpuPicture, GpuReadings, KernelEvent, Moment, NodeNews,
    NodeReadings, Observation, Reading, Rejection, Schema, SeriesKey,
};

fn reading() -> impl Strategy<Value = Reading<f64>> {
    prop_oneof![
        any::<u64>().prop_map(|bits| Reading::Value(f64::from_bits(bits))),
        any::<i64>().prop_map(|whole| Reading::Value(whole as f64)),
        any::<i32>().prop_map(|millionths| Reading::Value(f64::from(millionths) / 1e6)),
        Just(Reading::Value(-0.0)),
        Just(Reading::Value(f64::INFINITY)),
        Just(Reading::Failed),
        Just(Reading::Unsupported),
    ]
}

fn bits(values: &[Reading<f64>]) -> Vec<Reading<u64>> {
    values.iter().map(|value| value.map(f64::to_bits)).collect()
}

proptest! {
    #[test]
    fn every_value_comes_back_bit_for_bit(
        rows in prop::collection::vec(prop::collection::vec(reading(), 11), 1..20),
    ) {
        let (mut to, mut from, mut out) = (Columns::new(11), Columns::new(11), Vec::new());
        for row in &rows {
            to.encode(row, &mut out);
        }
        let mut bytes = Bytes(&out);
        for row in &rows {
            prop_assert_eq!(bits(from.decode(&mut bytes).unwrap()), bits(row));
        }
        prop_assert!(bytes.0.is_empty());
    }

    #[test]
    fn every_number_comes_back(number in any::<u64>(), signed in any::<i64>()) {
        let mut out = Vec::new();
        put_number(&mut out, number);
        put_signed(&mut out, signed);
        let mut bytes = Bytes(&out);
        prop_assert_eq!(bytes.number(), Ok(number));
        prop_assert_eq!(bytes.signed(), Ok(signed));
    }

    #[test]
    fn hostile_entries_are_refused_without_a_panic(
        kinds in prop::collection::vec((1..6_u8, prop::collection::vec(any::<u8>(), 0..40)), 1..20),
    ) {
        let bytes: Vec<u8> = kinds
            .into_iter()
            .flat_map(|(kind, bytes)| std::iter::once(kind).chain(bytes))
            .collect();
        let (mut decoder, mut bytes) = (Decoder::default(), Bytes(&bytes));
        while !bytes.0.is_empty() && decoder.entry(&mut bytes).is_ok() {}
    }
}

#[test]
fn gpu_readings_are_read_back() {
    let line =
        include_str!("../../../../../tests/fixtures/gpu/answers.jsonl").lines().nth(2).unwrap();
    let found: serde_json::Value = serde_json::from_str(line).unwrap();
    let picture: GpuPicture = serde_json::from_value(found["result"]["picture"].clone()).unwrap();
    let uptime = Duration::from_secs(77);
    let silent = GpuDriver::Silent { since: uptime, process_state: Some('D') };
    let gpu = |driver, picture| {
        let answered_at = Some(uptime);
        GpuReadings { read_at: uptime, driver, answered_at, askers: vec![7, 9], picture }
    };
    let found = [gpu(GpuDriver::Responsive, Some(Arc::new(picture))), gpu(silent, None)];
    let seen = found.iter().map(|found| Observation::Gpu(Box::new(found.clone()))).collect();
    let at = Moment { uptime, utc: Timestamp::UNIX_EPOCH };
    let entry = RecordingEntry::Step(RecordedStep { at, seen, said: StepResult::default() });
    let mut out = Vec::new();
    Encoder::default().entry(&entry, &mut out).unwrap();
    let Ok(RecordingEntry::Step(step)) = Decoder::default().entry(&mut Bytes(&out)) else {
        panic!()
    };
    let back = step.seen.iter().map(|seen| match seen {
        Observation::Gpu(found) => (**found).clone(),
        other => panic!("{other:?}"),
    });
    assert_eq!(back.collect::<Vec<_>>(), found);
}

#[test]
fn readings_of_other_nodes_are_read_back() {
    let series = vec![SeriesKey::new("uma_a", &[("cluster", "c"), ("node", "n \"1\"")])];
    let schema = Arc::new(Schema { series });
    let node = |node: &str, news| NodeReadings {
        node: node.into(),
        news,
        took: Duration::from_millis(3),
        refused: vec![(Rejection::Impossible, 2)],
        url: Some("http://10.0.0.2:9942/".into()),
    };
    let values = vec![Reading::Value(0.1)];
    let found = ClusterReadings {
        nodes: vec![
            node("a", NodeNews::Answered { schema: Arc::clone(&schema), values }),
            node("b", NodeNews::Silent { why: "it hangs".into(), schema }),
            node("c", NodeNews::Gone),
        ],
    };
    let at = Moment { uptime: Duration::from_secs(1), utc: Timestamp::UNIX_EPOCH };
    let seen = vec![Observation::Cluster(Box::new(found.clone()))];
    let entry = RecordingEntry::Step(RecordedStep { at, seen, said: StepResult::default() });
    let mut out = Vec::new();
    Encoder::default().entry(&entry, &mut out).unwrap();
    let Ok(RecordingEntry::Step(step)) = Decoder::default().entry(&mut Bytes(&out)) else {
        panic!()
    };
    let [Observation::Cluster(back)] = &step.seen[..] else { panic!("{:?}", step.seen) };
    assert_eq!(**back, found);
}

/// A step whose readings repeat one large schema at a byte or two each.
#[test]
fn a_short_step_cannot_ask_for_much_memory() {
    let mut out = vec![super::encode::STEP];
    put_signed(&mut out, 1);
    put_signed(&mut out, 1);
    put_number(&mut out, 60_000);
    out.push(super::encode::READINGS);
    put_number(&mut out, 0);
    out.push(0);
    put_number(&mut out, 8_000);
    for _ in 0..8_000 {
        out.extend([1, b'x', 0]);
    }
    out.extend([0, 0]);
    out.resize(out.len() + 1_000, 0);
    for _ in 1..60_000 {
        out.extend([super::encode::READINGS, 0, 0, 0]);
        out.resize(out.len() + 1_000, 0);
    }
    let refused = Decoder::default().entry(&mut Bytes(&out)).unwrap_err();
    assert_eq!(refused.to_string(), "a step has too many values");
}

#[test]
fn a_later_segment_has_the_last_time_of_each_kind_of_event() {
    let begin = r#"{"program": "", "boot_id": "", "started": AT, "at": AT, "segment": 0,
        "goes_on_from": null, "is_start": true, "next_decision": 1, "already_counted": [],
        "rules": {"mode": "observe", "evaluation_interval": {"secs": 1, "nanos": 0}, "files": []}}"#;
    let at = r#"{"uptime": {"secs": 1, "nanos": 0}, "utc": "1970-01-01T00:00:00Z"}"#;
    let mut begin: SegmentBegin = serde_json::from_str(&begin.replace("AT", at)).unwrap();
    assert!(begin.last_events.is_empty(), "as in a recording from before it was kept");
    let time = |seconds| Timestamp::from_second(seconds).unwrap();
    for seconds in [50, 90, 70] {
        let event =
            Event { kind: KernelEvent::UvmFatal.into(), utc: Some(time(seconds)), seq: Some(1) };
        begin.pass(&RecordingEntry::Step(RecordedStep {
            at: Moment { uptime: Duration::from_secs(2), utc: time(100) },
            seen: Vec::new(),
            said: StepResult { events: vec![event], ..StepResult::default() },
        }));
    }
    assert_eq!(begin.last_events, [("uvm_fatal".to_owned(), time(90))].into());
}
