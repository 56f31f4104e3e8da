//! The kernel-log source on the real kernel. Root only: other users see that it was skipped.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

use std::fs::{self, File, OpenOptions};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::{ClockId, clock_gettime};
use umawarden::model::{KernelRecord, Moment, Observation, SYSLOG_SEQ_BASE};
use umawarden::sources::kernel_log::{
    KernelLogReader, KernelLogSource, ReadClock, ReadEnd, ResumeFrom,
};

const DEV_KMSG: &str = "/dev/kmsg";
const PRINTK_DEVKMSG: &str = "/proc/sys/kernel/printk_devkmsg";

/// One test at a time writes to the kernel log: others would displace its records from the ring.
static KERNEL_LOG: Mutex<()> = Mutex::new(());

/// Exclusive use of the kernel log, without a rate limit for user space; restored when dropped.
/// Other test processes are locked out too: the first one to end would restore the limit, and the
/// kernel would then silently drop the records of the others.
pub struct Flooding {
    limit_before: String,
    _alone: MutexGuard<'static, ()>,
    _alone_on_this_machine: File,
}

impl Flooding {
    /// `None`, with a message that gives the reason, where this process lacks permission.
    pub fn allowed() -> Option<Self> {
        let alone = KERNEL_LOG.lock().unwrap_or_else(PoisonError::into_inner);
        match Self::begin(alone) {
            Ok(flooding) => Some(flooding),
            Err(error) => {
                eprintln!("skipped: needs root and a writable {PRINTK_DEVKMSG}: {error}");
                None
            }
        }
    }

    fn begin(alone: MutexGuard<'static, ()>) -> std::io::Result<Self> {
        let lock = File::open(PRINTK_DEVKMSG)?;
        lock.lock()?;
        let limit_before = fs::read_to_string(PRINTK_DEVKMSG)?;
        fs::write(PRINTK_DEVKMSG, "on\n")?;
        Ok(Self { limit_before, _alone: alone, _alone_on_this_machine: lock })
    }
}

impl Drop for Flooding {
    fn drop(&mut self) {
        let _ = fs::write(PRINTK_DEVKMSG, &self.limit_before);
    }
}

fn read_clock() -> ReadClock {
    let since_boot = |clock| {
        let time = clock_gettime(clock);
        Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap())
    };
    ReadClock {
        at: Moment { uptime: since_boot(ClockId::Boottime), utc: Timestamp::now() },
        monotonic: since_boot(ClockId::Monotonic),
    }
}

fn drain(source: &mut KernelLogSource, out: &mut Vec<Observation>) {
    while source.read(read_clock(), out, 500) == ReadEnd::More {}
}

fn drained(path: &str, resume: Option<ResumeFrom>) -> (KernelLogSource, Vec<Observation>) {
    let mut source = KernelLogSource::open(Path::new(path), resume);
    let mut out = Vec::new();
    drain(&mut source, &mut out);
    (source, out)
}

fn writer() -> File {
    OpenOptions::new().write(true).open(DEV_KMSG).unwrap()
}

/// One write is one record, so it must not be split.
fn say(writer: &mut File, line: &str) {
    assert_eq!(rustix::io::write(&*writer, line.as_bytes()).unwrap(), line.len());
}

fn records(seen: &[Observation]) -> Vec<&KernelRecord> {
    seen.iter()
        .filter_map(|observation| match observation {
            Observation::KernelRecord(record) => Some(record),
            _ => None,
        })
        .collect()
}

fn lost(seen: &[Observation]) -> u64 {
    seen.iter()
        .map(|observation| match observation {
            Observation::KernelRecordsLost(lost) => *lost,
            _ => 0,
        })
        .sum()
}

fn mark(what: &str) -> String {
    format!("umawarden-test-{what}-{}-{}", std::process::id(), Timestamp::now().as_nanosecond())
}

#[test]
fn a_live_record_wakes_the_poller_and_is_read_as_written() {
    let Some(_flooding) = Flooding::allowed() else { return };
    let (mut source, _) = drained(DEV_KMSG, None);
    assert_eq!((source.reader(), source.reason()), (KernelLogReader::Kmsg, None));
    assert!(source.drained_once());
    let mark = mark("live");
    say(&mut writer(), &format!("<10>{mark} a\u{7}b\n"));
    let timeout = Timespec { tv_sec: 10, tv_nsec: 0 };
    let fd = source.poll_fd().unwrap();
    assert_eq!(poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&timeout)), Ok(1));
    let before = Timestamp::now();
    let mut seen = Vec::new();
    drain(&mut source, &mut seen);
    let found = records(&seen).into_iter().find(|record| record.text.contains(&mark)).unwrap();
    assert_eq!((found.facility, found.level), (1, 2));
    assert_eq!(found.text, format!("{mark} a\\x07b"));
    assert!(found.utc >= before);
}

