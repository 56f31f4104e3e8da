//! Behaviour of the thread and of the loop's handle, without a disk or with a hanging one.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use super::*;
use crate::config::flags::RunFlags;
use crate::config::settings::{Environment, FileSettings};
use crate::journal::black_box::{AlignedPage, BlackBoxRing, Disk, PreviousBoot, ShortText, Slot};
use crate::model::{EventKind, KernelEvent, Mode, OomConstraint, ProgramEvent, RuleId, Source};
use crate::policy::Policy;
use crate::policy::rule::RuleSet;
use crate::policy::status::{RuleState, RuleStatus};

fn settings(storage: &std::path::Path) -> Settings {
    let flags = RunFlags {
        storage_path: Some(storage.to_owned()),
        procfs: Some(storage.to_owned()),
        ..RunFlags::default()
    };
    Settings::merge(&flags, FileSettings::default(), storage, &Environment::default())
}

fn status(at: Moment) -> Status {
    Policy::new(at, Mode::Observe, &RuleSet::default(), crate::model::DecisionId(1)).status(at)
}

/// A disk that accepts a page when allowed.
struct Slow {
    writes: Sender<AlignedPage>,
    allowed: Receiver<std::io::Result<()>>,
}

impl Disk for Slow {
    fn put(&mut self, _offset: u64, page: &AlignedPage) -> std::io::Result<()> {
        self.writes.send(page.clone()).unwrap();
        self.allowed.recv().unwrap()
    }
}

/// A writer on a thread of its own that makes this many records.
struct Bench {
    shared: Arc<BlackBoxShared>,
    writes: Receiver<AlignedPage>,
    allow: Sender<std::io::Result<()>>,
    thread: JoinHandle<()>,
    _folder: tempfile::TempDir,
}

fn bench(records: usize) -> Bench {
    let folder = tempfile::tempdir().unwrap();
    let status = Arc::new(ArcSwap::from_pointee(status(clock::now())));
    let shared = Arc::new(BlackBoxShared::new(status, clock::monotonic(), false));
    let boot_id = BootId::new("boot");
    let mut writer = Writer::new(&settings(folder.path()), boot_id, 8, Arc::clone(&shared));
    let ((writes, pages), (allow, allowed)) = (channel(), channel());
    let page = Box::new(AlignedPage([0; 4096]));
    let mut ring = BlackBoxRing::on(Slow { writes, allowed }, 8, 0, page);
    let thread = std::thread::spawn(move || {
        for _ in 0..records {
            writer.second(&mut ring, false);
        }
    });
    Bench { shared, writes: pages, allow, thread, _folder: folder }
}

fn record(page: &AlignedPage, index: usize) -> BlackBoxRecord {
    match BlackBoxRecord::decode(&page.0.as_chunks().0[index]) {
        Slot::Whole(record) => record,
        other => panic!("{other:?}"),
    }
}

fn oom_kill(pid: u32) -> Event {
    let kind = KernelEvent::OomKill {
        pid,
        comm: "VLLM::EngineCor".to_owned(),
        constraint: Some(OomConstraint::None),
        memcg: None,
        oom_memcg: None,
        trigger_comm: None,
        anon_rss_bytes: None,
        driver: true,
        manual: false,
        container: None,
    };
    Event { kind: kind.into(), utc: None, seq: Some(u64::from(pid)) }
}

