//! `kill -9` in the middle of a burst: each kernel event is counted exactly once.

use std::collections::BTreeMap;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::{LimitedCgroup, enabled};
use crate::daemon::{Daemon, history, of_kind};

const KILLS: u64 = 20;

#[test]
fn real_kernel_events_are_counted_once_each_over_kill_nine_in_a_burst() {
    if !enabled() {
        return;
    }
    let storage = tempfile::tempdir().unwrap();
    let cgroup = LimitedCgroup::new("kill", 30 << 20);
    // The cursor exists before the first burst.
    Daemon::start(storage.path(), &[]).terminate();
    let mut kernel = std::fs::OpenOptions::new()
        .read(true)
        .custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32)
        .open("/dev/kmsg")
        .unwrap();
    kernel.seek(SeekFrom::End(0)).unwrap();

    let bursting = Arc::new(AtomicBool::new(true));
    let burst = {
        let bursting = Arc::clone(&bursting);
        std::thread::spawn(move || {
            let mut pids = Vec::new();
            while bursting.load(Ordering::Relaxed) {
                pids.push(cgroup.oom_kill());
            }
            pids
        })
    };
    let mut truth = BTreeMap::new();
    for round in 0..KILLS {
        let daemon = Daemon::spawn(storage.path(), &[]);
        // At any point between the first record of the backlog and the middle of the live burst.
        std::thread::sleep(Duration::from_millis(round * 37 % 400));
        daemon.kill();
        note_kills(&mut kernel, &mut truth);
    }
    bursting.store(false, Ordering::Relaxed);
    let pids = burst.join().unwrap();
    note_kills(&mut kernel, &mut truth);
    assert_eq!(truth.len(), pids.len(), "the reader of the test itself missed kernel lines");

    let daemon = Daemon::start(storage.path(), &[]);
    let lost = daemon.metric("uma_kernel_log_lost_records_total");
    // A trace of which the kernel printed only the last line stays open for a while.
    let last = truth.keys().next_back().copied();
    let is_last_there = |_: &Daemon| {
        let history = history(storage.path());
        of_kind(&history, "oom_kill").any(|event| event["seq"].as_u64() == last)
    };
    daemon.wait_until("journalling the last", is_last_there);
    daemon.terminate();
    assert!(lost.abs() < f64::EPSILON, "{lost} records were lost: nothing to compare");
    let history = history(storage.path());
    let mut journalled = BTreeMap::new();
    for event in of_kind(&history, "oom_kill") {
        *journalled.entry(event["seq"].as_u64().unwrap()).or_insert(0) += 1;
    }
    println!("{} kernel events over {KILLS} kills", truth.len());
    for (seq, pid) in &truth {
        assert_eq!(journalled.get(seq), Some(&1), "seq {seq}, pid {pid}");
    }
    let first = truth.keys().next().unwrap();
    let more: Vec<_> =
        journalled.range(first..).filter(|(seq, _)| !truth.contains_key(seq)).collect();
    assert!(more.is_empty(), "events that the kernel never printed: {more:?}");
}

/// The `Killed process` lines since the last call, by sequence number.
fn note_kills(kernel: &mut std::fs::File, truth: &mut BTreeMap<u64, u32>) {
    let mut buffer = [0u8; 8192];
    while let Ok(length) = kernel.read(&mut buffer) {
        let record = String::from_utf8_lossy(&buffer[..length]).into_owned();
        let Some((header, text)) = record.split_once(';') else { continue };
        let Some((_, killed)) = text.split_once("Killed process ") else { continue };
        let seq = header.split(',').nth(1).unwrap().parse().unwrap();
        let pid = killed.split(' ').next().unwrap().parse().unwrap();
        truth.insert(seq, pid);
    }
}
