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

/// Forms of a log whose lines show the kernel, with the message in the place of `%`.
const FORMS: &[&str] = &[
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
    "[   12.345678] %\0",
    "2026-11-25T09:00:00Z %",
    "2026-11-25T09:00:00.123Z\t%",
    "2026-11-25T09:00:00Z <3>%",
    "Nov 25 09:00:00 %",
    "Nov 25 09:00:00 h %",
    "2026-11-25T09:00:00Z 3,1234,12345678,-;%",
    "2026-11-25T09:00:00Z {\"_TRANSPORT\": \"kernel\", \"MESSAGE\": \"%\"}",
    "2026-11-25T09:00:00Z {job=\"kern\", unit=\"\"} %",
    "2026-11-25T09:00:00.1Z stdout F %",
    "2026-11-25T09:00:00.1Z stdout F Nov 25 09:00:00 h kernel: %",
    "2026-11-25T09:00:00.1Z stdout F 3,1234,12345678,-;%",
    "2026-11-25T09:00:00.1Z stdout F {\"_TRANSPORT\": \"kernel\", \"MESSAGE\": \"%\"}",
    "2026-11-25T09:00:00.1Z stdout P [   12\n2026-11-25T09:00:00.1Z stdout F .345678] %",
    "<3>1 2026-11-25T09:00:00.1+00:00 h kernel - - - [   12.345678] %",
    "<3>1 2026-11-25T09:00:00.1+00:00 h kernel - - - \u{feff}%",
    "<3>1 2026-11-25T09:00:00Z h kernel - - [a@1 b=\"c]\"][d@2 e=\"\\\"]\"] %",
    "312 <3>1 2026-11-25T09:00:00Z h kernel - - - %",
    "1 2026-11-25T09:00:00Z h kernel - - - %",
    "{\"stream\": \"stdout\", \"message\": \"[   12.345678] %\"}",
    "{\"stream\": \"stdout\", \"log\": \"3,1234,12345678,-;%\"}",
    "{\"facility\": \"kern\", \"msg\": \"%\", \"talos-time\": \"2026-11-25T09:00:00Z\"}",
    "{\"jsonPayload\": {\"MESSAGE\": \"%\", \"_TRANSPORT\": \"kernel\"}}",
    "{\"textPayload\": \"[   12.345678] %\", \"timestamp\": \"2026-11-25T09:00:00Z\"}",
    "{\"version\": \"1.1\", \"short_message\": \"%\", \"_facility\": \"kern\"}",
    "{\"Facility\": \"kern\", \"SyslogMessage\": \"%\", \"ProcessName\": \"kernel\"}",
    "{\"_msg\": \"%\", \"SYSLOG_IDENTIFIER\": \"kernel\", \"_stream\": \"{}\"}",
    "{\"_index\": \"a\", \"_source\": {\"message\": \"Nov 25 09:00:00 h kernel: %\"}}",
    "{\"result\": {\"_raw\": \"Nov 25 09:00:00 h kernel: %\"}}",
    "{\"PROGRAM\": \"kernel\", \"MESSAGE\": \"%\", \"FACILITY\": \"kern\"}",
    "[0] tail.0: [[1790506800.1, {}], {\"log\": \"Nov 25 09:00:00 h kernel: %\"}]",
    "[\"[  12.345678] %\"]",
    "{\"message\": \"{\\\"MESSAGE\\\": \\\"%\\\"}\", \"service\": \"kernel\", \"timestamp\": 1790506800000}",
    "2026-11-25 09:00:00.000000000 +0000 kern.log: {\"message\":\"Nov 25 09:00:00 h kernel: %\"}",
    "2026-11-25 09:00:00.000000000 +0000 kern.log: {\"message\":\"[   12.345678] %\"}",
    "2026-11-25T09:00:00.123000+00:00 i-0123456789abcdef0 Nov 25 09:00:00 h kernel: %",
    "2026-11-25T09:00:00.123000+00:00 kern/h [   12.345678] %",
    "2026-11-25T09:00:00.123456Z 00O [   12.345678] %",
    "09:00:00 kernel: %",
    " 9:00:00 AM kernel: %",
    "Nov 25  9:00:00 PM kernel: %",
    "12) [   12.345678] %",
    "{\n  \"events\": [\n    {\n      \"message\": \"Nov 25 09:00:00 h kernel: %\"\n    }\n  ]\n}",
];

