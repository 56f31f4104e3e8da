//! The forms in which people keep, print and paste kernel logs: each is read, or refused with the
//! reason. No fault is ever "nothing found" with exit code 0.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use assert_cmd::Command;

const KILL: &str = "Out of memory: Killed process 4242 (python3) total-vm:9000kB, \
                    anon-rss:8000kB, file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:10kB \
                    oom_score_adj:0";
const XID: &str = "NVRM: Xid (PCI:000f:01:00): 31, pid=4242, name=python3, Ch 00000008";

/// The kind of an event, and its origin.
type Found = (String, Option<String>);

/// Exit code, events, and standard error.
fn read(log: &str) -> (Option<i32>, Vec<Found>, String) {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("umawarden"));
    let command = command.args(["dmesg", "--json", "-"]).env("TZ", "UTC0");
    let output = command.write_stdin(log).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let events = text.lines().map(|line| serde_json::from_str(line).unwrap());
    let events = events.map(|event: serde_json::Value| {
        let kind = event["kind"].as_str().unwrap().to_owned();
        (kind, event["origin"].as_str().map(str::to_owned))
    });
    (output.status.code(), events.collect(), String::from_utf8(output.stderr).unwrap())
}

/// A log with the two messages in the place of `%`.
fn log(form: &str) -> String {
    [KILL, XID].map(|message| form.replace('%', message)).join("\n")
}

#[test]
fn both_faults_are_found_in_every_form_that_shows_the_kernel() {
    for form in [
        "%",
        "[   12.345678] %",
        "[   12.345678][ T1234] %",
        "[Wed Nov 25 09:00:00 2026] %",
        "[mer. nov. 25 09:00:00 2026] %",
        "[mer. 25 nov. 2026 09:00:00] %",
        "[Nov25 09:00] %",
        "2026-11-25T09:00:00,123456+00:00 %",
        "kern  :err   : [   12.345678] %",
        "kern  :warning: [Wed Nov 25 09:00:00 2026] %",
        "<3>[   12.345678] %",
        "<3>Nov 25 09:00:00 h kernel: %",
        "<3>1 2026-11-25T09:00:00.123456+00:00 h kernel - - - %",
        "3,1234,12345678,-;%",
        "6.17.0-1032-nvidia,3,1234,12345678,-;%",
        "Nov 25 09:00:00 h kernel: %",
        "Nov 25 09:00:00 h kernel: [   12.345678] %",
        "Nov 25 09:00:00 h kern.err kernel: [   12.345678] %",
        "Wed Nov 25 09:00:00 2026 kern.err kernel: [   12.345678] %",
        "2026-11-25 09:00:00 h kernel: [   12.345678] %",
        "2026-11-25 09:00:00.123456 kernel: %",
        "2026-11-25T09:00:00.123Z h kernel: %",
        "[   12.345678] h kernel: %",
        "kernel: %",
        "kernel: [   12.345678] %",
        "\nMessage from syslogd@h at Jun 17 13:06:42 ...\n kernel:[405108.698255] %",
        "2026-11-25T09:00:00.123456789+00:00 stdout F [   12.345678] %",
        "2026-11-25T09:00:00.000Z\tNov 25 09:00:00 ip-10-0-0-1 kernel: %",
        "2026-11-25T09:00:00Z {job=\"kern\"} Nov 25 09:00:00 h kernel: [  12.345678] %",
        "2026-11-25T09:00:00Z {job=\"journal\", transport=\"kernel\"} %",
        "{\"log\": \"[   12.345678] %\\n\", \"stream\": \"stdout\"}",
        "{\"_TRANSPORT\": \"kernel\", \"MESSAGE\": \"%\"}",
        "{\"__CURSOR\": \"s=1\", \"PRIORITY\": \"3\", \"MESSAGE\": \"%\"}",
        "{\"message\": \"%\", \"journald\": {\"transport\": \"kernel\"}}",
        "{\"file\": \"kern.log\", \"message\": \"Nov 25 09:00:00 h kernel: %\"}",
        "{\"priority\": 3, \"sequence\": 1806, \"sec\": 12, \"usec\": 345, \"msg\": \"%\"}",
        "[0] host.kernel: [1790506800.1, {\"_TRANSPORT\": \"kernel\", \"MESSAGE\": \"%\"}]",
        "        \"[  12.345678] %\",",
        "> [  12.345678] %",
        "- `[  12.345678] %`",
        "[2026-11-25 09:00:00] [   12.345678] %",
        "[-- MARK -- Wed Nov 25 09:00:00 2026]\n[   12.345678] %",
    ] {
        let (code, events, error) = read(&log(form));
        let kinds: Vec<&str> = events.iter().map(|(kind, _)| &**kind).collect();
        assert_eq!(kinds, ["oom_kill", "xid"], "{form}: {error}");
        assert_eq!((code, &*error), (Some(1), ""), "{form}");
    }
}

