//! `umawarden history` from outside.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed, and says where")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use assert_cmd::Command;
use jiff::Timestamp;
use serde_json::Value;
use umawarden::journal::{Journal, JournalEntry, Note, Retention};
use umawarden::model::{
    Action, AimCheck, CacheKind, Decision, DecisionId, DecisionRecord, Event, Evidence, HoldReason,
    KernelEvent, Mode, Moment, OomConstraint, Outcome, OutcomeResult, ProgramEvent, Reading,
    ReceivedAlert, ReceivedStatus, ReceivedTurn, RuleId,
};

const PATIENCE: Duration = Duration::from_secs(30);
const RETENTION: Retention =
    Retention { max_age: Duration::from_secs(30 * 86_400), max_bytes: 256 << 20 };

fn at(second: i64) -> Moment {
    let utc = Timestamp::from_millisecond(1_795_219_200_000 + second * 1_000 + 123).unwrap();
    Moment { uptime: Duration::from_secs(second.unsigned_abs()), utc }
}

fn evidence(gib: f64) -> Vec<Evidence> {
    let value = Reading::Value(gib * f64::from(1 << 30));
    vec![Evidence { series: "uma_memory_free_bytes".to_owned(), value }]
}

fn oom_kill() -> Event {
    let kind = KernelEvent::OomKill {
        pid: 4242,
        comm: "VLLM::Eng\u{1b}[2J".to_owned(),
        constraint: Some(OomConstraint::Memcg),
        memcg: Some("/docker/abc".to_owned()),
        oom_memcg: None,
        trigger_comm: None,
        anon_rss_bytes: Some(3 << 29),
        driver: false,
        manual: false,
        container: None,
    };
    Event { utc: Some(at(1).utc), seq: Some(77), kind: kind.into() }
}

/// A kill, an act with its outcome, a hold, and a note.
fn fill(dir: &Path) -> Journal {
    let journal = Journal::open(dir, RETENTION);
    journal.record(&JournalEntry::Note(Note { at: at(0), text: "start".to_owned() }));
    let (boot_id, events) = (Arc::from("boot"), vec![oom_kill()]);
    journal.record(&JournalEntry::KernelLog { boot_id, events, resume_seq: 78 });
    let act = DecisionRecord {
        at: at(2),
        rule: RuleId { group: "memory".into(), alert: "PageCacheEatsReserve".into() },
        mode: Mode::Observe,
        because: evidence(1.2),
        ..crate::actions::decision(Action::DropCaches { what: CacheKind::PageCache, sync: false })
    };
    let decision = Decision::Hold(HoldReason::Cooldown);
    let hold = DecisionRecord { id: DecisionId(2), at: at(4), decision, ..act.clone() };
    journal.record(&JournalEntry::Decision(act));
    journal.record(&JournalEntry::Outcome(Outcome {
        decision: DecisionId(1),
        action: "drop_caches".to_owned(),
        result: OutcomeResult::Done,
        ended: at(3),
        took: Duration::from_micros(410_600),
        effect: None,
    }));
    journal.record(&JournalEntry::AimCheck(AimCheck {
        decision: DecisionId(1),
        at: at(3),
        aim_met: Some(true),
        has_aim: true,
        died_in: None,
        before: evidence(1.2),
        after: evidence(6.5),
    }));
    journal.record(&JournalEntry::Decision(hold));
    journal.next_decision_id(at(0).utc, PATIENCE);
    journal
}

fn history(dir: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::cargo_bin("umawarden").unwrap();
    command.env_remove("STATE_DIRECTORY").arg("history");
    command.arg("--storage.path").arg(dir).args(arguments);
    command
}

fn lines(dir: &Path, arguments: &[&str]) -> Vec<String> {
    let output = history(dir, arguments).assert().code(0).get_output().stdout.clone();
    String::from_utf8(output).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn the_table_is_in_order_of_time_while_a_daemon_writes() {
    let dir = tempfile::tempdir().unwrap();
    let journal = fill(dir.path());
    let expected = [
        "2026-11-21T00:00:00.123Z  note                start",
        "2026-11-21T00:00:01.123Z  oom_kill            killed 4242 (VLLM::Eng\\u{1b}[2J), 1536 \
         MiB anonymous, in /docker/abc",
        "2026-11-21T00:00:02.123Z  decision            #1 memory/PageCacheEatsReserve: would \
         drop_caches pagecache, as uma_memory_free_bytes = 1.2 GiB",
        "2026-11-21T00:00:03.123Z  outcome             #1 memory/PageCacheEatsReserve: \
         drop_caches done in 410ms; uma_memory_free_bytes 1.2 GiB → 6.5 GiB; aim met",
        "2026-11-21T00:00:04.123Z  decision            #2 memory/PageCacheEatsReserve: holds \
         drop_caches pagecache (cooldown), as uma_memory_free_bytes = 1.2 GiB",
    ];
    assert_eq!(lines(dir.path(), &[]), expected);
    journal.close(PATIENCE).unwrap();
    assert_eq!(lines(dir.path(), &[]), expected);
}

#[test]
fn a_received_alert_is_shown_with_its_sender() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path(), RETENTION);
    let alert = ReceivedAlert {
        fingerprint: "f1".into(),
        status: ReceivedStatus::Firing,
        starts_at: at(0).utc,
        ends_at: None,
        labels: [("alertname".into(), "NodeMemoryLow".into())].into(),
        by: Some("user \u{1b}alice (10.0.0.7)".into()),
    };
    let kind = ProgramEvent::ReceivedAlert { to: ReceivedTurn::Firing, alert: Arc::new(alert) };
    let events = vec![Event { utc: Some(at(1).utc), seq: None, kind: kind.into() }];
    journal.record(&JournalEntry::KernelLog { boot_id: Arc::from("boot"), events, resume_seq: 78 });
    journal.close(PATIENCE).unwrap();
    let expected = "2026-11-21T00:00:01.123Z  received_alert      NodeMemoryLow fires, began at \
                    2026-11-21T00:00:00.123Z; reported by user \\u{1b}alice (10.0.0.7)";
    assert_eq!(lines(dir.path(), &[]), [expected]);
}

