//! `umawarden dmesg` over logs with known contents.
//!
//! The expected output for `tests/fixtures/kernel/NAME.log` is in `NAME.json`.
//! `UPDATE_GOLDEN=1 cargo test dmesg` writes it anew; read the difference before you commit it.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use assert_cmd::Command;

fn fixtures() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/kernel");
    let mut logs: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "log"))
        .collect();
    logs.sort();
    assert!(logs.len() > 20, "fixtures are missing");
    logs
}

fn dmesg() -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("umawarden"));
    command.arg("dmesg").env("TZ", "UTC0");
    command
}

/// The log as a file with the modification time `written`, from which its year is taken.
fn dated(log: &[u8], written: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(log).unwrap();
    let written: jiff::Timestamp = written.parse().unwrap();
    file.as_file().set_modified(written.into()).unwrap();
    file
}

fn objects(command: &mut Command) -> Vec<serde_json::Value> {
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Logs with lines that hold the kernel's words and must give no event, and their number.
const UNREAD: [(&str, &str); 15] = [
    ("facilities.log", "4"),
    ("forwarded.log", "14"),
    ("jetson.log", "1"),
    ("journal-json-forms.log", "1"),
    ("journal-monotonic-without-host.log", "1"),
    ("journal-monotonic.log", "1"),
    ("journal.log", "6"),
    ("nvrm-wordings.log", "2"),
    ("oom-interleaved-callers.log", "1"),
    ("quoted-in-a-mail.log", "1"),
    ("quoted.log", "9"),
    ("several-nodes.log", "2"),
    ("talos.log", "2"),
    ("userspace-killers.log", "2"),
    ("xid.log", "1"),
];

fn json_of(log: &Path) -> String {
    let copy = dated(&fs::read(log).unwrap(), "2026-11-21T12:00:00Z");
    let output = dmesg().arg("--json").arg(copy.path()).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    let name = log.file_name().unwrap().to_string_lossy();
    let unread = UNREAD.iter().find(|(unread, _)| *unread == name).map(|(_, count)| *count);
    let said = error.split(": ").nth(2).and_then(|text| text.split(' ').next());
    assert_eq!(said, unread, "{name}: {error}");
    let code = match (output.stdout.is_empty(), unread) {
        (false, _) => 1,
        (true, Some(_)) => 2,
        (true, None) => 0,
    };
    assert_eq!(output.status.code(), Some(code), "{name}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn every_fixture_gives_the_output_of_its_golden_file() {
    let update = std::env::var_os("UPDATE_GOLDEN").is_some();
    let mut wrong = Vec::new();
    for log in fixtures() {
        let found = json_of(&log);
        let golden = log.with_extension("json");
        if update {
            fs::write(&golden, &found).unwrap();
        } else if fs::read_to_string(&golden).ok().as_deref() != Some(&found) {
            wrong.push(format!("{}:\n{found}", log.display()));
        }
    }
    assert!(wrong.is_empty(), "not as expected:\n{}", wrong.join("\n"));
}

#[test]
fn a_log_gives_the_same_events_in_every_dmesg_format() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/kernel");
    let kinds = |name: &str| -> Vec<serde_json::Value> {
        json_of(&folder.join(format!("real-6.18-memcg-{name}.log")))
            .lines()
            .map(|line| {
                let mut event: serde_json::Value = serde_json::from_str(line).unwrap();
                for time in ["utc", "utc_from", "uptime_seconds", "provenance"] {
                    event.as_object_mut().unwrap().shift_remove(time);
                }
                event
            })
            .collect()
    };
    let plain = kinds("dmesg");
    for form in ["ctime", "decoded", "raw-prefix", "delta", "reltime", "iso", "json"] {
        assert_eq!(kinds(form), plain, "{form}");
    }
}

#[test]
fn crlf_and_a_missing_last_newline_change_nothing() {
    let log = "[    1.0] Out of memory: Killed process 4 (a b) total-vm:1kB, anon-rss:2kB, \
               file-rss:0kB\r\n[    2.0] NVRM: Xid (PCI:000f:01:00): 31, pid=5, name=x";
    let output = dmesg().args(["--json", "-"]).write_stdin(log).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), 2, "{text}");
    assert!(text.contains(r#""anon_rss_bytes":2048"#), "{text}");
    assert!(text.contains(r#""process":"x""#), "{text}");
}

#[test]
fn invalid_utf8_in_a_log_is_survived() {
    let mut log = vec![0u8; 300_000];
    log.extend([0xff, 0xfe, b'\n', b'\n', 0x1b, b'[', b'\n']);
    log.extend(vec![b'x'; 200_000]);
    log.extend(b"\n[    2.0] NVRM: Xid (PCI:000f:01:00): 31, pid=5, name=x\n");
    let output = dmesg().args(["--json", "-"]).write_stdin(log).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap().lines().count(), 1);
}

#[test]
fn all_lists_user_space_records_in_order_with_their_facility() {
    let log = "6,1,1000,-;NVRM: Xid (PCI:000f:01:00): 31, pid=5, name=x\n\
               14,2,2000,-;Out of memory: Killed process 1 (x) total-vm:1kB\n";
    let output = dmesg().args(["--json", "--all", "-"]).write_stdin(log).output().unwrap();
    let lines: Vec<serde_json::Value> = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let kinds: Vec<&str> = lines.iter().map(|line| line["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["xid", "user_record"]);
    assert_eq!(lines[1]["facility"], 1);
}

#[test]
fn a_record_twice_in_a_log_is_reported_once() {
    let record = "3,7,1000,-;NVRM: Xid (PCI:000f:01:00): 31, pid=5, name=x\n";
    let other = record.replace("3,7,", "3,8,");
    let log = format!("{record}{other}{record}");
    let output = dmesg().args(["--json", "-"]).write_stdin(log).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap().lines().count(), 2);
}

#[test]
fn an_unreadable_log_is_named_and_exits_2() {
    let missing = dmesg().arg("/nonexistent/log").output().unwrap();
    assert_eq!(missing.status.code(), Some(2));
    let error = String::from_utf8(missing.stderr).unwrap();
    assert!(error.contains("/nonexistent/log"), "{error}");
    let folder = dmesg().arg("/tmp").output().unwrap();
    assert_eq!(folder.status.code(), Some(2));
    let mail = format!("[   12.345678] NVRM: {}=\r\n pid=3D7\r\n", "x".repeat(54));
    let cases: [(&[u8], &str); 7] = [
        (b"\x1f\x8b\x08\x08\x08", "compressed by gzip: pipe it through `zcat` first"),
        (b"BZh91AY&SY\x01", "bzcat"),
        (b"\xff\xfe[\x00 \x00", "iconv"),
        (b"LPKSHHRH\0\0", "journalctl --file"),
        (b"__CURSOR=s=1\nMESSAGE=x\n", "-o json"),
        (mail.as_bytes(), "what the mail program shows"),
        (b"Sat 2026-11-21 02:31:07.123456 UTC [s=1;i=2]\n    MESSAGE=x\n", "-o json"),
    ];
    for (log, words) in cases {
        let output = dmesg().arg("-").write_stdin(log).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{words}: {error}");
        assert!(error.contains(words), "{words}: {error}");
    }
}

#[test]
fn a_socket_of_sshd_on_standard_input_is_not_read_as_a_log() {
    let (_, stdin) = std::os::unix::net::UnixStream::pair().unwrap();
    let output = std::process::Command::new(assert_cmd::cargo::cargo_bin!("umawarden"))
        .arg("dmesg")
        .stdin(std::os::fd::OwnedFd::from(stdin))
        .output()
        .unwrap();
    // The machine's own log is read, or refused; the socket would be an empty log.
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(!text.contains(" 0 messages"), "{text}");
}

#[test]
fn a_damaged_first_line_does_not_change_the_detected_format() {
    let kill = "Out of memory: Killed process 4 (x) total-vm:1kB, anon-rss:2kB, file-rss:0kB\n";
    for start in [&b"\xff\xfe\n"[..], b"BZh\n", b"\0\0\n", b"{\n", b"\x1e\n"] {
        let log = [start, kill.as_bytes()].concat();
        let output = dmesg().args(["--json", "-"]).write_stdin(log).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{start:?}");
        assert_eq!(String::from_utf8(output.stdout).unwrap().lines().count(), 1, "{start:?}");
    }
}

#[test]
fn copies_of_a_record_count_once_and_similar_records_separately() {
    let count = |stamps: [&str; 3]| {
        let log: String =
            stamps.map(|stamp| format!("{stamp} NVRM: Xid (PCI:000f:01:00): 31, x\n")).concat();
        let output = dmesg().args(["--json", "-"]).write_stdin(log).output().unwrap();
        String::from_utf8(output.stdout).unwrap().lines().count()
    };
    assert_eq!(count(["[    1.000001]", "[    1.000002]", "[    1.000001]"]), 2);
    assert_eq!(count(["Nov 21 02:31:07 host kernel:"; 3]), 3);
    assert_eq!(count(["[Sat Nov 21 02:31:07 2026]"; 3]), 3);
    assert_eq!(count([""; 3]), 3);
}

#[test]
fn the_text_output_explains_the_events() {
    let log = "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] \
               (0x00000051) returned from _memdescAllocInternal(pMemDesc) @ mem_desc.c:1359\n";
    let output = dmesg().arg("-").write_stdin(log).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("no incident by themselves"), "{text}");
    let nothing = dmesg().arg("-").write_stdin("[    1.000000] hello\n").output().unwrap();
    assert_eq!(nothing.status.code(), Some(0));
    assert_eq!(String::from_utf8(nothing.stdout).unwrap(), "Nothing found in 1 message.\n");
}

#[test]
fn a_text_without_events_and_stamps_is_no_log_without_faults() {
    for arguments in [&["README.md"][..], &["--json", "README.md"]] {
        let output = dmesg().args(arguments).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), &*output.stdout), (Some(2), &b""[..]), "{error}");
        assert!(error.contains("README.md: nothing was found, and no line has a stamp"), "{error}");
    }
    // An empty log is one.
    let empty = dmesg().arg("-").write_stdin("").output().unwrap();
    assert_eq!(String::from_utf8(empty.stdout).unwrap(), "Nothing found in 0 messages.\n");
}