#[test]
fn a_prefix_of_a_tool_is_read_and_named() {
    for (form, origin) in [
        ("node17: [  12.345678] %", Some("node17")),
        ("node17: [Wed Nov 25 09:00:00 2026] %", Some("node17")),
        ("node17: Nov 25 09:00:00 node17 kernel: %", Some("node17")),
        ("10.0.0.1: kern:     err: [2026-04-22T21:25:20.505406921Z]: %", Some("10.0.0.1")),
        ("kern: warning: [2026-04-22T21:25:20.505406921Z]: %", None),
        ("mon-1  | [  12.345678] %", Some("mon-1")),
        ("[pod/kmsg-abc/kmsg] [  12.345678] %", Some("kmsg-abc/kmsg")),
        ("kmsg-abc kmsg [   12.345678] %", Some("kmsg-abc kmsg")),
        ("/var/log/kern.log:Nov 25 09:00:00 h kernel: [  12.345678] %", Some("/var/log/kern.log")),
        ("kern.log:123:Nov 25 09:00:00 h kernel: %", Some("kern.log")),
        ("123:[  12.345678] %", None),
        ("   123\t[  12.345678] %", None),
        ("    123 [  12.345678] %", None),
    ] {
        let (code, events, error) = read(&log(form));
        let expected = ["oom_kill", "xid"].map(|kind| (kind.to_owned(), origin.map(str::to_owned)));
        assert_eq!(events, expected, "{form}: {error}");
        assert_eq!((code, &*error), (Some(1), ""), "{form}");
    }
}

#[test]
fn what_does_not_show_the_kernel_is_refused_with_the_first_line() {
    for form in [
        "12,1234,12345678,-;%",
        "14,1234,12345678,-;%",
        "<14>Nov 25 09:00:00 h kernel: %",
        "Nov 25 09:00:00 h kernel[851]: [   12.345678] %",
        "Nov 25 09:00:00 h user.notice kernel: %",
        "Nov 25 09:00:00 h node-problem-detector[7]: I1125 New status generated: %",
        "I1125 09:00:00.123456       1 log_monitor.go:159] New status generated: %",
        "E1125 09:00:00.123456    1 watcher.go:1] %",
        "\"2026-11-25T09:00:00Z\",\"h\",\"kernel\",\"%\"",
        "Warning  OOMKilling  3m56s                   kernel-monitor  %",
        "{\"message\": \"%\", \"process\": {\"name\": \"app\", \"pid\": 7}}",
        "{\"level\": \"error\", \"msg\": \"%\"}",
    ] {
        let (code, events, error) = read(&log(form));
        assert_eq!((code, &*events), (Some(2), &[][..]), "{form}: {error}");
        for words in ["2 lines hold", "line 1, `Out of memory: Killed process 4242", "`dmesg`"] {
            assert!(error.contains(words), "{form}: {error}");
        }
    }
}

#[test]
fn unread_lines_beside_events_are_named_and_change_no_exit_code() {
    let log = format!("[   12.345678] {KILL}\n[   13.345678] proxy says {XID}\n");
    let (code, events, error) = read(&log);
    assert_eq!((code, events.len()), (Some(1), 1));
    assert!(error.contains("1 line holds"), "{error}");
    assert!(error.contains("line 2, `NVRM: Xid"), "{error}");
    // A copy of what was read is no other fault.
    let copied =
        format!("Nov 25 09:00:00 h kernel: {XID}\nNov 25 09:00:00 h npd[7]: it says {XID}\n");
    let (code, events, error) = read(&copied);
    assert_eq!((code, events.len(), &*error), (Some(1), 1, ""));
}

#[test]
fn the_begin_of_a_kill_alone_is_no_clean_log() {
    let begin =
        "[ 3449.257924] x invoked oom-killer: gfp_mask=0x100cca, order=0, oom_score_adj=0\n";
    let (code, _, error) = read(begin);
    assert_eq!(code, Some(2));
    assert!(error.contains("has not the end of this OOM kill"), "{error}");
    let (code, events, error) = read(&format!("{begin}[ 3450.257924] {KILL}\n"));
    assert_eq!((code, events.len(), &*error), (Some(1), 1, ""));
}

#[test]
fn the_same_process_may_be_killed_on_each_of_many_nodes() {
    let stamp = "[Wed Nov 25 09:00:00 2026]";
    for form in ["node%: STAMP", "10.0.0.%: kern: err: [2026-04-22T21:25:20.5Z]:"] {
        let lines = (0..300).map(|node| {
            let start = form.replace('%', &node.to_string()).replace("STAMP", stamp);
            format!("{start} {KILL}\n")
        });
        let few: String = lines.clone().take(10).collect();
        assert_eq!(read(&few).1.len(), 10, "{form}");
        let many: String = lines.collect();
        assert!(read(&many).1.len() >= 256, "{form}");
    }
    let hosts = (0..10).map(|host| format!("Nov 25 09:00:00 node{host} kernel: {KILL}\n"));
    assert_eq!(read(&hosts.collect::<String>()).1.len(), 10);
    let twice = format!("node1: {stamp} {KILL}\nnode1: {stamp} {KILL}\n");
    assert_eq!(read(&twice).1.len(), 1, "one kill of one node");
}