#[test]
fn both_faults_are_found_in_every_form_that_shows_the_kernel() {
    for form in FORMS {
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
        ("[pod/kmsg-abc/kmsg] 2026-11-25T09:00:00Z %", Some("kmsg-abc/kmsg")),
        ("kmsg-abc kmsg [Wed Nov 25 09:00:00 2026] %", Some("kmsg-abc kmsg")),
        ("kmsg-abc kmsg Nov 25 09:00:00 h kernel: %", Some("kmsg-abc kmsg")),
        ("node17 Nov 25 09:00:00 h kernel: %", Some("node17")),
        ("node17\t[   12.345678] %", Some("node17")),
        (" 0: [   12.345678] %", Some("0")),
        ("[1,0]<stdout>:[   12.345678] %", Some("1,0")),
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
        "{\n  \"text\": \"%\",\n  \"tags\": [\n    {\n      \"a\": 1\n    }\n  ]\n}",
        "kmsg-abc kmsg %",
        "2026-11-25T09:00:00Z ERROR %",
        "2026-11-25T09:00:00Z {job=\"kern\", unit=\"a.service\"} %",
        "<3>1 2026-11-25T09:00:00Z h kernel 7 - - %",
        "{\"PROGRAM\": \"app\", \"MESSAGE\": \"%\", \"PID\": \"7\"}",
    ] {
        let (code, events, error) = read(&log(form));
        assert_eq!((code, &*events), (Some(2), &[][..]), "{form}: {error}");
        for words in ["2 lines hold", "line 1, `Out of memory: Killed process 4242", "`dmesg`"] {
            assert!(error.contains(words), "{form}: {error}");
        }
    }
}

#[test]
fn lines_that_a_terminal_of_80_columns_has_wrapped_are_read() {
    let log = log("[   12.345678] %");
    let wrap = |line: &str| {
        let parts = line.as_bytes().chunks(80).map(|part| str::from_utf8(part).unwrap());
        parts.collect::<Vec<&str>>().join("\n")
    };
    let wrapped: Vec<String> = log.lines().map(wrap).collect();
    let (code, events, error) = read(&wrapped.join("\n"));
    let kinds: Vec<&str> = events.iter().map(|(kind, _)| &**kind).collect();
    assert_eq!((code, &*kinds, &*error), (Some(1), &["oom_kill", "xid"][..], ""));
}

#[test]
fn lines_may_be_broken_at_any_column_and_separated_by_other_bytes() {
    let log = format!("[    1.000001] x\n{}", log("[   12.345678] %"));
    let broken = |width: usize| {
        let lines = log.lines().flat_map(|line| line.as_bytes().chunks(width));
        lines.map(|part| str::from_utf8(part).unwrap()).collect::<Vec<&str>>().join("\n")
    };
    for log in [broken(40), broken(52), log.replace('\n', "\r"), log.replace('\n', "\0")] {
        let (code, events, error) = read(&log);
        let kinds: Vec<&str> = events.iter().map(|(kind, _)| &**kind).collect();
        assert_eq!((code, &*kinds, &*error), (Some(1), &["oom_kill", "xid"][..], ""), "{log:?}");
    }
}

#[test]
fn what_two_collectors_may_have_written_is_named() {
    let one = format!("Nov 25 09:00:00 h kernel: {XID}\n");
    let two = format!("{one}2026-11-25T09:00:00.123Z h kernel: {XID}\n");
    let year = "Nov 25 2026 09:00:00";
    let (code, events, error) = read(&two.replace("Nov 25 09:00:00", year));
    assert_eq!((code, events.len()), (Some(1), 2));
    assert!(error.contains("1 event may be counted twice"), "{error}");
    for log in [
        format!("{one}{}", one.replace("00:00 h", "00:01 h")),
        format!("{one}{}", one.replace(" h ", " g ")),
        format!("{one}{}", one.replace("Ch 00000008", "Ch 00000009")),
        format!("[Wed Nov 25 09:00:00 2026] {XID}\n").repeat(2),
    ] {
        let (_, events, error) = read(&log);
        assert_eq!((events.len(), &*error), (2, ""), "{log}");
    }
}