#[test]
fn records_read_and_lost_add_up_to_the_records_written_in_a_flood() {
    const WRITTEN: u64 = 20_000;
    let Some(_flooding) = Flooding::allowed() else { return };
    let (mut source, _) = drained(DEV_KMSG, None);
    let mark = mark("flood");
    let mut writer = writer();
    // The first and the last record are certain to be read, and the records between are numbered.
    say(&mut writer, &format!("<14>{mark} first\n"));
    let mut seen = Vec::new();
    drain(&mut source, &mut seen);
    for number in 0..WRITTEN {
        say(&mut writer, &format!("<14>{mark} {number} {:x<60}\n", ""));
        if number % 6000 == 5999 {
            source.read(read_clock(), &mut seen, 700);
        }
    }
    say(&mut writer, &format!("<14>{mark} last\n"));
    drain(&mut source, &mut seen);
    let bounds: Vec<u64> = records(&seen)
        .iter()
        .filter(|record| {
            record.text.strip_prefix(&mark).is_some_and(|rest| rest == " first" || rest == " last")
        })
        .map(|record| record.seq)
        .collect();
    let [first, last] = bounds[..] else { panic!("{bounds:?}") };
    let between = records(&seen).iter().filter(|r| (first + 1..last).contains(&r.seq)).count();
    let ours = records(&seen)
        .iter()
        .filter(|record| record.text.starts_with(&mark) && (first + 1..last).contains(&record.seq))
        .count();
    // The kernel may have logged records of its own meanwhile; it numbers those too.
    let numbered = last - first - 1;
    assert!(numbered >= WRITTEN, "only {numbered} records were let in: who set {PRINTK_DEVKMSG}?");
    assert_eq!(between as u64 + lost(&seen), numbered);
    assert!((between - ours) as u64 <= numbered - WRITTEN);
    assert!(lost(&seen) > 0, "the ring held everything: the flood tested nothing");
    let numbers: Vec<u64> = records(&seen)
        .iter()
        .filter_map(|r| r.text.strip_prefix(&mark)?.split_whitespace().next()?.parse().ok())
        .collect();
    assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "a record was seen twice");
}

/// Two runs over 50 records of our own, the second from where the first one ended: the numbers that
/// each has read. `None` where processes outside the lock overran the ring meanwhile.
fn two_runs() -> Option<[Vec<u32>; 2]> {
    let mark = mark("restart");
    let number = |record: &KernelRecord| record.text.strip_prefix(&mark)?.trim().parse().ok();
    let mut writer = writer();
    (0..50).for_each(|number| say(&mut writer, &format!("<14>{mark} {number}\n")));
    let mut source = KernelLogSource::open(Path::new(DEV_KMSG), None);
    let mut first = Vec::new();
    while records(&first).last().is_none_or(|record| number(record) != Some(20)) {
        if source.read(read_clock(), &mut first, 1) == ReadEnd::Drained {
            return None;
        }
    }
    let seq = records(&first).last()?.seq + 1;
    drop(source);
    let (_, second) = drained(DEV_KMSG, Some(ResumeFrom { seq }));
    if lost(&first) + lost(&second) > 0 {
        return None;
    }
    Some([first, second].map(|seen| records(&seen).into_iter().filter_map(number).collect()))
}

#[test]
fn a_restart_reads_each_record_once() {
    let Some(_flooding) = Flooding::allowed() else { return };
    let seen = (0..10).find_map(|_| two_runs()).expect("a ring that ten times did not overrun");
    assert_eq!(seen[0], (0..=20).collect::<Vec<_>>());
    assert_eq!(seen[1], (21..50).collect::<Vec<_>>());
}

#[test]
fn old_records_get_the_time_at_which_they_were_written() {
    let Some(_flooding) = Flooding::allowed() else { return };
    let mark = mark("old");
    say(&mut writer(), &format!("<14>{mark}\n"));
    let written = Timestamp::now();
    let (_, seen) = drained(DEV_KMSG, None);
    let found = records(&seen).into_iter().find(|record| record.text == mark).unwrap();
    // The two clocks drift apart by less than this in months.
    assert!(found.utc.duration_since(written).abs().as_secs() < 600, "{}", found.utc);
    assert!(records(&seen).iter().all(|record| record.utc <= Timestamp::now()));
}

#[test]
fn the_syslog_ring_is_read_where_dev_kmsg_is_missing() {
    let Some(_flooding) = Flooding::allowed() else { return };
    let path = "/nonexistent/kmsg";
    let mark = mark("syslog");
    let mut writer = writer();
    (0..3).for_each(|number| say(&mut writer, &format!("<30>{mark} {number}\n")));
    assert_eq!(KernelLogSource::open(Path::new(path), None).reader(), KernelLogReader::None);
    let mut source = KernelLogSource::open_or_syslog(Path::new(path), None);
    assert_eq!(source.reader(), KernelLogReader::Syslog);
    let reason = source.reason().unwrap().to_string();
    assert!(reason.contains(path) && reason.contains("syslog(2)"), "{reason}");
    let mut seen = Vec::new();
    while !source.drained_once() {
        source.read(read_clock(), &mut seen, 500);
        std::thread::yield_now();
    }
    let ours: Vec<&KernelRecord> =
        records(&seen).into_iter().filter(|record| record.text.starts_with(&mark)).collect();
    assert_eq!(ours.len(), 3);
    assert!(ours.iter().all(|record| (record.facility, record.level) == (3, 6)));
    assert!(ours.windows(2).all(|pair| pair[0].seq < pair[1].seq));
    assert!(ours[0].seq >= SYSLOG_SEQ_BASE);
    // A restart continues behind the last handled record with either reader.
    let resume = Some(ResumeFrom { seq: ours[1].seq + 1 });
    let (_, by_kmsg) = drained(DEV_KMSG, resume);
    let ours_by_kmsg: Vec<&KernelRecord> =
        records(&by_kmsg).into_iter().filter(|record| record.text.starts_with(&mark)).collect();
    let [third] = ours_by_kmsg[..] else { panic!("{ours_by_kmsg:?}") };
    assert_eq!((&third.text, third.usec), (&ours[2].text, ours[2].usec));
}
