//! A flood of the kernel log loses nothing uncounted.

use std::fs::OpenOptions;
use std::io::Write;

use super::{LimitedCgroup, enabled};
use crate::daemon::Daemon;
use crate::kernel_log_source::Flooding;

const RECORDS: u32 = 20_000;

#[test]
fn real_flood_of_20_000_records_is_seen_or_counted_as_lost() {
    if !enabled() {
        return;
    }
    let storage = tempfile::tempdir().unwrap();
    let cgroup = LimitedCgroup::new("flood", 30 << 20);
    let daemon = Daemon::start(storage.path(), &[]);
    let _flooding = Flooding::allowed().unwrap();
    let total = |daemon: &Daemon| {
        daemon.metric("uma_kernel_log_records_total")
            + daemon.metric("uma_kernel_log_lost_records_total")
    };
    let before = total(&daemon);
    let mut kmsg = OpenOptions::new().write(true).open("/dev/kmsg").unwrap();
    for number in 0..RECORDS {
        // Without the newline the kernel keeps the last record open for a continuation.
        kmsg.write_all(format!("<14>umawarden flood {number}\n").as_bytes()).unwrap();
    }
    daemon.wait_until("through the flood", |daemon| total(daemon) - before >= f64::from(RECORDS));
    println!("lost of {RECORDS}: {}", daemon.metric("uma_kernel_log_lost_records_total"));
    let kills = "uma_kernel_events_total{event=\"oom_kill\"}";
    let kills_before = daemon.metric(kills);
    let pid = cgroup.oom_kill();
    daemon.wait_until("counting the kill", |daemon| daemon.metric(kills) > kills_before);
    let pid = format!("\"pid\":{pid},");
    daemon.wait_until("serving the kill", |daemon| {
        daemon.get("/api/v1/events?kind=oom_kill").1.contains(&pid)
    });
    // Records of the kernel itself come on top of the written ones; no others do.
    let extra = total(&daemon) - before - f64::from(RECORDS);
    assert!((0.0..200.0).contains(&extra), "{extra} records too many");
}
