//! What the daemon relies on when it stops at any line and starts again: over every kernel log of
//! `tests/fixtures/kernel`.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use kernel_faults::dmesg::{LogText, Message};
use kernel_faults::{EventAssembler, KernelEvent, KernelLine, LoggedEvent};
use proptest::prelude::*;

/// Other forms of a log that is there anyway, one of several hosts, and one whose clock goes back,
/// as no live one's does.
const LEFT_OUT: [&str; 9] = [
    "-ctime.log",
    "-decoded.log",
    "-delta.log",
    "-iso.log",
    "-notime.log",
    "-raw-prefix.log",
    "-reltime.log",
    "several-nodes.log",
    "snapshots-appended.log",
];

/// The messages of every fixture, in the order of their names.
fn logs() -> Vec<(String, Vec<Message>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/kernel");
    let mut logs: Vec<(String, Vec<Message>)> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "log"))
        .filter(|path| !LEFT_OUT.iter().any(|same| path.to_string_lossy().ends_with(same)))
        .map(|path| {
            let mut text = LogText::new();
            let bytes = fs::read(&path).unwrap();
            let mut messages: Vec<Message> =
                bytes.split(|byte| *byte == b'\n').filter_map(|line| text.feed(line)).collect();
            messages.extend(text.finish());
            (path.file_name().unwrap().to_string_lossy().into_owned(), messages)
        })
        .collect();
    logs.sort_by(|a, b| a.0.cmp(&b.0));
    assert!(logs.len() > 20, "the fixtures are gone");
    logs
}

/// A message as the daemon feeds it: numbered, and on a clock that does not jump.
fn line(number: usize, message: &Message) -> KernelLine<'_> {
    KernelLine {
        seq: Some(number as u64),
        uptime: Some(message.position.unwrap_or(Duration::from_millis(number as u64))),
        ..message.kernel_line()
    }
}

fn events(messages: &[Message]) -> Vec<LoggedEvent> {
    let mut assembler = EventAssembler::new();
    let mut out = Vec::new();
    for (number, message) in messages.iter().enumerate() {
        assembler.feed(&line(number, message), &mut out);
    }
    assembler.finish(&mut out);
    assert_eq!((assembler.pending_since_seq(), assembler.next_deadline()), (None, None));
    out
}

/// The same with a stop after each of these lines: what was given by then is kept, once a record,
/// and reading goes on where something was pending.
fn events_with_stops(messages: &[Message], stops: &[usize]) -> BTreeMap<u64, LoggedEvent> {
    let mut kept = BTreeMap::new();
    let mut from = 0;
    for stop in stops.iter().copied().chain([messages.len()]) {
        let mut assembler = EventAssembler::new();
        let mut out = Vec::new();
        for (number, message) in messages.iter().enumerate().take(stop).skip(from) {
            assembler.feed(&line(number, message), &mut out);
        }
        if stop == messages.len() {
            assembler.finish(&mut out);
        }
        from = assembler.pending_since_seq().map_or(stop, |seq| usize::try_from(seq).unwrap());
        assert!(from <= stop);
        for event in out {
            kept.entry(event.seq.unwrap()).or_insert(event);
        }
    }
    kept
}

#[test]
fn no_record_gives_two_events() {
    for (name, messages) in logs() {
        let mut seqs: Vec<_> = events(&messages).iter().map(|event| event.seq).collect();
        seqs.sort();
        let all = seqs.len();
        seqs.dedup();
        assert_eq!(seqs.len(), all, "{name}");
    }
}

#[test]
fn a_kill_has_the_time_of_a_line_with_its_victim() {
    for (name, messages) in logs() {
        for event in events(&messages) {
            let KernelEvent::OomKill { pid, .. } = &event.kind else { continue };
            let text = &messages[usize::try_from(event.seq.unwrap()).unwrap()].text;
            let named = ["Killed process", "oom-kill:", "Kill process"]
                .iter()
                .any(|words| text.contains(words));
            assert!(named, "{name}: {pid} at {text}");
        }
    }
}

#[test]
fn a_stop_after_any_one_line_changes_nothing() {
    for (name, messages) in logs() {
        let whole: BTreeMap<u64, LoggedEvent> =
            events(&messages).into_iter().map(|event| (event.seq.unwrap(), event)).collect();
        for stop in 0..=messages.len() {
            let again = events_with_stops(&messages, &[stop]);
            assert_eq!(again, whole, "{name} stopped after {stop} lines");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]

    #[test]
    fn stops_anywhere_change_nothing(
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 1..12),
    ) {
        for (name, messages) in logs() {
            let whole: BTreeMap<u64, LoggedEvent> =
                events(&messages).into_iter().map(|event| (event.seq.unwrap(), event)).collect();
            let mut stops: Vec<usize> =
                cuts.iter().map(|cut| cut.index(messages.len() + 1)).collect();
            stops.sort_unstable();
            prop_assert_eq!(
                events_with_stops(&messages, &stops), whole, "{} stopped after {:?}", name, stops
            );
        }
    }
}