#[test]
fn json_lines_show_events_as_dmesg_does_and_other_entries_by_kind() {
    let dir = tempfile::tempdir().unwrap();
    fill(dir.path()).close(PATIENCE).unwrap();
    let objects: Vec<Value> = lines(dir.path(), &["--json"])
        .iter()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let kinds: Vec<&str> = objects.iter().map(|object| object["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["note", "oom_kill", "decision", "outcome", "decision"]);
    assert!(objects.iter().all(|object| object["time"].is_string()));

    for (object, uptime) in objects.iter().zip([Some(0.0), None, Some(2.0), Some(3.0), Some(4.0)]) {
        let time = object["time"].as_str().unwrap();
        assert_eq!((time.len(), &time[19..20], &time[23..]), (24, ".", "Z"), "{time}");
        assert_eq!(object.get("uptime_seconds").and_then(Value::as_f64), uptime, "{object}");
    }
    assert_eq!(objects[3]["took_seconds"], 0.410_6);

    let mut event = objects[1].as_object().unwrap().clone();
    assert_eq!(event.remove("boot_id").unwrap(), "boot");
    assert_eq!(event.remove("time").unwrap(), "2026-11-21T00:00:01.123Z");
    assert_eq!(Value::Object(event), serde_json::to_value(oom_kill()).unwrap());

    assert_eq!(objects[2]["decision"], "act");
    assert_eq!(objects[2]["because"][0]["series"], "uma_memory_free_bytes");
    assert_eq!(objects[3]["rule"]["alert"], "PageCacheEatsReserve");
    assert_eq!(objects[3]["aim_check"]["aim_met"], true);
    assert_eq!(objects[4]["reason"], "cooldown");
}

#[test]
fn entries_are_selected_by_time_kind_rule_and_limit() {
    let dir = tempfile::tempdir().unwrap();
    fill(dir.path()).close(PATIENCE).unwrap();
    let count = |arguments: &[&str]| lines(dir.path(), arguments).len();
    assert_eq!(count(&["--kind", "oom_kill,note"]), 2);
    assert_eq!(count(&["--kind", "decision"]), 2);
    assert_eq!(count(&["--rule", "PageCacheEatsReserve"]), 3);
    assert_eq!(count(&["--rule", "Other"]), 0);
    assert_eq!(count(&["--since", "2026-11-21T00:00:02Z", "--until", "2026-11-21T00:00:04Z"]), 2);
    assert_eq!(lines(dir.path(), &["--limit", "1"]), lines(dir.path(), &[])[4..]);
    assert_eq!(count(&["--limit", "0"]), 5);
}

#[test]
fn a_missing_journal_exits_2_and_an_empty_one_0() {
    let dir = tempfile::tempdir().unwrap();
    let missing = history(dir.path(), &[]).assert().code(2);
    let text = String::from_utf8(missing.get_output().stderr.clone()).unwrap();
    assert!(text.contains("there is no journal at") && text.contains("--storage.path"), "{text}");
    Journal::open(dir.path(), RETENTION).close(PATIENCE).unwrap();
    let empty = history(dir.path(), &["--json"]).assert().code(0);
    assert!(empty.get_output().stdout.is_empty());
    let text = String::from_utf8(empty.get_output().stderr.clone()).unwrap();
    assert!(text.contains("holds nothing yet"), "{text}");
}

#[test]
fn an_unknown_rule_is_distinguished_from_one_without_decisions() {
    let dir = tempfile::tempdir().unwrap();
    fill(dir.path()).close(PATIENCE).unwrap();
    let complaint = |rule: &str, more: &[&str]| {
        let assert = history(dir.path(), &[&["--rule", rule], more].concat()).assert().code(0);
        String::from_utf8(assert.get_output().stderr.clone()).unwrap()
    };
    let slip = complaint("PageCacheEatReserve", &[]);
    assert!(slip.contains("did you mean \"PageCacheEatsReserve\"?"), "{slip}");
    let other = complaint("Other", &[]);
    assert!(other.contains("rules in it: memory/PageCacheEatsReserve"), "{other}");
    for rule in ["PageCacheEatsReserve", "memory/PageCacheEatsReserve"] {
        let quiet = complaint(rule, &["--until", "2001-01-01"]);
        assert!(quiet.contains("holds nothing that matches") && !quiet.contains("No rule"));
        assert_eq!(complaint(rule, &[]), "");
    }
}

#[test]
fn a_remedy_without_an_aim_misses_none() {
    let dir = tempfile::tempdir().unwrap();
    let journal = fill(dir.path());
    for (aim_met, has_aim) in [(Some(false), true), (Some(false), false), (Some(true), false)] {
        journal.record(&JournalEntry::AimCheck(AimCheck {
            decision: DecisionId(1),
            at: at(3),
            aim_met,
            has_aim,
            died_in: None,
            before: Vec::new(),
            after: Vec::new(),
        }));
        journal.next_decision_id(at(0).utc, PATIENCE);
        let line = &lines(dir.path(), &["--kind", "outcome"])[0];
        let expected = match (aim_met, has_aim) {
            (_, true) => "; aim missed",
            (Some(true), _) => "; the rule's condition has ended",
            _ => "; the rule's condition still holds",
        };
        assert!(line.ends_with(expected), "{line}");
    }
}

#[test]
fn an_unreadable_journal_is_reported_with_advice() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;

    if !rustix::process::geteuid().is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    fill(dir.path()).close(PATIENCE).unwrap();
    let program = dir.path().join("umawarden");
    std::fs::copy(assert_cmd::cargo::cargo_bin!("umawarden"), &program).unwrap();
    let storage = dir.path().join("storage");
    let set_mode = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    set_mode(dir.path(), 0o755);
    fill(&storage).close(PATIENCE).unwrap();
    assert_eq!(storage.metadata().unwrap().permissions().mode() & 0o777, 0o750);
    let mut command = std::process::Command::new(program);
    command.env_remove("STATE_DIRECTORY").args(["history", "--storage.path"]).arg(&storage);
    let output = command.uid(65_534).gid(65_534).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("Permission denied") && error.contains("sudo"), "{error}");
}

