//! `umawarden replay`, and the daemon that recorded.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use umawarden::recording::{RecordingEntry, RecordingRing, segment_files};
use umawarden::replayer::{Excerpt, replay as states};

use super::{RULES, begin, falling_memory, file, lived};
use crate::daemon::{Daemon, binary, history, of_kind};

fn replay(arguments: &[&str], file: &Path) -> Output {
    Command::new(binary()).arg("replay").args(arguments).arg(file).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Records entries into segments of a ring of so many bytes.
fn segments(folder: &Path, bytes: u64, entries: &[RecordingEntry]) -> Vec<PathBuf> {
    let mut ring = RecordingRing::new(folder, bytes, begin());
    for (number, entry) in entries.iter().enumerate() {
        ring.take(entry).unwrap();
        if number.is_multiple_of(7) {
            ring.flush().unwrap();
        }
    }
    ring.flush().unwrap();
    segment_files(folder)
}

#[test]
fn a_recording_of_many_segments_is_compared_from_the_process_start() {
    let folder = tempfile::tempdir().unwrap();
    let (entries, steps) = lived(falling_memory(3000));
    let files = segments(folder.path(), 1 << 20, &entries);
    assert!(files.len() > 1, "{files:?}");
    let decisions: usize = steps.iter().map(|step| step.decisions.len()).sum();
    let output = replay(&["--diff"], folder.path());
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains(&format!("All {decisions} recorded decisions came again")), "{text}");
    assert!(text.contains("does not react"), "{text}");

    // Without its start the state of the rules is unknown, and that is reported.
    fs::remove_file(&files[0]).unwrap();
    let output = replay(&["--diff"], folder.path());
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("warm-up") && text.contains("Not compared"), "{text}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("nothing could be compared"));
}

/// The times of the visited states, and the remarks.
fn visited(files: &[PathBuf], excerpt: Excerpt) -> (Vec<Timestamp>, Vec<String>) {
    let mut times = Vec::new();
    let remarks = states(files, &excerpt, &mut |status| {
        times.push(status.at.utc);
        true
    });
    (times, remarks)
}

#[test]
fn states_over_time_are_of_the_requested_times_and_skip_what_is_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let (entries, _) = lived(falling_memory(3000));
    let files = segments(folder.path(), 1 << 19, &entries);
    assert!(files.len() > 2, "{files:?}");
    let interval = Duration::from_secs(5);
    let (all, remarks) = visited(&files, Excerpt { from: None, until: None, interval });
    assert_eq!(remarks, Vec::<String>::new());
    let gaps = all.windows(2).map(|pair| pair[1].duration_since(pair[0]));
    assert!(gaps.skip(10).all(|gap| gap >= SignedDuration::from_secs(5)), "{all:?}");
    let (begin, end) = (all[0], all[all.len() - 1]);
    let middle = begin + end.duration_since(begin) / 2;
    let (part, _) = visited(&files, Excerpt { from: Some(middle), until: None, interval });
    assert!(part[0] >= middle && *part.last().unwrap() >= end - SignedDuration::from_secs(5));
    let (part, _) = visited(&files, Excerpt { from: None, until: Some(middle), interval });
    assert!(part[0] == begin && *part.last().unwrap() <= middle);
    let mut count = 0;
    let excerpt = Excerpt { from: None, until: None, interval };
    states(&files, &excerpt, &mut |_| {
        count += 1;
        count < 3
    });
    assert_eq!(count, 3, "it ends when nothing more is wanted");
    let damaged = &files[1];
    let bytes = fs::read(damaged).unwrap();
    fs::write(damaged, &bytes[..bytes.len() / 2]).unwrap();
    fs::write(&files[2], "no recording").unwrap();
    let (left, remarks) = visited(&files, excerpt);
    assert!(!left.is_empty() && left.len() < all.len(), "{} of {}", left.len(), all.len());
    assert_eq!(remarks.len(), 2, "{remarks:?}");
    assert!(remarks.iter().any(|remark| remark.contains("cut at byte")), "{remarks:?}");
}

