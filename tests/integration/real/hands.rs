//! What user `nobody` tries, on the real kernel.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use jiff::Timestamp;
use umawarden::model::{KernelRecord, Moment, Observation};
use umawarden::sources::kernel_log::{KernelLogSource, ReadClock, ReadEnd, Reader};

use super::enabled;

/// What the log holds by now.
fn records(mut source: KernelLogSource) -> Vec<KernelRecord> {
    let mut seen = Vec::new();
    for _ in 0..200 {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let monotonic = Duration::from_secs(now.tv_sec.unsigned_abs());
        let at = Moment { uptime: monotonic, utc: Timestamp::now() };
        let end = source.read(ReadClock { at, monotonic }, &mut seen, 10_000);
        if end == ReadEnd::Drained && source.drained_once() {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let records = seen.into_iter().filter_map(|seen| match seen {
        Observation::KernelRecord(record) => Some(record),
        _ => None,
    });
    records.collect()
}

#[test]
fn real_line_that_nobody_has_forged_is_only_claimed() {
    if !enabled() {
        return;
    }
    let mark = format!("umawarden-{}", std::process::id());
    let forged = format!("NVRM: Xid (PCI:0000:01:00): 79 {mark}");
    let script = format!("mount -t tmpfs -o 'x\n{forged}' none /mnt");
    let mounted = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "unshare", "-Urm"])
        .args(["sh", "-c", &script])
        .output()
        .unwrap();
    assert!(!mounted.status.success(), "that is no option of tmpfs");
    let kmsg = records(KernelLogSource::open(Path::new("/dev/kmsg"), None));
    let begins = |record: &&KernelRecord| record.text.starts_with(&forged);
    if !kmsg.iter().any(|record| record.text.contains(&mark)) {
        return eprintln!("skipped: nobody has no user namespace here: {mounted:?}");
    }
    assert!(!kmsg.iter().any(|record| begins(&record)), "/dev/kmsg escapes the newline");
    assert!(kmsg.iter().all(|record| !record.is_claimed()));
    let source = KernelLogSource::open_or_syslog(Path::new("/nowhere/kmsg"), None);
    assert_eq!(source.reader(), Reader::Syslog);
    let reason = source.reason().unwrap().to_string();
    assert!(reason.contains("local users can forge lines"), "{reason}");
    let syslog = records(source);
    let line = syslog.iter().find(begins).expect("syslog(2) shows a line of its own");
    assert!(line.facility == 0 && line.is_claimed(), "{line:?}");
}