#[test]
fn bad_arguments_exit_2_and_list_the_valid_ones() {
    let dir = tempfile::tempdir().unwrap();
    for (arguments, hint) in [
        (["--since", "yesterday"], "2026-11-21"),
        (["--kind", "oom_kil"], "oom_kill"),
        (["--limit", "many"], "--limit"),
        (["--since", "1.5h"], "2026-11-21"),
        (["--seconds", "3"], "--last-boot"),
    ] {
        let output = history(dir.path(), &arguments).assert().code(2);
        let text = String::from_utf8(output.get_output().stderr.clone()).unwrap();
        assert!(text.contains(hint), "{text}");
    }
}

/// The variables of the daemon may be set for a whole session.
#[test]
fn the_journal_is_read_where_a_variable_names_procfs() {
    let dir = tempfile::tempdir().unwrap();
    fill(dir.path()).close(PATIENCE).unwrap();
    history(dir.path(), &[]).env("UMAWARDEN_PATH_PROCFS", "/proc").assert().code(0);
}

#[test]
fn times_are_accepted_as_by_every_command() {
    let dir = tempfile::tempdir().unwrap();
    fill(dir.path()).close(PATIENCE).unwrap();
    for time in ["2h", "-2h", "10:00", "1795219200", "2026-11-21", "2026-11-21T10:00:00Z"] {
        history(dir.path(), &["--since", time, "--until", time]).assert().code(0);
        let mut report = Command::cargo_bin("umawarden").unwrap();
        report.args(["rules", "report", "--since", time, "--storage.path"]).arg(dir.path());
        report.assert().code(0);
    }
}

#[test]
fn the_first_state_directory_of_systemd_is_the_default() {
    let dir = tempfile::tempdir().unwrap();
    fill(dir.path()).close(PATIENCE).unwrap();
    let mut command = Command::cargo_bin("umawarden").unwrap();
    let several = format!("{}:/nowhere", dir.path().display());
    let output = command.arg("history").env("STATE_DIRECTORY", several).assert().code(0);
    assert_eq!(output.get_output().stdout.iter().filter(|byte| **byte == b'\n').count(), 5);
}

#[test]
fn a_reader_that_closes_early_is_no_error() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path(), RETENTION);
    for second in 0..5_000 {
        journal.record(&JournalEntry::Note(Note { at: at(second), text: "x".repeat(100) }));
        if second % 1_000 == 0 {
            journal.next_decision_id(at(0).utc, PATIENCE);
        }
    }
    journal.close(PATIENCE).unwrap();
    let mut child = std::process::Command::new(assert_cmd::cargo::cargo_bin!("umawarden"))
        .args(["history", "--limit", "0", "--storage.path"])
        .arg(dir.path())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}