#[test]
fn other_rules_are_compared_with_the_recorded_ones() {
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("a.umarec");
    let (entries, _) = lived(falling_memory(200));
    fs::write(&recording, file(&entries, 10)).unwrap();
    let same = folder.path().join("same.yaml");
    fs::write(&same, RULES).unwrap();
    let output = replay(&["--diff", "--rules", same.to_str().unwrap()], &recording);
    assert_eq!(output.status.code(), Some(0), "{}", stdout(&output));
    let other = folder.path().join("other.yaml");
    fs::write(&other, RULES.replace("< 50", "< 20")).unwrap();
    let output = replay(&["--diff", "--json", "--rules", other.to_str().unwrap()], &recording);
    assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
    let lines: Vec<serde_json::Value> =
        stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let sides: BTreeSet<&str> =
        of_kind(&lines, "difference").map(|line| line["side"].as_str().unwrap()).collect();
    assert!(sides.contains("recorded rules"), "{lines:?}");
    let summary = lines.last().unwrap();
    assert_eq!(summary["kind"], "summary");
    // One that has changed is on both sides of its time, and counts once.
    let mut by_time: BTreeMap<&str, [u64; 2]> = BTreeMap::new();
    for line in of_kind(&lines, "difference") {
        let counts = by_time.entry(line["time"].as_str().unwrap()).or_default();
        counts[usize::from(line["side"] == "recorded rules")] += 1;
    }
    let changed: u64 = by_time.values().map(|[now, before]| *now.max(before)).sum();
    assert_eq!(summary["differences"], changed);
}

#[test]
fn a_kernel_log_is_replayed_at_its_own_times() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/kernel");
    let output = replay(&["--json"], &root.join("oom-global-driver.log"));
    assert_eq!(output.status.code(), Some(0));
    let lines: Vec<serde_json::Value> =
        stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let found = |kind: &str| of_kind(&lines, kind).count();
    assert_eq!((found("oom_kill"), found("oom_unreapable")), (1, 1), "{lines:#?}");
    let decision = of_kind(&lines, "decision").next().unwrap();
    assert_eq!(decision["rule"]["alert"], "OomKillWithoutRelief");
    assert_eq!(decision["time"], "1970-01-01T00:01:42.000Z");
    // A log has no decisions to compare with.
    let output = replay(&["--diff"], &root.join("oom-global-driver.log"));
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn odd_times_and_bytes_in_a_log_are_tolerated() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("odd.log");
    let xid = "NVRM: Xid (PCI:000f:01:00): 31, pid=1, name=x, y";
    let mut text =
        format!("[99999999999999999.9] {xid}\n[    1.0] {xid}\n[    0.5] {xid}\n").into_bytes();
    text.extend(b"\xff\xfe\x00 [x] <999999>\n\n6,18446744073709551615,18446744073709551615,-;");
    text.extend(format!("{xid}\n[184467440737095516.1] {xid}\n{xid}\n").into_bytes());
    fs::write(&log, text).unwrap();
    let output = replay(&["--json"], &log);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let lines: Vec<serde_json::Value> =
        stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(of_kind(&lines, "xid").count() >= 4, "{lines:#?}");
}

#[test]
fn mistakes_in_given_rules_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("a.umarec");
    fs::write(&recording, file(&lived(falling_memory(20)).0, 10)).unwrap();
    let rules = folder.path().join("bad.yaml");
    fs::write(&rules, RULES.replace("for: 200ms", "for: soon")).unwrap();
    let output = replay(&["--rules", rules.to_str().unwrap()], &recording);
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains("bad.yaml:7:10"), "{error}");
}

#[test]
fn a_file_that_is_no_recording_is_refused_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes, reason) in [
        ("empty", &b""[..], "it is empty"),
        ("newer", b"umarec\x09\x00", "use a newer umawarden"),
        ("start", b"umarec\x01\x00", "nothing to replay"),
        ("packed", b"\x1f\x8b\x08", "zcat"),
        ("packed-xz", b"\xfd7zXZ\0", "xzcat"),
    ] {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        let output = replay(&[], &path);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{name}: {error}");
        assert!(error.contains(reason), "{name}: {error}");
    }
    let output = replay(&[], folder.path());
    assert!(String::from_utf8_lossy(&output.stderr).contains("has no recording"));
}