#[test]
fn a_document_on_one_line_gives_all_its_lines() {
    let lines = |form: &str| [KILL, XID].map(|message| form.replace('%', message)).join(", ");
    let values = lines("[\"1790506800000000000\", \"%\"]");
    let stream = format!("{{\"stream\": {{\"transport\": \"kernel\"}}, \"values\": [{values}]}}");
    for log in [
        format!("[{}]", lines("\"[   12.345678] %\"")),
        format!("{{\"data\": {{\"resultType\": \"streams\", \"result\": [{stream}]}}}}"),
        stream,
    ] {
        let (code, events, error) = read(&log);
        let kinds: Vec<&str> = events.iter().map(|(kind, _)| &**kind).collect();
        assert_eq!((code, &*kinds, &*error), (Some(1), &["oom_kill", "xid"][..], ""), "{log}");
    }
}

#[test]
fn a_fault_far_behind_the_begin_of_a_line_is_noticed() {
    let (code, events, error) =
        read(&format!("{{\"a\": \"{}\", \"b\": \"{KILL}\"}}\n", "x".repeat(90_000)));
    assert_eq!((code, &*events), (Some(2), &[][..]), "{error}");
    assert!(error.contains("line 1, `Out of memory: Killed process 4242"), "{error}");
}

/// A program can write such a line to the syslog, beside those that name their programs.
#[test]
fn an_untagged_line_of_a_syslog_with_programs_is_no_event() {
    let log = format!("Nov 25 09:00:00 h app[7]: x\nNov 25 09:00:00 h {KILL}\n");
    let (code, events, error) = read(&log);
    assert_eq!((code, &*events), (Some(2), &[][..]), "{error}");
    assert!(error.contains("1 line holds"), "{error}");
    assert!(error.contains("line 2, `Out of memory: Killed process 4242"), "{error}");
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
fn known_words_in_an_unknown_form_are_not_blamed_on_their_wording() {
    for line in [
        format!("\"2026-11-25T09:00:00Z\",\"h\",\"kernel\",\"{KILL}\""),
        format!("I1125 09:00:00.123456       1 log_monitor.go:159] New status generated: {XID}"),
        format!("E1125 09:00:00.123456    1 watcher.go:1] {KILL}"),
        format!("Warning  OOMKilling  3m56s  kernel-monitor  {KILL}"),
    ] {
        let (code, _, error) = read(&format!("{line}\n"));
        assert_eq!(code, Some(2), "{line}");
        assert!(error.contains("its form is not known"), "{line}: {error}");
    }
    let (_, _, error) = read("[   12.3] NVRM: GPU 0000:01:00.0: Failed to allocate memory\n");
    assert!(error.contains("its wording is not known"), "{error}");
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
    for form in [
        "Nov 25 09:00:00 node% kernel: KILL",
        "Nov 25 09:00:00 node% KILL",
        "<3>1 2026-11-25T09:00:00.1Z node% kernel - - - [   12.345678] KILL",
        "2026-11-25T09:00:00Z {hostname=\"node%\", transport=\"kernel\"} KILL",
        "{\"host\": \"node%\", \"message\": \"[   12.345678] KILL\"}",
    ] {
        let hosts = (0..10).map(|host| format!("{form}\n").replace('%', &host.to_string()));
        let hosts: String = hosts.map(|line| line.replace("KILL", KILL)).collect();
        assert_eq!(read(&hosts).1.len(), 10, "{form}");
    }
    let twice = format!("node1: {stamp} {KILL}\nnode1: {stamp} {KILL}\n");
    assert_eq!(read(&twice).1.len(), 1, "one kill of one node");
}
