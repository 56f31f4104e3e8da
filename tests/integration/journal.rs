//! The journal of a killed process, on a full disk and on a read-only one.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed, and says where")]

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use umawarden::journal::{
    DecisionQuery, EventQuery, Journal, JournalEntry, JournalReader, Note, Order, Retention,
};
use umawarden::model::{Action, DecisionId, DecisionRecord, Event, KernelEvent, Moment, Reading};

const PATIENCE: Duration = Duration::from_secs(30);
const RETENTION: Retention =
    Retention { max_age: Duration::from_secs(30 * 86_400), max_bytes: 256 << 20 };
const BOOT: &str = "8b1a9953-c461-4129-9f2c-0d1b6f1b6c35";
const CHILD_DIRECTORY: &str = "UMAWARDEN_TEST_JOURNAL";

fn now() -> Moment {
    Moment { uptime: Duration::from_secs(1), utc: Timestamp::UNIX_EPOCH }
}

fn event(seq: u64) -> Event {
    Event { utc: Some(now().utc), seq: Some(seq), kind: KernelEvent::UvmFatal.into() }
}

fn decision(id: DecisionId) -> DecisionRecord {
    DecisionRecord { id, at: now(), ..crate::actions::decision(Action::CompactMemory) }
}

fn seqs(dir: &Path) -> Vec<u64> {
    let query = EventQuery { order: Order::OldestFirst, limit: 1_000_000, ..Default::default() };
    let page = JournalReader::open(dir).unwrap().events(&query).unwrap();
    page.rows.iter().filter_map(|row| row.event.seq).collect()
}

/// Not a test: the process that the next test starts and kills. It continues where the last one was
/// killed, reads some records again, and prints each entry that is on disk.
#[test]
fn child_that_writes_until_it_is_killed() {
    let Some(dir) = std::env::var_os(CHILD_DIRECTORY) else { return };
    let journal = Journal::open(Path::new(&dir), RETENTION);
    let resume = journal.resume_point(BOOT, PATIENCE).unwrap().unwrap_or_default();
    let first = journal.next_decision_id(now().utc, PATIENCE).0;
    for (seq, id) in (resume.resume_seq.saturating_sub(5)..).zip(first..) {
        let boot_id = Arc::from(BOOT);
        journal.record(&JournalEntry::KernelLog {
            boot_id,
            events: vec![event(seq)],
            resume_seq: seq + 1,
        });
        if seq % 7 == 0 {
            journal.intent(&decision(DecisionId(id)), PATIENCE).unwrap();
            println!("promised {seq} {id}");
        }
    }
}

#[test]
fn acknowledged_entries_survive_twenty_kills_and_none_is_stored_twice() {
    let dir = tempfile::tempdir().unwrap();
    let (mut last_seq, mut ids) = (0, Vec::new());
    for round in 0..20 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "journal::child_that_writes_until_it_is_killed", "--nocapture"])
            .env(CHILD_DIRECTORY, dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut promised = 0;
        while promised < 5 + round {
            let mut line = String::new();
            assert!(lines.read_line(&mut line).unwrap() > 0, "the child ended by itself");
            promised += usize::from(line.contains("promised"));
            note_promise(&line, &mut last_seq, &mut ids);
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let mut rest = String::new();
        lines.read_to_string(&mut rest).unwrap();
        // The kill may have cut the last line off.
        let whole = rest.rfind('\n').map_or("", |end| &rest[..end]);
        whole.lines().for_each(|line| note_promise(line, &mut last_seq, &mut ids));
    }
    let stored = seqs(dir.path());
    assert!(last_seq > 100 && stored.last() >= Some(&last_seq));
    assert_eq!(stored, Vec::from_iter(0..stored.len() as u64), "each once, none missing");
    let query = DecisionQuery { order: Order::OldestFirst, limit: 1_000_000, ..Default::default() };
    let page = JournalReader::open(dir.path()).unwrap().decisions(&query).unwrap();
    let known: Vec<u64> = page.rows.iter().map(|row| row.decision.id.0).collect();
    for id in &ids {
        assert!(known.contains(id), "decision {id} was promised and is lost");
    }
}

fn note_promise(line: &str, last_seq: &mut u64, ids: &mut Vec<u64>) {
    if let Some((_, promise)) = line.split_once("promised ") {
        let (seq, id) = promise.trim().split_once(' ').unwrap();
        *last_seq = seq.parse().unwrap();
        ids.push(id.parse().unwrap());
    }
}

/// A small disk that is unmounted when dropped.
struct Disk {
    dir: tempfile::TempDir,
}

impl Disk {
    /// `None`, with a message, where mounting is not permitted.
    fn mount(kib: u32) -> Option<Self> {
        let disk = Self { dir: tempfile::tempdir().unwrap() };
        let size = format!("size={kib}k");
        let mounted = mount(&["-t", "tmpfs", "-o", &size, "tmpfs"], disk.dir.path());
        if !mounted {
            eprintln!("skipped: no tmpfs can be mounted here (not root?)");
        }
        mounted.then_some(disk)
    }

    fn path(&self) -> PathBuf {
        self.dir.path().to_owned()
    }

    fn remount(&self, how: &str) {
        let options = format!("remount,{how}");
        // A process that another test forks holds all files of this one until it executes its
        // program.
        let done = (0..200).any(|_| {
            mount(&["-o", &options], self.dir.path()) || {
                std::thread::sleep(Duration::from_millis(10));
                false
            }
        });
        assert!(done, "cannot remount {how}");
    }
}

