//! `umawarden loads`, and what else reads the receipts of loads.

use std::path::Path;
use std::process::Output;
use std::sync::Arc;
use std::time::Duration;

use assert_cmd::Command;
use jiff::Timestamp;
use serde_json::Value;
use umawarden::journal::{Journal, JournalEntry, Retention};
use umawarden::model::{
    EngineKind, Event, LoadConfiguration, LoadEnd, LoadReceipt, ProgramEvent, Release, ReleaseEnd,
    ReleaseMemory, WhyUnknown,
};

const GIB: u64 = 1 << 30;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_795_219_200 + seconds).unwrap()
}

/// A load of `took` GiB, with the arguments of a server that was started by Python.
pub fn load(engine: &str, seconds: i64, took: u64, arguments: &str, kernel: &str) -> Event {
    let words = format!("/usr/bin/python3 /usr/bin/{arguments}");
    let configuration = LoadConfiguration {
        engine_kind: EngineKind::Vllm,
        image: None,
        model: Some("qwen".into()),
        kernel: Some(kernel.into()),
        driver: Some("580.142".into()),
        arguments: Some(words.replace(' ', "\n").into()),
    };
    let receipt = LoadReceipt {
        end: LoadEnd::Ready,
        started: at(seconds),
        fingerprint: configuration.fingerprint(engine),
        configuration,
        ready_after_seconds: Some(61.4),
        ready_bytes: Some(took * GIB),
        peak_bytes: Some((took + 1) * GIB),
        growth_bytes: Some(12 * GIB),
        lowest_free_bytes: Some(9 * GIB),
        lowest_available_bytes: Some(9 * GIB),
        stalls: Some(17),
        read_bytes: Some(60 * GIB),
        evicted_bytes: None,
        prefetched_bytes: None,
        prefetch_unused_bytes: None,
        reading: None,
        why_unknown: None,
    };
    event(engine, 4711, receipt)
}

fn event(engine: &str, pid: u32, receipt: LoadReceipt) -> Event {
    let utc = Some(receipt.started + Duration::from_secs(121));
    let kind =
        ProgramEvent::EngineLoad { engine: engine.to_owned(), pid, receipt: Box::new(receipt) };
    Event { kind: kind.into(), utc, seq: None }
}

fn unknown(engine: &str, seconds: i64) -> Event {
    let configuration = LoadConfiguration::default();
    let receipt = LoadReceipt {
        end: LoadEnd::Interrupted,
        started: at(seconds),
        fingerprint: configuration.fingerprint(engine),
        configuration,
        ready_after_seconds: None,
        ready_bytes: None,
        peak_bytes: None,
        growth_bytes: None,
        lowest_free_bytes: None,
        lowest_available_bytes: None,
        stalls: None,
        read_bytes: None,
        evicted_bytes: None,
        prefetched_bytes: None,
        prefetch_unused_bytes: None,
        reading: None,
        why_unknown: Some(WhyUnknown::OtherEngines),
    };
    event(engine, 815, receipt)
}

fn release(engine: &str, seconds: i64) -> Event {
    let memory = ReleaseMemory { unaccounted: Some(GIB), shmem: Some(0), ..Default::default() };
    let release = Release {
        end: ReleaseEnd::Returned,
        seconds: 3.25,
        owned: memory,
        outstanding: memory,
        orphans: Vec::new(),
        curve: Vec::new(),
        why_unknown: None,
    };
    let (engine, release) = (engine.to_owned(), Box::new(release));
    let kind = ProgramEvent::EngineRelease { engine, pid: 4711, release };
    Event { kind: kind.into(), utc: Some(at(seconds)), seq: None }
}

pub fn write(dir: &Path, events: Vec<Event>) {
    let retention = Retention { max_age: Duration::from_secs(40_000 * 86_400), max_bytes: 1 << 30 };
    let journal = Journal::open(dir, retention);
    journal.record(&JournalEntry::KernelLog { boot_id: Arc::from("b"), events, resume_seq: 1 });
    journal.close(Duration::from_secs(10)).unwrap();
}