#[test]
fn a_hanging_disk_blocks_only_its_thread_and_then_the_newest_status_counts() {
    let Bench { shared, writes, allow, thread, _folder } = bench(2);
    writes.recv().unwrap();
    // It hangs from here on; the loop goes on as if nothing were.
    let (end, ended) = channel();
    let mut black_box = BlackBox {
        shared: Some(Arc::clone(&shared)),
        thread: None,
        ended,
        reporting: Reporting::Waiting,
    };
    let mut seen = Vec::new();
    for pid in 1..=1_000 {
        let mut latest = status(clock::now());
        latest.at = Moment { uptime: Duration::from_secs(u64::from(pid)), ..latest.at };
        shared.status.store(Arc::new(latest));
        black_box.note(&[oom_kill(pid)]);
        black_box.observe(clock::now(), &mut seen);
        seen.clear();
    }
    let later = clock::monotonic() + Duration::from_secs(37);
    let error = shared.readings(later, None).error.expect("an error");
    assert!(error.starts_with("the disk has not taken a record for "), "{error}");
    black_box.end();
    black_box.close(Duration::from_millis(1));
    drop(end);

    allow.send(Ok(())).unwrap();
    let page = writes.recv().unwrap();
    let second = record(&page, 1);
    let last = second.last_event.unwrap();
    assert_eq!((last.seq, last.kind.as_str()), (Some(1_000), "oom_kill"));
    assert_eq!(last.detail.as_str(), "killed 1000 (VLLM::EngineCor), through the NVIDIA driver");
    let uptime = second.at.uptime.saturating_sub(Duration::from_secs(1_000));
    let age = second.loop_age.unwrap();
    assert!(age.abs_diff(uptime) < Duration::from_millis(2), "{age:?}, not {uptime:?}");
    allow.send(Ok(())).unwrap();
    thread.join().unwrap();
    assert_eq!(shared.readings(clock::monotonic(), None).error, None);
}

#[test]
fn an_unwritten_record_is_written_with_the_next_one() {
    let Bench { shared, writes, allow, thread, _folder } = bench(2);
    writes.recv().unwrap();
    allow.send(Err(std::io::Error::from_raw_os_error(28))).unwrap();
    let page = writes.recv().unwrap();
    let readings = shared.readings(clock::monotonic(), None);
    assert!(readings.error.as_deref().is_some_and(|why| why.contains("No space")), "{readings:?}");
    assert_eq!((record(&page, 0).sequence, record(&page, 1).sequence), (0, 1));
    allow.send(Ok(())).unwrap();
    thread.join().unwrap();
    let readings = shared.readings(clock::monotonic(), None);
    assert_eq!(readings.error, None);
    let value = |name: &str| {
        let position = readings.schema.series.iter().position(|key| *key.name == *name).unwrap();
        readings.values[position]
    };
    assert_eq!(value("uma_black_box_write_errors_total"), Reading::Value(1.0));
    assert_eq!(value("uma_black_box_records_total"), Reading::Value(1.0));
}

#[test]
fn every_record_has_the_rules_and_values_of_the_loop_and_its_own() {
    let Bench { shared, writes, allow, thread, _folder } = bench(2);
    writes.recv().unwrap();
    let now = clock::now();
    let mut latest = status(now);
    let key = crate::model::SeriesKey::new("uma_memory_reserve_bytes", &[]);
    (latest.series, latest.values) = (Arc::new([key]), vec![Reading::Value(7.0)]);
    let rule = |alert: &str, state| RuleStatus {
        rule: RuleId { group: "g".into(), alert: alert.into() },
        file: String::new(),
        overridden: None,
        is_idle: false,
        interval: Duration::ZERO,
        expr: "".into(),
        hold_for: Duration::ZERO,
        keep_firing_for: Duration::ZERO,
        labels: Vec::new(),
        annotations: Vec::new(),
        mode: Mode::Observe,
        state,
        unknown: Vec::new(),
        alerts: Vec::new(),
        remedy: None,
    };
    latest.rules = Arc::new([
        rule("A", RuleState::Firing),
        rule("B", RuleState::Inactive),
        rule("C", RuleState::Firing),
        rule("D", RuleState::Unknown),
    ]);
    shared.status.store(Arc::new(latest));
    // The folder replaces /proc.
    std::fs::write(_folder.path().join("meminfo"), "MemTotal: 9 kB\nMemFree: 5 kB\n").unwrap();
    allow.send(Ok(())).unwrap();
    let second = record(&writes.recv().unwrap(), 1);
    assert_eq!(second.get(Signal::Reserve), Reading::Value(7.0));
    assert_eq!(second.get(Signal::LowWatermark), Reading::Unsupported);
    assert_eq!((second.rules.firing, second.rules.pending, second.rules.unknown), (2, 0, 1));
    assert_eq!(second.firing, ShortText::new("A C"));
    allow.send(Ok(())).unwrap();
    thread.join().unwrap();
}