/// The output of `dmesg --json` in several layouts of jq.
fn forms_of(document: &serde_json::Value) -> Vec<(&'static str, String)> {
    let records = document["dmesg"].as_array().unwrap();
    let lines = |between: &str| {
        let lines: Vec<String> = records.iter().map(ToString::to_string).collect();
        lines.join(between)
    };
    let pretty: Vec<String> =
        records.iter().map(|record| serde_json::to_string_pretty(record).unwrap()).collect();
    vec![
        ("jq -c '.dmesg[]'", lines("\n")),
        ("jq '.dmesg[]'", pretty.join("\n")),
        ("jq -c .", document.to_string()),
        ("jq .", serde_json::to_string_pretty(document).unwrap()),
        ("jq -c .dmesg", document["dmesg"].to_string()),
        ("jq .dmesg", serde_json::to_string_pretty(&document["dmesg"]).unwrap()),
        ("a line each, in an object", format!("{{\"dmesg\": [\n{}\n]}}\n", lines(",\n"))),
        ("a line each, in an array", format!("[\n{}\n]\n", lines(",\n"))),
    ]
}

#[test]
fn dmesg_json_gives_the_same_events_in_every_layout() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/kernel");
    let printed = fs::read_to_string(folder.join("real-6.18-memcg-json.log")).unwrap();
    let expected = json_of(&folder.join("real-6.18-memcg-json.log"));
    let document: serde_json::Value = serde_json::from_str(&printed).unwrap();
    assert!(document.to_string().len() > 30_000, "too short to show anything");
    for (form, text) in forms_of(&document) {
        let output = dmesg().args(["--json", "-"]).write_stdin(text).output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), expected, "{form}");
    }
    let count = document["dmesg"].as_array().unwrap().len();
    let quiet = serde_json::json!({"dmesg": vec![serde_json::json!({"pri": 6, "time": 1.0,
        "msg": "hello"}); count]});
    for (form, text) in forms_of(&quiet) {
        let output = dmesg().arg("-").write_stdin(text).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(text, format!("Nothing found in {count} messages.\n"), "{form}");
    }
}