/// A node of files: procfs of a GB10, and a pipe for its kernel log.
fn node(folder: &Path) -> (PathBuf, PathBuf) {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/proc/gb10-4k");
    let copied = Command::new("cp").arg("-r").arg(from).arg(folder.join("node")).status().unwrap();
    assert!(copied.success());
    let kmsg = folder.join("kmsg");
    rustix::fs::mkfifoat(rustix::fs::CWD, &kmsg, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)
        .unwrap();
    (folder.join("node"), kmsg)
}

#[test]
fn a_daemons_recording_gives_the_decisions_of_its_journal() {
    let folder = tempfile::tempdir().unwrap();
    let storage = folder.path().join("storage");
    let (node, kmsg) = node(folder.path());
    let rules = folder.path().join("rules.yaml");
    let text = RULES.replace("< 50", "< 1e9").replace("> 70", "> 2e9");
    fs::write(&rules, &text).unwrap();
    let (procfs, sysfs) = (node.join("proc"), node.join("sys"));
    let daemon = Daemon::start(
        &storage,
        &[
            "--path.procfs",
            procfs.to_str().unwrap(),
            "--path.sysfs",
            sysfs.to_str().unwrap(),
            "--path.kmsg",
            kmsg.to_str().unwrap(),
            "--rules",
            rules.to_str().unwrap(),
        ],
    );
    // Records before the first step are those that the log had at the first start, and are no news.
    daemon.wait_until("the first step is done", |daemon| {
        daemon.metrics().contains_key("uma_memory_free_bytes")
    });
    let mut pipe = fs::OpenOptions::new().write(true).open(&kmsg).unwrap();
    pipe.write_all(b"3,9,5,-;NVRM: Xid (PCI:000f:01:00): 31, pid=1, name=x, y\n").unwrap();
    daemon.wait_until("the Xid is decided upon", |_| {
        of_kind(&history(&storage), "decision").any(|d| d["rule"]["alert"] == "Xid")
    });
    let meminfo = fs::read_to_string(procfs.join("meminfo")).unwrap();
    let low: String = meminfo
        .lines()
        .map(|line| if line.starts_with("MemFree:") { "MemFree: 1000 kB" } else { line })
        .map(|line| format!("{line}\n"))
        .collect();
    fs::write(procfs.join("meminfo"), low).unwrap();
    daemon.wait_until("low memory is decided upon", |_| {
        of_kind(&history(&storage), "decision").any(|d| d["rule"]["alert"] == "Low")
    });
    fs::write(&rules, format!("{text}\n# another text\n")).unwrap();
    assert_eq!(daemon.post("/-/reload").0, 200);
    daemon.terminate();

    let output = replay(&["--json"], &storage);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let lines: Vec<serde_json::Value> =
        stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let decisions = |lines: &[serde_json::Value]| {
        let mut found: Vec<serde_json::Value> = of_kind(lines, "decision").cloned().collect();
        found.iter_mut().for_each(|found| {
            found.as_object_mut().unwrap().remove("time");
        });
        found.sort_by_key(|decision| decision["id"].as_u64());
        found
    };
    let journalled = decisions(&history(&storage));
    assert!(journalled.len() >= 2, "{journalled:#?}");
    assert_eq!(decisions(&lines), journalled);
    let output = replay(&["--diff"], &storage.join("recording"));
    assert_eq!(output.status.code(), Some(0), "{}", stdout(&output));
    let incidents = segment_files(&storage.join("incidents"));
    assert!(!incidents.is_empty());
    for incident in incidents {
        assert_eq!(replay(&["--diff"], &incident).status.code(), Some(0), "{incident:?}");
    }
}

#[test]
fn a_truncated_recording_is_shown_to_its_end_and_exits_1() {
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("a.umarec");
    let bytes = file(&lived(falling_memory(200)).0, 10);
    fs::write(&recording, &bytes).unwrap();
    assert_eq!(replay(&[], &recording).status.code(), Some(0));
    fs::write(&recording, &bytes[..bytes.len() - 3]).unwrap();
    for arguments in [&[][..], &["--diff"], &["--json"]] {
        let output = replay(arguments, &recording);
        let text = stdout(&output);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {text}");
        if arguments == ["--json"] {
            let summary: serde_json::Value =
                serde_json::from_str(text.lines().last().unwrap()).unwrap();
            assert_eq!(summary["cut"], true);
        } else {
            assert!(text.contains("Part of the recording is damaged or missing"), "{text}");
        }
    }
}