fn last_boot(end: EndOfBoot, reported: bool) -> LastBoot {
    let mut last = BlackBoxRecord::new(BootId::new("before"), clock::now());
    last.set(Signal::Free, Reading::Value(1e9));
    last.firing = ShortText::new("A C");
    let previous = PreviousBoot { boot_id: BootId::new("before"), end, gap_ms: Some(90_000) };
    LastBoot { previous, unclean_boots: 3, last: Some(last), reported, path: None }
}

/// Second by second: whether an event is reported, and the counter.
type Reports = Vec<(bool, Option<f64>)>;

/// Also the event, and whether it is marked as reported.
fn reports_of(last_boot: Option<LastBoot>) -> (Reports, Option<Event>, bool) {
    let status = Arc::new(ArcSwap::from_pointee(status(clock::now())));
    let shared = Arc::new(BlackBoxShared::new(status, clock::monotonic(), false));
    let mut black_box = BlackBox {
        shared: Some(Arc::clone(&shared)),
        thread: None,
        ended: channel().1,
        reporting: Reporting::Waiting,
    };
    let (mut reports, mut event) = (Vec::new(), None);
    for second in 0..5 {
        if second == 1 {
            shared.last_boot.set(last_boot.clone()).unwrap();
        }
        let mut seen = Vec::new();
        black_box.observe(clock::now(), &mut seen);
        let mut has_event = false;
        let mut counter = None;
        for observation in seen {
            match observation {
                Observation::Event(found) => (event, has_event) = (Some(found), true),
                Observation::Readings(readings) => {
                    assert_eq!(readings.source, Source::BlackBox);
                    let at = readings.schema.series.iter();
                    let at = at.clone().position(|key| &*key.name == "uma_unclean_boots_total");
                    counter = readings.values[at.unwrap()].value();
                }
                other => panic!("{other:?}"),
            }
        }
        reports.push((has_event, counter));
    }
    (reports, event, shared.is_reported())
}

#[test]
fn an_unclean_boot_is_reported_once_and_counted() {
    let (reports, event, marked) = reports_of(Some(last_boot(EndOfBoot::Unclean, false)));
    let counts = [(false, None), (false, Some(2.0)), (true, Some(3.0)), (false, Some(3.0))];
    assert_eq!(reports[..4], counts);
    assert!(marked);
    let Some(Event {
        kind: EventKind::Program(ProgramEvent::UncleanBoot { memory_free_bytes, firing, .. }),
        ..
    }) = event
    else {
        panic!("{event:?}")
    };
    assert_eq!((memory_free_bytes, firing), (Some(1e9), vec!["A".to_owned(), "C".to_owned()]));

    let reported_before = reports_of(Some(last_boot(EndOfBoot::Unclean, true)));
    assert_eq!(reported_before.0[1..3], [(false, Some(3.0)), (false, Some(3.0))]);
    for end in [EndOfBoot::Clean, EndOfBoot::Unknown] {
        let (reports, event, marked) = reports_of(Some(last_boot(end, false)));
        assert_eq!((reports[1], event, marked), ((false, Some(3.0)), None, true));
    }
    assert_eq!(reports_of(None).0[1], (false, Some(0.0)), "a first boot");
}

#[test]
fn nothing_is_reported_before_the_first_read_unless_the_disk_fails() {
    let status = Arc::new(ArcSwap::from_pointee(status(clock::now())));
    let shared = Arc::new(BlackBoxShared::new(status, clock::monotonic(), false));
    let (_end, ended) = channel();
    let mut black_box = BlackBox {
        shared: Some(Arc::clone(&shared)),
        thread: None,
        ended,
        reporting: Reporting::Waiting,
    };
    let mut seen = Vec::new();
    black_box.observe(clock::now(), &mut seen);
    assert!(seen.is_empty(), "a rule would be unknown for a moment: {seen:?}");
    shared.fail("no such disk".to_owned());
    black_box.observe(clock::now(), &mut seen);
    assert_eq!(seen.len(), 1, "trouble is reported at once");
    let other = BlackBoxShared::new(Arc::clone(&shared.status), clock::monotonic(), false);
    assert!(other.last_boot.set(None).is_ok());
    black_box.shared = Some(Arc::new(other));
    black_box.observe(clock::now(), &mut seen);
    assert_eq!(seen.len(), 2, "it is known that nothing is known");
}