const XID: &str = "NVRM: Xid (PCI:000f:01:00): 31, pid=5, name=x";

#[test]
fn wall_clock_times_are_derived_and_their_source_named() {
    for (line, utc, utc_from, uptime) in [
        ("[Sat Nov 21 02:31:07 2026] ", Some("2026-11-21T01:31:07Z"), Some("local_time"), None),
        (
            "Nov 20 02:31:07.5 host kernel: ",
            Some("2026-11-20T01:31:07.5Z"),
            Some("local_time_without_year"),
            None,
        ),
        (
            "Dec 31 02:31:07 host kernel: [   12.345678] ",
            Some("2025-12-31T01:31:07Z"),
            Some("local_time_without_year"),
            Some(12.345_678),
        ),
        (
            "Sat 2026-11-21 02:31:07 CET host kernel: ",
            Some("2026-11-21T01:31:07Z"),
            Some("local_time"),
            None,
        ),
        ("Sat 2026-11-21 02:31:07 EST host kernel: ", None, None, None),
        ("2026-11-21T02:31:07,5+02:00 ", Some("2026-11-21T00:31:07.5Z"), None, None),
        ("[   12.345678] ", None, None, Some(12.345_678)),
        ("[   12.345678] host kernel: ", None, None, Some(12.345_678)),
        ("3,7,5000,-;", None, None, Some(0.005)),
        ("[Nov21 02:31] ", None, None, None),
        ("[Ср янв 21 02:31:07 2026] ", None, None, None),
        ("", None, None, None),
    ] {
        let log = dated(format!("{line}{XID}\n").as_bytes(), "2026-11-21T12:00:00Z");
        let zone = "CET-1CEST,M3.5.0,M10.5.0/3";
        let found = objects(dmesg().arg("--json").arg(log.path()).env("TZ", zone));
        let [event] = &*found else { panic!("{line}: {found:#?}") };
        assert_eq!(event["utc"].as_str(), utc, "{line}");
        assert_eq!(event.get("utc_from").and_then(|from| from.as_str()), utc_from, "{line}");
        assert_eq!(event.get("uptime_seconds").and_then(|s| s.as_f64()), uptime, "{line}");
    }
}

#[test]
fn binary_input_is_rejected_as_no_kernel_log() {
    let random: Vec<u8> =
        (0..50_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let elf = fs::read("/bin/true").unwrap();
    for command in ["dmesg", "replay"] {
        for bytes in [&random, &elf] {
            let mut program = Command::new(assert_cmd::cargo::cargo_bin!("umawarden"));
            let output = program.args([command, "-"]).write_stdin(bytes.clone()).output().unwrap();
            let error = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(2), "{command}: {error}");
            assert!(error.contains("standard input is not a kernel log"), "{command}: {error}");
        }
    }
}