fn loads(dir: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::cargo_bin("umawarden").unwrap();
    command.arg("loads").args(arguments).arg("--storage.path").arg(dir);
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

const SERVE: &str = "vllm serve qwen --api-key [hidden]";

#[test]
fn loads_are_listed_newest_first_with_their_releases() {
    let dir = tempfile::tempdir().unwrap();
    write(
        dir.path(),
        vec![
            load("qwen", 0, 80, SERVE, "6.17"),
            release("qwen", 300),
            load("qwen", 400, 84, SERVE, "6.18"),
            unknown("a\u{1b}[2Jb", 600),
        ],
    );
    let output = loads(dir.path(), &[]);
    let table = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 4, "{table}");
    assert!(lines[0].starts_with("NUMBER  TIME (UTC)"), "{table}");
    assert!(lines[1].contains("a\\u{1b}[2Jb") && lines[1].contains("interrupted"), "{table}");
    assert!(lines[2].contains(" 84.0 GiB  85.0 GiB  12.0 GiB      9.0 GiB      17  60.0 GiB"));
    assert!(!lines[2].contains("returned"), "it still runs: {table}");
    assert!(lines[3].contains("2026-11-21 00:00:00  qwen"), "{table}");
    assert!(lines[3].contains("1m1s") && lines[3].contains("returned 3.2s"), "{table}");
    assert!(!table.contains('\u{1b}'), "no terminal is driven");
    let one = text(&loads(dir.path(), &["qwen", "--limit=1"]).stdout);
    assert_eq!(one.lines().count(), 2, "{one}");
    let json = text(&loads(dir.path(), &["--json", "--limit", "0"]).stdout);
    let rows: Vec<Value> = json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows[0]["why_unknown"], "other_engines");
    assert_eq!((&rows[0]["ready_bytes"], &rows[0]["need_bytes"]), (&Value::Null, &Value::Null));
    assert_eq!(rows[1]["need_bytes"], 96 * GIB);
    assert_eq!(rows[2]["release"]["seconds"], 3.25);
}

#[test]
fn two_loads_are_compared_and_what_was_changed_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let other = "vllm serve qwen --max-model-len 8192 --api-key [hidden]";
    write(
        dir.path(),
        vec![load("qwen", 0, 80, SERVE, "6.17"), load("qwen", 400, 84, other, "6.18")],
    );
    let output = loads(dir.path(), &["--compare", "1", "qwen"]);
    let compared = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    for expected in [
        "took                               80.0 GiB               84.0 GiB  +4.0 GiB",
        "stalls                                   17                     17  +0",
        "  kernel: 6.17 → 6.18\n",
        "  arguments: (none) → --max-model-len 8192\n",
    ] {
        assert!(compared.contains(expected), "{expected:?}\n{compared}");
    }
    let json = text(&loads(dir.path(), &["--compare", "2", "1", "--json"]).stdout);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["changed"][0]["what"], "kernel");
    assert_eq!(json["a"]["fingerprint"].as_str().unwrap().len(), 16);
    let fingerprint = &json["a"]["fingerprint"].as_str().unwrap()[..6];
    let same = text(&loads(dir.path(), &["--compare", fingerprint, "2"]).stdout);
    assert!(same.contains("Both were started with the same configuration."), "{same}");
}

#[test]
fn mistakes_are_named_and_an_empty_journal_is_none() {
    let dir = tempfile::tempdir().unwrap();
    let none = loads(dir.path(), &[]);
    assert_eq!(none.status.code(), Some(2), "there is no journal");
    write(dir.path(), vec![release("qwen", 3)]);
    let empty = loads(dir.path(), &["qwen"]);
    assert_eq!((empty.status.code(), empty.stdout.len()), (Some(0), 0));
    let said = text(&empty.stderr);
    assert!(said.contains("has no load of qwen yet: one is recorded a minute after"), "{said}");
    write(dir.path(), vec![load("qwen", 0, 80, SERVE, "6.17")]);
    for arguments in [
        &["--compare", "1"][..],
        &["--compare", "qwen", "nobody"],
        &["--compare", "qwen", "fff"],
        &["--compare", "qwen", "99999999999999999999"],
        &["qwen", "--compare", "1", "1"],
        &["--limit=-1"],
    ] {
        assert_eq!(loads(dir.path(), arguments).status.code(), Some(2), "{arguments:?}");
    }
    let unknown = text(&loads(dir.path(), &["--compare", "qwen", "no\u{1b}body"]).stderr);
    assert!(unknown.contains("no load is no\\u{1b}body: give its number"), "{unknown}");
}