fn mount(arguments: &[&str], at: &Path) -> bool {
    let mut command = Command::new("mount");
    command.args(arguments).arg(at).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

impl Drop for Disk {
    fn drop(&mut self) {
        Command::new("umount")
            .arg("--lazy")
            .arg(self.dir.path())
            .stderr(Stdio::null())
            .status()
            .ok();
    }
}

fn is_up(journal: &Journal) -> bool {
    journal.readings().values[0] == Reading::Value(1.0)
}

#[test]
fn entries_wait_for_a_full_disk_and_are_written_once_it_has_space() {
    let Some(disk) = Disk::mount(1_024) else { return };
    let dir = disk.path().join("state");
    let journal = Journal::open(&dir, RETENTION);
    journal.intent(&decision(DecisionId(1)), PATIENCE).unwrap();
    let filler = disk.path().join("filler");
    let mut zeroes = std::io::repeat(0).take(1 << 20);
    std::io::copy(&mut zeroes, &mut std::fs::File::create(&filler).unwrap()).unwrap_err();

    // The file has some space left in itself, so the first write may still succeed.
    let mut recorded = 0;
    let mut last = DecisionId(1);
    let error = loop {
        let boot_id = Arc::from(BOOT);
        let events = vec![event(recorded)];
        recorded += 1;
        journal.record(&JournalEntry::KernelLog { boot_id, events, resume_seq: recorded });
        last = DecisionId(last.0 + 1);
        if let Err(error) = journal.intent(&decision(last), PATIENCE) {
            break error;
        }
        assert!(recorded < 10_000, "the disk never filled up");
    };
    assert!(error.to_string().contains("full"), "{error}");
    assert!(!is_up(&journal));
    assert!(journal.readings().error.is_some_and(|why| why.contains("full")));
    // The stored entries stay readable meanwhile, and no retry discards them.
    for more in 1..5 {
        let query = DecisionQuery { limit: 1, ..Default::default() };
        let newest = JournalReader::open(&dir).unwrap().decisions(&query).unwrap().rows;
        assert_eq!(newest[0].decision.id.0, last.0 - more);
        last = DecisionId(last.0 + 1);
        journal.intent(&decision(last), PATIENCE).unwrap_err();
    }

    std::fs::remove_file(&filler).unwrap();
    // A process that another test forks may hold the deleted file until it executes its program.
    let last = decision(DecisionId(last.0 + 1));
    let stored = (0..1_000).any(|_| match journal.intent(&last, PATIENCE) {
        Ok(()) => true,
        Err(error) => {
            assert!(error.to_string().contains("full"), "{error}");
            std::thread::sleep(Duration::from_millis(1));
            false
        }
    });
    assert!(stored, "the disk has space again");
    assert!(is_up(&journal));
    assert_eq!(journal.readings().values[2], Reading::Value(0.0), "nothing was dropped");
    journal.close(PATIENCE).unwrap();
    assert_eq!(seqs(&dir), Vec::from_iter(0..recorded));
    let query = DecisionQuery { order: Order::OldestFirst, limit: 100_000, ..Default::default() };
    let decisions = JournalReader::open(&dir).unwrap().decisions(&query).unwrap().rows;
    assert_eq!(decisions.len() as u64, last.id.0, "also those whose intent failed");
}

#[test]
fn a_read_only_disk_is_reported_and_its_journal_stays_readable() {
    let Some(disk) = Disk::mount(1_024) else { return };
    let dir = disk.path().join("state");
    let journal = Journal::open(&dir, RETENTION);
    journal.record(&JournalEntry::Note(Note { at: now(), text: "before".to_owned() }));
    journal.close(PATIENCE).unwrap();
    disk.remount("ro");
    let journal = Journal::open(&dir, RETENTION);
    let error = journal.intent(&decision(DecisionId(1)), PATIENCE).unwrap_err();
    assert!(error.to_string().contains("Read-only file system"), "{error}");
    assert!(!is_up(&journal));
    let reader = JournalReader::open(&dir).unwrap();
    assert_eq!(reader.notes(Order::OldestFirst, 9).unwrap().rows[0].note.text, "before");
    assert!(!reader.may_lack_newest());
    disk.remount("rw");
    journal.intent(&decision(DecisionId(2)), PATIENCE).unwrap();
    journal.close(PATIENCE).unwrap();
}

#[test]
fn a_journal_left_by_a_crash_can_be_read_on_a_read_only_disk() {
    let Some(disk) = Disk::mount(4_096) else { return };
    let dir = disk.path().join("state");
    let journal = Journal::open(&dir, RETENTION);
    journal.intent(&decision(DecisionId(7)), PATIENCE).unwrap();
    // State after a crash: the database and its log, copied while they are in use.
    let left = disk.path().join("left");
    std::fs::create_dir(&left).unwrap();
    for name in ["journal.sqlite3", "journal.sqlite3-wal", "journal.sqlite3-shm"] {
        std::fs::copy(dir.join(name), left.join(name)).unwrap();
    }
    journal.close(PATIENCE).unwrap();
    disk.remount("ro");
    let query = DecisionQuery { limit: 9, ..Default::default() };
    let page = JournalReader::open(&left).unwrap().decisions(&query).unwrap();
    assert_eq!(page.rows.len(), 1);
    disk.remount("rw");
    std::fs::remove_file(left.join("journal.sqlite3-shm")).unwrap();
    disk.remount("ro");
    assert!(JournalReader::open(&left).unwrap().may_lack_newest(), "the log cannot be read");
    disk.remount("rw");
}
